/* allreduce.c by MPI_Allreduce: mpicc -O3 -o allreduce_mpi allreduce_mpi.c. What
 * mpirun -np 4 ./allreduce_mpi sums 16777216 prints, ./allreduce sums 16777216 4 prints, too.
 * SPDX-License-Identifier: MIT OR Apache-2.0 */
#include <mpi.h>

#include "allreduce.h"

static void allreduce(const double *in, double *out, size_t count)
{
	MPI_Allreduce(in, out, (int)count, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
}

static void all_are_here(void)
{
	MPI_Barrier(MPI_COMM_WORLD);
}

int main(int argc, char **argv)
{
	int rank;
	double *in, *out;
	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	if (argc < 2)
		MPI_Abort(MPI_COMM_WORLD, 1);
	MPI_Alloc_mem(MOST * sizeof *in, MPI_INFO_NULL, &in);
	MPI_Alloc_mem(MOST * sizeof *out, MPI_INFO_NULL, &out);
	memset(in, 0, MOST * sizeof *in);
	run(argv[1], most_of(argc, argv), rank, in, out);
	MPI_Free_mem(in);
	MPI_Free_mem(out);
	MPI_Finalize();
	return 0;
}
