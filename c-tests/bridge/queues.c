/* Proves: copies that are started and not waited for arrive byte for byte, each is told of once, and neither fork nor closing hurts those under way. */
#include "peers.h"

#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <sys/prctl.h>

#pragma weak regall_queue_open
#pragma weak regall_queue_close
#pragma weak regall_queue_fd
#pragma weak regall_queue_poll
#pragma weak regall_queue_wait
#pragma weak regall_get_start
#pragma weak regall_put_start
#pragma weak regall_getv_start
#pragma weak regall_putv_start

#define AREA (1ul << 20)
#define THREADS 4
#define COPIES 2500
#define WINDOW 64
#define MOST (16ul << 10)

static unsigned char pattern(uint64_t n)
{
	uint64_t x = (n + 1) * 0x9e3779b97f4a7c15ull;
	return (unsigned char)(x >> 56 ^ x >> 24);
}

/* On the first of our processors, ... */
static void on_first_processor(void)
{
	cpu_set_t ours, first;
	NEED(sched_getaffinity(0, sizeof ours, &ours) == 0);
	CPU_ZERO(&first);
	for (int n = 0; n < CPU_SETSIZE && !CPU_COUNT(&first); n++)
		if (CPU_ISSET(n, &ours))
			CPU_SET(n, &first);
	NEED(sched_setaffinity(0, sizeof first, &first) == 0);
}

/* ... which is not idle: our other threads are quicker than we, to die too. */
static void be_slow(void)
{
	on_first_processor();
	NEED(sched_setscheduler(0, SCHED_IDLE, &(struct sched_param){ 0 }) == 0);
}

static pid_t keep_first_processor_busy(void)
{
	pid_t pid = fork();
	NEED(pid >= 0);
	if (pid == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		on_first_processor();
		for (;;)
			atomic_signal_fence(memory_order_seq_cst);
	}
	return pid;
}

static int owner(bool slow)
{
	char *p = anon(AREA / PAGE), line[64];
	for (size_t i = 0; i < AREA; i++)
		p[i] = (char)pattern(i);
	/* Room to put into, a part for each thread. */
	char *q = anon(AREA / PAGE);
	say("%#lx", (unsigned long)(uintptr_t)p);
	say("%#lx", (unsigned long)(uintptr_t)q);
	if (slow)
		be_slow();
	while (line_from(0, line, sizeof line)) {
		unsigned long at, seed, sum = 0;
		NEED(sscanf(line, "%lu %lu", &at, &seed) == 2);
		for (size_t i = 0; i < AREA / THREADS; i++)
			sum += (unsigned char)q[at + i] != pattern(seed + i);
		say("%lu", sum);
	}
	return 0;
}

static regall_peer *peer;
static uint64_t from, into;
static atomic_int failures;

/* Copies in one thread, on a queue of its own: up to WINDOW under way, gets of random
 * pieces into parts of a buffer, told of by its descriptor. */
static void *get_many(void *arg)
{
	unsigned seed = (unsigned)(uintptr_t)arg + 1;
	regall_queue *q = NULL;
	int bad = regall_queue_open(0, &q) != 0;
	static char buffers[THREADS][WINDOW][MOST];
	struct { uint64_t at; size_t len; bool busy; int told; } slots[WINDOW];
	memset(slots, 0, sizeof slots);
	unsigned started = 0, finished = 0;
	struct pollfd event = { regall_queue_fd(q), POLLIN, 0 };
	while (!bad && finished < COPIES) {
		for (unsigned n = 0; n < WINDOW && started < COPIES; n++) {
			if (slots[n].busy)
				continue;
			seed = seed * 1103515245u + 12345u;
			slots[n].len = 1 + (seed >> 8) % MOST;
			seed = seed * 1103515245u + 12345u;
			slots[n].at = (seed >> 4) % (AREA - MOST);
			char *to = buffers[(uintptr_t)arg][n];
			memset(to, 0x5a, MOST);
			int r = regall_get_start(q, peer, to, from + slots[n].at, slots[n].len, n);
			if (r == -EAGAIN)
				break;
			bad += r != 0;
			slots[n].busy = true;
			started++;
		}
		if (poll(&event, 1, 20000) != 1) {
			say("no completion came");
			bad++;
			break;
		}
		struct regall_completion all[16];
		int got = regall_queue_poll(q, all, 16);
		bad += got < 1;
		for (int i = 0; i < got; i++) {
			unsigned n = (unsigned)all[i].tag;
			if (n >= WINDOW || !slots[n].busy || all[i].result || all[i].done.bytes != slots[n].len) {
				say("tag %u: %d, %lu bytes", n, all[i].result, (unsigned long)all[i].done.bytes);
				bad++;
				continue;
			}
			const char *to = buffers[(uintptr_t)arg][n];
			for (size_t k = 0; k < slots[n].len; k++)
				bad += (unsigned char)to[k] != pattern(slots[n].at + k);
			slots[n].busy = false;
			finished++;
		}
	}
	event.revents = 0;
	bad += poll(&event, 1, 0) != 0;
	bad += regall_queue_close(q) != 0;
	atomic_fetch_add(&failures, bad);
	return NULL;
}

/* A child in mid-copy: queues of the parent's say so, and its own work. */
static void child(regall_queue *parents)
{
	alarm(20);
	struct regall_completion one;
	char byte = 0;
	IS(-ECHILD, regall_queue_poll(parents, &one, 1));
	IS(-ECHILD, regall_get_start(parents, peer, &byte, from, 1, 0));
	IS(0, regall_queue_close(parents));
	regall_queue *q = NULL;
	IS(0, regall_queue_open(0, &q));
	IS(0, regall_get_start(q, peer, &byte, from + 77, 1, 9));
	IS(1, regall_queue_wait(q, &one, 1, 10000));
	HOLDS(one.tag == 9 && one.result == 0 && (unsigned char)byte == pattern(77));
	IS(0, regall_queue_close(q));
	IS(0, regall_peer_close(peer));
	_exit(wrong ? 1 : 0);
}

static void many_threads(void)
{
	pthread_t threads[THREADS];
	regall_queue *mine = NULL;
	IS(0, regall_queue_open(0, &mine));
	for (uintptr_t n = 0; n < THREADS; n++)
		NEED(pthread_create(&threads[n], NULL, get_many, (void *)n) == 0);
	for (int i = 0; i < 8; i++) {
		pid_t pid = fork();
		NEED(pid >= 0);
		if (pid == 0)
			child(mine);
		int status = -1;
		waitpid(pid, &status, 0);
		IS(0, status);
	}
	for (int n = 0; n < THREADS; n++)
		pthread_join(threads[n], NULL);
	IS(0, failures);
	IS(0, regall_queue_close(mine));
}

static void puts_and_vectors(const struct other *o)
{
	regall_queue *q = NULL;
	IS(0, regall_queue_open(0, &q));
	static char data[AREA / THREADS], back[AREA / THREADS];
	for (size_t i = 0; i < sizeof data; i++)
		data[i] = (char)pattern(500 + i);
	IS(0, regall_put_start(q, peer, data, into, sizeof data, 1));
	struct regall_segment there[2] = { { into + 100, 1000 }, { into + 5000, 300 } };
	struct regall_segment here[2] = { { (uintptr_t)back, 700 }, { (uintptr_t)back + 700, 600 } };
	IS(0, regall_getv_start(q, peer, here, 2, there, 2, 2));
	struct regall_completion done[8];
	int n = 0;
	while (n < 2) {
		int got = regall_queue_wait(q, done + n, 8, -1);
		HOLDS(got > 0);
		if (got <= 0)
			return;
		n += got;
	}
	/* In the order in which they were started. */
	HOLDS(done[0].tag == 1 && done[0].result == 0 && done[0].done.bytes == sizeof data);
	HOLDS(done[1].tag == 2 && done[1].result == 0 && done[1].done.bytes == 1300);
	HOLDS(memcmp(back, data + 100, 1000) == 0 && memcmp(back + 1000, data + 5000, 300) == 0);
	IS(0, ask(o, "0 500"));

	IS(0, regall_putv_start(q, peer, here, 2, there, 2, 3));
	IS(1, regall_queue_wait(q, done, 8, 10000));
	HOLDS(done[0].tag == 3 && done[0].result == 0);
	/* The descriptor is readable as long as there is one to be polled. */
	struct pollfd event = { regall_queue_fd(q), POLLIN, 0 };
	IS(0, poll(&event, 1, 0));
	IS(0, regall_get_start(q, peer, back, into, 1, 9));
	IS(1, poll(&event, 1, 10000));
	IS(1, regall_queue_poll(q, done, 8));
	for (uint64_t tag = 10; tag < 13; tag++)
		IS(0, regall_get_start(q, peer, back, into, 1, tag));
	for (int left = 3; left > 0; left--) {
		IS(1, poll(&event, 1, 10000));
		IS(1, regall_queue_poll(q, done, 1));
	}
	IS(0, poll(&event, 1, 0));
	/* What is refused, and what is nothing. */
	IS(0, regall_get_start(q, peer, back, 16, 1, 4));
	IS(1, regall_queue_wait(q, done, 8, 10000));
	HOLDS(done[0].tag == 4 && done[0].result == -EFAULT && done[0].done.bytes == 0);
	IS(0, regall_getv_start(q, peer, NULL, 0, NULL, 0, 5));
	IS(1, regall_queue_wait(q, done, 8, 10000));
	HOLDS(done[0].tag == 5 && done[0].result == 0 && done[0].done.bytes == 0);
	/* Nothing is under way: no waiting. */
	IS(0, regall_queue_wait(q, done, 8, -1));
	IS(0, regall_queue_poll(q, NULL, 0));
	IS(-EINVAL, regall_queue_poll(q, NULL, 1));
	IS(-EINVAL, regall_getv_start(q, peer, NULL, 1, there, 2, 6));
	IS(-EINVAL, regall_get_start(q, NULL, back, into, 1, 6));
	IS(-EINVAL, regall_get_start(NULL, peer, back, into, 1, 6));
	IS(-EINVAL, regall_queue_fd(NULL));
	IS(-EINVAL, regall_queue_close(NULL));
	IS(-EINVAL, regall_queue_open(1, &q));
	IS(-EINVAL, regall_queue_open(0, NULL));
	IS(0, regall_queue_close(q));
}

/* More than there is room for; a peer that is in use; closing with work under way. */
static void limits(void)
{
	static char buffer[AREA];
	regall_queue *q = NULL, *second = NULL;
	IS(0, regall_queue_open(0, &q));
	IS(0, regall_queue_open(0, &second));
	int started = 0, r = 0;
	while (started < 100000 && (r = regall_get_start(q, peer, buffer, from, AREA, (uint64_t)started)) == 0)
		started++;
	IS(-EAGAIN, r);
	IS(256, started);
	IS(-EBUSY, regall_peer_close(peer));
	/* Another queue has room still. */
	IS(0, regall_get_start(second, peer, buffer, from, 64, 1));
	struct regall_completion all[256];
	int got = regall_queue_wait(q, all, 256, -1);
	HOLDS(got >= 1 && all[0].tag == 0);
	IS(0, regall_get_start(q, peer, buffer, from, 64, 1000));
	IS(0, regall_queue_close(q));
	IS(0, regall_queue_close(second));
	HOLDS((unsigned char)buffer[4711] == pattern(4711));
}

/* The owner dies with copies under way: each of them is told of, soon. */
static void dying_owner(struct other *o)
{
	static char buffer[AREA];
	regall_queue *q = NULL;
	IS(0, regall_queue_open(0, &q));
	int started = 0, told = 0;
	while (started < 200 && regall_get_start(q, peer, buffer, from, AREA, (uint64_t)started) == 0)
		started++;
	kill(o->pid, SIGKILL);
	waitpid(o->pid, NULL, 0);
	uint64_t since = now_ns();
	while (told < started) {
		struct regall_completion one;
		int got = regall_queue_wait(q, &one, 1, 10000);
		if (got != 1 || (one.result != 0 && one.result != -ESRCH && one.result != -ESTALE)) {
			say("%d, result %d", got, one.result);
			wrong++;
			break;
		}
		told++;
	}
	HOLDS(now_ns() - since < 3000000000u);
	IS(0, regall_get_start(q, peer, buffer, from, 1, 1));
	struct regall_completion last;
	IS(1, regall_queue_wait(q, &last, 1, 10000));
	IS(-ESRCH, last.result);
	IS(0, regall_queue_close(q));
	IS(0, regall_peer_close(peer));
}

/* Its threads don't die all at once: who served us may be gone for long before it is. */
static void slowly_dying_owners(char *argv0)
{
	pid_t busy = keep_first_processor_busy();
	for (int n = 0; n < 10; n++) {
		struct other o = start_other(true, (char *[]){ argv0, "owner", "slow", NULL });
		from = hear_number(&o);
		hear_number(&o);
		peer = open_peer(o.pid, 0);
		dying_owner(&o);
	}
	kill(busy, SIGKILL);
	waitpid(busy, NULL, 0);
}

int main(int argc, char **argv)
{
	no_longer_than(100);
	if (argc > 1 && strcmp(argv[1], "owner") == 0)
		return owner(argc > 2);
	struct other o = start_other(true, (char *[]){ argv[0], "owner", NULL });
	from = hear_number(&o);
	into = hear_number(&o);
	peer = open_peer(o.pid, 0);
	puts_and_vectors(&o);
	many_threads();
	limits();
	dying_owner(&o);
	slowly_dying_owners(argv[0]);
	return verdict();
}
