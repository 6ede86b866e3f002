/* Proves: msync as without the shim; MS_INVALIDATE fails only on what the application locked itself. */
#include "check.h"

int main(void)
{
	int fd = memory_file(8 * PAGE);
	char *p = mmap(NULL, 8 * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	NEED(p != MAP_FAILED);
	memset(p, 3, 8 * PAGE);
	CALL(msync(p, 8 * PAGE, MS_SYNC));
	CALL(msync(p, 8 * PAGE, MS_ASYNC));
	CALL(msync(p, 8 * PAGE, MS_INVALIDATE));
	CALL(msync(p, 8 * PAGE, MS_SYNC | MS_INVALIDATE));
	CALL(msync(p, 8 * PAGE, MS_SYNC | MS_ASYNC));
	CALL(msync(p + 1, PAGE, MS_SYNC));
	CALL(msync(p, PAGE, 64));
	NEED(mlock(p + 2 * PAGE, PAGE) == 0);
	CALL(msync(p, 8 * PAGE, MS_INVALIDATE));
	CALL(msync(p, 2 * PAGE, MS_INVALIDATE));
	quiet_claim(p, 8 * PAGE, "registered");
	quiet_point("locked");
	NEED(munlock(p, 8 * PAGE) == 0);
	CALL(msync(p, 8 * PAGE, MS_INVALIDATE));
	NEED(munmap(p + 4 * PAGE, PAGE) == 0);
	CALL(msync(p, 8 * PAGE, MS_INVALIDATE));
	CALL(msync(p, 8 * PAGE, MS_SYNC));
	say("contents %d", p[0]);
	quiet_claim(p, 4 * PAGE, "registered");
	quiet_point("end");
	return 0;
}
