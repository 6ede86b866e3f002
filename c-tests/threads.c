/* Proves: thousands of threads, small stacks, detached and cancelled threads, as without the shim. */
#include <limits.h>
#include "crowd.h"

#define MANY 2000

static pthread_barrier_t barrier;
static int counter;

static void *parked(void *arg)
{
	volatile char block[2048];
	block[0] = 1;
	__atomic_add_fetch(&counter, block[0], __ATOMIC_SEQ_CST);
	pthread_barrier_wait(&barrier);
	pthread_barrier_wait(&barrier);
	return arg;
}

static void many(void)
{
	static pthread_t t[MANY];
	NEED(pthread_barrier_init(&barrier, NULL, MANY + 1) == 0);
	crowd_start(t, MANY, parked);
	pthread_barrier_wait(&barrier);
	say("threads %d", counter);
	quiet_point("threads");
	pthread_barrier_wait(&barrier);
	say("joined %d", crowd_join(t, MANY));
	quiet_point("joined");
}

static void *maps(void *arg)
{
	for (int i = 0; i < 5; i++) {
		char *p = mmap(NULL, 8 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		p[0] = 1;
		mprotect(p, PAGE, PROT_NONE);
		munmap(p, 8 * PAGE);
	}
	free(malloc(200));
	__atomic_add_fetch(&counter, 1, __ATOMIC_SEQ_CST);
	return arg;
}

static void small(void)
{
	counter = 0;
	pthread_attr_t a;
	pthread_attr_init(&a);
	NEED(pthread_attr_setstacksize(&a, (size_t)PTHREAD_STACK_MIN + 8 * PAGE) == 0);
	for (int i = 0; i < 50; i++) {
		pthread_t t;
		NEED(pthread_create(&t, &a, maps, NULL) == 0);
		pthread_join(t, NULL);
	}
	/* A stack of the program's own. */
	char *s = anon(32);
	for (int i = 0; i < 10; i++) {
		pthread_t t;
		NEED(pthread_attr_setstack(&a, s, 32 * PAGE) == 0);
		NEED(pthread_create(&t, &a, maps, NULL) == 0);
		pthread_join(t, NULL);
	}
	say("small stacks %d", counter);
	quiet_claim(s, 32 * PAGE, "registered");
	quiet_point("small");
	CALL(munmap(s, 32 * PAGE));
}

static void *nothing(void *arg)
{
	return arg;
}

/* PTHREAD_STACK_MIN itself holds a thread that does nothing. */
static void smallest(void)
{
	pthread_attr_t a;
	pthread_attr_init(&a);
	NEED(pthread_attr_setstacksize(&a, (size_t)PTHREAD_STACK_MIN) == 0);
	for (int i = 0; i < 20; i++) {
		pthread_t t;
		NEED(pthread_create(&t, &a, nothing, NULL) == 0);
		NEED(pthread_join(t, NULL) == 0);
	}
	say("smallest stacks");
}

static void detached(void)
{
	counter = 0;
	pthread_attr_t a;
	pthread_attr_init(&a);
	pthread_attr_setdetachstate(&a, PTHREAD_CREATE_DETACHED);
	for (int i = 0; i < 200; i++) {
		pthread_t t;
		NEED(pthread_create(&t, &a, maps, NULL) == 0);
	}
	while (__atomic_load_n(&counter, __ATOMIC_SEQ_CST) < 200)
		usleep(1000);
	usleep(20000); /* for the last ones to be gone */
	say("detached %d", counter);
	quiet_point("detached");
}

static void *endless(void *arg)
{
	if (arg)
		pthread_setcanceltype(PTHREAD_CANCEL_ASYNCHRONOUS, NULL);
	for (;;) {
		char *p = mmap(NULL, 8 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		if (p != MAP_FAILED)
			munmap(p, 8 * PAGE);
		if (!arg)
			pthread_testcancel();
	}
	return NULL;
}

static void cancelled(void)
{
	int fine = 0;
	for (intptr_t i = 0; i < 100; i++) {
		pthread_t t;
		void *r;
		NEED(pthread_create(&t, NULL, endless, (void *)(i & 1)) == 0);
		usleep(300);
		NEED(pthread_cancel(t) == 0 && pthread_join(t, &r) == 0);
		fine += r == PTHREAD_CANCELED;
	}
	say("cancelled %d", fine);
	char *p = anon(8);
	quiet_claim(p, 8 * PAGE, "registered");
	quiet_point("cancelled");
}

/* Each thread has a malloc arena of its own, that grows by mprotect. */
static void *allocates(void *arg)
{
	unsigned seed = (unsigned)(uintptr_t)arg;
	void *p[64] = { 0 };
	for (int i = 0; i < 4000; i++) {
		size_t k = (size_t)(rand_r(&seed) % 64);
		free(p[k]);
		size_t n = (size_t)(rand_r(&seed) % 60000 + 1);
		p[k] = malloc(n);
		memset(p[k], (int)k, n);
	}
	for (int i = 0; i < 64; i++)
		free(p[i]);
	return NULL;
}

static void arenas(void)
{
	pthread_t t[8];
	for (uintptr_t i = 0; i < 8; i++)
		NEED(pthread_create(&t[i], NULL, allocates, (void *)i) == 0);
	for (int i = 0; i < 8; i++)
		pthread_join(t[i], NULL);
	say("arenas");
	quiet_point("arenas");
}

int main(void)
{
	many();
	small();
	smallest();
	detached();
	cancelled();
	arenas();
	quiet_point("end");
	return 0;
}
