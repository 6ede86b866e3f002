/* Proves: ranks that may not attach to each other (each in a user namespace of its own) get each other's memory all the same. */
#include <mpi.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "../../include/regall.h"

#pragma weak regall_peer_open
#pragma weak regall_peer_close
#pragma weak regall_get

#define BYTES (300u << 10)

int main(int argc, char **argv)
{
	int rank, size, errors = 0, all = 0;
	/* Before MPI takes what RLIMIT_MEMLOCK lets us have. */
	unsigned char *mine = malloc(BYTES), *theirs = malloc(BYTES);
	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &size);
	for (size_t i = 0; i < BYTES; i++)
		mine[i] = (unsigned char)(i * 7 + i / 251 + (size_t)rank);
	struct where {
		uint64_t pid, at;
	} me = { (uint64_t)getpid(), (uint64_t)(uintptr_t)mine }, *where = calloc((size_t)size, sizeof *where);
	MPI_Allgather(&me, sizeof me, MPI_BYTE, where, sizeof me, MPI_BYTE, MPI_COMM_WORLD);
	for (int n = 0; regall_peer_open && n < size; n++) {
		regall_peer *peer;
		struct regall_done done = { 0 };
		if (n == rank)
			continue;
		int r = regall_peer_open((int)where[n].pid, 0, 0, &peer);
		if (r == 0) {
			memset(theirs, 0, BYTES);
			r = regall_get(peer, theirs, where[n].at, BYTES, &done);
			for (size_t i = 0; i < BYTES; i++)
				errors += theirs[i] != (unsigned char)(i * 7 + i / 251 + (size_t)n);
			regall_peer_close(peer);
		}
		if (r != 0 || done.mechanism != REGALL_COPY_HELPER) {
			fprintf(stderr, "rank %d from %d: %d, by %u\n", rank, n, r, done.mechanism);
			errors++;
		}
	}
	MPI_Allreduce(&errors, &all, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
	if (rank == 0)
		printf("apart: %d ranks, %d errors\n", size, all);
	MPI_Finalize();
	return all != 0;
}
