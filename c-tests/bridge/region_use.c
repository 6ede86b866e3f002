/* Proves: a single use is exactly one; copies between regions are whole whoever owns them; no use is lost that an owner is to be told of. */
#include <poll.h>
#include "region.h"

/* Eight processes that begin at the same moment. */
enum { RACERS = 8, ROUNDS = 1000 };
struct race {
	uint64_t cookie;
	unsigned round, ready, done;
	int answer[RACERS];
	uint64_t bytes[RACERS];
	char got[RACERS][64];
};

static void await(const unsigned *word, unsigned value)
{
	for (unsigned n = 0; __atomic_load_n(word, __ATOMIC_ACQUIRE) != value; n++)
		if (n > 2000)
			sched_yield();
}

static void race_as(volatile struct race *race, int me)
{
	char got[64];
	struct regall_segment to = piece(got, sizeof got);
	struct regall_done done;
	for (unsigned round = 1; round <= ROUNDS; round++) {
		memset(got, 0, sizeof got);
		__atomic_add_fetch(&race->ready, 1, __ATOMIC_ACQ_REL);
		await((const unsigned *)&race->round, round);
		race->answer[me] = regall_region_read(race->cookie, 0, &to, 1, &done);
		race->bytes[me] = done.bytes;
		memcpy((char *)race->got[me], got, sizeof got);
		__atomic_add_fetch(&race->done, 1, __ATOMIC_ACQ_REL);
	}
}

static void single(void)
{
	struct race *race = shared_memory(sizeof *race);
	char *p = anon(1);
	pid_t racer[RACERS];
	for (int i = 0; i < RACERS; i++) {
		racer[i] = fork();
		if (racer[i] == 0) {
			race_as(race, i);
			exit(0);
		}
	}
	unsigned winners[RACERS] = { 0 };
	for (unsigned round = 1; round <= ROUNDS; round++) {
		fill(p, 64, round);
		race->cookie = region_of(p, 64, BOTH, REGALL_REGION_SINGLE_USE);
		await(&race->ready, RACERS);
		race->ready = 0;
		race->done = 0;
		__atomic_store_n(&race->round, round, __ATOMIC_RELEASE);
		await(&race->done, RACERS);
		unsigned won = 0;
		for (int i = 0; i < RACERS; i++) {
			if (race->answer[i]) {
				IS(-EINVAL, race->answer[i]);
				IS(0, race->bytes[i]);
				HOLDS(all_are(race->got[i], 64, 0));
				continue;
			}
			won++;
			winners[i]++;
			IS(64, race->bytes[i]);
			HOLDS(memcmp(race->got[i], p, 64) == 0);
		}
		IS(1, won);
		IS(0, regall_region_destroy(race->cookie));
	}
	for (int i = 0; i < RACERS; i++) {
		int status = -1;
		NEED(waitpid(racer[i], &status, 0) == racer[i]);
		IS(0, status);
	}
}

/* Who may not use it does not use it up. */
static void claims(void)
{
	char *p = anon(2);
	struct worker w = start_worker();
	uint64_t one = region_of(p, 100, REGALL_REGION_READ, REGALL_REGION_SINGLE_USE);
	uint64_t constant = region_of(p + PAGE, 100, REGALL_REGION_READ, 0);
	uint64_t target = region_of(p + PAGE, 100, REGALL_REGION_WRITE, REGALL_REGION_SINGLE_USE);
	IS(-EACCES, WRITE_BY(&w, one, 0, 10));
	IS(-EACCES, READ_BY(&w, target, 0, 10));
	w.work->cookie = one;
	w.work->other = constant;
	w.work->len = 10;
	w.work->offset = w.work->other_offset = 0;
	IS(-EACCES, ask(&w, ASK_COPY));
	w.work->other = constant ^ 1ull << 40;
	IS(-EINVAL, ask(&w, ASK_COPY));
	w.work->other = target;
	IS(0, ask(&w, ASK_COPY));
	IS(10, w.work->done.bytes);
	IS(-EINVAL, READ_BY(&w, one, 0, 10));
	IS(-EINVAL, WRITE_BY(&w, target, 0, 10));
	/* The other one's single use is given back if ours can't be had. */
	uint64_t two = region_of(p, 100, REGALL_REGION_READ, REGALL_REGION_SINGLE_USE);
	w.work->cookie = two;
	w.work->other = target;
	IS(-EINVAL, ask(&w, ASK_COPY));
	IS(0, READ_BY(&w, two, 0, 10));
	IS(-EINVAL, READ_BY(&w, two, 0, 10));
	/* Behind the end is a use. */
	uint64_t three = region_of(p, 100, REGALL_REGION_READ, REGALL_REGION_SINGLE_USE);
	IS(0, READ_BY(&w, three, 100, 10));
	IS(-EINVAL, READ_BY(&w, three, 0, 10));
	/* Used up by the owner itself. */
	uint64_t four = region_of(p, 100, REGALL_REGION_READ, REGALL_REGION_SINGLE_USE);
	struct regall_segment to = piece(p + PAGE, 10);
	IS(0, regall_region_read(four, 0, &to, 1, NULL));
	IS(-EINVAL, regall_region_read(four, 0, &to, 1, NULL));
	IS(-EINVAL, READ_BY(&w, four, 0, 10));
	end_worker(&w);
}

/* A party to a copy: us (NULL) or a worker, with a region of four segments of its arena. */
static char *own_arena;
static uint64_t declare(struct worker *w, unsigned flags, uint64_t length)
{
	struct regall_segment s[4];
	uint64_t base = w ? 0 : (uint64_t)(uintptr_t)own_arena, cookie = 0;
	s[0] = (struct regall_segment){ base + 100, length / 3 };
	s[1] = (struct regall_segment){ base, 0 };
	s[2] = (struct regall_segment){ base + 4 * MIB + 7, length / 5 };
	s[3] = (struct regall_segment){ base + 5 * MIB + 1, length - length / 3 - length / 5 };
	if (!w) {
		IS(0, regall_region_create(s, 4, BOTH, flags, &cookie));
		return cookie;
	}
	memcpy(w->work->segment, s, sizeof s);
	w->work->count = 4;
	w->work->prot = BOTH;
	w->work->flags = flags;
	IS(0, ask(w, ASK_CREATE));
	return w->work->cookie;
}

/* Where byte n of such a region is in its arena. */
static uint64_t place(uint64_t n, uint64_t length)
{
	if (n < length / 3)
		return 100 + n;
	n -= length / 3;
	return n < length / 5 ? 4 * MIB + 7 + n : 5 * MIB + 1 + n - length / 5;
}

static void fill_arena(struct worker *w, uint64_t seed)
{
	if (!w) {
		fill(own_arena, ARENA, seed);
		return;
	}
	w->work->offset = seed;
	ask(w, ASK_FILL);
}

static const char *arena_of(struct worker *w)
{
	if (!w)
		return own_arena;
	ask(w, ASK_SHOW);
	return w->work->buffer;
}

static void destroy(struct worker *w, uint64_t cookie)
{
	if (!w) {
		IS(0, regall_region_destroy(cookie));
		return;
	}
	w->work->cookie = cookie;
	IS(0, ask(w, ASK_DESTROY));
}

static void copies_of(size_t first, size_t last, bool first_shared, bool second_shared)
{
	static const struct {
		uint64_t length, from, to, len, want;
	} cases[] = {
		{ 3000, 0, 0, 3000, 3000 },	  { 3000, 10, 2000, 5000, 1000 }, { 3000, 2999, 0, 7, 1 },
		{ 3000, 3000, 0, 7, 0 },	  { 3000, 0, 1ul << 50, 7, 0 },	  { 3000, 0, 0, 0, 0 },
		{ 3 * MIB + 5, 0, 0, UINT64_MAX, 3 * MIB + 5 },
		{ 3 * MIB + 5, MIB - 1, 3, 2 * MIB, 2 * MIB },
		{ 3 * MIB + 5, 17, MIB, UINT64_MAX, 2 * MIB + 5 },
	};
	arenas_are_shared = first_shared;
	struct worker a = start_worker();
	arenas_are_shared = second_shared;
	struct worker b = start_worker();
	struct worker *of[] = { NULL, &a, &b };
	own_arena = anon(ARENA / PAGE);
	static char copy[ARENA];
	/* Own to foreign, foreign to own, both own, both of one foreign process, of two. */
	static const int pairs[][2] = { { 0, 1 }, { 1, 0 }, { 0, 0 }, { 1, 1 }, { 1, 2 }, { 2, 1 } };
	for (size_t p = first; p <= last; p++)
		for (size_t c = 0; c < sizeof cases / sizeof *cases; c++)
			for (unsigned flags = 0; flags < (first_shared ? 1 : 2); flags++) {
				struct worker *source = of[pairs[p][0]], *target = of[pairs[p][1]];
				uint64_t n = cases[c].length;
				struct regall_done done;
				bool same = source == target;
				if (same && (cases[c].want > MIB || flags == 0))
					continue; /* they would overlap */
				fill_arena(source, 1000 + c);
				if (!same)
					fill_arena(target, 5000 + c);
				uint64_t from = declare(source, flags, n), to;
				if (!same) {
					to = declare(target, flags, n);
				} else if (!source) {
					to = region_of(own_arena + 2 * MIB, n, BOTH, flags);
				} else {
					source->work->count = 1;
					source->work->segment[0] = piece((char *)(2 * MIB), n);
					IS(0, ask(source, ASK_CREATE));
					to = source->work->cookie;
				}
				IS(0, regall_region_copy(from, cases[c].from, to, cases[c].to, cases[c].len, &done));
				IS(cases[c].want, done.bytes);
				const char *got = arena_of(target);
				for (size_t i = 0; i < ARENA; i++)
					copy[i] = byte_of((same ? 1000 : 5000) + c, i);
				for (uint64_t i = 0; i < cases[c].want; i++) {
					uint64_t at = cases[c].to + i;
					copy[same ? 2 * MIB + at : place(at, n)] =
						byte_of(1000 + c, place(cases[c].from + i, n));
				}
				if (memcmp(copy, got, ARENA)) {
					say("pair %zu case %zu flags %u: other bytes", p, c, flags);
					wrong++;
				}
				IS(flags ? -EINVAL : 0, regall_region_copy(from, 0, to, 0, 0, &done));
				destroy(source, from);
				destroy(target, to);
			}
	end_worker(&a);
	end_worker(&b);
}

static void copies(void)
{
	copies_of(0, 4, false, false);
}

/* Where memory can be mapped: of both, or of one. */
static void mapped(void)
{
	copies_of(4, 4, true, true);
	copies_of(4, 5, true, false);
}

static bool rings(int timeout)
{
	struct pollfd p = { regall_region_fd(), POLLIN, 0 };
	return poll(&p, 1, timeout) == 1;
}

static void read_often(uint64_t cookie, unsigned times)
{
	char byte;
	struct regall_segment to = piece(&byte, 1);
	for (unsigned i = 0; i < times; i++)
		IS(0, regall_region_read(cookie, 0, &to, 1, NULL));
	exit(wrong != 0);
}

static void notify(void)
{
	enum { READERS = 4, EACH = 25000, FEWER = 5000 };
	char *p = anon(1);
	struct regall_use use[4];
	struct worker w = start_worker();
	HOLDS(regall_region_fd() >= 0 && !rings(0));
	IS(0, regall_region_used(use, 4));
	uint64_t silent = region_of(p, 10, BOTH, 0);
	uint64_t told = region_of(p, 10, BOTH, REGALL_REGION_NOTIFY);
	uint64_t once = region_of(p, 10, BOTH, REGALL_REGION_NOTIFY | REGALL_REGION_SINGLE_USE);
	IS(-EINVAL, regall_region_used(NULL, 1));
	IS(0, regall_region_uses(told));
	IS(-EINVAL, regall_region_uses(told ^ 1ull << 40));
	IS(0, READ_BY(&w, silent, 0, 1));
	HOLDS(!rings(0));
	IS(0, READ_BY(&w, told, 0, 1));
	IS(0, WRITE_BY(&w, once, 0, 1));
	IS(-EINVAL, WRITE_BY(&w, once, 0, 1));
	HOLDS(rings(5000));
	IS(2, regall_region_used(use, 1));
	IS(2, regall_region_used(use, 4));
	for (int i = 0; i < 2; i++)
		HOLDS((use[i].cookie == told || use[i].cookie == once) && use[i].uses == 1);
	HOLDS(use[0].cookie != use[1].cookie && !rings(0));
	IS(0, READ_BY(&w, told, 0, 1));
	HOLDS(rings(5000));
	IS(2, regall_region_uses(told));
	IS(0, regall_region_destroy(once));
	IS(1, regall_region_used(use, 4));
	HOLDS(!rings(0));
	IS(-EINVAL, regall_region_uses(once));
	IS(0, regall_region_destroy(told));
	IS(0, regall_region_used(use, 4));
	end_worker(&w);

	/* Nobody empties the pipe (64 KiB) meanwhile; then, somebody does all the time. */
	for (int turn = 0; turn < 2; turn++) {
		pid_t reader[READERS];
		unsigned each = turn ? FEWER : EACH;
		uint64_t cookie = region_of(p, 10, BOTH, REGALL_REGION_NOTIFY);
		for (int i = 0; i < READERS; i++)
			if ((reader[i] = fork()) == 0)
				read_often(cookie, each);
		uint64_t last = 0;
		/*
		 * A use is counted first and rings then, so one may wake the owner for what it has
		 * read already. But no use rings twice.
		 */
		for (unsigned times = 0; turn && last < READERS * each; times++) {
			HOLDS(times < READERS * each);
			HOLDS(rings(20000));
			IS(1, regall_region_used(use, 4));
			HOLDS(use[0].uses >= last);
			last = use[0].uses;
		}
		for (int i = 0; i < READERS; i++) {
			int status = -1;
			NEED(waitpid(reader[i], &status, 0) == reader[i]);
			IS(0, status);
		}
		if (turn == 0)
			HOLDS(rings(0));
		IS(1, regall_region_used(use, 4));
		HOLDS(!rings(0));
		IS(cookie, use[0].cookie);
		IS(READERS * each, use[0].uses);
		IS(READERS * each, regall_region_uses(cookie));
		IS(0, regall_region_destroy(cookie));
	}
}

int main(int argc, char **argv)
{
	static const struct chapter all[] = {
		{ "single", single }, { "claims", claims }, { "copies", copies },
		{ "mapped", mapped }, { "notify", notify },
	};
	return run_chapter(argc, argv, all, sizeof all / sizeof *all, 60);
}
