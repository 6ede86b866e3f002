/* Proves: a program that puts itself under a seccomp filter, which lets through what the program itself calls and ends it for anything else, lives on as without the shim. */
#include <dlfcn.h>
#include <malloc.h>
#include <pthread.h>
#include <ucontext.h>

#include "filter.h"

#define COUNT(a) (sizeof(a) / sizeof *(a))
#define MOST 64

/* What each part of this program calls. */
#define MEMORY                                                                                     \
	SYS_mmap, SYS_munmap, SYS_mprotect, SYS_mremap, SYS_brk, SYS_madvise, SYS_msync, SYS_write, SYS_exit_group
#define THREADS                                                                                    \
	SYS_clone3, SYS_rt_sigaction, SYS_rt_sigprocmask, SYS_set_robust_list, SYS_rseq, SYS_exit, SYS_futex
#define LIBRARIES                                                                                  \
	SYS_openat, SYS_read, SYS_newfstatat, SYS_pread64, SYS_close
#define CHILDREN SYS_clone, SYS_wait4, SYS_set_robust_list, SYS_rt_sigprocmask

static const unsigned memory[] = { MEMORY };
static const unsigned threads[] = { MEMORY, THREADS };
static const unsigned libraries[] = { MEMORY, LIBRARIES };
static const unsigned children[] = { MEMORY, CHILDREN };

/* What the shim may want to call, and no part of this program but one. */
static const unsigned each[] = {
	SYS_openat,	  SYS_close,	     SYS_read,		SYS_pread64,	      SYS_process_vm_readv,
	SYS_mlock,	  SYS_mlock2,	     SYS_munlock,	SYS_munlockall,	      SYS_getpid,
	SYS_gettid,	  SYS_clock_gettime, SYS_rt_sigprocmask, SYS_futex,	      SYS_mincore,
	SYS_prlimit64,	  SYS_unlink,	     SYS_unlinkat,	SYS_newfstatat,	      SYS_fstat,
	SYS_ftruncate,	  SYS_fallocate,     SYS_memfd_create,	SYS_sigaltstack,      SYS_ioctl,
	SYS_tgkill,	  SYS_getrandom,     SYS_capget,	SYS_process_madvise,  SYS_nanosleep,
	SYS_sched_yield,
};

enum way { BY_PRCTL, BY_SECCOMP, FOR_ALL };

/* Puts this process under a filter that gives `action` to what is not (or, if `not`, to what is) in `calls`. */
static bool enter(enum way way, unsigned action, bool not, const unsigned *calls, size_t n)
{
	static struct sock_filter code[2 * MOST + 2];
	size_t k = 0;
	code[k++] = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr));
	for (size_t i = 0; i < n; i++) {
		code[k++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, calls[i], 0, 1);
		code[k++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, not ? action : SECCOMP_RET_ALLOW);
	}
	code[k++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, not ? SECCOMP_RET_ALLOW : action);
	struct sock_fprog filter = { (unsigned short)k, code };
	NEED(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
	if (way == BY_PRCTL)
		return prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) == 0;
	unsigned flags = way == FOR_ALL ? SECCOMP_FILTER_FLAG_TSYNC : 0;
	return syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, flags, &filter) == 0;
}

static void trapped(int signal, siginfo_t *info, void *context)
{
	(void)signal;
	say("trapped: %d", info->si_syscall);
	((ucontext_t *)context)->uc_mcontext.gregs[REG_RAX] = -EPERM;
}

/* Every call that changes memory, on what was there before and on what is new. */
static void move(char *old)
{
	char *p = anon(64);
	memset(p, 1, 64 * PAGE);
	CALL(mprotect(p, 8 * PAGE, PROT_NONE));
	CALL(mprotect(p, 8 * PAGE, PROT_READ | PROT_WRITE));
	CALL(madvise(p + 8 * PAGE, 8 * PAGE, MADV_DONTNEED));
	say("dropped: %d", all_are(p + 8 * PAGE, 8 * PAGE, 0));
	char *grown = MAP_AS("grow", mremap(p, 64 * PAGE, 128 * PAGE, MREMAP_MAYMOVE));
	say("kept: %d", all_are(grown, 8 * PAGE, 1));
	CALL(munmap(grown + 16 * PAGE, 16 * PAGE));
	CALL(munmap(grown, 16 * PAGE));
	CALL(munmap(grown + 32 * PAGE, 96 * PAGE));
	say("old: %d", all_are(old, 32 * PAGE, 7));
	CALL(madvise(old, 8 * PAGE, MADV_DONTNEED));
	CALL(mprotect(old + 8 * PAGE, 8 * PAGE, PROT_READ));
	CALL(msync(old, PAGE, MS_ASYNC));
	MAP_AS("replace", mmap(old + 16 * PAGE, 8 * PAGE, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0));
	say("new: %d", all_are(old + 16 * PAGE, 8 * PAGE, 0));
	CALL(munmap(old, 64 * PAGE));
	CALL_AS("not a page", munmap((void *)1, PAGE));
	/* Large enough for advice about huge pages, and for what is looked at before it is locked. */
	char *large = anon(64 << 8);
	memset(large, 3, 4ul << 20);
	CALL(munmap(large, (64ul << 8) * PAGE));
	char *volatile block = malloc(1 << 20);
	memset(block, 5, 1 << 20);
	free(block);
	sbrk(1 << 20);
	sbrk(-(1 << 20));
	char *code = anon(4);
	memset(code, 0xc3, 4 * PAGE);
	CALL(mprotect(code, 4 * PAGE, PROT_READ | PROT_EXEC));
	((void (*)(void))(uintptr_t)code)();
	for (int i = 0; i < 600; i++)
		munmap(anon(4), 4 * PAGE);
}

static void *other(void *old)
{
	move(old);
	return NULL;
}

static char *prepared(void)
{
	char *old = anon(64);
	memset(old, 7, 64 * PAGE);
	return old;
}

static const struct part {
	const char *name;
	const unsigned *calls;
	size_t n;
} parts[] = {
	{ "memory", memory, COUNT(memory) },
	{ "threads", threads, COUNT(threads) },
	{ "libraries", libraries, COUNT(libraries) },
	{ "children", children, COUNT(children) },
};

static void work(const struct part *part)
{
	if (part->calls == threads) {
		pthread_t thread;
		NEED(pthread_create(&thread, NULL, other, prepared()) == 0);
		pthread_join(thread, NULL);
	} else if (part->calls == libraries) {
		say("library: %d", dlopen("libm.so.6", RTLD_NOW) != NULL);
	} else if (part->calls == children) {
		pid_t pid = fork();
		if (pid == 0) {
			move(prepared());
			exit(0);
		}
		int status = -1;
		NEED(wait4(pid, &status, 0, NULL) == pid);
		say("child: %x", status);
	}
}

static const struct {
	const char *name;
	unsigned value;
} actions[] = {
	{ "kills", SECCOMP_RET_KILL_PROCESS },
	{ "kills the thread", SECCOMP_RET_KILL_THREAD },
	{ "traps", SECCOMP_RET_TRAP },
	{ "refuses", SECCOMP_RET_ERRNO | EPERM },
	{ "asks a tracer", SECCOMP_RET_TRACE },
};

static void begin(void)
{
	struct sigaction action = { .sa_sigaction = trapped, .sa_flags = SA_SIGINFO };
	sigaction(SIGSYS, &action, NULL);
	malloc_trim(0);
}

/* A filter with a list of what is let through. */
static void shut_in(enum way way, size_t action, const struct part *part)
{
	pid_t pid = fork();
	NEED(pid >= 0);
	if (pid == 0) {
		begin();
		char *old = prepared();
		unsigned calls[MOST];
		memcpy(calls, part->calls, part->n * sizeof *calls);
		calls[part->n] = SYS_rt_sigreturn;
		NEED(enter(way, actions[action].value, false, calls, part->n + 1));
		work(part);
		move(old);
		exit(7);
	}
	reap(part->name, pid);
}

/* A filter with one call that is not. */
static void without(unsigned call)
{
	char label[16];
	snprintf(label, sizeof label, "without %u", call);
	pid_t pid = fork();
	NEED(pid >= 0);
	if (pid == 0) {
		begin();
		char *old = prepared();
		NEED(enter(BY_PRCTL, SECCOMP_RET_KILL_PROCESS, true, &call, 1));
		move(old);
		exit(7);
	}
	reap(label, pid);
}

/* Only read, write, exit and rt_sigreturn. */
static void strictly(bool by_prctl, int end)
{
	pid_t pid = fork();
	NEED(pid >= 0);
	if (pid == 0) {
		char *old = prepared();
		if (by_prctl)
			NEED(prctl(PR_SET_SECCOMP, SECCOMP_MODE_STRICT) == 0);
		else
			NEED(syscall(SYS_seccomp, SECCOMP_SET_MODE_STRICT, 0, NULL) == 0);
		say("strict");
		if (end == 1)
			munmap(old, PAGE);
		if (end == 2)
			exit(6);
		syscall(SYS_exit, 5);
	}
	reap("strict", pid);
}

static pthread_barrier_t both;

static void *shut_in_alone(void *old)
{
	NEED(enter(BY_SECCOMP, SECCOMP_RET_KILL_THREAD, false, threads, COUNT(threads)));
	move(old);
	pthread_barrier_wait(&both);
	return NULL;
}

/* One thread is under a filter, the other is not; then both are. */
static void one_by_one(void)
{
	char *old = prepared(), *late = prepared();
	pthread_t thread;
	pthread_barrier_init(&both, NULL, 2);
	NEED(pthread_create(&thread, NULL, shut_in_alone, old) == 0);
	pthread_barrier_wait(&both);
	pthread_join(thread, NULL);
	say("parent: %d", getppid() > 0);
	NEED(enter(FOR_ALL, SECCOMP_RET_KILL_PROCESS, false, threads, COUNT(threads)));
	move(late);
	exit(0);
}

/* The kernel takes no such filter, and the program goes on. */
static void refused(void)
{
	struct sock_filter endless[] = { BPF_JUMP(BPF_JMP | BPF_JA, 7, 0, 0) };
	struct sock_fprog bad = { 1, endless }, worse = { 1, (void *)8 };
	NEED(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
	CALL(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &bad));
	CALL(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &worse));
	CALL(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, NULL));
	CALL(prctl(PR_SET_SECCOMP, 17, NULL));
	CALL(syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, NULL));
	CALL(syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, 8));
	CALL(syscall(SYS_seccomp, SECCOMP_SET_MODE_STRICT, 1, NULL));
	quiet_claim(prepared(), 64 * PAGE, "registered");
}

int main(void)
{
	refused();
	for (size_t a = 0; a < COUNT(actions); a++)
		for (size_t p = 0; p < COUNT(parts); p++)
			for (enum way way = BY_PRCTL; way <= FOR_ALL; way++) {
				say("%s but what is for %s, %d", actions[a].name, parts[p].name, way);
				shut_in(way, a, &parts[p]);
			}
	for (size_t i = 0; i < COUNT(each); i++)
		without(each[i]);
	for (int end = 0; end < 3; end++) {
		strictly(true, end);
		strictly(false, end);
	}
	fflush(stdout);
	pid_t pid = fork();
	NEED(pid >= 0);
	if (pid == 0)
		one_by_one();
	reap("one by one", pid);
	quiet_point("end");
	return 0;
}
