/* Proves: calls from sites that can't be patched are accounted for in strict mode, and SIGSYS stays the program's own. */
#include <poll.h>
#include <pthread.h>
#include <spawn.h>
#include <stddef.h>
#include <time.h>
#include <linux/audit.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/select.h>
#include "filter.h"

extern char **environ;

/*
 * A site that nobody can patch: where it is jumped to there is only the
 * instruction, and the number comes from memory. Not in libc's text, so that all
 * its calls are dispatched.
 */
extern long odd_call(const long args[7]);
/* vfork by the same: the child ends at once. The parent gets its pid. */
extern long odd_vfork(void);
/* A signal handler's way out by the same. */
extern void odd_restorer(void);
__asm__(".text\n"
	".globl odd_call\n"
	"odd_call:\n"
	"	mov 0(%rdi), %rax\n	mov 16(%rdi), %rsi\n	mov 24(%rdi), %rdx\n"
	"	mov 32(%rdi), %r10\n	mov 40(%rdi), %r8\n	mov 48(%rdi), %r9\n"
	"	mov 8(%rdi), %rdi\n"
	"	test %eax, %eax\n	js 2f\n	jmp 1f\n"
	"2:	nop\n"
	"1:	syscall\n	ret\n"
	"odd_vfork:\n"
	"	mov $58, %ecx\n	mov %ecx, %eax\n	jmp 1f\n"
	"	nop\n"
	"1:	syscall\n	test %eax, %eax\n	jnz 2f\n"
	"	mov $5, %edi\n	mov $231, %ecx\n	mov %ecx, %eax\n	jmp 1f\n"
	"	nop\n"
	"1:	syscall\n"
	"2:	ret\n"
	"odd_restorer:\n"
	"	mov $15, %ecx\n	mov %ecx, %eax\n	jmp 1f\n"
	"	nop\n"
	"1:	syscall\n");

#define ODD(...) odd_call((const long[7]){ __VA_ARGS__ })

static char *odd_map(size_t pages)
{
	return (char *)ODD(SYS_mmap, 0, (long)(pages * PAGE), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
}

static void calls(const char *who)
{
	char label[64];
	char *p = odd_map(16);
	say("%s: mmap %d", who, p > (char *)0);
	memset(p, 3, 16 * PAGE);
	say("%s: mprotect %ld", who, ODD(SYS_mprotect, (long)p, PAGE, PROT_NONE));
	say("%s: mprotect, hole %ld", who, ODD(SYS_mprotect, PAGE, PAGE, PROT_NONE));
	quiet_claim(p, PAGE, "no-access");
	quiet_claim(p + PAGE, 15 * PAGE, "registered");
	snprintf(label, sizeof label, "%s: mapped", who);
	quiet_point(label);
	char *q = (char *)ODD(SYS_mremap, (long)p + (long)PAGE, 15 * PAGE, 64 * PAGE, MREMAP_MAYMOVE, 0);
	say("%s: mremap %d", who, q[0]);
	quiet_claim(q, 64 * PAGE, "registered");
	snprintf(label, sizeof label, "%s: remapped", who);
	quiet_point(label);
	say("%s: munmap %ld %ld", who, ODD(SYS_munmap, (long)p, PAGE), ODD(SYS_munmap, (long)q, 64 * PAGE));
	say("%s: munmap, bad %ld", who, ODD(SYS_munmap, (long)q + 1, 1));
	say("%s: others %d %ld %ld", who, ODD(SYS_getpid) == getpid(), ODD(SYS_read, -1, 0, 0), ODD(100000));
	snprintf(label, sizeof label, "%s: unmapped", who);
	quiet_point(label);
}

static void *in_thread(void *arg)
{
	calls("thread");
	return arg;
}

static void processes(void)
{
	pid_t pid = fork();
	if (pid == 0) {
		calls("child");
		_exit(3);
	}
	reap("fork", pid);
	pid = (pid_t)ODD(SYS_clone, SIGCHLD, 0, 0, 0, 0);
	if (pid == 0) {
		calls("child of an odd clone");
		ODD(SYS_exit_group, 4);
	}
	reap("odd clone", pid);
	/* On a stack where nothing has to stay. */
	reap("odd vfork", (pid_t)odd_vfork());
	char *argv[] = { "true", NULL };
	NEED(posix_spawn(&pid, "/bin/true", NULL, NULL, argv, environ) == 0);
	reap("spawned", pid);
	say("system %d", system("exit 6") >> 8);
	calls("after children");
}

static void tell_mask(const char *label)
{
	sigset_t now;
	sigemptyset(&now);
	NEED(pthread_sigmask(SIG_SETMASK, NULL, &now) == 0);
	say("%s: SYS %d USR1 %d TERM %d", label, sigismember(&now, SIGSYS), sigismember(&now, SIGUSR1), sigismember(&now, SIGTERM));
}

static volatile sig_atomic_t seen, code;

static void count(int sig, siginfo_t *info, void *context)
{
	(void)context;
	seen = seen + (sig == SIGSYS ? 100 : 1);
	code = info->si_code;
	char *p = odd_map(4);
	ODD(SYS_munmap, (long)p, 4 * PAGE);
	struct timespec t;
	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
}

static void handle(int sig, const sigset_t *mask, int flags)
{
	struct sigaction a = { .sa_sigaction = count, .sa_flags = SA_SIGINFO | flags, .sa_mask = *mask };
	CALL_AS("sigaction", sigaction(sig, &a, NULL));
}

static void *blocked_thread(void *arg)
{
	tell_mask("thread of a blocked one");
	calls("blocked thread");
	return arg;
}

static void masks(void)
{
	sigset_t all, none, old;
	sigfillset(&all);
	sigemptyset(&none);
	CALL(sigprocmask(SIG_SETMASK, &all, &old));
	say("was blocked: %d", sigismember(&old, SIGSYS));
	tell_mask("all");
	calls("all blocked");
	pthread_t t;
	NEED(pthread_create(&t, NULL, blocked_thread, NULL) == 0 && pthread_join(t, NULL) == 0);
	pid_t pid = fork();
	if (pid == 0) {
		tell_mask("child of a blocked one");
		calls("blocked child");
		_exit(0);
	}
	reap("blocked child", pid);
	CALL(sigprocmask(SIG_SETMASK, &none, &old));
	say("was blocked: %d", sigismember(&old, SIGSYS));
	tell_mask("none");
	/* The same by the odd way: the end of a handler must not undo it. */
	uint64_t set = 1ull << (SIGUSR1 - 1) | 1ull << (SIGSYS - 1), before = 7;
	long r = ODD(SYS_rt_sigprocmask, SIG_BLOCK, (long)&set, (long)&before, 8);
	say("odd block %ld %d", r, before == 0);
	tell_mask("odd block");
	calls("odd block");
	r = ODD(SYS_rt_sigprocmask, SIG_BLOCK, 0, (long)&before, 8);
	say("odd ask %ld %d", r, before == set);
	say("odd unblock %ld", ODD(SYS_rt_sigprocmask, SIG_UNBLOCK, (long)&set, 0, 8));
	tell_mask("odd unblock");
	say("bad masks %ld %ld %ld", ODD(SYS_rt_sigprocmask, SIG_BLOCK, 8, 0, 8), ODD(SYS_rt_sigprocmask, 77, (long)&set, 0, 8),
	    ODD(SYS_rt_sigprocmask, SIG_BLOCK, (long)&set, 8, 8));
	NEED(sigprocmask(SIG_SETMASK, &none, NULL) == 0);
}

static void handlers(void)
{
	sigset_t all, none;
	struct sigaction a;
	sigfillset(&all);
	sigemptyset(&none);
	CALL(sigaction(SIGSYS, NULL, &a));
	say("SIGSYS at first: %d", a.sa_handler == SIG_DFL);
	/* A handler with everything blocked makes calls that are dispatched. */
	handle(SIGUSR1, &all, 0);
	raise(SIGUSR1);
	CALL(sigaction(SIGUSR1, NULL, &a));
	say("seen %d, mask %d", seen, sigismember(&a.sa_mask, SIGSYS));
	handle(SIGUSR1, &none, 0);
	CALL(sigaction(SIGUSR1, NULL, &a));
	say("mask %d", sigismember(&a.sa_mask, SIGSYS));
	/* So does one that interrupts a wait with everything blocked. */
	NEED(sigprocmask(SIG_SETMASK, &all, NULL) == 0);
	raise(SIGUSR1);
	sigset_t wait = all;
	sigdelset(&wait, SIGUSR1);
	int r = sigsuspend(&wait);
	say("sigsuspend %d %d, seen %d", r, errno == EINTR, seen);
	raise(SIGUSR1);
	uint64_t raw = ~(1ull << (SIGUSR1 - 1));
	long l = ODD(SYS_rt_sigsuspend, (long)&raw, 8);
	say("odd sigsuspend %ld, seen %d", l, seen);
	raise(SIGUSR1);
	struct { void *set; size_t bytes; } sized = { &raw, 8 };
	l = ODD(SYS_pselect6, 0, 0, 0, 0, 0, (long)&sized);
	say("odd pselect %ld, seen %d", l, seen);
	/* libc's own waits. */
	sigemptyset(&wait);
	sigaddset(&wait, SIGUSR1);
	NEED(sigprocmask(SIG_SETMASK, &wait, NULL) == 0);
	sigset_t but = all;
	sigdelset(&but, SIGUSR1);
	struct timespec second = { 1, 0 };
	struct epoll_event event;
	int queue = epoll_create1(0);
	for (int n = 0; n < 3; n++) {
		raise(SIGUSR1);
		r = n == 0 ? ppoll(NULL, 0, &second, &but) : n == 1 ? pselect(0, NULL, NULL, NULL, &second, &but)
								  : epoll_pwait(queue, &event, 1, 1000, &but);
		say("wait %d: %d %d, seen %d", n, r, errno == EINTR, seen);
	}
	close(queue);
	NEED(sigprocmask(SIG_SETMASK, &none, NULL) == 0);
	/* A handler whose way out is not libc's. */
	struct {
		void (*handler)(int, siginfo_t *, void *);
		unsigned long flags;
		void (*restorer)(void);
		uint64_t mask;
	} k = { count, SA_SIGINFO | 0x04000000, odd_restorer, 0 };
	say("odd sigaction %ld", ODD(SYS_rt_sigaction, SIGUSR2, (long)&k, 0, 8));
	raise(SIGUSR2);
	say("odd restorer, seen %d", seen);
	static char alternate[64 * 1024];
	stack_t stack = { .ss_sp = alternate, .ss_size = sizeof alternate }, now;
	say("odd sigaltstack %ld", ODD(SYS_sigaltstack, (long)&stack, 0));
	CALL(sigaltstack(NULL, &now));
	say("alternate stack %d", now.ss_sp == alternate && now.ss_size == sizeof alternate && now.ss_flags == 0);
	handle(SIGUSR1, &none, SA_ONSTACK);
	raise(SIGUSR1);
	say("on it, seen %d", seen);
	stack.ss_flags = SS_DISABLE;
	say("odd sigaltstack, off %ld", ODD(SYS_sigaltstack, (long)&stack, 0));
	CALL(sigaltstack(NULL, &now));
	say("alternate stack off %d", now.ss_flags == SS_DISABLE);
}

static void default_action(void *arg)
{
	(void)arg;
	raise(SIGSYS);
	say("not reached");
}

static void trapped(void *arg)
{
	if (arg)
		signal(SIGSYS, SIG_IGN);
	FILTER_CALLS(SECCOMP_RET_TRAP, SYS_getppid);
	syscall(SYS_getppid);
	say("survived, seen %d, code %d", seen, code);
}

static void own_sigsys(void)
{
	sigset_t all, none;
	struct sigaction a;
	sigfillset(&all);
	sigemptyset(&none);
	in_child("SIGSYS by default", default_action, NULL);
	in_child("filtered by default", trapped, NULL);
	in_child("filtered and ignored", trapped, (void *)1);
	signal(SIGSYS, SIG_IGN);
	raise(SIGSYS);
	say("ignored");
	calls("SIGSYS ignored");
	seen = 0;
	handle(SIGSYS, &all, SA_RESTART);
	CALL(sigaction(SIGSYS, NULL, &a));
	say("SIGSYS' handler %d mask %d %d flags %x", a.sa_sigaction == count, sigismember(&a.sa_mask, SIGSYS),
	    sigismember(&a.sa_mask, SIGTERM), (unsigned)a.sa_flags);
	calls("SIGSYS handled");
	raise(SIGSYS);
	say("raised: seen %d code %d", seen, code == SI_TKILL);
	kill(getpid(), SIGSYS);
	say("killed: seen %d code %d", seen, code == SI_USER);
	tell_mask("after it");
	NEED(sigprocmask(SIG_SETMASK, &all, NULL) == 0);
	raise(SIGSYS);
	say("blocked: seen %d", seen);
	calls("SIGSYS pending");
	NEED(sigprocmask(SIG_SETMASK, &none, NULL) == 0);
	say("unblocked: seen %d", seen);
	in_child("filtered and handled", trapped, NULL);
	handle(SIGSYS, &none, (int)SA_RESETHAND);
	raise(SIGSYS);
	CALL(sigaction(SIGSYS, NULL, &a));
	say("reset: seen %d, default %d", seen, a.sa_handler == SIG_DFL);
	in_child("SIGSYS by default again", default_action, NULL);
}

int main(void)
{
	calls("main");
	pthread_t t[3];
	for (int i = 0; i < 3; i++)
		NEED(pthread_create(&t[i], NULL, in_thread, NULL) == 0 && pthread_join(t[i], NULL) == 0);
	processes();
	masks();
	handlers();
	own_sigsys();
	calls("end");
	quiet_point("end");
	return 0;
}
