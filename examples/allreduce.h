/* Sums of vectors over all processes: what the versions of the example have in common. */
#ifndef ALLREDUCE_H
#define ALLREDUCE_H

#include <inttypes.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* Doubles of the longest vector: 16 MiB. Each size is eight times the one before. */
enum { MOST = 1 << 21, ROUNDS = 9, RANKS = 16 };

/* What each version has. */
static void allreduce(const double *in, double *out, size_t count);
static void all_are_here(void);

/* Whole numbers: their sum is the same in whatever order they are added. */
static void fill(double *in, size_t count, int rank)
{
	for (size_t n = 0; n < count; n++)
		in[n] = (double)((n * 2654435761u + (size_t)rank * 40503u) % 100003u);
}

static uint64_t checksum(const double *out, size_t count)
{
	uint64_t sum = count;
	for (size_t n = 0; n < count; n++) {
		uint64_t bits;
		memcpy(&bits, &out[n], sizeof bits);
		sum = (sum ^ bits) * 0x9e3779b97f4a7c15u;
	}
	return sum;
}

static double seconds(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* How many sums a round has: as many as take 20 ms, 3 to 2,000. All processes come to the same
 * number. With more processes than processors a sum can take many milliseconds. */
static int sums_in_20_ms(double *in, double *out, size_t count)
{
	double began = seconds();
	for (int n = 0; n < 3; n++)
		allreduce(in, out, count);
	in[0] = (double)(int64_t)((seconds() - began) / 3 * 1e9);
	in[1] = 1;
	allreduce(in, out, 2);
	double sums = 20e6 * out[1] / out[0];
	return sums < 3 ? 3 : sums > 2000 ? 2000 : (int)sums;
}

/* "sums": says what comes out, of vectors up to MOST doubles. "time": how long it takes, in
 * microseconds, the median of ROUNDS rounds on the first process's clock. */
static void run(const char *what, size_t most, int rank, double *in, double *out)
{
	for (size_t count = 1; count <= most; count *= 8) {
		double took[ROUNDS];
		fill(in, count, rank);
		memset(out, 0, count * sizeof *out);
		all_are_here();
		if (strcmp(what, "sums") == 0) {
			allreduce(in, out, count);
			/* Every process looks at what it has got itself. */
			uint64_t own = checksum(out, count);
			in[0] = (double)(own % 1000003);
			allreduce(in, out, 1);
			if (rank == 0)
				printf("%zu bytes: %016" PRIx64 " %.0f\n", count * sizeof *in, own, out[0]);
			continue;
		}
		int times = sums_in_20_ms(in, out, count);
		for (int round = -1; round < ROUNDS; round++) {
			all_are_here();
			double began = seconds();
			for (int n = 0; n < times; n++)
				allreduce(in, out, count);
			if (round < 0)
				continue;
			int at = round;
			double one = (seconds() - began) / times * 1e6;
			for (; at > 0 && took[at - 1] > one; at--)
				took[at] = took[at - 1];
			took[at] = one;
		}
		if (rank == 0)
			printf("%zu %.3f\n", count * sizeof *in, took[ROUNDS / 2]);
	}
}

static size_t most_of(int argc, char **argv)
{
	size_t most = argc > 2 ? strtoul(argv[2], NULL, 0) / sizeof(double) : MOST;
	return most > MOST ? MOST : most;
}

#endif
