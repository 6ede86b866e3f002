/* Proves: messages of every size arrive whole between ranks, by whatever the library copies with; and says how quick they are. */
/* exchange [REPEATS [shared]]: bandwidth of messages of 1 MiB, one way, in MB/s; in memory that peers can map. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../include/regall.h"

#pragma weak regall_active
#pragma weak regall_alloc_shared

#define MOST (4u << 20)

static unsigned char byte(size_t i, int rank, size_t size)
{
	return (unsigned char)(i * 7 + i / 251 + (size_t)rank * 13 + size);
}

static unsigned char *buffer(int shared)
{
	void *p;
	if (shared && regall_active && regall_active() && regall_alloc_shared(MOST, &p) == 0)
		return p;
	return malloc(MOST);
}

int main(int argc, char **argv)
{
	int rank, size, errors = 0, all = 0, repeats = argc > 1 ? atoi(argv[1]) : 20;
	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &size);
	unsigned char *out = buffer(argc > 2), *in = buffer(argc > 2);
	int to = (rank + 1) % size, from = (rank + size - 1) % size;
	for (size_t bytes = 1; bytes <= MOST; bytes = bytes * 2 + bytes / 3 % 3)
		for (int n = 0; n < 3; n++) {
			for (size_t i = 0; i < bytes; i++)
				out[i] = byte(i, rank, bytes + (size_t)n);
			memset(in, 0, bytes);
			MPI_Sendrecv(out, (int)bytes, MPI_BYTE, to, 1, in, (int)bytes, MPI_BYTE, from, 1,
				     MPI_COMM_WORLD, MPI_STATUS_IGNORE);
			for (size_t i = 0; i < bytes; i++)
				errors += in[i] != byte(i, from, bytes + (size_t)n);
		}
	double best = 0;
	for (int n = 0; n < repeats; n++) {
		double since = MPI_Wtime();
		for (int k = 0; k < 20; k++)
			MPI_Sendrecv(out, 1 << 20, MPI_BYTE, to, 1, in, 1 << 20, MPI_BYTE, from, 1,
				     MPI_COMM_WORLD, MPI_STATUS_IGNORE);
		double speed = 20.0 * (1 << 20) / 1e6 / (MPI_Wtime() - since);
		best = speed > best ? speed : best;
	}
	MPI_Allreduce(&errors, &all, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
	if (rank == 0)
		printf("exchange: %d ranks, %d errors, %.0f MB/s\n", size, all, best);
	MPI_Finalize();
	return all != 0;
}
