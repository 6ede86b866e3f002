/* Proves: mremap grows, shrinks, moves and fails as without the shim. */
#include "check.h"

#ifndef SYS_mseal
#define SYS_mseal 462
#endif
#ifndef MREMAP_DONTUNMAP
#define MREMAP_DONTUNMAP 4
#endif

/* What is refused changes nothing. (failing.c says what it costs.) */
static void refused(void)
{
	char *p = anon(3);
	memset(p, 'r', 2 * PAGE);
	NEED(mprotect(p + 2 * PAGE, PAGE, PROT_READ) == 0);
	for (int i = 0; i < 100; i++) {
		NEED(mremap(p, 2 * PAGE, 4 * PAGE, 0) == MAP_FAILED && errno == ENOMEM);
		NEED(mremap(p, 3 * PAGE, 5 * PAGE, MREMAP_MAYMOVE) == MAP_FAILED && errno == EFAULT);
		NEED(mremap(p, PAGE, PAGE, MREMAP_FIXED, p + 2 * PAGE) == MAP_FAILED && errno == EINVAL);
	}
	say("contents %d", all_are(p, 2 * PAGE, 'r'));
	quiet_claim(p, 3 * PAGE, "registered");
	quiet_point("refused");
}

/* Memory that some calls have made several mappings moves as a whole or not at all: what lies
 * behind its target is not touched, and a refusal leaves all of it where it is. What the kernel
 * makes of such calls depends on its version: only what must never be is said. */
static void moved_in_pieces(void)
{
	char *from = anon(16), *to = anon(16), *behind = to + 4 * PAGE;
	for (size_t i = 0; i < 8; i++) {
		/* Written one by one, they are pinned one by one. */
		NEED(mmap(from + i * PAGE, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == from + i * PAGE);
		from[i * PAGE] = 's';
		if (i % 3 == 2)
			NEED(madvise(from + i * PAGE, PAGE, MADV_DONTDUMP) == 0);
	}
	memset(behind, 'N', 12 * PAGE);
	void *moved = mremap(from, 8 * PAGE, 4 * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, to);
	size_t wrong = 0;
	for (size_t i = 0; i < 4; i++)
		wrong += (moved == MAP_FAILED ? from : to)[i * PAGE] != 's';
	say("cut and moved: %zu pages wrong, what lies behind %s", wrong, all_are(behind, 12 * PAGE, 'N') ? "untouched" : "OVERWRITTEN");
	quiet_claim(behind, 12 * PAGE, "registered");
	quiet_point("cut and moved");
}

/* Linux 6.17 moves what is on both sides of a hole, and leaves alone what is behind that. */
static void moved_over_a_hole(void)
{
	char *from = anon(8), *to = anon(8);
	memset(from, 's', 8 * PAGE);
	memset(to, 't', 8 * PAGE);
	NEED(munmap(from + 4 * PAGE, PAGE) == 0);
	if (mremap(from, 8 * PAGE, 8 * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, to) == to) {
		say("over a hole: %c%c%c", to[0], to[4 * PAGE], to[5 * PAGE]);
		quiet_claim(to, 8 * PAGE, "registered");
	}
	quiet_point("moved over a hole");
}

/* What is sealed stays, and Linux 6.17 has moved what is in front of it. */
static void moved_until_sealed(void)
{
	char *from = anon(8), *to = anon(8);
	memset(from, 's', 8 * PAGE);
	memset(to, 't', 8 * PAGE);
	if (syscall(SYS_mseal, from + 4 * PAGE, 4 * PAGE, 0) != 0)
		return;
	MAP_AS("sealed in part", mremap(from, 8 * PAGE, 8 * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, to));
	quiet_point("sealed in part");
}

/* The last pages can't be moved. */
static void refused_half_way(void)
{
	char *p = anon(4);
	for (size_t i = 0; i < 4; i++)
		p[i * PAGE] = (char)(i + 1);
	NEED(madvise(p + 2 * PAGE, 2 * PAGE, MADV_DONTFORK) == 0);
	bool sealed = syscall(SYS_mseal, p + 2 * PAGE, 2 * PAGE, 0) == 0;
	char *q = mremap(p, 4 * PAGE, 8 * PAGE, MREMAP_MAYMOVE);
	if (q == MAP_FAILED)
		q = p;
	else if (sealed)
		say("sealed memory has MOVED");
	size_t wrong = 0;
	for (size_t i = 0; i < 4; i++)
		wrong += q[i * PAGE] != (char)(i + 1);
	say("refused half-way: %zu pages wrong", wrong);
	quiet_point("refused half-way");
}

/* A mapping with the number of each page in its first byte. */
static char *numbered(size_t pages)
{
	char *p = anon(pages);
	for (size_t i = 0; i < pages; i++)
		p[i * PAGE] = (char)(i + 1);
	return p;
}

static bool is_numbered(const char *p, size_t pages)
{
	for (size_t i = 0; i < pages; i++)
		if (p[i * PAGE] != (char)(i + 1))
			return false;
	return true;
}

/* What the program has made several mappings by what it said of a part is several mappings. */
static void divided(void)
{
	static const int kinds[][2] = {
		{ MADV_RANDOM, MADV_NORMAL },	    { MADV_SEQUENTIAL, MADV_NORMAL },	 { MADV_DONTDUMP, MADV_DODUMP },
		{ MADV_HUGEPAGE, MADV_NOHUGEPAGE }, { MADV_NOHUGEPAGE, MADV_HUGEPAGE },	 { MADV_MERGEABLE, MADV_UNMERGEABLE },
		{ MADV_DONTFORK, MADV_DOFORK },	    { MADV_WIPEONFORK, MADV_KEEPONFORK },
	};
	for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
		char *p = numbered(8);
		CALL_AS("advice", madvise(p + 4 * PAGE, 4 * PAGE, kinds[i][0]));
		char *q = MAP_AS("grow what is divided", mremap(p, 8 * PAGE, 64 * PAGE, MREMAP_MAYMOVE));
		if (q != MAP_FAILED)
			p = q;
		/* On all of it, it is one again. */
		CALL_AS("advice", madvise(p, 4 * PAGE, kinds[i][0]));
		q = MAP_AS("grow what is one", mremap(p, 8 * PAGE, 64 * PAGE, MREMAP_MAYMOVE));
		if (q != MAP_FAILED)
			p = q;
		CALL_AS("other advice", madvise(p, 4 * PAGE, kinds[i][1]));
		MAP_AS("grow what is divided", mremap(p, 8 * PAGE, 128 * PAGE, MREMAP_MAYMOVE));
		say("contents %d", is_numbered(p, 8));
		quiet_point("divided");
	}
}

/* The kernel takes the application's lock from all of the mapping that MREMAP_DONTUNMAP moves a part
 * of, and from no other. */
static void unlocked_around(unsigned how)
{
	char *p = reserve(34) + PAGE;
	NEED(mprotect(p, 32 * PAGE, PROT_READ | PROT_WRITE) == 0);
	memset(p, 'l', 32 * PAGE);
	NEED(mlock2(p, 16 * PAGE, how) == 0 && mlock2(p + 20 * PAGE, 12 * PAGE, how) == 0);
	char *q = MAP_AS("dontunmap, locked",
			 mremap(p + 4 * PAGE, 2 * PAGE, 2 * PAGE, MREMAP_MAYMOVE | MREMAP_DONTUNMAP, NULL));
	CALL_AS("msync before", msync(p, 4 * PAGE, MS_INVALIDATE));
	CALL_AS("msync of what stays", msync(p + 4 * PAGE, 2 * PAGE, MS_INVALIDATE));
	CALL_AS("msync behind", msync(p + 6 * PAGE, 14 * PAGE, MS_INVALIDATE));
	CALL_AS("msync of another", msync(p + 20 * PAGE, 12 * PAGE, MS_INVALIDATE));
	CALL_AS("msync of what moved", msync(q, 2 * PAGE, MS_INVALIDATE));
	quiet_claim(p, 32 * PAGE, "registered");
	quiet_claim(q, 2 * PAGE, "registered");
	quiet_point("dontunmap, locked");
}

/* What is locked in two ways, or in part, is two mappings. */
static void locked_in_two_ways(void)
{
	for (int n = 0; n < 4; n++) {
		char *p = reserve(10) + PAGE;
		NEED(mprotect(p, 8 * PAGE, PROT_READ | PROT_WRITE) == 0);
		memset(p, 'w', 8 * PAGE);
		NEED(mlock2(p, 4 * PAGE, n & 1 ? MLOCK_ONFAULT : 0) == 0);
		if (n & 2)
			NEED(mlock2(p + 4 * PAGE, 4 * PAGE, n & 1 ? 0 : MLOCK_ONFAULT) == 0);
		char label[64];
		snprintf(label, sizeof label, "grow what is locked in two ways, %d", n);
		MAP_AS(label, mremap(p, 8 * PAGE, 16 * PAGE, MREMAP_MAYMOVE));
		CALL_AS("msync", msync(p, 4 * PAGE, MS_INVALIDATE));
		quiet_claim(p, 8 * PAGE, "registered");
		quiet_point(label);
	}
}

int main(void)
{
	divided();
	unlocked_around(0);
	unlocked_around(MLOCK_ONFAULT);
	locked_in_two_ways();
	moved_in_pieces();
	refused_half_way();
	moved_over_a_hole();
	moved_until_sealed();
	char *p = numbered(8);
	CALL_AS("shrink", mremap(p, 8 * PAGE, 3 * PAGE, 0) == p ? 0 : -1);
	in_child("read behind", touch_read, p + 3 * PAGE);
	quiet_claim(p, 3 * PAGE, "registered");
	quiet_point("shrunk");
	char *q = MAP_AS("grow", mremap(p, 3 * PAGE, 50 * PAGE, MREMAP_MAYMOVE));
	say("contents %d new part zero %d", is_numbered(q, 3), all_are(q + 3 * PAGE, 47 * PAGE, 0));
	quiet_claim(q, 50 * PAGE, "registered");
	quiet_point("grown");
	CALL(munmap(q, 50 * PAGE));

	/* No room behind and no leave to move. */
	char *r = reserve(20);
	NEED(mprotect(r, 4 * PAGE, PROT_READ | PROT_WRITE) == 0);
	memset(r, 6, 4 * PAGE);
	MAP_AS("grow in place, no room", mremap(r, 4 * PAGE, 8 * PAGE, 0));
	say("contents %d", all_are(r, 4 * PAGE, 6));
	quiet_claim(r, 4 * PAGE, "registered");
	quiet_claim(r + 4 * PAGE, 16 * PAGE, "no-access");
	quiet_point("not grown");

	/* In place, where there is room. */
	CALL(munmap(r + 4 * PAGE, 16 * PAGE));
	CALL_AS("grow in place", mremap(r, 4 * PAGE, 8 * PAGE, 0) == r ? 0 : -1);

	/* Onto a place that is taken. */
	char *target = anon(20);
	memset(target, 1, 20 * PAGE);
	q = MAP_AS("fixed", mremap(r, 8 * PAGE, 8 * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, target + 5 * PAGE));
	say("there %d contents %d around %d", q == target + 5 * PAGE, all_are(q, 4 * PAGE, 6),
	    all_are(target, 5 * PAGE, 1) && all_are(target + 13 * PAGE, 7 * PAGE, 1));
	in_child("read of the source", touch_read, r);
	quiet_claim(target, 20 * PAGE, "registered");
	quiet_point("moved");
	q = MAP_AS("fixed and shrunk", mremap(q, 8 * PAGE, 2 * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, target));
	say("contents %d", all_are(target, 2 * PAGE, 6));
	in_child("read of the rest", touch_read, target + 9 * PAGE);
	quiet_point("moved and shrunk");

	/* The source stays, empty. */
	p = numbered(8);
	q = MAP_AS("dontunmap", mremap(p, 8 * PAGE, 8 * PAGE, MREMAP_MAYMOVE | MREMAP_DONTUNMAP, NULL));
	say("moved %d contents %d source zero %d", q != p, is_numbered(q, 8), all_are(p, 8 * PAGE, 0));
	quiet_claim(p, 8 * PAGE, "registered");
	quiet_claim(q, 8 * PAGE, "registered");
	quiet_point("dontunmap");
	MAP_AS("dontunmap, other size", mremap(p, 8 * PAGE, 9 * PAGE, MREMAP_MAYMOVE | MREMAP_DONTUNMAP, NULL));
	MAP_AS("dontunmap alone", mremap(p, 8 * PAGE, 8 * PAGE, MREMAP_DONTUNMAP, NULL));
	q = MAP_AS("dontunmap fixed",
		   mremap(q, 8 * PAGE, 8 * PAGE, MREMAP_MAYMOVE | MREMAP_DONTUNMAP | MREMAP_FIXED, target));
	say("contents %d", is_numbered(target, 8));

	/* old size 0: a second view of shared memory, an error for private. */
	char *s = mmap(NULL, 4 * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	NEED(s != MAP_FAILED);
	s[0] = 42;
	q = MAP_AS("old size 0, shared", mremap(s, 0, 4 * PAGE, MREMAP_MAYMOVE));
	q[1] = 43;
	say("same memory %d %d", q[0], s[1]);
	quiet_claim(s, 4 * PAGE, "registered");
	quiet_claim(q, 4 * PAGE, "registered");
	quiet_point("two views");
	MAP_AS("old size 0, private", mremap(p, 0, 4 * PAGE, MREMAP_MAYMOVE));

	/* Files, past their end. */
	int fd = memory_file(2 * PAGE);
	q = mmap(NULL, 2 * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	q = MAP_AS("file past its end", mremap(q, 2 * PAGE, 6 * PAGE, MREMAP_MAYMOVE));
	in_child("read past the end", touch_read, q + 3 * PAGE);
	quiet_claim(q, 2 * PAGE, "registered");
	quiet_point("tail");
	NEED(ftruncate(fd, 6 * (off_t)PAGE) == 0);
	in_child("read once it has grown", touch_read, q + 3 * PAGE);
	CALL(munmap(q, 6 * PAGE)); /* what is said of it would be from before it grew */

	/* A stack beside plain memory: one mapping to some kernels. */
	p = reserve(8);
	int fixed = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED;
	NEED(mmap(p, 4 * PAGE, PROT_READ | PROT_WRITE, fixed, -1, 0) == p);
	NEED(mmap(p + 4 * PAGE, 4 * PAGE, PROT_READ | PROT_WRITE, fixed | MAP_STACK, -1, 0) == p + 4 * PAGE);
	MAP_AS("stack beside plain", mremap(p, 8 * PAGE, 16 * PAGE, MREMAP_MAYMOVE));

	/* Errors. */
	p = anon(8);
	MAP_AS("new size 0", mremap(p, PAGE, 0, 0));
	MAP_AS("unaligned", mremap(p + 1, PAGE, 2 * PAGE, MREMAP_MAYMOVE));
	MAP_AS("unknown flag", mremap(p, PAGE, 2 * PAGE, 1 << 10));
	MAP_AS("fixed without maymove", mremap(p, PAGE, PAGE, MREMAP_FIXED, target));
	MAP_AS("fixed unaligned", mremap(p, PAGE, PAGE, MREMAP_FIXED | MREMAP_MAYMOVE, target + 1));
	MAP_AS("fixed overlapping", mremap(p, 4 * PAGE, 4 * PAGE, MREMAP_FIXED | MREMAP_MAYMOVE, p + 2 * PAGE));
	MAP_AS("not mapped", mremap((void *)PAGE, PAGE, 2 * PAGE, MREMAP_MAYMOVE));
	NEED(munmap(p + 4 * PAGE, PAGE) == 0);
	MAP_AS("over a hole", mremap(p, 8 * PAGE, 16 * PAGE, MREMAP_MAYMOVE));
	MAP_AS("too large", mremap(p, PAGE, 1ul << 47, MREMAP_MAYMOVE));
	say("contents %d", all_are(p, 4 * PAGE, 0));
	quiet_claim(p, 4 * PAGE, "registered");
	quiet_point("end");
	refused();
	return 0;
}
