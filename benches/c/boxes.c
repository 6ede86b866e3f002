/*
 * Messages between two processes on two processors, by the functions of regall.h, which the
 * preloaded library has. Prints a figure a line, as often as it is asked for.
 *
 * boxes lat BYTES COUNT        ns one way, there and back halved
 * boxes rate BYTES COUNT N     ns a message, N senders, the receiver's clock
 * boxes put BYTES COUNT        a put with a notice, and memcpy with one word, both seen by the
 *                              owner: two numbers a line, ns
 * boxes cold BYTES COUNT       a get of what its owner has just written, and memcpy of the same
 *                              where it is mapped: two numbers a line, ns
 * boxes poll PEERS COUNT       ns a poll that finds a message of one peer, of so many
 */
#define _GNU_SOURCE
#include <errno.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <signal.h>
#include <time.h>
#include <unistd.h>
#include "../../include/regall.h"

#pragma weak regall_active
#pragma weak regall_peer_open
#pragma weak regall_alloc_shared
#pragma weak regall_map
#pragma weak regall_box_open
#pragma weak regall_send
#pragma weak regall_poll
#pragma weak regall_put_notify
#pragma weak regall_get

#define ROUNDS 9

static _Alignas(64) unsigned char room[64 << 10], data[1 << 20];

/* What both processes share beside: an address, and a word. */
static struct {
	_Alignas(64) _Atomic uint64_t word;
	_Alignas(64) _Atomic uint64_t address;
	_Alignas(64) _Atomic int ready;
} *common;

static void need(int good, const char *what)
{
	if (!good) {
		fprintf(stderr, "boxes: %s\n", what);
		exit(1);
	}
}

static double now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1e9 + t.tv_nsec;
}

static void on(int cpu)
{
	cpu_set_t ours, one;
	sched_getaffinity(0, sizeof ours, &ours);
	CPU_ZERO(&one);
	for (int n = 0, seen = 0; n < CPU_SETSIZE; n++)
		if (CPU_ISSET(n, &ours) && seen++ == cpu)
			CPU_SET(n, &one);
	if (CPU_COUNT(&one))
		sched_setaffinity(0, sizeof one, &one);
}

static regall_peer *peer_of(pid_t pid)
{
	regall_peer *peer = NULL;
	int r;
	while ((r = regall_peer_open(pid, 0, 0, &peer)) == -ENOENT)
		usleep(100);
	if (r)
		fprintf(stderr, "boxes: regall_peer_open: %s\n", strerror(-r));
	need(r == 0, "no peer");
	return peer;
}

static void sends(regall_peer *peer, size_t bytes)
{
	int r;
	/* Where senders share a processor, as MPI's do that find it so. */
	for (int n = 1; (r = regall_send(peer, 1, data, bytes)) == -EAGAIN || r == -ENOTCONN; n++)
		if (n % 100 == 0)
			sched_yield();
	need(r == 0, "send");
}

static int takes(void)
{
	int got;
	while ((got = regall_poll(room, sizeof room)) == 0)
		;
	need(got > 0, "poll");
	return got;
}

static pid_t child(void)
{
	pid_t parent = getpid(), pid = fork();
	need(pid >= 0, "fork");
	if (pid == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		need(getppid() == parent, "the first process has ended");
	}
	return pid;
}

static void latency(size_t bytes, long count)
{
	pid_t parent = getpid(), pid = child();
	on(pid == 0);
	need(regall_box_open() == 0, "no box");
	regall_peer *peer = peer_of(pid ? pid : parent);
	for (int round = -1; round < ROUNDS; round++) {
		double begin = now();
		for (long n = 0; n < count; n++) {
			if (pid) {
				sends(peer, bytes);
				takes();
			} else {
				takes();
				sends(peer, bytes);
			}
		}
		if (pid && round >= 0)
			printf("%.1f\n", (now() - begin) / count / 2);
	}
	if (!pid)
		_exit(0);
	waitpid(pid, NULL, 0);
}

static void rate(size_t bytes, long count, int senders)
{
	pid_t parent = getpid();
	need(regall_box_open() == 0, "no box");
	for (int s = 0; s < senders; s++)
		if (child() == 0) {
			on(1);
			regall_peer *peer = peer_of(parent);
			for (long n = 0; n < count * (ROUNDS + 1); n++)
				sends(peer, bytes);
			_exit(0);
		}
	on(0);
	/* A poll may take messages of the next round, too. */
	long all = count * senders, taken = 0;
	for (int round = -1; round < ROUNDS; round++) {
		double begin = now();
		long before = taken;
		while (taken < all * (round + 2))
			taken += takes();
		if (round >= 0)
			printf("%.1f\n", (now() - begin) / (double)(taken - before));
	}
	while (wait(NULL) > 0)
		;
}

/* Memory that peers can map, and are told of. */
static void *offers(size_t bytes)
{
	void *area;
	need(regall_alloc_shared(bytes, &area) == 0, "no memory");
	memset(area, 1, bytes);
	atomic_store(&common->address, (uintptr_t)area);
	return area;
}

/* What a process offers, mapped here; where it has it. */
static uint64_t maps_of(regall_peer *peer, size_t bytes, unsigned flags, struct regall_mapping *here)
{
	while (!atomic_load(&common->address))
		;
	uint64_t there = atomic_load(&common->address);
	need(regall_map(peer, there, bytes, flags, here) == 0, "map");
	return there;
}

/* The owner answers each by a word. */
static void owner(size_t bytes, long count)
{
	on(1);
	need(regall_box_open() == 0, "no box");
	offers(bytes);
	for (uint64_t n = 1; n <= 2u * (uint64_t)count * (ROUNDS + 1); n++) {
		if ((n - 1) / (uint64_t)count % 2)
			while (atomic_load_explicit(&common->word, memory_order_acquire) != n)
				;
		else
			takes();
		atomic_store_explicit(&common->word, n | 1ull << 63, memory_order_release);
	}
	_exit(0);
}

static void answered(uint64_t n)
{
	while (atomic_load_explicit(&common->word, memory_order_acquire) != (n | 1ull << 63))
		;
}

static void put(size_t bytes, long count)
{
	pid_t pid = child();
	if (pid == 0)
		owner(bytes, count);
	on(0);
	regall_peer *peer = peer_of(pid);
	struct regall_mapping here;
	uint64_t there = maps_of(peer, bytes, REGALL_MAP_WRITE, &here), n = 0;
	for (int round = -1; round < ROUNDS; round++) {
		double begin = now(), between, end;
		for (long i = 0; i < count; i++) {
			need(regall_put_notify(peer, data, there, bytes, 1, NULL) == 0, "put");
			answered(++n);
		}
		between = now();
		for (long i = 0; i < count; i++) {
			memcpy(here.at, data, bytes);
			atomic_store_explicit(&common->word, ++n, memory_order_release);
			answered(n);
		}
		end = now();
		if (round >= 0)
			printf("%.1f %.1f\n", (between - begin) / count, (end - between) / count);
	}
	waitpid(pid, NULL, 0);
}

/* The owner writes to each cache line, time and again. */
static void writer(size_t bytes, long count)
{
	on(1);
	volatile unsigned char *area = offers(bytes);
	for (uint64_t n = 1; n <= 2u * (uint64_t)count * (ROUNDS + 1); n++) {
		while (atomic_load_explicit(&common->word, memory_order_acquire) != n)
			;
		for (size_t at = 0; at < bytes; at += 64)
			++area[at];
		atomic_store_explicit(&common->word, n | 1ull << 63, memory_order_release);
	}
	_exit(0);
}

static void cold(size_t bytes, long count)
{
	pid_t pid = child();
	if (pid == 0)
		writer(bytes, count);
	on(0);
	regall_peer *peer = peer_of(pid);
	struct regall_mapping here;
	uint64_t there = maps_of(peer, bytes, 0, &here), n = 0;
	double clock = now();
	for (int i = 0; i < 1000; i++)
		now();
	clock = (now() - clock) / 1001;
	for (int round = -1; round < ROUNDS; round++) {
		double spent[2] = { 0, 0 };
		for (long i = 0; i < 2 * count; i++) {
			atomic_store_explicit(&common->word, ++n, memory_order_release);
			answered(n);
			double begin = now();
			if (i % 2)
				memcpy(data, here.at, bytes);
			else
				need(regall_get(peer, data, there, bytes, NULL) == 0, "get");
			spent[i % 2] += now() - begin - clock;
		}
		if (round >= 0)
			printf("%.1f %.1f\n", spent[0] / count, spent[1] / count);
	}
	waitpid(pid, NULL, 0);
}

static void polls(int peers, long count)
{
	need(regall_box_open() == 0, "no box");
	regall_peer **all = calloc((size_t)peers, sizeof *all);
	for (int p = 0; p < peers; p++) {
		all[p] = peer_of(getpid());
		for (int n = 0; n < 20; n++) {
			sends(all[p], 8);
			takes();
		}
	}
	on(0);
	for (int round = -1; round < ROUNDS; round++) {
		double spent = 0;
		for (long n = 0; n < count; n++) {
			sends(all[0], 8);
			double begin = now();
			takes();
			for (int empty = 0; empty < 3; empty++)
				regall_poll(room, sizeof room);
			spent += now() - begin;
		}
		if (round >= 0)
			printf("%.1f\n", spent / count);
	}
}

int main(int argc, char **argv)
{
	need(argc > 3, "lat|rate|put|cold|poll BYTES|PEERS COUNT [SENDERS]");
	size_t bytes = strtoul(argv[2], NULL, 0);
	long count = atol(argv[3]);
	need(regall_active && regall_active() == 1, "the shim is not here");
	common = mmap(NULL, sizeof *common, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	need(common != MAP_FAILED, "mmap");
	if (strcmp(argv[1], "lat") == 0)
		latency(bytes, count);
	else if (strcmp(argv[1], "rate") == 0)
		rate(bytes, count, argc > 4 ? atoi(argv[4]) : 1);
	else if (strcmp(argv[1], "put") == 0)
		put(bytes, count);
	else if (strcmp(argv[1], "cold") == 0)
		cold(bytes, count);
	else
		polls((int)bytes, count);
	return 0;
}
