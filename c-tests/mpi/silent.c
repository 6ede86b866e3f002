/*
 * For the harness to look at: a ping-pong that takes fresh memory for each message. At the
 * quiet points "in" and "out" an MPI call of the message path is about to begin, and has
 * ended; the first few messages are for warming up.
 */
#include <mpi.h>
#include <malloc.h>

#include "../quiet.h"

#define BYTES (1 << 20)

int main(int argc, char **argv)
{
	int rank, errors = 0, rounds = 20, warm = 5;
	/* Each buffer is a mapping of its own, and gone when it is freed. */
	mallopt(M_MMAP_THRESHOLD, 128 * 1024);
	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	for (int i = 0; i < rounds + warm; i++) {
		char *p = malloc(BYTES + i * 4096);
		memset(p, i, BYTES);
		if (rank == 1)
			memset(p, 0, BYTES);
		if (i >= warm)
			quiet_point("in");
		if (rank == 0)
			MPI_Send(p, BYTES, MPI_BYTE, 1, 0, MPI_COMM_WORLD);
		else
			MPI_Recv(p, BYTES, MPI_BYTE, 0, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
		if (i >= warm)
			quiet_point("out");
		for (int k = 0; k < BYTES; k++)
			errors += p[k] != (char)i;
		free(p);
	}
	int all = 0;
	MPI_Reduce(&errors, &all, 1, MPI_INT, MPI_SUM, 0, MPI_COMM_WORLD);
	if (rank == 0)
		printf("%d messages of %d bytes: %d errors\n", rounds + warm, BYTES, all);
	MPI_Finalize();
	return all != 0;
}
