/* Proves: a key allows what it was asked for, whatever else was asked for in its protection domain. */
#include "rdma.h"

static const struct {
	int bits;
	const char *name;
} kinds[] = {
	{ LW, "local" },
	{ LW | RR, "read" },
	{ LW | RW, "write" },
	{ LW | RA, "atomic" },
	{ LW | RR | RW, "read-write" },
	{ ALL, "all" },
	{ ALL | IBV_ACCESS_RELAXED_ORDERING, "relaxed" },
	{ LW | RR | IBV_ACCESS_RELAXED_ORDERING, "relaxed read" },
	{ 0, "nothing" },
	{ RR, "read only" },
};
enum { KINDS = sizeof kinds / sizeof *kinds };

static const char *yes(enum ibv_wc_status status)
{
	return status == IBV_WC_SUCCESS ? "yes" : wc(status);
}

static void try(struct rig *r, char *p, int kind)
{
	char label[64];
	snprintf(label, sizeof label, "  %s", kinds[kind].name);
	struct ibv_mr *mr = reg(label, r->pd, p, PAGE, kinds[kind].bits);
	if (!mr)
		return;
	say("  %s: get %s, put %s, add %s, send %s", kinds[kind].name, yes(get(r, p, mr->rkey, 64)),
	    yes(put(r, p, mr->rkey, 'p', 64)), yes(add(r, p, mr->rkey)),
	    yes(message(r, p, mr->lkey, r->buf, r->mr->lkey, 64)));
	/* What a program may not receive into it does not try to: the shim's region is
	 * one for what can be received into. */
	if (kinds[kind].bits & LW)
		say("  %s: receive %s", kinds[kind].name, yes(message(r, r->buf, r->mr->lkey, p, mr->lkey, 64)));
	dereg(label, mr);
}

int main(void)
{
	char *p = island(2), *ro = island(1);
	memset(ro, 'r', PAGE);
	NEED(mprotect(ro, PAGE, PROT_READ) == 0);
	for (int first = 0; first < KINDS; first++) {
		if (!(kinds[first].bits & LW))
			continue;
		say("first %s", kinds[first].name);
		struct rig r = rig_with(ADAPTER("0"), kinds[first].bits);
		for (int i = 0; i < KINDS; i++)
			try(&r, p, (first + i) % KINDS);
		say("read-only memory");
		for (int i = 0; i < KINDS; i++) {
			struct ibv_mr *mr = reg(kinds[i].name, r.pd, ro, PAGE, kinds[i].bits);
			if (mr)
				say("get %s, put %s", yes(get(&r, ro, mr->rkey, 64)), yes(put(&r, ro, mr->rkey, 'p', 64)));
			dereg(kinds[i].name, mr);
		}
		rig_down(&r);
	}
	return wrong != 0;
}
