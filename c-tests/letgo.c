/* Proves: the shim's locks on memory that is opened and closed are out of the program's way where it is hard to let go of
 * them: with as many mappings as there may be, with a handler in the midst of it, among threads, and under a limit. */
#include <pthread.h>
#include <stdatomic.h>
#include <sys/time.h>
#include <sys/uio.h>
#include "reserves.h"

#ifndef MADV_COLD
#define MADV_COLD 20
#define MADV_PAGEOUT 21
#endif

static void advise(const char *what, char *p, size_t pages)
{
	static const int kinds[] = { MADV_DONTNEED, MADV_FREE, MADV_COLD, MADV_PAGEOUT };
	for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
		errno = 0;
		int r = madvise(p, pages * PAGE, kinds[i]);
		say("%s, advice %d: %s", what, kinds[i], r == 0 ? "ok" : strerrorname_np(errno));
	}
	errno = 0;
	say("%s, msync: %s", what, msync(p, pages * PAGE, MS_ASYNC | MS_INVALIDATE) == 0 ? "ok" : strerrorname_np(errno));
}

/* How many pages of these can't be advised: what is locked can't. */
static int refused(char *p, size_t pages)
{
	int n = 0;
	for (size_t i = 0; i < pages; i++)
		n += madvise(p + i * PAGE, PAGE, MADV_COLD) != 0;
	return n;
}

/* How many mappings the process has; the one above user space does not count to the kernel. */
static size_t all_mappings(void)
{
	static char text[1 << 16];
	size_t n = 0;
	ssize_t r;
	int fd = open("/proc/self/maps", O_RDONLY | O_CLOEXEC);
	NEED(fd >= 0);
	while ((r = read(fd, text, sizeof text)) > 0)
		for (ssize_t i = 0; i < r; i++)
			n += text[i] == '\n';
	close(fd);
	return n - 1;
}

static char *filler;
static size_t filled, most;
#define ROOM (1ul << 17)

/* Mappings that merge with none of their neighbours, until there are as many as there may be: no call has failed by then. */
static void fill(void)
{
	for (size_t there = all_mappings(); there < most; there = all_mappings())
		/* Not all at once: the shim takes some for itself. */
		for (size_t more = (most - there + 1) / 2; more > 0; more--, filled++) {
			NEED(filled < ROOM);
			int prot = filled % 2 ? PROT_READ : PROT_NONE, flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED;
			char *at = filler + filled * PAGE;
			NEED(mmap(at, PAGE, prot, flags, -1, 0) == at);
		}
}

/* Splits nothing that is one mapping without the shim. */
static void at_the_limit(void *none)
{
	(void)none;
	FILE *f = fopen("/proc/sys/vm/max_map_count", "re");
	NEED(f && fscanf(f, "%zu", &most) == 1);
	fclose(f);
	if (most > ROOM - 1024) {
		say("as many mappings as there may be: too many to try");
		return;
	}
	char *p = apart(64), *other = apart(64);
	filler = reserve(ROOM);
	NEED(munmap(filler, ROOM * PAGE) == 0);
	open_more(p, 8);
	memset(p, 1, 8 * PAGE);
	open_more(other, 8);
	memset(other, 1, 8 * PAGE);
	fill();
	advise("closed, full", p + 20 * PAGE, 8);
	CALL(mprotect(p + 4 * PAGE, 4 * PAGE, PROT_NONE));
	CALL(mprotect(p + 2 * PAGE, 2 * PAGE, PROT_NONE));
	CALL(mprotect(p + 2 * PAGE, 4 * PAGE, PROT_READ | PROT_WRITE));
	advise("closed again, full", p + 5 * PAGE, 5);
	advise("open, full", other + 2 * PAGE, 3);
	/* The boundary between what is open and what is closed moves. */
	CALL(mprotect(other + 8 * PAGE, 8 * PAGE, PROT_READ | PROT_WRITE));
	fill();
	CALL(mprotect(p + 30 * PAGE, PAGE, PROT_READ | PROT_WRITE));
	CALL(munmap(p + 30 * PAGE, PAGE));
	CALL(mprotect(p + 6 * PAGE, PAGE, PROT_READ | PROT_WRITE));
	CALL(mprotect(other + 16 * PAGE, 8 * PAGE, PROT_READ | PROT_WRITE));
	advise("refused, full", p + 20 * PAGE, 8);
	NEED(munmap(filler, ROOM * PAGE) == 0);
	say("refused afterwards: %d", refused(p, 64) + refused(other, 64));
	say("%d and %d mappings", mappings(p, 64), mappings(other, 64));
	quiet_claim(p, 7 * PAGE, "registered");
	quiet_claim(p + 7 * PAGE, 57 * PAGE, "no-access");
	quiet_claim(other, 24 * PAGE, "registered");
	quiet_point("no longer full");
	close_again(p, 64);
	close_again(other, 64);
	say("refused when closed: %d", refused(p, 64) + refused(other, 64));
}

enum { RUNS = 400, PAGES = 2 * RUNS };
static char *runs;

/* From here on RLIMIT_MEMLOCK binds, and what the shim has locked beyond it has to go. */
static void limit_binds(void)
{
	struct rlimit limit = { 64 << 10, 64 << 10 };
	NEED(setrlimit(RLIMIT_MEMLOCK, &limit) == 0);
	drop_privileges();
	/* What the limit is, the shim sees by it at the latest. (Others lock memory meanwhile: what comes of it is not told.) */
	(void)mlock(anon(1), PAGE);
}

static void handler(int signal)
{
	static size_t nth;
	int saved = errno;
	(void)signal;
	/* What comes of it is not looked at: it may meet what it came between. */
	char *p = runs + nth++ * 31 % RUNS * 2 * PAGE;
	(void)madvise(p + PAGE, PAGE, MADV_COLD);
	(void)mprotect(p + PAGE, PAGE, PROT_READ | PROT_WRITE);
	(void)mprotect(p + PAGE, PAGE, PROT_NONE);
	errno = saved;
}

/* Half of the pages are open, each closed one between two of them. */
static void reserve_runs(void)
{
	runs = apart(PAGES);
	for (size_t i = 0; i < PAGES; i += 2)
		open_more(runs + i * PAGE, 1);
}

static void interrupted(void *binds)
{
	struct itimerval often = { { 0, 60 }, { 0, 60 } }, never = { { 0, 0 }, { 0, 0 } };
	struct sigaction action = { .sa_handler = handler, .sa_flags = SA_RESTART };
	reserve_runs();
	NEED(sigaction(SIGALRM, &action, NULL) == 0);
	NEED(setitimer(ITIMER_REAL, &often, NULL) == 0);
	if (binds)
		limit_binds();
	for (size_t i = 0; i < 400; i++) {
		char *p = runs + i % RUNS * 2 * PAGE;
		close_again(p, 1);
		open_more(p, 1);
	}
	NEED(setitimer(ITIMER_REAL, &never, NULL) == 0);
	say("refused after handlers: %d", refused(runs, PAGES));
	close_again(runs, PAGES);
	say("refused when closed: %d", refused(runs, PAGES));
	open_more(runs, PAGES);
	if (!binds)
		quiet_claim(runs, PAGES * PAGE, "registered");
	quiet_point("after handlers");
}

enum { ADVISED = 100, ADVICES = 1500 };
static volatile sig_atomic_t advices, failures;
static int self;
static bool allowed;

static void advising(int signal)
{
	int saved = errno;
	(void)signal;
	size_t bytes = 2 * ADVISED * PAGE;
	struct iovec both[2] = { { runs, bytes / 2 }, { runs + bytes / 2, bytes / 2 } };
	failures += madvise(runs, bytes, MADV_DONTNEED) != 0;
	failures += msync(runs, bytes, MS_ASYNC | MS_INVALIDATE) != 0;
	failures += allowed && syscall(SYS_process_madvise, self, both, 2ul, MADV_COLD, 0u) != (long)bytes;
	advices++;
	errno = saved;
}

/* A handler comes between anything and its end, and advises what nothing else is about: many mappings at once. */
static void advised_in_handlers(void *none)
{
	/* Once more after each handler: one may take longer than that. */
	struct itimerval soon = { { 0, 0 }, { 0, 500 } };
	int set_after = -1;
	struct sigaction action = { .sa_handler = advising, .sa_flags = SA_RESTART };
	(void)none;
	runs = apart(2 * ADVISED);
	for (size_t i = 0; i < 2 * ADVISED; i += 2)
		open_more(runs + i * PAGE, 1);
	self = (int)syscall(SYS_pidfd_open, getpid(), 0);
	NEED(self >= 0);
	allowed = syscall(SYS_process_madvise, self, NULL, 0ul, MADV_COLD, 0u) == 0;
	NEED(sigaction(SIGALRM, &action, NULL) == 0);
	while (advices < ADVICES) {
		if (set_after != advices) {
			set_after = advices;
			NEED(setitimer(ITIMER_REAL, &soon, NULL) == 0);
		}
		char *p = mmap(NULL, 3 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		NEED(p != MAP_FAILED && mprotect(p, PAGE, PROT_READ) == 0 && munmap(p, 3 * PAGE) == 0);
	}
	say("refused in handlers: %d", failures);
	quiet_point("after advice in handlers");
}

enum { THREADS = 3, STRETCH = 128 };
static char *stretches;
static atomic_int wrong;

/* Each has a stretch to itself; what is closed of it is one mapping with what is closed of its neighbours'. */
static void *storm(void *nth)
{
	char *p = stretches + (uintptr_t)nth * STRETCH * PAGE;
	int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED;
	for (size_t round = 0; round < 150; round++) {
		char *q = p + round * 7 % (STRETCH - 16) * PAGE;
		open_more(q, 8);
		*(volatile char *)q = 1;
		wrong += madvise(q + 8 * PAGE, 4 * PAGE, MADV_DONTNEED) != 0;
		wrong += madvise(q, 8 * PAGE, MADV_DONTNEED) != 0;
		wrong += *(volatile char *)q != 0;
		close_again(q, round % 3 ? 8 : 4);
		if (round % 8 == 0)
			NEED(mmap(q + 2 * PAGE, PAGE, PROT_NONE, flags, -1, 0) == q + 2 * PAGE);
		(void)madvise(p, STRETCH * PAGE, MADV_COLD);
	}
	return NULL;
}

static void among_threads(void *binds)
{
	pthread_t thread[THREADS];
	stretches = apart(THREADS * STRETCH);
	for (uintptr_t i = 0; i < THREADS; i++)
		NEED(pthread_create(&thread[i], NULL, storm, (void *)i) == 0);
	if (binds)
		limit_binds();
	for (uintptr_t i = 0; i < THREADS; i++)
		NEED(pthread_join(thread[i], NULL) == 0);
	say("wrong among threads: %d", wrong);
	say("refused after threads: %d", refused(stretches, THREADS * STRETCH));
	close_again(stretches, THREADS * STRETCH);
	say("refused when closed: %d", refused(stretches, THREADS * STRETCH));
	open_more(stretches, 8);
	if (!binds)
		quiet_claim(stretches, 8 * PAGE, "registered");
	quiet_claim(stretches + 8 * PAGE, (THREADS * STRETCH - 8) * PAGE, "no-access");
	quiet_point("after threads");
}

int main(void)
{
	static char binds;
	in_child("full", at_the_limit, NULL);
	for (int i = 0; i < 4; i++) {
		in_child("interrupted", interrupted, NULL);
		in_child("interrupted, with a limit", interrupted, &binds);
	}
	in_child("advised in handlers", advised_in_handlers, NULL);
	in_child("among threads", among_threads, NULL);
	in_child("among threads, with a limit", among_threads, &binds);
	quiet_point("all");
	return 0;
}
