/* A halo exchange without MPI: four processes, each with a block of a grid, put the edges of their
 * blocks into each other's memory and tell so by the same call.
 *
 *   gcc -o halo halo.c $(pkg-config --cflags --libs regall) && regall run -- ./halo
 *
 * What a process needs to know of the others, pids and addresses, comes by message, too. */
#include <errno.h>
#include <inttypes.h>
#include <regall.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "halo.h"

/* Where neighbours put their edges: what is for one step must not overwrite what is not read yet.
 * A neighbour can be one step ahead, no more: it needs an edge of ours for each. */
struct inbox {
	double edge[2][SIDES][SIDE];
};

/* What a process says of itself, and is told of all. */
struct card {
	int32_t pid, rank;
	uint64_t inbox;
};

static struct block block;
static struct card cards[BLOCKS];
static regall_peer *peers[BLOCKS];
static int rank;
/* Edges that have come, of even and of odd steps. */
static unsigned come[2];

/* Tags of messages that are no edges. */
enum { HELLO = 1 << 20, ALL, SUM };

static void must(int r, const char *what)
{
	if (r >= 0)
		return;
	fprintf(stderr, "halo: %s: %s\n", what, strerror(-r));
	exit(1);
}

/* Room is made by the receiver, which needs a moment; it may not even have its box yet. */
static void patiently(int (*once)(const void *), const void *what)
{
	int r;
	while ((r = once(what)) == -EAGAIN || r == -ENOTCONN || r == -ENOENT)
		sched_yield();
	must(r, "a message");
}

static int open_rank(const void *card)
{
	const struct card *c = card;
	return regall_peer_open(c->pid, 0, 0, &peers[c->rank]);
}

static const void *outgoing;
static uint64_t outgoing_tag;
static size_t outgoing_bytes;

static int send_once(const void *to)
{
	return regall_send(peers[*(const int *)to], outgoing_tag, outgoing, outgoing_bytes);
}

static void send_to(int to, uint64_t tag, const void *data, size_t bytes)
{
	outgoing = data;
	outgoing_tag = tag;
	outgoing_bytes = bytes;
	patiently(send_once, &to);
}

/* The next message. */
static const struct regall_message *next(void)
{
	static _Alignas(8) char room[sizeof(struct regall_message) + sizeof cards];
	static const struct regall_message *m;
	static int left;
	if (left == 0) {
		must(left = regall_wait(room, sizeof room, 60000), "regall_wait");
		if (left == 0)
			must(-ETIMEDOUT, "regall_wait");
		m = (const void *)room;
	} else {
		m = regall_message_next(m);
	}
	left--;
	return m;
}

/* The next message that is no edge; edges are counted. Neighbours may begin before we know all. */
static const struct regall_message *next_but_edges(void)
{
	for (;;) {
		const struct regall_message *m = next();
		if (m->kind != REGALL_MESSAGE_PUT)
			return m;
		come[m->tag / SIDES % 2]++;
	}
}

/* All know of all: rank 0 collects the cards and hands them out. */
static void meet(const struct inbox *inbox, pid_t first)
{
	struct card own = { getpid(), rank, (uintptr_t)inbox };
	if (rank > 0) {
		struct card zero = { first, 0, 0 };
		patiently(open_rank, &zero);
		send_to(0, HELLO, &own, sizeof own);
		memcpy(cards, regall_message_data(next_but_edges()), sizeof cards);
		for (int r = 1; r < BLOCKS; r++)
			if (r != rank)
				patiently(open_rank, &cards[r]);
		return;
	}
	cards[0] = own;
	for (int r = 1; r < BLOCKS; r++) {
		struct card card;
		memcpy(&card, regall_message_data(next()), sizeof card);
		cards[card.rank] = card;
		patiently(open_rank, &card);
	}
	for (int r = 1; r < BLOCKS; r++)
		send_to(r, ALL, cards, sizeof cards);
}

struct edge {
	int to;
	enum side side;
	int step;
	const double *row;
};

static int put_edge(const void *what)
{
	const struct edge *e = what;
	struct inbox *there = (struct inbox *)(uintptr_t)cards[e->to].inbox;
	uint64_t at = (uintptr_t)there->edge[e->step % 2][OPPOSITE(e->side)];
	uint64_t tag = (uint64_t)(e->step * SIDES + OPPOSITE(e->side));
	return regall_put_notify(peers[e->to], e->row, at, sizeof(double[SIDE]), tag, NULL);
}

static uint64_t run(const struct inbox *inbox)
{
	unsigned expected = 0;
	uint64_t sum = 0;
	int sums = 0;
	for (enum side s = UP; s < SIDES; s++)
		expected += neighbour(rank, s) >= 0;
	begin(&block, rank);
	for (int n = 0; n < STEPS; n++) {
		for (enum side s = UP; s < SIDES; s++) {
			double row[SIDE];
			struct edge e = { neighbour(rank, s), s, n, row };
			if (e.to < 0)
				continue;
			take_edge(&block, s, row);
			patiently(put_edge, &e);
		}
		while (come[n % 2] < expected) {
			const struct regall_message *m = next();
			if (m->kind == REGALL_MESSAGE_PUT) {
				come[m->tag / SIDES % 2]++;
			} else if (m->tag == SUM) {
				uint64_t part;
				memcpy(&part, regall_message_data(m), sizeof part);
				sum += part;
				sums++;
			}
		}
		come[n % 2] = 0;
		for (enum side s = UP; s < SIDES; s++)
			if (neighbour(rank, s) >= 0)
				set_frame(&block, s, inbox->edge[n % 2][s]);
		step(&block);
	}
	uint64_t own = checksum(&block);
	if (rank > 0) {
		send_to(0, SUM, &own, sizeof own);
		return 0;
	}
	for (; sums < BLOCKS - 1; sums++) {
		uint64_t part;
		memcpy(&part, regall_message_data(next_but_edges()), sizeof part);
		sum += part;
	}
	return sum + own;
}

int main(void)
{
	pid_t first = getpid();
	must(regall_box_open(), "regall_box_open");
	for (int r = 1; r < BLOCKS && rank == 0; r++) {
		pid_t pid = fork();
		must(pid < 0 ? -errno : 0, "fork");
		if (pid == 0)
			rank = r;
	}
	void *inbox;
	must(regall_alloc_shared(sizeof(struct inbox), &inbox), "regall_alloc_shared");
	meet(inbox, first);
	uint64_t sum = run(inbox);
	if (rank > 0)
		return 0;
	int bad = 0;
	for (int status; wait(&status) > 0;)
		bad |= status;
	printf("checksum %016" PRIx64 "\n", sum);
	return bad != 0;
}
