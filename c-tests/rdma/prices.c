/* Proves: with REGALL_PIN=auto a protection domain is adopted when the program's own registrations there have cost as much, and not before; one that ends young doubles the price, and one that lives halves it again. */
#include "rdma.h"

#define BYTES (16 * PAGE)

static struct ibv_context *ctx;
static char *buf;

static struct ibv_pd *opened(void)
{
	struct ibv_pd *pd = ibv_alloc_pd(ctx);
	NEED(pd);
	return pd;
}

/* In many a few registrations are made: there are as many regions as the program has made. */
static void few(void)
{
	enum { MANY = 300, EACH = 5 };
	static struct ibv_pd *pd[MANY];
	static struct ibv_mr *mr[MANY][EACH];
	volatile int access = ALL;
	for (int i = 0; i < MANY; i++) {
		pd[i] = opened();
		for (int n = 0; n < EACH; n++) {
			mr[i][n] = ibv_reg_mr(pd[i], buf + (size_t)n * PAGE, PAGE, access);
			NEED(mr[i][n]);
		}
	}
	char *more = island(16);
	say("%d in each of %d: %d regions", EACH, MANY, objects(ADAPTER("0"), "mr"));
	NEED(munmap(more, 16 * PAGE) == 0);
	for (int i = 0; i < MANY; i++) {
		for (int n = 0; n < EACH; n++)
			NEED(ibv_dereg_mr(mr[i][n]) == 0);
		NEED(ibv_dealloc_pd(pd[i]) == 0);
	}
	say("without them: %d", objects(ADAPTER("0"), "mr"));
}

/* Pairs of registrations until the protection domain is adopted. */
static int paid(struct ibv_pd *pd)
{
	int n = 0;
	while (by_price() && n < 1 << 14 && !shares(pd, buf, BYTES, ALL))
		n++;
	return n;
}

/* What a protection domain has paid in which nothing more is registered. */
static int young(void)
{
	struct ibv_pd *pd = opened();
	int n = paid(pd);
	NEED(ibv_dealloc_pd(pd) == 0);
	return n;
}

/* The same of one in which as much is registered again. */
static int lives(void)
{
	struct ibv_pd *pd = opened();
	int n = paid(pd);
	for (int i = 0; i < n; i++)
		PROMISE(shares(pd, buf, BYTES, ALL));
	NEED(ibv_dealloc_pd(pd) == 0);
	return n;
}

/* Whether it is half of the other, or about that: memory has come and gone meanwhile. */
static bool is_half(int n, int of)
{
	return n > of / 3 && n < of * 2 / 3;
}

static void prices(void)
{
	int first = young(), second = young(), third = lives(), fourth = lives(), fifth = lives();
	if (!by_price())
		return;
	PROMISE(first > 4 && is_half(first, second) && is_half(second, third));
	PROMISE(is_half(fourth, third) && is_half(fifth, fourth));
}

/* Each class of access is paid for. */
static void classes(void)
{
	struct ibv_pd *pd = opened();
	paid(pd);
	PROMISE(!by_price() || !shares(pd, buf, BYTES, LW));
	NEED(ibv_dealloc_pd(pd) == 0);
}

/* With a queue pair in it, a protection domain is not deallocated, and no region goes for that. */
static void busy(void)
{
	static char before[1 << 16], after[1 << 16];
	struct rig r = rig();
	dereg("the rig's", r.mr);
	if (shimmed())
		listed(before, sizeof before);
	say("with queue pairs: %s", strerrorname_np(ibv_dealloc_pd(r.pd)));
	if (shimmed())
		listed(after, sizeof after);
	PROMISE(strcmp(before, after) == 0);
	NEED(ibv_destroy_qp(r.qp[0]) == 0);
	say("with one: %s", strerrorname_np(ibv_dealloc_pd(r.pd)));
	NEED(ibv_destroy_qp(r.qp[1]) == 0);
	CALL_AS("without", ibv_dealloc_pd(r.pd));
	NEED(ibv_destroy_cq(r.cq) == 0);
	CALL_AS("its adapter", ibv_close_device(r.ctx));
}

/* Resident memory is paid for, whatever was asked of a device that has no on-demand paging. */
static void resident(void)
{
	enum { MUCH = 256 << 20, EACH = BYTES + (256 << 10) };
	char *much = mmap(NULL, MUCH, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
	NEED(much != MAP_FAILED);
	int n = young();
	PROMISE(!by_price() || n >= MUCH / EACH / 2);
	NEED(munmap(much, MUCH) == 0);
}

/* Who asks for keys need not pay. */
static void asks(void)
{
	struct ibv_pd *pd = opened();
	if (shimmed()) {
		__typeof__(regall_register) *ask = (__typeof__(ask))dlsym(RTLD_DEFAULT, "regall_register");
		struct regall_range range;
		PROMISE(ask && ask(pd, buf, PAGE, &range) == 0 && range.lkey != 0);
	}
	NEED(ibv_dealloc_pd(pd) == 0);
	say("in the end: %d regions", objects(ADAPTER("0"), "mr"));
}

int main(void)
{
	ctx = open_device(ADAPTER("0"));
	NEED(ctx);
	buf = island(BYTES / PAGE);
	memset(buf, 'p', BYTES);
	few();
	prices();
	classes();
	busy();
	resident();
	asks();
	CALL_AS("closed", ibv_close_device(ctx));
	return wrong != 0;
}
