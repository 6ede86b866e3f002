/* Proves: in a control group that may have so many objects of an adapter, the program can make as many of each kind as without the shim, whatever regions that has made before. */
#include "rdma.h"

#define GROUP "/sys/fs/cgroup/crowded"
#define MOST 48

static struct ibv_context *ctx;
static struct ibv_pd *pd;
static struct ibv_cq *cq;
static char *shared, *spare;

static void put_into(const char *path, const char *text)
{
	int fd = open(path, O_WRONLY);
	NEED(fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text));
	close(fd);
}

static void *a_pd(int n)
{
	(void)n;
	return ibv_alloc_pd(ctx);
}

static void *a_cq(int n)
{
	(void)n;
	return ibv_create_cq(ctx, 8, NULL, NULL, 0);
}

static void *a_qp(int n)
{
	struct ibv_qp_init_attr init = {
		.send_cq = cq,
		.recv_cq = cq,
		.cap = { .max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1 },
		.qp_type = n % 2 ? IBV_QPT_RC : IBV_QPT_UD,
	};
	return ibv_create_qp(pd, &init);
}

static void *a_srq(int n)
{
	(void)n;
	struct ibv_srq_init_attr init = { .attr = { .max_wr = 4, .max_sge = 1 } };
	return ibv_create_srq(pd, &init);
}

static void *a_window(int n)
{
	return ibv_alloc_mw(pd, n % 2 ? IBV_MW_TYPE_2 : IBV_MW_TYPE_1);
}

static void *an_address(int n)
{
	(void)n;
	struct ibv_ah_attr attr = { .is_global = 1, .grh = { .hop_limit = 1 }, .port_num = 1 };
	NEED(ibv_query_gid(ctx, 1, 0, &attr.grh.dgid) == 0);
	return ibv_create_ah(pd, &attr);
}

/* Of memory that the shim lends nothing of. */
static void *a_registration(int n)
{
	volatile int access = ALL;
	return ibv_reg_mr(pd, shared + (size_t)n * PAGE, PAGE, access);
}

static int no_pd(void *p)
{
	return ibv_dealloc_pd(p);
}

static int no_cq(void *p)
{
	return ibv_destroy_cq(p);
}

static int no_qp(void *p)
{
	return ibv_destroy_qp(p);
}

static int no_srq(void *p)
{
	return ibv_destroy_srq(p);
}

static int no_window(void *p)
{
	return ibv_dealloc_mw(p);
}

static int no_address(void *p)
{
	return ibv_destroy_ah(p);
}

static int no_registration(void *p)
{
	return ibv_dereg_mr(p);
}

static const struct kind {
	const char *name;
	void *(*make)(int n);
	int (*end)(void *);
} kinds[] = {
	{ "protection domains", a_pd, no_pd },
	{ "completion queues", a_cq, no_cq },
	{ "queue pairs", a_qp, no_qp },
	{ "shared receive queues", a_srq, no_srq },
	{ "windows", a_window, no_window },
	{ "addresses", an_address, no_address },
	{ "registrations", a_registration, no_registration },
};

static int own_regions(void)
{
	static char all[1 << 16];
	listed(all, sizeof all);
	int n = 0;
	for (char *at = all; (at = strchr(at, ' ')); at++)
		n++;
	return n;
}

/* Maps so much in pieces that the shim makes as many regions as the group may have. */
static void crowd(char *at)
{
	for (size_t i = 0; i < MOST; i++)
		anon_at(at + 2 * i * PAGE, 1);
	PROMISE(!lends() || own_regions() > 8);
}

static void begin(void)
{
	char *at = reserve(2 * MOST), *p = island(4);
	pd = ibv_alloc_pd(ctx);
	NEED(pd);
	pay(pd, ALL);
	shares(pd, p, PAGE, ALL);
	crowd(at);
	cq = ibv_create_cq(ctx, 8, NULL, NULL, 0);
	NEED(cq);
	crowd(at);
	NEED(munmap(p, 4 * PAGE) == 0);
	spare = at;
}

static void fill(const struct kind *kind)
{
	void *all[MOST];
	int n = 0;
	begin();
	errno = 0;
	while (n < MOST && (all[n] = kind->make(n)))
		n++;
	say("%s: %d, then %s", kind->name, n, strerrorname_np(errno));
	while (n-- > 0)
		NEED(kind->end(all[n]) == 0);
	NEED(ibv_destroy_cq(cq) == 0);
	NEED(ibv_dealloc_pd(pd) == 0);
	NEED(munmap(spare, 2 * MOST * PAGE) == 0);
}

int main(void)
{
	char before[256] = "/sys/fs/cgroup", line[128] = "", self[16];
	FILE *f = fopen("/proc/self/cgroup", "r");
	NEED(f && fgets(line, sizeof line, f) && strncmp(line, "0::", 3) == 0);
	fclose(f);
	snprintf(before + strlen(before), sizeof before - strlen(before), "%.*s/cgroup.procs",
		 (int)strcspn(line + 3, "\n"), line + 3);
	snprintf(self, sizeof self, "%d", (int)getpid());
	put_into("/sys/fs/cgroup/cgroup.subtree_control", "+rdma");
	NEED(mkdir(GROUP, 0700) == 0 || errno == EEXIST);
	put_into(GROUP "/rdma.max", ADAPTER("0") " hca_object=40");
	shared = mmap(NULL, MOST * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	NEED(shared != MAP_FAILED);
	ctx = open_device(ADAPTER("0"));
	NEED(ctx);
	put_into(GROUP "/cgroup.procs", self);
	for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
		fill(&kinds[i]);
	CALL_AS("closed", ibv_close_device(ctx));
	put_into(before, self);
	NEED(rmdir(GROUP) == 0);
	return wrong != 0;
}
