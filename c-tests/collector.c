/* Proves: threads map, discard and unmap memory while others are parked in a signal handler (a stop-the-world collector) or stopped by a debugger, wherever that caught them. */
#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <time.h>
#include "check.h"

enum { MUTATORS = 4, PAUSES = 60, STOPS = 150, ENOUGH = 20, SPINS = 400 };

/* Shared with the debugger. */
static struct {
	atomic_int stopped_tid, done;
	atomic_long progress, held_up, stops;
} *shared;

static sem_t parked, go[MUTATORS];
static _Thread_local int self;
static atomic_bool stop;
static atomic_long failed, wrong;

static void parks(int sig)
{
	(void)sig;
	int saved = errno;
	sem_post(&parked);
	while (sem_wait(&go[self]) != 0)
		;
	errno = saved;
}

static void work(void)
{
	char *p = mmap(NULL, 4 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (p == MAP_FAILED) {
		failed++;
		return;
	}
	p[0] = p[PAGE] = 7;
	failed += mprotect(p, PAGE, PROT_READ) != 0;
	failed += madvise(p + PAGE, PAGE, MADV_DONTNEED) != 0;
	wrong += p[0] != 7 || p[PAGE] != 0;
	failed += munmap(p, 4 * PAGE) != 0;
}

static void *mutates(void *n)
{
	self = (int)(intptr_t)n;
	sem_post(&parked);
	while (!stop)
		work();
	return NULL;
}

static void await_parked(int n)
{
	while (n > 0)
		n -= sem_wait(&parked) == 0;
}

static void pauses(int n)
{
	pthread_t threads[MUTATORS];
	stop = false;
	for (int i = 0; i < n; i++)
		NEED(pthread_create(&threads[i], NULL, mutates, (void *)(intptr_t)i) == 0);
	await_parked(n);
	for (int pause = 0; pause < PAUSES; pause++) {
		usleep(1000);
		for (int i = 0; i < n; i++)
			pthread_kill(threads[i], SIGUSR1);
		await_parked(n);
		for (int i = 0; i < 5; i++)
			work();
		for (int i = 0; i < n; i++)
			sem_post(&go[i]);
	}
	stop = true;
	for (int i = 0; i < n; i++)
		pthread_join(threads[i], NULL);
	say("%d mutators: %ld calls failed, %ld wrong bytes", n, failed, wrong);
	if (n == MUTATORS)
		quiet_point("after the pauses");
}

static void *is_stopped(void *unused)
{
	shared->stopped_tid = gettid();
	while (!shared->done)
		work();
	return unused;
}

/* Stops one thread of its parent's again and again; the others are to go on meanwhile. */
static _Noreturn void debugger(void)
{
	while (!shared->stopped_tid)
		usleep(1000);
	int tid = shared->stopped_tid;
	for (int i = 0; i < STOPS; i++) {
		struct timespec wait = { 0, 200000 };
		if (ptrace(PTRACE_SEIZE, tid, 0, 0) != 0)
			break;
		NEED(ptrace(PTRACE_INTERRUPT, tid, 0, 0) == 0 && waitpid(tid, NULL, __WALL) == tid);
		long before = shared->progress;
		/* Ten seconds are a hang. */
		int naps = 0;
		while (shared->progress < before + ENOUGH && naps++ < 50000)
			nanosleep(&wait, NULL);
		shared->held_up += shared->progress < before + ENOUGH;
		shared->stops++;
		NEED(ptrace(PTRACE_DETACH, tid, 0, 0) == 0);
		usleep(500);
	}
	shared->done = 1;
	_exit(0);
}

static void stops(void)
{
	pid_t child = fork();
	NEED(child >= 0);
	if (child == 0)
		debugger();
	prctl(PR_SET_PTRACER, child);
	pthread_t thread;
	NEED(pthread_create(&thread, NULL, is_stopped, NULL) == 0);
	while (!shared->done) {
		work();
		shared->progress++;
	}
	pthread_join(thread, NULL);
	NEED(waitpid(child, NULL, 0) == child);
	bool could = shared->stops == STOPS;
	say("stopped by a debugger: %s", could ? "each time" : "it can't be had here");
	say("held up %ld times: %ld calls failed, %ld wrong bytes", shared->held_up, failed, wrong);
}

static atomic_bool spinning, go_on;

static void spins(int sig)
{
	(void)sig;
	spinning = true;
	while (!go_on)
		;
	spinning = false;
}

/* A collector whose threads don't sleep while they wait. */
static void without_sleep(void)
{
	struct sigaction a = { .sa_handler = spins };
	pthread_t thread;
	NEED(sigaction(SIGUSR2, &a, NULL) == 0);
	stop = false;
	NEED(pthread_create(&thread, NULL, mutates, NULL) == 0);
	await_parked(1);
	for (int pause = 0; pause < SPINS; pause++) {
		usleep(100);
		go_on = false;
		pthread_kill(thread, SIGUSR2);
		while (!spinning)
			;
		work();
		go_on = true;
		while (spinning)
			;
	}
	stop = true;
	pthread_join(thread, NULL);
	say("without sleep: %ld calls failed, %ld wrong bytes", failed, wrong);
}

int main(void)
{
	shared = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	NEED(shared != MAP_FAILED && sem_init(&parked, 0, 0) == 0);
	for (int i = 0; i < MUTATORS; i++)
		NEED(sem_init(&go[i], 0, 0) == 0);
	stops();
	struct sigaction a = { .sa_handler = parks };
	NEED(sigaction(SIGUSR1, &a, NULL) == 0);
	for (int n = 1; n <= MUTATORS; n *= 2)
		pauses(n);
	without_sleep();
	quiet_point("at the end");
	return 0;
}
