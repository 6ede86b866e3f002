/* Proves: what a peer reads by DMA, by published keys, is what the owner's memory holds, whatever was mapped, moved and dropped before. */
/*
 * truth ROUNDS SEED REGALL [lend|all|both] [DEVICE]; REGALL is the command's path.
 *
 * To be run with the shim, REGALL_ACCESS=remote-read. In each round four threads make
 * random memory calls on memory of known places and fill it; then all of them sleep. A
 * second process, the reader (truth-reader.h), which runs without the shim, has by
 * `regall dump` the keys of everything, RDMA-reads what is new or was touched in this
 * round, every 50th round all there is, and compares with /proc/PID/mem. Everything has
 * to be equal, to the last byte: nothing is left out of the comparison.
 *
 * lend: memory is registered because of one ibv_reg_mr; all: because of
 * regall_register_all; both: because of two ibv_reg_mr, one with relaxed ordering, so
 * that there are two regions for each byte. The threads register memory themselves, too,
 * and the reader reads with those keys as well, as long as the memory is the same.
 */
#include <dlfcn.h>
#include <linux/futex.h>
#include <malloc.h>
#include <pthread.h>
#include <spawn.h>
#include <sys/prctl.h>
#include <sys/shm.h>
#include <ucontext.h>
#include "truth.h"
#include "truth-reader.h"

#define AREAS 12
#define AREA_PAGES 24ul
#define ARENA_PAGES 96ul
#define CALLS 12 /* in a round, for each thread */
#define CHILDREN 2
#define BREAK_PAGES 40l
#define BIG_PAGES (66ul << 8) /* more than one region can hold */

struct area {
	char *p;
	size_t pages;
	enum { FREE, PRIVATE, SHARED, SYSV } kind;
	int prot;   /* of all pages; -1: of each its own */
	bool twice; /* the pages have a second address */
	bool parts; /* may be more than one mapping to the kernel */
};

struct thread {
	uint64_t seed;
	int number;
	uint32_t round;
	const char *doing;
	struct account *account;
	struct area area[AREAS];
	char *arena; /* for fixed mappings, in one stretch with the others' */
	char *top;   /* of what the break was moved by */
	char *base;
	struct {
		pid_t pid;
		uint32_t until;
	} child[CHILDREN];
};

static struct account accounts[THREADS];
static struct thread threads[THREADS];
static pthread_t ids[THREADS];
static struct end here;
static uint64_t first_seed;
static _Atomic uint32_t go, arrived;
static uint32_t rounds;
static bool two_classes;
static uint64_t serial;

static uint64_t draw(struct thread *t)
{
	t->seed ^= t->seed << 13;
	t->seed ^= t->seed >> 7;
	t->seed ^= t->seed << 17;
	return t->seed;
}

static size_t below(struct thread *t, size_t n)
{
	return (size_t)((draw(t) >> 20) % n);
}

/* The thread's last calls, for the report of a failure. */
static void show_last(struct thread *t)
{
	for (uint32_t i = 0, many = t->account->many; i < 6 && i < many; i++) {
		const struct op *op = &t->account->op[(many - 1 - i) % OPS];
		say("  before: %s %lx-%lx", op->what, (unsigned long)op->from, (unsigned long)op->to);
	}
}

#define MUST(t, what)                                                                              \
	do {                                                                                       \
		if (!(what)) {                                                                     \
			say("failed: %s: %s: %s; seed %lu thread %d round %u", (t)->doing, #what,  \
			    strerrorname_np(errno), (unsigned long)first_seed, (t)->number,        \
			    (t)->round);                                                           \
			show_last(t);                                                              \
			_exit(80);                                                                 \
		}                                                                                  \
	} while (0)

/* Notes what is done to bytes, for the reader. */
static void note(struct thread *t, const char *what, const void *p, size_t n)
{
	struct account *a = t->account;
	struct op *op = &a->op[a->many % OPS];
	op->from = (uint64_t)p;
	op->to = (uint64_t)p + n;
	op->round = t->round;
	strncpy(op->what, what, sizeof op->what - 1);
	a->many++;
}

/* As `note`, for what gives the bytes other pages: a region of before is not theirs. */
static void changes(struct thread *t, const char *what, const void *p, size_t n)
{
	note(t, what, p, n);
	for (int i = 0; i < LOANS; i++) {
		struct loan *l = &t->account->loan[i];
		if (l->from < (uint64_t)p + n && l->to > (uint64_t)p)
			l->same = false;
	}
}

/* Each word is another one, here and at any other time. */
static void fill(struct thread *t, void *p, size_t n)
{
	uint64_t *w = p, with = __atomic_add_fetch(&serial, 1, __ATOMIC_RELAXED) << 40 ^ (uint64_t)p;
	note(t, "fill", p, n);
	for (size_t i = 0; i < n / 8; i++)
		w[i] = with + i * 8;
}

static bool writable(struct thread *t, struct area *a)
{
	if (a->kind == FREE)
		return false;
	if (a->prot != (PROT_READ | PROT_WRITE)) {
		note(t, "protect rw", a->p, a->pages * PAGE);
		MUST(t, mprotect(a->p, a->pages * PAGE, PROT_READ | PROT_WRITE) == 0);
		a->prot = PROT_READ | PROT_WRITE;
	}
	return true;
}

static void let_go(struct thread *t, struct area *a)
{
	if (a->kind == FREE)
		return;
	changes(t, "unmap", a->p, a->pages * PAGE);
	if (a->kind == SYSV)
		MUST(t, shmdt(a->p) == 0);
	else
		MUST(t, munmap(a->p, a->pages * PAGE) == 0);
	a->kind = FREE;
}

/* Maps an area, at `at` if that is free, else anywhere. */
static void map(struct thread *t, struct area *a, char *at)
{
	static const int extra[] = { 0, 0, 0, MAP_NORESERVE, MAP_STACK, MAP_POPULATE };
	let_go(t, a);
	if (!at)
		a->pages = below(t, AREA_PAGES) + 1;
	a->prot = PROT_READ | PROT_WRITE;
	a->twice = a->parts = false;
	a->kind = below(t, 3) ? PRIVATE : SHARED;
	int flags = (a->kind == PRIVATE ? MAP_PRIVATE : MAP_SHARED) | MAP_ANONYMOUS | extra[below(t, 6)];
	int fd = -1;
	if (below(t, 4) == 0) {
		fd = memory_file(a->pages * PAGE);
		flags &= ~MAP_ANONYMOUS;
		MUST(t, pwrite(fd, &fd, sizeof fd, (off_t)(below(t, a->pages) * PAGE)) == sizeof fd);
	}
	char *p = MAP_FAILED;
	if (at)
		p = mmap(at, a->pages * PAGE, a->prot, flags | MAP_FIXED_NOREPLACE, fd, 0);
	if (p == MAP_FAILED)
		p = mmap(NULL, a->pages * PAGE, a->prot, flags, fd, 0);
	MUST(t, p != MAP_FAILED);
	a->p = p;
	changes(t, p == at ? "map again" : "map", p, a->pages * PAGE);
	if (fd >= 0)
		close(fd);
	if (below(t, 2))
		fill(t, a->p, a->pages * PAGE);
}

static void map_again(struct thread *t, struct area *a)
{
	if (a->kind == PRIVATE || a->kind == SHARED)
		map(t, a, a->p);
}

/* Over whatever is in the thread's part of the arena there. */
static void map_fixed(struct thread *t, struct area *unused)
{
	(void)unused;
	size_t from = below(t, ARENA_PAGES), n = below(t, ARENA_PAGES - from < 20 ? ARENA_PAGES - from : 20) + 1;
	char *p = t->arena + from * PAGE;
	int prot = (int)below(t, 4) & ~PROT_WRITE;
	int kind = below(t, 4) ? MAP_PRIVATE : MAP_SHARED;
	if (below(t, 4))
		prot = PROT_READ | PROT_WRITE;
	changes(t, "map fixed", p, n * PAGE);
	MUST(t, mmap(p, n * PAGE, prot, kind | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == p);
	if (prot & PROT_WRITE && below(t, 2))
		fill(t, p, n * PAGE);
}

/* Head, tail or middle; what lies behind a hole is an area of its own, if there is room. */
static void punch(struct thread *t, struct area *a)
{
	if (a->kind != PRIVATE && a->kind != SHARED)
		return;
	size_t from = below(t, a->pages), to = from + 1 + below(t, a->pages - from);
	struct area *rest = NULL;
	for (int i = 0; i < AREAS; i++)
		if (t->area[i].kind == FREE)
			rest = &t->area[i];
	if (!rest)
		to = a->pages;
	changes(t, "punch", a->p + from * PAGE, (to - from) * PAGE);
	MUST(t, munmap(a->p + from * PAGE, (to - from) * PAGE) == 0);
	if (to < a->pages) {
		*rest = *a;
		rest->p = a->p + to * PAGE;
		rest->pages = a->pages - to;
	}
	a->pages = from;
	if (from == 0)
		a->kind = FREE;
}

static void protect(struct thread *t, struct area *a)
{
	static const int prots[] = { PROT_NONE, PROT_READ, PROT_READ | PROT_WRITE };
	if (a->kind == FREE)
		return;
	size_t from = below(t, a->pages), n = below(t, a->pages - from) + 1;
	if (below(t, 2)) {
		from = 0;
		n = a->pages;
	}
	int prot = prots[below(t, 3)];
	a->parts |= n < a->pages;
	note(t, "protect", a->p + from * PAGE, n * PAGE);
	MUST(t, mprotect(a->p + from * PAGE, n * PAGE, prot) == 0);
	a->prot = n == a->pages ? prot : a->prot == prot ? prot : -1;
}

static void advise(struct thread *t, struct area *a)
{
	if (a->kind == FREE)
		return;
	size_t from = below(t, a->pages), n = below(t, a->pages - from) + 1;
	if (below(t, 2)) {
		from = 0;
		n = a->pages;
	}
	char *p = a->p + from * PAGE;
	int advice = MADV_DONTNEED;
	switch (below(t, 8)) {
	case 0:
		if (a->kind == PRIVATE)
			advice = MADV_FREE;
		break;
	case 1:
		if (a->kind == PRIVATE && a->prot > 0)
			advice = below(t, 2) ? MADV_COLD : MADV_PAGEOUT;
		break;
	case 2:
		/* At the second address nobody can know that the pages are others now. */
		if (a->kind == SHARED && !a->twice && writable(t, a))
			advice = MADV_REMOVE;
		break;
	}
	changes(t, advice == MADV_DONTNEED ? "dontneed" : advice == MADV_FREE ? "free" : "advise", p, n * PAGE);
	int r = madvise(p, n * PAGE, advice);
	/* MADV_FREE is for anonymous memory only. */
	MUST(t, r == 0 || (advice == MADV_FREE && errno == EINVAL));
	if (below(t, 2) && writable(t, a))
		fill(t, p, n * PAGE / 2 / 8 * 8);
}

static void remap(struct thread *t, struct area *a)
{
	if (a->kind != PRIVATE || !writable(t, a))
		return;
	size_t pages = below(t, AREA_PAGES) + 1, old = a->pages * PAGE;
	/* Of several mappings mremap says EFAULT, with the target already unmapped. */
	switch (below(t, 3) + (a->parts ? 1 : 0)) {
	case 0: { /* into the arena */
		char *to = t->arena + below(t, ARENA_PAGES - a->pages) * PAGE;
		changes(t, "move from", a->p, old);
		changes(t, "move to", to, old);
		MUST(t, mremap(a->p, old, old, MREMAP_MAYMOVE | MREMAP_FIXED, to) == to);
		a->kind = FREE;
		return;
	}
	case 1: { /* the pages go, the mapping stays */
		char *to = mremap(a->p, old, old, MREMAP_MAYMOVE | MREMAP_DONTUNMAP, NULL);
		if (to == MAP_FAILED) {
			MUST(t, errno == EFAULT && a->parts);
			return;
		}
		changes(t, "emptied", a->p, old);
		changes(t, "moved to", to, old);
		MUST(t, munmap(to, old) == 0);
		if (below(t, 2))
			fill(t, a->p, old);
		return;
	}
	}
	changes(t, "remap from", a->p, old);
	char *p = mremap(a->p, old, pages * PAGE, MREMAP_MAYMOVE);
	if (p == MAP_FAILED) {
		MUST(t, errno == EFAULT && a->parts);
		return;
	}
	changes(t, "remap to", p, pages * PAGE);
	a->p = p;
	/* A file's mapping may reach past its end now. */
	size_t more = pages * PAGE > old ? pages * PAGE - old : 0;
	if (more && below(t, 2)) {
		MUST(t, munmap(p + old, more) == 0);
		return;
	}
	if (more) {
		char *q = mmap(p + old, more, a->prot, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
		MUST(t, q == p + old);
		a->parts = true;
	}
	a->pages = pages;
}

/* The same pages at a second address. */
static void twin(struct thread *t, struct area *a)
{
	struct area *b = &t->area[below(t, AREAS)];
	if (a->kind != SHARED || a == b || !writable(t, a))
		return;
	let_go(t, b);
	char *p = mremap(a->p, 0, PAGE, MREMAP_MAYMOVE);
	MUST(t, p != MAP_FAILED);
	changes(t, "twin", p, PAGE);
	a->twice = true;
	*b = (struct area){ p, 1, SHARED, PROT_READ | PROT_WRITE, true, false };
	fill(t, a->p, PAGE);
	note(t, "fill twin", p, PAGE);
}

static void attach(struct thread *t, struct area *a)
{
	let_go(t, a);
	a->pages = below(t, AREA_PAGES) + 1;
	int id = shmget(IPC_PRIVATE, a->pages * PAGE, IPC_CREAT | 0600);
	MUST(t, id >= 0);
	a->p = shmat(id, NULL, 0);
	MUST(t, a->p != (void *)-1);
	MUST(t, shmctl(id, IPC_RMID, NULL) == 0);
	changes(t, "attach", a->p, a->pages * PAGE);
	a->kind = SYSV;
	a->parts = false;
	a->prot = PROT_READ | PROT_WRITE;
	fill(t, a->p, a->pages * PAGE);
}

/* Only the first thread does; malloc's main arena has no other user then. */
static void move_break(struct thread *t, struct area *unused)
{
	(void)unused;
	if (t->number != 0 || sbrk(0) != t->top)
		return;
	long room = t->base + BREAK_PAGES * (long)PAGE - t->top;
	long by = below(t, 2) ? (long)below(t, (size_t)room + 1) : -(long)below(t, (size_t)(t->top - t->base) + 1);
	by &= ~7l;
	changes(t, "break", by < 0 ? t->top + by : t->top, (size_t)labs(by));
	MUST(t, sbrk(by) == t->top);
	t->top += by;
	if (by > 0)
		fill(t, t->top - by, (size_t)by);
}

static void heap(struct thread *t, struct area *unused)
{
	(void)unused;
	void *p[6];
	for (int i = 0; i < 6; i++) {
		size_t n = below(t, 6) ? below(t, 3000) : below(t, 300000);
		MUST(t, p[i] = malloc(n + 8));
		memset(p[i], i + 1, n + 8);
	}
	for (int i = 0; i < 6; i++)
		free(p[i]);
	if (below(t, 4) == 0)
		malloc_trim(0);
}

/* What the program writes itself, after which nothing has to be registered anew. */
static void rewrite(struct thread *t, struct area *a)
{
	if (writable(t, a))
		fill(t, a->p, a->pages * PAGE);
}

static void reap_child(struct thread *t, int i)
{
	int status;
	if (t->child[i].pid == 0)
		return;
	kill(t->child[i].pid, SIGKILL);
	MUST(t, waitpid(t->child[i].pid, &status, 0) == t->child[i].pid);
	t->child[i].pid = 0;
}

/* A child writes to what it has of its parent's, of which only what is shared shows
 * there; half of them live on for a while, so that pages are shared at quiet points. */
static void have_child(struct thread *t, struct area *unused)
{
	(void)unused;
	int i = (int)below(t, CHILDREN), pipes[2];
	reap_child(t, i);
	for (int k = 0; k < AREAS; k++) {
		struct area *a = &t->area[k];
		if (a->kind != FREE)
			note(t, "fork", a->p, a->pages * PAGE);
	}
	MUST(t, pipe2(pipes, O_CLOEXEC) == 0);
	pid_t parent = getpid(), pid = below(t, 4) ? fork() : _Fork();
	MUST(t, pid >= 0);
	if (pid == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		for (int k = 0; k < AREAS; k++) {
			struct area *a = &t->area[k];
			if (a->kind != FREE && a->prot == (PROT_READ | PROT_WRITE))
				memset(a->p, k + 1, a->pages * PAGE / 2);
		}
		for (int k = 0; k < AREAS; k++)
			if (t->area[k].kind == PRIVATE && k % 2)
				munmap(t->area[k].p, t->area[k].pages * PAGE);
		char done = getppid() == parent;
		give(pipes[1], &done, 1);
		for (;;)
			pause();
	}
	/* While the child is at it: these pages are nobody else's from then on. */
	for (int k = 0; k < AREAS; k += 3) {
		struct area *a = &t->area[k];
		if (a->kind == PRIVATE && a->prot == (PROT_READ | PROT_WRITE))
			fill(t, a->p, a->pages * PAGE);
	}
	char done;
	MUST(t, take(pipes[0], &done, 1));
	close(pipes[0]);
	close(pipes[1]);
	t->child[i].pid = pid;
	t->child[i].until = t->round + (uint32_t)below(t, 4);
	if (t->child[i].until == t->round)
		reap_child(t, i);
}

static void *empty_thread(void *arg)
{
	return arg;
}

static void short_thread(struct thread *t, struct area *unused)
{
	(void)unused;
	pthread_t one;
	MUST(t, pthread_create(&one, NULL, empty_thread, NULL) == 0);
	MUST(t, pthread_join(one, NULL) == 0);
}

/* The program registers memory itself, and gives it back later. */
static void lend(struct thread *t, struct area *a)
{
	struct loan *l = &t->account->loan[below(t, LOANS)];
	if (l->mr) {
		MUST(t, ibv_dereg_mr(l->mr) == 0);
		*l = (struct loan){ 0 };
		if (below(t, 2))
			return;
	}
	if (!writable(t, a))
		return;
	size_t from = below(t, a->pages * PAGE), n = below(t, a->pages * PAGE - from) + 1;
	l->readable = below(t, 4) != 0;
	int access = IBV_ACCESS_LOCAL_WRITE | (l->readable ? IBV_ACCESS_REMOTE_READ : 0);
	/* More than REGALL_ACCESS gives: these keys are taken back. */
	if (l->readable && getenv("REGALL_REVOKE_MS"))
		access |= IBV_ACCESS_REMOTE_WRITE;
	if (two_classes && below(t, 4) == 0)
		access |= IBV_ACCESS_RELAXED_ORDERING;
	note(t, "reg_mr", a->p + from, n);
	MUST(t, l->mr = ibv_reg_mr(here.pd, a->p + from, n, access));
	l->rkey = l->mr->rkey;
	l->from = (uint64_t)a->p + from;
	l->to = l->from + n;
	l->same = true;
}

static void map_anywhere(struct thread *t, struct area *a)
{
	map(t, a, NULL);
}

static void step(struct thread *t)
{
	static const struct {
		unsigned weight;
		const char *name;
		void (*call)(struct thread *, struct area *);
	} kinds[] = {
		{ 14, "map", map_anywhere }, { 10, "map again", map_again }, { 10, "map fixed", map_fixed },
		{ 5, "unmap", let_go },      { 8, "punch", punch },          { 10, "protect", protect },
		{ 14, "advise", advise },    { 10, "remap", remap },         { 4, "twin", twin },
		{ 5, "attach", attach },     { 3, "break", move_break },     { 5, "heap", heap },
		{ 8, "rewrite", rewrite },   { 1, "fork", have_child },      { 1, "thread", short_thread },
		{ 14, "reg_mr", lend },
	};
	size_t n = below(t, 122);
	for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
		if (n < kinds[i].weight) {
			t->doing = kinds[i].name;
			return kinds[i].call(t, &t->area[below(t, AREAS)]);
		}
		n -= kinds[i].weight;
	}
}

static void show_line(const char *what, uint64_t at)
{
	char text[512];
	unsigned long from, to;
	say("  %s %lx", what, (unsigned long)at);
	FILE *f = fopen("/proc/self/maps", "r");
	while (f && fgets(text, sizeof text, f))
		if (sscanf(text, "%lx-%lx", &from, &to) == 2 && from <= at && at < to)
			say("    in %.*s", (int)strcspn(text, "\n"), text);
	if (f)
		fclose(f);
}

/* Nothing here faults by itself. Says where, with what may be the calls that led there. */
static void on_fault(int sig, siginfo_t *info, void *context)
{
	const greg_t *regs = ((ucontext_t *)context)->uc_mcontext.gregs;
	struct thread *t = &threads[0];
	for (int i = 0; i < THREADS; i++)
		if (pthread_equal(ids[i], pthread_self()))
			t = &threads[i];
	signal(sig, SIG_DFL);
	say("failed: %s: %s; seed %lu thread %d round %u", t->doing, strsignal(sig), (unsigned long)first_seed, t->number,
	    t->round);
	show_last(t);
	show_line("address", (uint64_t)info->si_addr);
	show_line("instruction", (uint64_t)regs[REG_RIP]);
	Dl_info in;
	uint64_t *stack = (uint64_t *)(regs[REG_RSP] & ~7ll);
	for (int i = 0; i < 400; i++)
		if (dladdr((void *)stack[i], &in) && in.dli_fname && strstr(in.dli_fname, "libregall"))
			say("  stack %lx: libregall+%#lx", (unsigned long)&stack[i], (unsigned long)(stack[i] - (uint64_t)in.dli_fbase));
	raise(sig);
}

static void sleep_on(_Atomic uint32_t *word, uint32_t value)
{
	while (*word == value)
		syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, value, NULL, NULL, 0);
}

static void wake(_Atomic uint32_t *word)
{
	syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, INT32_MAX, NULL, NULL, 0);
}

static void *run(void *arg)
{
	struct thread *t = arg;
	for (t->round = 1; t->round <= rounds; t->round++) {
		for (int i = 0; i < CHILDREN; i++)
			if (t->round >= t->child[i].until)
				reap_child(t, i);
		for (int i = 0; i < CALLS; i++)
			step(t);
		arrived++;
		wake(&arrived);
		sleep_on(&go, t->round - 1);
	}
	for (int i = 0; i < CHILDREN; i++)
		reap_child(t, i);
	for (int i = 0; i < LOANS; i++)
		if (t->account->loan[i].mr)
			MUST(t, ibv_dereg_mr(t->account->loan[i].mr) == 0);
	for (int i = 0; i < AREAS; i++)
		let_go(t, &t->area[i]);
	return NULL;
}

/* Every 250 rounds there is a mapping of more than one region, then with a hole, then none. */
static void big(uint32_t round)
{
	static char *p;
	size_t hole = (BIG_PAGES - 100) * PAGE;
	switch (round % 250) {
	case 10:
		p = anon(BIG_PAGES);
		for (size_t i = 0; i < BIG_PAGES; i++)
			*(size_t *)(p + i * PAGE) = i + round;
		break;
	case 11: NEED(munmap(p + hole, PAGE) == 0); break;
	case 12:
		NEED(munmap(p, hole) == 0);
		NEED(munmap(p + hole + PAGE, 99 * PAGE) == 0);
		break;
	}
}

/* Registers so much that the shim adopts the protection domain for this access, if it waits for that. */
static void pay(struct ibv_pd *pd, int access)
{
	const size_t pages = 1024;
	char *p = anon(pages);
	bool adopted = false;
	for (int n = 0; n < 512 && !adopted; n++) {
		struct ibv_mr *one = ibv_reg_mr(pd, p, pages * PAGE, access);
		struct ibv_mr *two = ibv_reg_mr(pd, p, pages * PAGE, access);
		NEED(one && two);
		adopted = one->lkey == two->lkey;
		NEED(ibv_dereg_mr(one) == 0 && ibv_dereg_mr(two) == 0);
	}
	NEED(adopted);
	NEED(munmap(p, pages * PAGE) == 0);
}

static void registered_in(const struct end *e, const char *mode)
{
	char *page = anon(1);
	int access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ;
	if (strcmp(mode, "all") == 0) {
		int (*all)(void *) = (int (*)(void *))dlsym(RTLD_DEFAULT, "regall_register_all");
		NEED(all && all(e->pd) == 0);
		return;
	}
	pay(e->pd, access);
	NEED(ibv_reg_mr(e->pd, page, 100, access));
	if (two_classes) {
		pay(e->pd, access | IBV_ACCESS_RELAXED_ORDERING);
		NEED(ibv_reg_mr(e->pd, page, 100, access | IBV_ACCESS_RELAXED_ORDERING));
	}
}

/* The reader, by the same file, without the shim. */
static pid_t start_reader(const char *regall, const char *device, int *to, int *from)
{
	int a[2], b[2];
	NEED(pipe(a) == 0 && pipe(b) == 0);
	char in[16], out[16];
	snprintf(in, sizeof in, "%d", a[0]);
	snprintf(out, sizeof out, "%d", b[1]);
	extern char **environ;
	char *env[256], *argv[] = { "truth", "--reader", in, out, (char *)regall, (char *)device, NULL };
	int n = 0;
	for (char **e = environ; *e && n < 255; e++)
		if (strncmp(*e, "LD_PRELOAD", 10) != 0 && strncmp(*e, "REGALL", 6) != 0)
			env[n++] = *e;
	env[n] = NULL;
	/* So that it sees the end if the owner dies. */
	NEED(fcntl(a[1], F_SETFD, FD_CLOEXEC) == 0 && fcntl(b[0], F_SETFD, FD_CLOEXEC) == 0);
	pid_t pid;
	NEED(posix_spawn(&pid, "/proc/self/exe", NULL, NULL, argv, env) == 0);
	close(a[0]);
	close(b[1]);
	*to = a[1];
	*from = b[0];
	return pid;
}

static void start_threads(void)
{
	char *arena = reserve(THREADS * ARENA_PAGES);
	for (int i = 0; i < THREADS; i++) {
		struct thread *t = &threads[i];
		t->seed = first_seed * 0x9e3779b97f4a7c15ul + (uint64_t)i * 0xda942042e4dd58b5ul + 1;
		t->number = i;
		t->account = &accounts[i];
		t->arena = arena + (size_t)i * ARENA_PAGES * PAGE;
	}
	threads[0].base = threads[0].top = sbrk(0);
	pthread_attr_t attr;
	NEED(pthread_attr_init(&attr) == 0 && pthread_attr_setstacksize(&attr, 256 << 10) == 0);
	for (int i = 0; i < THREADS; i++)
		NEED(pthread_create(&ids[i], &attr, run, &threads[i]) == 0);
}

int main(int argc, char **argv)
{
	if (argc > 5 && strcmp(argv[1], "--reader") == 0)
		return reader(atoi(argv[2]), atoi(argv[3]), argv[4], argv[5]);
	if (argc > 2 && strcmp(argv[1], "--fetcher") == 0)
		return fetcher(argv[2]);
	if (argc < 4) {
		say("truth ROUNDS SEED REGALL [lend|all|both] [DEVICE]");
		return 2;
	}
	rounds = (uint32_t)atol(argv[1]);
	first_seed = strtoul(argv[2], NULL, 0);
	const char *mode = argc > 4 ? argv[4] : "lend", *device = argc > 5 ? argv[5] : ADAPTER;
	two_classes = strcmp(mode, "both") == 0;
	int to, from;
	pid_t pid = start_reader(argv[3], device, &to, &from);

	struct sigaction act = { .sa_sigaction = on_fault, .sa_flags = SA_SIGINFO };
	NEED(sigaction(SIGSEGV, &act, NULL) == 0 && sigaction(SIGBUS, &act, NULL) == 0);
	here = open_end(device, 1);
	const char *how = getenv("REGALL_HCA_MODE");
	struct hello hello = {
		.place = here.place,
		.pd = here.pd->handle,
		.account = (uint64_t)accounts,
		.go = (uint64_t)&go,
		.seed = first_seed,
		.pid = getpid(),
		.on_demand = how && strcmp(how, "odp") == 0,
	};
	struct place there;
	NEED(give(to, &hello, sizeof hello) && take(from, &there, sizeof there));
	connect_end(&here, &there);
	NEED(give(to, "", 1));
	registered_in(&here, mode);
	start_threads();

	struct quiet quiet = { 0 };
	char verdict = 0;
	while (quiet.round < rounds && verdict == 0) {
		big(++quiet.round);
		for (uint32_t n; (n = arrived) < THREADS;)
			sleep_on(&arrived, n);
		arrived = 0;
		quiet.all = quiet.round % 50 == 0 || quiet.round == rounds;
		quiet.last = quiet.round == rounds;
		if (!give(to, &quiet, sizeof quiet) || !take(from, &verdict, 1))
			verdict = 2;
		if (verdict)
			break;
		go = quiet.round;
		wake(&go);
	}
	int status;
	NEED(waitpid(pid, &status, 0) == pid);
	if (verdict || status)
		_exit(verdict ? verdict : 3);
	for (int i = 0; i < THREADS; i++)
		pthread_join(ids[i], NULL);
	return 0;
}
