/*
 * Expectations that don't end the program: `wrong` counts those that were not met, and each
 * is said, up to twenty. Errors of regall's are negative errno values. With them, what tests
 * at random need.
 */
#ifndef REGALL_EXPECT_H
#define REGALL_EXPECT_H

#include <time.h>
#include "check.h"
#include "draw.h"

static int wrong;

/* What the program expects, and what it got. */
#define IS(want, ...)                                                                              \
	do {                                                                                       \
		long got_ = (long)(__VA_ARGS__), want_ = (long)(want);                             \
		if (got_ != want_ && wrong++ < 20)                                                 \
			say("%s:%d: %s is %ld, not %ld", __FILE__, __LINE__, #__VA_ARGS__, got_,   \
			    want_);                                                                \
	} while (0)
#define HOLDS(...) IS(true, (bool)(__VA_ARGS__))

/* The same of system calls: errno says why not. */
#define EXPECT(...)                                                                                \
	do {                                                                                       \
		if (!(__VA_ARGS__) && wrong++ < 20)                                                \
			say("%d: %s:%d: not so: %s (%s)", getpid(), __FILE__, __LINE__,            \
			    #__VA_ARGS__, strerrorname_np(errno));                                 \
	} while (0)

__attribute__((unused)) static bool fails_with(int e, int64_t r)
{
	return r < 0 && errno == e;
}

__attribute__((unused)) static void pause_us(long us)
{
	struct timespec t = { us / 1000000, us % 1000000 * 1000 };
	nanosleep(&t, NULL);
}

#endif
