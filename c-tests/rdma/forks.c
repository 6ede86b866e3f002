/*
 * Proves: a program with an open adapter forks, and maps beside that, in time, whoever forks, and a child
 * that closes what it has inherited of the adapter keeps nothing of it.
 *
 * forks [CASE...]: the usual cases, or those that are named. Each is a process of its own that is killed
 * after MOST seconds. What is too slow takes seconds where it should take milliseconds, again and again.
 * How long it took is on stderr.
 */
#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdatomic.h>
#include <sys/pidfd.h>
#include <sys/time.h>
#include "../filter.h"
#include "requests.h"

#define MIB (1ul << 20)

enum { MOST = 40, MANY = 100, THREADS = 4, CHILDREN = 30, REFUSED = 2000 };

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

/* How long something took each time, in seconds. */
struct times {
	double all[MANY];
	int n;
};

static double now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static void took(struct times *t, double since)
{
	if (t->n < MANY)
		t->all[t->n++] = now() - since;
}

/* Whether it was done so often, or goes on for too long. */
static bool enough(const struct times *t, int many, double since)
{
	return t->n >= many || now() - since > 8;
}

static int by_length(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;
	return (x > y) - (x < y);
}

/* No more than `allowed` took longer than `limit`. */
static void judge(const char *what, struct times *t, double limit, int allowed)
{
	int slow = 0;
	NEED(t->n > 0);
	qsort(t->all, (size_t)t->n, sizeof *t->all, by_length);
	for (int i = 0; i < t->n; i++)
		slow += t->all[i] > limit;
	fprintf(stderr, "%s: %d, median %.4f, most %.4f, %d above %.0f\n", what, t->n, t->all[t->n / 2],
		t->all[t->n - 1], slow, limit);
	say("%s: %s", what, slow > allowed ? "too slow" : "in time");
}

static void map_and_unmap(struct times *t)
{
	double since = now();
	char *at = anon(4);
	memset(at, 1, 4 * PAGE);
	NEED(munmap(at, 4 * PAGE) == 0);
	took(t, since);
}

/* To fork takes a while with as much memory. */
static void take_memory(void)
{
	memset(anon(64 * MIB / PAGE), 1, 64 * MIB);
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

/* Memory that peers map (REGALL_SHARE=always): a fork ends that, and registers anew. */
static void share(void)
{
	static struct times forks, maps;
	char *memory[4];
	for (int i = 0; i < 4; i++) {
		memory[i] = memset(anon(16 * MIB / PAGE), 1, 16 * MIB);
		reserve(1);
	}
	open_adapter();
	for (int i = 0; i < 4; i++) {
		struct ibv_mr *own = ibv_reg_mr(pd, memory[i], PAGE, ALL);
		NEED(own && ibv_dereg_mr(own) == 0);
	}
	start_threads(1, idle);
	for (int i = 0; i < 5; i++) {
		double since = now();
		pid_t child = fork();
		if (child == 0)
			_exit(all_are(memory[3], 16 * MIB, 1) ? 0 : 1);
		took(&forks, since);
		int status;
		NEED(child > 0 && waitpid(child, &status, 0) == child && status == 0);
		map_and_unmap(&maps);
	}
	end_threads(1);
	judge("forks", &forks, 5, 1);
	judge("maps", &maps, 5, 1);
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
	static struct times maps;
	static volatile int jumps;
	take_memory();
	open_adapter();
	double since = now();
	while (!enough(&maps, 10, since)) {
		if (sigsetjmp(before, 1) == 0) {
			alarm_in(20000 + 700 * jumps++, jump_back);
			for (;;)
				waitpid(fork_by_call(), NULL, 0);
		}
		map_and_unmap(&maps);
	}
	wait_for_all();
	judge("maps", &maps, 1, 1);
	close_adapter();
}

static struct times in_handler;

static void map_in_handler(int signal)
{
	(void)signal;
	map_and_unmap(&in_handler);
}

/* A handler maps while its own thread forks. */
static void handler(void)
{
	unsigned seed = 1;
	take_memory();
	open_adapter();
	for (double since = now(); !enough(&in_handler, 20, since);) {
		alarm_in(100 + rand_r(&seed) % 8000, map_in_handler);
		fork_by_call();
		wait_for_all();
	}
	alarm_in(0, SIG_IGN);
	judge("handlers", &in_handler, 1, 1);
	close_adapter();
}

static atomic_int made;

static void *fork_again_and_again(void *arg)
{
	while (!over) {
		pid_t child = fork();
		if (child == 0)
			_exit(0);
		NEED(child > 0 && waitpid(child, NULL, 0) == child);
		made++;
	}
	return arg;
}

/* Threads fork all the time: how many forks go before who maps, whatever the machine's speed. */
static void storm(void)
{
	static struct times maps, forks;
	open_adapter();
	start_threads(3, fork_again_and_again);
	for (double since = now(); !enough(&maps, MANY, since);) {
		int so_far = made;
		map_and_unmap(&maps);
		forks.all[forks.n++] = made - so_far;
	}
	end_threads(3);
	judge("maps", &maps, 5, 1);
	judge("forks before a map", &forks, 100, 1);
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
	static struct times forks, maps;
	int others = 0;
	open_adapter();
	start_threads(2, register_memory);
	FILTER_CALLS(SECCOMP_RET_ERRNO | EAGAIN, SYS_clone, SYS_clone3);
	double start = now();
	for (int i = 0; i < REFUSED && !enough(&maps, MANY, start); i++) {
		double since = now();
		others += fork() != -1 || errno != EAGAIN;
		took(&forks, since);
		if (i % 50 == 0)
			map_and_unmap(&maps);
	}
	end_threads(2);
	say("other than EAGAIN: %d", others);
	judge("forks", &forks, 1, 1);
	judge("maps", &maps, 1, 1);
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
	{ "jump", jump, true },		{ "handler", handler, true }, { "storm", storm, true },
	{ "refused", refused, true },	{ "share", share, false },    { "on_stacks", on_stacks, false },
};

static void run_apart(const char *name)
{
	fflush(stdout);
	pid_t child = fork();
	NEED(child >= 0);
	if (child == 0) {
		setpgid(0, 0);
		execl("/proc/self/exe", "forks", "in", name, NULL);
		_exit(92);
	}
	struct pollfd end = { .fd = pidfd_open(child, 0), .events = POLLIN };
	NEED(end.fd >= 0);
	if (poll(&end, 1, MOST * 1000) == 0)
		kill(-child, SIGKILL);
	close(end.fd);
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
