/* Proves: process_madvise on the process itself as without the shim. */
#include <sys/uio.h>
#include "check.h"

#ifndef SYS_process_madvise
#define SYS_process_madvise 440
#endif
#ifndef SYS_pidfd_open
#define SYS_pidfd_open 434
#endif

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
	errno = 0;
	say("locked: %ld %s", syscall(SYS_process_madvise, self, v, 3ul, MADV_COLD, 0u), strerrorname_np(errno));
	errno = 0;
	say("flags: %ld %s", syscall(SYS_process_madvise, self, v, 3ul, MADV_COLD, 1u), strerrorname_np(errno));
	errno = 0;
	say("bad fd: %ld %s", syscall(SYS_process_madvise, -1, v, 3ul, MADV_COLD, 0u), strerrorname_np(errno));
	errno = 0;
	say("bad vector: %ld %s", syscall(SYS_process_madvise, self, 1, 3ul, MADV_COLD, 0u), strerrorname_np(errno));
	errno = 0;
	say("no vector: %ld %s", syscall(SYS_process_madvise, self, v, 0ul, MADV_COLD, 0u), strerrorname_np(errno));
	v[1].iov_base = q + 1;
	errno = 0;
	say("unaligned: %ld %s", syscall(SYS_process_madvise, self, v, 3ul, MADV_COLD, 0u), strerrorname_np(errno));
	quiet_point("end");
	return 0;
}
