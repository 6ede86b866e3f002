/* presence.c: calls whose cost grows with what a process has, and what it has.
 *   presence exec MIB [N]  answers slices: mprotect of MIB to executable, and back; one page in N is touched (0: none; 1)
 *   presence file MIB [N]  answers slices: mmap + munmap of a file of MIB as code; one page in N is there (0: none)
 *   presence ring MIB      answers slices: mmap + munmap of a device's ring, MIB resident beside it
 *   presence mappings      prints how many mappings there are after much malloc
 * SPDX-License-Identifier: MIT OR Apache-2.0 */
#include "slice.h"
#include <linux/perf_event.h>
#include <sys/mman.h>
#include <sys/syscall.h>

static char *memory;
static size_t bytes;
static int ring, file;

static char *touched(size_t mib, size_t every)
{
	bytes = mib << 20;
	char *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (p == MAP_FAILED)
		fail("mmap");
	for (size_t at = 0; every && at < bytes; at += every * 4096)
		memset(p + at, 0x90, 4096);
	return p;
}

static double exec_batch(void)
{
	uint64_t start = cpu_ns();
	if (mprotect(memory, bytes, PROT_READ | PROT_EXEC) || mprotect(memory, bytes, PROT_READ | PROT_WRITE))
		fail("mprotect");
	return (double)(cpu_ns() - start);
}

static void file_open(size_t mib, size_t every)
{
	char page[4096], name[] = "presence-XXXXXX";
	memset(page, 0x90, sizeof page);
	bytes = mib << 20;
	file = mkstemp(name);
	if (file < 0 || unlink(name) || ftruncate(file, (off_t)bytes))
		fail("a file");
	for (size_t at = 0; every && at < bytes; at += every * 4096)
		if (pwrite(file, page, sizeof page, (off_t)at) != sizeof page)
			fail("pwrite");
}

static double file_batch(void)
{
	uint64_t start = cpu_ns();
	void *p = mmap(NULL, bytes, PROT_READ | PROT_EXEC, MAP_PRIVATE, file, 0);
	if (p == MAP_FAILED || munmap(p, bytes))
		fail("a file as code");
	return (double)(cpu_ns() - start);
}

static int ring_open(void)
{
	struct perf_event_attr attr = {
		.type = PERF_TYPE_SOFTWARE, .size = sizeof attr, .config = PERF_COUNT_SW_DUMMY, .disabled = 1
	};
	return (int)syscall(SYS_perf_event_open, &attr, 0, -1, -1, 0);
}

static double ring_batch(void)
{
	enum { TIMES = 20 };
	uint64_t start = cpu_ns();
	for (int i = 0; i < TIMES; i++) {
		void *p = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_SHARED, ring, 0);
		if (p == MAP_FAILED || munmap(p, 8192))
			fail("a ring");
	}
	return (double)(cpu_ns() - start) / TIMES;
}

/* Blocks of all sizes, most of which go again. */
static void allocate(void)
{
	enum { BLOCKS = 4000 };
	static char *all[BLOCKS];
	unsigned long long seed = 88172645463325252ull;
	for (int i = 0; i < 20 * BLOCKS; i++) {
		seed ^= seed << 13;
		seed ^= seed >> 7;
		seed ^= seed << 17;
		size_t size = (size_t)64 << (seed >> 8) % 19;
		char **block = &all[(seed >> 32) % BLOCKS];
		free(*block);
		*block = (seed >> 60) % 4 ? malloc(size) : NULL;
		if (*block)
			(*block)[0] = (*block)[size - 1] = 1;
	}
}

static unsigned mappings(void)
{
	unsigned lines = 0;
	FILE *maps = fopen("/proc/self/maps", "r");
	for (int c; maps && (c = getc(maps)) != EOF;)
		lines += c == '\n';
	return lines;
}

int main(int argc, char **argv)
{
	const char *what = argc > 1 ? argv[1] : "";
	if (!strcmp(what, "mappings")) {
		unsigned before = mappings();
		allocate();
		printf("%u %u\n", before, mappings());
		return 0;
	}
	if (argc < 3)
		return 2;
	size_t mib = number(argv[2]), every = argc > 3 ? number(argv[3]) : 1;
	if (!strcmp(what, "file")) {
		file_open(mib, every);
		serve(file_batch, 100);
		return 0;
	}
	memory = touched(mib, every);
	if (!strcmp(what, "exec")) {
		serve(exec_batch, 100);
	} else {
		ring = ring_open();
		if (ring < 0)
			fail("perf_event_open");
		serve(ring_batch, 20);
	}
	return 0;
}
