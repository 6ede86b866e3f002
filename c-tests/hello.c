/* Proves nothing by itself: prints, maps a little, waits at a quiet point; for tests of settings. */
#include "check.h"

int main(int argc, char **argv)
{
	char *p = anon(256), *f;
	memset(p, 1, 256 * PAGE);
	int fd = memory_file(16 * PAGE);
	f = mmap(NULL, 16 * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	NEED(f != MAP_FAILED);
	say("hello, %d arguments, last %s", argc - 1, argv[argc - 1] && argc > 1 ? argv[argc - 1] : "none");
	/* The allocation that REGALL_ON_LIMIT=fail makes fail. */
	errno = 0;
	void *large = mmap(NULL, 64 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	say("64 MiB: %s", large == MAP_FAILED ? strerrorname_np(errno) : "ok");
	if (large != MAP_FAILED)
		*(char *)large = 1;
	/* The same memory reserved first and opened later, as malloc's arenas are. */
	large = mmap(NULL, 64 << 20, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	NEED(large != MAP_FAILED);
	errno = 0;
	int opened = mprotect(large, 64 << 20, PROT_READ | PROT_WRITE);
	say("64 MiB opened: %s", opened ? strerrorname_np(errno) : "ok");
	quiet_point("hello");
	if (write(2, "an error line\n", 14) != 14)
		return 1;
	return 7;
}
