/* Proves: with REGALL_PIN=auto a request for much is served by one region; a hole in it costs little, and memory that was cut has small regions from then on; an adapter reaches what is there, all the time. */
#include "reaches.h"

#define MIB (1ul << 20)
#define LARGE (320 * MIB)
#define SMALL (64 * MIB)

static struct rig r;

/* What one region holds of `p` on, up to `end`; 0: none does. */
static size_t region_at(char *p, char *end)
{
	int (*lookup)(const void *, const void *, size_t, struct regall_range *) =
		(int (*)(const void *, const void *, size_t, struct regall_range *))dlsym(RTLD_DEFAULT, "regall_lookup");
	struct regall_range range;
	PROMISE(lookup && lookup(r.pd, p, PAGE, &range) == 0);
	if (range.lkey == 0)
		return 0;
	char *upto = (char *)range.end;
	return (size_t)((upto < end ? upto : end) - p);
}

struct held {
	size_t bytes, regions, largest;
};

/* What regions hold of the memory. */
static struct held held_of(char *p, size_t len)
{
	struct held held = { 0, 0, 0 };
	for (char *at = p, *end = p + len; at < end;) {
		size_t bytes = region_at(at, end);
		held.bytes += bytes;
		held.regions += bytes != 0;
		if (bytes > held.largest)
			held.largest = bytes;
		at += bytes != 0 ? bytes : PAGE;
	}
	return held;
}

static void works(const char *label, char *p)
{
	reaches(&r, label, p, PAGE);
}

/* Memory in one region, as it was asked for. */
static char *asked_for(const char *label, size_t len, bool touched)
{
	char *p = island(len / PAGE);
	if (touched)
		memset(p, 'x', len);
	struct ibv_mr *mr = reg(label, r.pd, p, len, ALL);
	NEED(mr);
	if (shimmed()) {
		struct held held = held_of(p, len);
		PROMISE(held.bytes == len && held.regions == 1);
	}
	char *end = p + len - PAGE;
	memset(end, 'c', PAGE);
	bool good = get(&r, end, mr->rkey, PAGE) == IBV_WC_SUCCESS && all_are(r.buf, PAGE, 'c');
	say("%s: its end %s", label, good ? "works" : "DOES NOT WORK");
	dereg(label, mr);
	return p;
}

/* What was touched before an adapter heard of it is found to be resident, and has regions that keep little. */
static void found(void)
{
	char *p = island(LARGE / PAGE);
	memset(p, 'x', LARGE);
	if (shimmed()) {
		PROMISE(call_audit());
		struct held held = held_of(p, LARGE);
		PROMISE(held.bytes == LARGE && held.largest <= SMALL);
	}
	works("found", p + LARGE / 3);
	NEED(munmap(p, LARGE) == 0);
}

/* A part of it is replaced by other pages, and one is unmapped. */
static void cut(char *p, size_t len)
{
	char *middle = p + len / 2;
	NEED(madvise(middle, PAGE, MADV_DONTNEED) == 0);
	if (shimmed()) {
		struct held held = held_of(p, len);
		/* The hole itself, and what is next to it. */
		PROMISE(held.bytes >= SMALL / 2 && held.bytes <= SMALL + PAGE);
		PROMISE(region_at(p, p + len) == 0);
	}
	works("before the hole", middle - PAGE);
	works("the hole", middle);
	works("behind it", middle + PAGE);
	works("far from it", p);
	works("at the end", p + len - PAGE);
	if (shimmed()) {
		PROMISE(call_audit());
		struct held held = held_of(p, len);
		PROMISE(held.bytes == len && held.largest <= SMALL);
	}
	char *page = p + len / 4;
	NEED(munmap(page, PAGE) == 0);
	works("before what is unmapped", page - PAGE);
	works("behind what is unmapped", page + PAGE);
	if (shimmed()) {
		PROMISE(held_of(p, len / 4).bytes == len / 4 && held_of(page + PAGE, len / 4).bytes == len / 4);
	}
}

int main(void)
{
	r = rig();
	works("a page", island(1));
	char *p = asked_for("untouched", LARGE, false);
	NEED(munmap(p, LARGE) == 0);
	found();
	p = asked_for("touched", LARGE, true);
	cut(p, LARGE);
	NEED(munmap(p, LARGE) == 0);
	/* What comes to lie there is large again. */
	p = asked_for("again", LARGE, true);
	NEED(munmap(p, LARGE) == 0);
	rig_down(&r);
	return wrong;
}
