/* calls.c: the cost of one call in a tight loop.
 *   calls pair BYTES        mmap + munmap, untouched
 *   calls loose BYTES       the same, wherever the kernel puts it
 *   calls touched BYTES     mmap + first touch of each page + munmap
 *   calls map BYTES         mmap alone; munmap is not in the time
 *   calls locked BYTES      the same with MAP_LOCKED | MAP_POPULATE
 *   calls getppid | read | syscall   no memory call: libc's wrapper, read of
 *                           /dev/zero, and getppid through syscall()
 * SPDX-License-Identifier: MIT OR Apache-2.0 */
#include "slice.h"
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/syscall.h>

static size_t bytes;
static int extra_flags, zero;
/* Where everything is mapped: a hole between memory that nothing merges with.
 * Else what the kernel does (extend a neighbour, or make a new VMA) would hang on
 * what happens to lie there, which is not the same in all the ways of running. */
static char *hole;

static void make_hole(void)
{
	enum { FENCE = 1 << 20 };
	char *p = mmap(NULL, bytes + 2 * FENCE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (p == MAP_FAILED)
		fail("mmap");
	hole = p + FENCE;
	if (munmap(hole, bytes))
		fail("munmap");
}

static char *map(void)
{
	char *p = mmap(hole, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | extra_flags, -1, 0);
	if (p == MAP_FAILED)
		fail("mmap");
	return p;
}

static void unmap(char *p)
{
	if (munmap(p, bytes))
		fail("munmap");
}

static double pair(void)
{
	enum { N = 400 };
	uint64_t start = cpu_ns();
	for (int i = 0; i < N; i++)
		unmap(map());
	return (double)(cpu_ns() - start) / N;
}

static double touched(void)
{
	enum { N = 50 };
	uint64_t start = cpu_ns();
	for (int i = 0; i < N; i++) {
		char *p = map();
		for (size_t at = 0; at < bytes; at += 4096)
			*(volatile char *)(p + at) = 1;
		unmap(p);
	}
	return (double)(cpu_ns() - start) / N;
}

static double map_alone(void)
{
	enum { N = 4 };
	uint64_t spent = 0;
	for (int i = 0; i < N; i++) {
		uint64_t start = cpu_ns();
		char *p = map();
		spent += cpu_ns() - start;
		unmap(p);
	}
	return (double)spent / N;
}

static double other_getppid(void)
{
	enum { N = 5000 };
	uint64_t start = cpu_ns();
	for (int i = 0; i < N; i++)
		getppid();
	return (double)(cpu_ns() - start) / N;
}

static double other_syscall(void)
{
	enum { N = 5000 };
	uint64_t start = cpu_ns();
	for (int i = 0; i < N; i++)
		syscall(SYS_getppid);
	return (double)(cpu_ns() - start) / N;
}

static double other_read(void)
{
	enum { N = 5000 };
	char c;
	uint64_t start = cpu_ns();
	for (int i = 0; i < N; i++)
		if (read(zero, &c, 1) != 1)
			fail("read");
	return (double)(cpu_ns() - start) / N;
}

int main(int argc, char **argv)
{
	static const struct {
		const char *name;
		double (*batch)(void);
	} all[] = {
		{"pair", pair}, {"loose", pair}, {"touched", touched}, {"map", map_alone}, {"locked", map_alone},
		{"getppid", other_getppid}, {"read", other_read}, {"syscall", other_syscall},
	};
	const char *what = argc > 1 ? argv[1] : "";
	bytes = argc > 2 ? number(argv[2]) : 65536;
	if (!strcmp(what, "locked"))
		extra_flags = MAP_LOCKED | MAP_POPULATE;
	if (strcmp(what, "loose"))
		make_hole();
	zero = open("/dev/zero", O_RDONLY);
	for (size_t i = 0; i < sizeof all / sizeof *all; i++)
		if (!strcmp(what, all[i].name)) {
			serve(all[i].batch, 8);
			return 0;
		}
	fprintf(stderr, "calls: unknown: %s\n", what);
	return 2;
}
