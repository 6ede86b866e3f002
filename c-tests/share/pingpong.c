/*
 * An ordinary ping-pong between two ranks: one buffer of malloc's, sent and received into
 * again and again. Rank 0 prints, for each size, bytes and microseconds one way (the median
 * of batches).
 *
 *   pingpong [MILLISECONDS a size [SIZE...]]
 */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LARGEST (64 << 20)
#define BATCHES 9

static char *buffer;
static int rank, other;

/* Seconds for `n` messages there and back. */
static double exchange(int bytes, int n)
{
	double start = MPI_Wtime();
	for (int i = 0; i < n; i++) {
		if (rank == 0)
			MPI_Send(buffer, bytes, MPI_BYTE, other, 1, MPI_COMM_WORLD);
		MPI_Recv(buffer, bytes, MPI_BYTE, other, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
		if (rank == 1)
			MPI_Send(buffer, bytes, MPI_BYTE, other, 1, MPI_COMM_WORLD);
	}
	return MPI_Wtime() - start;
}

static int by_size(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;
	return (x > y) - (x < y);
}

/* How often, so that all batches together take about that long: rank 0 decides. */
static int repeats(int bytes, double seconds)
{
	exchange(bytes, 3);
	double once = exchange(bytes, 4) / 4;
	int n = (int)(seconds / BATCHES / (once > 1e-8 ? once : 1e-8));
	n = n < 1 ? 1 : n > 100000 ? 100000 : n;
	MPI_Bcast(&n, 1, MPI_INT, 0, MPI_COMM_WORLD);
	return n;
}

static unsigned char byte_of(int i, int bytes)
{
	return (unsigned char)(i * 31 + i / 4093 + bytes);
}

/* What rank 0 had arrives, in both: a fast way that copies something else is of no use. */
static void check(int bytes)
{
	for (int i = 0; i < bytes; i++)
		buffer[i] = rank == 0 ? (char)byte_of(i, bytes) : 0;
	exchange(bytes, 1);
	for (int i = 0; i < bytes; i++)
		if ((unsigned char)buffer[i] != byte_of(i, bytes)) {
			fprintf(stderr, "rank %d: byte %d of %d is wrong\n", rank, i, bytes);
			MPI_Abort(MPI_COMM_WORLD, 3);
		}
}

static void measure(int bytes, double seconds)
{
	double got[BATCHES];
	check(bytes);
	int n = repeats(bytes, seconds);
	for (int i = 0; i < BATCHES; i++)
		got[i] = exchange(bytes, n) / n / 2 * 1e6;
	qsort(got, BATCHES, sizeof got[0], by_size);
	if (rank == 0)
		printf("%d %.3f\n", bytes, got[BATCHES / 2]);
}

int main(int argc, char **argv)
{
	int ranks;
	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &ranks);
	double seconds = argc > 1 ? atof(argv[1]) / 1000 : 0.06;
	buffer = malloc(LARGEST);
	if (ranks != 2 || !buffer || seconds <= 0) {
		if (rank == 0)
			fprintf(stderr, "pingpong: two ranks, 64 MiB each, and some milliseconds are needed\n");
		MPI_Abort(MPI_COMM_WORLD, 2);
	}
	other = 1 - rank;
	memset(buffer, rank, LARGEST);
	for (int i = 2; i < argc; i++)
		if (atoi(argv[i]) > 0 && atoi(argv[i]) <= LARGEST)
			measure(atoi(argv[i]), seconds);
	for (int bytes = 1; argc <= 2 && bytes <= LARGEST; bytes *= 4)
		measure(bytes, seconds);
	MPI_Finalize();
	free(buffer);
	return 0;
}
