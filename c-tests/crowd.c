/* Proves: thousands of threads that end at once, on few processors, take nothing from each other. */
#include "crowd.h"

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
	for (int round = 0; round < 3; round++) {
		NEED(pthread_barrier_init(&barrier, NULL, MANY + 1) == 0);
		crowd_start(t, MANY, parked);
		pthread_barrier_wait(&barrier);
		say("joined %d", crowd_join(t, MANY));
		quiet_point("joined");
	}
	return 0;
}
