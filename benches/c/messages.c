/*
 * The same as boxes lat and rate by an MPI library (ranks 0 to N), compiled with its wrapper.
 * messages lat BYTES COUNT | rate BYTES COUNT
 */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ROUNDS 9
#define WINDOW 64

static char data[64 << 10];

int main(int argc, char **argv)
{
	int rank, ranks;
	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &ranks);
	if (argc < 4)
		MPI_Abort(MPI_COMM_WORLD, 1);
	int bytes = atoi(argv[2]), together = strcmp(argv[1], "rate") == 0;
	long count = atol(argv[3]);
	for (int round = -1; round < ROUNDS; round++) {
		MPI_Barrier(MPI_COMM_WORLD);
		double begin = MPI_Wtime();
		if (!together) {
			for (long n = 0; n < count && rank < 2; n++) {
				if (rank == 0)
					MPI_Send(data, bytes, MPI_CHAR, 1, 1, MPI_COMM_WORLD);
				MPI_Recv(data, bytes, MPI_CHAR, !rank, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
				if (rank == 1)
					MPI_Send(data, bytes, MPI_CHAR, 0, 1, MPI_COMM_WORLD);
			}
		} else {
			static char into[WINDOW][4096];
			MPI_Request all[WINDOW];
			long windows = count / WINDOW * (rank ? 1 : ranks - 1);
			for (long w = 0; w < windows; w++) {
				for (int n = 0; n < WINDOW; n++)
					if (rank == 0)
						MPI_Irecv(into[n], bytes, MPI_CHAR, MPI_ANY_SOURCE, 1,
							  MPI_COMM_WORLD, &all[n]);
					else
						MPI_Isend(data, bytes, MPI_CHAR, 0, 1, MPI_COMM_WORLD, &all[n]);
				MPI_Waitall(WINDOW, all, MPI_STATUSES_IGNORE);
			}
		}
		double spent = (MPI_Wtime() - begin) * 1e9;
		double messages = together ? (double)(count / WINDOW * WINDOW) * (ranks - 1) : 2.0 * count;
		if (rank == 0 && round >= 0)
			printf("%.1f\n", spent / messages);
	}
	MPI_Finalize();
	return 0;
}
