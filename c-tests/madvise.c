/* Proves: every madvise has the effect and the errno that it has without the shim, locked or not. */
#include "check.h"

#ifndef MADV_DONTNEED_LOCKED
#define MADV_DONTNEED_LOCKED 24
#endif
#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25
#endif
#define MADV_GUARD_INSTALL_ 102
#define MADV_GUARD_REMOVE_ 103

static void contents(void)
{
	char *p = anon(16);
	memset(p, 7, 16 * PAGE);
	CALL(madvise(p + 4 * PAGE, 8 * PAGE, MADV_DONTNEED));
	say("zeroed %d around %d", all_are(p + 4 * PAGE, 8 * PAGE, 0),
	    all_are(p, 4 * PAGE, 7) && all_are(p + 12 * PAGE, 4 * PAGE, 7));
	quiet_claim(p, 16 * PAGE, "registered");
	quiet_point("dontneed");
	CALL(posix_madvise(p, PAGE, POSIX_MADV_WILLNEED));
	CALL(posix_madvise(p, PAGE, POSIX_MADV_DONTNEED)); /* does nothing in glibc */
	say("kept %d", p[0]);
	CALL(madvise(p, 16 * PAGE, MADV_FREE));
	memset(p, 9, PAGE); /* a write after it cancels it */
	say("written %d", all_are(p, PAGE, 9));
	CALL(madvise(p, 16 * PAGE, MADV_COLD));
	CALL(madvise(p, 16 * PAGE, MADV_PAGEOUT));
	say("still there %d", all_are(p, PAGE, 9));
	quiet_claim(p, 16 * PAGE, "registered");
	quiet_point("cold");

	int fd = memory_file(8 * PAGE);
	char *s = mmap(NULL, 8 * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	NEED(s != MAP_FAILED);
	memset(s, 5, 8 * PAGE);
	CALL(madvise(s, 4 * PAGE, MADV_DONTNEED)); /* the file keeps it */
	say("kept %d", all_are(s, 8 * PAGE, 5));
	CALL(madvise(s, 2 * PAGE, MADV_REMOVE));
	say("removed %d rest %d", all_are(s, 2 * PAGE, 0), all_are(s + 2 * PAGE, 6 * PAGE, 5));
	CALL(madvise(p, PAGE, MADV_REMOVE)); /* private */
	quiet_claim(s, 8 * PAGE, "registered");
	quiet_point("remove");

	/* A private view of a file falls back to the file's contents. */
	char *v = mmap(NULL, 8 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE, fd, 0);
	memset(v, 1, 8 * PAGE);
	CALL(madvise(v, 8 * PAGE, MADV_DONTNEED));
	say("file shows %d %d", v[0], v[3 * PAGE]);
}

static void locked(void)
{
	char *p = anon(8);
	memset(p, 6, 8 * PAGE);
	NEED(mlock(p, 4 * PAGE) == 0);
	CALL(madvise(p, PAGE, MADV_DONTNEED));
	CALL(madvise(p, 8 * PAGE, MADV_DONTNEED));
	say("kept %d", all_are(p, 8 * PAGE, 6));
	CALL(madvise(p, PAGE, MADV_FREE));
	CALL(madvise(p, PAGE, MADV_COLD));
	CALL(madvise(p, PAGE, MADV_PAGEOUT));
	CALL(madvise(p + 4 * PAGE, 4 * PAGE, MADV_DONTNEED));
	say("the unlocked half %d", all_are(p + 4 * PAGE, 4 * PAGE, 0));
	CALL(madvise(p, 8 * PAGE, MADV_DONTNEED_LOCKED));
	say("dropped %d", all_are(p, 8 * PAGE, 0));
	quiet_claim(p, 8 * PAGE, "registered");
	quiet_point("locked");
	memset(p, 6, 8 * PAGE);
	NEED(munlock(p, 4 * PAGE) == 0);
	CALL(madvise(p, 8 * PAGE, MADV_DONTNEED));
	say("dropped %d", all_are(p, 8 * PAGE, 0));
	NEED(mlock(p, 8 * PAGE) == 0);
	int fd = memory_file(2 * PAGE);
	char *s = mmap(NULL, 2 * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	NEED(mlock(s, PAGE) == 0);
	CALL(madvise(s, PAGE, MADV_REMOVE));
	CALL(madvise(s + PAGE, PAGE, MADV_REMOVE));
	CALL(munlock(p, 8 * PAGE));
}

struct forked {
	char *kept, *gone, *wiped;
};

static void look(void *arg)
{
	struct forked *f = arg;
	say("child: kept %d wiped %d", f->kept[0], f->wiped[0]);
	quiet_point("child");
	in_child("child: read of what was left out", touch_read, f->gone);
}

static void forks(void)
{
	struct forked f = { anon(4), anon(4), anon(4) };
	memset(f.kept, 1, 4 * PAGE);
	memset(f.gone, 2, 4 * PAGE);
	memset(f.wiped, 3, 4 * PAGE);
	CALL(madvise(f.gone, 4 * PAGE, MADV_DONTFORK));
	CALL(madvise(f.wiped, 4 * PAGE, MADV_WIPEONFORK));
	CALL(madvise(f.kept, 2 * PAGE, MADV_DONTFORK));
	CALL(madvise(f.kept, 4 * PAGE, MADV_DOFORK));
	in_child("child", look, &f);
	say("parent: %d %d %d", f.kept[0], f.gone[0], f.wiped[0]);
	CALL(madvise(f.wiped, 4 * PAGE, MADV_KEEPONFORK));
	CALL(madvise(f.gone, 4 * PAGE, MADV_DOFORK));
	in_child("child", look, &f);
	quiet_point("forks");
}

static void errors(void)
{
	char *p = anon(8);
	NEED(munmap(p + 4 * PAGE, PAGE) == 0);
	memset(p, 1, 4 * PAGE);
	memset(p + 5 * PAGE, 1, 3 * PAGE);
	CALL(madvise(p, 8 * PAGE, MADV_DONTNEED)); /* ENOMEM, and done all the same */
	say("both sides dropped %d", all_are(p, 4 * PAGE, 0) && all_are(p + 5 * PAGE, 3 * PAGE, 0));
	CALL(madvise(p + 1, PAGE, MADV_DONTNEED));
	CALL(madvise(p, 0, MADV_DONTNEED));
	CALL(madvise(p, PAGE, 12345));
	CALL(madvise(p, ~0ul, MADV_DONTNEED));
	CALL(madvise((void *)PAGE, PAGE, MADV_DONTNEED));
	CALL(madvise(p, PAGE, MADV_HWPOISON + 1000));
	for (int advice = 0; advice <= 21; advice++) {
		if (advice == MADV_DONTNEED || advice == MADV_REMOVE || advice == 13 /* KSM */)
			continue;
		char label[32];
		snprintf(label, sizeof label, "advice %d", advice);
		CALL_AS(label, madvise(p, 4 * PAGE, advice));
	}
	madvise(p, 4 * PAGE, MADV_DOFORK);
	madvise(p, 4 * PAGE, MADV_KEEPONFORK);
	quiet_point("errors");
}

static void populate(void)
{
	char *p = anon(8);
	CALL(madvise(p, 8 * PAGE, 22)); /* MADV_POPULATE_READ */
	CALL(madvise(p, 8 * PAGE, 23)); /* MADV_POPULATE_WRITE */
	NEED(mprotect(p, PAGE, PROT_NONE) == 0);
	CALL(madvise(p, 8 * PAGE, 23));
	CALL(madvise(p + PAGE, PAGE, MADV_GUARD_INSTALL_));
	in_child("read of a guard", touch_read, p + PAGE);
	quiet_point("guard");
	CALL(madvise(p + PAGE, PAGE, MADV_GUARD_REMOVE_));
	in_child("read of none", touch_read, p + PAGE);
	quiet_point("no guard");
}

int main(void)
{
	contents();
	locked();
	forks();
	errors();
	populate();
	quiet_point("end");
	return 0;
}
