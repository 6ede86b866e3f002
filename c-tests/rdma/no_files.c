/* Proves: with no descriptor left, registrations end and an adapter is closed as without the shim. */
#include <sys/resource.h>

#include "rdma.h"

#define DEVICE ADAPTER("1")
#define MOST 40

static int files[MOST], many;

static void take_all(void)
{
	while (many < MOST && (files[many] = dup(0)) >= 0)
		many++;
	NEED(errno == EMFILE);
}

static void give_back(void)
{
	while (many > 0)
		close(files[--many]);
}

int main(void)
{
	struct rlimit limit = { MOST, MOST };
	NEED(setrlimit(RLIMIT_NOFILE, &limit) == 0);
	char *p = memset(island(8), 'n', 8 * PAGE);

	/* None is left when the first registration comes. Later there are some. */
	struct ibv_context *ctx = open_device(DEVICE);
	NEED(ctx);
	struct ibv_pd *pd = ibv_alloc_pd(ctx);
	NEED(pd);
	take_all();
	dereg("none left", reg("none left", pd, p, PAGE, ALL));
	give_back();
	dereg("some left", reg("some left", pd, p, PAGE, ALL));
	PROMISE(!lends() || of_one_region(pd, p));

	/* None is left when all is to end. */
	struct ibv_mr *mr = reg("mr", pd, p, 2 * PAGE, ALL);
	take_all();
	dereg("in between", reg("in between", pd, p, PAGE, ALL));
	dereg("mr", mr);
	say("dealloc: %d", ibv_dealloc_pd(pd));
	say("close: %d", ibv_close_device(ctx));
	give_back();
	say("regions: %d, contexts: %d", objects(DEVICE, "mr"), objects(DEVICE, "ctx"));

	/* A context whose first use is its end. */
	ctx = open_device(DEVICE);
	NEED(ctx);
	take_all();
	say("close: %d", ibv_close_device(ctx));
	give_back();
	return wrong;
}
