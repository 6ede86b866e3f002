/* Proves: what the program has locked, and only that, is locked, however its calls fail and wherever they are made. */
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/shm.h>
#include <sys/time.h>
#include "check.h"

#ifndef SYS_mseal
#define SYS_mseal 462
#endif

/* Which pages are locked: MADV_COLD is EINVAL there. */
static void tell_locked(const char *label, char *p, size_t pages)
{
	char text[64] = { 0 };
	for (size_t i = 0; i < pages; i++)
		text[i] = madvise(p + i * PAGE, PAGE, MADV_COLD) == 0 ? '.' : errno == EINVAL ? 'L' : '-';
	say("%s: %s", label, text);
}

static void limited(rlim_t bytes)
{
	struct rlimit limit;
	NEED(getrlimit(RLIMIT_MEMLOCK, &limit) == 0);
	limit.rlim_cur = bytes < limit.rlim_max ? bytes : limit.rlim_max;
	NEED(setrlimit(RLIMIT_MEMLOCK, &limit) == 0);
}

/* The second of two mappings is sealed, when the first has moved. */
static void moved_half_way(void)
{
	char *from = anon(8), *to = reserve(8);
	memset(from, 7, 4 * PAGE);
	NEED(mprotect(from + 4 * PAGE, 4 * PAGE, PROT_READ) == 0);
	told("locked", mlock(from, 4 * PAGE) == 0);
	if (syscall(SYS_mseal, from + 4 * PAGE, 4 * PAGE, 0) != 0)
		return;
	told("sealed", mremap(from, 8 * PAGE, 8 * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, to) != MAP_FAILED);
	tell_locked("source", from, 4);
	tell_locked("target", to, 4);
}

/* The last is a System V segment, which can't be moved so. */
static void left_behind_half_way(void)
{
	char *place = reserve(12), *to = reserve(8);
	char *from = mmap(place, 8 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
	NEED(from == place);
	int id = shmget(IPC_PRIVATE, 4 * PAGE, IPC_CREAT | 0600);
	NEED(id >= 0 && shmat(id, from + 8 * PAGE, SHM_REMAP) != (void *)-1);
	NEED(shmctl(id, IPC_RMID, NULL) == 0);
	told("locked", mlock(from, 8 * PAGE) == 0);
	int how = MREMAP_MAYMOVE | MREMAP_FIXED | MREMAP_DONTUNMAP;
	told("left behind", mremap(from + 4 * PAGE, 8 * PAGE, 8 * PAGE, how, to) != MAP_FAILED);
	tell_locked("source", from, 12);
	tell_locked("target", to, 8);
	limited(16 * PAGE);
	told("locked again", mlock(from, PAGE) == 0);
	limited(8 << 20);
}

static __attribute__((noinline)) void deep(int more)
{
	volatile char frame[PAGE];
	frame[0] = (char)more;
	if (more)
		deep(more - 1);
	NEED(frame[0] == (char)more);
}

/* What a locked stack grows by is charged, and beyond the limit that is SIGSEGV. */
static void grown(void)
{
	char *rest = anon(4096);
	memset(rest, 1, 4096 * PAGE);
	limited(8 << 20);
	char line[512];
	unsigned long start = 0, end = 0;
	FILE *maps = fopen("/proc/self/maps", "r");
	NEED(maps);
	while (fgets(line, sizeof line, maps))
		if (strstr(line, "[stack]"))
			NEED(sscanf(line, "%lx-%lx", &start, &end) == 2);
	fclose(maps);
	told("stack", mlock((char *)start, end - start) == 0);
	deep(1000);
	say("grown");
}

static char *one, *other;
static volatile int set;

/* One is locked and the other is not, in turns. */
static void handler(int number)
{
	(void)number;
	static int n;
	int before = errno;
	bool first = n++ & 1;
	mlock(first ? one : other, 2 * PAGE);
	munlock(first ? other : one, 2 * PAGE);
	set = first ? 1 : 2;
	errno = before;
}

/* The handler comes after so many microseconds. */
static void come_after(int microseconds)
{
	struct itimerval soon = { .it_value = { .tv_usec = microseconds } };
	set = 0;
	NEED(setitimer(ITIMER_REAL, &soon, NULL) == 0);
}

/* Maps while it comes, and waits for it. */
static void map_meanwhile(void)
{
	char *p = anon(16);
	NEED(mprotect(p + 4 * PAGE, 4 * PAGE, PROT_READ) == 0 && munmap(p, 16 * PAGE) == 0);
	while (!set)
		;
}

/* A handler locks while the thread maps. */
static void in_a_handler(void)
{
	one = mmap(NULL, 2 * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	other = mmap(NULL, 2 * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	NEED(one != MAP_FAILED && other != MAP_FAILED);
	one[0] = other[0] = 1;
	signal(SIGALRM, handler);
	int lost = 0, left = 0;
	for (int i = 0; i < 6000; i++) {
		come_after(1 + i % 25);
		map_meanwhile();
		bool first = set == 1;
		lost += madvise(first ? one : other, PAGE, MADV_COLD) == 0;
		left += madvise(first ? other : one, PAGE, MADV_COLD) != 0;
	}
	say("in a handler: lost %d, left %d", lost, left);
}

enum { MOVED = 4, SCATTERED = 200 };

static char *from, *to;

/* Before the kernel has moved it, or after. */
static void lock_moved(int number)
{
	(void)number;
	int before = errno;
	set = mlock(from, MOVED * PAGE) == 0 || mlock(to, MOVED * PAGE) == 0;
	errno = before;
}

/* A handler locks what its thread is moving, or fails to move. */
static void while_it_moves(bool fails)
{
	from = reserve(32);
	to = from + 16 * PAGE;
	NEED(mprotect(from, MOVED * PAGE, PROT_READ | PROT_WRITE) == 0);
	from[0] = 1;
	signal(SIGALRM, lock_moved);
	int lost = 0;
	for (int i = 0; i < 4000; i++) {
		come_after(1 + i % 12);
		/* What overlaps is EINVAL. */
		char *new = fails ? from + PAGE : to;
		void *moved = mremap(from, MOVED * PAGE, MOVED * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, new);
		NEED((moved == MAP_FAILED) == fails);
		while (!set)
			;
		if (!fails) {
			char *old = from;
			from = to;
			to = old;
		}
		lost += madvise(from, MOVED * PAGE, MADV_COLD) == 0;
		NEED(munlock(from, MOVED * PAGE) == 0);
	}
	say("%s: lost %d", fails ? "while it does not move" : "while it moves", lost);
}

static char *scattered;

static void lock_many(int number)
{
	(void)number;
	int before = errno;
	for (int i = 0; i < SCATTERED; i++)
		mlock(scattered + 2 * i * PAGE, PAGE);
	set = 1;
	errno = before;
}

/* A handler locks many parts of memory while its thread maps. */
static void many_in_a_handler(void)
{
	scattered = anon(2 * SCATTERED);
	signal(SIGALRM, lock_many);
	int lost = 0, left = 0;
	for (int i = 0; i < 1000; i++) {
		come_after(1 + i % 25);
		map_meanwhile();
		for (int k = 0; k < SCATTERED; k++) {
			lost += madvise(scattered + 2 * k * PAGE, PAGE, MADV_COLD) == 0;
			left += madvise(scattered + (2 * k + 1) * PAGE, PAGE, MADV_COLD) != 0;
		}
		NEED(munlock(scattered, 2 * SCATTERED * PAGE) == 0);
	}
	say("many in a handler: lost %d, left %d", lost, left);
}

int main(void)
{
	limited(8 << 20);
	in_a_handler();
	while_it_moves(false);
	while_it_moves(true);
	many_in_a_handler();
	moved_half_way();
	left_behind_half_way();
	grown();
	return 0;
}
