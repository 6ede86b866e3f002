/* Proves: with REGALL_PIN=auto a domain makes nothing large resident that nobody has touched, answers every request, and registers what has been touched. */
#include <sys/mount.h>
#include "reaches.h"

#define MIB (1ul << 20)
#define LARGE (256 * MIB)

static struct rig r;

static long rss(void)
{
	return status_of("VmRSS") >> 10;
}

/* Whether a region of the protection domain holds it; nothing is registered by looking. */
static bool in(struct ibv_pd *pd, char *p, size_t len)
{
	int (*lookup)(const void *, const void *, size_t, struct regall_range *) =
		(int (*)(const void *, const void *, size_t, struct regall_range *))dlsym(RTLD_DEFAULT,
											    "regall_lookup");
	struct regall_range range;
	PROMISE(lookup && lookup(pd, p, len, &range) == 0);
	/* There is no swap space: it is held, whatever the adapter has. */
	PROMISE(range.held & REGALL_HELD_KEPT);
	return range.lkey != 0;
}

static bool held(char *p, size_t len)
{
	return in(r.pd, p, len);
}

/* The same of each page: regions meet at multiples of their size, wherever the memory lies. */
static bool each_held(char *p, size_t len)
{
	for (size_t at = 0; at < len; at += PAGE)
		if (!held(p + at, PAGE))
			return false;
	return true;
}

static void works(const char *label, char *p, size_t len)
{
	reaches(&r, label, p, len);
}

/* What was only read is the zero page: registered, it would become memory. */
static void reads(char *p)
{
	unsigned long sum = 0;
	for (size_t at = 0; at < 16 * MIB; at += PAGE)
		sum += (unsigned char)((volatile char *)p)[at];
	long before = rss();
	say("zeroes: %lu", sum);
	if (shimmed()) {
		PROMISE(call_audit());
		PROMISE(!held(p, PAGE) && !held(p + 8 * MIB, PAGE));
	}
	say("read: %s", rss() - before < 8 ? "small" : "LARGE");
}

/* Requests for parts of four sparse files, on a file system that has room for what is touched
 * of them, and not for all of them. */
static void sparse(void)
{
	char folder[] = "/tmp/regall-sparse-XXXXXX";
	NEED(mkdtemp(folder));
	NEED(mount("none", folder, "tmpfs", 0, "size=16m") == 0);
	char *at[4];
	for (int i = 0; i < 4; i++) {
		char path[64];
		snprintf(path, sizeof path, "%s/%d", folder, i);
		int fd = open(path, O_RDWR | O_CREAT | O_EXCL, 0600);
		NEED(fd >= 0 && ftruncate(fd, 7 * MIB) == 0);
		at[i] = mmap(NULL, 7 * MIB, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
		NEED(at[i] != MAP_FAILED);
		struct ibv_mr *mr = reg("a sparse file", r.pd, at[i] + MIB, PAGE, ALL);
		dereg("a sparse file", mr);
		struct stat s;
		NEED(fstat(fd, &s) == 0);
		say("%d: %s", i, s.st_blocks <= 8 * 64 ? "sparse" : "FILLED");
		close(fd);
	}
	for (int i = 0; i < 4; i++) {
		memset(at[i] + MIB, 'x', 3 * MIB);
		NEED(munmap(at[i], 7 * MIB) == 0);
	}
	NEED(umount(folder) == 0 && rmdir(folder) == 0);
}

/* What adapters have resident untouched is bounded together, as long as it is untouched. */
static void many_small(void)
{
	enum { MOST = 64 };
	size_t bytes = 8 * MIB;
	char *all[MOST];
	int n = 0;
	while (n < MOST) {
		char *p = all[n++] = island(bytes / PAGE);
		if (!held(p, bytes))
			break;
	}
	PROMISE(n > 1 && n < MOST);
	for (int i = 0; i < n - 1; i++)
		memset(all[i], 'x', bytes);
	/* A request is what has the shim look again. */
	bool again = false;
	for (int i = 0; i < 20 && !again; i++) {
		usleep(60 * 1000);
		PROMISE(call_audit());
		char *p = island(bytes / PAGE);
		again = held(p, bytes);
		NEED(munmap(p, bytes) == 0);
	}
	PROMISE(again);
	for (int i = 0; i < n; i++)
		NEED(munmap(all[i], bytes) == 0);
}

/* Mappings of 1 MiB that every domain holds at once, untouched, before one waits. */
static int held_at_once(struct ibv_pd *second)
{
	enum { MOST = 512 };
	static char *all[MOST];
	int n = 0;
	for (bool there = true; there && n < MOST; n++) {
		all[n] = island(MIB / PAGE);
		there = in(r.pd, all[n], MIB) && (!second || in(second, all[n], MIB));
	}
	for (int i = 0; i < n; i++)
		NEED(munmap(all[i], MIB) == 0);
	return n;
}

/* Memory that a second adapter registers, too, is resident once. */
static void counted_once(void)
{
	int alone = held_at_once(NULL);
	struct rig other = rig_with(ADAPTER("1"), ALL);
	PROMISE(in(other.pd, other.buf, BUFFER));
	int both = held_at_once(other.pd);
	PROMISE(alone > 8 && alone < 512 && both > alone * 3 / 4);
	rig_down(&other);
}

/* What the program registers itself is no memory that is resident for the shim's sake alone. */
static void asked_for(void)
{
	int n = 2 * held_at_once(NULL), held_all = 0;
	char **all = calloc((size_t)n, sizeof *all);
	struct ibv_mr **mr = calloc((size_t)n, sizeof *mr);
	NEED(all && mr);
	for (int i = 0; i < n; i++) {
		all[i] = island(MIB / PAGE);
		held_all += held(all[i], MIB);
		mr[i] = ibv_reg_mr(r.pd, all[i], MIB, ALL);
		NEED(mr[i]);
	}
	PROMISE(held_all == n);
	for (int i = 0; i < n; i++) {
		NEED(ibv_dereg_mr(mr[i]) == 0);
		NEED(munmap(all[i], MIB) == 0);
	}
	free(all);
	free(mr);
}

/* Text, of which adapters get copies, leaves room for memory that is written. */
static void text_leaves_room(void)
{
	enum { MOST = 32 };
	size_t bytes = 8 * MIB;
	FILE *file = tmpfile();
	NEED(file && ftruncate(fileno(file), (off_t)bytes) == 0);
	char *all[MOST];
	int n = 0;
	for (bool there = true; there && n < MOST; n++) {
		all[n] = mmap(NULL, bytes, PROT_READ, MAP_PRIVATE, fileno(file), 0);
		NEED(all[n] != MAP_FAILED);
		there = held(all[n], bytes);
	}
	PROMISE(n < MOST && held_at_once(NULL) > 8);
	for (int i = 0; i < n; i++)
		NEED(munmap(all[i], bytes) == 0);
	fclose(file);
}

/* What can't be written is registered for who asks for it by the C interface, and for nobody else. */
static void not_to_be_written(char *p)
{
	int (*ask)(void *, const void *, size_t, struct regall_range *) =
		(int (*)(void *, const void *, size_t, struct regall_range *))dlsym(RTLD_DEFAULT, "regall_register");
	struct regall_range range = { 0 };
	char *middle = p + 4 * PAGE;
	memset(p, 'r', 16 * PAGE);
	NEED(mprotect(middle, 4 * PAGE, PROT_READ) == 0);
	if (shimmed()) {
		PROMISE(held(p, 4 * PAGE) && !held(middle, PAGE) && held(p + 8 * PAGE, 8 * PAGE));
		PROMISE(ask && ask(r.pd, middle, 4 * PAGE, &range) == 0 && range.lkey != 0);
	}
	NEED(mprotect(middle, 4 * PAGE, PROT_READ | PROT_WRITE) == 0);
	if (shimmed())
		PROMISE(each_held(p, 16 * PAGE));
	works("written again", p, 16 * PAGE);
}

int main(void)
{
	r = rig();
	long before = rss();
	char *p = island(LARGE / PAGE);
	say("mapped: %s", rss() - before < 48 ? "small" : "LARGE");
	if (shimmed())
		PROMISE(!held(p, LARGE) && !held(p, PAGE));

	/* Asked for: what is large is small still. */
	works("first page", p, PAGE);
	works("in the middle", p + 100 * MIB + 100, 3 * MIB);
	say("asked: %s", rss() - before < 96 ? "small" : "LARGE");
	if (shimmed()) {
		PROMISE(held(p, PAGE) && held(p + 100 * MIB, 3 * MIB));
		PROMISE(!held(p + 200 * MIB, PAGE));
	}

	/* Touched: seen by a request nearby, and by an audit. */
	memset(p + 104 * MIB, 'x', 4 * MIB);
	works("near", p + 103 * MIB, MIB / 2);
	memset(p + 180 * MIB, 'x', 8 * MIB);
	if (shimmed()) {
		PROMISE(each_held(p + 104 * MIB, MIB) && each_held(p + 107 * MIB, MIB / 2));
		PROMISE(call_audit());
		PROMISE(each_held(p + 180 * MIB, 8 * MIB));
		PROMISE(!held(p + 200 * MIB, PAGE));
	}
	say("touched: %s", rss() - before < 128 ? "small" : "LARGE");

	reads(p + 140 * MIB);

	/* Its hole is no one's, and what comes there is untouched again. */
	NEED(munmap(p + 96 * MIB, 32 * MIB) == 0);
	anon_at(p + 96 * MIB, 32 * MIB / PAGE);
	works("again", p + 100 * MIB, PAGE);

	/* What is small is there at once. */
	char *small = island(16);
	if (shimmed())
		PROMISE(held(small, 16 * PAGE));
	not_to_be_written(small);

	sparse();
	if (shimmed()) {
		many_small();
		asked_for();
		text_leaves_room();
		counted_once();
	}

	/* By the C interface: a range, and everything. */
	if (shimmed()) {
		int (*ask)(void *, const void *, size_t, struct regall_range *) =
			(int (*)(void *, const void *, size_t, struct regall_range *))dlsym(RTLD_DEFAULT,
											    "regall_register");
		struct regall_range range;
		PROMISE(ask && ask(r.pd, p + 220 * MIB, MIB, &range) == 0 && range.lkey != 0);
		/* Some of it is registered already. */
		memset(p + 160 * MIB, 'x', 4 * MIB);
		PROMISE(call_audit());
		PROMISE(ask(r.pd, p + 156 * MIB, 12 * MIB, &range) == 0 && range.lkey != 0);
		/* And has been looked up: it keeps its keys, so it is no part of another region. */
		PROMISE(ask(r.pd, p + 176 * MIB, 12 * MIB, &range) == 0 && range.lkey == 0);
		PROMISE(ask(r.pd, p, 0, &range) == -EINVAL && ask(r.pd, p, 1, NULL) == -EINVAL);
		PROMISE(!held(p + 240 * MIB, PAGE));
		int (*all)(void *) = (int (*)(void *))dlsym(RTLD_DEFAULT, "regall_register_all");
		PROMISE(all && all(r.pd) == 0);
		PROMISE(held(p + 240 * MIB, PAGE) && held(p + 8 * MIB, PAGE));
	}
	NEED(munmap(p, LARGE) == 0);
	rig_down(&r);
	return wrong;
}
