#!/bin/bash
# A recording, and the same run once more from it.
export _RR_TRACE_DIR=$HERE
rr record -n -o tried true >/dev/null 2>said || { echo "SKIP rr can't record here: $(grep -v '^$' said | head -n 1)"; exit 0; }
with=()
[ -z "$WITH" ] || with=(-v "LD_PRELOAD=$SHIM" -v REGALL=1)
rr record -n -o trace "${with[@]}" "$BIN/frames" 20
rr replay -a trace
