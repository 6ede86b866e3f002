/* Proves: a program that has libibverbs by dlopen and dlvsym, past every symbol that is exported (NCCL does), registers as
 * without the shim: what the library's own ibv_reg_mr returns is the library's to deregister. */
#include <dlfcn.h>
#include "rdma.h"

#undef ibv_reg_mr
#undef ibv_reg_mr_iova

static void *library;

static void *loaded(const char *name, const char *version)
{
	void *at = dlvsym(library, name, version);
	NEED(at);
	return at;
}

#define LOADED(name, version) __typeof__(name) *name##_ = loaded(#name, version)

int main(void)
{
	enum { ROUNDS = 200 };
	library = dlopen("libibverbs.so.1", RTLD_NOW | RTLD_LOCAL);
	NEED(library);
	LOADED(ibv_get_device_list, "IBVERBS_1.1");
	LOADED(ibv_open_device, "IBVERBS_1.1");
	LOADED(ibv_close_device, "IBVERBS_1.1");
	LOADED(ibv_alloc_pd, "IBVERBS_1.1");
	LOADED(ibv_dealloc_pd, "IBVERBS_1.1");
	LOADED(ibv_reg_mr, "IBVERBS_1.1");
	LOADED(ibv_reg_mr_iova, "IBVERBS_1.7");
	LOADED(ibv_reg_mr_iova2, "IBVERBS_1.8");
	LOADED(ibv_dereg_mr, "IBVERBS_1.1");
	struct ibv_device **list = ibv_get_device_list_(NULL);
	NEED(list && list[0]);
	struct ibv_context *context = ibv_open_device_(list[0]);
	NEED(context);
	struct ibv_pd *pd = ibv_alloc_pd_(context);
	NEED(pd);
	char *p = anon(64), *much = anon(1024);
	unsigned right = 0;
	/* Until the protection domain is adopted. */
	bool same = !by_price() || env_is("REGALL_VERBS", "symbols");
	for (int i = 0; i < 512 && !same; i++) {
		struct ibv_mr *a = ibv_reg_mr_(pd, much, 1024 * PAGE, IBV_ACCESS_LOCAL_WRITE);
		struct ibv_mr *b = ibv_reg_mr_(pd, much, 1024 * PAGE, IBV_ACCESS_LOCAL_WRITE);
		NEED(a && b);
		same = a->lkey == b->lkey;
		NEED(ibv_dereg_mr_(a) == 0 && ibv_dereg_mr_(b) == 0);
	}
	PROMISE(same);
	for (int i = 0; i < ROUNDS; i++) {
		char *at = p + (size_t)(i % 32) * PAGE;
		struct ibv_mr *mr[3] = {
			ibv_reg_mr_(pd, at, PAGE, IBV_ACCESS_LOCAL_WRITE),
			ibv_reg_mr_iova_(pd, at, 2 * PAGE, (uintptr_t)at, IBV_ACCESS_LOCAL_WRITE),
			ibv_reg_mr_iova2_(pd, at, PAGE, (uintptr_t)at, IBV_ACCESS_LOCAL_WRITE),
		};
		/* The first one, too, is of the region that is there. */
		if (shimmed() && !getenv("REGALL_VERBS"))
			PROMISE(mr[0] && mr[2] && mr[0]->lkey == mr[2]->lkey);
		for (int n = 0; n < 3; n++)
			right += mr[n] && mr[n]->pd == pd && mr[n]->addr == at && ibv_dereg_mr_(mr[n]) == 0;
	}
	say("registered and deregistered: %u", right);
	/* Not EBUSY: nobody else has regions in it. */
	CALL_AS("ibv_dealloc_pd", ibv_dealloc_pd_(pd));
	CALL_AS("ibv_close_device", ibv_close_device_(context));
	return wrong != 0;
}
