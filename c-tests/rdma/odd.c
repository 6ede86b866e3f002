/* Proves: what is not lent (other addresses, windows, re-registration, imports, on-demand) goes as without the shim. */
#include "rdma.h"

static struct rig r;

static const char *yes(enum ibv_wc_status status)
{
	return status == IBV_WC_SUCCESS ? "yes" : wc(status);
}

static void other_addresses(void)
{
	char *p = island(4);
	letters(p, 4, 'a');
	struct ibv_mr *mr = ibv_reg_mr_iova2(r.pd, p, 4 * PAGE, 0x10000000, ALL);
	told("iova", mr != NULL);
	if (mr) {
		tell_remote("at iova", &r, (void *)0x10001000, mr->rkey, 2);
		say("at its address: %s", yes(get(&r, p, mr->rkey, 8)));
		dereg("iova", mr);
	}
	mr = ibv_reg_mr_iova2(r.pd, p + PAGE, 2 * PAGE, (uintptr_t)p, ALL);
	told("iova beside it", mr != NULL);
	if (mr) {
		tell_remote("at iova", &r, p, mr->rkey, 2);
		dereg("iova", mr);
	}
	mr = reg("zero-based", r.pd, p, 4 * PAGE, ALL | IBV_ACCESS_ZERO_BASED);
	if (mr) {
		say("at zero: %s", yes(get(&r, NULL, mr->rkey, 8)));
		dereg("zero-based", mr);
	}
	mr = reg("on demand", r.pd, p, 4 * PAGE, ALL | IBV_ACCESS_ON_DEMAND);
	if (mr) {
		tell_remote("on demand", &r, p, mr->rkey, 4);
		memset(anon_at(p, 1), 'N', PAGE);
		tell_remote("on demand", &r, p, mr->rkey, 4);
		dereg("on demand", mr);
	}
	dereg("implicit", reg("implicit", r.pd, NULL, SIZE_MAX, LW | IBV_ACCESS_ON_DEMAND));
	dereg("all", reg("all", r.pd, NULL, SIZE_MAX, LW));
}

static const char *rereg_result(int e)
{
	switch (e) {
	case 0: return "ok";
	case IBV_REREG_MR_ERR_INPUT: return "ERR_INPUT";
	case IBV_REREG_MR_ERR_DONT_FORK_NEW: return "ERR_DONT_FORK_NEW";
	case IBV_REREG_MR_ERR_DO_FORK_OLD: return "ERR_DO_FORK_OLD";
	case IBV_REREG_MR_ERR_CMD: return "ERR_CMD";
	case IBV_REREG_MR_ERR_CMD_AND_DO_FORK_NEW: return "ERR_CMD_AND_DO_FORK_NEW";
	default: return "?";
	}
}

static void reregister(void)
{
	char *p = island(4), *q = island(8);
	letters(p, 4, 'a');
	letters(q, 8, 'A');
	struct ibv_pd *other = ibv_alloc_pd(r.ctx);
	for (int flags = 0; flags < 16; flags++)
		for (int access = 0; access < 2; access++) {
			struct ibv_mr *mr = reg("mr", r.pd, p, 4 * PAGE, ALL);
			errno = 0;
			int e = ibv_rereg_mr(mr, flags, other, q, 8 * PAGE, access ? LW | RR : 0);
			const char *name = errno ? strerrorname_np(errno) : "0";
			say("flags %d access %d: %s, errno %s", flags, access, rereg_result(e), e ? name : "-");
			say("pd %s, addr %s, length %zu", mr->pd == other ? "other" : "same", mr->addr == q ? "q" : "p",
			    mr->length);
			if (mr->pd == r.pd)
				tell_remote("after", &r, mr->addr, mr->rkey, 4);
			dereg("mr", mr);
		}
	struct ibv_mr *mr = reg("mr", r.pd, p, 4 * PAGE, ALL);
	int t = IBV_REREG_MR_CHANGE_TRANSLATION;
	say("NULL: %s", rereg_result(ibv_rereg_mr(mr, t, NULL, NULL, 8 * PAGE, 0)));
	say("length 0: %s", rereg_result(ibv_rereg_mr(mr, t, NULL, q, 0, 0)));
	say("unmapped: %s", rereg_result(ibv_rereg_mr(mr, t, NULL, (void *)0x7000, PAGE, 0)));
	say("wrong access: %s", rereg_result(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, RW)));
	tell_remote("after", &r, p, mr->rkey, 4);
	dereg("mr", mr);
	CALL_AS("other", ibv_dealloc_pd(other));
}

static void window_of_type_1(struct ibv_mr *mr, char *p)
{
	struct ibv_mw *mw = ibv_alloc_mw(r.pd, IBV_MW_TYPE_1);
	say("type 1: %s", mw ? "ok" : strerrorname_np(errno));
	if (!mw)
		return;
	struct ibv_mw_bind bind = {
		.send_flags = IBV_SEND_SIGNALED,
		.bind_info = { .mr = mr, .addr = (uintptr_t)(p + PAGE), .length = PAGE, .mw_access_flags = RR },
	};
	int e = ibv_bind_mw(r.qp[1], mw, &bind);
	say("bind: %s", e ? strerrorname_np(e) : yes(complete(&r, 1)));
	if (!e)
		tell_remote("window", &r, p + PAGE, mw->rkey, 1);
	CALL_AS("dealloc", ibv_dealloc_mw(mw));
}

/* A window over the second page at `p`, for this pair of queue pairs: its key; 0: there is none. */
static uint32_t window_of_type_2(struct ibv_mr *mr, char *p)
{
	r.window = ibv_alloc_mw(r.pd, IBV_MW_TYPE_2);
	say("type 2: %s", r.window ? "ok" : strerrorname_np(errno));
	if (!r.window)
		return 0;
	uint32_t key = ibv_inc_rkey(r.window->rkey);
	struct ibv_send_wr wr = { .opcode = IBV_WR_BIND_MW, .send_flags = IBV_SEND_SIGNALED }, *bad;
	wr.bind_mw.mw = r.window;
	wr.bind_mw.rkey = key;
	wr.bind_mw.bind_info = (struct ibv_mw_bind_info){
		.mr = mr, .addr = (uintptr_t)(p + PAGE), .length = PAGE, .mw_access_flags = RR | RW
	};
	int e = ibv_post_send(r.qp[1], &wr, &bad);
	enum ibv_wc_status status = e ? IBV_WC_FATAL_ERR : complete(&r, 1);
	say("bind: %s", e ? strerrorname_np(e) : yes(status));
	return status == IBV_WC_SUCCESS ? key : 0;
}

static void window_is_gone(void)
{
	if (r.window)
		CALL_AS("dealloc", ibv_dealloc_mw(r.window));
	r.window = NULL;
}

static void windows(void)
{
	char *p = island(4);
	letters(p, 4, 'a');
	struct ibv_mr *mr = reg("bindable", r.pd, p, 4 * PAGE, ALL | IBV_ACCESS_MW_BIND);
	struct ibv_mr *plain = reg("not bindable", r.pd, p, 4 * PAGE, ALL);
	window_of_type_1(mr, p);
	/* What fails takes the window with the queue pairs: each has one of its own. */
	for (int what = 0; what < 4; what++) {
		uint32_t key = window_of_type_2(mr, p);
		if (key && what == 0)
			tell_remote("window", &r, p + PAGE, key, 1);
		else if (key && what == 1)
			say("beyond: %s", yes(get(&r, p + 2 * PAGE, key, 8)));
		else if (key && what == 2)
			say("put: %s", yes(put(&r, p + PAGE, key, 'W', PAGE)));
		else if (key)
			say("add: %s", yes(add(&r, p + PAGE, key)));
		tell_here("here", p, 4);
		window_is_gone();
	}
	window_of_type_2(plain, p);
	window_is_gone();
	dereg("bindable", mr);
	dereg("not bindable", plain);
}

static void imports(void)
{
	char *p = island(2);
	letters(p, 2, 'a');
	struct ibv_mr *mr = reg("mr", r.pd, p, 2 * PAGE, ALL);
	int fd = dup(r.ctx->cmd_fd);
	struct ibv_context *ctx = ibv_import_device(fd);
	told("import_device", ctx != NULL);
	if (ctx) {
		struct ibv_pd *pd = ibv_import_pd(ctx, r.pd->handle);
		told("import_pd", pd != NULL);
		if (pd) {
			struct ibv_mr *there = ibv_import_mr(pd, mr->handle);
			told("import_mr", there != NULL);
			if (there) {
				tell_remote("imported", &r, p, there->rkey, 2);
				ibv_unimport_mr(there);
			}
			struct ibv_mr *mine = reg("in the imported", pd, p, 2 * PAGE, ALL);
			if (mine) {
				tell_remote("in the imported", &r, p, mine->rkey, 2);
				dereg("in the imported", mine);
			}
			ibv_unimport_pd(pd);
		}
		CALL_AS("close", ibv_close_device(ctx));
	}
	tell_remote("mr", &r, p, mr->rkey, 2);
	dereg("mr", mr);
}

int main(void)
{
	r = rig();
	other_addresses();
	reregister();
	windows();
	imports();
	rig_down(&r);
	return wrong != 0;
}
