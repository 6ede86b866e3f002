/* Proves: regions do what KNEM's do: segments, offsets, ends, rights, ranges, owners, and as many as there may be. */
#include "region.h"

static const char *self;

/* A region's bytes as they should be. */
struct model {
	struct regall_segment segment[SEGMENTS];
	size_t count;
	uint64_t length;
	char *byte[2 * ARENA / 512];
};

static struct model model;
static char *arena;

static void add(char *p, uint64_t len)
{
	model.segment[model.count++] = piece(p, len);
	for (uint64_t i = 0; i < len; i++)
		model.byte[model.length++] = p + i;
}

static void scatter(void)
{
	model.count = model.length = 0;
	add(arena + 10, 5);
	add(arena, 0);
	add(arena + 2 * PAGE + 100, 3000);
	add(arena + 2 * PAGE + 1100, 500); /* once more */
	add(NULL, 0);
	add((char *)1, 0);
	add(arena + 50, 1);
	add(arena + 4 * PAGE - 3, 2 * PAGE + 6);
	for (int i = 0; i < 300; i++)
		add(arena + 8 * PAGE + i * 64, (uint64_t)i % 5);
	add(arena + 16 * PAGE, 0);
}

/* Reads, or writes, with random vectors, and compares each byte. */
static void transfers(struct worker *w, uint64_t cookie, enum ask what)
{
	static char before[32 * PAGE];
	for (int turn = 0; turn < 400; turn++) {
		struct work *k = w->work;
		uint64_t len = 0, at = 0;
		k->cookie = cookie;
		k->offset = turn % 7 == 0 ? model.length - draw(3) : draw(model.length + 5);
		k->count = draw(turn % 5 == 0 ? 300 : 8);
		for (size_t i = 0; i < k->count; i++) {
			uint64_t n = draw(4) ? draw(2000) : 0;
			k->segment[i] = piece(k->buffer + at, n);
			at += n + draw(40);
			len += n;
		}
		fill(k->buffer, at + 64, (uint64_t)turn + 77);
		fill(arena, 32 * PAGE, (uint64_t)turn);
		memcpy(before, arena, 32 * PAGE);
		uint64_t left = k->offset < model.length ? model.length - k->offset : 0;
		uint64_t want = len < left ? len : left, n = 0;
		IS(0, ask(w, what));
		IS(want, k->done.bytes);
		IS(want ? REGALL_COPY_CMA : REGALL_COPY_NONE, k->done.mechanism);
		for (size_t i = 0; i < k->count; i++)
			for (uint64_t j = 0; j < k->segment[i].len; j++, n++) {
				char *local = (char *)(uintptr_t)k->segment[i].addr + j;
				if (what == ASK_READ)
					IS(n < want ? *model.byte[k->offset + n]
						    : byte_of((uint64_t)turn + 77, (uint64_t)(local - k->buffer)),
					   *local);
				else if (n < want)
					before[model.byte[k->offset + n] - arena] = *local;
			}
		HOLDS(memcmp(arena, before, 32 * PAGE) == 0);
		for (uint64_t i = at; i < at + 64; i++)
			IS(byte_of((uint64_t)turn + 77, i), k->buffer[i]);
	}
}

static void semantics(void)
{
	struct worker w = start_worker();
	uint64_t cookie, readable, writable;
	arena = anon(32);
	scatter();
	IS(0, regall_region_create(model.segment, model.count, BOTH, 0, &cookie));
	transfers(&w, cookie, ASK_READ);
	transfers(&w, cookie, ASK_WRITE);
	/* Behind the end: success, and nothing. */
	for (int i = 0; i < 4; i++) {
		static const uint64_t far[] = { 0, 1, 1ul << 40, UINT64_MAX };
		uint64_t offset = far[i] == UINT64_MAX ? far[i] : model.length + far[i];
		IS(0, READ_BY(&w, cookie, offset, 10));
		IS(0, w.work->done.bytes);
		IS(0, WRITE_BY(&w, cookie, offset, 10));
		IS(0, w.work->done.bytes);
	}
	/* Rights. */
	readable = region_of(arena, PAGE, REGALL_REGION_READ, 0);
	writable = region_of(arena, PAGE, REGALL_REGION_WRITE, 0);
	IS(0, READ_BY(&w, readable, 0, 1));
	IS(-EACCES, WRITE_BY(&w, readable, 0, 1));
	IS(0, WRITE_BY(&w, writable, 0, 1));
	IS(-EACCES, READ_BY(&w, writable, 0, 1));
	/* Unknown cookies: one bit wrong, of each that there is. Another pid may be a process
	 * whose directory is being made at this moment. */
	for (int bit = 0; bit < 64; bit++) {
		int e = READ_BY(&w, readable ^ 1ull << bit, 0, 1);
		if (e != -EINVAL && e != -EPERM && e != -EXDEV && e != -ENOEXEC)
			IS(-EINVAL, e);
		if (bit >= 22)
			IS(-EINVAL, e);
	}
	IS(-EINVAL, READ_BY(&w, 0, 0, 1));
	IS(-EINVAL, READ_BY(&w, UINT64_MAX, 0, 1));
	/* Only the owner destroys, once. */
	w.work->cookie = readable;
	IS(-EPERM, ask(&w, ASK_DESTROY));
	IS(0, READ_BY(&w, readable, 0, 1));
	IS(0, regall_region_destroy(readable));
	IS(-EINVAL, regall_region_destroy(readable));
	IS(-EINVAL, READ_BY(&w, readable, 0, 1));
	IS(-EINVAL, WRITE_BY(&w, readable, 0, 1));
	IS(0, regall_region_destroy(writable));
	IS(0, regall_region_destroy(cookie));
	IS(-EINVAL, READ_BY(&w, cookie, 0, 1));
	IS(-EINVAL, READ_BY(&w, cookie, UINT64_MAX, 1));
	/* A worker's own region, by its own hand and by ours. */
	w.work->count = 1;
	w.work->prot = BOTH;
	w.work->flags = 0;
	w.work->segment[0] = piece(NULL, 100);
	IS(0, ask(&w, ASK_CREATE));
	cookie = w.work->cookie;
	IS(0, READ_BY(&w, cookie, 0, 200));
	IS(100, w.work->done.bytes);
	IS(-EPERM, regall_region_destroy(cookie));
	w.work->cookie = cookie;
	IS(0, ask(&w, ASK_DESTROY));
	end_worker(&w);
	/* NULL, and `done` that nobody asked for. */
	cookie = region_of(arena, PAGE, BOTH, 0);
	struct regall_segment s = piece(arena + PAGE, 10);
	IS(-EINVAL, regall_region_read(cookie, 0, NULL, 1, NULL));
	IS(-EINVAL, regall_region_write(cookie, 0, NULL, 1, NULL));
	IS(0, regall_region_read(cookie, 0, NULL, 0, NULL));
	IS(0, regall_region_read(cookie, 0, &s, 1, NULL));
	s = piece((void *)0x1000, 10);
	IS(-EFAULT, regall_region_read(cookie, 0, &s, 1, NULL));
	IS(0, regall_region_destroy(cookie));
}

/* What create refuses, and that nothing comes of it. */
static void refusals(void)
{
	struct regall_segment s[3];
	uint64_t cookie = 42;
	char *p = anon(8), *hole = anon(3), *out = anon(1), *constant = anon(1);
	/* The first region takes memory, which must not come to be in the hole. */
	IS(0, regall_region_destroy(region_of(p, 1, BOTH, 0)));
	NEED(munmap(hole + PAGE, PAGE) == 0 && mprotect(constant, PAGE, PROT_READ) == 0);
	s[0] = piece(p, 10);
	s[1] = piece(p + PAGE, 10);
	IS(-EINVAL, regall_region_create(s, 0, BOTH, 0, &cookie));
	IS(-EINVAL, regall_region_create(NULL, 1, BOTH, 0, &cookie));
	IS(-EINVAL, regall_region_create(s, 1, BOTH, 0, NULL));
	IS(-EINVAL, regall_region_create(s, 1, 0, 0, &cookie));
	IS(-EINVAL, regall_region_create(s, 1, 4, 0, &cookie));
	IS(-EINVAL, regall_region_create(s, 1, BOTH, 8, &cookie));
	IS(-EOPNOTSUPP, regall_region_create(s, 1, BOTH, REGALL_REGION_ANY_USER, &cookie));
	IS(-EOPNOTSUPP, regall_region_create(s, 1, BOTH, REGALL_REGION_ANY_USER | REGALL_REGION_NOTIFY, &cookie));
	const struct {
		void *p;
		uint64_t len;
		unsigned prot;
	} bad[] = {
		{ hole, 3 * PAGE, REGALL_REGION_READ },
		{ hole + PAGE, 1, REGALL_REGION_READ },
		{ hole + PAGE - 1, 2, REGALL_REGION_READ },
		{ NULL, 1, REGALL_REGION_READ },
		{ (void *)(uintptr_t)-PAGE, 2 * PAGE, REGALL_REGION_READ },
		{ (void *)(uintptr_t)1, UINT64_MAX - 1, REGALL_REGION_READ },
		{ constant, 1, REGALL_REGION_WRITE },
		{ constant, 1, BOTH },
		{ out, 1, REGALL_REGION_READ },
	};
	IS(0, regall_opt_out(out, PAGE));
	for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
		s[0] = s[2] = piece(p, 10);
		s[1] = piece(bad[i].p, bad[i].len);
		int e = regall_region_create(s, 3, bad[i].prot, 0, &cookie);
		if (e != -EFAULT)
			say("bad %zu: %d", i, e), wrong++;
	}
	IS(42, cookie);
	s[1] = piece(constant, 1);
	IS(0, regall_region_create(s, 3, REGALL_REGION_READ, 0, &cookie));
	IS(0, regall_region_destroy(cookie));
	IS(0, regall_opt_in(out, PAGE));
	s[1] = piece(out, PAGE);
	IS(0, regall_region_create(s, 3, REGALL_REGION_READ, 0, &cookie));
	/* Opted out afterwards, it is as if it were not registered. */
	struct worker w = start_worker();
	IS(0, READ_BY(&w, cookie, 0, PAGE));
	IS(0, regall_opt_out(out, PAGE));
	HOLDS(READ_BY(&w, cookie, 0, PAGE) != 0);
	IS(10, w.work->done.bytes);
	end_worker(&w);
	IS(0, regall_region_destroy(cookie));
	/* All of it empty is a region, too. */
	s[0] = piece(NULL, 0);
	IS(0, regall_region_create(s, 1, BOTH, 0, &cookie));
	s[1] = piece(p, 10);
	IS(0, regall_region_read(cookie, 0, &s[1], 1, NULL));
	IS(0, regall_region_destroy(cookie));
}

/* Regions of 1 to 100,000 segments. */
static void segments(void)
{
	static const size_t counts[] = { 1, 2, 16, 17, 1024, 100000, 131072 };
	size_t most = 131073;
	struct regall_segment *s = malloc(most * sizeof *s);
	char *memory = anon(most * 32 / PAGE + 1);
	uint64_t cookie[7];
	struct worker w = start_worker();
	fill(memory, most * 32, 5);
	for (size_t i = 0; i < most; i++)
		s[i] = piece(memory + (most - 1 - i) * 32, 8);
	for (size_t i = 0; i < 6; i++)
		IS(0, regall_region_create(s, counts[i], REGALL_REGION_READ, 0, &cookie[i]));
	for (int turn = 0; turn < 60; turn++) {
		size_t i = draw(6);
		uint64_t offset = turn % 3 ? draw(counts[i] * 8) : 0, all = counts[i] * 8 - offset;
		uint64_t want = draw(2) ? all : 1 + draw(all);
		IS(0, READ_BY(&w, cookie[i], offset, want));
		IS(want, w.work->done.bytes);
		for (uint64_t n = 0; n < want; n++) {
			uint64_t of = offset + n;
			IS(memory[(most - 1 - of / 8) * 32 + of % 8], w.work->buffer[n]);
		}
	}
	for (size_t i = 0; i < 6; i++)
		IS(0, regall_region_destroy(cookie[i]));
	IS(0, regall_region_create(s, counts[6], REGALL_REGION_READ, 0, &cookie[6]));
	IS(0, regall_region_destroy(cookie[6]));
	IS(-ENOSPC, regall_region_create(s, most, REGALL_REGION_READ, 0, &cookie[6]));
	end_worker(&w);
}

/* 30,000 at once, in random order, against a model. */
static void many(void)
{
	enum { AT_ONCE = 30000, SOME = 60000 };
	static uint64_t cookie[AT_ONCE], number[AT_ONCE];
	uint64_t *word = (uint64_t *)anon(2 * AT_ONCE * 8 / PAGE + 1), made = 0;
	struct worker w = start_worker();
	size_t there = 0;
	uint64_t gone = 0;
	for (int turn = 0; turn < AT_ONCE + SOME; turn++) {
		size_t i = turn < AT_ONCE ? (size_t)turn : draw(AT_ONCE);
		if (cookie[i] && draw(2) == 0) {
			gone = cookie[i];
			IS(0, regall_region_destroy(gone));
			cookie[i] = 0;
			there--;
		} else if (!cookie[i]) {
			/* Of one segment, or of some, which lie elsewhere in the table. */
			struct regall_segment s[10];
			size_t n = turn % 3 ? 1 : 10;
			for (size_t k = 0; k < n; k++)
				s[k] = piece(&word[2 * i], k == n - 1 ? 16 : 0);
			number[i] = word[2 * i] = ++made;
			int e = regall_region_create(s, n, REGALL_REGION_READ, 0, &cookie[i]);
			IS(0, e);
			there += e == 0;
		}
		if (turn % 16 == 0 && cookie[i]) {
			IS(0, READ_BY(&w, cookie[i], 0, 64));
			IS(16, w.work->done.bytes);
			IS(number[i], *(uint64_t *)(void *)w.work->buffer);
			IS(-EINVAL, gone ? READ_BY(&w, gone, 0, 64) : -EINVAL);
		}
	}
	HOLDS(there > AT_ONCE / 3);
	for (size_t i = 0; i < AT_ONCE; i++)
		if (cookie[i])
			IS(0, regall_region_destroy(cookie[i]));
	for (size_t i = 0; i < AT_ONCE; i++)
		if (cookie[i])
			IS(-EINVAL, regall_region_destroy(cookie[i]));
	end_worker(&w);
}

/* A program of its own gets the cookie, and nothing else, through a pipe. */
static void third(void)
{
	int way[2];
	char *p = anon(2);
	struct regall_segment s[] = { piece(p + PAGE - 2, 4), piece(p, 3), piece(p + 100, 0), piece(p + 5000, 7) };
	uint64_t cookie;
	memcpy(p + PAGE - 2, "scat", 4);
	memcpy(p, "ter", 3);
	memcpy(p + 5000, "ed here", 7);
	IS(0, regall_region_create(s, 4, REGALL_REGION_READ, 0, &cookie));
	NEED(pipe(way) == 0);
	pid_t reader = fork();
	if (reader == 0) {
		dup2(way[0], 0);
		execl(self, self, "third-reader", (char *)NULL);
		_exit(99);
	}
	NEED(write(way[1], &cookie, sizeof cookie) == sizeof cookie);
	int status = -1;
	NEED(waitpid(reader, &status, 0) == reader);
	IS(0, status);
	IS(0, regall_region_destroy(cookie));
}

static void third_reader(void)
{
	uint64_t cookie;
	char got[32] = "";
	struct regall_segment to[] = { piece(got, 3), piece(got + 3, 20) };
	struct regall_done done;
	NEED(read(0, &cookie, sizeof cookie) == sizeof cookie);
	IS(0, regall_region_read(cookie, 2, to, 2, &done));
	IS(12, done.bytes);
	IS(0, strcmp(got, "attered here"));
	IS(-EACCES, regall_region_write(cookie, 2, to, 2, &done));
	IS(-EPERM, regall_region_destroy(cookie));
}

int main(int argc, char **argv)
{
	static const struct chapter all[] = {
		{ "semantics", semantics }, { "refusals", refusals }, { "segments", segments },
		{ "many", many },	    { "third", third },	      { "third-reader", third_reader },
	};
	self = argv[0];
	return run_chapter(argc, argv, all, sizeof all / sizeof *all, 60);
}
