/* growth.c: a heap of 1 GiB in 1,000 steps: what is pinned for it in all.
 *   growth brk | mprotect | mremap
 * Prints: bytes added, bytes pinned by the shim's own count, bytes locked by the
 * kernel's (VmLck), ns for each step.
 * SPDX-License-Identifier: MIT OR Apache-2.0 */
#include "slice.h"
#include <sys/mman.h>

enum { STEPS = 1000 };
#define STEP (((1ul << 30) / STEPS + 4095) & ~4095ul)

static unsigned long locked_bytes(void)
{
	char line[256];
	unsigned long kib = 0;
	FILE *f = fopen("/proc/self/status", "r");
	while (f && fgets(line, sizeof line, f))
		sscanf(line, "VmLck: %lu kB", &kib);
	if (f)
		fclose(f);
	return kib << 10;
}

static char *area;

static void grow(const char *how, int i)
{
	size_t have = (size_t)i * STEP;
	if (!strcmp(how, "brk")) {
		if (sbrk(STEP) == (void *)-1)
			fail("sbrk");
	} else if (!strcmp(how, "mprotect")) {
		if (mprotect(area + have, STEP, PROT_READ | PROT_WRITE))
			fail("mprotect");
	} else {
		area = mremap(area, have + 4096, have + STEP + 4096, MREMAP_MAYMOVE);
		if (area == MAP_FAILED)
			fail("mremap");
	}
}

int main(int argc, char **argv)
{
	const char *how = argc > 1 ? argv[1] : "brk";
	struct regall_stats before, after;
	unsigned long locked = locked_bytes();
	if (!strcmp(how, "mprotect"))
		area = mmap(NULL, STEPS * STEP, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	else
		area = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (area == MAP_FAILED)
		fail("mmap");
	shim_stats(&before);
	uint64_t start = cpu_ns();
	for (int i = 0; i < STEPS; i++)
		grow(how, i);
	uint64_t spent = cpu_ns() - start;
	shim_stats(&after);
	printf("%lu %llu %lu %llu\n", STEPS * STEP,
	       (unsigned long long)(after.bytes_pinned_total - before.bytes_pinned_total),
	       locked_bytes() - locked, (unsigned long long)(spent / STEPS));
	return 0;
}
