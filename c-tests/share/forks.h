/*
 * differ.c's children: every way to fork, what a child may be locked into, and forks while a
 * thread writes. A part of differ.c, in a file of its own.
 */
#ifndef REGALL_FORKS_H
#define REGALL_FORKS_H

#include "../filter.h"

/* -- forks ----------------------------------------------------------------------------- */

struct later {
	struct lane *l;
	size_t page, offset, n;
	const char *src;
};
#define LATER 12

/* Draws what the parent will write while its child looks. */
static int plan(struct later *later)
{
	int n = 0;
	for (int k = 0; k < LATER; k++) {
		struct lane *l = some_lane(ANYWHERE);
		size_t page = some_page(l, is_plain);
		if (page == LANE_PAGES)
			continue;
		size_t bytes = bytes_of(l, page), offset = below(bytes), some = 1 + below(bytes - offset);
		later[n++] = (struct later){ l, page, offset, some, some_source(some) };
	}
	return n;
}

/* What fork does to the model: in the child alone. */
static void fork_the_model(void)
{
	struct iovec here, there;
	char byte;
	depth++;
	model_of_child();
	for (int k = 0; k < LANES; k++) {
		struct lane *l = &lanes[k];
		for (size_t i = 0; i < l->pages; i++) {
			if (is(l, i, NOFORK)) {
				here = (struct iovec){ &byte, 1 };
				there = (struct iovec){ at(l, i), 1 };
				if (process_vm_readv(getpid(), &here, 1, &there, 1, 0) != -1 || errno != EFAULT)
					find("MADV_DONTFORK: a child has it");
				gone(l, i, 1);
				continue;
			}
			l->page[i].state &= (unsigned char)~LOCKED;
			if (is(l, i, WIPE)) {
				l->page[i].state &= (unsigned char)~GUARD;
				zero(l, i, WIPED);
			}
		}
	}
}

static void steps(unsigned long n);

static _Noreturn void child(uint64_t rng_of_child, int go, int back)
{
	char word;
	rng = digest = rng_of_child;
	fork_the_model();
	describe("the child's first look");
	look_at_all("in a child: ");
	NEED(read(go, &word, 1) == 1);
	describe("the child's second look");
	look_at_all("in a child after its parent's writes: ");
	unsigned long saved = step;
	steps(2 + below(20));
	step = saved;
	describe("the child's last look");
	look_at_all("in a child at its end: ");
	NEED(write(back, &digest, sizeof digest) == sizeof digest);
	_exit(0);
}

/* For a child on a stack of its own. */
static struct start {
	uint64_t rng;
	int go, back;
} start;
#define STACK (1ul << 20)

static int child_of_clone(void *arg)
{
	(void)arg;
	child(start.rng, start.go, start.back);
}

/* Ways that need care of whoever waits: the parent sleeps until the child's end; the child is
 * made by another, which ends at once, and is a child of its parent's. */
enum { BY_VFORK = 5, BY_PARENT = 6, WAYS = 7 };

static pid_t sibling(void)
{
	pid_t pid = fork();
	if (pid != 0)
		return pid;
	fork_the_model();
	pid = (pid_t)syscall(SYS_clone, (long)(CLONE_PARENT | SIGCHLD), 0l, 0l, 0l, 0l);
	if (pid != 0)
		_exit(pid > 0 ? 0 : 85);
	return 0;
}

static pid_t fork_by(int way)
{
	struct clone_args args = { .exit_signal = SIGCHLD };
	switch (way) {
	case 0: return fork();
	case 1: return _Fork();
	case 2: return (pid_t)syscall(SYS_clone3, &args, sizeof args);
	case 3: {
		char *stack = anon(STACK / PAGE);
		pid_t pid = clone(child_of_clone, stack + STACK, SIGCHLD, NULL);
		NEED(munmap(stack, STACK) == 0);
		return pid;
	}
	case BY_VFORK: return (pid_t)syscall(SYS_clone, (long)(CLONE_VFORK | SIGCHLD), 0l, 0l, 0l, 0l);
	case BY_PARENT: return sibling();
	default: return (pid_t)syscall(SYS_clone, (long)SIGCHLD, 0l, 0l, 0l, 0l);
	}
}

/* Status of the child, or of the one of two that failed. */
static int ended(pid_t pid, int way)
{
	int status = 0, other = 0;
	NEED(waitpid(pid, &status, 0) == pid);
	if (way == BY_PARENT && status == 0) {
		NEED(waitpid(-1, &other, 0) > 0);
		status = other;
	}
	return status;
}

static void op_fork(void)
{
	if (depth >= 2) {
		nothing();
		return;
	}
	struct later later[LATER];
	int many = plan(later), way = (int)below(depth == 0 ? WAYS : BY_PARENT), go[2], back[2];
	uint64_t rng_of_child = draw(), report = 0;
	describe("fork %d", way);
	NEED(pipe2(go, O_CLOEXEC) == 0 && pipe2(back, O_CLOEXEC) == 0);
	start = (struct start){ rng_of_child, go[0], back[1] };
	if (way == BY_VFORK)
		NEED(write(go[1], "g", 1) == 1);
	pid_t pid = fork_by(way);
	NEED(pid >= 0);
	if (pid == 0)
		child(rng_of_child, go[0], back[1]);
	for (int i = 0; i < many; i++) {
		int sig = copied(at(later[i].l, later[i].page) + later[i].offset, later[i].src, later[i].n);
		if (sig)
			find("SIG%s on writing after a fork", sigabbrev_np(sig));
	}
	if (way != BY_VFORK)
		NEED(write(go[1], "g", 1) == 1);
	close(back[1]);
	if (read(back[0], &report, sizeof report) != sizeof report)
		report = 0;
	close(back[0]);
	close(go[0]);
	close(go[1]);
	int status = ended(pid, way);
	for (int i = 0; i < many; i++)
		note_written(later[i].l, later[i].page, later[i].offset, later[i].src, later[i].n);
	describe("fork %d", way);
	if (status != 0) {
		if (!going_on)
			_exit(WIFEXITED(status) ? WEXITSTATUS(status) : 83);
		find("a child ended with %s %d", WIFEXITED(status) ? "exit" : "signal",
		     WIFEXITED(status) ? WEXITSTATUS(status) : WTERMSIG(status));
	}
	mix(report);
	look_at_all("in a parent after its child: ");
	result(0);
}

/* -- sandboxes ------------------------------------------------------------------------- */

/* munlock: without it what is pinned by then stays pinned (docs/limits.md). */
static const unsigned allowed[] = {
	SYS_munlock, SYS_mmap, SYS_munmap, SYS_mremap, SYS_mprotect, SYS_madvise, SYS_write, SYS_exit, SYS_exit_group,
};
#define ALLOWED (sizeof allowed / sizeof allowed[0])

/* Every other call is refused. */
static void lock_in(void)
{
	struct sock_filter code[2 * ALLOWED + 2];
	size_t n = 0;
	code[n++] = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr));
	for (size_t i = 0; i < ALLOWED; i++) {
		code[n++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, allowed[i], 0, 1);
		code[n++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
	}
	code[n++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM);
	install_filter(code, n);
}

/* What makes no call that is not allowed. */
static void (*const in_a_box[])(void) = { op_map, op_map_fixed, op_unmap, op_remap, op_protect, op_advise, op_write, op_look };

static _Noreturn void boxed(bool filtered, uint64_t rng_of_child, int back)
{
	rng = digest = rng_of_child;
	fork_the_model();
	NEED(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
	if (filtered)
		lock_in();
	describe("the first look in a sandbox");
	look_at_all("in a sandbox: ");
	for (size_t n = 2 + below(20); n > 0; n--)
		in_a_box[below(sizeof in_a_box / sizeof in_a_box[0])]();
	describe("the last look in a sandbox");
	look_at_all("in a sandbox at its end: ");
	NEED(write(back, &digest, sizeof digest) == sizeof digest);
	_exit(0);
}

static void op_sandbox(void)
{
	static const int ways[] = { 0, 1, 2, 4, BY_VFORK };
	bool filtered = !once_in(3);
	int way = ways[below(5)], back[2];
	uint64_t rng_of_child = draw(), report = 0;
	if (depth >= 2) {
		nothing();
		return;
	}
	describe("sandbox %d way %d", filtered, way);
	NEED(pipe2(back, O_CLOEXEC) == 0);
	pid_t pid = fork_by(way);
	NEED(pid >= 0);
	if (pid == 0)
		boxed(filtered, rng_of_child, back[1]);
	close(back[1]);
	if (read(back[0], &report, sizeof report) != sizeof report)
		report = 0;
	close(back[0]);
	int status = ended(pid, way);
	if (status != 0) {
		if (!going_on)
			_exit(WIFEXITED(status) ? WEXITSTATUS(status) : 83);
		find("a sandbox ended with status %x", (unsigned)status);
	}
	mix(report);
	result(0);
}

/* Shares the memory until it execs, so its write is its parent's. */
static void op_vfork(void)
{
	struct lane *l = some_lane(MAPPINGS);
	size_t page = some_page(l, is_plain);
	if (page == LANE_PAGES) {
		nothing();
		return;
	}
	char *p = at(l, page);
	char *const argv[] = { "differ", "-leaf", NULL };
	describe("vfork %c %zu", name_of(l), page);
	pid_t pid = vfork();
	if (pid == 0) {
		*(volatile char *)p = 'v';
		execve("/proc/self/exe", argv, environ);
		_exit(84);
	}
	NEED(pid > 0);
	int status = 0;
	NEED(waitpid(pid, &status, 0) == pid);
	note_written(l, page, 0, "v", 1);
	look(l, page);
	result(status);
}

/* -- fork while a thread writes --------------------------------------------------------- */

static struct race {
	volatile uint64_t *a, *b;
	volatile bool stop;
} race;

static void *writer(void *arg)
{
	(void)arg;
	for (uint64_t i = 1; !race.stop; i++) {
		__atomic_store_n(race.a, i, __ATOMIC_RELEASE);
		__atomic_store_n(race.b, i, __ATOMIC_RELEASE);
	}
	return NULL;
}

/* 0 if a child sees one moment, and the same a little later. */
static int one_moment(void)
{
	uint64_t a = *race.a, b = *race.b;
	if (b > a)
		return 1;
	if (a > b + 1)
		return 2;
	usleep(200);
	return *race.a == a && *race.b == b ? 0 : 3;
}

static const char *const moments[] = { "", "b newer than a", "a newer than b by more than one", "a parent's later write" };

static void fork_while_writing(volatile uint64_t *a, volatile uint64_t *b, long forks, const char *where)
{
	pthread_t thread;
	race = (struct race){ a, b, false };
	*a = *b = 0;
	NEED(pthread_create(&thread, NULL, writer, NULL) == 0);
	while (*b == 0)
		sched_yield();
	for (long i = 0; i < forks; i++) {
		pid_t pid = fork();
		NEED(pid >= 0);
		if (pid == 0)
			_exit(one_moment());
		int status;
		NEED(waitpid(pid, &status, 0) == pid);
		if (!WIFEXITED(status) || WEXITSTATUS(status) > 3)
			find("a child of a fork while a thread writes: status %x, %s", (unsigned)status, where);
		else if (WEXITSTATUS(status))
			find("a child sees %s: %s", moments[WEXITSTATUS(status)], where);
	}
	race.stop = true;
	pthread_join(thread, NULL);
}

static uint64_t counter_in_bss[2 * PAGE / 8];

static volatile uint64_t *word(char *p, size_t offset)
{
	return (volatile uint64_t *)(void *)(p + offset);
}

static void races(long forks)
{
	size_t large = 4ul << 20;
	char *x = anon(large / PAGE), *y = anon(large / PAGE), *small = anon(1);
	char *block = malloc(1 << 20), *broken = sbrk(1 << 20);
	NEED(block && broken != (void *)-1);
	memset(x, 1, large);
	memset(y, 1, large);
	const struct {
		volatile uint64_t *a, *b;
		const char *where;
	} pairs[] = {
		{ word(x, 64), word(x, 128), "one page" },
		{ word(x, 64), word(x, large - 64), "first and last page" },
		{ word(x, large - 64), word(x, 64), "last and first page" },
		{ word(x, 64), word(y, 64), "two mappings" },
		{ word(y, 64), word(x, 64), "two mappings, the other way round" },
		{ word(x, 64), word(small, 64), "large and small" },
		{ word(small, 64), word(x, 64), "small and large" },
		{ word(x, 64), &counter_in_bss[8], "large and bss" },
		{ &counter_in_bss[8], word(x, 64), "bss and large" },
		{ word(block, 65536), word(broken, 65536), "malloc and sbrk" },
		{ word(broken, 65536), word(block, 65536), "sbrk and malloc" },
	};
	for (size_t i = 0; i < sizeof pairs / sizeof pairs[0]; i++)
		fork_while_writing(pairs[i].a, pairs[i].b, forks, pairs[i].where);
	say("races: %d kinds of wrong", finds->count);
}

static void op_race(void)
{
	describe("fork while a thread writes");
	struct lane *l = some_lane(SLOT | ZONE), *m = some_lane(SLOT | ZONE);
	size_t i = some_page(l, is_inherited), k = some_page(m, is_inherited);
	if (depth > 0 || i == LANE_PAGES || k == LANE_PAGES || (l == m && i == k)) {
		nothing();
		return;
	}
	fork_while_writing(word(at(l, i), 0), word(at(m, k), 8), 2, "anywhere");
	/* How far it came is nobody's business. */
	store(l, i, 0, source, PAGE);
	store(m, k, 0, source, PAGE);
	result(0);
}

#endif
