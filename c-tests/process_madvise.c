/* Proves: process_madvise on the process itself as without the shim. */
#include <sys/uio.h>
#include "check.h"

#ifndef SYS_process_madvise
#define SYS_process_madvise 440
#endif
#ifndef SYS_pidfd_open
#define SYS_pidfd_open 434
#endif

static void advise(const char *what, int self, const struct iovec *v, size_t count, unsigned flags)
{
	errno = 0;
	long bytes = syscall(SYS_process_madvise, self, v, count, MADV_COLD, flags);
	say("%s: %ld %s", what, bytes, bytes < 0 ? strerrorname_np(errno) : "");
}

/* More ranges than fit into the shim's room; the last of them, and those behind, can't be read. */
static void many(int self)
{
	const size_t most = 1024, left = 4096 / sizeof(struct iovec);
	char *p = anon(most + 1);
	memset(p, 4, (most + 1) * PAGE);
	struct iovec *v = (struct iovec *)anon(5);
	for (size_t i = 0; i <= most; i++)
		v[i] = (struct iovec) { p + i * PAGE, PAGE };
	const size_t counts[] = { 127, 128, 129, 300, most, most + 1 };
	for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
		say("%zu ranges", counts[i]);
		advise("  of a page", self, v, counts[i], 0);
	}
	NEED(mprotect((char *)v + PAGE, PAGE, PROT_NONE) == 0);
	advise("the vector ends", self, v, left + 1, 0);
	NEED(munmap(p + 150 * PAGE, PAGE) == 0);
	advise("a hole", self, v, left, 0);
	quiet_claim(p, 150 * PAGE, "registered");
	quiet_point("many");
}

/* What another process has mapped, and this one has not. */
static void of_another(void)
{
	char *there = reserve(2);
	NEED(munmap(there, 2 * PAGE) == 0);
	int up[2], down[2];
	NEED(pipe(up) == 0 && pipe(down) == 0);
	pid_t pid = fork();
	NEED(pid >= 0);
	if (pid == 0) {
		/* (What nobody can access is not locked by the shim of the other.) */
		NEED(mmap(there, 2 * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == there);
		NEED(write(up[1], "", 1) == 1);
		char c;
		NEED(read(down[0], &c, 1) == 1);
		_exit(0);
	}
	char c;
	NEED(read(up[0], &c, 1) == 1);
	int other = (int)syscall(SYS_pidfd_open, pid, 0);
	NEED(other >= 0);
	const struct iovec v = { there, 2 * PAGE };
	advise("another's", other, &v, 1, 0);
	NEED(write(down[1], "", 1) == 1);
	reap("another", pid);
	NEED(close(other) == 0 && close(up[0]) == 0 && close(up[1]) == 0 && close(down[0]) == 0 && close(down[1]) == 0);
}

int main(void)
{
	int self = (int)syscall(SYS_pidfd_open, getpid(), 0);
	NEED(self >= 0);
	char *p = anon(8), *q = anon(8);
	memset(p, 4, 8 * PAGE);
	memset(q, 4, 8 * PAGE);
	struct iovec v[3] = { { p, 2 * PAGE }, { q, 4 * PAGE }, { p + 4 * PAGE, PAGE } };
	const int advice[] = { MADV_WILLNEED, MADV_COLD, MADV_PAGEOUT, MADV_DONTNEED, MADV_FREE, MADV_REMOVE, 25, 12345 };
	for (size_t i = 0; i < sizeof advice / sizeof *advice; i++) {
		errno = 0;
		long n = syscall(SYS_process_madvise, self, v, 3ul, advice[i], 0u);
		/* MADV_COLLAPSE may or may not find memory for a huge page */
		if (advice[i] != 25)
			say("advice %d: %ld %s", advice[i], n, n < 0 ? strerrorname_np(errno) : "");
		say("  %d %d %d", p[0], q[0], p[7 * PAGE]);
		quiet_claim(p, 8 * PAGE, "registered");
		quiet_claim(q, 8 * PAGE, "registered");
		quiet_point("advice");
	}
	memset(p, 5, 8 * PAGE);
	NEED(mlock(p, PAGE) == 0);
	advise("locked", self, v, 3, 0);
	advise("flags", self, v, 3, 1);
	advise("bad fd", -1, v, 3, 0);
	advise("bad vector", self, (void *)1, 3, 0);
	advise("no vector", self, v, 0, 0);
	v[1].iov_base = q + 1;
	advise("unaligned", self, v, 3, 0);
	many(self);
	of_another();
	quiet_point("end");
	return 0;
}
