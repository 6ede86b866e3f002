/* Poisson's equation on a square, by PETSc's conjugate gradients. */
#include <petscdmda.h>
#include <petscksp.h>

int main(int argc, char **argv)
{
	DM da;
	KSP ksp;
	Mat a;
	Vec b, x;
	PetscInt first_x, first_y, width, height, n = 400, iterations;
	PetscReal norm;

	PetscCall(PetscInitialize(&argc, &argv, NULL, NULL));
	PetscCall(PetscOptionsGetInt(NULL, NULL, "-n", &n, NULL));
	PetscCall(DMDACreate2d(PETSC_COMM_WORLD, DM_BOUNDARY_NONE, DM_BOUNDARY_NONE, DMDA_STENCIL_STAR, n, n, PETSC_DECIDE,
			       PETSC_DECIDE, 1, 1, NULL, NULL, &da));
	PetscCall(DMSetFromOptions(da));
	PetscCall(DMSetUp(da));
	PetscCall(DMCreateMatrix(da, &a));
	PetscCall(DMDAGetCorners(da, &first_x, &first_y, NULL, &width, &height, NULL));
	for (PetscInt j = first_y; j < first_y + height; j++) {
		for (PetscInt i = first_x; i < first_x + width; i++) {
			MatStencil row = { .i = i, .j = j }, at[5];
			PetscScalar values[5];
			PetscInt many = 0;
			const PetscInt beside[4][2] = { { -1, 0 }, { 1, 0 }, { 0, -1 }, { 0, 1 } };
			for (int k = 0; k < 4; k++) {
				PetscInt to_i = i + beside[k][0], to_j = j + beside[k][1];
				if (to_i < 0 || to_i >= n || to_j < 0 || to_j >= n)
					continue;
				at[many] = (MatStencil){ .i = to_i, .j = to_j };
				values[many++] = -1;
			}
			at[many] = row;
			values[many++] = 4;
			PetscCall(MatSetValuesStencil(a, 1, &row, many, at, values, INSERT_VALUES));
		}
	}
	PetscCall(MatAssemblyBegin(a, MAT_FINAL_ASSEMBLY));
	PetscCall(MatAssemblyEnd(a, MAT_FINAL_ASSEMBLY));
	PetscCall(MatCreateVecs(a, &x, &b));
	PetscCall(VecSet(b, 1));
	PetscCall(KSPCreate(PETSC_COMM_WORLD, &ksp));
	PetscCall(KSPSetOperators(ksp, a, a));
	PetscCall(KSPSetType(ksp, KSPCG));
	PetscCall(KSPSetFromOptions(ksp));
	PetscCall(KSPSolve(ksp, b, x));
	PetscCall(KSPGetIterationNumber(ksp, &iterations));
	PetscCall(VecNorm(x, NORM_2, &norm));
	PetscCall(PetscPrintf(PETSC_COMM_WORLD, "%d iterations, norm %.6e\n", (int)iterations, (double)norm));
	return PetscFinalize();
}
