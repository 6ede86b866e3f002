/*
 * A thread that waits for our answer can't be stopped: it sleeps in the kernel until it is
 * answered (SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV; without that, before Linux 5.19, this
 * would cut its call short). So it is seized and interrupted while it waits, and stops on
 * its way back to user mode: there the two bytes before its instruction pointer are the
 * syscall instruction that it came through, which is used again. See ptrace(2).
 */
#include "inject.h"

#include <errno.h>
#include <signal.h>
#include <sys/ptrace.h>
#include <sys/wait.h>

#ifndef __x86_64__
#error "only the registers of x86-64 are known here"
#endif

#define SYSCALL_BYTES 2
#define SYSCALL_STOP (SIGTRAP | 0x80)
#define EVENT_STOP (PTRACE_EVENT_STOP << 8)

/* Only what this thread traces, and without taking the exit of a child from main(). */
static int next_stop(pid_t tid)
{
	siginfo_t s = { 0 };
	while (waitid(P_PID, (id_t)tid, &s, WSTOPPED | WEXITED | WNOWAIT | __WALL | __WNOTHREAD) < 0)
		if (errno != EINTR)
			return -1;
	return s.si_code == CLD_TRAPPED || s.si_code == CLD_STOPPED ? s.si_status : -1;
}

bool inject_seize(struct call *c, struct injection *i)
{
	*i = (struct injection){ .tid = c->tid };
	return ptrace(PTRACE_SEIZE, c->tid, 0, PTRACE_O_TRACESYSGOOD) == 0;
}

static bool stopped(struct injection *i)
{
	/* The stop that was asked for comes before any signal. */
	int stop = next_stop(i->tid);
	uint64_t all = UINT64_MAX;
	return stop >= 0 && (stop & EVENT_STOP) == EVENT_STOP &&
	       ptrace(PTRACE_GETREGS, i->tid, 0, &i->regs) == 0 &&
	       ptrace(PTRACE_GETSIGMASK, i->tid, sizeof i->mask, &i->mask) == 0 &&
	       ptrace(PTRACE_SETSIGMASK, i->tid, sizeof all, &all) == 0;
}

bool inject_hold(struct call *c, struct injection *i)
{
	ptrace(PTRACE_INTERRUPT, c->tid, 0, 0);
	standin_answer(c, 0);
	return stopped(i);
}

bool inject_stop(pid_t tid, struct injection *i)
{
	*i = (struct injection){ .tid = tid };
	if (ptrace(PTRACE_SEIZE, tid, 0, PTRACE_O_TRACESYSGOOD) < 0)
		return false;
	ptrace(PTRACE_INTERRUPT, tid, 0, 0);
	errno = ESRCH;
	return stopped(i);
}

static bool to_syscall_stop(pid_t tid)
{
	int stop;
	do {
		if (ptrace(PTRACE_SYSCALL, tid, 0, 0) < 0)
			return false;
		stop = next_stop(tid);
	} while (stop >= 0 && stop != SYSCALL_STOP);
	return stop >= 0;
}

int64_t inject_call(struct injection *i, long number, const uint64_t args[6])
{
	struct user_regs_struct r = i->regs;
	r.rip -= SYSCALL_BYTES;
	r.rax = (unsigned long)number;
	r.orig_rax = -1ul; /* no system call is to be restarted */
	r.rdi = args[0];
	r.rsi = args[1];
	r.rdx = args[2];
	r.r10 = args[3];
	r.r8 = args[4];
	r.r9 = args[5];
	if (ptrace(PTRACE_SETREGS, i->tid, 0, &r) < 0 || !to_syscall_stop(i->tid) || !to_syscall_stop(i->tid) ||
	    ptrace(PTRACE_GETREGS, i->tid, 0, &r) < 0)
		return -ESRCH;
	return (int64_t)r.rax;
}

void inject_end(struct injection *i, int64_t value)
{
	i->regs.rax = (unsigned long)value;
	i->regs.orig_rax = -1ul;
	ptrace(PTRACE_SETREGS, i->tid, 0, &i->regs);
	ptrace(PTRACE_SETSIGMASK, i->tid, sizeof i->mask, &i->mask);
	ptrace(PTRACE_DETACH, i->tid, 0, 0);
}
