/* lookup.c: the look-up among many ranges. Run with the shim preloaded.
 *   lookup RANGES
 * Prints one `name value` line for each thing measured; times in ns a look-up,
 * the loop and the reading of the address from an array included.
 * SPDX-License-Identifier: MIT OR Apache-2.0 */
#include "slice.h"
#include <pthread.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <linux/seccomp.h>

enum { HOT = 16, N = 1 << 17, ROUNDS = 15 };

typedef int lookup_fn(const void *, const void *, size_t, struct regall_range *);
static lookup_fn *lookup;
static char *area;
static unsigned long pages;
/* Addresses to look up, in order. */
static char **random_order, **hot_order;
/* Look-ups that said -EBUSY, in all; only a writer beside them can make them. */
static uint64_t busy;

static uint64_t rng = 88172645463325252ull;
static uint64_t next(void)
{
	rng ^= rng << 13;
	rng ^= rng >> 7;
	return rng ^= rng << 17;
}

/* ns a look-up over `order`. */
static double over(char **order)
{
	struct regall_range r;
	uint64_t failed = 0;
	uint64_t start = cpu_ns();
	for (unsigned i = 0; i < N; i++)
		failed += lookup(NULL, order[i], 8, &r) != 0;
	double ns = (double)(cpu_ns() - start) / N;
	__atomic_add_fetch(&busy, failed, __ATOMIC_RELAXED);
	return ns;
}

/* As over(), but no look-up begins before the one before it has answered. */
static double one_after_another(char **order)
{
	struct regall_range r;
	uint64_t zero = 0;
	uint64_t start = cpu_ns();
	for (unsigned i = 0; i < N; i++) {
		lookup(NULL, order[i] + zero, 8, &r);
		/* 0, but not before the answer is there. */
		zero = r.start;
		__asm__ volatile("and $0, %0" : "+r"(zero));
	}
	return (double)(cpu_ns() - start) / N;
}

/* For scale: one load at random from as many cache lines as there are ranges. */
static uint64_t (*lines)[8];
static double one_load(char **order)
{
	uint64_t sum = 0, start = cpu_ns();
	for (unsigned i = 0; i < N; i++)
		sum += lines[(order[i] - area) / 4096][0];
	__asm__ volatile("" ::"r"(sum));
	return (double)(cpu_ns() - start) / N;
}

/* The same, each load after the one before it. */
static double one_load_latency(char **order)
{
	uint64_t at = 0, start = cpu_ns();
	for (unsigned i = 0; i < N; i++)
		at = lines[(order[i] - area) / 4096 + at][0];
	__asm__ volatile("" ::"r"(at));
	return (double)(cpu_ns() - start) / N;
}

static double arithmetic(char **order)
{
	uint64_t x = (uint64_t)(uintptr_t)order | 1, start = cpu_ns();
	for (unsigned i = 0; i < 8 * N; i++)
		x = x * 6364136223846793005ull + 1442695040888963407ull;
	__asm__ volatile("" ::"r"(x));
	return (double)(cpu_ns() - start) / N;
}

static double median_of(double (*f)(char **), char **order)
{
	double got[ROUNDS];
	for (int i = 0; i < ROUNDS; i++)
		got[i] = f(order);
	qsort(got, ROUNDS, sizeof *got, by_size);
	return got[ROUNDS / 2];
}

/* Two threads at once, each on a CPU of its own. */
struct worker {
	double (*f)(char **);
	char **order;
	int cpu;
	double ns;
	pthread_t id;
};
static pthread_barrier_t ready;
/* Threads that still measure. */
static int measuring;

static void *work(void *arg)
{
	struct worker *w = arg;
	cpu_set_t set;
	CPU_ZERO(&set);
	CPU_SET(w->cpu, &set);
	sched_setaffinity(0, sizeof set, &set);
	pthread_barrier_wait(&ready);
	w->ns = median_of(w->f, w->order);
	/* Keep the other one company until it is done, too. */
	__atomic_sub_fetch(&measuring, 1, __ATOMIC_SEQ_CST);
	while (__atomic_load_n(&measuring, __ATOMIC_SEQ_CST) > 0)
		w->f(w->order);
	return NULL;
}

static double by_two(double (*f)(char **), char **order)
{
	struct worker w[2] = {{f, order, 0, 0, 0}, {f, order, 1, 0, 0}};
	measuring = 2;
	pthread_barrier_init(&ready, NULL, 2);
	for (int i = 0; i < 2; i++)
		pthread_create(&w[i].id, NULL, work, &w[i]);
	for (int i = 0; i < 2; i++)
		pthread_join(w[i].id, NULL);
	return (w[0].ns + w[1].ns) / 2;
}

/* How much more two threads get done than one; they take turns. */
static double scaling(double (*f)(char **))
{
	enum { TURNS = 3 };
	double one[TURNS], two[TURNS];
	for (int i = 0; i < TURNS; i++) {
		one[i] = median_of(f, random_order);
		two[i] = by_two(f, random_order);
	}
	qsort(one, TURNS, sizeof *one, by_size);
	qsort(two, TURNS, sizeof *two, by_size);
	return 2 * one[TURNS / 2] / two[TURNS / 2];
}

/* Look-ups where any system call but read, write and exit is death. */
static int without_system_calls(void)
{
	pid_t child = fork();
	if (child == 0) {
		struct regall_range r;
		int bad = 0;
		if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_STRICT))
			syscall(SYS_exit, 2);
		for (unsigned i = 0; i < N; i++)
			bad |= lookup(NULL, random_order[i], 8, &r);
		syscall(SYS_exit, bad != 0);
	}
	int status = -1;
	if (child < 0 || waitpid(child, &status, 0) != child)
		return -1;
	return status;
}

/* A neighbour that maps and unmaps all the time. */
static volatile int churning = 1;
static void *churn(void *unused)
{
	while (churning) {
		char *p = mmap(NULL, 65536, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		munmap(p, 65536);
	}
	return unused;
}

static void make_ranges(void)
{
	area = mmap(NULL, pages * 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (area == MAP_FAILED)
		fail("mmap");
	/* Neighbours differ, so the kernel can't merge them. */
	for (unsigned long i = 1; i < pages; i += 2)
		if (mprotect(area + i * 4096, 4096, PROT_READ))
			fail("mprotect: max_map_count?");
	random_order = malloc(N * sizeof *random_order);
	hot_order = malloc(N * sizeof *hot_order);
	char *hot[HOT];
	for (int i = 0; i < HOT; i++)
		hot[i] = area + next() % pages * 4096 + 64;
	for (unsigned i = 0; i < N; i++) {
		random_order[i] = area + next() % pages * 4096 + 128;
		hot_order[i] = hot[next() % HOT];
	}
}

int main(int argc, char **argv)
{
	struct regall_stats s;
	pages = argc > 1 ? number(argv[1]) : 100000;
	lookup = (lookup_fn *)dlsym(RTLD_DEFAULT, "regall_lookup");
	if (!lookup) {
		fprintf(stderr, "lookup: no regall_lookup here\n");
		return 2;
	}
	make_ranges();
	if (shim_stats(&s)) {
		fprintf(stderr, "lookup: the shim is inert\n");
		return 2;
	}
	printf("ranges %llu\n", (unsigned long long)s.mappings);
	printf("hot %.3f\n", median_of(over, hot_order));
	printf("random %.3f\n", median_of(over, random_order));
	printf("hot_latency %.3f\n", median_of(one_after_another, hot_order));
	printf("random_latency %.3f\n", median_of(one_after_another, random_order));
	lines = aligned_alloc(64, pages * 64);
	memset(lines, 0, pages * 64);
	printf("one_load %.3f\n", median_of(one_load, random_order));
	printf("one_load_latency %.3f\n", median_of(one_load_latency, random_order));
	printf("seccomp %d\n", without_system_calls());
	printf("two_lookup %.4f\n", scaling(over));
	printf("two_arithmetic %.4f\n", scaling(arithmetic));
	printf("two_loads %.4f\n", scaling(one_load_latency));
	if (busy) {
		fprintf(stderr, "lookup: failed without a writer beside it\n");
		return 1;
	}
	pthread_t t;
	pthread_create(&t, NULL, churn, NULL);
	printf("random_beside_writer %.3f\n", median_of(over, random_order));
	churning = 0;
	pthread_join(t, NULL);
	printf("busy_beside_writer %.6f\n", (double)busy / ((double)ROUNDS * N));
	return 0;
}
