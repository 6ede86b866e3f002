/*
 * Proves: a child of fork that registers by a context of its parent's leaves nothing behind there
 * when it ends. The kernel would keep what the library registered as long as anybody has the
 * context open.
 */
#include <sys/prctl.h>
#include <sys/wait.h>

#include "rdma.h"

#define DEVICE ADAPTER("1")
/* So that it is seen if more than a page of it is registered. */
#define PAGES 1024ul

static struct ibv_context *ctx;
static struct ibv_pd *pd;

static void open_all(void)
{
	ctx = open_device(DEVICE);
	NEED(ctx);
	pd = ibv_alloc_pd(ctx);
	NEED(pd);
}

static char *memory(void)
{
	return memset(island(PAGES), 'm', PAGES * PAGE);
}

/* Registers fresh memory, and gives it back. */
static void once(struct ibv_pd *in)
{
	struct ibv_mr *mr = reg("fresh", in, memory(), PAGE, ALL);
	dereg("fresh", mr);
	fflush(stdout);
}

static void left(const char *when)
{
	say("%s: %d regions", when, objects(DEVICE, "mr"));
}

static void end_in_several_ways(void)
{
	say("-- children that end");
	for (int how = 0; how < 3; how++) {
		fflush(stdout);
		pid_t child = fork();
		NEED(child >= 0);
		if (child == 0) {
			once(pd);
			if (how == 0)
				_exit(0);
			if (how == 1)
				exit(0);
			raise(SIGKILL);
		}
		reap("child", child);
		left("after it");
	}
}

/* A child calls `first`; its own child calls `then` and ends with `wrong`, after that one has ended. */
static void by_a_grandchild(void (*first)(void), void (*then)(void))
{
	NEED(prctl(PR_SET_CHILD_SUBREAPER, 1) == 0);
	fflush(stdout);
	pid_t child = fork();
	NEED(child >= 0);
	if (child == 0) {
		first();
		pid_t us = getpid(), grandchild = fork();
		NEED(grandchild >= 0);
		if (grandchild != 0)
			_exit(0);
		while (getppid() == us)
			usleep(1000);
		usleep(20000);
		then();
		fflush(stdout);
		_exit(wrong);
	}
	reap("child", child);
	int status = -1;
	NEED(waitpid(-1, &status, 0) > 0);
	say("its child: %d", status);
}

static void nothing(void)
{
}

static void register_once(void)
{
	once(pd);
}

/* The same where the parent has registered there itself, and goes on to. */
static void beside_the_parent(void)
{
	say("-- beside the parent's own");
	struct ibv_mr *mr = reg("parent", pd, memory(), PAGE, ALL);
	int before = objects(DEVICE, "mr");
	fflush(stdout);
	pid_t child = fork();
	NEED(child >= 0);
	if (child == 0) {
		once(pd);
		/* A context of its own goes with it. */
		struct ibv_context *mine = open_device(DEVICE);
		NEED(mine);
		struct ibv_pd *in = ibv_alloc_pd(mine);
		NEED(in);
		once(in);
		_exit(0);
	}
	reap("child", child);
	PROMISE(objects(DEVICE, "mr") == before);
	dereg("parent", mr);
}

static void serve(void)
{
	once(pd);
	pay(pd, ALL);
	PROMISE(!lends() || of_one_region(pd, memory()));
	say("dealloc: %d", ibv_dealloc_pd(pd));
	say("close: %d", ibv_close_device(ctx));
}

/* Files of the program's own under the numbers that descriptors of the library's have. */
static void over_ours(void)
{
	say("-- numbers");
	int file = memfd_create("a file", 0);
	NEED(file >= 0);
	struct ibv_mr *mr = reg("parent", pd, memory(), PAGE, ALL);
	for (int fd = 960; fd < 1024; fd++)
		NEED(dup2(file, fd) == fd);
	fflush(stdout);
	pid_t child = fork();
	NEED(child >= 0);
	if (child == 0) {
		memory();
		int lost = 0;
		for (int fd = 960; fd < 1024; fd++)
			lost += fcntl(fd, F_GETFD) < 0;
		say("lost by fork: %d", lost);
		fflush(stdout);
		_exit(0);
	}
	reap("child", child);
	for (int fd = 960; fd < 1024; fd++)
		close(fd);
	(void)mr;
}

int main(void)
{
	open_all();
	end_in_several_ways();
	say("-- a child whose own parent has ended");
	by_a_grandchild(nothing, register_once);
	left("after it");
	say("dealloc: %d", ibv_dealloc_pd(pd));
	pd = ibv_alloc_pd(ctx);
	NEED(pd);
	beside_the_parent();
	say("dealloc: %d", ibv_dealloc_pd(pd));
	say("close: %d", ibv_close_device(ctx));
	left("closed");
	/* As daemon(3) does: what the parent had open is the child's alone when the parent has ended. */
	say("-- a daemon");
	by_a_grandchild(open_all, serve);
	open_all();
	over_ours();
	return wrong;
}
