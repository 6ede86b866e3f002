/* Proves: a message goes round all ranks, from fresh and from reused memory; small and large, so every protocol is used. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int main(int argc, char **argv)
{
	int rank, size, errors = 0;
	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &size);
	for (size_t bytes = 8; bytes <= 4u << 20; bytes *= 8) {
		unsigned char *out = malloc(bytes), *in = malloc(bytes);
		memset(out, rank + 1, bytes);
		for (int i = 0; i < 3; i++) {
			MPI_Sendrecv(out, (int)bytes, MPI_BYTE, (rank + 1) % size, 0, in, (int)bytes, MPI_BYTE,
				     (rank + size - 1) % size, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
			for (size_t k = 0; k < bytes; k++)
				errors += in[k] != (rank + size - 1) % size + 1;
		}
		free(out);
		free(in);
	}
	void *special;
	MPI_Alloc_mem(1 << 20, MPI_INFO_NULL, &special);
	memset(special, 1, 1 << 20);
	MPI_Free_mem(special);
	int all = 0;
	MPI_Allreduce(&errors, &all, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
	if (rank == 0)
		printf("ring of %d: %d errors\n", size, all);
	MPI_Finalize();
	return all != 0;
}
