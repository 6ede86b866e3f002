/* Proves: every setting of the shim that is about adapters does what it says, and none is seen by the program. */
#include "rdma.h"

static struct rig r;
/* The kernel has on-demand paging. Soft-RoCE's (7.2) reads right and writes wrong, with
 * libibverbs alone, too: then nothing is written through such keys here, and the buffer
 * is registered for itself, which other addresses than its own make sure of. */
static bool on, on_demand;
static __typeof__(regall_lookup) *lookup;
static __typeof__(regall_register_all) *register_all;

static const char *set(const char *name, const char *otherwise)
{
	const char *value = getenv(name);
	return value ? value : otherwise;
}

/* What the command line says of this process; `what` is dump or the like. */
static char *regall(const char *what)
{
	static char text[1 << 20];
	char command[512], *library = strdup(getenv("LD_PRELOAD"));
	*strrchr(library, '/') = 0;
	snprintf(command, sizeof command, "env -u LD_PRELOAD -u REGALL %s/regall %s %d 2>&1", library, what, getpid());
	free(library);
	FILE *f = popen(command, "r");
	NEED(f);
	size_t n = fread(text, 1, sizeof text - 1, f);
	text[n] = 0;
	pclose(f);
	return text;
}

/* The line of a dump that holds the address; the HCA column is its last word. */
static const char *hca_of(const char *dump, const void *p)
{
	static char line[512];
	for (const char *at = dump; at && *at; at = strchr(at, '\n'), at += at != NULL) {
		unsigned long start, end;
		if (sscanf(at, "%lx-%lx ", &start, &end) == 2 && (uintptr_t)p >= start && (uintptr_t)p < end) {
			snprintf(line, sizeof line, "%.*s", (int)strcspn(at, "\n"), at);
			return strrchr(line, ' ') + 1;
		}
	}
	return "not there";
}

#define IS_HCA(dump, p, word)                                                                      \
	do {                                                                                       \
		const char *is_ = hca_of(dump, p);                                                 \
		if (strcmp(is_, word)) {                                                           \
			say("line %d: %s is %s, not %s", __LINE__, #p, is_, word);                 \
			wrong++;                                                                   \
		}                                                                                  \
	} while (0)

/* The keys that can be looked up work, and allow what REGALL_ACCESS says. */
static void look_up(char *p, size_t pages)
{
	const char *access = set("REGALL_ACCESS", "local");
	bool may_read = strcmp(access, "local") != 0;
	bool may_write = may_read && strcmp(access, "remote-read") != 0;
	bool may_add = strcmp(access, "remote-atomic") == 0;
	struct regall_range range;
	PROMISE(lookup(r.pd, p, pages * PAGE, &range) == 0);
	PROMISE(range.lkey != 0 && range.held & REGALL_HELD_HCA);
	letters(p, pages, 'a');
	memset(r.buf, '!', pages * PAGE);
	if (on_demand) {
		PROMISE((get(&r, p, range.rkey, pages * PAGE) == IBV_WC_SUCCESS) == (may_read));
		if (may_read)
			PROMISE(memcmp(p, r.buf, pages * PAGE) == 0);
		return;
	}
	/* By the local key. */
	PROMISE(one_sided(&r, IBV_WR_RDMA_WRITE, p, range.lkey, r.buf, r.mr->rkey, pages * PAGE) == IBV_WC_SUCCESS);
	PROMISE(memcmp(p, r.buf, pages * PAGE) == 0);
	memset(r.buf, 'z', PAGE);
	PROMISE(message(&r, r.buf, r.mr->lkey, p, range.lkey, PAGE) == IBV_WC_SUCCESS && all_are(p, PAGE, 'z'));
	/* By the remote one. */
	PROMISE((get(&r, p, range.rkey, PAGE) == IBV_WC_SUCCESS) == (may_read));
	PROMISE((put(&r, p, range.rkey, 'y', PAGE) == IBV_WC_SUCCESS) == (may_write));
	PROMISE(all_are(p, PAGE, may_write ? 'y' : 'z'));
	PROMISE((add(&r, p, range.rkey) == IBV_WC_SUCCESS) == (may_add));
}

/* Everything is registered in a protection domain in which nothing was. */
static void all_of_it(void)
{
	int off = strcmp(set("REGALL_HCA", "adopt"), "off") == 0 ? -EOPNOTSUPP : 0;
	struct rig s = r;
	s.pd = ibv_alloc_pd(r.ctx);
	NEED(s.pd);
	PROMISE(register_all(NULL) == -EINVAL);
	PROMISE(register_all(s.pd) == off);
	PROMISE(register_all(s.pd) == off);
	char *p = island(4);
	if (!off && !getenv("REGALL_LIMIT")) {
		make_pair(&s);
		s.mr = ibv_reg_mr_iova2(s.pd, s.buf, BUFFER, (uintptr_t)s.buf + s.shift, ALL);
		NEED(s.mr);
		struct rig outer = r;
		r = s;
		look_up(p, 4);
		/* The pages are others, and so are the keys. */
		anon_at(p + PAGE, 2);
		look_up(p + PAGE, 2);
		struct regall_range range;
		munmap(p, PAGE);
		PROMISE(lookup(s.pd, p, PAGE, &range) == -ENOENT);
		/* After a refused operation it may be another connection. */
		s = r;
		r = outer;
		drop_pair(&s);
		NEED(ibv_dereg_mr(s.mr) == 0);
	}
	PROMISE(ibv_dealloc_pd(s.pd) == 0);
	struct regall_range range;
	PROMISE(lookup(s.pd, p + PAGE, PAGE, &range) == 0 && range.lkey == 0);
}

static void with_the_shim(char *p, struct ibv_mr *mr)
{
	const char *hca = set("REGALL_HCA", "adopt");
	bool off = strcmp(hca, "off") == 0, own = !off && strcmp(hca, "adopt") != 0;
	bool exact = env_is("REGALL_KEYS", "exact"), data = env_is("REGALL_SCOPE", "data");
	bool odp = env_is("REGALL_HCA_MODE", "odp");
	struct regall_range range;
	char *dump = regall("dump");
	if (strncmp(dump, "# regall 1 pid ", 15)) {
		say("dump: %.400s", dump);
		wrong++;
	}
	if (off) {
		IS_HCA(dump, p, "off");
		PROMISE(lookup(r.pd, p, PAGE, &range) == 0 && range.lkey == 0 && range.rkey == 0);
		PROMISE(status_of("VmPin") * 1024 <= (long)(BUFFER + 8 * PAGE));
	} else if (getenv("REGALL_LIMIT") && !odp) {
		PROMISE(strstr(dump, " limit") != NULL);
	} else {
		IS_HCA(dump, p, "yes");
		IS_HCA(dump, &wrong, "yes");
		IS_HCA(dump, (char *)with_the_shim, data ? "scope" : "yes");
		/* What the program registers for peers is taken back when it is deregistered, so
		 * it is not looked up, but where nothing of it is lent or more. */
		bool stays = exact || env_is("REGALL_ACCESS", "remote-atomic");
		PROMISE(lookup(r.pd, p, PAGE, &range) == 0 && (range.lkey != 0) == stays);
		PROMISE((range.lkey == mr->lkey) == (stays && !exact));
		if (!stays)
			PROMISE(register_all(r.pd) == 0);
		PROMISE(lookup(r.pd, p, PAGE, &range) == 0 && range.lkey != 0);
		if (!stays)
			PROMISE(range.lkey != mr->lkey);
		char *fresh = island(8);
		look_up(fresh, 8);
		if (own) {
			PROMISE(lookup(NULL, p, PAGE, &range) == 0 && range.lkey != 0);
			struct regall_range adopted;
			PROMISE(lookup(r.pd, p, PAGE, &adopted) == 0 && adopted.lkey != range.lkey);
		} else {
			PROMISE(lookup(NULL, p, PAGE, &range) == 0 && range.lkey == 0);
		}
	}
	if (odp && on_demand) {
		PROMISE(status_of("VmPin") * 1024 == BUFFER);
		char *none = reserve(4);
		dump = regall("dump");
		IS_HCA(dump, none, "yes");
	}
	all_of_it();
	/* The end of a key that is as long as asked for. */
	if (exact || off)
		PROMISE(get(&r, p + 8 * PAGE, mr->rkey, 8) != IBV_WC_SUCCESS);
}

int main(void)
{
	on = shimmed();
	on_demand = env_is("ON_DEMAND", "1");
	lookup = (__typeof__(lookup))dlsym(RTLD_DEFAULT, "regall_lookup");
	register_all = (__typeof__(register_all))dlsym(RTLD_DEFAULT, "regall_register_all");
	r = rig();
	struct ibv_mr *at_rest = r.mr;
	if (on_demand) {
		r.mr = ibv_reg_mr_iova2(r.pd, r.buf, BUFFER, 1ul << 40, ALL);
		NEED(r.mr);
		r.shift = (1ul << 40) - (uintptr_t)r.buf;
	}
	char *p = island(16);
	letters(p, 16, 'a');
	struct ibv_mr *mr = reg("mr", r.pd, p, 8 * PAGE, ALL);
	tell_remote("mr", &r, p, mr->rkey, 8);
	if (!on_demand) {
		say("put: %s", wc(put(&r, p, mr->rkey, 'P', PAGE)));
		say("add: %s", wc(add(&r, p + PAGE, mr->rkey)));
	}
	tell_here("here", p, 16);
	memset(anon_at(p + 2 * PAGE, 2), 'N', PAGE);
	/* On demand it is what is there now. */
	if (!on_demand)
		tell_remote("mr", &r, p, mr->rkey, 8);
	dereg("mr", mr);
	mr = reg("mr", r.pd, p, 8 * PAGE, ALL);
	tell_remote("mr", &r, p, mr->rkey, 8);
	if (on)
		with_the_shim(p, mr);
	dereg("mr", mr);
	if (on_demand) {
		NEED(ibv_dereg_mr(r.mr) == 0);
		r.mr = at_rest;
	}
	rig_down(&r);
	if (on && !getenv("REGALL_LIMIT") && (!getenv("REGALL_HCA") || !strncmp(getenv("REGALL_HCA"), "a", 1)))
		PROMISE(status_of("VmPin") == 0);
	return wrong != 0;
}
