/* Proves: every way to end gives the status that it gives without the shim, from hooks, handlers and threads too. */
#include <pthread.h>
#include <sys/time.h>
#include "check.h"

static void on_exit_say(void)
{
	say("atexit");
}

static void on_quick(void)
{
	say("at_quick_exit");
}

static void leave(int sig)
{
	_exit(sig);
}

static void leave_properly(int sig)
{
	exit(sig);
}

static void *exits(void *arg)
{
	(void)arg;
	exit(31);
}

static void *maps(void *arg)
{
	for (;;) {
		char *p = anon(64);
		p[0] = 1;
		munmap(p, 64 * PAGE);
		if (arg)
			break;
	}
	return NULL;
}

static void storm(void)
{
	pthread_t t[3];
	for (int i = 0; i < 3; i++)
		NEED(pthread_create(&t[i], NULL, maps, NULL) == 0);
	usleep(3000);
}

static void timer(void (*handler)(int), int usec)
{
	signal(SIGALRM, handler);
	struct itimerval t = { { 0, 0 }, { 0, usec } };
	setitimer(ITIMER_REAL, &t, NULL);
}

static void way(int n)
{
	pthread_t t;
	switch (n) {
	case 0: exit(3);
	case 1: _exit(4);
	case 2: quick_exit(5);
	case 3: abort();
	case 4: raise(SIGKILL); break;
	case 5: raise(SIGTERM); break;
	case 6: *(volatile int *)8 = 1; break;
	case 7: __builtin_trap();
	case 8: syscall(SYS_exit_group, 9); break;
	case 9: syscall(SYS_exit, 10); break;
	case 10: timer(leave, 2000); maps(NULL); break;
	case 11: timer(leave_properly, 2000); for (;;) pause();
	case 12: pthread_create(&t, NULL, exits, NULL); pause(); break;
	case 13: storm(); exit(13);
	case 14: storm(); _exit(14);
	case 15: storm(); abort();
	case 16: storm(); raise(SIGKILL); break;
	case 17: storm(); *(volatile int *)8 = 1; break;
	case 18: pthread_create(&t, NULL, maps, (void *)1); pthread_exit(NULL);
	case 19: munmap((void *)((uintptr_t)&way & ~(PAGE - 1)), PAGE); break;
	case 20: timer(leave, 1000); maps(NULL); break;
	case 21: timer(leave, 1500); maps(NULL); break;
	case 22: timer(SIG_DFL, 1000); maps(NULL); break;
	}
}

int main(void)
{
	atexit(on_exit_say);
	at_quick_exit(on_quick);
	for (int n = 0; n <= 22; n++) {
		char label[32];
		snprintf(label, sizeof label, "way %d", n);
		pid_t pid = fork();
		NEED(pid >= 0);
		if (pid == 0) {
			way(n);
			_exit(95);
		}
		reap(label, pid);
	}
	quiet_point("end");
	return 44;
}
