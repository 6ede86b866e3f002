/* Proves: memory that is reserved and opened a little at a time takes every call as without the shim; reserved N opens N times. */
#include <pthread.h>
#include "check.h"

#define MADV_GUARD_INSTALL_ 102
#define MADV_DONTNEED_LOCKED_ 24
#define PAGES 1024ul
#define STEP 16ul

static int resident(char *p, size_t pages)
{
	unsigned char in[PAGES];
	int n = 0;
	NEED(pages <= PAGES && mincore(p, pages * PAGE, in) == 0);
	for (size_t i = 0; i < pages; i++)
		n += in[i] & 1;
	return n;
}

static void advise(const char *what, char *p, size_t pages)
{
	static const int kinds[] = { MADV_DONTNEED, MADV_FREE, MADV_REMOVE, MADV_COLD,
				     MADV_PAGEOUT, MADV_GUARD_INSTALL_, MADV_DONTNEED_LOCKED_ };
	for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
		errno = 0;
		int r = madvise(p, pages * PAGE, kinds[i]);
		say("%s, advice %d: %s", what, kinds[i], r == 0 ? "ok" : strerrorname_np(errno));
	}
	say("%s, msync: %s", what, msync(p, pages * PAGE, MS_ASYNC | MS_INVALIDATE) == 0 ? "ok" : strerrorname_np(errno));
}

static void open_more(char *p, size_t pages)
{
	NEED(mprotect(p, pages * PAGE, PROT_READ | PROT_WRITE) == 0);
}

/* To be looked at from outside: `open` pages at `p` are pinned, and `closed` behind them can't be accessed. */
static void claim(char *p, size_t open, size_t closed)
{
	quiet_claim(p, open * PAGE, "registered");
	if (closed)
		quiet_claim(p + open * PAGE, closed * PAGE, "no-access");
}

/* A reserve whose first step is open; the rest may be locked by now, and nothing of it is resident. */
static char *begun(const char *what)
{
	char *p = reserve(PAGES);
	open_more(p, STEP);
	say("%s: resident %d", what, resident(p, PAGES));
	return p;
}

static void opened(void)
{
	char *p = begun("opened");
	for (size_t i = STEP; i < PAGES / 2; i += STEP)
		NEED(mprotect(p + i * PAGE, STEP * PAGE, PROT_READ | PROT_WRITE) == 0);
	say("open, untouched: resident %d", resident(p, PAGES));
	memset(p, 1, 8 * PAGE);
	say("touched: resident %d", resident(p, PAGES));
	claim(p, PAGES / 2, PAGES / 2);
	quiet_point("opened");
	advise("the rest", p + PAGES / 2 * PAGE, PAGES / 2);
	advise("both", p, PAGES);
	open_more(p + PAGES / 2 * PAGE, STEP);
	claim(p + PAGES / 2 * PAGE, STEP, PAGES / 2 - STEP);
	quiet_point("opened after advice");
	CALL(mprotect(p, PAGES * PAGE, PROT_NONE));
	advise("closed", p, PAGES);
	open_more(p, PAGES);
	claim(p, PAGES, 0);
	quiet_point("open again");
	CALL(munmap(p, PAGES * PAGE));
}

static void moved(void)
{
	char *p = begun("moved") + STEP * PAGE;
	char *q = mremap(p, 64 * PAGE, 128 * PAGE, MREMAP_MAYMOVE);
	NEED(q != MAP_FAILED);
	advise("moved", q, 128);
	open_more(q, STEP);
	open_more(q + 100 * PAGE, STEP);
	claim(q, STEP, 100 - STEP);
	claim(q + 100 * PAGE, STEP, 28 - STEP);
	quiet_point("moved");
	p += 64 * PAGE;
	open_more(p, STEP);
	p += STEP * PAGE;
	q = mremap(p, 64 * PAGE, 64 * PAGE, MREMAP_MAYMOVE | MREMAP_DONTUNMAP, NULL);
	NEED(q != MAP_FAILED);
	advise("left behind", p, 64);
	open_more(p, STEP);
	open_more(q, STEP);
	claim(p, STEP, 64 - STEP);
	claim(q, STEP, 64 - STEP);
	quiet_point("left behind");
	p = begun("grown");
	CALL(munmap(p + 512 * PAGE, 512 * PAGE));
	q = mremap(p + STEP * PAGE, (512 - STEP) * PAGE, 512 * PAGE, MREMAP_MAYMOVE);
	NEED(q != MAP_FAILED);
	open_more(q + (512 - STEP) * PAGE, STEP);
	advise("grown", q, 512);
	claim(q + (512 - STEP) * PAGE, STEP, 0);
	quiet_point("grown");
}

static void locked(void)
{
	char *p = begun("locked"), *rest = p + STEP * PAGE;
	CALL(mlock(rest, 64 * PAGE));
	open_more(rest, STEP);
	say("opened under mlock: resident %d", resident(rest, 64));
	CALL(munlock(rest, 128 * PAGE));
	advise("unlocked", rest + 64 * PAGE, 64);
	open_more(rest + 64 * PAGE, STEP);
	claim(rest, STEP, 64 - STEP);
	claim(rest + 64 * PAGE, STEP, 64 - STEP);
	quiet_point("unlocked");
	CALL(munlockall());
	advise("nothing locked", rest + 256 * PAGE, 64);
	open_more(rest + 256 * PAGE, STEP);
	say("resident %d", resident(rest + 256 * PAGE, 64));
	claim(rest + 256 * PAGE, STEP, 64);
	quiet_point("nothing locked");
}

static void forked(void)
{
	char *p = begun("forked"), *rest = p + STEP * PAGE;
	pid_t pid = fork();
	NEED(pid >= 0);
	if (pid == 0) {
		advise("in a child", rest, 64);
		CALL(mprotect(rest, STEP * PAGE, PROT_READ | PROT_WRITE));
		say("in a child: resident %d", resident(rest, 64));
		quiet_point("in a child");
		_exit(0);
	}
	reap("child", pid);
	open_more(rest, STEP);
	claim(p, 2 * STEP, 64);
	quiet_point("forked");
}

static void replaced(void)
{
	char *p = begun("replaced"), *rest = p + STEP * PAGE;
	NEED(munmap(rest + 64 * PAGE, PAGE) == 0);
	CALL(mprotect(rest, 128 * PAGE, PROT_READ | PROT_WRITE));
	claim(rest, 64, 0);
	quiet_claim(rest + 65 * PAGE, 63 * PAGE, "no-access");
	quiet_point("up to a hole");
	advise("behind a hole", rest + 65 * PAGE, 63);
	CALL(mprotect(rest, 128 * PAGE, PROT_NONE));
	advise("before a hole", rest, 64);
	open_more(rest, STEP);
	NEED(mmap(rest + 256 * PAGE, 64 * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) != MAP_FAILED);
	open_more(rest + 256 * PAGE, STEP);
	advise("mapped anew", rest + 256 * PAGE, 64);
	CALL(mmap(rest + 300 * PAGE, 16 * PAGE, PROT_READ, MAP_PRIVATE | MAP_FIXED, -1, 0) == MAP_FAILED ? -1 : 0);
	advise("what a file can't replace", rest + 300 * PAGE, 16);
	open_more(rest + 300 * PAGE, STEP);
	claim(rest, STEP, 64 - STEP);
	claim(rest + 256 * PAGE, STEP, 0);
	claim(rest + 300 * PAGE, STEP, 4);
	quiet_point("replaced");
}

/* RLIMIT_MEMLOCK comes to bind when much is reserved and little is open. */
static void limit_binds(void *none)
{
	struct rlimit limit = { 2 << 20, 2 << 20 };
	char *p = begun("limit"), *rest = p + STEP * PAGE;
	(void)none;
	CALL(setrlimit(RLIMIT_MEMLOCK, &limit));
	CALL(setuid(65534));
	CALL(mlock(p, STEP * PAGE));
	char *q = mremap(rest, 256 * PAGE, 600 * PAGE, MREMAP_MAYMOVE);
	told("mremap", q != MAP_FAILED);
	advise("under a limit", q, 600);
	CALL(mprotect(q, STEP * PAGE, PROT_READ | PROT_WRITE));
	say("resident %d", resident(q, 600));
	void *more = mmap(NULL, 64 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_LOCKED, -1, 0);
	told("MAP_LOCKED", more != MAP_FAILED);
	advise("above", rest + 256 * PAGE, 64);
}

enum { THREADS = 3 };
static char *shared_reserve;
static long refused;

/* Each has a stretch of the reserve to itself: opens it, and throws away what it has not opened. */
static void *open_stretch(void *nth)
{
	char *p = shared_reserve + (uintptr_t)nth * (PAGES / 4) * PAGE;
	long no = 0;
	for (size_t round = 0; round < 20; round++) {
		for (size_t i = 0; i < PAGES / 4; i += STEP) {
			char *rest = p + (i + STEP) * PAGE;
			no += mprotect(p + i * PAGE, STEP * PAGE, PROT_READ | PROT_WRITE) != 0;
			p[i * PAGE] = 1;
			if (i + 2 * STEP <= PAGES / 4)
				no += madvise(rest, STEP * PAGE, MADV_DONTNEED) != 0;
		}
		no += mprotect(p, PAGES / 4 * PAGE, PROT_NONE) != 0;
		no += madvise(p, PAGES / 4 * PAGE, MADV_FREE) != 0;
	}
	__atomic_fetch_add(&refused, no, __ATOMIC_RELAXED);
	return NULL;
}

static void threads(void)
{
	pthread_t thread[THREADS];
	shared_reserve = reserve(PAGES);
	for (uintptr_t i = 0; i < THREADS; i++)
		NEED(pthread_create(&thread[i], NULL, open_stretch, (void *)i) == 0);
	for (uintptr_t i = 0; i < THREADS; i++)
		NEED(pthread_join(thread[i], NULL) == 0);
	say("refused to threads: %ld", refused);
	advise("after threads", shared_reserve + PAGE, PAGES / 4 - 1);
	quiet_point("threads");
}

int main(int argc, char **argv)
{
	if (argc > 1) {
		size_t n = (size_t)atoi(argv[1]);
		char *p = reserve((n + 64) * STEP);
		for (size_t i = 0; i < n; i++)
			NEED(mprotect(p + i * STEP * PAGE, STEP * PAGE, PROT_READ | PROT_WRITE) == 0);
		return 0;
	}
	opened();
	moved();
	locked();
	forked();
	replaced();
	in_child("limit", limit_binds, NULL);
	threads();
	quiet_point("all");
	return 0;
}
