/* Proves: mlockall, munlockall, MAP_POPULATE and MAP_LOCKED leave resident and locked what they do without the shim. */
#include <pthread.h>
#include "check.h"

#define MANY 64ul /* pages */
#define THREADS 4
#define ROUNDS 300

static size_t resident(char *p)
{
	unsigned char there[MANY];
	size_t n = 0;
	NEED(mincore(p, MANY * PAGE, there) == 0);
	for (size_t i = 0; i < MANY; i++)
		n += there[i] & 1;
	return n;
}

/* Maps memory with `flags` and says how much of it is there untouched. */
static char *map(const char *label, int prot, int flags)
{
	char *p = mmap(NULL, MANY * PAGE, prot, MAP_PRIVATE | MAP_ANONYMOUS | flags, -1, 0);
	NEED(p != MAP_FAILED);
	say("%s: %zu of %lu", label, resident(p), MANY);
	return p;
}

static void maps(const char *when)
{
	static const struct { const char *name; int flags; } kinds[] = {
		{ "plain", 0 }, { "populate", MAP_POPULATE }, { "locked", MAP_LOCKED },
		{ "both", MAP_POPULATE | MAP_LOCKED }, { "reserve", MAP_NORESERVE },
		{ "nonblock", MAP_POPULATE | MAP_NONBLOCK },
	};
	say("-- %s", when);
	for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
		char *p = map(kinds[i].name, PROT_READ | PROT_WRITE, kinds[i].flags);
		p[MANY * PAGE - 1] = 1;
		CALL_AS("unmapped", munmap(p, MANY * PAGE));
		p = map(kinds[i].name, PROT_NONE, kinds[i].flags);
		CALL_AS("opened", mprotect(p, MANY * PAGE, PROT_READ | PROT_WRITE));
		say("opened: %zu", resident(p));
		char *q = mremap(p, MANY * PAGE, 2 * MANY * PAGE, MREMAP_MAYMOVE);
		NEED(q != MAP_FAILED);
		say("grown by: %zu", resident(q + MANY * PAGE));
		CALL_AS("unmapped", munmap(q, 2 * MANY * PAGE));
	}
	char *heap = sbrk(0);
	NEED(sbrk(2 * MANY * PAGE) != (void *)-1);
	heap = (char *)(((uintptr_t)heap + PAGE - 1) & ~(PAGE - 1));
	say("heap: %zu", resident(heap));
	NEED(sbrk(-(intptr_t)(2 * MANY * PAGE)) != (void *)-1);
}

static void *maps_much(void *wrong)
{
	for (int i = 0; i < ROUNDS; i++) {
		char *p = anon(MANY);
		p[PAGE] = 1;
		if (madvise(p, MANY * PAGE, MADV_DONTNEED) != 0 && errno != EINVAL)
			__atomic_fetch_add((int *)wrong, 1, __ATOMIC_RELAXED);
		if (mprotect(p, PAGE, PROT_NONE) != 0 || mprotect(p, PAGE, PROT_READ) != 0)
			__atomic_fetch_add((int *)wrong, 1, __ATOMIC_RELAXED);
		if (munmap(p, MANY * PAGE) != 0)
			__atomic_fetch_add((int *)wrong, 1, __ATOMIC_RELAXED);
	}
	return NULL;
}

/* What it leaves is where mremap has moved it to. */
static void *moves_much(void *wrong)
{
	char *p = anon(MANY);
	for (int i = 0; i < ROUNDS; i++) {
		p = mremap(p, MANY * PAGE, 2 * MANY * PAGE, MREMAP_MAYMOVE);
		NEED(p != MAP_FAILED);
		char *to = reserve(MANY);
		if (munmap(p + MANY * PAGE, MANY * PAGE) != 0 ||
		    mremap(p, MANY * PAGE, MANY * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, to) != to)
			__atomic_fetch_add((int *)wrong, 1, __ATOMIC_RELAXED);
		p = to;
	}
	return NULL;
}

static void *locks_much(void *wrong)
{
	static const int all[] = { MCL_CURRENT | MCL_ONFAULT, MCL_FUTURE | MCL_ONFAULT, MCL_FUTURE,
				   MCL_CURRENT | MCL_FUTURE | MCL_ONFAULT };
	for (int i = 0; i < ROUNDS / 4; i++)
		if (mlockall(all[i % 4]) != 0 || munlockall() != 0)
			__atomic_fetch_add((int *)wrong, 1, __ATOMIC_RELAXED);
	return NULL;
}

/* Threads lock and unlock everything while others map. */
static void at_once(void)
{
	static void *(*const all[4])(void *) = { locks_much, maps_much, moves_much, moves_much };
	pthread_t threads[2 * THREADS];
	int wrong = 0;
	for (size_t i = 0; i < 2 * THREADS; i++)
		NEED(pthread_create(&threads[i], NULL, all[i % 4], &wrong) == 0);
	for (size_t i = 0; i < 2 * THREADS; i++)
		pthread_join(threads[i], NULL);
	say("at once: %d wrong", wrong);
	quiet_point("at once");
}

static void in_a_child(const char *when)
{
	pid_t pid = fork();
	NEED(pid >= 0);
	if (pid == 0) {
		maps(when);
		_exit(0);
	}
	reap(when, pid);
}

int main(void)
{
	/* More than any limit that binds. */
	char *much = reserve(16ul << 20);
	if (mlock2(much, 64ul << 30, MLOCK_ONFAULT) != 0) {
		say("skip: RLIMIT_MEMLOCK binds");
		quiet_point("skip");
		return 0;
	}
	NEED(munmap(much, 64ul << 30) == 0);
	static const struct { const char *name; int flags; } ways[] = {
		{ "MCL_CURRENT", MCL_CURRENT }, { "MCL_FUTURE", MCL_FUTURE },
		{ "MCL_FUTURE | MCL_ONFAULT", MCL_FUTURE | MCL_ONFAULT },
		{ "all", MCL_CURRENT | MCL_FUTURE },
		{ "all on fault", MCL_CURRENT | MCL_FUTURE | MCL_ONFAULT },
	};
	maps("nothing locked");
	in_a_child("a child");
	char *before = anon(MANY);
	for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
		CALL(mlockall(ways[i].flags));
		say("before: %zu", resident(before));
		maps(ways[i].name);
		in_a_child("a child");
		CALL(munlockall());
		maps("unlocked");
		NEED(munmap(before, MANY * PAGE) == 0);
		before = anon(MANY);
	}
	for (int i = 0; i < 3; i++)
		at_once();
	maps("at last");
	return 0;
}
