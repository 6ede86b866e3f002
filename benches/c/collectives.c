/* collectives.c: what allreduce and alltoall cost, from buffers that are used again and again.
 *   mpirun -np N collectives MILLISECONDS
 * For each operation and size (of what one rank sends to one other, or has reduced) rank 0 prints
 * a line: its name, bytes, microseconds. A measurement is made of batches, of which the median
 * counts, and takes about MILLISECONDS. What arrives is checked.
 * SPDX-License-Identifier: MIT OR Apache-2.0 */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

#define MOST (4 << 20)
#define BATCHES 9

static int rank, ranks;
static double *in, *out;

static void check(int good, const char *what)
{
	if (!good) {
		fprintf(stderr, "collectives: rank %d: wrong: %s\n", rank, what);
		MPI_Abort(MPI_COMM_WORLD, 1);
	}
}

static void allreduce(int words)
{
	MPI_Allreduce(in, out, words, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
}

static void alltoall(int words)
{
	MPI_Alltoall(in, words, MPI_DOUBLE, out, words, MPI_DOUBLE, MPI_COMM_WORLD);
}

/* Word i of what rank r has for rank `to`: small numbers, of which sums are exact. */
static double word(int r, int to, int i)
{
	return (r * 31 + to * 7 + i) % 1000;
}

static void fill(int words, int parts)
{
	for (int to = 0; to < parts; to++)
		for (int i = 0; i < words; i++)
			in[(size_t)to * words + i] = word(rank, to, i);
}

static void reduced(int words)
{
	for (int i = 0; i < words; i++) {
		double sum = 0;
		for (int r = 0; r < ranks; r++)
			sum += word(r, 0, i);
		check(out[i] == sum, "a sum");
	}
}

static void exchanged(int words)
{
	for (int r = 0; r < ranks; r++)
		for (int i = 0; i < words; i++)
			check(out[(size_t)r * words + i] == word(r, rank, i), "what came from a rank");
}

static double batch(void (*operation)(int), int words, long times)
{
	MPI_Barrier(MPI_COMM_WORLD);
	double begun = MPI_Wtime();
	for (long i = 0; i < times; i++)
		operation(words);
	return MPI_Wtime() - begun;
}

/* How many fill so many seconds, or half of them. Rank 0 says, so that all make as many. */
static long batches_of(void (*operation)(int), int words, double seconds)
{
	for (long times = 1;; times *= 2) {
		double took = batch(operation, words, times);
		MPI_Bcast(&took, 1, MPI_DOUBLE, 0, MPI_COMM_WORLD);
		if (took >= seconds / 2 || times >= 1 << 20)
			return times;
	}
}

static int by_value(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;
	return (x > y) - (x < y);
}

static void measure(const char *name, void (*operation)(int), void (*verify)(int), int parts, double seconds)
{
	static const int sizes[] = { 8, 64, 512, 4 << 10, 32 << 10, 256 << 10, 1 << 20, MOST };
	for (size_t n = 0; n < sizeof sizes / sizeof *sizes; n++) {
		int words = sizes[n] / 8;
		double took[BATCHES];
		fill(words, parts);
		operation(words);
		verify(words);
		long times = batches_of(operation, words, seconds / BATCHES);
		for (int b = 0; b < BATCHES; b++)
			took[b] = batch(operation, words, times) / times;
		verify(words);
		qsort(took, BATCHES, sizeof *took, by_value);
		if (rank == 0)
			printf("%s %d %.4f\n", name, sizes[n], took[BATCHES / 2] * 1e6);
	}
}

int main(int argc, char **argv)
{
	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &ranks);
	double seconds = (argc > 1 ? atof(argv[1]) : 100) / 1000;
	in = malloc((size_t)MOST * ranks);
	out = malloc((size_t)MOST * ranks);
	check(in && out, "no memory");
	measure("allreduce", allreduce, reduced, 1, seconds);
	measure("alltoall", alltoall, exchanged, ranks, seconds);
	MPI_Finalize();
	return 0;
}
