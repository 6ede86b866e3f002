/*
 * Proves: a program that has libibverbs' functions by dlopen and dlvsym, as NCCL, or has them in
 * itself (libibverbs.a), or makes the requests itself, sees what it would see without the shim:
 * keys that work, errors, and when objects go. Served or not, as REGALL_VERBS says.
 */
#ifdef WITHIN
#define RDMA_STATIC_PROVIDERS rxe
#endif
#include <pthread.h>
#include <sys/wait.h>
#include "requests.h"

static struct rig r;
static char *p;

/* libibverbs' own, past the symbols of whoever is preloaded. */
static struct ibv_mr *(*own_reg)(struct ibv_pd *, void *, size_t, int);
static struct ibv_mr *(*reg_iova2)(struct ibv_pd *, void *, size_t, uint64_t, unsigned int);
static int (*own_dereg)(struct ibv_mr *);
static struct ibv_pd *(*alloc_pd)(struct ibv_context *);
static int (*dealloc_pd)(struct ibv_pd *);

static void find_functions(void)
{
#ifdef WITHIN
	own_reg = (ibv_reg_mr);
	reg_iova2 = ibv_reg_mr_iova2;
	own_dereg = ibv_dereg_mr;
	alloc_pd = ibv_alloc_pd;
	dealloc_pd = ibv_dealloc_pd;
#else
	void *all = dlopen("libibverbs.so.1", RTLD_NOW);
	NEED(all);
	own_reg = (typeof(own_reg))dlvsym(all, "ibv_reg_mr", "IBVERBS_1.1");
	reg_iova2 = (typeof(reg_iova2))dlvsym(all, "ibv_reg_mr_iova2", "IBVERBS_1.8");
	own_dereg = (typeof(own_dereg))dlvsym(all, "ibv_dereg_mr", "IBVERBS_1.1");
	alloc_pd = (typeof(alloc_pd))dlvsym(all, "ibv_alloc_pd", "IBVERBS_1.1");
	dealloc_pd = (typeof(dealloc_pd))dlvsym(all, "ibv_dealloc_pd", "IBVERBS_1.1");
	NEED(own_reg && reg_iova2 && own_dereg && alloc_pd && dealloc_pd);
#endif
}

/* Whether the number is one that the shim made up. */
static bool is_ours(uint32_t handle)
{
	return handle >= 1u << 31;
}

/* As pay, past libibverbs' symbols. */
static void pay_alone(struct ibv_pd *pd)
{
	for (bool ours = !is_lent() || !by_price(); !ours;) {
		struct ibv_mr *mr = own_reg(pd, p, 512 * PAGE, ALL);
		NEED(mr);
		ours = is_ours(mr->handle);
		NEED(own_dereg(mr) == 0);
	}
}

static void keys_work(struct ibv_pd *pd, const char *what)
{
	struct ibv_mr *a = own_reg(pd, p, 8 * PAGE, ALL);
	volatile unsigned int access = ALL;
	struct ibv_mr *b = reg_iova2(pd, p + 8 * PAGE, 8 * PAGE, (uintptr_t)p + 8 * PAGE, access);
	NEED(a && b);
	PROMISE(is_ours(a->handle) == is_lent() && is_ours(b->handle) == is_lent());
	say("%s: %d", what, a->pd == pd && a->addr == p && a->length == 8 * PAGE);
	if (pd == r.pd) {
		memset(p, 'x', PAGE);
		say("write: %d", one_sided(&r, IBV_WR_RDMA_WRITE, a->addr, a->lkey, b->addr, b->rkey, PAGE));
		say("moved: %d", p[0] == p[8 * PAGE]);
	}
	say("dereg: %d %d", own_dereg(a), own_dereg(b));
}

static void a_pd_of_its_own(void)
{
	struct ibv_pd *pd = alloc_pd(r.ctx);
	NEED(pd);
	struct ibv_mr *mr = own_reg(pd, p, PAGE, LW);
	NEED(mr);
	say("dealloc with a registration: %d", dealloc_pd(pd));
	say("dereg: %d", own_dereg(mr));
	say("dealloc: %d", dealloc_pd(pd));
}

static void requests(void)
{
	int fd = r.ctx->cmd_fd, other = dup(fd);
	uint32_t pd = r.pd->handle;
	struct asked a, b;
	say("raw: %d", raw_reg(fd, &a, pd, p, 3 * PAGE, ALL));
	say("raw by another descriptor: %d", raw_reg(other, &b, pd, p + PAGE, PAGE, LW | RR));
	say("flags: %d %d %d", a.m.attr[0].flags, a.m.attr[1].flags, a.m.attr[2].flags);
	say("different: %d", a.out.mr_handle != b.out.mr_handle);
	say("destroyed: %d, again: %d", raw_destroy(other, a.out.mr_handle), raw_destroy(fd, a.out.mr_handle));
	say("deregistered: %d, again: %d", raw_dereg(fd, b.out.mr_handle), raw_dereg(other, b.out.mr_handle));
	say("never there: %d %d", raw_destroy(fd, 0x80001234), raw_dereg(fd, 0xffffffff));
	close(other);
	/* What the kernel refuses. */
	say("no pd: %d", raw_reg(fd, &a, 4711, p, PAGE, ALL));
	say("access: %d %d", raw_reg(fd, &a, pd, p, PAGE, RW), raw_reg(fd, &a, pd, p, PAGE, 1 << 19));
	say("nothing: %d", raw_reg(fd, &a, pd, p, 0, LW));
	say("not a device: %d", raw_reg(STDOUT_FILENO, &a, pd, p, PAGE, LW));
	say("not open: %d", raw_reg(-1, &a, pd, p, PAGE, LW));
	NEED(raw_reg(fd, &a, pd, p, PAGE, ALL) == 0);
	say("destroyed by what is no device: %d", raw_destroy(STDOUT_FILENO, a.out.mr_handle) != 0);
	say("length: %d", (a.m.head.length++, send_to(fd, &a.m)));
	say("driver: %d", (a.m.head.length--, a.m.head.driver_id = 1, send_to(fd, &a.m)));
	say("destroyed: %d", raw_destroy(fd, a.out.mr_handle));
}

/* Memory that is not there, in each place that a request names. */
static void bad_memory(void)
{
	int fd = r.ctx->cmd_fd;
	char *hole = reserve(1);
	struct asked a;
	say("message: %d %d", send_to(fd, hole), send_to(fd, NULL));
	a.in = (struct ib_uverbs_reg_mr){ .start = (uintptr_t)p, .length = PAGE, .hca_va = (uintptr_t)p, .pd_handle = r.pd->handle, .access_flags = LW };
	for (int i = 0; i < 2; i++) {
		a.m = command(IB_USER_VERBS_CMD_REG_MR);
		with(&a.m, UVERBS_ATTR_CORE_IN, 40, (uintptr_t)(i == 0 ? (void *)hole : (void *)&a.in));
		with(&a.m, UVERBS_ATTR_CORE_OUT, 12, (uintptr_t)(i == 1 ? (void *)hole : (void *)&a.out));
		say("part %d: %d", i, send_to(fd, &a.m));
	}
	/* A message at the end of what is mapped, and one elsewhere than on the stack. */
	char *edge = island(1) + PAGE;
	struct ib_uverbs_ioctl_hdr head = command(IB_USER_VERBS_CMD_REG_MR).head;
	memcpy(edge - sizeof head, &head, sizeof head);
	say("cut: %d", send_to(fd, edge - sizeof head));
	struct asked *away = (struct asked *)(edge - PAGE);
	say("away: %d", raw_reg(fd, away, r.pd->handle, p, PAGE, ALL));
	say("away: %d", raw_destroy(fd, away->out.mr_handle));
}

static void query(uint32_t mr, uint32_t key, const char *at)
{
	uint32_t lkey = 0, rkey = 0;
	uint64_t length = 0, iova = 0;
	struct message m = empty(UVERBS_OBJECT_MR, UVERBS_METHOD_QUERY_MR);
	with(&m, UVERBS_ATTR_QUERY_MR_HANDLE, 0, mr);
	with(&m, UVERBS_ATTR_QUERY_MR_RESP_LKEY, 4, (uintptr_t)&lkey);
	with(&m, UVERBS_ATTR_QUERY_MR_RESP_RKEY, 4, (uintptr_t)&rkey);
	with(&m, UVERBS_ATTR_QUERY_MR_RESP_LENGTH, 8, (uintptr_t)&length);
	with(&m, UVERBS_ATTR_QUERY_MR_RESP_IOVA, 8, (uintptr_t)&iova);
	say("asked: %d, flags %d %d %d", send_to(r.ctx->cmd_fd, &m), m.attr[1].flags, m.attr[3].flags, m.attr[4].flags);
	say("length %zu, at its place: %d, key: %d", (size_t)length, iova == (uintptr_t)at, lkey == key);
}

static void by_method(void)
{
	int fd = r.ctx->cmd_fd;
	struct asked a;
	int error = raw_reg_by_method(fd, &a, r.pd->handle, p, 4 * PAGE, ALL);
	say("by its method: %d", error);
	if (error)
		return;
	say("flags: %d %d %d", a.m.attr[0].flags, a.m.attr[6].flags, a.m.attr[7].flags);
	/* Linux 7.2 itself leaves the region's length 0 there, and Soft-RoCE takes that at its word. */
	if (is_lent()) {
		PROMISE(is_ours(a.out.mr_handle));
		PROMISE(one_sided(&r, IBV_WR_RDMA_WRITE, p, a.out.lkey, p + PAGE, a.out.rkey, PAGE) == IBV_WC_SUCCESS);
	}
	say("destroyed: %d", raw_destroy(fd, a.out.mr_handle));
}

static void changes(void)
{
	struct ibv_mr *mr = own_reg(r.pd, p, 4 * PAGE, LW);
	NEED(mr);
	struct ib_uverbs_rereg_mr in = { .mr_handle = mr->handle, .flags = IBV_REREG_MR_CHANGE_ACCESS, .access_flags = LW | RR, .pd_handle = r.pd->handle };
	struct ib_uverbs_rereg_mr_resp out = { 0 };
	struct message m = command(IB_USER_VERBS_CMD_REREG_MR);
	with(&m, UVERBS_ATTR_CORE_IN, sizeof in, (uintptr_t)&in);
	with(&m, UVERBS_ATTR_CORE_OUT, sizeof out, (uintptr_t)&out);
	say("changed: %d", send_to(r.ctx->cmd_fd, &m));
	query(mr->handle, out.lkey ? out.lkey : mr->lkey, p);
	say("dereg: %d", own_dereg(mr));
}

/* A region is what it was also when its memory is not mapped any more. */
static void unmapped(void)
{
	char *at = island(4);
	struct asked a;
	NEED(raw_reg(r.ctx->cmd_fd, &a, r.pd->handle, at, 3 * PAGE, ALL) == 0);
	NEED(munmap(at, 4 * PAGE) == 0);
	query(a.out.mr_handle, a.out.lkey, at);
	say("destroyed: %d", raw_destroy(r.ctx->cmd_fd, a.out.mr_handle));
}

static void *message_to_be_unmapped;
static volatile int over;

/* Another thread takes the message away and puts it back: EFAULT now and then, but no signal. */
static void *unmap_and_map(void *arg)
{
	while (!over) {
		NEED(munmap(message_to_be_unmapped, PAGE) == 0);
		anon_at(message_to_be_unmapped, 1);
	}
	return arg;
}

static void contended(void)
{
	message_to_be_unmapped = island(1);
	pthread_t t;
	NEED(pthread_create(&t, NULL, unmap_and_map, NULL) == 0);
	int bad = 0;
	for (int i = 0; i < 20000; i++) {
		int error = send_to(r.ctx->cmd_fd, message_to_be_unmapped);
		bad += error != EFAULT && error != EINVAL && error != EPROTONOSUPPORT;
	}
	over = 1;
	NEED(pthread_join(t, NULL) == 0);
	say("contended: %d", bad);
}

/* The region is the parent's, whatever the child does. */
static void children(void)
{
	int fd = r.ctx->cmd_fd;
	struct asked a, b;
	NEED(raw_reg(fd, &a, r.pd->handle, p, PAGE, ALL) == 0);
	fflush(stdout);
	pid_t child = fork();
	if (child == 0) {
		/* Inherited memory can't be registered again everywhere: fresh memory. */
		char *own = island(4);
		say("child: %d", raw_reg(fd, &b, r.pd->handle, own, PAGE, ALL));
		say("child: %d", raw_destroy(fd, b.out.mr_handle));
		say("its parent's: %d", raw_destroy(fd, a.out.mr_handle));
		say("its parent's, again: %d", raw_destroy(fd, a.out.mr_handle));
		fflush(stdout);
		_exit(0);
	}
	int status;
	NEED(waitpid(child, &status, 0) == child);
	say("ended: %d", status);
	raw_destroy(fd, a.out.mr_handle);
}

/* A process that is no relative's, in effect: it was there before the device was opened. */
static void another(int from)
{
	uint32_t handle;
	int fd = receive_fd(from, &handle);
	struct asked a;
	char *own = island(4);
	say("another: %d", raw_reg(fd, &a, handle, own, PAGE, ALL));
	say("another: %d", raw_destroy(fd, a.out.mr_handle));
	fflush(stdout);
	_exit(0);
}

static pid_t start_another(int *to)
{
	int ends[2];
	NEED(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, ends) == 0);
	pid_t child = fork();
	if (child == 0) {
		close(ends[0]);
		another(ends[1]);
	}
	close(ends[1]);
	*to = ends[0];
	return child;
}

static void pass_to_another(int to, pid_t child)
{
	fflush(stdout);
	send_fd(to, r.ctx->cmd_fd, r.pd->handle);
	int status;
	NEED(waitpid(child, &status, 0) == child);
	say("ended: %d", status);
}

/* What is closed goes with its last descriptor. */
static void closing(void)
{
	int contexts = count("ctx");
	int fd = raw_open(r.ctx), other = dup(fd);
	uint32_t pd = raw_pd(fd);
	struct asked a;
	NEED(raw_reg(fd, &a, pd, p, PAGE, ALL) == 0);
	say("busy: %d", raw_dealloc(fd, pd));
	close(fd);
	int next = raw_open(r.ctx);
	say("there by another descriptor: %d", raw_destroy(other, a.out.mr_handle));
	say("dealloc: %d", raw_dealloc(other, pd));
	pd = raw_pd(other);
	NEED(raw_reg(other, &a, pd, p, PAGE, ALL) == 0);
	say("contexts: %d", count("ctx") - contexts);
	close(other);
	say("contexts: %d", count("ctx") - contexts);
	close(next);
	next = raw_open(r.ctx);
	say("contexts: %d", count("ctx") - contexts);
	/* Under the old numbers others: of what was closed nothing is left. */
	say("gone: %d", raw_destroy(next, a.out.mr_handle));
	close(next);
}

int main(void)
{
	int to;
	pid_t child = start_another(&to);
	r = rig();
	p = island(512);
	memset(p, 'a', 512 * PAGE);
	find_functions();
	struct ibv_pd *alone = alloc_pd(r.ctx);
	NEED(alone);
	pay_alone(alone);
	keys_work(alone, "alone");
	say("dealloc: %d", dealloc_pd(alone));
	keys_work(r.pd, "beside libibverbs' symbols");
	a_pd_of_its_own();
	requests();
	bad_memory();
	changes();
	unmapped();
	contended();
	by_method();
	children();
	pass_to_another(to, child);
	closing();
	say("end");
	return wrong != 0;
}
