/* Proves: mprotect between no access and access, over holes and on stacks, as without the shim. */
#include "check.h"

/* As a thread arena of malloc: reserved, then opened a little at a time. */
static void arena(void)
{
	char *r = reserve(256);
	for (size_t i = 0; i < 256; i += 8) {
		NEED(mprotect(r + i * PAGE, 8 * PAGE, PROT_READ | PROT_WRITE) == 0);
		memset(r + i * PAGE, (int)i, 8 * PAGE);
		if (i == 128) {
			quiet_claim(r, 136 * PAGE, "registered");
			quiet_claim(r + 136 * PAGE, 120 * PAGE, "no-access");
			quiet_point("half an arena");
		}
	}
	bool fine = true;
	for (size_t i = 0; i < 256; i += 8)
		fine &= all_are(r + i * PAGE, 8 * PAGE, (char)i);
	say("arena %d", fine);
	CALL(mprotect(r, 256 * PAGE, PROT_NONE));
	quiet_claim(r, 256 * PAGE, "no-access");
	quiet_point("closed");
	in_child("read without access", touch_read, r);
	CALL(mprotect(r, 256 * PAGE, PROT_READ));
	say("contents kept %d", r[8 * PAGE] == 8);
	in_child("write to read-only", touch_write, r);
	quiet_point("read-only");
	CALL(mprotect(r, 256 * PAGE, PROT_READ | PROT_WRITE | PROT_EXEC));
	quiet_claim(r, 256 * PAGE, "registered");
	quiet_point("rwx");
	CALL(munmap(r, 256 * PAGE));
}

/* It changes what lies before a hole and then fails. */
static void holes(void)
{
	char *p = anon(12);
	memset(p, 1, 12 * PAGE);
	NEED(munmap(p + 6 * PAGE, PAGE) == 0);
	CALL(mprotect(p, 12 * PAGE, PROT_READ));
	in_child("write before the hole", touch_write, p);
	in_child("write behind the hole", touch_write, p + 8 * PAGE);
	quiet_point("half changed");
	CALL(mprotect(p, 12 * PAGE, PROT_NONE));
	in_child("read before the hole", touch_read, p);
	in_child("read behind the hole", touch_read, p + 8 * PAGE);
	quiet_claim(p, 6 * PAGE, "no-access");
	quiet_claim(p + 7 * PAGE, 5 * PAGE, "registered");
	quiet_point("half closed");
	CALL(mprotect(p + 6 * PAGE, PAGE, PROT_READ));
	CALL(mprotect(p + 1, PAGE, PROT_READ));
	CALL(mprotect(p, 0, PROT_READ));
	CALL(mprotect(p, PAGE, 0x100));
	CALL(mprotect(p, ~0ul, PROT_READ));
	CALL(mprotect(p, 100, PROT_READ | PROT_WRITE));
	say("contents %d", p[0]);
}

static void files(void)
{
	int fd = open("/proc/self/exe", O_RDONLY);
	char *p = mmap(NULL, PAGE, PROT_READ, MAP_SHARED, fd, 0);
	NEED(p != MAP_FAILED);
	CALL(mprotect(p, PAGE, PROT_READ | PROT_WRITE)); /* opened read-only: EACCES */
	CALL(mprotect(p, PAGE, PROT_NONE));
	CALL(mprotect(p, PAGE, PROT_READ | PROT_EXEC));
	say("contents %.3s", p + 1);
	p = mmap(NULL, PAGE, PROT_READ, MAP_PRIVATE, fd, 0);
	CALL(mprotect(p, PAGE, PROT_READ | PROT_WRITE));
	p[1] = 'X';
	say("contents %.3s", p + 1);
	quiet_claim(p, PAGE, "registered");
	quiet_point("files");
}

static void stacks(void)
{
	/* PROT_GROWSDOWN is for growable mappings only. */
	char *p = anon(4);
	CALL(mprotect(p, PAGE, PROT_READ | PROT_WRITE | PROT_GROWSDOWN));
	CALL(mprotect(p, PAGE, PROT_READ | PROT_GROWSUP));
	CALL(mprotect(p, PAGE, PROT_READ | PROT_GROWSUP | PROT_GROWSDOWN));
	char here;
	char *page = (char *)((uintptr_t)&here & ~(PAGE - 1));
	CALL(mprotect(page, PAGE, PROT_READ | PROT_WRITE | PROT_GROWSDOWN));
	quiet_point("stack");
	/* From there down to its beginning. */
	char *down = mmap(NULL, 8 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_GROWSDOWN, -1, 0);
	NEED(down != MAP_FAILED);
	CALL(mprotect(down + 4 * PAGE, PAGE, PROT_READ | PROT_GROWSDOWN));
	in_child("write to read-only below", touch_write, down + PAGE);
	in_child("write above", touch_write, down + 5 * PAGE);
	quiet_point("grows down");
	CALL(munmap(down, 8 * PAGE));
}

static void keys(void)
{
	char *p = anon(4);
	long key = syscall(SYS_pkey_alloc, 0, 0);
	CALL(syscall(SYS_pkey_mprotect, p, PAGE, PROT_READ, -1)); /* -1: as mprotect */
	in_child("write to read-only", touch_write, p);
	CALL(syscall(SYS_pkey_mprotect, p, PAGE, PROT_READ | PROT_WRITE, 99));
	if (key >= 0) {
		NEED(syscall(SYS_pkey_mprotect, p, 2 * PAGE, PROT_READ | PROT_WRITE, key) == 0);
		p[0] = 1;
	}
	quiet_point("keys");
}

int main(void)
{
	arena();
	holes();
	files();
	stacks();
	keys();
	quiet_point("end");
	return 0;
}
