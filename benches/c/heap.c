/* heap.c: growth of a heap, ns for each step. What takes it back is not in the time.
 *   heap sbrk        the break, 132 KiB at a time (malloc's step), untouched
 *   heap malloc      malloc of 16 KiB blocks in the main arena (it grows by brk)
 *   heap mprotect    a reserve made accessible 16 KiB at a time, untouched
 *   heap arena       malloc of 8 KiB blocks in a thread's arena (it grows by mprotect)
 * SPDX-License-Identifier: MIT OR Apache-2.0 */
#include "slice.h"
#include <malloc.h>
#include <pthread.h>
#include <sys/mman.h>

#define HEAP_MAX (64ul << 20) /* of glibc's thread arenas */

static double by_sbrk(void)
{
	enum { N = 200, STEP = 132 << 10 };
	uint64_t start = cpu_ns();
	for (int i = 0; i < N; i++)
		if (sbrk(STEP) == (void *)-1)
			fail("sbrk");
	uint64_t spent = cpu_ns() - start;
	if (sbrk(-(intptr_t)N * STEP) == (void *)-1)
		fail("sbrk back");
	return (double)spent / N;
}

static double by_malloc(void)
{
	enum { N = 1000, BLOCK = 16 << 10 };
	static void *block[N];
	uint64_t start = cpu_ns();
	for (int i = 0; i < N; i++)
		block[i] = malloc(BLOCK);
	uint64_t spent = cpu_ns() - start;
	for (int i = N - 1; i >= 0; i--)
		free(block[i]);
	malloc_trim(0); /* back by brk */
	return (double)spent / N;
}

static double by_mprotect(void)
{
	enum { N = 500, STEP = 16 << 10 };
	char *p = mmap(NULL, HEAP_MAX, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (p == MAP_FAILED)
		fail("mmap");
	uint64_t start = cpu_ns();
	for (int i = 0; i < N; i++)
		if (mprotect(p + (size_t)i * STEP, STEP, PROT_READ | PROT_WRITE))
			fail("mprotect");
	uint64_t spent = cpu_ns() - start;
	munmap(p, HEAP_MAX);
	return (double)spent / N;
}

/* In a thread whose arena's first heap is full: what follows comes from a second
 * one, which glibc gives back whole when all of it is free, and makes anew. */
static double by_arena(void)
{
	enum { N = 2000, BLOCK = 8 << 10 };
	static void *block[N];
	uint64_t start = cpu_ns();
	for (int i = 0; i < N; i++)
		block[i] = malloc(BLOCK);
	uint64_t spent = cpu_ns() - start;
	/* The first was the last in the old heap; the rest leaves the second empty. */
	free(block[0]);
	for (int i = N - 1; i > 0; i--)
		free(block[i]);
	return (double)spent / N;
}

static void *arena_thread(void *unused)
{
	/* Fill the first heap to its end. glibc gives an empty heap back only if the
	 * one before it has a page and M_TOP_PAD free, hence the last block goes. */
	mallopt(M_TOP_PAD, 0);
	mallopt(M_TRIM_THRESHOLD, 1 << 30);
	char *last = malloc(8 << 10), *p;
	while ((((uintptr_t)(p = malloc(8 << 10)) ^ (uintptr_t)last)) < HEAP_MAX)
		last = p;
	free(p);
	free(last);
	serve(by_arena, 16);
	return unused;
}

int main(int argc, char **argv)
{
	const char *what = argc > 1 ? argv[1] : "";
	mallopt(M_MMAP_THRESHOLD, 1 << 20);
	if (!strcmp(what, "sbrk")) {
		serve(by_sbrk, 8);
	} else if (!strcmp(what, "malloc")) {
		serve(by_malloc, 16);
	} else if (!strcmp(what, "mprotect")) {
		serve(by_mprotect, 8);
	} else if (!strcmp(what, "arena")) {
		pthread_t t;
		if (pthread_create(&t, NULL, arena_thread, NULL))
			fail("pthread_create");
		pthread_join(t, NULL);
	} else {
		fprintf(stderr, "heap: unknown: %s\n", what);
		return 2;
	}
	return 0;
}
