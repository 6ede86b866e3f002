/* How long something takes, where a defect shows in seconds instead of milliseconds, again and again. */
#ifndef REGALL_TIMES_H
#define REGALL_TIMES_H

#include <time.h>
#include "../check.h"

__attribute__((unused)) static double now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

/* How often something was done, how often it took more than `limit`, and how long at the most. */
struct times {
	double limit, most;
	int n, slow;
};

__attribute__((unused)) static double took(struct times *t, double since)
{
	double seconds = now() - since;
	t->n++;
	t->slow += seconds > t->limit;
	t->most = seconds > t->most ? seconds : t->most;
	return seconds;
}

/* Once may be the machine's fault. */
__attribute__((unused)) static void judge(const char *what, const struct times *t)
{
	fprintf(stderr, "%s: %d, %.4f s at the most, %d above %.0f s\n", what, t->n, t->most, t->slow, t->limit);
	say("%s: %s", what, t->slow > 1 ? "too slow" : "in time");
}

/* At least twice, not for long. */
__attribute__((unused)) static bool goes_on(const struct times *t, int many, double since)
{
	return t->n < 2 || (t->n < many && now() - since < 8);
}

__attribute__((unused)) static double map_and_unmap(struct times *t)
{
	double since = now();
	char *at = anon(4);
	memset(at, 1, 4 * PAGE);
	NEED(munmap(at, 4 * PAGE) == 0);
	return took(t, since);
}

#endif
