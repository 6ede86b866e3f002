/* Proves: with REGALL_HCA_FILL=later the first request in a protection domain is answered before all of memory is registered, which comes to be registered all the same, whatever the program does meanwhile; without it all is registered before. */
#include <sched.h>
#include <sys/resource.h>
#include "../filter.h"
#include "reaches.h"

#define MIB (1ul << 20)
#define LARGE (448 * MIB)
#define STEP (8 * MIB)

static struct ibv_context *ctx;
static char *large, *buf;

static bool held(struct ibv_pd *pd, char *p)
{
	int (*lookup)(const void *, const void *, size_t, struct regall_range *) =
		(int (*)(const void *, const void *, size_t, struct regall_range *))dlsym(RTLD_DEFAULT, "regall_lookup");
	struct regall_range range;
	PROMISE(lookup && lookup(pd, p, PAGE, &range) == 0);
	return range.lkey != 0;
}

/* Of the first page of every 8 MiB of it, so many are registered. */
static size_t steps_held(struct ibv_pd *pd, size_t len)
{
	size_t all = 0;
	for (size_t at = 0; at < len; at += STEP)
		all += held(pd, large + at);
	return all;
}

/* Goes before all others, or not any more. */
static bool real_time(bool on)
{
	struct sched_param param = { .sched_priority = on ? 1 : 0 };
	return sched_setscheduler(0, on ? SCHED_FIFO : SCHED_OTHER, &param) == 0;
}

struct domain {
	struct ibv_pd *pd;
	struct ibv_mr *mr;
	int paid;
};

/* Until the shim has adopted it; so many pairs of registrations. */
static int paid(struct ibv_pd *pd)
{
	int n = 0;
	while (by_price() && n < 4096 && !shares(pd, buf, BUFFER, ALL))
		n++;
	PROMISE(n < 4096);
	return n;
}

static struct domain open_domain(void)
{
	struct domain d = { .pd = ibv_alloc_pd(ctx) };
	NEED(d.pd);
	d.paid = paid(d.pd);
	d.mr = ibv_reg_mr(d.pd, buf, BUFFER, ALL);
	NEED(d.mr);
	return d;
}

static void close_domain(const char *label, struct domain d)
{
	/* As much is saved: it has not ended young. */
	while (d.paid-- > 0)
		shares(d.pd, buf, BUFFER, ALL);
	int mr = ibv_dereg_mr(d.mr), pd = ibv_dealloc_pd(d.pd);
	say("%s: %d %d", label, mr, pd);
}

/* Waits until all of it is registered; with an audit, if it was cut. */
static void fills(struct domain d, bool audit)
{
	while (shimmed() && steps_held(d.pd, LARGE) != LARGE / STEP) {
		usleep(1000);
		PROMISE(!audit || call_audit());
	}
}

static void first(void)
{
	NEED(setpriority(PRIO_PROCESS, 0, -20) == 0);
	struct domain d = open_domain();
	bool here = !shimmed() || held(d.pd, buf);
	size_t others = shimmed() ? steps_held(d.pd, LARGE) : 0;
	/* What is mapped meanwhile does not wait. */
	char *fresh = island(16);
	bool new = !shimmed() || held(d.pd, fresh);
	NEED(setpriority(PRIO_PROCESS, 0, 0) == 0);
	PROMISE(here);
	PROMISE(new);
	PROMISE(others <= LARGE / STEP / 2);
	fills(d, false);
	quiet_point("filled");
	NEED(munmap(fresh, 16 * PAGE) == 0);
	close_domain("first", d);
}

static void *other_thread(void *arg)
{
	struct domain *d = arg;
	*d = open_domain();
	return NULL;
}

/* Two at once; the second goes before it is full. */
static void two(void)
{
	pthread_t thread;
	struct domain a, b;
	NEED(pthread_create(&thread, NULL, other_thread, &a) == 0);
	b = open_domain();
	NEED(pthread_join(thread, NULL) == 0);
	close_domain("early", b);
	fills(a, false);
	close_domain("two", a);
}

static void *maps(void *arg)
{
	for (int i = 0; i < 200; i++) {
		char *p = mmap(NULL, MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		NEED(p != MAP_FAILED);
		p[0] = 1;
		NEED(munmap(p, MIB) == 0);
	}
	return arg;
}

static void in_a_child(void *arg)
{
	(void)arg;
	say("child: %d", large[0] + large[LARGE - 1]);
}

/* What the program does while a thread of the shim's is at work on the memory. */
static void meanwhile(void)
{
	pthread_t thread;
	struct domain d = open_domain();
	bool before[LARGE / STEP] = { false };
	for (size_t at = LARGE / 2 + STEP; at + STEP < LARGE; at += 4 * STEP) {
		for (size_t i = at / STEP; i < at / STEP + 4 && i < LARGE / STEP; i++)
			before[i] = shimmed() && held(d.pd, large + i * STEP);
		/* Another page in the same place, a hole, memory that can't be written. */
		NEED(anon_at(large + at, 1) == large + at);
		memset(large + at, 'n', PAGE);
		NEED(munmap(large + at + STEP / 2, PAGE) == 0);
		NEED(mprotect(large + at + STEP + PAGE, PAGE, PROT_READ) == 0);
	}
	NEED(pthread_create(&thread, NULL, maps, NULL) == 0);
	in_child("fork", in_a_child, NULL);
	NEED(setuid(getuid()) == 0);
	NEED(pthread_join(thread, NULL) == 0);
	/* What it had not come to before it was cut is filled without an audit, but for a region that it was at. */
	size_t late = 0, filled = 0;
	for (int i = 0; shimmed() && i < 5000 && (late == 0 || filled != late); i++) {
		late = filled = 0;
		for (size_t n = LARGE / 2 / STEP + 1; n < LARGE / STEP; n++)
			if (!before[n])
				late++, filled += held(d.pd, large + n * STEP);
		if (late == 0)
			break;
		usleep(1000);
	}
	PROMISE(!shimmed() || (late > 0 && 2 * filled >= late));
	fills(d, true);
	quiet_point("meanwhile");
	close_domain("meanwhile", d);
}

/* An adapter reads what was put in the place of other memory. */
static void truth(void)
{
	struct rig r = rig();
	for (size_t at = STEP; at < LARGE / 2; at += 8 * STEP) {
		NEED(anon_at(large + at, 1) == large + at);
		reaches(&r, "in its place", large + at, PAGE);
	}
	rig_down(&r);
}

/* All is registered before the first request is answered. */
static void at_once(const char *label)
{
	struct domain d = open_domain();
	PROMISE(!shimmed() || steps_held(d.pd, LARGE) == LARGE / STEP);
	close_domain(label, d);
}

/* It goes on where the thread that it was for is gone, and no other can be made. */
static void thread_goes(void)
{
	struct rlimit none = { 0, 0 };
	struct domain d = open_domain();
	NEED(setrlimit(RLIMIT_NPROC, &none) == 0);
	NEED(setuid(65534) == 0);
	PROMISE(!shimmed() || steps_held(d.pd, LARGE) == LARGE / STEP);
	close_domain("thread goes", d);
	say("wrong: %d", wrong);
}

/* What the kernel refuses as one large region does not keep the thread from the rest. */
static void refused(void)
{
	size_t len = 256 * MIB;
	int fd = memfd_create("refused", 0);
	NEED(fd >= 0 && ftruncate(fd, len) == 0);
	char *p = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE, fd, 0);
	NEED(p != MAP_FAILED);
	memset(p, 'r', len);
	NEED(ftruncate(fd, len - PAGE) == 0);
	large = p;
	struct domain d = open_domain();
	while (shimmed() && steps_held(d.pd, len - 64 * MIB) != (len - 64 * MIB) / STEP)
		usleep(1000);
	close_domain("refused", d);
	say("wrong: %d", wrong);
}

/* Where there can be no thread everything is registered before the first request is answered. */
static void without_a_thread(void)
{
	FILTER_CALLS(SECCOMP_RET_ERRNO | EAGAIN, SYS_clone, SYS_clone3);
	at_once("without a thread");
	say("wrong: %d", wrong);
}

int main(int argc, char **argv)
{
	ctx = open_device(ADAPTER("0"));
	NEED(ctx);
	buf = island(BUFFER / PAGE);
	memset(buf, '.', BUFFER);
	const char *mode = argc > 1 ? argv[1] : "";
	if (strcmp(mode, "refused") == 0)
		return refused(), 0;
	large = island(LARGE / PAGE);
	NEED(madvise(large, LARGE, MADV_HUGEPAGE) == 0);
	memset(large, 'x', LARGE);
	if (strcmp(mode, "shut") == 0)
		return without_a_thread(), 0;
	if (strcmp(mode, "goes") == 0)
		return thread_goes(), 0;
	if (strcmp(mode, "now") == 0) {
		at_once("now");
		say("wrong: %d", wrong);
		return 0;
	}
	if (real_time(true)) {
		at_once("real time");
		real_time(false);
	}
	first();
	two();
	meanwhile();
	truth();
	say("wrong: %d", wrong);
	/* The end comes before it is done. */
	open_domain();
	return 0;
}
