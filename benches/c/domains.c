/*
 * What the life of an adapter's objects costs, and memory calls beside them. Run with and without the
 * shim by ../adapter, in the guest:
 *
 *   domains life|many|threads|busy    nanoseconds, a line for each figure: NAME NANOSECONDS
 *   domains calls                     for strace: each kind of call between two calls of getppid
 *
 * `calls` uses a protection domain that is adopted, `many` and `life` those that end young.
 */
#include "../../c-tests/rdma/median.h"
#include "../../c-tests/rdma/rdma.h"
#include <pthread.h>

static struct ibv_context *ctx;
static char *buf;

/* The median of `rounds` calls of `f`. */
static void median(const char *name, int rounds, void (*f)(void))
{
	static double took[1000];
	f();
	for (int i = 0; i < rounds; i++) {
		double since = now();
		f();
		took[i] = now() - since;
	}
	qsort(took, (size_t)rounds, sizeof took[0], by_size);
	printf("%s %.0f\n", name, took[rounds / 2]);
}

static struct ibv_mr *registered(struct ibv_pd *pd, char *at, size_t len)
{
	volatile int access = ALL;
	struct ibv_mr *mr = ibv_reg_mr(pd, at, len, access);
	NEED(mr);
	return mr;
}

static void life(void)
{
	struct ibv_pd *pd = ibv_alloc_pd(ctx);
	NEED(pd);
	NEED(ibv_dereg_mr(registered(pd, buf, PAGE)) == 0);
	NEED(ibv_dealloc_pd(pd) == 0);
}

static void map(void)
{
	char *p = mmap(NULL, 16 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	NEED(p != MAP_FAILED);
	NEED(munmap(p, 16 * PAGE) == 0);
}

/* `n` domains of five registrations, and one mapping while they are there. */
static void many(const char *name, const char *mapping, int n)
{
	enum { EACH = 5, MOST = 1000 };
	static struct ibv_pd *pd[MOST];
	static struct ibv_mr *mr[MOST][EACH];
	double since = now();
	for (int i = 0; i < n; i++) {
		pd[i] = ibv_alloc_pd(ctx);
		NEED(pd[i]);
		for (int k = 0; k < EACH; k++)
			mr[i][k] = registered(pd[i], buf + (size_t)k * PAGE, PAGE);
	}
	double made = now() - since;
	median(mapping, 51, map);
	since = now();
	for (int i = 0; i < n; i++) {
		for (int k = 0; k < EACH; k++)
			NEED(ibv_dereg_mr(mr[i][k]) == 0);
		NEED(ibv_dealloc_pd(pd[i]) == 0);
	}
	printf("%s %.0f\n", name, made + now() - since);
}

static void *nothing(void *arg)
{
	return arg;
}

static void thread(void)
{
	pthread_t t;
	NEED(pthread_create(&t, NULL, nothing, NULL) == 0);
	NEED(pthread_join(t, NULL) == 0);
}

static struct rig r;

/* Its queue pairs are still there. */
static void busy(void)
{
	NEED(ibv_dealloc_pd(r.pd) == EBUSY);
}

/* Memory calls, ten of each kind, and what tells them apart in strace's output. A second adapter is used
 * while keys of the first wait to be revoked. */
static void calls(void)
{
	enum { TIMES = 10 };
	char *p[TIMES];
	struct ibv_context *second = open_device(ADAPTER("1"));
	struct ibv_pd *pd = second ? ibv_alloc_pd(second) : NULL;
	NEED(pd && ibv_dereg_mr(registered(pd, buf, PAGE)) == 0);
	for (int i = 0; i < TIMES; i++)
		NEED(munmap(p[i] = island(16), 16 * PAGE) == 0);
	getppid();
	for (int i = 0; i < TIMES; i++)
		anon_at(p[i], 16);
	getppid();
	for (int i = 0; i < TIMES; i++)
		NEED(munmap(p[i], 16 * PAGE) == 0);
	getppid();
	for (int i = 0; i < TIMES; i++)
		anon_at(p[i], 16);
	getppid();
	for (int i = 0; i < TIMES; i++)
		NEED(mprotect(p[i] + 4 * PAGE, 4 * PAGE, PROT_READ) == 0);
	getppid();
	for (int i = 0; i < TIMES; i++)
		NEED(madvise(p[i], 2 * PAGE, MADV_DONTNEED) == 0);
	getppid();
	NEED(ibv_dealloc_pd(pd) == 0 && ibv_close_device(second) == 0);
}

int main(int argc, char **argv)
{
	NEED(argc == 2);
	const char *what = argv[1];
	buf = island(64);
	memset(buf, 1, 64 * PAGE);
	if (strcmp(what, "life") == 0 || strcmp(what, "many") == 0) {
		ctx = open_device(ADAPTER("0"));
		NEED(ctx);
		if (strcmp(what, "life") == 0)
			median("life", 51, life);
		else {
			many("one", "map-with-one", 1);
			many("many", "map-with-many", 1000);
		}
		NEED(ibv_close_device(ctx) == 0);
		return 0;
	}
	r = rig();
	if (strcmp(what, "threads") == 0)
		median("thread", 51, thread);
	else if (strcmp(what, "calls") == 0)
		calls();
	else if (strcmp(what, "busy") == 0) {
		size_t len = (size_t)512 << 20;
		char *p = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
		NEED(p != MAP_FAILED);
		NEED(ibv_dereg_mr(registered(r.pd, p, len)) == 0);
		median("busy", 11, busy);
	} else
		NEED(!"life, many, threads, busy or calls");
	rig_down(&r);
	return 0;
}
