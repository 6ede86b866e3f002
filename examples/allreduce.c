/* An allreduce without MPI, over memory that the processes have mapped of each other.
 *
 *   gcc -O3 -o allreduce allreduce.c $(pkg-config --cflags --libs regall)
 *   regall run -- ./allreduce sums|time [BYTES [PROCESSES]]
 *
 * Each process needs 33 MiB of locked memory (ulimit -l).
 *
 * Each process has an area by regall_alloc_shared, tells the others by message where it is, and
 * maps theirs. From then on there are no calls: flags are C11 atomics in mapped memory, stored with
 * release and loaded with acquire.
 *
 * Short vectors lie beside the flag that announces them, and each process adds all of them up.
 * Of long ones each process adds a part up, out of everybody's memory into everybody's memory.
 * SPDX-License-Identifier: MIT OR Apache-2.0 */
#define _GNU_SOURCE
#include <errno.h>
#include <regall.h>
#include <sched.h>
#include <stdatomic.h>
#include <sys/prctl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "allreduce.h"

/* Doubles of a short vector, and those that are added up at one time of a long one. */
enum { SHORT = 1024, PIECE = 512 };

/* A process's area. Nobody but its owner writes the flags: they count its allreduces, and its steps
 * in long ones. An announced vector is read by the others until they announce the next one, so there
 * are two places for them. */
struct area {
	struct {
		_Alignas(128) _Atomic uint64_t come;
		double data[SHORT];
	} announced[2];
	_Alignas(128) _Atomic uint64_t step;
	_Alignas(128) double in[MOST];
	_Alignas(128) double out[MOST];
};

struct card {
	int32_t pid, rank;
	uint64_t area;
};

static struct area *areas[RANKS];
static struct card cards[RANKS];
static regall_peer *peers[RANKS];
static int rank, ranks = 2;
static uint64_t sums, steps;
/* Looks at a flag before others are let run. */
static unsigned spins = 20;

static void must(int r, const char *what)
{
	if (r >= 0)
		return;
	fprintf(stderr, "allreduce: %s: %s\n", what, strerror(-r));
	exit(1);
}

/* Waits until a flag has come to a count; others are let run where there are more of us than
 * processors. */
static void until(const _Atomic uint64_t *flag, uint64_t count)
{
	for (unsigned n = 1; atomic_load_explicit(flag, memory_order_acquire) < count; n++)
		if (n % spins == 0)
			sched_yield();
#if defined(__x86_64__)
		else
			__builtin_ia32_pause();
#endif
}

static void all_are_here(void)
{
	atomic_store_explicit(&areas[rank]->step, ++steps, memory_order_release);
	for (int r = 0; r < ranks; r++)
		until(&areas[r]->step, steps);
}

static void add_short(const double *in, double *out, size_t count)
{
	uint64_t which = ++sums % 2;
	memcpy(areas[rank]->announced[which].data, in, count * sizeof *in);
	atomic_store_explicit(&areas[rank]->announced[which].come, sums, memory_order_release);
	for (int r = 0; r < ranks; r++) {
		until(&areas[r]->announced[which].come, sums);
		const double *theirs = areas[r]->announced[which].data;
		if (r == 0)
			memcpy(out, theirs, count * sizeof *out);
		else
			for (size_t n = 0; n < count; n++)
				out[n] += theirs[n];
	}
}

static void add_long(size_t count)
{
	size_t begin = count * (size_t)rank / (size_t)ranks;
	size_t end = count * (size_t)(rank + 1) / (size_t)ranks;
	/* What all have in `in` is there, and nobody reads its `out` any more. */
	all_are_here();
	for (size_t at = begin; at < end; at += PIECE) {
		double sum[PIECE];
		size_t some = end - at < PIECE ? end - at : PIECE;
		memcpy(sum, &areas[0]->in[at], some * sizeof *sum);
		for (int r = 1; r < ranks; r++)
			for (size_t n = 0; n < some; n++)
				sum[n] += areas[r]->in[at + n];
		for (int r = 0; r < ranks; r++)
			memcpy(&areas[r]->out[at], sum, some * sizeof *sum);
	}
	/* All parts are in everybody's `out`. */
	all_are_here();
}

/* in and out are those of the process's area. */
static void allreduce(const double *in, double *out, size_t count)
{
	if (count <= SHORT)
		add_short(in, out, count);
	else
		add_long(count);
}

static int open_rank(const struct card *card)
{
	int r;
	/* It may not have begun yet. */
	while ((r = regall_peer_open(card->pid, 0, 0, &peers[card->rank])) == -ENOENT)
		sched_yield();
	return r;
}

static void send_to(int to, const void *data, size_t bytes)
{
	int r;
	/* It may have no box yet, or no room in it. */
	while ((r = regall_send(peers[to], 0, data, bytes)) == -EAGAIN || r == -ENOTCONN)
		sched_yield();
	must(r, "regall_send");
}

/* The data of the next message. */
static void receive(void *data, size_t bytes)
{
	static _Alignas(8) char room[sizeof(struct regall_message) + sizeof cards];
	static const struct regall_message *m;
	static int left;
	if (left == 0) {
		must(left = regall_wait(room, sizeof room, 60000), "regall_wait");
		must(left ? 0 : -ETIMEDOUT, "regall_wait");
		m = (const void *)room;
	} else {
		m = regall_message_next(m);
	}
	left--;
	memcpy(data, regall_message_data(m), bytes);
}

/* All know of all, and have mapped what they have: the first process collects the cards and hands
 * them out. */
static void meet(pid_t first)
{
	void *own;
	must(regall_box_open(), "regall_box_open");
	must(regall_alloc_shared(sizeof(struct area), &own), "regall_alloc_shared");
	areas[rank] = own;
	cards[rank] = (struct card){ getpid(), rank, (uintptr_t)own };
	if (rank > 0) {
		must(open_rank(&(struct card){ first, 0, 0 }), "regall_peer_open");
		send_to(0, &cards[rank], sizeof *cards);
		receive(cards, sizeof cards);
	}
	for (int r = 1; r < ranks; r++) {
		struct card card = cards[r];
		if (rank == 0)
			receive(&card, sizeof card);
		cards[card.rank] = card;
		if (card.rank != rank)
			must(open_rank(&card), "regall_peer_open");
	}
	for (int r = 1; r < ranks && rank == 0; r++)
		send_to(r, cards, sizeof cards);
	for (int r = 0; r < ranks; r++) {
		struct regall_mapping m;
		if (r == rank)
			continue;
		must(regall_map(peers[r], cards[r].area, sizeof(struct area), REGALL_MAP_WRITE, &m), "regall_map");
		areas[r] = m.at;
	}
}

/* Each on a processor of its own, if there are enough. */
static void pin(void)
{
	cpu_set_t all, one;
	if (sched_getaffinity(0, sizeof all, &all) < 0 || CPU_COUNT(&all) < ranks)
		return;
	spins = 2000;
	CPU_ZERO(&one);
	for (int cpu = 0, n = 0; cpu < CPU_SETSIZE; cpu++)
		if (CPU_ISSET(cpu, &all) && n++ == rank)
			CPU_SET(cpu, &one);
	sched_setaffinity(0, sizeof one, &one);
}

int main(int argc, char **argv)
{
	pid_t first = getpid();
	ranks = argc > 3 ? atoi(argv[3]) : 2;
	if (argc < 2 || ranks < 1 || ranks > RANKS) {
		fprintf(stderr, "usage: allreduce sums|time [BYTES [PROCESSES]]\n");
		return 2;
	}
	for (int r = 1; r < ranks && rank == 0; r++) {
		pid_t pid = fork();
		must(pid < 0 ? -errno : 0, "fork");
		if (pid == 0) {
			rank = r;
			prctl(PR_SET_PDEATHSIG, SIGKILL);
			if (getppid() != first)
				return 1;
		}
	}
	pin();
	meet(first);
	run(argv[1], most_of(argc, argv), rank, areas[rank]->in, areas[rank]->out);
	/* What is mapped of a process stays when it ends. */
	for (int status, ended = 0; rank == 0 && ended < ranks - 1; ended++)
		if (wait(&status) < 0 || status != 0)
			return 1;
	return 0;
}
