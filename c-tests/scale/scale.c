/* Proves nothing by itself: makes much of one thing, and says what the shim has of it, for tests/soak/scale.rs. */
/*
 * scale mappings N, scale threads N, scale bytes N, scale events N. A line each time there is
 * something to say: what has been made, ranges in the ledger, bytes of the shim's own, events,
 * bytes pinned, descriptors, nanoseconds of processor time since the last line. Zeroes without
 * the shim.
 */
#include <dirent.h>
#include <pthread.h>
#include <time.h>
#include "../check.h"
#include "../draw.h"
#include "../../include/regall.h"

#pragma weak regall_stats

static size_t descriptors(void)
{
	size_t n = 0;
	DIR *all = opendir("/proc/self/fd");
	NEED(all);
	while (readdir(all))
		n++;
	closedir(all);
	return n;
}

static void tell(size_t made)
{
	static uint64_t last;
	struct timespec t;
	struct regall_stats stats = { .size = sizeof stats };
	if (regall_stats)
		regall_stats(&stats);
	NEED(clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t) == 0);
	uint64_t now = (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
	printf("%zu %lu %lu %lu %lu %zu %lu\n", made, (unsigned long)stats.mappings, (unsigned long)stats.shim_bytes,
	       (unsigned long)stats.events, (unsigned long)stats.bytes_pinned, descriptors(), (unsigned long)(now - last));
	fflush(stdout);
	NEED(clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t) == 0);
	last = (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* Every second page is another mapping. */
static void mappings(size_t n)
{
	char *p = mmap(NULL, n * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	NEED(p != MAP_FAILED);
	tell(0);
	for (size_t k = 0; k < n / 2; k++) {
		NEED(mprotect(p + 2 * k * PAGE, PAGE, PROT_READ) == 0);
		if ((k + 1) % (n / 20) == 0)
			tell(2 * (k + 1));
	}
}

static pthread_barrier_t all_there, all_seen;

static void *be_there(void *arg)
{
	void *p = malloc(100);
	pthread_barrier_wait(&all_there);
	pthread_barrier_wait(&all_seen);
	free(p);
	return arg;
}

/* All at once, and then once more: what the first ones had must do. */
static void threads(size_t n)
{
	pthread_attr_t small;
	pthread_t *all = calloc(n, sizeof *all);
	NEED(all && pthread_attr_init(&small) == 0 && pthread_attr_setstacksize(&small, 64 << 10) == 0);
	NEED(pthread_barrier_init(&all_there, NULL, (unsigned)n + 1) == 0);
	NEED(pthread_barrier_init(&all_seen, NULL, (unsigned)n + 1) == 0);
	tell(0);
	for (int round = 0; round < 2; round++) {
		for (size_t k = 0; k < n; k++)
			NEED(pthread_create(&all[k], &small, be_there, NULL) == 0);
		pthread_barrier_wait(&all_there);
		tell(n);
		pthread_barrier_wait(&all_seen);
		for (size_t k = 0; k < n; k++)
			NEED(pthread_join(all[k], NULL) == 0);
	}
	tell(0);
}

static void bytes(size_t n)
{
	tell(0);
	char *p = mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	NEED(p != MAP_FAILED);
	tell(n);
	NEED(munmap(p, n) == 0);
	tell(0);
}

/* What a program does all day: memory of many sizes comes, changes and goes. */
static void day(size_t n)
{
	enum { AREAS = 1000 };
	static struct {
		char *at;
		size_t pages;
	} area[AREAS];
	for (size_t event = 0; event <= n; event++) {
		if (event % (n / 40) == 0)
			tell(event);
		size_t k = draw(AREAS);
		if (!area[k].at) {
			area[k].pages = 1 + draw(16);
			area[k].at = mmap(NULL, area[k].pages * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
			NEED(area[k].at != MAP_FAILED);
			area[k].at[0] = 1;
			continue;
		}
		size_t bytes = area[k].pages * PAGE;
		switch (draw(8)) {
		case 0: {
			size_t pages = 1 + draw(16);
			char *moved = mremap(area[k].at, bytes, pages * PAGE, MREMAP_MAYMOVE);
			if (moved != MAP_FAILED) {
				area[k].at = moved;
				area[k].pages = pages;
			}
			break;
		}
		case 1:
			NEED(mprotect(area[k].at, bytes, PROT_READ) == 0);
			break;
		case 2:
			NEED(mprotect(area[k].at, bytes, PROT_READ | PROT_WRITE) == 0);
			break;
		case 3:
			NEED(madvise(area[k].at, bytes, MADV_DONTNEED) == 0);
			break;
		case 4:
			/* The heap is a little longer, and as long as it was. */
			NEED(sbrk((intptr_t)PAGE) != (void *)-1 && sbrk(-(intptr_t)PAGE) != (void *)-1);
			break;
		default:
			NEED(munmap(area[k].at, bytes) == 0);
			area[k].at = NULL;
		}
	}
}

int main(int argc, char **argv)
{
	NEED(argc == 3);
	size_t n = strtoul(argv[2], NULL, 10);
	switch (argv[1][0]) {
	case 'm':
		mappings(n);
		break;
	case 't':
		threads(n);
		break;
	case 'b':
		bytes(n);
		break;
	default:
		day(n);
	}
	return 0;
}
