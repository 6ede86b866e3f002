/*
 * Threads that are cancelled at each instruction on the way into a read that would last for
 * ever: each ends. (glibc 2.41 and later know by the interrupted address whether a system call
 * has been made.)
 */
#include "../check.h"
#include <pthread.h>
#include <time.h>
#include <ucontext.h>

enum { TRAP_FLAG = 0x100, MOST = 400 };

static int pipe_ends[2];
static volatile int steps, stop_at, stopped, go_on;

/* All signals are blocked in here, the one that cancels as well: it comes at the very
 * instruction that is next. */
static void trapped(int signal, siginfo_t *info, void *context)
{
	(void)signal;
	(void)info;
	if (steps++ < stop_at)
		return;
	((ucontext_t *)context)->uc_mcontext.gregs[REG_EFL] &= ~TRAP_FLAG;
	stopped = 1;
	while (!go_on)
		;
}

static void *reader(void *arg)
{
	char byte;
	__asm__ volatile("sub $128, %%rsp\n"
			 "pushfq\n"
			 "orl $0x100, (%%rsp)\n"
			 "popfq\n"
			 "sub $-128, %%rsp" ::
				 : "memory", "cc");
	(void)!read(pipe_ends[0], &byte, 1);
	return arg;
}

static bool ends(pthread_t thread)
{
	struct timespec late;
	clock_gettime(CLOCK_REALTIME, &late);
	late.tv_sec += 3;
	return pthread_timedjoin_np(thread, NULL, &late) == 0;
}

/* Whether the thread comes to the place to stop at; else it is in the kernel. */
static bool comes(void)
{
	for (int n = 0; n < 100 && !stopped; n++)
		usleep(2000);
	return stopped;
}

int main(void)
{
	struct sigaction action = { .sa_sigaction = trapped, .sa_flags = SA_SIGINFO };
	bool came = true;
	int slept = 0;
	memset(&action.sa_mask, 0xff, sizeof action.sa_mask);
	NEED(sigaction(SIGTRAP, &action, NULL) == 0);
	NEED(pipe(pipe_ends) == 0);
	for (stop_at = 0; came && slept == 0 && stop_at < MOST; stop_at = stop_at + 1) {
		pthread_t thread;
		steps = stopped = go_on = 0;
		NEED(pthread_create(&thread, NULL, reader, NULL) == 0);
		came = comes();
		NEED(pthread_cancel(thread) == 0);
		go_on = 1;
		if (!ends(thread)) {
			say("cancelled at instruction %d, and sleeps", stop_at);
			slept++;
		}
	}
	NEED(stop_at > 5 && stop_at < MOST);
	return slept;
}
