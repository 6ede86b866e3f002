/*
 * Proves: in a process with one thread, a memory call makes few system calls of ours, also when a second
 * adapter is used while the shim's own thread is there; and handlers come during one that takes long.
 */
#include <signal.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/user.h>
#include <sys/wait.h>
#include "rdma.h"

enum { KINDS = 4, TIMES = 10 };

/* Counts the system calls of process `pid` between calls of getppid, but for those about signals: in a guest
 * each takes so long that handlers come in between. */
static void count_calls(pid_t pid, int to)
{
	int kind = -1, status, calls[KINDS] = { 0 };
	struct user_regs_struct at;
	NEED(ptrace(PTRACE_SEIZE, pid, 0, PTRACE_O_TRACESYSGOOD) == 0 && ptrace(PTRACE_INTERRUPT, pid, 0, 0) == 0);
	NEED(write(to, "", 1) == 1);
	while (kind < KINDS) {
		NEED(waitpid(pid, &status, __WALL) == pid);
		bool is_call = WSTOPSIG(status) == (SIGTRAP | 0x80);
		NEED(ptrace(PTRACE_GETREGS, pid, 0, &at) == 0);
		if (is_call && (long)at.rax == -ENOSYS) {
			if (at.orig_rax == SYS_getppid)
				kind++;
			else if (kind >= 0 && kind < KINDS && at.orig_rax != SYS_rt_sigprocmask)
				calls[kind]++;
		}
		NEED(ptrace(kind < KINDS ? PTRACE_SYSCALL : PTRACE_DETACH, pid, 0, 0) == 0);
	}
	NEED(write(to, calls, sizeof calls) == sizeof calls);
	_exit(wrong != 0);
}

static void few(void)
{
	/* The program's, one question, the requests, and some more where a handler came in between. */
	static const int most[KINDS] = { 50, 50, 90, 90 };
	char *p[TIMES], c;
	int ends[2], calls[KINDS], status;
	for (int i = 0; i < TIMES; i++)
		NEED(munmap(p[i] = island(16), 16 * PAGE) == 0);
	NEED(pipe(ends) == 0);
	fflush(stdout);
	pid_t parent = getpid(), child = fork();
	if (child == 0)
		count_calls(parent, ends[1]);
	NEED(read(ends[0], &c, 1) == 1);
	getppid();
	for (int i = 0; i < TIMES; i++)
		anon_at(p[i], 16);
	getppid();
	for (int i = 0; i < TIMES; i++)
		NEED(munmap(p[i], 16 * PAGE) == 0);
	for (int i = 0; i < TIMES; i++)
		anon_at(p[i], 16);
	getppid();
	for (int i = 0; i < TIMES; i++)
		NEED(mprotect(p[i] + 4 * PAGE, 4 * PAGE, PROT_READ) == 0);
	getppid();
	for (int i = 0; i < TIMES; i++)
		NEED(madvise(p[i], 2 * PAGE, MADV_DONTNEED) == 0);
	getppid();
	NEED(read(ends[0], calls, sizeof calls) == sizeof calls);
	NEED(waitpid(child, &status, 0) == child && status == 0);
	calls[1] /= 2;
	for (int i = 0; i < KINDS; i++)
		if (calls[i] > most[i])
			wrong++, say("calls of kind %d: %d", i, calls[i]);
}

static volatile sig_atomic_t came;

static void comes(int signal)
{
	(void)signal;
	came++;
}

/* One call about many regions. */
static void disturbed(void)
{
	enum { MANY = 2000 };
	struct sigaction action = { .sa_handler = comes, .sa_flags = SA_RESTART };
	struct itimerval often = { { 0, 2000 }, { 0, 2000 } }, never = { 0 };
	char *p = island(2 * MANY);
	for (int i = 0; i < MANY; i++)
		NEED(mprotect(p + 2 * i * PAGE, PAGE, PROT_READ) == 0);
	NEED(sigaction(SIGALRM, &action, NULL) == 0 && setitimer(ITIMER_REAL, &often, NULL) == 0);
	came = 0;
	int error = mprotect(p, 2 * MANY * PAGE, PROT_READ);
	int meanwhile = came;
	NEED(error == 0 && setitimer(ITIMER_REAL, &never, NULL) == 0);
	/* During the kernel's own part they are one. */
	PROMISE(!lends() || meanwhile > 3);
}

int main(void)
{
	struct rig r = rig();
	struct ibv_context *second = open_device(ADAPTER("1"));
	struct ibv_pd *pd = second ? ibv_alloc_pd(second) : NULL;
	struct ibv_mr *mr = pd ? ibv_reg_mr(pd, r.buf, PAGE, ALL) : NULL;
	NEED(mr && ibv_dereg_mr(mr) == 0);
	few();
	disturbed();
	NEED(ibv_dealloc_pd(pd) == 0 && ibv_close_device(second) == 0);
	rig_down(&r);
	say("end");
	return wrong != 0;
}
