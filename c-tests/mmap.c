/* Proves: mmap and munmap behave as without the shim, whatever the flags and errors. */
#include "check.h"

static void flags(void)
{
	const struct {
		const char *name;
		int flags;
	} all[] = {
		{ "private", MAP_PRIVATE }, { "shared", MAP_SHARED },
		{ "noreserve", MAP_PRIVATE | MAP_NORESERVE }, { "stack", MAP_PRIVATE | MAP_STACK },
		{ "populate", MAP_PRIVATE | MAP_POPULATE }, { "locked", MAP_PRIVATE | MAP_LOCKED },
		{ "32bit", MAP_PRIVATE | MAP_32BIT }, { "growsdown", MAP_PRIVATE | MAP_GROWSDOWN },
		{ "denywrite", MAP_PRIVATE | MAP_DENYWRITE }, { "nonblock", MAP_PRIVATE | MAP_NONBLOCK },
	};
	for (size_t i = 0; i < sizeof all / sizeof *all; i++)
		for (int prot = 0; prot < 8; prot++) {
			char label[64];
			snprintf(label, sizeof label, "mmap %s prot %d", all[i].name, prot);
			char *p = MAP_AS(label, mmap(NULL, 5 * PAGE, prot, all[i].flags | MAP_ANONYMOUS, -1, 0));
			if (p == MAP_FAILED)
				continue;
			if (prot & PROT_WRITE) {
				p[0] = 1;
				p[5 * PAGE - 1] = 2;
			}
			if (prot & PROT_READ)
				say("  %d %d", p[0], p[5 * PAGE - 1]);
			CALL(munmap(p, 5 * PAGE));
		}
}

static void errors(void)
{
	int fd = memory_file(4 * PAGE), ro = open("/proc/self/exe", O_RDONLY), wo = open("/dev/null", O_WRONLY);
	MAP_AS("length 0", mmap(NULL, 0, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
	MAP_AS("length huge", mmap(NULL, ~0ul, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
	MAP_AS("length 2^47", mmap(NULL, 1ul << 47, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
	MAP_AS("no type", mmap(NULL, PAGE, PROT_READ, MAP_ANONYMOUS, -1, 0));
	MAP_AS("bad fd", mmap(NULL, PAGE, PROT_READ, MAP_PRIVATE, 12345, 0));
	MAP_AS("bad offset", mmap(NULL, PAGE, PROT_READ, MAP_PRIVATE, fd, 100));
	MAP_AS("offset overflow", mmap(NULL, 2 * PAGE, PROT_READ, MAP_PRIVATE, fd, (off_t)0x7ffffffffffff000));
	MAP_AS("read-only file shared rw", mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, ro, 0));
	MAP_AS("write-only file", mmap(NULL, PAGE, PROT_READ, MAP_PRIVATE, wo, 0));
	MAP_AS("fixed unaligned", mmap((void *)0x10001, PAGE, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0));
	MAP_AS("fixed in kernel", mmap((void *)~(PAGE - 1), PAGE, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0));
	MAP_AS("shared validate, unknown flag", mmap(NULL, PAGE, PROT_READ, MAP_SHARED_VALIDATE | (1 << 29), fd, 0));
	MAP_AS("sync on memfd", mmap(NULL, PAGE, PROT_READ, MAP_SHARED_VALIDATE | MAP_SYNC, fd, 0));
	MAP_AS("directory", mmap(NULL, PAGE, PROT_READ, MAP_PRIVATE, open("/", O_RDONLY), 0));
	char *p = anon(4);
	CALL(munmap(p + 1, PAGE));
	CALL(munmap(p, 0));
	CALL(munmap((void *)~(PAGE - 1), PAGE));
	CALL(munmap(p, ~0ul - 2 * PAGE));
	CALL(munmap(p, 100)); /* rounds up to a page */
	CALL(munmap(p, 4 * PAGE)); /* a hole in front */
	CALL(munmap(p, 4 * PAGE)); /* nothing there: still 0 */
}

static void fixed(void)
{
	char *r = reserve(64);
	int fd = memory_file(64 * PAGE);
	for (int i = 0; i < 64; i += 4) {
		int prot = i % 8 ? PROT_READ | PROT_WRITE : PROT_READ;
		int flags = i % 16 ? MAP_PRIVATE : MAP_SHARED;
		NEED(mmap(r + (size_t)i * PAGE, 3 * PAGE, prot, flags | MAP_FIXED, fd, i * (off_t)PAGE) != MAP_FAILED);
	}
	quiet_point("striped");
	char *p = MAP_AS("over several",
			 mmap(r + 5 * PAGE, 30 * PAGE, PROT_READ | PROT_WRITE,
			      MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0));
	say("same address %d", p == r + 5 * PAGE);
	say("zero %d", all_are(p, 30 * PAGE, 0));
	memset(p, 7, 30 * PAGE);
	quiet_claim(p, 30 * PAGE, "registered");
	quiet_point("fixed");
	MAP_AS("noreplace taken",
	       mmap(p + PAGE, PAGE, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0));
	CALL(munmap(p + 10 * PAGE, 10 * PAGE));
	p = MAP_AS("noreplace free", mmap(r + 15 * PAGE, 10 * PAGE, PROT_READ | PROT_WRITE,
					  MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0));
	say("same address %d", p == r + 15 * PAGE);
	MAP_AS("fixed, bad fd, over a mapping", mmap(p, PAGE, PROT_READ, MAP_PRIVATE | MAP_FIXED, 12345, 0));
	p[0] = 3;
	say("mapping is still there %d %d", p[0], r[5 * PAGE]);
	quiet_claim(p, 10 * PAGE, "registered");
	quiet_point("after a failed call");
	/* The hint of a mapping without MAP_FIXED is taken where it is free. */
	CALL(munmap(p, 10 * PAGE));
	char *h = mmap(r + 15 * PAGE, PAGE, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	say("hint %d", h == r + 15 * PAGE);
	CALL(munmap(r, 64 * PAGE));
	quiet_point("gone");
}

static void partial(void)
{
	char *p = anon(100);
	memset(p, 5, 100 * PAGE);
	for (size_t i = 1; i < 100; i += 3)
		NEED(munmap(p + i * PAGE, PAGE) == 0);
	quiet_point("holes");
	bool fine = true;
	for (size_t i = 0; i < 100; i++)
		if (i % 3 != 1)
			fine &= all_are(p + i * PAGE, PAGE, 5);
	say("contents %d", fine);
	in_child("read of a hole", touch_read, p + PAGE);
	CALL(munmap(p, 100 * PAGE));
}

/* A private file mapping, and writes that stay private. */
static void file(void)
{
	int fd = memory_file(8 * PAGE);
	char *s = MAP_AS("shared", mmap(NULL, 8 * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0));
	char *p = MAP_AS("private", mmap(NULL, 8 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE, fd, 0));
	char *r = MAP_AS("read-only", mmap(NULL, 8 * PAGE, PROT_READ, MAP_PRIVATE, fd, 0));
	memset(p, 9, 2 * PAGE);
	say("file untouched %d", s[0] == 0 && r[0] == 0);
	s[7 * PAGE] = 4;
	say("others see it %d", r[7 * PAGE] == 4);
	quiet_claim(s, 8 * PAGE, "registered");
	quiet_claim(p, 8 * PAGE, "registered");
	quiet_claim(r, 8 * PAGE, "registered");
	quiet_point("file");
}

int main(void)
{
	quiet_point("start");
	flags();
	errors();
	fixed();
	partial();
	file();
	quiet_point("end");
	return 0;
}
