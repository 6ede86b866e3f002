/* Proves: advice and msync, which fail on locked memory, are hardly ever refused where another thread opens, maps, unmaps or moves memory in the same range meanwhile, or ends in the midst of it.
 *
 *   contended [HOW]
 *
 * HOW is what the other thread does beside: `mmap` (default), `munmap`, `mremap` from there, `onto` there by mremap, `shrink` by mremap;
 * `two`: as mmap, and a third one gives advice, too; `ends`: as munmap, and it ends by a signal now and then, and another one comes.
 *   contended ended
 *
 * A thread ends while it unmaps a page, which strace keeps the kernel from. Nobody comes by but who gives advice then. */
#include <pthread.h>
#include <stdatomic.h>
#include <sys/uio.h>
#include "check.h"

#ifndef MADV_COLD
#define MADV_COLD 20
#define MADV_PAGEOUT 21
#endif

enum { PAGES = 256, ROUNDS = 200 };

static char *memory;
static atomic_bool done;

static const char *how = "mmap";
static char *aside;

static bool is(const char *what)
{
	return strcmp(how, what) == 0;
}

static void map_at(char *p)
{
	NEED(mmap(p, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == p);
}

/* Puts other memory at a page, or none for a while. */
static void change(char *p)
{
	const int move = MREMAP_MAYMOVE | MREMAP_FIXED;
	if (is("munmap") || is("ends")) {
		/* strace may have it fail. */
		NEED(munmap(p, PAGE) == 0 || is("ends"));
	} else if (is("mremap")) {
		NEED(mremap(p, PAGE, PAGE, move, aside) == aside);
	} else if (is("onto")) {
		map_at(aside);
		*(volatile char *)aside = 1;
		NEED(mremap(aside, PAGE, PAGE, move, p) == p);
		return;
	} else if (is("shrink")) {
		/* Both are one mapping. */
		NEED(mmap(p, 2 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == p);
		p += PAGE;
		*(volatile char *)p = 1;
		NEED(mremap(p - PAGE, 2 * PAGE, PAGE, 0) == p - PAGE);
	}
	map_at(p);
}

/* Opens page after page, closes every other one, and changes one now and then. */
static void *open_pages(void *unused)
{
	(void)unused;
	for (unsigned i = 0; !done; i++) {
		char *p = memory + i % PAGES * PAGE;
		NEED(mprotect(p, PAGE, PROT_READ | PROT_WRITE) == 0);
		*(volatile char *)p = 1;
		if (i % 2)
			NEED(mprotect(p, PAGE, PROT_NONE) == 0);
		if (i % 64 == 0)
			change(p);
	}
	return NULL;
}

/* The whole thread ends where it is. */
static void end(int unused)
{
	(void)unused;
	syscall(SYS_exit, 0);
}

/* Has such a thread, and ends it now and then. */
static void *end_threads(void *unused)
{
	(void)unused;
	for (unsigned i = 0; !done; i++) {
		pthread_t thread;
		NEED(pthread_create(&thread, NULL, open_pages, NULL) == 0);
		usleep(20000 + i % 7 * 5000);
		pthread_kill(thread, SIGUSR1);
		NEED(pthread_join(thread, NULL) == 0);
	}
	return NULL;
}

/* Gives advice, which fails where there is a hole. */
static void *advise_too(void *unused)
{
	(void)unused;
	while (!done)
		madvise(memory, PAGES * PAGE, MADV_COLD);
	return NULL;
}

/* One in a hundred or two still is, where another thread has not waited for a pin (docs/limits.md); without what this is a test of it
 * was one in three, and from some moment on all. */
static void tell(const char *what, int refused)
{
	bool often = refused > ROUNDS / 4;
	say("%s: %s", what, often ? "REFUSED" : "hardly ever refused");
	if (often)
		say("%d of %d", refused, ROUNDS);
}

static void advise(const char *what, int advice)
{
	int refused = 0;
	for (int i = 0; i < ROUNDS; i++)
		refused += madvise(memory, PAGES * PAGE, advice) != 0 && errno == EINVAL;
	tell(what, refused);
}

/* By a vector, of which the second half is another range. */
static void advise_self(void)
{
	size_t half = PAGES / 2 * PAGE;
	struct iovec both[] = { { memory, half }, { memory + half, half } };
	int self = (int)syscall(SYS_pidfd_open, getpid(), 0), refused = 0;
	for (int i = 0; i < ROUNDS; i++) {
		long bytes = syscall(SYS_process_madvise, self, both, 2, MADV_COLD, 0);
		refused += bytes >= 0 ? (is("mmap") || is("onto") || is("two")) && bytes != (long)(2 * half) : errno == EINVAL;
	}
	close(self);
	tell("process_madvise", refused);
}

static void invalidate(void)
{
	int refused = 0;
	for (int i = 0; i < ROUNDS; i++)
		refused += msync(memory, PAGES * PAGE, MS_INVALIDATE) != 0 && errno == EBUSY;
	tell("msync", refused);
}

static void *unmap(void *unused)
{
	(void)unused;
	munmap(memory + PAGE, PAGE);
	return NULL;
}

/* Whether what is done then fails for a lock: where the thread came to unmap it there is a hole, which is another error. */
static void behind(const char *what, int (*give)(void), int refusal)
{
	pthread_t thread;
	for (char *p = memory; p < memory + 8 * PAGE; p += PAGE) {
		map_at(p);
		*(volatile char *)p = 1;
	}
	NEED(pthread_create(&thread, NULL, unmap, NULL) == 0);
	usleep(200000);
	pthread_kill(thread, SIGUSR1);
	NEED(pthread_join(thread, NULL) == 0);
	say("%s: %s", what, give() != 0 && errno == refusal ? "REFUSED" : "not refused");
}

static int dont_need(void)
{
	return madvise(memory, 8 * PAGE, MADV_DONTNEED);
}

static int cold(void)
{
	return madvise(memory, 8 * PAGE, MADV_COLD);
}

static int sync_all(void)
{
	return msync(memory, 8 * PAGE, MS_INVALIDATE);
}

static int ended(void)
{
	behind("MADV_DONTNEED", dont_need, EINVAL);
	behind("MADV_COLD", cold, EINVAL);
	behind("msync", sync_all, EBUSY);
	return 0;
}

int main(int argc, char **argv)
{
	if (argc > 1)
		how = argv[1];
	memory = reserve(PAGES);
	aside = reserve(1);
	pthread_t other, third;
	NEED(signal(SIGUSR1, end) != SIG_ERR);
	if (is("ended"))
		return ended();
	NEED(pthread_create(&other, NULL, is("ends") ? end_threads : open_pages, NULL) == 0);
	if (is("two"))
		NEED(pthread_create(&third, NULL, advise_too, NULL) == 0);
	advise("MADV_DONTNEED", MADV_DONTNEED);
	advise("MADV_FREE", MADV_FREE);
	advise("MADV_COLD", MADV_COLD);
	advise("MADV_PAGEOUT", MADV_PAGEOUT);
	advise_self();
	invalidate();
	done = true;
	NEED(pthread_join(other, NULL) == 0);
	if (is("two"))
		NEED(pthread_join(third, NULL) == 0);
	for (char *p = memory; p < memory + PAGES * PAGE; p += PAGE)
		map_at(p);
	quiet_claim(memory, PAGES * PAGE, "registered");
	quiet_point("end");
	/* What the application locks itself is refused, as ever. */
	NEED(mlock(memory + PAGE, PAGE) == 0);
	CALL(madvise(memory, PAGES * PAGE, MADV_COLD));
	CALL(msync(memory, PAGES * PAGE, MS_INVALIDATE));
	quiet_point("locked");
	return 0;
}
