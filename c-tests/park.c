/* Proves: a thread that leaves memory calls for good, by jumps out of a timer's handler, and then sleeps where it jumped to, holds nobody up and hides no byte. */
/*
 * park [times] [seed]. While the thread sleeps, the first one maps and unmaps, in a place of
 * its own and over what the other one was about. What the sleeper left open (the ledger's
 * lock, a place among the calls in progress, pages about to be pinned) nobody gives back.
 */
#include <pthread.h>
#include <semaphore.h>
#include <setjmp.h>
#include <sys/time.h>
#include "check.h"

#define SLOT 64ul /* pages: a hole in it is too small for what libc maps */
#define QUIET_POINTS 5
#define LONGEST 300 /* microseconds from one jump to the next, at the most */
/* The shim waits a while for somebody who pins, or who may be in a handler, before it goes on. */
#define DEEP 64 /* of so many times the thread sleeps further in than its call was, once */
#define ON_TOP 32 /* of so many times the first one maps where the other's call was, once */

static long times = 500;
static char *slot; /* the sleeper's */
static char *kept; /* nobody writes here */
static uint64_t of_calls, of_timer;
static sem_t asleep, awake;
static bool settles; /* it is to make a whole call before it sleeps again */
static long parked;
static sigjmp_buf back;

static uint64_t draw(uint64_t *seed, uint64_t below)
{
	*seed ^= *seed << 13;
	*seed ^= *seed >> 7;
	*seed ^= *seed << 17;
	return (*seed >> 16) % below;
}

static void clear(void)
{
	NEED(mmap(slot, SLOT * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0) == slot);
}

/* Maps some of the slot, and unmaps some of that. */
static void map_and_unmap(uint64_t *seed)
{
	size_t from = draw(seed, SLOT), pages = draw(seed, SLOT - from) + 1;
	char *p = slot + from * PAGE;
	if (mmap(p, pages * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == p)
		munmap(p, draw(seed, pages) * PAGE + PAGE);
}

static void on_alarm(int sig)
{
	(void)sig;
	siglongjmp(back, 1);
}

static void alarm_in(long usec)
{
	struct itimerval i = { { 0, 0 }, { 0, usec } };
	NEED(setitimer(ITIMER_REAL, &i, NULL) == 0);
}

static void sleep_here(void)
{
	NEED(sem_post(&asleep) == 0);
	while (sem_wait(&awake) != 0)
		NEED(errno == EINTR);
}

__attribute__((noinline)) static void sleep_deep(void)
{
	volatile char between[64 << 10];
	between[0] = 1;
	sleep_here();
	between[1] = between[0];
}

static void *leaves(void *alarms)
{
	NEED(pthread_sigmask(SIG_UNBLOCK, alarms, NULL) == 0);
	if (sigsetjmp(back, 1)) {
		parked++;
		if (parked % DEEP)
			sleep_here();
		else
			sleep_deep();
		while (settles) {
			clear();
			sleep_here();
		}
		if (parked == times)
			return NULL;
	}
	alarm_in((long)draw(&of_timer, LONGEST) + 1);
	for (;;)
		map_and_unmap(&of_calls);
}

/* What the rest of the program does while the thread sleeps. */
static void goes_on(uint64_t *seed)
{
	char *p = anon(8);
	memset(p, 1, 8 * PAGE);
	NEED(mprotect(p, 2 * PAGE, PROT_READ) == 0);
	NEED(all_are(p, 8 * PAGE, 1));
	NEED(munmap(p, 8 * PAGE) == 0);
	if (draw(seed, ON_TOP) == 0)
		map_and_unmap(seed);
}

static void wait_asleep(void)
{
	while (sem_wait(&asleep) != 0)
		NEED(errno == EINTR);
}

/* The sleeper makes one call, by which it learns that it has left others, and all are quiet. */
static void look(void)
{
	settles = true;
	NEED(sem_post(&awake) == 0);
	wait_asleep();
	NEED(all_are(kept, 16 * PAGE, 7));
	quiet_claim(kept, 16 * PAGE, "registered");
	quiet_point("parked");
	settles = false;
}

int main(int argc, char **argv)
{
	if (argc > 1)
		times = atol(argv[1]);
	uint64_t seed = argc > 2 ? strtoul(argv[2], NULL, 0) | 1 : 20261122;
	of_calls = seed * 31 + 7;
	of_timer = seed * 17 + 3;
	slot = reserve(SLOT);
	kept = anon(16);
	memset(kept, 7, 16 * PAGE);
	NEED(sem_init(&asleep, 0, 0) == 0 && sem_init(&awake, 0, 0) == 0);
	struct sigaction a = { .sa_handler = on_alarm };
	NEED(sigaction(SIGALRM, &a, NULL) == 0);
	sigset_t alarms;
	sigemptyset(&alarms);
	sigaddset(&alarms, SIGALRM);
	NEED(pthread_sigmask(SIG_BLOCK, &alarms, NULL) == 0); /* they are the thread's alone */
	pthread_t t;
	NEED(pthread_create(&t, NULL, leaves, &alarms) == 0);
	for (long n = 1; n <= times; n++) {
		wait_asleep();
		goes_on(&seed);
		if (n % (times / QUIET_POINTS) == 0)
			look();
		NEED(sem_post(&awake) == 0);
	}
	NEED(pthread_join(t, NULL) == 0);
	say("parked %ld", parked);
	quiet_point("end");
	return 0;
}
