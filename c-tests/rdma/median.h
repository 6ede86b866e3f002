/* What something costs: a clock, and the order of what it has said. */
#ifndef REGALL_MEDIAN_H
#define REGALL_MEDIAN_H

#include <time.h>

/* Nanoseconds. */
static double now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

static int by_size(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;
	return (x > y) - (x < y);
}

#endif
