/* Proves: thousands of threads that end at once, on few processors, take nothing from each other. */
#include <pthread.h>
#include "check.h"

#define MANY 2000

static pthread_barrier_t barrier;

static void *parked(void *arg)
{
	pthread_barrier_wait(&barrier);
	return arg;
}

int main(void)
{
	static pthread_t t[MANY];
	pthread_attr_t a;
	pthread_attr_init(&a);
	pthread_attr_setstacksize(&a, 256 << 10);
	for (int round = 0; round < 3; round++) {
		NEED(pthread_barrier_init(&barrier, NULL, MANY + 1) == 0);
		for (size_t i = 0; i < MANY; i++)
			NEED(pthread_create(&t[i], &a, parked, (void *)i) == 0);
		pthread_barrier_wait(&barrier);
		bool fine = true;
		for (size_t i = 0; i < MANY; i++) {
			void *r;
			fine &= pthread_join(t[i], &r) == 0 && r == (void *)i;
		}
		say("joined %d", fine);
		quiet_point("joined");
	}
	return 0;
}
