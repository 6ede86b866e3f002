/* Proves: a signal handler that comes upon a memory call may fork, and the child lives on in that call; it may sleep on an alternate stack, and nobody takes its thread for gone. */
#include <pthread.h>
#include <semaphore.h>
#include <sys/time.h>
#include "check.h"

enum { FORKS = 250, PARKS = 100 };

static volatile sig_atomic_t forks, is_child;

static void every(int usec)
{
	struct itimerval t = { { 0, usec }, { 0, usec } };
	setitimer(ITIMER_REAL, &t, NULL);
}

static void work(void)
{
	char *p = mmap(NULL, 16 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	mprotect(p + PAGE, PAGE, PROT_READ);
	munmap(p + 2 * PAGE, PAGE);
	munmap(p, 16 * PAGE);
}

static void forking(int sig)
{
	(void)sig;
	int saved = errno;
	if (!is_child) {
		pid_t child = fork();
		is_child = child == 0;
		forks++;
		if (is_child)
			every(0);
	}
	errno = saved;
}

/* What a child does with the memory call that its fork came upon, and after it. */
static _Noreturn void child_goes_on(void)
{
	char *kept[16];
	for (int i = 0; i < 50; i++)
		work();
	for (int i = 0; i < 16; i++) {
		int prot = i % 2 ? PROT_READ : PROT_READ | PROT_WRITE;
		kept[i] = mmap(NULL, 4 * PAGE, prot, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		if (i % 2 == 0)
			kept[i][0] = 1;
	}
	if (forks % 25 == 0)
		quiet_point("a child of a handler");
	_exit(0);
}

static void forks_in_handlers(void)
{
	struct sigaction a = { .sa_handler = forking };
	NEED(sigaction(SIGALRM, &a, NULL) == 0);
	every(2000);
	while (forks < FORKS) {
		work();
		if (is_child)
			child_goes_on();
	}
	every(0);
	int status, ended = 0, well = 0;
	for (pid_t child; (child = wait(&status)) > 0 || errno == EINTR; ) {
		if (child <= 0)
			continue;
		ended++;
		well += status == 0;
	}
	say("children: %s", ended >= FORKS && well == ended ? "all ended well" : "some did not");
}

static sem_t parked, go;
static volatile bool stop;
static char *alternate;

static void parks(int sig)
{
	(void)sig;
	int saved = errno;
	sem_post(&parked);
	while (sem_wait(&go))
		;
	errno = saved;
}

static void *works(void *arg)
{
	stack_t own = { .ss_sp = alternate, .ss_size = 64 * PAGE };
	sigaltstack(&own, NULL);
	while (!stop)
		work();
	return arg;
}

/* The alternate stack is above the thread's own, as one that was mapped before it is. */
static void parks_on_another_stack(void)
{
	NEED(sem_init(&parked, 0, 0) == 0 && sem_init(&go, 0, 0) == 0);
	struct sigaction a = { .sa_handler = parks, .sa_flags = SA_ONSTACK | SA_RESTART };
	NEED(sigaction(SIGUSR1, &a, NULL) == 0);
	size_t stack = 64 * PAGE;
	char *both = mmap(NULL, 2 * stack, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	NEED(both != MAP_FAILED);
	alternate = both + stack;
	pthread_attr_t attr;
	pthread_attr_init(&attr);
	NEED(pthread_attr_setstack(&attr, both, stack) == 0);
	pthread_t thread;
	NEED(pthread_create(&thread, &attr, works, NULL) == 0);
	bool fine = true;
	for (int i = 0; i < PARKS; i++) {
		usleep((useconds_t)(i * 37 % 200));
		pthread_kill(thread, SIGUSR1);
		while (sem_wait(&parked))
			;
		void *p = mmap(NULL, PAGE, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		fine &= p != MAP_FAILED && munmap(p, PAGE) == 0;
		sem_post(&go);
	}
	stop = true;
	pthread_join(thread, NULL);
	say("calls beside a parked thread: %s", fine ? "ok" : "refused");
	quiet_point("after the parked");
}

int main(void)
{
	forks_in_handlers();
	parks_on_another_stack();
	return 0;
}
