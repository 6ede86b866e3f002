/* Many threads that are started one after another, and each of which returns its number. */
#ifndef REGALL_CROWD_H
#define REGALL_CROWD_H

#include <pthread.h>
#include "check.h"

/* On stacks of 256 KiB. */
static void crowd_start(pthread_t *t, size_t n, void *(*f)(void *))
{
	pthread_attr_t a;
	NEED(pthread_attr_init(&a) == 0 && pthread_attr_setstacksize(&a, 256 << 10) == 0);
	for (size_t i = 0; i < n; i++)
		NEED(pthread_create(&t[i], &a, f, (void *)i) == 0);
	pthread_attr_destroy(&a);
}

/* Whether all have ended as they should. */
static bool crowd_join(const pthread_t *t, size_t n)
{
	bool fine = true;
	for (size_t i = 0; i < n; i++) {
		void *r;
		fine &= pthread_join(t[i], &r) == 0 && r == (void *)i;
	}
	return fine;
}

#endif
