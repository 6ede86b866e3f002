/* Proves: under RLIMIT_MEMLOCK and REGALL_LIMIT the program can register what it could without the shim, which steps aside. */
#include "rdma.h"

/* Registers everything in steps until it fails; how many. */
static int fill(struct rig *r, char *p, size_t step, int most, struct ibv_mr **mr, int *why)
{
	int n = 0;
	for (; n < most; n++) {
		volatile int access = ALL;
		errno = 0;
		mr[n] = ibv_reg_mr(r->pd, p + (size_t)n * step, step, access);
		if (!mr[n])
			break;
	}
	*why = n == most ? 0 : errno;
	return n;
}

static bool all_work(struct rig *r, char *p, size_t step, int n, struct ibv_mr **mr)
{
	bool good = true;
	for (int i = 0; i < n; i++) {
		p[(size_t)i * step] = (char)i;
		good &= one_sided(r, IBV_WR_RDMA_WRITE, p + (size_t)i * step, mr[i]->lkey, p + (size_t)i * step + 64,
				  mr[i]->rkey, 1) == IBV_WC_SUCCESS &&
			p[(size_t)i * step + 64] == (char)i;
	}
	return good;
}

int main(void)
{
	struct rlimit limit;
	NEED(getrlimit(RLIMIT_MEMLOCK, &limit) == 0);
	size_t bytes = limit.rlim_cur == RLIM_INFINITY ? 64ul << 20 : limit.rlim_cur;
	bool bound = limit.rlim_cur != RLIM_INFINITY;
	say("bound: %s", bound ? "yes" : "no");
	struct rig r = { .ctx = open_device(ADAPTER("0")) };
	NEED(r.ctx);
	r.pd = ibv_alloc_pd(r.ctx);
	NEED(r.pd);
	make_pair(&r);
	size_t pages = bytes / PAGE;
	if (!pages) {
		char *page = island(1);
		dereg("a page", reg("a page", r.pd, page, PAGE, ALL));
		return 0;
	}
	char *p = island(2 * pages);
	static struct ibv_mr *mr[64], *more[64];
	int why;

	/* All that is allowed, in one. */
	struct ibv_mr *one = reg("all that is allowed", r.pd, p, bytes, ALL);
	if (one) {
		p[5] = 'x';
		say("works: %s", wc(one_sided(&r, IBV_WR_RDMA_WRITE, p + 5, one->lkey, p + bytes - 1, one->rkey, 1)));
	}
	dereg("all", one);
	/* A small piece of a large mapping must not stand in the way of the rest. */
	char *half = island(pages / 2);
	struct ibv_mr *small = reg("a page", r.pd, half + 3 * PAGE, PAGE, ALL);
	char *q = island(pages);
	struct ibv_mr *rest = reg("the rest", r.pd, q, bytes - PAGE, ALL);
	if (bound)
		dereg("one too many", reg("one too many", r.pd, q, 2 * PAGE, ALL));
	dereg("a page", small);
	dereg("the rest", rest);
	/* In steps, again and again. */
	for (int round = 0; round < 3; round++) {
		size_t step = bytes / 16;
		int n = fill(&r, p, step, bound ? 32 : 16, mr, &why);
		/* What is borrowed together is counted once. */
		say("%s of it, then %s, works: %s", n >= 16 ? "all" : "not all", bound ? "ENOMEM or more" : "no error",
		    all_work(&r, p, step, n, mr) ? "yes" : "no");
		for (int i = 0; i < n; i++)
			NEED(ibv_dereg_mr(mr[i]) == 0);
		/* Other memory of the same size. */
		char *other = island(pages);
		int m = fill(&r, other, step, 16, more, &why);
		say("other memory: %d, %s", m, strerrorname_np(why));
		if (round == 1)
			munmap(other, bytes);
		for (int i = 0; i < m; i++)
			NEED(ibv_dereg_mr(more[i]) == 0);
	}
	/* The application's own locks are counted apart. */
	char *locked = island(pages);
	CALL_AS("mlock", mlock(locked, bytes));
	one = reg("all that is allowed", r.pd, p, bytes, ALL);
	dereg("all", one);
	CALL_AS("munlock", munlock(locked, bytes));
	if (shimmed() && bound)
		PROMISE(status_of("VmPin") * 1024 <= (long)bytes && status_of("VmLck") * 1024 <= (long)bytes);
	drop_pair(&r);
	CALL_AS("dealloc", ibv_dealloc_pd(r.pd));
	CALL_AS("close", ibv_close_device(r.ctx));
	return wrong != 0;
}
