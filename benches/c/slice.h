/* slice.h: how a measured program and the driver talk.
 *
 * The driver starts the same program several times, once for each way of
 * running it (with the shim, without, with a peer). Each says when it is ready;
 * then the driver gives each in turn a line on stdin. The program measures for
 * some milliseconds, answers with one number, and waits: so all of them see the
 * same machine. Time is CPU time of the thread, so that being preempted by a
 * neighbour does not count.
 * SPDX-License-Identifier: MIT OR Apache-2.0 */
#ifndef SLICE_H
#define SLICE_H

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <sched.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "../../include/regall.h"

/* Batches that one slice has at the most; their median is the answer. */
#define BATCHES 64

static inline uint64_t clock_ns(clockid_t clock)
{
	struct timespec t;
	clock_gettime(clock, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* CPU time of this thread, ns. */
static inline uint64_t cpu_ns(void)
{
	return clock_ns(CLOCK_THREAD_CPUTIME_ID);
}

static inline void fail(const char *what)
{
	dprintf(2, "bench: %s: %s\n", what, strerror(errno));
	_exit(1);
}

static inline void say(const char *text)
{
	if (write(1, text, strlen(text)) < 0)
		fail("write");
}

static inline int by_size(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;
	return (x > y) - (x < y);
}

/* Counters of the shim, if it is here and awake. */
static inline int shim_stats(struct regall_stats *s)
{
	int (*stats)(struct regall_stats *) = (int (*)(struct regall_stats *))dlsym(RTLD_DEFAULT, "regall_stats");
	memset(s, 0, sizeof *s);
	s->size = sizeof *s;
	return stats ? stats(s) : -ENOSYS;
}

/* Calls that whoever watches this process has seen: 0 if nobody does. */
static inline uint64_t events_seen(void)
{
	struct regall_stats s;
	uint64_t (*peer)(void) = (uint64_t (*)(void))dlsym(RTLD_DEFAULT, "bench_peer_events");
	if (shim_stats(&s) == 0)
		return s.events;
	return peer ? peer() : 0;
}

/* Answers the driver until it hangs up. `batch` returns ns for each operation;
 * a slice is as many batches as fit in `slice_ms`. The last line says how many
 * events were seen, so that nobody measures a shim that sleeps. */
static inline void serve(double (*batch)(void), unsigned slice_ms)
{
	char line[8];
	batch();
	say("ready\n");
	while (read(0, line, sizeof line) > 0) {
		double got[BATCHES];
		unsigned n = 0;
		uint64_t end = clock_ns(CLOCK_MONOTONIC) + slice_ms * 1000000ull;
		do
			got[n++] = batch();
		while (n < BATCHES && (n < 5 || clock_ns(CLOCK_MONOTONIC) < end));
		qsort(got, n, sizeof *got, by_size);
		char text[64];
		snprintf(text, sizeof text, "%.3f\n", got[n / 2]);
		say(text);
	}
	char text[64];
	snprintf(text, sizeof text, "events %llu\n", (unsigned long long)events_seen());
	say(text);
}

static inline unsigned long number(const char *text)
{
	return strtoul(text, NULL, 0);
}

#endif
