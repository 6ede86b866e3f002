/*
 * The third role of truth.c, where the reader is to read across a wire: the fetcher, on
 * another node, RDMA-reads what the reader asks for and sends back a sum of each page.
 * The bytes themselves go over the wire by RDMA alone, but for a page that is wrong.
 */
#ifndef REGALL_TRUTH_FETCH_H
#define REGALL_TRUTH_FETCH_H

#include <spawn.h>
#include <sys/wait.h>
#include <time.h>
#include "truth.h"

#define DEPTH 8
#define PIECE (1ul << 20)
#define SUMS (PIECE / PAGE)

struct request {
	uint64_t at, n;
	uint32_t rkey, slot;
	uint32_t show; /* no read: the bytes that the slot has of the last one */
};

struct answer {
	uint32_t slot, status;
	uint64_t sum[SUMS];
};

static double now_s(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

/* A sum of each page's worth of bytes; another byte anywhere makes another sum. */
static void sum_pages(const char *p, size_t n, uint64_t *sum)
{
	for (size_t page = 0; page * PAGE < n; page++) {
		size_t from = page * PAGE, to = n - from < PAGE ? n : from + PAGE;
		uint64_t h = to - from;
		for (size_t i = from; i < to; i += 8) {
			uint64_t w = 0;
			memcpy(&w, p + i, to - i < 8 ? to - i : 8);
			h = (h ^ w) * 0x9e3779b97f4a7c15ul;
			h ^= h >> 29;
		}
		sum[page] = h;
	}
}

static void post_read(const struct end *e, const struct ibv_mr *mr, char *to, const struct request *q)
{
	struct ibv_sge sge = { (uint64_t)to, (uint32_t)q->n, mr->lkey };
	struct ibv_send_wr *bad, wr = {
		.wr_id = q->slot,
		.sg_list = &sge,
		.num_sge = 1,
		.opcode = IBV_WR_RDMA_READ,
		.send_flags = IBV_SEND_SIGNALED,
		.wr.rdma = { q->at, q->rkey },
	};
	/* What was there of the last piece must not pass for this one. */
	memset(to, 0xa5, q->n);
	NEED(ibv_post_send(e->qp, &wr, &bad) == 0);
}

/* The next completion, within a minute. */
static bool completed(const struct end *e, struct ibv_wc *wc)
{
	double until = now_s() + 60;
	for (;;) {
		int n = ibv_poll_cq(e->cq, 1, wc);
		NEED(n >= 0);
		if (n == 1)
			return true;
		if (now_s() > until)
			return false;
		sched_yield();
	}
}

/* Answers the requests on its standard input one by one, until there are no more. */
static int fetcher(const char *device)
{
	/* What is printed goes to standard error: the output is for answers. */
	int in = 0, out = dup(1);
	NEED(out >= 0 && dup2(2, 1) == 1);
	struct end end = open_end(device, DEPTH);
	struct place owner;
	struct request q;
	char *landing = anon(DEPTH * SUMS);
	struct ibv_mr *mr = ibv_reg_mr(end.pd, landing, DEPTH * PIECE, IBV_ACCESS_LOCAL_WRITE);
	NEED(mr && give(out, &end.place, sizeof end.place));
	if (!take(in, &owner, sizeof owner))
		return 4;
	connect_end(&end, &owner);
	NEED(give(out, "", 1));
	while (take(in, &q, sizeof q)) {
		char *at = landing + q.slot * PIECE;
		NEED(q.slot < DEPTH && q.n <= PIECE);
		if (q.show) {
			NEED(give(out, at, q.n));
			continue;
		}
		struct ibv_wc wc = { 0 };
		struct answer a = { .slot = q.slot, .status = ~0u };
		post_read(&end, mr, at, &q);
		if (completed(&end, &wc))
			a.status = wc.status;
		sum_pages(at, q.n, a.sum);
		NEED(give(out, &a, sizeof a));
	}
	return 0;
}

/* Starts one by a command of words with blanks between them, `ssh node2 truth --fetcher rxe0` say. */
static pid_t start_fetcher(const char *command, int *to, int *from)
{
	int a[2], b[2];
	char *words = strdup(command), *argv[16], *rest = NULL;
	int n = 0;
	for (char *w = strtok_r(words, " ", &rest); w && n < 15; w = strtok_r(NULL, " ", &rest))
		argv[n++] = w;
	argv[n] = NULL;
	posix_spawn_file_actions_t actions;
	NEED(n && pipe2(a, O_CLOEXEC) == 0 && pipe2(b, O_CLOEXEC) == 0);
	NEED(posix_spawn_file_actions_init(&actions) == 0);
	NEED(posix_spawn_file_actions_adddup2(&actions, a[0], 0) == 0);
	NEED(posix_spawn_file_actions_adddup2(&actions, b[1], 1) == 0);
	extern char **environ;
	pid_t pid;
	NEED(posix_spawnp(&pid, argv[0], &actions, NULL, argv, environ) == 0);
	posix_spawn_file_actions_destroy(&actions);
	free(words);
	close(a[0]);
	close(b[1]);
	*to = a[1];
	*from = b[0];
	return pid;
}

#endif
