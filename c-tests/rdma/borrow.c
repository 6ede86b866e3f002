/* Proves: whatever part of the program's memory is registered, in whatever way, the key works for every operation, and errors are the same. */
#include <pthread.h>
#include "rdma.h"

static struct rig r;
static char data[3 * PAGE] = "data";
static char bss[3 * PAGE];
static const char text[2 * PAGE] = "read-only";

/* The key sends, receives, reads, writes and adds; from both sides. */
static void works(const char *label, char *p, size_t len, struct ibv_mr *mr)
{
	if (!mr)
		return;
	memset(p, 'a', len);
	size_t n = len < BUFFER / 2 ? len : BUFFER / 2;
	char *there = r.buf + BUFFER / 2;
	bool good = get(&r, p, mr->rkey, n) == IBV_WC_SUCCESS && all_are(r.buf, n, 'a');
	good &= put(&r, p, mr->rkey, 'b', n) == IBV_WC_SUCCESS && all_are(p, n, 'b');
	memset(there, 'c', n);
	good &= one_sided(&r, IBV_WR_RDMA_READ, p, mr->lkey, there, r.mr->rkey, n) == IBV_WC_SUCCESS &&
		all_are(p, n, 'c');
	memset(p, 'd', n);
	good &= one_sided(&r, IBV_WR_RDMA_WRITE, p, mr->lkey, there, r.mr->rkey, n) == IBV_WC_SUCCESS &&
		all_are(there, n, 'd');
	good &= message(&r, p, mr->lkey, r.buf, r.mr->lkey, n) == IBV_WC_SUCCESS && all_are(r.buf, n, 'd');
	memset(there, 'e', n);
	good &= message(&r, there, r.mr->lkey, p, mr->lkey, n) == IBV_WC_SUCCESS && all_are(p, n, 'e');
	char *eight = p + (-(uintptr_t)p & 7);
	if (HAS_ATOMICS && eight + 8 <= p + len) {
		uint64_t one = 1;
		memcpy(eight, &one, 8);
		good &= add(&r, eight, mr->rkey) == IBV_WC_SUCCESS;
		good &= one_sided(&r, IBV_WR_ATOMIC_CMP_AND_SWP, r.buf, r.mr->lkey, eight, mr->rkey, 8) ==
			IBV_WC_SUCCESS;
		memcpy(&one, eight, 8);
		good &= one == 2;
	}
	say("%s: %s", label, good ? "works" : "DOES NOT WORK");
}

static void one(const char *label, char *p, size_t len)
{
	struct ibv_mr *mr = reg(label, r.pd, p, len, ALL);
	works(label, p, len, mr);
	/* (What was given back is lent for REGALL_REVOKE_MS at the most.) */
	if (lends() && env_is("REGALL_REVOKE_MS", "off")) {
		volatile int access = ALL;
		struct ibv_mr *twin = ibv_reg_mr(r.pd, p, len, access);
		/* One region for both. */
		PROMISE(twin && mr && twin->lkey == mr->lkey && twin->rkey == mr->rkey && twin != mr);
		PROMISE(twin && ibv_dereg_mr(twin) == 0);
		/* As long as there has been no other. */
		PROMISE(twin && ibv_dereg_mr(twin) == EINVAL);
	}
	dereg(label, mr);
}

/* Registers memory after it was filled, and looks at what an adapter finds there. */
static void with_new_bytes(const char *label, char *p, size_t len, int byte)
{
	memset(p, byte, len);
	struct ibv_mr *mr = reg(label, r.pd, p, len, ALL);
	works(label, p, len, mr);
	dereg(label, mr);
}

/* Memory whose pages others may take away (ftruncate, hole punching) without a call that
 * the shim sees: what is asked for anew reaches what is there now. */
static void of_a_file(void)
{
	int fd = memory_file(8 * PAGE);
	char *file = mmap(NULL, 8 * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	NEED(file != MAP_FAILED);
	for (int i = 0; i < 3; i++) {
		with_new_bytes("file", file, 8 * PAGE, 'a' + i);
		if (i == 0)
			NEED(fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 8 * PAGE) == 0);
		else
			NEED(ftruncate(fd, 0) == 0 && ftruncate(fd, 8 * PAGE) == 0);
	}
	munmap(file, 8 * PAGE);
	close(fd);
}

/* The same of shared anonymous memory: a child takes the pages away. */
static void of_a_family(void)
{
	char *p = mmap(NULL, 8 * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	NEED(p != MAP_FAILED);
	for (int i = 0; i < 2; i++) {
		with_new_bytes("family", p, 8 * PAGE, 'a' + i);
		pid_t child = fork();
		if (child == 0)
			_exit(madvise(p, 8 * PAGE, MADV_REMOVE) != 0);
		int status = -1;
		NEED(waitpid(child, &status, 0) == child && status == 0);
	}
	munmap(p, 8 * PAGE);
}

static void everywhere(void)
{
	char *p = island(64);
	one("a page", p, PAGE);
	one("a byte", p + 5, 1);
	one("up to the end", p + 3 * PAGE + 17, 61 * PAGE - 17);
	one("all", p, 64 * PAGE);
	one("over a border", p + PAGE - 3, 7);
	with_new_bytes("data", data + 100, 2 * PAGE, 'f');
	one("bss", bss + 1, 2 * PAGE);
	char stack[3 * PAGE];
	one("stack", stack + 64, 2 * PAGE);
	char *small = malloc(100), *large = malloc(1 << 20);
	NEED(small && large);
	one("small", small, 100);
	one("large", large, 1 << 20);
	free(small);
	free(large);
	of_a_file();
	of_a_family();
	char *twice = reserve(8);
	anon_at(twice + PAGE, 2);
	anon_at(twice + 3 * PAGE, 2);
	NEED(madvise(twice + 3 * PAGE, 2 * PAGE, MADV_DONTDUMP) == 0);
	one("over two mappings", twice + 2 * PAGE, 2 * PAGE);
	munmap(twice, 8 * PAGE);
}

/* All ways of asking. */
static void calls(void)
{
	char *p = island(4);
	struct ibv_mr *mr = (ibv_reg_mr)(r.pd, p, 4 * PAGE, ALL);
	works("ibv_reg_mr", p, 4 * PAGE, mr);
	dereg("ibv_reg_mr", mr);
	mr = (ibv_reg_mr_iova)(r.pd, p, 4 * PAGE, (uintptr_t)p, ALL);
	works("ibv_reg_mr_iova", p, 4 * PAGE, mr);
	dereg("ibv_reg_mr_iova", mr);
	mr = ibv_reg_mr_iova2(r.pd, p, 4 * PAGE, (uintptr_t)p, ALL);
	works("ibv_reg_mr_iova2", p, 4 * PAGE, mr);
	dereg("ibv_reg_mr_iova2", mr);
	mr = ibv_reg_mr_iova2(r.pd, p, 4 * PAGE, (uintptr_t)p, ALL | IBV_ACCESS_RELAXED_ORDERING);
	works("relaxed", p, 4 * PAGE, mr);
	dereg("relaxed", mr);
}

/* What can't be. */
static void errors(void)
{
	char *p = island(4);
	dereg("NULL", reg("NULL", r.pd, NULL, PAGE, ALL));
	dereg("NULL of 0", reg("NULL of 0", r.pd, NULL, 0, ALL));
	dereg("length 0", reg("length 0", r.pd, p, 0, ALL));
	dereg("too long", reg("too long", r.pd, p, 5 * PAGE, ALL));
	dereg("much too long", reg("much too long", r.pd, p, SIZE_MAX / 2, ALL));
	dereg("wraps", reg("wraps", r.pd, p, SIZE_MAX - 10, ALL));
	dereg("before", reg("before", r.pd, p - 1, 2, ALL));
	dereg("nowhere", reg("nowhere", r.pd, (void *)0x7000, PAGE, ALL));
	dereg("kernel's", reg("kernel's", r.pd, (void *)0xffff800000000000, PAGE, ALL));
	dereg("unknown flag", reg("unknown flag", r.pd, p, PAGE, LW | 1 << 12));
	dereg("unknown optional flag", reg("unknown optional flag", r.pd, p, PAGE, LW | 1 << 29));
	dereg("remote write alone", reg("remote write alone", r.pd, p, PAGE, RW));
	dereg("remote atomic alone", reg("remote atomic alone", r.pd, p, PAGE, RA | RR));
	dereg("huge pages", reg("huge pages", r.pd, p, PAGE, LW | IBV_ACCESS_HUGETLB));
	dereg("text, to write", reg("text, to write", r.pd, (void *)text, PAGE, LW));
	struct ibv_mr *mr = reg("text, to read", r.pd, (void *)text, PAGE, RR);
	if (mr) {
		NEED(get(&r, (void *)text, mr->rkey, 16) == IBV_WC_SUCCESS);
		say("text: %s", r.buf);
		say("put: %s", wc(put(&r, (void *)text, mr->rkey, 'x', 1)));
	}
	dereg("text", mr);
	dereg("code", reg("code", r.pd, (void *)((uintptr_t)errors & -PAGE), PAGE, 0));
}

static void pairs(void)
{
	char *p = island(64);
	unsigned seed = 1;
	int good = 0;
	for (int i = 0; i < 10000; i++) {
		size_t at = (size_t)rand_r(&seed) % (63 * PAGE), len = 1 + (size_t)rand_r(&seed) % (64 * PAGE - at);
		volatile int access = ALL;
		struct ibv_mr *mr = ibv_reg_mr(r.pd, p + at, len, access);
		good += mr && mr->addr == p + at && mr->length == len && ibv_dereg_mr(mr) == 0;
	}
	say("%d pairs", good);
	/* More at a time than one table of the shim's holds. */
	enum { MANY = 5000 };
	static struct ibv_mr *all[MANY];
	for (int i = 0; i < MANY; i++) {
		volatile int access = ALL;
		all[i] = ibv_reg_mr(r.pd, p + i % 64 * (int)PAGE, PAGE, access);
		NEED(all[i]);
	}
	letters(p, 64, 'a');
	tell_remote("first", &r, p, all[0]->rkey, 1);
	tell_remote("last", &r, p + (MANY - 1) % 64 * PAGE, all[MANY - 1]->rkey, 1);
	good = 0;
	for (int i = 0; i < MANY; i++)
		good += ibv_dereg_mr(all[i * 7 % MANY]) == 0;
	say("%d given back", good);
}

static void *some_pairs(void *arg)
{
	char *p = arg;
	for (int i = 0; i < 1000; i++) {
		volatile int access = ALL;
		struct ibv_mr *mr = ibv_reg_mr(r.pd, p + i % 4 * (int)PAGE, PAGE, access);
		if (!mr || mr->addr != p + i % 4 * (int)PAGE || ibv_dereg_mr(mr))
			return "bad";
	}
	return NULL;
}

static void threads(void)
{
	pthread_t t[4];
	char *p = island(4);
	for (int i = 0; i < 4; i++)
		NEED(pthread_create(&t[i], NULL, some_pairs, p) == 0);
	for (int i = 0; i < 4; i++) {
		void *how;
		pthread_join(t[i], &how);
		say("thread: %s", how ? (char *)how : "ok");
	}
}

int main(void)
{
	r = rig();
	everywhere();
	calls();
	errors();
	pairs();
	threads();
	rig_down(&r);
	return wrong != 0;
}
