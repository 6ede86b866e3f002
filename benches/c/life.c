/* life.c: what a process pays for its life under a pin set.
 *   life pthread     pthread_create + pthread_join, default stack
 *   life pthreads    32 threads created, then joined: more stacks than libc keeps
 *   life fork MIB    fork + exit + wait, with so much memory touched
 * Wall-clock time: the work is partly another thread's or process's.
 * SPDX-License-Identifier: MIT OR Apache-2.0 */
#include "slice.h"
#include <pthread.h>
#include <sys/mman.h>
#include <sys/wait.h>

static void *nothing(void *arg)
{
	return arg;
}

static double threads(void)
{
	enum { N = 5 };
	uint64_t start = clock_ns(CLOCK_MONOTONIC);
	for (int i = 0; i < N; i++) {
		pthread_t t;
		if (pthread_create(&t, NULL, nothing, NULL))
			fail("pthread_create");
		pthread_join(t, NULL);
	}
	return (double)(clock_ns(CLOCK_MONOTONIC) - start) / N;
}

static double many_threads(void)
{
	enum { N = 32 };
	pthread_t t[N];
	uint64_t start = clock_ns(CLOCK_MONOTONIC);
	for (int i = 0; i < N; i++)
		if (pthread_create(&t[i], NULL, nothing, NULL))
			fail("pthread_create");
	for (int i = 0; i < N; i++)
		pthread_join(t[i], NULL);
	return (double)(clock_ns(CLOCK_MONOTONIC) - start) / N;
}

static double forks(void)
{
	uint64_t start = clock_ns(CLOCK_MONOTONIC);
	pid_t child = fork();
	if (child == 0)
		_exit(0);
	if (child < 0 || waitpid(child, NULL, 0) != child)
		fail("fork");
	return (double)(clock_ns(CLOCK_MONOTONIC) - start);
}

int main(int argc, char **argv)
{
	const char *what = argc > 1 ? argv[1] : "";
	if (!strcmp(what, "pthread")) {
		serve(threads, 8);
	} else if (!strcmp(what, "pthreads")) {
		serve(many_threads, 8);
	} else if (!strcmp(what, "fork") && argc > 2) {
		size_t bytes = number(argv[2]) << 20;
		char *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		if (p == MAP_FAILED)
			fail("mmap");
		memset(p, 1, bytes);
		serve(forks, 8);
	} else {
		fprintf(stderr, "life: unknown: %s\n", what);
		return 2;
	}
	return 0;
}
