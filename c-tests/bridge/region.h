/*
 * What the programs about regions share: the functions of regall.h, which the preloaded
 * library has; expectations; and workers, which are forked, have memory of their own, and
 * make and use regions when they are asked to.
 */
#ifndef REGALL_TEST_REGION_H
#define REGALL_TEST_REGION_H

#include "../expect.h"
#include "../../include/regall.h"

/* There or not, as with any preloaded library. */
#pragma weak regall_active
#pragma weak regall_alloc_shared
#pragma weak regall_audit
#pragma weak regall_opt_out
#pragma weak regall_opt_in
#pragma weak regall_region_create
#pragma weak regall_region_destroy
#pragma weak regall_region_read
#pragma weak regall_region_write
#pragma weak regall_region_copy
#pragma weak regall_region_fd
#pragma weak regall_region_used
#pragma weak regall_region_uses

#define MIB (1ul << 20)
#define ARENA (8 * MIB)
#define SEGMENTS 2048
#define BOTH (REGALL_REGION_READ | REGALL_REGION_WRITE)

__attribute__((unused)) static struct regall_segment piece(const void *p, uint64_t len)
{
	return (struct regall_segment){ (uint64_t)(uintptr_t)p, len };
}

/* Memory that is the same in all processes that are forked from here on. */
__attribute__((unused)) static void *shared_memory(size_t bytes)
{
	void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	NEED(p != MAP_FAILED);
	return p;
}

/* Byte number n of what `seed` stands for. */
__attribute__((unused)) static char byte_of(uint64_t seed, uint64_t n)
{
	return (char)((n * 2654435761u + seed * 40503u) >> 11);
}

__attribute__((unused)) static void fill(char *p, size_t n, uint64_t seed)
{
	for (size_t i = 0; i < n; i++)
		p[i] = byte_of(seed, i);
}

/* One region of one segment; ends the program if that can't be. */
__attribute__((unused)) static uint64_t region_of(const void *p, uint64_t len, unsigned prot, unsigned flags)
{
	uint64_t cookie = 0;
	struct regall_segment s = piece(p, len);
	int r = regall_region_create(&s, 1, prot, flags, &cookie);
	if (r)
		say("create: %d", r);
	NEED(r == 0);
	return cookie;
}

enum ask { ASK_READ, ASK_WRITE, ASK_COPY, ASK_CREATE, ASK_DESTROY, ASK_FILL, ASK_SHOW, ASK_END };

/* A worker: what it is asked and what it answers, in memory that both see. */
struct work {
	enum ask ask;
	uint64_t cookie, offset, other, other_offset, len;
	unsigned prot, flags;
	size_t count;
	struct regall_segment segment[SEGMENTS]; /* local ones, in `buffer` */
	int answer;
	struct regall_done done;
	char buffer[ARENA];
};

struct worker {
	pid_t pid;
	int to, from;
	struct work *work;
};

static char *worker_arena;
/* Whether the next worker's arena is memory that others can map. */
static bool arenas_are_shared;

/* What a worker does when it is asked; ASK_CREATE's segments count from its arena on. */
__attribute__((unused)) static void do_work(struct work *w)
{
	memset(&w->done, 0xee, sizeof w->done);
	switch (w->ask) {
	case ASK_READ:
		w->answer = regall_region_read(w->cookie, w->offset, w->segment, w->count, &w->done);
		break;
	case ASK_WRITE:
		w->answer = regall_region_write(w->cookie, w->offset, w->segment, w->count, &w->done);
		break;
	case ASK_COPY:
		w->answer = regall_region_copy(w->cookie, w->offset, w->other, w->other_offset, w->len, &w->done);
		break;
	case ASK_CREATE:
		for (size_t i = 0; i < w->count; i++)
			w->segment[i].addr += (uint64_t)(uintptr_t)worker_arena;
		w->answer = regall_region_create(w->segment, w->count, w->prot, w->flags, &w->cookie);
		break;
	case ASK_DESTROY:
		w->answer = regall_region_destroy(w->cookie);
		break;
	case ASK_FILL:
		fill(worker_arena, ARENA, w->offset);
		break;
	case ASK_SHOW:
		memcpy(w->buffer, worker_arena, ARENA);
		break;
	case ASK_END:
		break;
	}
}

__attribute__((unused)) static struct worker start_worker(void)
{
	int to[2], from[2];
	struct worker worker = { .work = shared_memory(sizeof *worker.work) };
	NEED(pipe2(to, O_CLOEXEC) == 0 && pipe2(from, O_CLOEXEC) == 0);
	worker.pid = fork();
	NEED(worker.pid >= 0);
	if (worker.pid == 0) {
		char c;
		close(to[1]);
		close(from[0]);
		worker_arena = mmap(NULL, ARENA, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		NEED(worker_arena != MAP_FAILED);
		if (arenas_are_shared)
			NEED(regall_alloc_shared(ARENA, (void **)&worker_arena) == 0);
		while (read(to[0], &c, 1) == 1 && worker.work->ask != ASK_END) {
			do_work(worker.work);
			NEED(write(from[1], &c, 1) == 1);
		}
		exit(0);
	}
	close(to[0]);
	close(from[1]);
	worker.to = to[1];
	worker.from = from[0];
	return worker;
}

static int ask(struct worker *w, enum ask what)
{
	char c = 0;
	w->work->ask = what;
	NEED(write(w->to, &c, 1) == 1);
	if (read(w->from, &c, 1) != 1)
		return -9999;
	return w->work->answer;
}

__attribute__((unused)) static void end_worker(struct worker *w)
{
	/* Its pipe may be open in others that were forked later: it is told. */
	int status = -1;
	ask(w, ASK_END);
	close(w->to);
	NEED(waitpid(w->pid, &status, 0) == w->pid);
	IS(0, status);
	close(w->from);
	munmap(w->work, sizeof *w->work);
}

/* The worker reads `len` bytes by cookie into its buffer, or writes them from there. */
__attribute__((unused)) static int transfer_by(struct worker *w, enum ask what, uint64_t cookie, uint64_t offset,
					       uint64_t len)
{
	w->work->cookie = cookie;
	w->work->offset = offset;
	w->work->count = 1;
	w->work->segment[0] = piece(w->work->buffer, len);
	return ask(w, what);
}
#define READ_BY(w, cookie, offset, len) transfer_by(w, ASK_READ, cookie, offset, len)
#define WRITE_BY(w, cookie, offset, len) transfer_by(w, ASK_WRITE, cookie, offset, len)

/* A program is a list of these: its first argument says which one. */
struct chapter {
	const char *name;
	void (*run)(void);
};

__attribute__((unused)) static int run_chapter(int argc, char **argv, const struct chapter *all, size_t count,
					       unsigned seconds)
{
	bool found = false;
	NEED(regall_active && regall_active());
	alarm(seconds);
	for (size_t i = 0; i < count; i++)
		if (argc > 1 && strcmp(argv[1], all[i].name) == 0) {
			found = true;
			all[i].run();
		}
	HOLDS(found);
	return wrong != 0;
}

#endif
