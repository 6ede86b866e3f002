/* Proves: a rank that is killed takes the others along, or leaves them working, as without the shim. */
/*
 * mourn: rank 1 kills itself in the midst of messages; the others go on exchanging them
 * among themselves, and rank 0 says so. Whether they live to do it is the launcher's affair.
 */
#include <mpi.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define BYTES (1 << 20)

static int exchange(int rank, int with, int times)
{
	int errors = 0;
	for (int i = 0; i < times; i++) {
		unsigned char *out = malloc(BYTES), *in = malloc(BYTES);
		memset(out, rank + i, BYTES);
		MPI_Sendrecv(out, BYTES, MPI_BYTE, with, i, in, BYTES, MPI_BYTE, with, i, MPI_COMM_WORLD,
			     MPI_STATUS_IGNORE);
		for (size_t k = 0; k < BYTES; k += 1000)
			errors += in[k] != (unsigned char)(with + i);
		free(out);
		free(in);
	}
	return errors;
}

int main(int argc, char **argv)
{
	int rank;
	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
	if (rank == 1) {
		void *p = malloc(BYTES);
		memset(p, 1, BYTES);
		exchange(1, 0, 3);
		kill(getpid(), SIGKILL);
	}
	int errors = rank == 0 ? exchange(0, 1, 3) : 0;
	usleep(500000); /* the launcher has heard of it */
	errors += exchange(rank, 2 - rank, 10);
	if (rank == 0) {
		printf("the others go on: %d errors\n", errors);
		fflush(stdout);
	}
	_exit(errors != 0);
}
