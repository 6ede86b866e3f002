/* Proves: handlers that jump out of memory calls, and threads that are cancelled in them, at any moment and very often, leave no byte unaccounted for and nobody waiting. */
/*
 * jumps [times] [seed]: so many jumps beside two threads that make memory calls as well, then
 * so many cancellations. All of it in places of its own, so that what a jump leaves mapped
 * does not pile up.
 */
#include <pthread.h>
#include <setjmp.h>
#include <sys/time.h>
#include "../check.h"

#define SLOT 64ul /* pages: a hole in one is too small for what libc maps */
#define SLOTS 4
#define QUIET_POINTS 5
#define LONGEST 300 /* microseconds from one jump to the next, at the most */

static long times = 2000;
static char *place; /* of SLOTS slots */
static char *kept; /* nobody writes here */
static volatile sig_atomic_t ending;
static volatile long jumped;
static uint64_t of_timer;
static sigjmp_buf back;

static uint64_t draw(uint64_t *seed, uint64_t below)
{
	*seed ^= *seed << 13;
	*seed ^= *seed >> 7;
	*seed ^= *seed << 17;
	return (*seed >> 16) % below;
}

/* One call in this slot. It may fail: what is mapped there is anybody's guess. */
static void one_call(uint64_t *seed, char *slot)
{
	size_t from = draw(seed, SLOT), pages = draw(seed, SLOT - from) + 1;
	char *p = slot + from * PAGE;
	size_t n = pages * PAGE;
	switch (draw(seed, 9)) {
	case 0:
	case 1:
		p = mmap(p, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
		if (p != MAP_FAILED)
			*(volatile char *)p = 1;
		break;
	case 2:
		munmap(p, n);
		break;
	case 3:
		mmap(p, n, PROT_READ, MAP_SHARED | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
		break;
	case 4:
		mprotect(p, n, draw(seed, 2) ? PROT_READ : PROT_READ | PROT_WRITE);
		break;
	case 5:
		mremap(p, PAGE, PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, slot + draw(seed, SLOT) * PAGE);
		break;
	case 6:
		madvise(p, n, MADV_DONTNEED);
		break;
	case 7:
		mlock(p, n);
		break;
	default:
		munlock(p, n);
	}
}

static void clear(char *slot)
{
	NEED(mmap(slot, SLOT * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0) == slot);
}

static void look(const char *label)
{
	NEED(all_are(kept, 16 * PAGE, 7));
	quiet_claim(kept, 16 * PAGE, "registered");
	quiet_point(label);
}

/* The next signal, after so many microseconds; 0: none. */
static void alarm_in(long usec)
{
	struct itimerval i = { { 0, 0 }, { 0, usec } };
	setitimer(ITIMER_REAL, &i, NULL);
}

static void on_alarm(int sig)
{
	(void)sig;
	siglongjmp(back, 1);
}

static void *beside(void *arg)
{
	uint64_t seed = (uintptr_t)arg;
	char *slot = arg;
	while (!ending)
		one_call(&seed, slot);
	clear(slot);
	return NULL;
}

static void jumps(uint64_t first)
{
	static uint64_t seed;
	static volatile long stop;
	static pthread_t t[2];
	struct sigaction a = { .sa_handler = on_alarm };
	sigset_t alarms;
	NEED(sigaction(SIGALRM, &a, NULL) == 0);
	sigemptyset(&alarms);
	sigaddset(&alarms, SIGALRM);
	seed = first;
	of_timer = first * 31 + 7;
	for (int q = 0; q < QUIET_POINTS; q++) {
		ending = false;
		sigprocmask(SIG_BLOCK, &alarms, NULL); /* the threads inherit that */
		for (int i = 0; i < 2; i++)
			NEED(pthread_create(&t[i], NULL, beside, place + (size_t)(i + 1) * SLOT * PAGE) == 0);
		sigprocmask(SIG_UNBLOCK, &alarms, NULL);
		stop = times / QUIET_POINTS * (q + 1);
		if (sigsetjmp(back, 1))
			jumped = jumped + 1;
		if (jumped < stop) {
			alarm_in((long)draw(&of_timer, LONGEST) + 1);
			for (;;)
				one_call(&seed, place);
		}
		ending = true;
		for (int i = 0; i < 2; i++)
			NEED(pthread_join(t[i], NULL) == 0);
		clear(place); /* with this call the shim notices what the last jump has left */
		look("jumps");
	}
	say("jumps %ld", jumped);
}

static void *cancelled(void *arg)
{
	uint64_t seed = *(uint64_t *)arg;
	pthread_setcanceltype(PTHREAD_CANCEL_ASYNCHRONOUS, NULL);
	for (;;)
		one_call(&seed, place);
	return NULL;
}

static void cancellations(uint64_t seed)
{
	long done = 0;
	for (int q = 0; q < QUIET_POINTS; q++) {
		while (done < times / QUIET_POINTS * (q + 1)) {
			pthread_t t;
			void *how;
			uint64_t its = draw(&seed, UINT32_MAX) + 1;
			NEED(pthread_create(&t, NULL, cancelled, &its) == 0);
			struct timespec pause = { 0, (long)draw(&seed, LONGEST) * 1000 };
			nanosleep(&pause, NULL);
			NEED(pthread_cancel(t) == 0);
			NEED(pthread_join(t, &how) == 0 && how == PTHREAD_CANCELED);
			done++;
		}
		clear(place);
		look("cancellations");
	}
	say("cancellations %ld", done);
}

static void *wait_for_it(void *arg)
{
	for (;;)
		pause();
	return arg;
}

/* libc loads libgcc_s with the first cancellation: a hole in a slot has room for that. */
static void first_cancellation(void)
{
	pthread_t t;
	NEED(pthread_create(&t, NULL, wait_for_it, NULL) == 0);
	NEED(pthread_cancel(t) == 0 && pthread_join(t, NULL) == 0);
}

int main(int argc, char **argv)
{
	if (argc > 1)
		times = atol(argv[1]);
	uint64_t seed = argc > 2 ? strtoul(argv[2], NULL, 0) | 1 : 20261122;
	first_cancellation();
	place = reserve(SLOTS * SLOT);
	kept = anon(16);
	memset(kept, 7, 16 * PAGE);
	jumps(seed);
	cancellations(seed);
	return 0;
}
