/* Proves: however a process is made, its private memory is its own: each call, each way to make it, with and without a stack and threads of its own. */
/*
 * spawn [-v] [-b]: each combination in a process of its own, a line for each that is wrong.
 * The child looks at what its parent had written, writes its own, and looks again after its
 * parent has written; then the parent looks. The child makes no call of libc's, so that any
 * flags will do.
 *
 *   -v  a line for each combination
 *   -b  large memory must be a memfd's (REGALL_SHARE=heap), or nothing is tested
 */
#include <linux/sched.h>
#include <pthread.h>
#include "../check.h"

#define MIB (1ul << 20)
#define BLOCKS 3
#define BLOCK MIB
#define STACK MIB
#define TLS_ROOM (64ul << 10)

enum way { FORK, RAW_FORK, CLONE, CLONE3, WAYS };
static const char *const way_names[WAYS] = { "libc", "fork", "clone", "clone3" };
enum path { BY_LIBC, BY_SYSCALL, BY_ASM, PATHS };
static const char *const path_names[PATHS] = { "libc", "syscall()", "asm" };
enum stack { SAME, SMALL, LARGE, MALLOC, STACKS };
static const char *const stack_names[STACKS] = { "the same", "small", "mmap's", "malloc's" };

static const struct {
	unsigned long bits;
	int signal;
	const char *name;
} flags[] = {
	{ 0, SIGCHLD, "none" },
	{ 0, 0, "no signal" },
	{ CLONE_VFORK, SIGCHLD, "VFORK" },
	{ CLONE_PARENT, SIGCHLD, "PARENT" },
	{ CLONE_PARENT | CLONE_VFORK, SIGCHLD, "PARENT|VFORK" },
	{ CLONE_FS | CLONE_SYSVSEM | CLONE_IO, SIGCHLD, "FS|SYSVSEM|IO" },
	{ CLONE_CHILD_SETTID | CLONE_CHILD_CLEARTID | CLONE_PARENT_SETTID, SIGCHLD, "TIDs" },
	{ CLONE_SETTLS, SIGCHLD, "SETTLS" },
	{ CLONE_VM | CLONE_VFORK, SIGCHLD, "VM|VFORK" },
};
#define FLAGS (sizeof flags / sizeof flags[0])

static struct combination {
	enum way way;
	enum path path;
	enum stack stack;
	size_t flag;
	bool threads;
} now;

/* The child's part: by hand, since it may have neither libc's thread pointer nor its stack. */
#define ASM_CALL(nr, a, b, c)                                                                      \
	({                                                                                         \
		long r_;                                                                           \
		__asm__ volatile("mov %1, %%eax\n\tsyscall"                                        \
				 : "=&a"(r_)                                                       \
				 : "i"(nr), "D"((long)(a)), "S"((long)(b)), "d"((long)(c))         \
				 : "rcx", "r11", "memory");                                        \
		r_;                                                                                \
	})

static volatile char *blocks[BLOCKS];
static int go[2], back[2];
static volatile long tid_of_child, tid_of_parent;
static char *thread_area;

static void paint(char c)
{
	/* From the end: a copy that is being made goes the other way. */
	for (int b = BLOCKS - 1; b >= 0; b--)
		for (size_t at = BLOCK; at > 0; at -= PAGE)
			blocks[b][at - PAGE + 40] = c;
}

static bool painted(char c)
{
	for (int b = 0; b < BLOCKS; b++)
		for (size_t at = 0; at < BLOCK; at += PAGE)
			if (blocks[b][at + 40] != c)
				return false;
	return true;
}

__attribute__((used, noreturn, no_stack_protector)) static void live(void)
{
	char verdict = '.', word;
	unsigned long base = 0;
	if (!painted('p'))
		verdict = '1';
	paint('c');
	if (ASM_CALL(SYS_read, go[0], &word, 1) != 1)
		verdict = 'r';
	if (!painted('c'))
		verdict = '2';
	/* A hooked call: this process goes on as any. */
	long r;
	register long r10 __asm__("r10") = MAP_PRIVATE | MAP_ANONYMOUS, r8 __asm__("r8") = -1, r9 __asm__("r9") = 0;
	__asm__ volatile("mov %1, %%eax\n\tsyscall"
			 : "=&a"(r)
			 : "i"(SYS_mmap), "D"(0), "S"(MIB), "d"(PROT_READ | PROT_WRITE), "r"(r10), "r"(r8), "r"(r9)
			 : "rcx", "r11", "memory");
	if (r < 0 || (((volatile char *)r)[MIB / 2] = 1) != 1 || ASM_CALL(SYS_munmap, r, MIB, 0) != 0)
		verdict = 'm';
	if (flags[now.flag].bits & CLONE_SETTLS) {
		ASM_CALL(SYS_arch_prctl, 0x1003 /* ARCH_GET_FS */, &base, 0);
		if (base != (unsigned long)thread_area)
			verdict = 't';
	}
	if (flags[now.flag].bits & CLONE_CHILD_SETTID && tid_of_child != ASM_CALL(SYS_gettid, 0, 0, 0))
		verdict = 'i';
	ASM_CALL(SYS_write, back[1], &verdict, 1);
	for (;;)
		ASM_CALL(SYS_exit_group, 7, 0, 0);
}

static int live_of_libc(void *arg)
{
	(void)arg;
	live();
}

/* asm_*(arguments as the call's): on a stack of its own the child goes to what is on it. */
long asm_fork(void);
long asm_clone(unsigned long bits, void *stack, volatile long *ptid, volatile long *ctid, void *tls);
long asm_clone3(struct clone_args *args, size_t size, void *stack);
__asm__(".text\n"
	"asm_fork:\n\tmov $57, %eax\n\tsyscall\n\tret\n"
	"asm_clone:\n\tmov %rcx, %r10\n\tmov $56, %eax\n\tsyscall\n"
	"\ttest %rax, %rax\n\tjnz 1f\n\ttest %rsi, %rsi\n\tjz 1f\n\tpop %rax\n\tcall *%rax\n1:\tret\n"
	"asm_clone3:\n\tmov $435, %eax\n\tsyscall\n"
	"\ttest %rax, %rax\n\tjnz 1f\n\ttest %rdx, %rdx\n\tjz 1f\n\tpop %rax\n\tcall *%rax\n1:\tret\n");

static char *a_stack(void)
{
	char *p;
	switch (now.stack) {
	case SMALL: p = anon(16); return p + 16 * PAGE;
	case LARGE: p = anon(STACK / PAGE); return p + STACK;
	case MALLOC: p = malloc(STACK); NEED(p); return (char *)(((uintptr_t)p + STACK) & ~63ul);
	default: return NULL;
	}
}

/* Makes the child; in the parent, what the call returned. */
static long make(void)
{
	unsigned long bits = flags[now.flag].bits;
	long signal = flags[now.flag].signal;
	char *top = a_stack(), **sp = NULL;
	if (top && !(now.way == CLONE && now.path == BY_LIBC)) {
		sp = (char **)(void *)(top - 64);
		/* Where syscall()'s and our own way out go. */
		*sp = (char *)(uintptr_t)live;
	}
	/* The kernel wants it so with CLONE_PARENT, and goes by the caller's own. */
	unsigned long signal3 = bits & CLONE_PARENT ? 0 : (unsigned long)signal;
	struct clone_args args = { .flags = bits, .exit_signal = signal3,
				   .parent_tid = (uintptr_t)&tid_of_parent, .child_tid = (uintptr_t)&tid_of_child,
				   .tls = (uintptr_t)thread_area };
	if (sp) {
		args.stack = (uintptr_t)sp - STACK / 32;
		args.stack_size = STACK / 32;
	}
	long r = -1;
	switch (now.way) {
	case FORK: r = now.path == BY_LIBC ? fork() : _Fork(); break;
	case RAW_FORK: r = now.path == BY_SYSCALL ? syscall(SYS_fork) : asm_fork(); break;
	case CLONE:
		if (now.path == BY_LIBC)
			return clone(live_of_libc, top, (int)bits | (int)signal, NULL, &tid_of_parent, thread_area,
				     &tid_of_child);
		r = now.path == BY_SYSCALL ? syscall(SYS_clone, bits | (unsigned long)signal, sp, &tid_of_parent,
						     &tid_of_child, thread_area) :
					     asm_clone(bits | (unsigned long)signal, sp, &tid_of_parent, &tid_of_child,
						       thread_area);
		break;
	case CLONE3:
		r = now.path == BY_SYSCALL ? syscall(SYS_clone3, &args, sizeof args) :
					     asm_clone3(&args, sizeof args, sp);
		break;
	default: break;
	}
	if (r == 0)
		live();
	return r;
}

static void *idle(void *arg)
{
	for (;;)
		pause();
	return arg;
}

static bool in_a_memfd(const volatile char *p)
{
	char line[512];
	bool found = false;
	FILE *f = fopen("/proc/self/maps", "r");
	NEED(f);
	while (fgets(line, sizeof line, f)) {
		unsigned long start, end;
		if (sscanf(line, "%lx-%lx", &start, &end) == 2 && (uintptr_t)p >= start && (uintptr_t)p < end)
			found = strstr(line, "/memfd:") && strstr(line, " rw-s ");
	}
	fclose(f);
	return found;
}

/* What is wrong, or NULL. */
static const char *try(bool backed)
{
	static char told[40];
	bool vfork = flags[now.flag].bits & CLONE_VFORK, shares = flags[now.flag].bits & CLONE_VM;
	blocks[0] = anon(BLOCK / PAGE);
	blocks[1] = malloc(BLOCK);
	blocks[2] = sbrk((intptr_t)(BLOCK + MIB));
	NEED(blocks[1] && blocks[2] != (void *)-1);
	paint('p');
	if (backed && !(in_a_memfd(blocks[0]) && in_a_memfd(blocks[1]) && in_a_memfd(blocks[2] + MIB)))
		return "it is not shared";
	thread_area = (char *)anon(TLS_ROOM / PAGE) + TLS_ROOM / 2;
	*(char **)(void *)thread_area = thread_area;
	pthread_t t;
	if (now.threads)
		NEED(pthread_create(&t, NULL, idle, NULL) == 0);
	NEED(pipe(go) == 0 && pipe(back) == 0);
	if (vfork)
		NEED(write(go[1], "g", 1) == 1);
	long pid = make();
	if (pid < 0)
		return strerrorname_np(errno ? errno : (int)-pid);
	if (!shares)
		paint('q');
	if (!vfork)
		NEED(write(go[1], "g", 1) == 1);
	close(back[1]);
	char verdict = 0;
	if (read(back[0], &verdict, 1) != 1)
		return "the child died";
	if (verdict != '.') {
		snprintf(told, sizeof told, "the child says %c", verdict);
		return told;
	}
	if (!painted(shares ? 'c' : 'q'))
		return "the parent's memory is its child's";
	if (flags[now.flag].bits & CLONE_PARENT_SETTID && tid_of_parent != pid)
		return "CLONE_PARENT_SETTID";
	int status;
	if (flags[now.flag].bits & CLONE_PARENT)
		return waitpid((pid_t)pid, &status, __WALL) == -1 && errno == ECHILD ? NULL : "it is ours";
	NEED(waitpid((pid_t)pid, &status, __WALL) == pid);
	return WIFEXITED(status) && WEXITSTATUS(status) == 7 ? NULL : "its status";
}

static bool makes_sense(void)
{
	bool plain = now.flag == 0 && now.stack == SAME;
	switch (now.way) {
	case FORK: return plain && now.path != BY_ASM; /* the second is _Fork */
	case RAW_FORK: return plain && now.path != BY_LIBC;
	case CLONE:
		if (now.path == BY_LIBC)
			return now.stack != SAME;
		break;
	case CLONE3:
		if (now.path == BY_LIBC)
			return false;
		break;
	default: return false;
	}
	/* A child that shares memory must not return on its parent's stack. */
	return !(flags[now.flag].bits & CLONE_VM) || now.stack != SAME;
}

/* In a process of its own, whose parent this one is. Whether it was right. */
static bool one(bool backed, bool verbose)
{
	pid_t worker = fork();
	NEED(worker >= 0);
	if (worker == 0) {
		alarm(30);
		const char *wrong = try(backed);
		if (wrong || verbose)
			say("%s by %s, flags %s, stack %s, %s: %s", way_names[now.way], path_names[now.path],
			    flags[now.flag].name, stack_names[now.stack], now.threads ? "threads" : "alone",
			    wrong ? wrong : "ok");
		_exit(wrong != NULL);
	}
	/* With CLONE_PARENT there are two of them. */
	int status;
	bool right = true;
	for (pid_t pid; (pid = waitpid(-1, &status, __WALL)) > 0;)
		if (pid == worker && status != 0) {
			right = false;
			if (WIFSIGNALED(status))
				say("%s by %s, flags %s, stack %s, %s: SIG%s", way_names[now.way],
				    path_names[now.path], flags[now.flag].name, stack_names[now.stack],
				    now.threads ? "threads" : "alone", sigabbrev_np(WTERMSIG(status)));
		}
	return right;
}

int main(int argc, char **argv)
{
	bool verbose = false, backed = false;
	for (int i = 1; i < argc; i++) {
		verbose |= strcmp(argv[i], "-v") == 0;
		backed |= strcmp(argv[i], "-b") == 0;
	}
	int all = 0, wrong = 0;
	for (int way = 0; way < WAYS; way++)
		for (int path = 0; path < PATHS; path++)
			for (int stack = 0; stack < STACKS; stack++)
				for (size_t flag = 0; flag < FLAGS; flag++)
					for (int threads = 0; threads < 2; threads++) {
						now = (struct combination){ way, path, stack, flag, threads };
						if (!makes_sense())
							continue;
						all++;
						wrong += !one(backed, verbose);
					}
	say("%d combinations, %d wrong", all, wrong);
	return wrong != 0;
}
