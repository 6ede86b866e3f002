/*
 * Proves: a program with an open adapter forks, and maps beside that, in time, whoever forks; a child that
 * closes what it has inherited of the adapter keeps nothing of it.
 *
 * forks [CASE...]: the usual cases, or these, each in a process of its own that is killed after MOST
 * seconds. What is wrong takes seconds instead of milliseconds, again and again. stderr has the times.
 */
#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdatomic.h>
#include <sys/pidfd.h>
#include <sys/time.h>
#include "../filter.h"
#include "requests.h"
#include "times.h"

#define MIB (1ul << 20)

enum { MOST = 40, THREADS = 4, CHILDREN = 30 };

static struct ibv_context *ctx;
static struct ibv_pd *pd;
static struct ibv_mr *mr;
static pthread_t threads[THREADS];
static volatile int over;

static void open_adapter(void)
{
	ctx = open_device(ADAPTER("1"));
	NEED(ctx);
	pd = ibv_alloc_pd(ctx);
	NEED(pd);
	mr = ibv_reg_mr(pd, memset(island(8), 1, 8 * PAGE), PAGE, ALL);
	NEED(mr);
}

static void close_adapter(void)
{
	int gone = ibv_dereg_mr(mr), freed = ibv_dealloc_pd(pd);
	say("closed: %d %d %d", gone, freed, ibv_close_device(ctx));
}

static void start_threads(int many, void *(*run)(void *))
{
	over = 0;
	for (int i = 0; i < many; i++)
		NEED(pthread_create(&threads[i], NULL, run, NULL) == 0);
}

static void end_threads(int many)
{
	over = 1;
	for (int i = 0; i < many; i++)
		NEED(pthread_join(threads[i], NULL) == 0);
}

/* As a program without the C library: a handler may do it, and jump out of it. */
static pid_t fork_by_call(void)
{
	pid_t child = (pid_t)syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);
	if (child == 0)
		syscall(SYS_exit_group, 0);
	NEED(child > 0);
	return child;
}

static void wait_for_all(void)
{
	while (waitpid(-1, NULL, 0) > 0 || errno == EINTR)
		;
}

static void alarm_in(long us, void (*handler)(int))
{
	struct sigaction action = { .sa_handler = handler };
	struct itimerval in = { .it_value.tv_usec = us };
	NEED(sigaction(SIGALRM, &action, NULL) == 0);
	NEED(setitimer(ITIMER_REAL, &in, NULL) == 0);
}

static void *idle(void *arg)
{
	while (!over)
		usleep(1000);
	return arg;
}

static bool any_is_shared(void)
{
	char command[64];
	snprintf(command, sizeof command, "grep -c memfd:regall-heap /proc/%d/maps", getpid());
	return number_from(command) > 0;
}

/* Memory that peers map (REGALL_SHARE=always): a fork ends that, and registers anew. */
static void share(void)
{
	struct times forks = { .limit = 2 };
	open_adapter();
	start_threads(1, idle);
	for (int i = 0; i < 4; i++) {
		char *memory = memset(anon(16 * MIB / PAGE), 1, 16 * MIB);
		struct ibv_mr *own = ibv_reg_mr(pd, memory, PAGE, ALL);
		NEED(own && ibv_dereg_mr(own) == 0);
		PROMISE(!shimmed() || any_is_shared());
		double since = now();
		pid_t child = fork();
		if (child == 0)
			_exit(0);
		took(&forks, since);
		wait_for_all();
	}
	end_threads(1);
	judge("forks", &forks);
	close_adapter();
}

static sigjmp_buf before;

static void jump_back(int signal)
{
	siglongjmp(before, signal);
}

/* A handler jumps out of fork. */
static void jump(void)
{
	static struct times maps = { .limit = 1 };
	memset(anon(64 * MIB / PAGE), 1, 64 * MIB);
	open_adapter();
	for (double since = now(); goes_on(&maps, 10, since);) {
		if (sigsetjmp(before, 1) == 0) {
			alarm_in(20000 + 700 * maps.n, jump_back);
			for (;;)
				waitpid(fork_by_call(), NULL, 0);
		}
		map_and_unmap(&maps);
	}
	wait_for_all();
	judge("maps", &maps);
	close_adapter();
}

static struct times in_handler = { .limit = 1 };
static void map_in_handler(int signal)
{
	(void)signal;
	map_and_unmap(&in_handler);
}

/* A handler maps while its own thread forks. */
static void handler(void)
{
	unsigned seed = 1;
	memset(anon(64 * MIB / PAGE), 1, 64 * MIB);
	open_adapter();
	for (double since = now(); goes_on(&in_handler, 20, since);) {
		alarm_in(100 + rand_r(&seed) % 8000, map_in_handler);
		fork_by_call();
		wait_for_all();
	}
	alarm_in(0, SIG_IGN);
	judge("handlers", &in_handler);
	close_adapter();
}

static atomic_int made;
static void *fork_again_and_again(void *arg)
{
	for (; !over; made++) {
		pid_t child = fork();
		if (child == 0)
			_exit(0);
		NEED(child > 0 && waitpid(child, NULL, 0) == child);
	}
	return arg;
}

/* Threads fork all the time: who maps is not left to wait while one fork follows the other. */
static void storm(void)
{
	struct times maps = { .limit = 3 };
	bool waited = false;
	open_adapter();
	start_threads(3, fork_again_and_again);
	for (double since = now(); goes_on(&maps, 50, since);) {
		int before_it = made;
		waited |= map_and_unmap(&maps) > maps.limit && made - before_it > 25;
	}
	end_threads(3);
	say("waited for many forks: %d", waited);
	judge("maps", &maps);
	close_adapter();
}

/* Each registers memory of its own all the time. Nothing else comes there meanwhile. */
static void *register_memory(void *arg)
{
	char *at = island(4);
	while (!over) {
		memset(anon_at(at, 4), 1, 4 * PAGE);
		struct ibv_mr *own = ibv_reg_mr(pd, at, 4 * PAGE, ALL);
		NEED(own && ibv_dereg_mr(own) == 0);
	}
	return arg;
}

/* There may be no further process, while other threads register. */
static void refused(void)
{
	struct times forks = { .limit = 1 }, maps = { .limit = 1 };
	int others = 0;
	open_adapter();
	start_threads(2, register_memory);
	FILTER_CALLS(SECCOMP_RET_ERRNO | EAGAIN, SYS_clone, SYS_clone3);
	for (double start = now(); goes_on(&maps, 20, start); map_and_unmap(&maps)) {
		for (int i = 0; i < 50; i++) {
			double since = now();
			others += fork() != -1 || errno != EAGAIN;
			took(&forks, since);
		}
	}
	end_threads(2);
	say("other than EAGAIN: %d", others);
	judge("forks", &forks);
	judge("maps", &maps);
	close_adapter();
}

static int told_by[2];
static int close_and_tell(void *arg)
{
	close(ctx->cmd_fd);
	NEED(write(told_by[1], "", 1) == 1);
	pause();
	return arg != NULL;
}

/* Children of clone, on stacks of their own, while threads register. */
static void on_stacks(void)
{
	static char stacks[CHILDREN][4 * PAGE] __attribute__((aligned(16)));
	pid_t children[CHILDREN];
	char said;
	NEED(pipe(told_by) == 0);
	open_adapter();
	start_threads(THREADS, register_memory);
	for (int i = 0; i < CHILDREN; i++) {
		children[i] = clone(close_and_tell, stacks[i + 1], SIGCHLD, NULL);
		NEED(children[i] > 0);
	}
	for (int i = 0; i < CHILDREN; i++)
		NEED(read(told_by[0], &said, 1) == 1);
	end_threads(THREADS);
	close_adapter();
	say("contexts: %d", contexts_of_all());
	for (int i = 0; i < CHILDREN; i++)
		kill(children[i], SIGKILL);
	wait_for_all();
}

static const struct {
	const char *name;
	void (*run)(void);
	bool usual;
} cases[] = {
	{ "jump", jump, true }, { "handler", handler, true }, { "storm", storm, true },
	{ "refused", refused, true }, { "share", share, false }, { "on_stacks", on_stacks, false },
};

static void run_apart(const char *name)
{
	pid_t child = fork();
	if (child == 0) {
		setpgid(0, 0);
		execl("/proc/self/exe", "forks", "in", name, NULL);
		_exit(92);
	}
	struct pollfd end = { .fd = pidfd_open(child, 0), .events = POLLIN };
	NEED(child > 0 && end.fd >= 0);
	if (poll(&end, 1, MOST * 1000) == 0)
		kill(-child, SIGKILL);
	reap(name, child);
}

int main(int argc, char **argv)
{
	bool is_in = argc == 3 && strcmp(argv[1], "in") == 0;
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		bool wanted = argc == 1 && cases[i].usual;
		for (int a = 1; a < argc; a++)
			wanted |= strcmp(argv[a], cases[i].name) == 0;
		if (wanted && is_in)
			cases[i].run();
		else if (wanted)
			run_apart(cases[i].name);
	}
	return wrong != 0;
}
