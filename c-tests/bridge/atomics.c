/* Proves: operations on a peer's words are atomic with each other and with the owner's own; memory that can't be mapped has none, and memory that goes hurts nobody. */
#include "peers.h"
#include "words.h"
#include "linear.h"

#include <pthread.h>
#include <stdatomic.h>
#include <sys/prctl.h>

#pragma weak regall_alloc_shared

static char *shared_pages(size_t pages)
{
	void *p = NULL;
	NEED(regall_alloc_shared(pages * PAGE, &p) == 0);
	return p;
}

/* ---- what each does, and what is refused ---- */

static int owner(void)
{
	char *mapped = shared_pages(2), *private = anon(4), line[64];
	memset(private, 0, 4 * PAGE);
	NEED(mprotect(private + PAGE, PAGE, PROT_READ) == 0);
	NEED(regall_opt_out(private + 2 * PAGE, PAGE) == 0);
	say("%#lx", (unsigned long)(uintptr_t)mapped);
	say("%#lx", (unsigned long)(uintptr_t)private);
	while (line_from(0, line, sizeof line)) {
		uint64_t at;
		NEED(sscanf(line, "%lx", &at) == 1);
		say("%#lx", *(uint64_t *)(uintptr_t)at);
	}
	return 0;
}

static uint64_t word_of(const struct other *o, uint64_t at)
{
	char line[32];
	snprintf(line, sizeof line, "%lx", (unsigned long)at);
	return ask(o, line);
}

static void each(regall_peer *peer, const struct other *o, uint64_t at)
{
	uint64_t before = 99, other;
	uint32_t half = 99;
	IS(0, regall_store64(peer, at, 0xfffffffffffffffe));
	IS(0, regall_fetch_add64(peer, at, 5, &before));
	HOLDS(before == 0xfffffffffffffffe);
	IS(3, word_of(o, at));
	IS(0, regall_fetch_add64(peer, at, (uint64_t)-1, NULL));
	IS(0, regall_compare_swap64(peer, at, 3, 7, &before));
	IS(2, before);
	IS(0, regall_compare_swap64(peer, at, 2, 1ull << 40 | 7, &before));
	IS(2, before);
	IS(0, regall_swap64(peer, at, 1ull << 50 | 9, &before));
	HOLDS(before == (1ull << 40 | 7));
	IS(0, regall_load64(peer, at, &other));
	HOLDS(other == (1ull << 50 | 9) && word_of(o, at) == other);
	/* Half of it. */
	IS(0, regall_store32(peer, at, 0xffffffff));
	IS(0, regall_fetch_add32(peer, at, 2, &half));
	IS(0xffffffff, half);
	HOLDS(word_of(o, at) == (1ull << 50 | 1));
	IS(0, regall_compare_swap32(peer, at + 4, 1u << 18, 77, &half));
	IS(1u << 18, half);
	IS(0, regall_swap32(peer, at + 4, 78, &half));
	IS(77, half);
	IS(0, regall_load32(peer, at + 4, &half));
	IS(78, half);
	HOLDS(word_of(o, at) == (78ull << 32 | 1));
	/* Not aligned. */
	IS(-EINVAL, regall_fetch_add64(peer, at + 4, 1, &before));
	IS(-EINVAL, regall_fetch_add32(peer, at + 2, 1, &half));
	IS(-EINVAL, regall_load64(peer, at + 1, &before));
	IS(-EINVAL, regall_load64(peer, at, NULL));
	IS(-EINVAL, regall_load64(NULL, at, &before));
	HOLDS(word_of(o, at) == (78ull << 32 | 1));
}

static void semantics(char *argv0)
{
	struct other o = start_other(true, (char *[]){ argv0, "owner", NULL });
	uint64_t mapped = hear_number(&o), private = hear_number(&o), word;
	regall_peer *peer = open_peer(o.pid, 0);
	each(peer, &o, mapped + 8);
	each(peer, &o, mapped + 2 * PAGE - 8);
	IS(-EOPNOTSUPP, regall_fetch_add64(peer, private + 16, 1, &word));
	IS(-EOPNOTSUPP, regall_load64(peer, private + 16, &word));
	IS(0, word_of(&o, private + 16));
	IS(-EACCES, regall_fetch_add64(peer, private + PAGE, 1, &word));
	IS(-EOPNOTSUPP, regall_load64(peer, private + PAGE, &word));
	IS(-EFAULT, regall_fetch_add64(peer, private + 2 * PAGE, 1, &word));
	IS(-EFAULT, regall_fetch_add64(peer, 64, 1, &word));
	end_other(&o);
	IS(-ESRCH, regall_fetch_add64(peer, mapped + 8, 1, &word));
	IS(-ESRCH, regall_load64(peer, private + 16, &word));
	IS(0, regall_peer_close(peer));
}

/* ---- histories ---- */

enum { CLIENTS = 3, THREADS = 2, PARTIES = (CLIENTS + 1) * THREADS, EVENTS = 6 };
/* Ones that each adds at first. */
enum { ONES = 150000, BROKEN_ONES = 4000 };

/* In a file that all of them have. */
struct common {
	uint64_t at;		 /* of the owner's word */
	unsigned broken, narrow; /* the clients' operations are not atomic; the word's half */
	unsigned ones;
	_Atomic unsigned round, ready, done;
	_Atomic int failed;
	struct history history;
};

static struct common *common;

static struct common *common_of(int fd)
{
	void *p = mmap(NULL, sizeof *common, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	NEED(p != MAP_FAILED);
	return p;
}

/* As C11 has them, on the owner's own word. */
static uint64_t own_operation(const struct event *e, uint64_t at, bool narrow)
{
	uint64_t before = e->expected;
	uint32_t half = (uint32_t)e->expected;
	_Atomic uint64_t *word = (_Atomic uint64_t *)(uintptr_t)at;
	_Atomic uint32_t *low = (_Atomic uint32_t *)(uintptr_t)at;
	switch (e->act) {
	case ADD:
		return narrow ? atomic_fetch_add(low, (uint32_t)e->operand) : atomic_fetch_add(word, e->operand);
	case COMPARE_SWAP:
		if (narrow)
			atomic_compare_exchange_strong(low, &half, (uint32_t)e->operand);
		else
			atomic_compare_exchange_strong(word, &before, e->operand);
		return narrow ? half : before;
	case SWAP:
		return narrow ? atomic_exchange(low, (uint32_t)e->operand) : atomic_exchange(word, e->operand);
	case LOAD:
		return narrow ? atomic_load_explicit(low, memory_order_acquire) :
				atomic_load_explicit(word, memory_order_acquire);
	default:
		if (narrow)
			atomic_store_explicit(low, (uint32_t)e->operand, memory_order_release);
		else
			atomic_store_explicit(word, e->operand, memory_order_release);
		return 0;
	}
}

/* What is not to pass: a get, and a put of what comes of it. */
static int broken_operation(regall_peer *peer, const struct event *e, size_t bytes, uint64_t *before)
{
	*before = 0;
	int r = regall_get(peer, before, common->at, bytes, NULL);
	uint64_t after = e->act == ADD ? *before + e->operand : e->operand;
	if (e->act == LOAD || (e->act == COMPARE_SWAP && *before != e->expected))
		return r;
	return r ? r : regall_put(peer, &after, common->at, bytes, NULL);
}

static int operation(regall_peer *peer, const struct event *e, uint64_t *before)
{
	uint64_t at = common->at;
	uint32_t half = 0, operand = (uint32_t)e->operand;
	int r;
	*before = 0;
	if (common->broken)
		return broken_operation(peer, e, common->narrow ? 4 : 8, before);
	if (!common->narrow)
		switch (e->act) {
		case ADD: return regall_fetch_add64(peer, at, e->operand, before);
		case COMPARE_SWAP: return regall_compare_swap64(peer, at, e->expected, e->operand, before);
		case SWAP: return regall_swap64(peer, at, e->operand, before);
		case LOAD: return regall_load64(peer, at, before);
		default: return regall_store64(peer, at, e->operand);
		}
	switch (e->act) {
	case ADD: r = regall_fetch_add32(peer, at, operand, &half); break;
	case COMPARE_SWAP: r = regall_compare_swap32(peer, at, (uint32_t)e->expected, operand, &half); break;
	case SWAP: r = regall_swap32(peer, at, operand, &half); break;
	case LOAD: r = regall_load32(peer, at, &half); break;
	default: r = regall_store32(peer, at, operand); break;
	}
	*before = half;
	return r;
}

/* Waits until the word is that. */
static void await(_Atomic unsigned *word, unsigned value)
{
	for (unsigned n = 0; atomic_load(word) != value; n++)
		if (n > 200)
			sched_yield();
}

static _Atomic unsigned last_round;

struct party {
	unsigned number;
	regall_peer *peer; /* NULL: the owner itself */
};

/* What comes before is done for all processors, and nothing that follows has begun: a release store
 * may wait in its processor while the clock is read, and a load be ahead of it. */
static void at_once(void)
{
	atomic_thread_fence(memory_order_seq_cst);
#ifdef __x86_64__
	__builtin_ia32_lfence();
#endif
}

static uint64_t carry_out(const struct party *me, const struct event *e)
{
	uint64_t before;
	if (me->peer == NULL)
		return own_operation(e, common->at, common->narrow);
	if (operation(me->peer, e, &before) != 0)
		atomic_fetch_add(&common->failed, 1);
	return before;
}

/* Adds ones, by fetch-and-add and by compare-and-swap in turn. */
static void add_ones_as(const struct party *me)
{
	struct event add = { .act = ADD, .operand = 1 }, swap = { .act = COMPARE_SWAP };
	uint64_t seen = 0, found;
	for (unsigned n = 0; n < common->ones && !common->failed; n += 2) {
		seen = carry_out(me, &add) + 1;
		do {
			swap.expected = seen;
			swap.operand = common->narrow ? (uint32_t)(seen + 1) : seen + 1;
			found = carry_out(me, &swap);
			seen = found == swap.expected ? seen : found;
		} while (found != swap.expected && !common->failed);
	}
}

static void *take_part(void *arg)
{
	struct party *me = arg;
	struct event *mine = common->history.event[me->number];
	uint64_t random = 0x9e3779b97f4a7c15ull * (me->number + 1), seen = 0;
	for (unsigned round = 1; round <= last_round; round++) {
		await(&common->round, round);
		atomic_fetch_add(&common->ready, 1);
		await(&common->ready, PARTIES);
		if (common->ones)
			add_ones_as(me);
		for (unsigned n = 0; n < EVENTS && !common->ones; n++) {
			random = random * 6364136223846793005ull + 1442695040888963407ull;
			struct event *e = &mine[n];
			e->act = (enum act)((random >> 40) % ACTS);
			/* Nobody else ever puts that there. */
			e->operand = e->act == ADD ? 1 + (random >> 50) % 3 :
						     (uint64_t)(me->number + 1) << 26 | (round % 4096) << 10 | n << 5;
			e->expected = seen;
			e->begun = now_ns();
			at_once();
			e->before = carry_out(me, e);
			at_once();
			e->ended = now_ns();
			seen = e->act == STORE ? e->operand : e->before;
		}
		atomic_fetch_add(&common->done, 1);
	}
	return NULL;
}

static void take_part_twice(unsigned first, regall_peer *peer, pthread_t threads[THREADS])
{
	static struct party parties[THREADS];
	for (unsigned n = 0; n < THREADS; n++) {
		parties[n] = (struct party){ first + n, peer };
		NEED(pthread_create(&threads[n], NULL, take_part, &parties[n]) == 0);
	}
}

static int client(int fd, pid_t pid, unsigned number, unsigned rounds)
{
	pthread_t threads[THREADS];
	common = common_of(fd);
	last_round = rounds;
	take_part_twice(number * THREADS, open_peer(pid, 0), threads);
	for (unsigned n = 0; n < THREADS; n++)
		pthread_join(threads[n], NULL);
	return 0;
}

/* One round; whether it is linearizable, or of the first two, whether each one was added. */
static bool one_round(unsigned round, _Atomic uint64_t *word)
{
	struct history *h = &common->history;
	uint64_t first = atomic_load(word);
	common->narrow = round % 2;
	uint64_t mask = common->narrow ? UINT32_MAX : UINT64_MAX;
	atomic_store(&common->done, 0);
	atomic_store(&common->ready, 0);
	atomic_store(&common->round, round);
	await(&common->done, PARTIES);
	uint64_t last = atomic_load(word);
	if (common->ones)
		return last == ((first + common->ones * PARTIES) & mask) + (first & ~mask);
	h->threads = PARTIES;
	for (unsigned t = 0; t < PARTIES; t++)
		h->count[t] = EVENTS;
	/* What is beside half of a word stays. */
	return (first & ~mask) == (last & ~mask) && is_linearizable(h, first & mask, last & mask, mask);
}

/* Four processes, two threads each: those of the owner by C11 atomics, and the others' `broken` by
 * what is not atomic, which must be found out. */
static void histories(char *argv0, bool broken, unsigned rounds)
{
	int fd = memfd_create("common", 0);
	char number[4][16];
	pid_t pids[CLIENTS];
	NEED(fd >= 0 && ftruncate(fd, sizeof *common) == 0);
	common = common_of(fd);
	_Atomic uint64_t *word = (void *)shared_pages(1);
	atomic_store(word, 1ull << 40 | 5);
	common->at = (uintptr_t)word;
	common->broken = broken;
	last_round = rounds;
	for (unsigned n = 0; n < CLIENTS; n++) {
		snprintf(number[0], 16, "%d", fd);
		snprintf(number[1], 16, "%d", getpid());
		snprintf(number[2], 16, "%u", n + 1);
		snprintf(number[3], 16, "%u", rounds);
		setenv("REGALL_COPY", broken ? "cma,map" : "map", 1);
		char *args[] = { argv0, "client", number[0], number[1], number[2], number[3], NULL };
		pids[n] = fork();
		NEED(pids[n] >= 0);
		if (pids[n] == 0) {
			prctl(PR_SET_PDEATHSIG, SIGKILL);
			execv("/proc/self/exe", args);
			_exit(91);
		}
	}
	pthread_t threads[THREADS];
	take_part_twice(0, NULL, threads);
	unsigned bad = 0;
	for (unsigned round = 1; round <= rounds; round++) {
		common->ones = round > 2 ? 0 : broken ? BROKEN_ONES : ONES;
		bad += !one_round(round, word);
	}
	for (unsigned n = 0; n < THREADS; n++)
		pthread_join(threads[n], NULL);
	for (unsigned n = 0; n < CLIENTS; n++) {
		int status = -1;
		waitpid(pids[n], &status, 0);
		IS(0, status);
	}
	IS(0, common->failed);
	if (broken)
		HOLDS(bad > 0);
	else
		IS(0, bad);
}

/* ---- mapped memory that is replaced, and whose owner ends ---- */

/* A page, of another file each time, whose word is a thousand times its number. */
static int mover(void)
{
	char *place = anon(3) + PAGE, line[16];
	uint64_t number = 0;
	int fd = -1;
	say("%#lx", (unsigned long)(uintptr_t)place);
	while (line_from(0, line, sizeof line)) {
		if (line[0] == 'm') {
			uint64_t word = ++number * 1000;
			close(fd);
			fd = memfd_create("mover", MFD_ALLOW_SEALING | MFD_CLOEXEC);
			NEED(fd >= 0 && ftruncate(fd, PAGE) == 0 && pwrite(fd, &word, sizeof word, 8) == sizeof word);
			NEED(fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK) == 0);
			NEED(mmap(place, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0) == place);
		} else if (line[0] == 'u') {
			NEED(munmap(place, PAGE) == 0);
			say("0");
			continue;
		}
		say("%lu", *(uint64_t *)(place + 8));
	}
	return 0;
}

/* Mappings of its files in this process. */
static int mappings_of_mover(void)
{
	char line[512];
	int count = 0;
	FILE *f = fopen("/proc/self/maps", "re");
	NEED(f != NULL);
	while (fgets(line, sizeof line, f))
		count += strstr(line, "memfd:mover") != NULL;
	fclose(f);
	return count;
}

static void moves(char *argv0, unsigned flags)
{
	struct other o = start_other(true, (char *[]){ argv0, "mover", NULL });
	uint64_t at = hear_number(&o) + 8, before;
	regall_peer *peer = open_peer(o.pid, flags);
	for (unsigned n = 1; n <= 5; n++) {
		IS(n * 1000, ask(&o, "m"));
		for (unsigned i = 0; i < 300; i++) {
			IS(0, regall_fetch_add64(peer, at, 1, &before));
			IS(n * 1000 + i, before);
		}
		IS(0, regall_load64(peer, at, &before));
		IS(n * 1000 + 300, before);
		IS(n * 1000 + 300, ask(&o, "?"));
	}
	HOLDS(mappings_of_mover() > 0);
	IS(0, ask(&o, "u"));
	IS(-EFAULT, regall_fetch_add64(peer, at, 1, &before));
	/* Nothing here keeps what the owner has not. */
	IS(0, regall_peer_check(peer));
	IS(0, mappings_of_mover());
	IS(6000, ask(&o, "m"));
	for (unsigned i = 0; i < 1000; i++)
		IS(0, regall_fetch_add64(peer, at, 1, &before));
	end_other(&o);
	pause_us(200);
	int late = 0;
	while (regall_fetch_add64(peer, at, 1, &before) == 0)
		late++;
	HOLDS(late <= (flags ? 0 : 15));
	IS(-ESRCH, regall_fetch_add64(peer, at, 1, &before));
	IS(0, mappings_of_mover());
	IS(0, regall_peer_close(peer));
}

int main(int argc, char **argv)
{
	no_longer_than(100);
	const char *what = argc > 1 ? argv[1] : "";
	if (strcmp(what, "owner") == 0)
		return owner();
	if (strcmp(what, "mover") == 0)
		return mover();
	if (strcmp(what, "client") == 0 && argc > 5)
		return client(atoi(argv[2]), atoi(argv[3]), (unsigned)atoi(argv[4]), (unsigned)atoi(argv[5]));
	if (strcmp(what, "semantics") == 0)
		semantics(argv[0]);
	else if (strcmp(what, "histories") == 0 && argc > 3)
		histories(argv[0], strcmp(argv[2], "broken") == 0, (unsigned)atoi(argv[3]));
	else if (strcmp(what, "moves") == 0)
		moves(argv[0], argc > 2 ? REGALL_PEER_CHECK_ALWAYS : 0);
	else
		return 2;
	return verdict();
}
