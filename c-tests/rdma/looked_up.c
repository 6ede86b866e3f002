/* Proves: a key that was looked up reaches its memory while the heap grows over requests, memory comes beside it and requests lie across; it ends when a part of its region does, and a look-up tells. */
#include <pthread.h>
#include <stdatomic.h>
#include <sys/time.h>

#include "rdma.h"

#define STEP (33 * PAGE)
#define ACROSS (10 * PAGE)
#define STEPS 8

static struct rig r;

static __typeof__(regall_lookup) *lookup;
static __typeof__(regall_register) *asked;
static __typeof__(regall_register_all) *all;

/* A page, and a key that was looked up for it; 0: none. */
struct key {
	char *page;
	uint32_t rkey;
};

static struct key key_in(struct ibv_pd *pd, char *page)
{
	struct regall_range range = { .rkey = 0 };
	if (shimmed())
		PROMISE(lookup(pd, page, PAGE, &range) == 0);
	return (struct key){ page, range.rkey };
}

static struct key key_of(char *page)
{
	struct key key = key_in(r.pd, page);
	if (shimmed())
		PROMISE(key.rkey != 0);
	return key;
}

/* Whether a peer reads by the key what is there. */
static bool reads(struct rig *by, struct key key)
{
	if (!shimmed())
		return true;
	memset(by->buf, '!', PAGE);
	return get(by, key.page, key.rkey, PAGE) == IBV_WC_SUCCESS && memcmp(by->buf, key.page, PAGE) == 0;
}

static char *grown(void)
{
	char *seam = sbrk(STEP);
	NEED(seam != (void *)-1);
	memset(seam, 'g', STEP);
	return seam;
}

/* A request of `pd` across `at`, which works. */
static void request(struct rig *by, char *at)
{
	struct ibv_mr *mr = ibv_reg_mr(by->pd, at - ACROSS / 2, ACROSS, ALL);
	NEED(mr);
	PROMISE(get(by, at - PAGE, mr->rkey, 2 * PAGE) == IBV_WC_SUCCESS && memcmp(by->buf, at - PAGE, 2 * PAGE) == 0);
	NEED(ibv_dereg_mr(mr) == 0);
}

/* The heap grows, and each time a request lies across. Keys are looked up before, and of what it has grown by. */
static void heap(void)
{
	NEED((uintptr_t)sbrk(0) % PAGE == 0);
	struct key keys[1 + STEPS];
	char *first = sbrk(3 * STEP);
	NEED(first != (void *)-1);
	memset(first, 'h', 3 * STEP);
	request(&r, first + STEP);
	keys[0] = key_of(first + STEP);
	int good = 0;
	for (int i = 0; i < STEPS; i++) {
		char *seam = grown();
		request(&r, seam);
		/* Of every other one: the rest may be joined. */
		keys[1 + i] = i % 2 ? key_of(seam + PAGE) : keys[0];
		good += reads(&r, keys[0]);
	}
	say("the heap: %d of %d", good, STEPS);
	good = 0;
	for (int i = 0; i <= STEPS; i++)
		good += reads(&r, keys[i]);
	say("all of the heap's: %d of %d", good, 1 + STEPS);
}

/* Memory is opened at the end of what is there, as malloc's arenas grow, in steps, twice as large each. In each of two protection
   domains the first key stays. */
static void beside(void)
{
	struct rig other = rig();
	struct rig *both[] = { &r, &other };
	if (shimmed())
		PROMISE(all(other.pd) == 0);
	char *at = reserve(256), *next = at + 16 * PAGE;
	struct key keys[6][2];
	int good = 0;
	for (int i = 0; i < 6; i++) {
		size_t pages = 1ul << i;
		NEED(mprotect(next, pages * PAGE, PROT_READ | PROT_WRITE) == 0);
		memset(next, 'a' + i, pages * PAGE);
		for (int d = 0; d < 2; d++) {
			keys[i][d] = i % 3 ? keys[0][d] : key_in(both[d]->pd, next);
			good += reads(both[d], keys[0][d]);
		}
		next += pages * PAGE;
	}
	for (int i = 0; i < 6; i++)
		for (int d = 0; d < 2; d++)
			good += reads(both[d], keys[i][d]);
	say("beside: %d of 24", good);
	NEED(munmap(at, 256 * PAGE) == 0);
	rig_down(&other);
}

/* A request lies across two regions, of one of which a key was looked up. */
static void across(void)
{
	char *at = reserve(64), *one = at + 16 * PAGE, *two = one + 16 * PAGE;
	int good = 0;
	for (int i = 0; i < 2; i++) {
		memset(anon_at(one, 16), 'o', 16 * PAGE);
		memset(anon_at(two, 8), 't', 8 * PAGE);
		struct key key = key_of(i ? one : two);
		request(&r, two);
		good += reads(&r, key);
		struct regall_range range = { .rkey = 0 };
		if (shimmed())
			PROMISE(asked(r.pd, two - PAGE, 2 * PAGE, &range) == 0);
		good += reads(&r, key);
		/* It is of both, or there is none. */
		good += range.rkey == 0 || reads(&r, (struct key){ two - PAGE, range.rkey });
		NEED(munmap(one, 24 * PAGE) == 0);
	}
	say("across: %d of 6", good);
	NEED(munmap(at, 64 * PAGE) == 0);
}

/* Another protection domain joins what this one has looked up, and the other way round. */
static void domains(void)
{
	struct rig other = rig();
	struct rig *both[] = { &r, &other };
	int good = 0;
	for (int i = 0; i < 2; i++) {
		struct rig *keeps = both[i], *joins = both[1 - i];
		char *first = grown();
		struct key key = key_in(keeps->pd, first + PAGE);
		for (int n = 0; n < STEPS; n++)
			request(joins, grown());
		good += reads(keeps, key);
		if (shimmed())
			PROMISE(key.rkey != 0 && reads(joins, key_in(joins->pd, first + PAGE)));
	}
	say("two domains: %d of 2", good);
	rig_down(&other);
}

static char *watched;
static _Atomic(size_t) many;
static atomic_bool done;
static _Atomic(uint64_t) found[64];

/* Looks keys up all the time, of what the heap has grown by last. */
static void *look(void *unused)
{
	(void)unused;
	for (unsigned i = 0; !done; i++) {
		struct regall_range range = { .rkey = 0 };
		size_t n = many;
		if (n > 0 && lookup(r.pd, watched + (n - 1) * STEP, PAGE, &range) == 0 && range.rkey)
			found[(n - 1) % 64] = range.rkey;
	}
	return NULL;
}

static void alarmed(int unused)
{
	(void)unused;
	struct regall_range range = { .rkey = 0 };
	size_t n = many;
	if (n > 0 && lookup(r.pd, watched + (n - 1) * STEP, PAGE, &range) == 0 && range.rkey)
		found[(n - 1) % 64] = range.rkey;
}

/* By another thread, and in a signal handler that comes at any moment: what was found last stays. */
static void meanwhile(void)
{
	int good = 0;
	pthread_t thread;
	watched = sbrk(0);
	if (shimmed()) {
		struct itimerval often = { { 0, 700 }, { 0, 700 } }, never = { 0 };
		struct sigaction act = { .sa_handler = alarmed, .sa_flags = SA_RESTART };
		NEED(pthread_create(&thread, NULL, look, NULL) == 0);
		NEED(sigaction(SIGALRM, &act, NULL) == 0 && setitimer(ITIMER_REAL, &often, NULL) == 0);
		for (size_t i = 0; i < 64; i++) {
			char *seam = grown();
			many = i + 1;
			request(&r, seam);
		}
		done = true;
		NEED(setitimer(ITIMER_REAL, &never, NULL) == 0 && pthread_join(thread, NULL) == 0);
	}
	for (size_t i = 0; i < 64; i++)
		good += found[i] == 0 || reads(&r, (struct key){ watched + i * STEP, (uint32_t)found[i] });
	say("meanwhile: %d of 64", good);
}

enum end { UNMAPPED, PROTECTED, DISCARDED, REPLACED };

/* A part of the region ends: so does the key, and a look-up has another one. */
static void ends(const char *label, enum end how)
{
	char *p = island(8), *part = p + 4 * PAGE;
	memset(p, 'e', 8 * PAGE);
	struct key old = key_of(p);
	PROMISE(reads(&r, old));
	if (how == UNMAPPED)
		NEED(munmap(part, PAGE) == 0);
	else if (how == PROTECTED)
		NEED(mprotect(part, PAGE, PROT_READ) == 0);
	else if (how == DISCARDED)
		NEED(madvise(part, PAGE, MADV_DONTNEED) == 0);
	else
		anon_at(part, 1);
	struct key new = key_of(p);
	if (shimmed())
		PROMISE(new.rkey != old.rkey && !reads(&r, old));
	say("%s: %s", label, reads(&r, new) ? "reached by another key" : "NOT REACHED");
	munmap(p, 8 * PAGE);
}

int main(void)
{
	lookup = (__typeof__(lookup))dlsym(RTLD_DEFAULT, "regall_lookup");
	asked = (__typeof__(asked))dlsym(RTLD_DEFAULT, "regall_register");
	all = (__typeof__(all))dlsym(RTLD_DEFAULT, "regall_register_all");
	r = rig();
	if (shimmed())
		NEED(lookup && asked && all && all(r.pd) == 0);
	heap();
	beside();
	across();
	domains();
	meanwhile();
	ends("a part is unmapped", UNMAPPED);
	ends("a part is protected", PROTECTED);
	ends("a part is discarded", DISCARDED);
	ends("a part is replaced", REPLACED);
	rig_down(&r);
	return wrong;
}
