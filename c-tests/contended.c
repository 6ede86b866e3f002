/* Proves: advice and msync, which fail on locked memory, are hardly ever refused where another thread opens and maps memory in the same range meanwhile. */
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

/* Opens page after page, closes every other one, and maps one anew now and then. */
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
			NEED(mmap(p, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == p);
	}
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
		refused += bytes >= 0 ? bytes != (long)(2 * half) : errno == EINVAL;
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

int main(void)
{
	memory = reserve(PAGES);
	pthread_t other;
	NEED(pthread_create(&other, NULL, open_pages, NULL) == 0);
	advise("MADV_DONTNEED", MADV_DONTNEED);
	advise("MADV_FREE", MADV_FREE);
	advise("MADV_COLD", MADV_COLD);
	advise("MADV_PAGEOUT", MADV_PAGEOUT);
	advise_self();
	invalidate();
	done = true;
	NEED(pthread_join(other, NULL) == 0);
	NEED(mprotect(memory, PAGES * PAGE, PROT_READ | PROT_WRITE) == 0);
	quiet_claim(memory, PAGES * PAGE, "registered");
	quiet_point("end");
	/* What the application locks itself is refused, as ever. */
	NEED(mlock(memory + PAGE, PAGE) == 0);
	CALL(madvise(memory, PAGES * PAGE, MADV_COLD));
	CALL(msync(memory, PAGES * PAGE, MS_INVALIDATE));
	quiet_point("locked");
	return 0;
}
