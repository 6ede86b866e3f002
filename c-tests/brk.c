/* Proves: brk and sbrk grow, shrink and fail as without the shim, and malloc on top of them. */
#include <malloc.h>
#include "check.h"

int main(void)
{
	char *base = sbrk(0);
	char *old = sbrk(100 * PAGE);
	say("sbrk %d", old == base);
	memset(old, 3, 100 * PAGE);
	char *start = (char *)(((uintptr_t)base + PAGE - 1) & ~(PAGE - 1));
	quiet_claim(start, 99 * PAGE, "registered");
	quiet_point("grown");
	CALL(brk(base + 20 * PAGE));
	say("now %ld", (long)((char *)sbrk(0) - base));
	in_child("read of what was given back", touch_read, base + 60 * PAGE);
	quiet_point("shrunk");
	CALL(brk(base + 100 * PAGE));
	say("kept %d zero again %d", base[0] == 3 && base[19 * PAGE] == 3,
	    all_are(base + 22 * PAGE, 70 * PAGE, 0));
	quiet_point("grown again");

	/* Not whole pages. */
	CALL(brk(base + 100 * PAGE + 17));
	say("now %ld", (long)((char *)sbrk(0) - base));
	CALL(brk(base + 99 * PAGE + 3));
	say("now %ld", (long)((char *)sbrk(0) - base));
	quiet_point("odd");

	/* Calls that fail leave the break where it is. */
	CALL(brk((void *)0x1000));
	CALL(brk((void *)~0xffful));
	struct rlimit was, low = { 0 };
	NEED(getrlimit(RLIMIT_DATA, &was) == 0);
	low.rlim_cur = 1 << 20;
	low.rlim_max = was.rlim_max;
	NEED(setrlimit(RLIMIT_DATA, &low) == 0);
	errno = 0;
	told("sbrk beyond RLIMIT_DATA", sbrk(1 << 24) != (void *)-1);
	NEED(setrlimit(RLIMIT_DATA, &was) == 0);
	say("now %ld", (long)((char *)sbrk(0) - base));
	quiet_point("failed");

	/* Something in the way. */
	char *top = (char *)(((uintptr_t)sbrk(0) + PAGE - 1) & ~(PAGE - 1));
	char *block = mmap(top + 4 * PAGE, PAGE, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
	NEED(block == top + 4 * PAGE);
	errno = 0;
	told("sbrk into a mapping", sbrk(20 * PAGE) != (void *)-1);
	say("now %ld", (long)((char *)sbrk(0) - base));
	quiet_point("blocked");
	NEED(munmap(block, PAGE) == 0);
	CALL(brk(base));

	/* The raw call returns the break, also when it fails. */
	long now = syscall(SYS_brk, 0);
	say("raw brk(0) is sbrk(0) %d", (void *)now == sbrk(0));
	say("raw brk fails with the old break %d", syscall(SYS_brk, 1) == now);

	/* malloc grows and trims the heap. */
	mallopt(M_MMAP_THRESHOLD, 1 << 30);
	mallopt(M_TRIM_THRESHOLD, 1 << 16);
	char *blocks[64];
	for (int round = 0; round < 20; round++) {
		for (int i = 0; i < 64; i++) {
			blocks[i] = malloc((size_t)(i + 1) * 3000);
			NEED(blocks[i]);
			memset(blocks[i], i, (size_t)(i + 1) * 3000);
		}
		if (round == 10)
			quiet_point("malloc");
		for (int i = 0; i < 64; i++) {
			NEED(all_are(blocks[i], (size_t)(i + 1) * 3000, (char)i));
			free(blocks[i]);
		}
		malloc_trim(0);
	}
	say("malloc fine");
	quiet_point("end");
	return 0;
}
