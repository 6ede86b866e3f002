/*
 * Proves: an adapter is open for as long as the program has it open, in whatever process and thread, and
 * no longer: children of fork get nothing of the shim's, other threads' tables count, so does a descriptor
 * that moves, and who gets one from another process leaves nothing behind. What is no adapter is not
 * touched. Threads may begin with adapters at one moment, and children have the stack that they are given.
 */
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/wait.h>
#include "requests.h"

enum { THREADS = 4, WORKERS = 16, ROUNDS = 120 };

static struct ibv_context *ctx;
static struct ibv_pd *pd;
static char *p;
static volatile int over;

static void open_rxe1(void)
{
	ctx = open_device(ADAPTER("1"));
	NEED(ctx);
	pd = ibv_alloc_pd(ctx);
	NEED(pd);
	struct ibv_mr *mr = ibv_reg_mr(pd, p, PAGE, ALL);
	NEED(mr && ibv_dereg_mr(mr) == 0);
}

static void close_rxe1(const char *what)
{
	int gone = ibv_dealloc_pd(pd);
	say("%s: %d %d", what, gone, ibv_close_device(ctx));
	say("%s: %d contexts, %d regions", what, count_of("ctx", "rxe1"), count_of("mr", "rxe1"));
}

static void map_and_unmap(void)
{
	char *at = mmap(NULL, 4 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	NEED(at != MAP_FAILED);
	memset(at, 1, 4 * PAGE);
	munmap(at, 4 * PAGE);
}

/* Each registers memory of its own all the time. */
static void *register_memory(void *arg)
{
	char *at = island(4);
	while (!over) {
		anon_at(at, 4);
		memset(at, 1, 4 * PAGE);
		struct ibv_mr *mr = ibv_reg_mr(pd, at, 4 * PAGE, ALL);
		NEED(mr && ibv_dereg_mr(mr) == 0);
		NEED(munmap(at, 4 * PAGE) == 0);
	}
	anon_at(at, 4);
	return arg;
}

/* Workers that close what they have inherited of the adapter, made while threads register. */
static void workers(void)
{
	pthread_t threads[THREADS];
	pid_t children[WORKERS];
	open_rxe1();
	for (int i = 0; i < THREADS; i++)
		NEED(pthread_create(&threads[i], NULL, register_memory, NULL) == 0);
	fflush(stdout);
	for (int i = 0; i < WORKERS; i++) {
		children[i] = fork();
		if (children[i] == 0) {
			close(ctx->cmd_fd);
			pause();
			_exit(0);
		}
	}
	over = 1;
	for (int i = 0; i < THREADS; i++)
		NEED(pthread_join(threads[i], NULL) == 0);
	usleep(200000);
	close_rxe1("with workers");
	say("contexts: %d", contexts_of_all());
	for (int i = 0; i < WORKERS; i++) {
		kill(children[i], SIGKILL);
		waitpid(children[i], NULL, 0);
	}
}

static pthread_barrier_t turn;

/* The adapter is open in a table that no other thread has. */
static void *with_its_own(void *arg)
{
	NEED(unshare(CLONE_FILES) == 0);
	open_rxe1();
	struct ibv_mr *mr = ibv_reg_mr(pd, p, 4 * PAGE, ALL);
	NEED(mr);
	pthread_barrier_wait(&turn);
	pthread_barrier_wait(&turn);
	say("dereg: %d", ibv_dereg_mr(mr));
	close_rxe1("of a thread");
	return arg;
}

static void of_a_thread(void)
{
	pthread_t t;
	NEED(pthread_barrier_init(&turn, NULL, 2) == 0);
	NEED(pthread_create(&t, NULL, with_its_own, NULL) == 0);
	pthread_barrier_wait(&turn);
	for (int i = 0; i < ROUNDS; i++) {
		map_and_unmap();
		usleep(500);
	}
	pthread_barrier_wait(&turn);
	NEED(pthread_join(t, NULL) == 0);
}

static int moved;

/* The descriptor is under another number every moment. */
static void *move(void *arg)
{
	for (int i = 0; !over; i++) {
		int next = fcntl(moved, F_DUPFD_CLOEXEC, 100 + i % 50);
		NEED(next >= 0);
		close(moved);
		moved = next;
	}
	return arg;
}

static void moves(void)
{
	pthread_t t;
	struct ibv_context *second = open_device(ADAPTER("1"));
	NEED(second);
	moved = raw_open(second);
	uint32_t handle = raw_pd(moved);
	struct asked a;
	NEED(raw_reg(moved, &a, handle, p, PAGE, ALL) == 0);
	over = 0;
	NEED(pthread_create(&t, NULL, move, NULL) == 0);
	for (int i = 0; i < ROUNDS; i++)
		map_and_unmap();
	over = 1;
	NEED(pthread_join(t, NULL) == 0);
	say("moved: %d", raw_destroy(moved, a.out.mr_handle));
	say("dealloc: %d", raw_dealloc(moved, handle));
	close(moved);
	NEED(ibv_close_device(second) == 0);
	say("moved: %d contexts, %d regions", count_of("ctx", "rxe1"), count_of("mr", "rxe1"));
}

/* A request to what is no adapter. */
static void no_adapter(void)
{
	int ends[2];
	struct asked a;
	NEED(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
	say("no adapter: %d", raw_reg(ends[0], &a, 0, p, PAGE, ALL));
	say("its owner: %d, signal: %d", fcntl(ends[0], F_GETOWN), fcntl(ends[0], F_GETSIG));
	close(ends[0]);
	close(ends[1]);
}

/* Another process registers by a descriptor that it was sent, and ends. */
static void sent(void)
{
	int ends[2];
	NEED(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
	fflush(stdout);
	pid_t child = fork();
	if (child == 0) {
		uint32_t number;
		int fd = receive_fd(ends[1], &number);
		struct asked a;
		char *own = island(64);
		memset(own, 1, 64 * PAGE);
		say("another: %d", raw_reg(fd, &a, number, own, PAGE, ALL));
		say("another: %d", raw_destroy(fd, a.out.mr_handle));
		fflush(stdout);
		_exit(0);
	}
	struct ibv_context *second = open_device(ADAPTER("1"));
	NEED(second);
	int fd = raw_open(second);
	uint32_t handle = raw_pd(fd);
	send_fd(ends[0], fd, handle);
	NEED(waitpid(child, NULL, 0) == child);
	say("sent, regions: %d", count_of("mr", "rxe1"));
	say("dealloc: %d", raw_dealloc(fd, handle));
	close(fd);
	NEED(ibv_close_device(second) == 0);
	close(ends[0]);
	close(ends[1]);
}

static pthread_barrier_t together;

static void *begin_with(void *arg)
{
	struct ibv_context *own = arg;
	pthread_barrier_wait(&together);
	struct ibv_pd *of_own = ibv_alloc_pd(own);
	NEED(of_own && ibv_dealloc_pd(of_own) == 0);
	return NULL;
}

/* In new processes several threads have the first protection domain at one moment. */
static void at_one_moment(void)
{
	int died = 0;
	fflush(stdout);
	for (int i = 0; i < 12; i++) {
		pid_t child = fork();
		if (child == 0) {
			pthread_t threads[THREADS];
			struct ibv_context *own = open_device(ADAPTER("1"));
			NEED(own && pthread_barrier_init(&together, NULL, THREADS) == 0);
			for (int t = 0; t < THREADS; t++)
				NEED(pthread_create(&threads[t], NULL, begin_with, own) == 0);
			for (int t = 0; t < THREADS; t++)
				NEED(pthread_join(threads[t], NULL) == 0);
			_exit(0);
		}
		int status;
		NEED(waitpid(child, &status, 0) == child);
		died += status != 0;
	}
	say("died at the first protection domain: %d", died);
}

/* Queues that are mapped keep a file open when its context is closed: what is left there is the
 * program's own. */
static void with_queues(void)
{
	struct rig r = rig_with(ADAPTER("1"), ALL);
	uint32_t handle = raw_pd(r.ctx->cmd_fd);
	struct asked a;
	NEED(raw_reg(r.ctx->cmd_fd, &a, handle, p, PAGE, ALL) == 0);
	int more = count_of("mr", "rxe1") > 2;
	NEED(ibv_close_device(r.ctx) == 0);
	say("with queues: %d", count_of("mr", "rxe1"));
	if (shimmed())
		PROMISE(more);
}

static char stack_of_child[64 * PAGE] __attribute__((aligned(16)));

static int end_well(void *arg)
{
	volatile char used[16 * PAGE];
	memset((void *)used, 1, sizeof used);
	return arg ? used[PAGE] : 0;
}

/* Children with a stack of their own, of a thread whose stack they would share. */
static void *make_children(void *arg)
{
	int good = 0;
	for (int i = 0; i < 20; i++) {
		pid_t child = clone(end_well, stack_of_child + sizeof stack_of_child, SIGCHLD, NULL);
		int status = 1;
		good += child > 0 && waitpid(child, &status, 0) == child && status == 0;
	}
	say("children: %d", good);
	return arg;
}

static void on_shared_stacks(void)
{
	pthread_t t;
	pthread_attr_t attr;
	size_t bytes = 256 * PAGE;
	void *stack = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	NEED(stack != MAP_FAILED && pthread_attr_init(&attr) == 0);
	NEED(pthread_attr_setstack(&attr, stack, bytes) == 0);
	open_rxe1();
	NEED(pthread_create(&t, &attr, make_children, NULL) == 0);
	NEED(pthread_join(t, NULL) == 0);
	make_children(NULL);
	close_rxe1("of children");
	munmap(stack, bytes);
}

int main(void)
{
	at_one_moment();
	p = island(64);
	memset(p, 'a', 64 * PAGE);
	no_adapter();
	on_shared_stacks();
	sent();
	moves();
	of_a_thread();
	over = 0;
	workers();
	with_queues();
	say("end");
	return wrong != 0;
}
