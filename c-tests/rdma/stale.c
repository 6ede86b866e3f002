/* Proves: REGALL_CHECK finds registration caches that go stale, each after a public report, and other wrong registrations; and says nothing of a cache that is right. The argument says which. */
#include "rdma.h"

#include <sys/uio.h>

#define LEN (64 * PAGE)

static struct rig r;

/* A registration cache as others have it: by address, until it is told that memory goes. */
static struct entry {
	char *addr;
	size_t len;
	struct ibv_mr *mr;
	bool dead;
} cache[16];

static void cache_collect(void)
{
	for (struct entry *e = cache; e < cache + 16; e++)
		if (e->mr && e->dead) {
			NEED(ibv_dereg_mr(e->mr) == 0);
			e->mr = NULL;
		}
}

__attribute__((noinline)) static struct ibv_mr *cache_get(char *addr, size_t len)
{
	struct entry *free_one = NULL;
	cache_collect();
	for (struct entry *e = cache; e < cache + 16; e++) {
		if (e->mr && addr >= e->addr && addr + len <= e->addr + e->len)
			return e->mr;
		if (!e->mr)
			free_one = e;
	}
	NEED(free_one);
	*free_one = (struct entry){ addr, len, ibv_reg_mr(r.pd, addr, len, ALL), false };
	NEED(free_one->mr);
	return free_one->mr;
}

/* `late`: it is deregistered at the next look-up, since a hook must not wait for locks. */
__attribute__((noinline)) static void cache_unmapped(char *addr, size_t len, bool late)
{
	for (struct entry *e = cache; e < cache + 16; e++)
		if (e->mr && addr < e->addr + e->len && e->addr < addr + len)
			e->dead = true;
	if (!late)
		cache_collect();
}

static void cache_clear(void)
{
	cache_unmapped(0, (size_t)1 << 62, false);
}

/* Sends what `addr` holds, all `c`, to the rig's buffer. */
__attribute__((noinline)) static void send_it(const char *label, char *addr, char c)
{
	memset(addr, c, LEN);
	memset(r.buf, '.', LEN);
	struct ibv_mr *mr = cache_get(addr, LEN);
	enum ibv_wc_status status = one_sided(&r, IBV_WR_RDMA_WRITE, addr, mr->lkey, r.buf, r.mr->rkey, LEN);
	say("%s: %s, %s", label, wc(status), all_are(r.buf, LEN, c) ? "as sent" : "other bytes");
}

/* Overwrites the beginning of a function by a jump, as UCX, Open MPI and libfabric do. */
static void hook(void *function, void *target)
{
	unsigned char jump[12] = { 0x48, 0xb8, [10] = 0xff, 0xe0 };
	memcpy(jump + 2, &target, 8);
	char *page = (char *)((uintptr_t)function & ~(PAGE - 1));
	NEED(mprotect(page, 2 * PAGE, PROT_READ | PROT_WRITE | PROT_EXEC) == 0);
	memcpy(function, jump, sizeof jump);
	NEED(mprotect(page, 2 * PAGE, PROT_READ | PROT_EXEC) == 0);
}

static bool late;

static int hooked_by_cache(void *addr, size_t len)
{
	cache_unmapped(addr, len, late);
	return (int)syscall(SYS_munmap, addr, len);
}

/* Another library's, which does not know that somebody was there before. */
static int hooked_by_other(void *addr, size_t len)
{
	return (int)syscall(SYS_munmap, addr, len);
}

/* Memory is sent, goes, comes back at the same address, and is sent again. */
__attribute__((noinline)) static void round_trip(void)
{
	char *p = island(LEN / PAGE);
	send_it("first", p, 'a');
	NEED(munmap(p, LEN) == 0);
	anon_at(p, LEN / PAGE);
	send_it("second", p, 'b');
}

/* Two sets of hooks fight: libfabric 6474, Open MPI 9255. */
static void two_hooks(void)
{
	hook(munmap, hooked_by_cache);
	hook(munmap, hooked_by_other);
	round_trip();
}

/* Whoever has hooks says that it will tell, and does not: UCX 3581. */
static void (*external)(char *addr, size_t len);
static void external_tells(char *addr, size_t len)
{
	cache_unmapped(addr, len, false);
}

static void external_event(void)
{
	external = external_tells;
	round_trip();
	(void)external;
}

/* munmap is hooked, and brk is not. */
static void heap_shrinks(void)
{
	hook(munmap, hooked_by_cache);
	char *now = sbrk(0);
	NEED(sbrk((intptr_t)(PAGE - (uintptr_t)now % PAGE)) != (void *)-1);
	char *p = sbrk(LEN);
	send_it("first", p, 'a');
	NEED(sbrk(-(intptr_t)LEN) != (void *)-1);
	NEED(sbrk(LEN) == p);
	send_it("second", p, 'b');
}

static void discarded(void)
{
	char *p = island(LEN / PAGE);
	send_it("first", p, 'a');
	NEED(madvise(p, LEN, MADV_DONTNEED) == 0);
	send_it("second", p, 'b');
}

/* By process_madvise of itself, which Linux 6.13 and later do: the last of two ranges. */
static void advised_itself(void)
{
	struct iovec ranges[2] = { { island(1), PAGE }, { island(LEN / PAGE), LEN } };
	char *p = ranges[1].iov_base;
	int self = (int)syscall(SYS_pidfd_open, getpid(), 0);
	NEED(self >= 0);
	send_it("first", p, 'a');
	NEED(syscall(SYS_process_madvise, self, ranges, 2, MADV_DONTNEED, 0) == (long)(PAGE + LEN));
	send_it("second", p, 'b');
	close(self);
}

/* The first of them alone. */
static void advised_elsewhere(void)
{
	struct iovec one = { island(1), PAGE };
	char *p = island(LEN / PAGE);
	int self = (int)syscall(SYS_pidfd_open, getpid(), 0);
	NEED(self >= 0);
	send_it("first", p, 'a');
	NEED(syscall(SYS_process_madvise, self, &one, 1, MADV_DONTNEED, 0) == (long)PAGE);
	send_it("second", p, 'b');
	close(self);
}

static void replaced(void)
{
	char *p = island(LEN / PAGE);
	send_it("first", p, 'a');
	anon_at(p, LEN / PAGE);
	send_it("second", p, 'b');
}

static void moved(void)
{
	char *p = island(LEN / PAGE), *to = island(LEN / PAGE);
	send_it("first", p, 'a');
	NEED(mremap(p, LEN, LEN, MREMAP_MAYMOVE | MREMAP_FIXED, to) == to);
	anon_at(p, LEN / PAGE);
	send_it("second", p, 'b');
}

/* A receive that is posted with a stale key. */
static void received(void)
{
	char *p = island(LEN / PAGE);
	struct ibv_mr *mr = cache_get(p, LEN);
	anon_at(p, LEN / PAGE);
	memset(r.buf, 'b', LEN);
	enum ibv_wc_status status = message(&r, r.buf, r.mr->lkey, p, mr->lkey, LEN);
	say("received: %s, %s", wc(status), all_are(p, LEN, 'b') ? "as sent" : "other bytes");
}

/* As it has to be. */
static void right(void)
{
	hook(munmap, hooked_by_cache);
	round_trip();
}

/* As UCX does it: what is unmapped is not used again, and deregistered at the next look-up. */
static void lazily(void)
{
	late = true;
	right();
}

/* The pages stay what they were. */
static void protected_for_a_while(void)
{
	char *p = island(LEN / PAGE);
	send_it("first", p, 'a');
	NEED(mprotect(p, LEN, PROT_NONE) == 0);
	NEED(mprotect(p, LEN, PROT_READ | PROT_WRITE) == 0);
	send_it("second", p, 'b');
}

/* Shared pages stay, too. */
static void shared(void)
{
	char *p = mmap(NULL, LEN, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	NEED(p != MAP_FAILED);
	send_it("first", p, 'a');
	NEED(madvise(p, LEN, MADV_DONTNEED) == 0);
	send_it("second", p, 'b');
}

static void leaks(void)
{
	cache_get(island(LEN / PAGE), LEN);
	exit(0);
}

static void not_writable(void)
{
	char *p = mmap(NULL, LEN, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	struct ibv_mr *mr = ibv_reg_mr(r.pd, p, LEN, 0);
	NEED(mr && ibv_dereg_mr(mr) == 0);
}

/* It may die of it. */
static void twice(void)
{
	struct ibv_mr *mr = ibv_reg_mr(r.pd, island(LEN / PAGE), LEN, ALL);
	NEED(mr && ibv_dereg_mr(mr) == 0);
	signal(SIGSEGV, SIG_DFL);
	ibv_dereg_mr(mr);
	raise(SIGKILL);
}

/* Legal, and a region for nothing; with other rights, or after the first is gone, it is not for nothing. */
static void registered_again(void)
{
	char *p = island(2);
	struct ibv_mr *first = ibv_reg_mr(r.pd, p, PAGE, ALL), *same = ibv_reg_mr(r.pd, p, PAGE, ALL);
	struct ibv_mr *fewer = ibv_reg_mr(r.pd, p, PAGE, IBV_ACCESS_LOCAL_WRITE), *more = ibv_reg_mr(r.pd, p, 2 * PAGE, ALL);
	NEED(first && same && fewer && more);
	NEED(ibv_dereg_mr(same) == 0 && ibv_dereg_mr(first) == 0);
	first = ibv_reg_mr(r.pd, p, PAGE, ALL);
	NEED(first && ibv_dereg_mr(first) == 0 && ibv_dereg_mr(fewer) == 0 && ibv_dereg_mr(more) == 0);
}

/* Many of one kind, and many registrations at a time: all of it is bounded. */
static void many(void)
{
	enum { COUNT = 300 };
	static struct ibv_mr *mrs[COUNT];
	char *p = island(COUNT);
	for (int i = 0; i < COUNT; i++) {
		mrs[i] = ibv_reg_mr(r.pd, p + i * PAGE, PAGE, ALL);
		NEED(mrs[i]);
	}
	NEED(munmap(p, COUNT * PAGE) == 0);
	for (int i = 0; i < COUNT; i++)
		NEED(ibv_dereg_mr(mrs[i]) == 0);
}

/* What registers and maps, for its cost: microseconds for each round. */
static void costs(void)
{
	enum { ROUNDS = 2000 };
	char *p = island(LEN / PAGE);
	memset(p, 1, LEN);
	struct timespec a, b;
	clock_gettime(CLOCK_MONOTONIC, &a);
	for (int i = 0; i < ROUNDS; i++) {
		struct ibv_mr *mr = ibv_reg_mr(r.pd, p, LEN, ALL);
		char *q = mmap(NULL, LEN, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		NEED(mr && q != MAP_FAILED && munmap(q, LEN) == 0 && ibv_dereg_mr(mr) == 0);
	}
	clock_gettime(CLOCK_MONOTONIC, &b);
	say("%.1f", ((double)(b.tv_sec - a.tv_sec) * 1e6 + (double)(b.tv_nsec - a.tv_nsec) / 1e3) / ROUNDS);
}

static const struct {
	const char *name;
	void (*run)(void);
} cases[] = {
	{ "two-hooks", two_hooks },
	{ "external-event", external_event },
	{ "brk", heap_shrinks },
	{ "discarded", discarded },
	{ "advised-itself", advised_itself },
	{ "advised-elsewhere", advised_elsewhere },
	{ "replaced", replaced },
	{ "moved", moved },
	{ "received", received },
	{ "right", right },
	{ "late", lazily },
	{ "protected", protected_for_a_while },
	{ "shared", shared },
	{ "leak", leaks },
	{ "not-writable", not_writable },
	{ "twice", twice },
	{ "again", registered_again },
	{ "many", many },
	{ "cost", costs },
};

int main(int argc, char **argv)
{
	NEED(argc == 2);
	r = rig();
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
		if (strcmp(argv[1], cases[i].name) == 0) {
			cases[i].run();
			cache_clear();
			rig_down(&r);
			return wrong != 0;
		}
	say("no case %s", argv[1]);
	return 2;
}
