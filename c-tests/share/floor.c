/*
 * What pingpong's pattern costs without MPI: two processes copy each other's buffer, mapped
 * in both, by memcpy, and tell each other by a flag in shared memory. No library that moves
 * a message in one copy can be faster. Prints as pingpong does.
 *
 *   floor [MILLISECONDS a size [SIZE...]]
 */
#define _GNU_SOURCE
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define LARGEST (64u << 20)
#define BATCHES 9

/* The number of messages that each has taken; each in a cache line of its own. */
struct turn {
	_Alignas(128) atomic_long taken[2][16];
	_Alignas(128) atomic_long go;
	atomic_long bytes, count;
};

static struct turn *turn;
static char *buffer[2];
static long done[2];

static double now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

/* The other has something for `me`: take it, and say so. */
static void take(int me, size_t bytes)
{
	long wanted = done[me] + (me == 1 ? 0 : 1);
	while (atomic_load_explicit(&turn->taken[1 - me][0], memory_order_acquire) < wanted)
		if (wanted < 0)
			return;
	memcpy(buffer[me], buffer[1 - me], bytes);
	done[me]++;
	atomic_store_explicit(&turn->taken[me][0], done[me], memory_order_release);
}

static void answer(void)
{
	for (long round = 1;; round++) {
		while (atomic_load(&turn->go) < round)
			;
		size_t bytes = (size_t)atomic_load(&turn->bytes);
		long n = atomic_load(&turn->count);
		if (n == 0)
			_exit(0);
		for (long i = 0; i < n; i++)
			take(1, bytes);
	}
}

static double exchange(size_t bytes, long n)
{
	atomic_store(&turn->bytes, (long)bytes);
	atomic_store(&turn->count, n);
	double start = now();
	atomic_fetch_add(&turn->go, 1);
	for (long i = 0; i < n; i++)
		take(0, bytes);
	return now() - start;
}

static int by_size(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;
	return (x > y) - (x < y);
}

static void measure(size_t bytes, double seconds)
{
	double got[BATCHES];
	exchange(bytes, 3);
	double once = exchange(bytes, 4) / 4;
	long n = (long)(seconds / BATCHES / (once > 1e-8 ? once : 1e-8));
	n = n < 1 ? 1 : n > 100000 ? 100000 : n;
	for (int i = 0; i < BATCHES; i++)
		got[i] = exchange(bytes, n) / (double)n / 2 * 1e6;
	qsort(got, BATCHES, sizeof got[0], by_size);
	printf("%zu %.3f\n", bytes, got[BATCHES / 2]);
}

static void *shared(size_t bytes)
{
	void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (p == MAP_FAILED) {
		perror("mmap");
		exit(2);
	}
	return p;
}

int main(int argc, char **argv)
{
	double seconds = argc > 1 ? atof(argv[1]) / 1000 : 0.06;
	turn = shared(sizeof *turn);
	for (int i = 0; i < 2; i++)
		memset(buffer[i] = shared(LARGEST), i, LARGEST);
	pid_t pid = fork();
	if (pid == 0)
		answer();
	for (int i = 2; i < argc; i++)
		measure((size_t)atol(argv[i]), seconds);
	for (size_t bytes = 1; argc <= 2 && bytes <= LARGEST; bytes *= 4)
		measure(bytes, seconds);
	atomic_store(&turn->count, 0);
	atomic_fetch_add(&turn->go, 1);
	int status;
	return waitpid(pid, &status, 0) == pid && status == 0 ? 0 : 1;
}
