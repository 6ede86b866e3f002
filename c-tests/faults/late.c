/* Proves: advice for memory that was pinned before a filter forbade munlock does what it does without the shim. */
#include "../filter.h"

#define PAGES 256ul

static char *filled(int flags)
{
	char *p = mmap(NULL, PAGES * PAGE, PROT_READ | PROT_WRITE, flags | MAP_ANONYMOUS, -1, 0);
	NEED(p != MAP_FAILED);
	memset(p, 7, PAGES * PAGE);
	return p;
}

int main(void)
{
	char *private = filled(MAP_PRIVATE), *shared = filled(MAP_SHARED);
	FILTER_CALLS(SECCOMP_RET_ERRNO | EPERM, SYS_munlock);
	CALL(madvise(private, PAGES * PAGE, MADV_COLD));
	CALL(madvise(private, PAGES * PAGE, MADV_PAGEOUT));
	CALL(madvise(private, PAGES * PAGE, MADV_FREE));
	private[0] = 1;
	CALL(madvise(private, PAGES * PAGE, MADV_DONTNEED));
	say("private %d", private[0]);
	CALL(madvise(shared, PAGES * PAGE, MADV_FREE));
	CALL(madvise(shared, PAGES * PAGE, MADV_DONTNEED));
	say("shared %d", shared[PAGES * PAGE - 1]);
	return 0;
}
