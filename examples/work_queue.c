/* work_queue.c: tasks of uneven size that the processes of a node take from one queue, without
 * anybody who hands them out.
 *
 *   gcc -o work_queue work_queue.c $(pkg-config --cflags --libs regall)
 *   regall run -- ./work_queue WORKERS TASKS
 *
 * The first process lays a board out in memory that others can map: the number of the next task.
 * A worker takes a number by fetch-and-add, works, and sends what has come of it to the first
 * process's box. So nobody waits for who hands tasks out, and who is quick does more. With WORKERS 0
 * the first process does it all itself; the last line is the same.
 * SPDX-License-Identifier: MIT OR Apache-2.0 */
#include <regall.h>

#include <errno.h>
#include <inttypes.h>
#include <sched.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

/* What the workers find at the address that they are told. */
struct board {
	uint64_t next, tasks;
};

static uint64_t at_of(const void *p)
{
	return (uint64_t)(uintptr_t)p;
}

static void need(int r, const char *what)
{
	if (r < 0) {
		fprintf(stderr, "work_queue: %s: %s\n", what, strerror(-r));
		exit(1);
	}
}

/* A task: the steps that Collatz's rule takes from some thousand numbers. */
static uint64_t work(uint64_t task)
{
	uint64_t steps = 0;
	for (uint64_t n = task * 1000 + 1; n <= task * 1000 + 500 + task % 7 * 200; n++)
		for (uint64_t x = n; x != 1; steps++)
			x = x % 2 ? 3 * x + 1 : x / 2;
	return steps + 1;
}

/* Tells the owner of the board what has come of a task. */
static void report(regall_peer *owner, uint64_t task, uint64_t result)
{
	int r;
	while ((r = regall_send(owner, task, &result, sizeof result)) == -EAGAIN)
		sched_yield(); /* its box is full: it reads as fast as it can */
	need(r, "regall_send");
}

/* Takes tasks from the owner's board until there are none left. */
static int be_worker(pid_t pid, uint64_t board)
{
	regall_peer *owner;
	uint64_t task, tasks, mine = 0;
	need(regall_peer_open(pid, 0, 0, &owner), "regall_peer_open");
	need(regall_load64(owner, board + offsetof(struct board, tasks), &tasks), "regall_load64");
	for (;; mine++) {
		need(regall_fetch_add64(owner, board + offsetof(struct board, next), 1, &task), "the next task");
		if (task >= tasks)
			break;
		report(owner, task, work(task));
	}
	fprintf(stderr, "worker %d: %" PRIu64 " tasks\n", getpid(), mine);
	return regall_peer_close(owner) < 0;
}

/* Takes the workers' messages until each task has its result; how many have. */
static uint64_t gather(uint64_t *result, uint64_t tasks)
{
	static uint64_t room[8192];
	uint64_t done = 0;
	while (done < tasks) {
		int got = regall_wait(room, sizeof room, 1000);
		const struct regall_message *m = (const struct regall_message *)room;
		need(got, "regall_wait");
		/* Nothing comes any more from who has ended. */
		if (got == 0 && waitpid(-1, NULL, WNOHANG) < 0)
			break;
		for (; got > 0; got--, m = regall_message_next(m)) {
			if (m->tag >= tasks || m->bytes != sizeof *result || result[m->tag])
				return done; /* not a task, or one that was done before */
			memcpy(&result[m->tag], regall_message_data(m), sizeof *result);
			done++;
		}
	}
	return done;
}

static void start_worker(const char *self, const struct board *board)
{
	char pid[24], at[24];
	snprintf(pid, sizeof pid, "%d", getpid());
	snprintf(at, sizeof at, "%#" PRIx64, at_of(board));
	if (fork() == 0) {
		execlp(self, self, "worker", pid, at, (char *)NULL);
		_exit(127);
	}
}

int main(int argc, char **argv)
{
	if (argc == 4 && strcmp(argv[1], "worker") == 0)
		return be_worker(atoi(argv[2]), strtoull(argv[3], NULL, 0));
	if (argc != 3) {
		fprintf(stderr, "usage: work_queue WORKERS TASKS\n");
		return 2;
	}
	int workers = atoi(argv[1]), status, failed = 0;
	uint64_t tasks = strtoull(argv[2], NULL, 0), sum = 0;
	uint64_t *result = calloc(tasks + 1, sizeof *result);
	struct board *board;
	if (!result)
		need(-ENOMEM, "results");
	need(regall_alloc_shared(sizeof *board, (void **)&board), "regall_alloc_shared");
	board->tasks = tasks;
	need(workers ? regall_box_open() : 0, "regall_box_open");
	for (int n = 0; n < workers; n++)
		start_worker(argv[0], board);
	uint64_t done = workers ? gather(result, tasks) : 0;
	for (; workers == 0 && done < tasks; done++)
		result[done] = work(done);
	while (wait(&status) > 0)
		failed |= status;
	for (uint64_t task = 0; task < tasks; task++)
		sum = sum * 31 + result[task];
	if (failed || done != tasks) {
		fprintf(stderr, "work_queue: %" PRIu64 " of %" PRIu64 " tasks done\n", done, tasks);
		return 1;
	}
	printf("%" PRIu64 " tasks, checksum %#" PRIx64 "\n", tasks, sum);
	free(result);
	return regall_free(board, sizeof *board) < 0;
}
