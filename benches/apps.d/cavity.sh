#!/bin/sh
# OpenFOAM's cavity, finer, in two halves: makes the case in the current folder.
set -e
export WM_PROJECT_DIR=/usr/share/openfoam
cp -rL "$1"/. .
sed -i 's/(20 20 1)/(100 100 1)/' system/blockMeshDict
sed -i 's/^deltaT .*/deltaT 0.001;/; s/^endTime .*/endTime 0.03;/; s/^writeInterval .*/writeInterval 1000;/' system/controlDict
cat >system/decomposeParDict <<'EOF'
FoamFile { version 2.0; format ascii; class dictionary; object decomposeParDict; }
numberOfSubdomains 2;
method simple;
coeffs { n (2 1 1); }
EOF
blockMesh >log.mesh
decomposePar >log.parts
