/* halo.c by MPI: mpicc -o halo_mpi halo_mpi.c && mpirun -np 4 ./halo_mpi says the same. */
#include <inttypes.h>
#include <mpi.h>
#include <stdio.h>

#include "halo.h"

static struct block block;

int main(int argc, char **argv)
{
	int rank, ranks;
	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &ranks);
	if (ranks != BLOCKS)
		MPI_Abort(MPI_COMM_WORLD, 1);
	begin(&block, rank);
	for (int n = 0; n < STEPS; n++) {
		double mine[SIDES][SIDE], theirs[SIDES][SIDE];
		MPI_Request all[2 * SIDES];
		/* (gcc takes MPICH's MPI_STATUSES_IGNORE for an array that is too short.) */
		MPI_Status done[2 * SIDES];
		int count = 0;
		for (enum side s = UP; s < SIDES; s++) {
			int other = neighbour(rank, s);
			if (other < 0)
				continue;
			take_edge(&block, s, mine[s]);
			MPI_Irecv(theirs[s], SIDE, MPI_DOUBLE, other, OPPOSITE(s), MPI_COMM_WORLD, &all[count++]);
			MPI_Isend(mine[s], SIDE, MPI_DOUBLE, other, s, MPI_COMM_WORLD, &all[count++]);
		}
		MPI_Waitall(count, all, done);
		for (enum side s = UP; s < SIDES; s++)
			if (neighbour(rank, s) >= 0)
				set_frame(&block, s, theirs[s]);
		step(&block);
	}
	uint64_t own = checksum(&block), sum = 0;
	MPI_Reduce(&own, &sum, 1, MPI_UINT64_T, MPI_SUM, 0, MPI_COMM_WORLD);
	if (rank == 0)
		printf("checksum %016" PRIx64 "\n", sum);
	MPI_Finalize();
	return 0;
}
