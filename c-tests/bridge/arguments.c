/* Proves: whatever numbers the functions of regall.h are given, they answer as documented, nobody dies, and the ledger is as the kernel's list. */
/*
 * arguments SECONDS [seed]. Pointers are good, NULL where the header speaks of NULL, or not to be
 * had where it promises -EFAULT; lengths, addresses, flags, cookies, pids and offsets are anything.
 * On failure the seed is printed, which makes the same calls again.
 */
#include <sys/prctl.h>
#include <sys/wait.h>
#include "peers.h"
#include "words.h"

#pragma weak regall_version
#pragma weak regall_region_create
#pragma weak regall_region_destroy
#pragma weak regall_region_read
#pragma weak regall_region_write
#pragma weak regall_region_copy
#pragma weak regall_region_fd
#pragma weak regall_region_used
#pragma weak regall_region_uses
#pragma weak regall_lookup
#pragma weak regall_register
#pragma weak regall_register_all
#pragma weak regall_opt_in
#pragma weak regall_alloc
#pragma weak regall_alloc_unregistered
#pragma weak regall_alloc_shared
#pragma weak regall_free
#pragma weak regall_stats
#pragma weak regall_audit
#pragma weak regall_map
#pragma weak regall_map_check
#pragma weak regall_unmap
#pragma weak regall_queue_open
#pragma weak regall_queue_close
#pragma weak regall_queue_fd
#pragma weak regall_get_start
#pragma weak regall_put_start
#pragma weak regall_getv_start
#pragma weak regall_queue_poll
#pragma weak regall_queue_wait
#pragma weak regall_region_read_start
#pragma weak regall_region_write_start
#pragma weak regall_region_copy_start

enum { PLAYGROUND = 64, COOKIES = 16, PIECES = 5 };

static char *ground;	     /* pages of ours that may be written to */
static regall_peer *peer;    /* the process beside us */
static uint64_t their_ground;
static uint64_t cookies[COOKIES];
static uint64_t calls, good;

/* A number that breaks things. */
static uint64_t any(void)
{
	static const uint64_t ALL[] = { 0, 1, 2, 7, 8, 4095, 4096, 4097, 1ul << 20, 1ul << 31, (1ul << 31) - 1, 1ul << 32,
					1ul << 46, 0x7ffffffff000, 1ul << 47, 1ul << 56, 1ul << 63, 0xffffffffff600000,
					UINT64_MAX - 4096, UINT64_MAX - 1, UINT64_MAX };
	switch (draw(5)) {
	case 0:
		return ALL[draw(sizeof ALL / sizeof *ALL)];
	case 1:
		return (uint64_t)(uintptr_t)ground + draw(PLAYGROUND * PAGE);
	case 2:
		return their_ground + draw(PLAYGROUND * PAGE);
	case 3:
		return draw(1 << 18);
	default:
		return draw(UINT64_MAX >> 20) << draw(21);
	}
}

static struct regall_segment piece(const void *p, uint64_t len)
{
	return (struct regall_segment){ (uint64_t)(uintptr_t)p, len };
}

/* Bytes of ours. */
static char *mine(size_t *len)
{
	size_t at = draw(PLAYGROUND * PAGE - 1);
	*len = draw(PLAYGROUND * PAGE - at);
	return ground + at;
}

/* An address at which there is something of ours, or nothing: for what promises -EFAULT. */
static char *perhaps(size_t *len)
{
	static char *none;
	if (!none)
		none = reserve(4);
	if (draw(8))
		return mine(len);
	*len = 1 + draw(3 * PAGE);
	return none + draw(PAGE);
}

static uint64_t cookie(void)
{
	switch (draw(4)) {
	case 0:
		return any();
	case 1:
		return cookies[draw(COOKIES)] ^ 1ull << draw(64);
	default:
		return cookies[draw(COOKIES)];
	}
}

static size_t local(struct regall_segment *s)
{
	size_t n = draw(PIECES + 1);
	for (size_t i = 0; i < n; i++) {
		size_t len;
		char *at = perhaps(&len);
		s[i] = piece(at, len);
	}
	return n;
}

static size_t remote(struct regall_segment *s)
{
	size_t n = draw(PIECES + 1);
	for (size_t i = 0; i < n; i++)
		s[i] = (struct regall_segment){ any(), draw(3) ? draw(20000) : any() };
	return n;
}

static size_t sum(const struct regall_segment *s, size_t n)
{
	size_t all = 0;
	for (size_t i = 0; i < n; i++)
		all += s[i].len;
	return all;
}

/* An error is a negative errno. */
static int64_t answer(int64_t r)
{
	calls++;
	good += r >= 0;
	if (r < -133)
		IS(0, r);
	return r;
}

static void memory(void)
{
	size_t len;
	struct regall_range range;
	void *out = NULL;
	char *at = mine(&len);
	switch (draw(10)) {
	case 0:
		answer(regall_lookup((void *)(uintptr_t)(draw(2) ? 0 : any()), (void *)(uintptr_t)any(), any(), draw(16) ? &range : NULL));
		break;
	case 1:
		if (answer(regall_lookup(NULL, at, len, &range)) == 0)
			HOLDS(range.start <= (uintptr_t)at && (uintptr_t)at + len <= range.end);
		break;
	case 2:
		answer(regall_opt_out(at, draw(4) ? len : any()));
		break;
	case 3:
		answer(regall_opt_in(at, draw(4) ? len : any()));
		break;
	case 4:
	case 5: {
		size_t size = draw(4) ? draw(1 << 20) : any();
		/* Little, or more than there is: all of it is populated. */
		if (size > 1 << 24)
			size |= 1ul << 46;
		int kind = (int)draw(3);
		int r = kind == 0 ? regall_alloc(size, &out) : kind == 1 ? regall_alloc_unregistered(size, &out) : regall_alloc_shared(size, &out);
		answer(r);
		if (kind == 2 && size > 1ul << 45)
			IS(-ENOMEM, r);
		if (r == 0 && size > 1ul << 45)
			IS(0, regall_free(out, size));
		else if (r == 0) {
			HOLDS(size > 0 && out && (uintptr_t)out % PAGE == 0 && *(char *)out == 0);
			((char *)out)[size - 1] = 1;
			IS(0, regall_free(out, size));
		}
		break;
	}
	case 6:
		answer(regall_free((void *)(uintptr_t)(any() | 1), any()));
		answer(regall_free(at, 0));
		answer(regall_alloc(0, &out));
		answer(regall_alloc(PAGE, NULL));
		break;
	case 7: {
		struct regall_stats stats = { .size = any() };
		/* No larger than it is. */
		if (stats.size > sizeof stats)
			stats.size = draw(sizeof stats + 1);
		answer(regall_stats(draw(8) ? &stats : NULL));
		break;
	}
	case 8:
		answer(regall_register(NULL, (void *)(uintptr_t)any(), any(), draw(8) ? &range : NULL));
		break;
	default:
		answer(regall_register_all(NULL));
	}
}

static void peers(void)
{
	struct regall_segment here[PIECES], there[PIECES];
	struct regall_done done = { 0, 0, 0, 0 }, *d = draw(4) ? &done : NULL;
	size_t len, n = local(here), m = remote(there);
	char *at = perhaps(&len);
	int64_t r;
	switch (draw(8)) {
	case 0: {
		regall_peer *other = NULL;
		int pid = draw(3) ? (int)getpid() : (int)any();
		r = answer(regall_peer_open(pid, draw(4) ? 0 : any(), (unsigned)(draw(2) ? draw(2) : any()), draw(16) ? &other : NULL));
		if (r == 0 && other) {
			answer(regall_peer_check(other));
			IS(0, regall_peer_close(other));
		}
		break;
	}
	case 1: {
		struct regall_process some[8];
		size_t room = draw(9);
		r = answer(regall_peers(draw(8) ? some : NULL, room));
		break;
	}
	case 2:
		answer(regall_get(draw(32) ? peer : NULL, at, any(), len, d));
		break;
	case 3:
		answer(regall_put(draw(32) ? peer : NULL, at, any(), len, d));
		break;
	case 4:
		answer(regall_getv(peer, here, n, there, m, d));
		if (d)
			HOLDS(done.bytes <= sum(here, n));
		break;
	case 5:
		answer(regall_putv(peer, here, n, there, m, d));
		break;
	case 6: {
		struct regall_mapping map;
		r = answer(regall_map(draw(32) ? peer : NULL, any(), any(), (unsigned)draw(6), draw(32) ? &map : NULL));
		if (r == 0) {
			answer(regall_map_check(peer, &map));
			IS(0, regall_unmap(&map));
			IS(-EINVAL, regall_unmap(&map));
		}
		break;
	}
	default:
		answer(regall_getv(peer, draw(2) ? NULL : here, draw(2), draw(2) ? NULL : there, draw(2), NULL));
		answer(regall_peer_close(NULL));
		answer(regall_peer_check(NULL));
		answer(regall_map_check(peer, NULL));
		answer(regall_unmap(NULL));
	}
}

static void words(void)
{
	regall_peer *p = draw(32) ? peer : NULL;
	uint64_t at = draw(4) ? any() & ~7ull : any(), whole;
	uint32_t half;
	switch (draw(10)) {
	case 0: answer(regall_fetch_add32(p, at, (uint32_t)any(), draw(2) ? &half : NULL)); break;
	case 1: answer(regall_fetch_add64(p, at, any(), draw(2) ? &whole : NULL)); break;
	case 2: answer(regall_compare_swap32(p, at, 0, (uint32_t)any(), draw(2) ? &half : NULL)); break;
	case 3: answer(regall_compare_swap64(p, at, any(), any(), draw(2) ? &whole : NULL)); break;
	case 4: answer(regall_swap32(p, at, (uint32_t)any(), draw(2) ? &half : NULL)); break;
	case 5: answer(regall_swap64(p, at, any(), draw(2) ? &whole : NULL)); break;
	case 6: answer(regall_load32(p, at, draw(8) ? &half : NULL)); break;
	case 7: answer(regall_load64(p, at, draw(8) ? &whole : NULL)); break;
	case 8: answer(regall_store32(p, at, (uint32_t)any())); break;
	default: answer(regall_store64(p, at, any()));
	}
}

static void regions(void)
{
	struct regall_segment here[PIECES];
	struct regall_done done = { 0, 0, 0, 0 }, *d = draw(4) ? &done : NULL;
	size_t n = local(here);
	uint64_t *slot = &cookies[draw(COOKIES)];
	switch (draw(9)) {
	case 0:
	case 1:
		if (*slot)
			regall_region_destroy(*slot);
		*slot = 0;
		if (draw(8) == 0)
			n = remote(here);
		answer(regall_region_create(draw(32) ? here : NULL, n, (unsigned)(draw(8) ? 1 + draw(3) : any()),
					    (unsigned)(draw(8) ? draw(8) : any()), draw(32) ? slot : NULL));
		break;
	case 2:
		answer(regall_region_destroy(cookie()));
		break;
	case 3:
		answer(regall_region_read(cookie(), draw(2) ? draw(1 << 16) : any(), draw(32) ? here : NULL, n, d));
		if (d)
			HOLDS(done.bytes <= sum(here, n));
		break;
	case 4:
		answer(regall_region_write(cookie(), draw(2) ? draw(1 << 16) : any(), here, n, d));
		break;
	case 5:
		answer(regall_region_copy(cookie(), draw(2) ? draw(1 << 16) : any(), cookie(), draw(2) ? draw(1 << 16) : any(), any(), d));
		break;
	case 6: {
		struct regall_use some[4];
		size_t room = draw(5);
		answer(regall_region_used(draw(8) ? some : NULL, room));
		break;
	}
	case 7:
		answer(regall_region_uses(cookie()));
		break;
	default:
		answer(regall_region_fd());
	}
}

static void queues(void)
{
	static regall_queue *queue;
	/* Vectors have to stay until their copies are finished. */
	static struct regall_segment here;
	struct regall_completion some[64];
	here = piece(ground, PAGE);
	size_t len;
	char *at = mine(&len);
	if (!queue)
		NEED(regall_queue_open(0, &queue) == 0);
	switch (draw(9)) {
	case 7:
		if (draw(2))
			answer(regall_region_read_start(queue, cookie(), any(), &here, draw(2), any()));
		else
			answer(regall_region_write_start(draw(32) ? queue : NULL, cookie(), any(), &here, draw(2), any()));
		break;
	case 8:
		answer(regall_region_copy_start(queue, cookie(), any(), cookie(), any(), any(), any()));
		break;
	case 0:
		answer(regall_get_start(draw(32) ? queue : NULL, draw(32) ? peer : NULL, at, any(), len, any()));
		break;
	case 1:
		answer(regall_put_start(queue, peer, at, any(), len, any()));
		break;
	case 2:
		answer(regall_getv_start(queue, peer, NULL, draw(2), NULL, draw(2), any()));
		break;
	case 3:
		answer(regall_queue_poll(queue, draw(16) ? some : NULL, draw(65)));
		break;
	case 4:
		answer(regall_queue_wait(queue, some, draw(65), (int)draw(3)));
		break;
	case 5:
		answer(regall_queue_open((unsigned)any() | 1, &queue));
		answer(regall_queue_open(0, NULL));
		answer(regall_queue_poll(NULL, some, 1));
		answer(regall_queue_fd(NULL));
		answer(regall_queue_close(NULL));
		break;
	default:
		HOLDS(answer(regall_queue_fd(queue)) >= 0);
		/* Nothing is under way any more when it is closed. */
		if (draw(64) == 0) {
			IS(0, regall_queue_close(queue));
			queue = NULL;
		}
	}
}

/* The process beside us: its memory may be had, and be overwritten. */
static int beside(void)
{
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	char *p = anon(PLAYGROUND);
	say("%lu", (unsigned long)(uintptr_t)p);
	for (;;)
		pause();
	return 0;
}

int main(int argc, char **argv)
{
	NEED(argc > 1);
	if (strcmp(argv[1], "beside") == 0)
		return beside();
	seed_of_draws += argc > 2 ? strtoull(argv[2], NULL, 10) : now_ns() >> 10;
	uint64_t seed = seed_of_draws - 88172645463325252ull;
	int seconds = atoi(argv[1]);
	no_longer_than((unsigned)seconds + 300);
	bool on = regall_active();
	/* Pages that nobody has registered are on both sides: else a region that begins here and ends behind it
	 * is of libc's memory, too, and is overwritten. */
	ground = reserve(PLAYGROUND + 2) + PAGE;
	NEED(mprotect(ground, PLAYGROUND * PAGE, PROT_READ | PROT_WRITE) == 0);
	char *const arguments[] = { "arguments", "beside", NULL };
	struct other other = start_other(true, arguments);
	their_ground = hear_number(&other);
	peer = open_peer(other.pid, 0);
	uint64_t until = now_ns() + (uint64_t)seconds * 1000000000u;
	while (now_ns() < until && wrong < 10) {
		for (int i = 0; i < 200; i++)
			switch (draw(9)) {
			case 0:
				memory();
				break;
			case 1:
			case 2:
			case 3:
				peers();
				break;
			case 7:
				queues();
				break;
			case 8:
				words();
				break;
			default:
				regions();
			}
		/* It is all as the kernel has it, and memory can still be had. */
		struct regall_stats before = { .size = sizeof before }, after = before;
		if (on) {
			HOLDS(regall_stats(&before) == 0 && regall_audit() == 0 && regall_stats(&after) == 0);
			IS(before.mappings, after.mappings);
		}
		char *p = anon(3);
		NEED(munmap(p, 3 * PAGE) == 0);
	}
	end_other(&other);
	if (wrong)
		say("seed %lu", (unsigned long)seed);
	say("%lu calls, %lu of them answered with success", (unsigned long)calls, (unsigned long)good);
	HOLDS(good > calls / 20);
	return verdict();
}
