/* Proves: under a small RLIMIT_AS and RLIMIT_DATA the program's own calls fit and fail as without the shim. */
#include "check.h"

int main(int argc, char **argv)
{
	(void)argv;
	if (argc == 1) {
		/* Enough to start in, with room to spare for the shim; the program then
		 * goes far beyond it. */
		struct rlimit r = { 256 << 20, 256 << 20 };
		NEED(setrlimit(RLIMIT_AS, &r) == 0);
		execl("/proc/self/exe", "address_limit", "again", (char *)NULL);
		return 97;
	}
	MAP_AS("512 MiB", mmap(NULL, 512 << 20, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
	MAP_AS("512 MiB without access", mmap(NULL, 512 << 20, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
	char *p = MAP_AS("16 MiB", mmap(NULL, 16 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
	memset(p, 1, 16 << 20);
	quiet_claim(p, 16 << 20, "registered");
	quiet_point("16 MiB");
	MAP_AS("grown to 400 MiB", mremap(p, 16 << 20, 400 << 20, MREMAP_MAYMOVE));
	say("contents %d", all_are(p, 16 << 20, 1));
	errno = 0;
	told("malloc of 300 MiB", malloc(300 << 20) != NULL);
	errno = 0;
	told("sbrk of 300 MiB", sbrk(300 << 20) != (void *)-1);
	told("malloc of 1 MiB", malloc(1 << 20) != NULL);
	/* Taken to the last page: how many fit differs, that it ends well does not. */
	char *last = NULL;
	for (;;) {
		char *q = mmap(NULL, 1 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		if (q == MAP_FAILED)
			break;
		last = q;
	}
	say("full: %s", strerrorname_np(errno));
	quiet_claim(last, 1 << 20, "registered");
	quiet_point("full");
	CALL(munmap(last, 1 << 20));
	MAP_AS("again", mmap(NULL, 1 << 20, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
	quiet_point("end");
	return 0;
}
