/* Proves: protection domains, devices and children of fork end as they do without the shim, and leave nothing behind. */
#include <dirent.h>
#include "rdma.h"

static int descriptors(void)
{
	int n = 0;
	DIR *d = opendir("/proc/self/fd");
	NEED(d);
	while (readdir(d))
		n++;
	closedir(d);
	return n;
}

static void busy(void)
{
	say("-- deallocated with things left in it");
	struct rig r = rig();
	char *p = island(4);
	letters(p, 4, 'a');
	struct ibv_mr *mr = reg("mr", r.pd, p, 4 * PAGE, ALL);
	say("with all: %s", strerrorname_np(ibv_dealloc_pd(r.pd)));
	tell_remote("mr", &r, p, mr->rkey, 4);
	struct ibv_mr *more = reg("more", r.pd, p, PAGE, ALL);
	tell_remote("more", &r, p, more->rkey, 1);
	dereg("mr", mr);
	dereg("more", more);
	NEED(ibv_dereg_mr(r.mr) == 0);
	say("with queue pairs: %s", strerrorname_np(ibv_dealloc_pd(r.pd)));
	r.mr = ibv_reg_mr(r.pd, r.buf, BUFFER, ALL);
	mr = reg("mr", r.pd, p, 4 * PAGE, ALL);
	tell_remote("mr", &r, p, mr->rkey, 4);
	drop_pair(&r);
	say("with regions: %s", strerrorname_np(ibv_dealloc_pd(r.pd)));
	dereg("mr", mr);
	say("with one region: %s", strerrorname_np(ibv_dealloc_pd(r.pd)));
	make_pair(&r);
	char *q = island(4);
	letters(q, 4, 'A');
	mr = reg("mr", r.pd, q, 4 * PAGE, ALL);
	tell_remote("mr", &r, q, mr->rkey, 4);
	/* Retired, and still in the way. */
	munmap(q, 4 * PAGE);
	NEED(ibv_dereg_mr(r.mr) == 0);
	drop_pair(&r);
	say("with an unmapped region: %s", strerrorname_np(ibv_dealloc_pd(r.pd)));
	dereg("mr", mr);
	struct ibv_mw *mw = ibv_alloc_mw(r.pd, IBV_MW_TYPE_2);
	if (mw) {
		say("with a window: %s", strerrorname_np(ibv_dealloc_pd(r.pd)));
		ibv_dealloc_mw(mw);
	}
	CALL_AS("empty", ibv_dealloc_pd(r.pd));
	CALL_AS("closed", ibv_close_device(r.ctx));
}

static void again_and_again(void)
{
	say("-- 200 protection domains, one after the other");
	struct ibv_context *ctx = open_device(ADAPTER("0"));
	char *p = island(4);
	int good = 0, fds = 0, mrs = 0;
	long pinned = 0;
	for (int i = 0; i < 200; i++) {
		struct ibv_pd *pd = ibv_alloc_pd(ctx);
		volatile int access = i & 1 ? ALL : LW;
		struct ibv_mr *mr = pd ? ibv_reg_mr(pd, p, PAGE, access) : NULL;
		struct ibv_mr *other = pd ? ibv_reg_mr(pd, p, PAGE, LW | RR) : NULL;
		good += mr && other && ibv_dereg_mr(mr) == 0 && ibv_dereg_mr(other) == 0 && ibv_dealloc_pd(pd) == 0;
		if (i == 20) {
			fds = descriptors();
			mrs = objects(ADAPTER("0"), "mr");
			pinned = status_of("VmPin");
		}
	}
	say("%d of 200", good);
	say("descriptors: %d more", descriptors() - fds);
	say("regions: %d more", objects(ADAPTER("0"), "mr") - mrs);
	say("pinned: %ld more", status_of("VmPin") - pinned);
	say("regions: %d, pinned: %ld", objects(ADAPTER("0"), "mr"), status_of("VmPin"));
	CALL_AS("closed", ibv_close_device(ctx));
}

static void many_at_a_time(void)
{
	say("-- 24 protection domains at a time");
	struct ibv_context *ctx = open_device(ADAPTER("0"));
	char *p = island(4);
	letters(p, 4, 'a');
	struct rig r[24];
	for (int i = 0; i < 24; i++) {
		r[i] = (struct rig){ .ctx = ctx, .pd = ibv_alloc_pd(ctx) };
		NEED(r[i].pd);
		r[i].buf = island(8);
		volatile int access = ALL;
		r[i].mr = ibv_reg_mr(r[i].pd, r[i].buf, 8 * PAGE, access);
		NEED(r[i].mr);
		make_pair(&r[i]);
	}
	int good = 0;
	for (int i = 0; i < 24; i++) {
		volatile int access = ALL;
		struct ibv_mr *mr = ibv_reg_mr(r[i].pd, p, 4 * PAGE, access);
		good += mr && get(&r[i], p, mr->rkey, 4 * PAGE) == IBV_WC_SUCCESS &&
			memcmp(r[i].buf, p, 4 * PAGE) == 0 && ibv_dereg_mr(mr) == 0;
	}
	say("%d work", good);
	/* Where everything was asked for, each is adopted at once. */
	for (int i = 0; lends() && i < 24; i++)
		PROMISE(of_one_region(r[i].pd, p));
	/* A key is of its own protection domain. */
	struct ibv_mr *mr = ibv_reg_mr(r[1].pd, p, 4 * PAGE, ALL);
	say("another's key: %s", wc(get(&r[0], p, mr->rkey, PAGE)));
	say("own key: %s", wc(get(&r[1], p, mr->rkey, PAGE)));
	NEED(ibv_dereg_mr(mr) == 0);
	for (int i = 0; i < 24; i++) {
		drop_pair(&r[i]);
		NEED(ibv_dereg_mr(r[i].mr) == 0);
		NEED(ibv_dealloc_pd(r[i].pd) == 0);
	}
	say("regions: %d, pinned: %ld", objects(ADAPTER("0"), "mr"), status_of("VmPin"));
	CALL_AS("closed", ibv_close_device(ctx));
}

static void two_devices(void)
{
	say("-- two devices");
	struct rig a = rig_with(ADAPTER("0"), ALL), b = rig_with(ADAPTER("1"), ALL);
	char *p = island(4);
	letters(p, 4, 'a');
	struct ibv_mr *ma = reg("a", a.pd, p, 4 * PAGE, ALL), *mb = reg("b", b.pd, p, 4 * PAGE, ALL);
	tell_remote("a", &a, p, ma->rkey, 4);
	tell_remote("b", &b, p, mb->rkey, 4);
	munmap(p + PAGE, PAGE);
	dereg("a", ma);
	tell_remote("b", &b, p, mb->rkey, 4);
	rig_down(&a);
	tell_remote("b", &b, p, mb->rkey, 4);
	dereg("b", mb);
	rig_down(&b);
	say("regions: %d and %d, pinned: %ld", objects(ADAPTER("0"), "mr"), objects(ADAPTER("1"), "mr"), status_of("VmPin"));
}

static void closed(void)
{
	say("-- closed with things left, and opened again");
	int fds = 0;
	for (int i = 0; i < 10; i++) {
		struct rig r = rig();
		char *p = island(4);
		letters(p, 4, 'a');
		volatile int access = ALL;
		struct ibv_mr *mr = ibv_reg_mr(r.pd, p, 4 * PAGE, access);
		NEED(mr);
		if (i == 0)
			tell_remote("mr", &r, p, mr->rkey, 4);
		munmap(p, PAGE);
		/* Their queues are mapped: the kernel keeps the device open for them. */
		if (i >= 5)
			drop_pair(&r);
		NEED(ibv_close_device(r.ctx) == 0);
		if (i == 1)
			fds = descriptors();
		say("regions: %d, pairs: %d, pinned: %ld", objects(ADAPTER("0"), "mr"), objects(ADAPTER("0"), "qp"), status_of("VmPin"));
	}
	say("descriptors: %d more", descriptors() - fds);
}

static void children(void)
{
	say("-- children");
	struct rig r = rig();
	char *p = island(4);
	letters(p, 4, 'a');
	struct ibv_mr *mr = reg("mr", r.pd, p, 4 * PAGE, ALL);
	pid_t pid = fork();
	NEED(pid >= 0);
	if (pid == 0) {
		wrong = 0;
		/* Without the shim this takes the region from the parent. */
		if (lends())
			PROMISE(ibv_dereg_mr(mr) == 0);
		exit(wrong);
	}
	reap("child", pid);
	tell_remote("mr", &r, p, mr->rkey, 4);

	pid = fork();
	NEED(pid >= 0);
	if (pid == 0) {
		/* A device of its own, what it has inherited, and what is new. */
		struct rig own = rig();
		struct ibv_mr *m = reg("child", own.pd, p, 4 * PAGE, ALL);
		tell_remote("child", &own, p, m->rkey, 4);
		say("put: %s", wc(put(&own, p, m->rkey, 'C', PAGE)));
		tell_here("child", p, 4);
		char *q = island(2);
		letters(q, 2, 'X');
		struct ibv_mr *n = reg("child", own.pd, q, 2 * PAGE, ALL);
		tell_remote("child", &own, q, n->rkey, 2);
		munmap(p, PAGE);
		tell_remote("child", &own, p, m->rkey, 4);
		dereg("child", m);
		dereg("child", n);
		rig_down(&own);
		exit(wrong);
	}
	reap("child", pid);
	tell_here("here", p, 4);
	tell_remote("mr", &r, p, mr->rkey, 4);

	pid = fork();
	NEED(pid >= 0);
	if (pid == 0) {
		/* Nothing is left of the parent's over exec. */
		execl("/bin/sh", "sh", "-c", "ls -l /proc/self/fd | grep -c infiniband; exit 0", NULL);
		_exit(1);
	}
	reap("exec", pid);

	/* A child that outlives the registration, and one that is made amid it. */
	int go[2];
	NEED(pipe(go) == 0);
	pid = fork();
	NEED(pid >= 0);
	if (pid == 0) {
		char c;
		close(go[1]);
		while (read(go[0], &c, 1) > 0)
			;
		tell_here("child", p, 4);
		exit(wrong);
	}
	memset(p, 'P', PAGE);
	tell_remote("mr", &r, p, mr->rkey, 4);
	dereg("mr", mr);
	mr = reg("mr", r.pd, p, 4 * PAGE, ALL);
	memset(p + PAGE, 'Q', PAGE);
	tell_remote("mr", &r, p, mr->rkey, 4);
	close(go[1]);
	reap("child", pid);
	close(go[0]);
	for (int i = 0; i < 5; i++)
		NEED(system("exit 0") == 0);
	memset(p + 2 * PAGE, 'R', PAGE);
	tell_remote("mr", &r, p, mr->rkey, 4);
	dereg("mr", mr);
	rig_down(&r);
	say("regions: %d, pinned: %ld", objects(ADAPTER("0"), "mr"), status_of("VmPin"));
}

int main(void)
{
	busy();
	again_and_again();
	many_at_a_time();
	two_devices();
	closed();
	children();
	return wrong != 0;
}
