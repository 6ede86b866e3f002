/* Proves: the application's own locks mean what they mean without the shim, which keeps its pins. */
#include "check.h"

#ifndef MLOCK_ONFAULT
#define MLOCK_ONFAULT 1
#endif

/* Whether the application would say that this is locked: DONTNEED fails on it. */
static bool locked(char *p)
{
	return madvise(p, PAGE, MADV_DONTNEED) == -1 && errno == EINVAL;
}

static void errors(void)
{
	char *p = anon(8);
	NEED(munmap(p + 4 * PAGE, PAGE) == 0);
	CALL(mlock(p, 8 * PAGE)); /* ENOMEM, and the part before the hole is locked */
	say("before %d behind %d", locked(p), locked(p + 5 * PAGE));
	CALL(munlock(p, 8 * PAGE));
	say("before %d behind %d", locked(p), locked(p + 5 * PAGE));
	CALL(mlock(p, 0));
	CALL(mlock(p + 100, 10)); /* rounds down and up */
	say("locked %d next %d", locked(p), locked(p + PAGE));
	CALL(mlock(p, ~0ul));
	CALL(munlock(p, ~0ul));
	CALL(munlock((void *)PAGE, PAGE));
	CALL(mlock2(p, PAGE, 64));
	CALL(mlock2(p + PAGE, PAGE, MLOCK_ONFAULT));
	CALL(mlock2(p + 2 * PAGE, PAGE, 0));
	say("%d %d %d", locked(p), locked(p + PAGE), locked(p + 2 * PAGE));
	char *n = reserve(2);
	CALL(mlock(n, 2 * PAGE)); /* no access: the kernel says ENOMEM and marks it all the same */
	CALL(munlock(n, 2 * PAGE));
	CALL(mlockall(0));
	CALL(mlockall(64));
	CALL(mlockall(MCL_ONFAULT));
	quiet_claim(p, 4 * PAGE, "registered");
	quiet_claim(p + 5 * PAGE, 3 * PAGE, "registered");
	quiet_point("errors");
}

static void all(void)
{
	char *before = anon(4);
	CALL(mlockall(MCL_CURRENT));
	char *after = anon(4);
	say("current: %d %d", locked(before), locked(after));
	CALL(munlockall());
	say("none: %d %d", locked(before), locked(after));
	quiet_claim(before, 4 * PAGE, "registered");
	quiet_claim(after, 4 * PAGE, "registered");
	quiet_point("munlockall");
	CALL(mlockall(MCL_FUTURE));
	char *future = anon(4);
	say("future: %d %d", locked(before), locked(future));
	CALL(munlock(future, PAGE));
	say("one page freed: %d %d", locked(future), locked(future + PAGE));
	quiet_point("future");
	CALL(mlockall(MCL_CURRENT | MCL_FUTURE | MCL_ONFAULT));
	char *lazy = anon(4);
	say("onfault: %d %d", locked(before), locked(lazy));
	quiet_point("onfault");
	/* A child has no locks. */
	pid_t pid = fork();
	NEED(pid >= 0);
	if (pid == 0) {
		char *mine = anon(1);
		say("child: %d %d", locked(lazy), locked(mine));
		quiet_point("child");
		_exit(0);
	}
	reap("child", pid);
	CALL(munlockall());
	char *last = anon(4);
	say("none: %d %d %d", locked(future), locked(lazy), locked(last));
	quiet_claim(future, 4 * PAGE, "registered");
	quiet_point("all");
}

static void mapped(void)
{
	char *p = mmap(NULL, 4 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_LOCKED, -1, 0);
	NEED(p != MAP_FAILED);
	say("MAP_LOCKED %d", locked(p));
	char *q = mremap(p, 4 * PAGE, 8 * PAGE, MREMAP_MAYMOVE);
	NEED(q != MAP_FAILED);
	say("moved along %d %d", locked(q), locked(q + 7 * PAGE));
	CALL(mprotect(q, 2 * PAGE, PROT_NONE));
	CALL(mprotect(q, 2 * PAGE, PROT_READ | PROT_WRITE));
	say("kept over no access %d", locked(q));
	CALL(munlock(q, 4 * PAGE));
	say("%d %d", locked(q), locked(q + 5 * PAGE));
	quiet_claim(q, 8 * PAGE, "registered");
	quiet_point("mapped");
	CALL(munmap(q, 8 * PAGE));
}

/* What lies before a hole is locked, though the call fails; page cache, too. */
static void before_a_hole(void)
{
	int fd = open("/proc/self/exe", O_RDONLY);
	char *text = mmap(NULL, 2 * PAGE, PROT_READ | PROT_EXEC, MAP_PRIVATE, fd, 0);
	NEED(text != MAP_FAILED && munmap(text + PAGE, PAGE) == 0);
	CALL(mlock(text, 2 * PAGE));
	say("before the hole %d", locked(text));
	quiet_claim(text, PAGE, "registered");
	quiet_point("before a hole");
	CALL(munmap(text, PAGE));
}

int main(void)
{
	errors();
	all();
	mapped();
	before_a_hole();
	quiet_point("end");
	return 0;
}
