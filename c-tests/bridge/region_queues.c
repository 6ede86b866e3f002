/* Proves: copies by cookie that are started and not waited for arrive whole and are told of once; a third process copies once what it can map; an owner that dies in the middle is told of. */
#include <poll.h>
#include "region.h"

#pragma weak regall_queue_open
#pragma weak regall_queue_close
#pragma weak regall_queue_poll
#pragma weak regall_queue_wait
#pragma weak regall_region_read_start
#pragma weak regall_region_write_start
#pragma weak regall_region_copy_start

static regall_queue *queue;

/* The one completion that there is to come. */
static struct regall_completion next(uint64_t tag)
{
	struct regall_completion one = { .result = 1 };
	IS(1, regall_queue_wait(queue, &one, 1, 20000));
	IS(tag, one.tag);
	return one;
}

static uint64_t region_by(struct worker *w, uint64_t offset, uint64_t len, unsigned flags)
{
	w->work->segment[0] = piece((char *)offset, len);
	w->work->count = 1;
	w->work->prot = BOTH;
	w->work->flags = flags;
	IS(0, ask(w, ASK_CREATE));
	return w->work->cookie;
}

static void fill_by(struct worker *w, uint64_t seed)
{
	w->work->offset = seed;
	ask(w, ASK_FILL);
}

static bool arena_is(struct worker *w, uint64_t at, uint64_t len, uint64_t seed, uint64_t from)
{
	ask(w, ASK_SHOW);
	for (uint64_t i = 0; i < len; i++)
		if (w->work->buffer[at + i] != byte_of(seed, from + i))
			return false;
	return true;
}

static void async(void)
{
	static char data[3 * MIB];
	struct worker a = start_worker(), b = start_worker();
	fill_by(&a, 7);
	fill_by(&b, 8);
	uint64_t from = region_by(&a, 100, 3 * MIB, 0), to = region_by(&b, 5, 3 * MIB, 0);
	uint64_t once = region_by(&a, 0, 10, REGALL_REGION_SINGLE_USE);
	IS(0, regall_queue_open(0, &queue));
	struct regall_segment here[2] = { piece(data, MIB), piece(data + MIB, MIB) };
	IS(0, regall_region_read_start(queue, from, 17, here, 2, 1));
	struct regall_completion one = next(1);
	IS(0, one.result);
	IS(2 * MIB, one.done.bytes);
	for (uint64_t i = 0; i < 2 * MIB; i++)
		if (data[i] != byte_of(7, 117 + i)) {
			IS(byte_of(7, 117 + i), data[i]);
			break;
		}
	fill(data, 1000, 9);
	struct regall_segment out = piece(data, 1000);
	IS(0, regall_region_write_start(queue, to, 2 * MIB, &out, 1, 2));
	IS(0, regall_region_copy_start(queue, from, 3, to, 0, MIB, 3));
	one = next(2);
	HOLDS(one.result == 0 && one.done.bytes == 1000);
	one = next(3);
	HOLDS(one.result == 0 && one.done.bytes == MIB);
	HOLDS(arena_is(&b, 5 + 2 * MIB, 1000, 9, 0) && arena_is(&b, 5, MIB, 7, 103));
	HOLDS(arena_is(&b, 5 + MIB, 100, 8, 5 + MIB));
	/* Behind the end is nothing; what is wrong with a cookie comes with the completion. */
	IS(0, regall_region_read_start(queue, from, 3 * MIB, here, 1, 4));
	one = next(4);
	HOLDS(one.result == 0 && one.done.bytes == 0);
	IS(0, regall_region_read_start(queue, from ^ 1ull << 40, 0, here, 1, 5));
	IS(-EINVAL, next(5).result);
	IS(0, regall_region_read_start(queue, once, 0, &out, 1, 6));
	IS(0, regall_region_read_start(queue, once, 0, &out, 1, 7));
	IS(0, next(6).result);
	IS(-EINVAL, next(7).result);
	a.work->cookie = from;
	IS(0, ask(&a, ASK_DESTROY));
	IS(0, regall_region_copy_start(queue, from, 0, to, 0, 10, 8));
	IS(-EINVAL, next(8).result);
	IS(-EINVAL, regall_region_read_start(NULL, to, 0, here, 1, 9));
	IS(-EINVAL, regall_region_read_start(queue, to, 0, NULL, 1, 9));
	IS(-EINVAL, regall_region_write_start(queue, to, 0, NULL, 1, 9));
	IS(-EINVAL, regall_region_copy_start(NULL, to, 0, to, 0, 1, 9));
	/* More than there is room for. */
	int started = 0, r = 0;
	while (started < 1000 && (r = regall_region_read_start(queue, to, 0, here, 2, 100)) == 0)
		started++;
	IS(-EAGAIN, r);
	IS(256, started);
	for (; started > 0; started--)
		IS(0, next(100).result);
	IS(0, regall_queue_close(queue));
	end_worker(&a);
	end_worker(&b);
}

/* 24 MiB between two others, in copies of 6 MiB; REGALL_COPY has it go through mappings. How often
 * each byte is copied is in this process's statistics. */
static void once(bool first_shared, bool second_shared)
{
	arenas_are_shared = first_shared;
	struct worker a = start_worker();
	arenas_are_shared = second_shared;
	struct worker b = start_worker();
	uint64_t from = region_by(&a, 64, 6 * MIB, 0), to = region_by(&b, 4096, 6 * MIB, 0);
	for (uint64_t seed = 1; seed <= 4; seed++) {
		struct regall_done done;
		fill_by(&a, seed);
		IS(0, regall_region_copy(from, 0, to, 0, UINT64_MAX, &done));
		IS(6 * MIB, done.bytes);
		HOLDS(arena_is(&b, 4096, 6 * MIB, seed, 64));
	}
	end_worker(&a);
	end_worker(&b);
}

static void both_mapped(void)
{
	once(true, true);
}

static void source_mapped(void)
{
	once(true, false);
}

static void target_mapped(void)
{
	once(false, true);
}

/* One of the owners is killed while copies are under way. What was said to be good is good. */
static void deaths(void)
{
	enum { COPIES = 24, TURNS = 6 };
	for (int turn = 0; turn < TURNS; turn++) {
		arenas_are_shared = turn % 3 != 2;
		struct worker a = start_worker(), b = start_worker(), *dies = turn % 2 ? &a : &b;
		fill_by(&a, (uint64_t)turn);
		fill_by(&b, 99);
		uint64_t from = region_by(&a, 0, 6 * MIB, 0), to = region_by(&b, 0, 6 * MIB, 0);
		IS(0, regall_queue_open(0, &queue));
		for (uint64_t n = 0; n < COPIES; n++)
			IS(0, regall_region_copy_start(queue, from, 0, to, 0, 6 * MIB, n));
		IS(0, next(0).result);
		pause_us(turn * 400);
		kill(dies->pid, SIGKILL);
		NEED(waitpid(dies->pid, NULL, 0) == dies->pid);
		int last = 0;
		for (uint64_t n = 1; n < COPIES; n++) {
			struct regall_completion one = next(n);
			int r = one.result;
			HOLDS(r == 0 || r == -ESRCH || r == -ESTALE || r == -EINVAL);
			HOLDS(r != 0 || (last == 0 && one.done.bytes == 6 * MIB));
			last = r;
		}
		/* All of them may have been quicker than the end; one more is not. */
		IS(0, regall_region_copy_start(queue, from, 0, to, 0, 6 * MIB, COPIES));
		HOLDS(next(COPIES).result != 0);
		if (dies == &a)
			HOLDS(arena_is(&b, 0, 6 * MIB, (uint64_t)turn, 0));
		IS(0, regall_queue_close(queue));
		if (dies == &a)
			end_worker(&b);
		else
			end_worker(&a);
	}
}

int main(int argc, char **argv)
{
	static const struct chapter all[] = {
		{ "async", async }, { "both", both_mapped }, { "source", source_mapped },
		{ "target", target_mapped }, { "deaths", deaths },
	};
	return run_chapter(argc, argv, all, sizeof all / sizeof *all, 60);
}
