/*
 * Proves nothing by itself: memory of both ranks is sent and received, unmapped, and mapped again
 * at its address, round by round. A registration cache that does not learn of it sends from and
 * receives into the pages that have gone; rank 1 counts the messages that came with other bytes.
 * With the argument `raw` memory is unmapped by syscall(2), which UCX's hooks do not see.
 */
#include <mpi.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#define LEN (256u << 10)
#define ROUNDS 8

static void map_at(unsigned char *at)
{
	int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE;
	if (mmap(at, LEN, PROT_READ | PROT_WRITE, flags, -1, 0) != at)
		MPI_Abort(MPI_COMM_WORLD, 3);
}

int main(int argc, char **argv)
{
	int rank, wrong = 0;
	bool raw = argc > 1 && strcmp(argv[1], "raw") == 0;
	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	/* A hole that nobody else maps into by chance. */
	unsigned char *island = mmap(NULL, 3 * LEN, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	unsigned char *p = island + LEN;
	munmap(p, LEN);
	for (int round = 1; round <= ROUNDS; round++) {
		map_at(p);
		memset(p, rank == 0 ? round : 0xee, LEN);
		if (rank == 0)
			MPI_Send(p, LEN, MPI_BYTE, 1, round, MPI_COMM_WORLD);
		else
			MPI_Recv(p, LEN, MPI_BYTE, 0, round, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
		for (size_t i = 0; rank == 1 && i < LEN; i++)
			if (p[i] != round) {
				wrong++;
				break;
			}
		MPI_Barrier(MPI_COMM_WORLD);
		if (raw)
			syscall(SYS_munmap, p, LEN);
		else
			munmap(p, LEN);
	}
	if (rank == 1)
		printf("%d of %d messages with other bytes\n", wrong, ROUNDS);
	MPI_Finalize();
	return 0;
}
