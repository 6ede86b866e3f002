/*
 * Proves: a registration that is served makes no system call by libibverbs' symbols and, by its request to
 * the kernel (REGALL_VERBS=ioctl), none but the questions which file the descriptor is of; and says (on
 * standard error) what it costs beside a real one.
 */
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/prctl.h>
#include <ucontext.h>
#include "median.h"
#include "rdma.h"

static struct rig r;
static char *p;
static atomic_int calls, waits, done, bad;

/* How a program comes: by libibverbs' symbols, or past them, as who has its functions by dlvsym. */
struct way {
	const char *name;
	struct ibv_mr *(*reg)(struct ibv_pd *, void *, size_t, uint64_t, unsigned int);
	int (*dereg)(struct ibv_mr *);
};

static struct way ways[2];
static int served_ways = 1;

static void find_ways(void)
{
	ways[0] = (struct way){ "exports", ibv_reg_mr_iova2, ibv_dereg_mr };
	if (env_is("REGALL_VERBS", "symbols"))
		return;
	served_ways = 2;
	void *all = dlopen("libibverbs.so.1", RTLD_NOW);
	NEED(all);
	ways[1].name = "ioctl";
	ways[1].reg = (typeof(ways[1].reg))dlvsym(all, "ibv_reg_mr_iova2", "IBVERBS_1.8");
	ways[1].dereg = (typeof(ways[1].dereg))dlvsym(all, "ibv_dereg_mr", "IBVERBS_1.1");
	NEED(ways[1].reg && ways[1].dereg);
}

enum { ROUNDS = 41, BATCH = 50 };

/* Nanoseconds of a registration and of its end, medians over batches. A real one has
 * another address for peers, which is never served. */
static void measure(const struct way *way, size_t len, bool real, double *reg_ns, double *dereg_ns)
{
	static struct ibv_mr *mr[BATCH];
	double a[ROUNDS], b[ROUNDS];
	for (int i = 0; i < ROUNDS; i++) {
		double start = now();
		for (int j = 0; j < BATCH; j++) {
			mr[j] = way->reg(r.pd, p, len, (uintptr_t)p + (real ? 1ul << 40 : 0), ALL);
			NEED(mr[j]);
		}
		double middle = now();
		for (int j = 0; j < BATCH; j++)
			NEED(way->dereg(mr[j]) == 0);
		a[i] = (middle - start) / BATCH;
		b[i] = (now() - middle) / BATCH;
	}
	qsort(a, ROUNDS, sizeof *a, by_size);
	qsort(b, ROUNDS, sizeof *b, by_size);
	*reg_ns = a[ROUNDS / 2];
	*dereg_ns = b[ROUNDS / 2];
}

/* Nanoseconds of a question like the shim's, the least of many. */
static double of_a_question(void)
{
	double least = 1e9;
	for (int i = 0; i < 1000; i++) {
		double start = now();
		for (int j = 0; j < 10; j++)
			NEED(fcntl(r.ctx->cmd_fd, F_GETSIG) >= 0);
		double each = (now() - start) / 10;
		least = each < least ? each : least;
	}
	return least;
}

static void tell_costs(void)
{
	fprintf(stderr, "a question to the kernel: %.0f ns\n", of_a_question());
	static const size_t sizes[] = { 4096, 65536, 1 << 20 };
	for (int i = 0; i < 3; i++) {
		double real[2], served[2][2];
		measure(&ways[0], sizes[i], true, &real[0], &real[1]);
		for (int w = 0; w < served_ways; w++) {
			double *of = served[w];
			measure(&ways[w], sizes[i], false, &of[0], &of[1]);
			fprintf(stderr, "%zu bytes by %s: real %.0f + %.0f ns, served %.0f + %.0f ns, 1/%.0f and 1/%.0f\n", sizes[i],
				ways[w].name, real[0], real[1], of[0], of[1], real[0] / of[0], real[1] / of[1]);
		}
		if (served_ways == 2)
			fprintf(stderr, "ioctl/exports: %.1f\n", (served[1][0] + served[1][1]) / (served[0][0] + served[0][1]));
	}
}

static atomic_int which, asks;

/* Whether system calls are signals. They are dispatched, not filtered: under a filter nothing is served. */
static volatile char selector = SYSCALL_DISPATCH_FILTER_ALLOW;

/* Counts a call, and makes it. */
static void count(int number, siginfo_t *info, void *context)
{
	(void)number;
	selector = SYSCALL_DISPATCH_FILTER_ALLOW;
	greg_t *g = ((ucontext_t *)context)->uc_mcontext.gregs;
	switch (info->si_syscall) {
	case SYS_futex: /* the thread that takes keys back has the lock at this moment, and is not running */
		waits++;
		break;
	case SYS_fcntl: /* F_GETSIG, F_GETOWN_EX */
		asks++;
		break;
	default:
		if (!calls++)
			which = info->si_syscall;
	}
	long value = syscall(info->si_syscall, g[REG_RDI], g[REG_RSI], g[REG_RDX], g[REG_R10], g[REG_R8], g[REG_R9]);
	g[REG_RAX] = value == -1 ? -errno : value;
	selector = SYSCALL_DISPATCH_FILTER_BLOCK;
}

/* Where signal handlers return to: that call alone is not dispatched. */
static unsigned long restorer(void)
{
	unsigned long act[4];
	NEED(syscall(SYS_rt_sigaction, SIGSYS, NULL, act, 8) == 0);
	return act[2];
}

/* In a thread for which every system call is a signal. It ends with the program. */
static void *without_calls(void *arg)
{
	const struct way *way = arg;
	/* A thread's first is when the shim asks for its number, and malloc for its memory. */
	struct ibv_mr *warm = way->reg(r.pd, p, PAGE, (uintptr_t)p, ALL);
	NEED(warm && way->dereg(warm) == 0);
	NEED(prctl(PR_SET_SYSCALL_USER_DISPATCH, PR_SYS_DISPATCH_ON, restorer(), 16, &selector) == 0);
	selector = SYSCALL_DISPATCH_FILTER_BLOCK;
	for (int i = 0; i < 10000; i++) {
		volatile int access = ALL;
		char *at = p + i % 1000;
		struct ibv_mr *mr = way->reg(r.pd, at, 1 + i % (1 << 20), (uintptr_t)at, access);
		if (!mr || way->dereg(mr))
			bad++;
	}
	selector = SYSCALL_DISPATCH_FILTER_ALLOW;
	done = 1;
	for (;;)
		pause();
}

int main(void)
{
	r = rig();
	p = island((2 << 20) / PAGE);
	memset(p, 'a', 2 << 20);
	if (shimmed()) {
		struct ibv_mr *first = ibv_reg_mr(r.pd, p, PAGE, ALL);
		NEED(first && ibv_dereg_mr(first) == 0);
		struct sigaction act = { .sa_sigaction = count, .sa_flags = SA_SIGINFO };
		NEED(sigaction(SIGSYS, &act, NULL) == 0);
		find_ways();
		tell_costs();
		for (int w = 0; w < served_ways; w++) {
			pthread_t t;
			done = calls = waits = asks = 0;
			NEED(pthread_create(&t, NULL, without_calls, &ways[w]) == 0);
			for (int i = 0; i < 3000 && !done; i++)
				usleep(10000);
			PROMISE(done && !bad);
			PROMISE(calls == 0 && waits < 20);
			PROMISE(w == 0 ? asks == 0 : asks > 0 && asks < 30100);
			if (calls)
				say("%s: the first is number %d", ways[w].name, which);
			fprintf(stderr, "%s: 20000 calls served with %d system calls, %d questions and %d waits\n", ways[w].name, calls,
				asks, waits);
		}
	}
	say("end");
	return wrong != 0;
}
