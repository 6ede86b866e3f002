/* Proves: a key is good for the pages it was registered for until its holder deregisters, whatever happens to the addresses. */
#include "rdma.h"

static struct rig r;

/* Memory, registered, with its letters. */
static char *p;
static struct ibv_mr *old;

static void begin(const char *name, size_t pages)
{
	say("-- %s", name);
	p = island(pages);
	letters(p, pages, 'a');
	old = reg("old", r.pd, p, pages * PAGE, ALL);
	NEED(old);
}

static void end(void)
{
	dereg("old", old);
}

static struct ibv_mr *fresh(void *at, size_t pages)
{
	struct ibv_mr *mr = reg("new", r.pd, at, pages * PAGE, ALL);
	if (mr)
		tell_remote("new", &r, at, mr->rkey, pages);
	return mr;
}

static void unmap_middle(void)
{
	begin("the middle is unmapped", 16);
	CALL_AS("munmap", munmap(p + 4 * PAGE, 8 * PAGE));
	tell_remote("old", &r, p, old->rkey, 16);
	say("put: %s", wc(put(&r, p + 4 * PAGE, old->rkey, 'P', PAGE)));
	tell_remote("old", &r, p, old->rkey, 16);
	struct ibv_mr *left = fresh(p, 4), *right = fresh(p + 12 * PAGE, 4);
	reg("over the hole", r.pd, p, 16 * PAGE, ALL);
	anon_at(p + 4 * PAGE, 8);
	letters(p + 4 * PAGE, 8, 'A');
	tell_remote("old", &r, p, old->rkey, 16);
	struct ibv_mr *all = fresh(p, 16), *hole = fresh(p + 4 * PAGE, 8);
	say("put: %s", wc(put(&r, p + 5 * PAGE, old->rkey, 'O', PAGE)));
	say("put: %s", wc(put(&r, p + 6 * PAGE, all->rkey, 'N', PAGE)));
	tell_here("here", p, 16);
	tell_remote("old", &r, p, old->rkey, 16);
	dereg("old", old);
	tell_remote("new", &r, p, all->rkey, 16);
	dereg("left", left);
	dereg("all", all);
	tell_remote("right", &r, p + 12 * PAGE, right->rkey, 4);
	tell_remote("hole", &r, p + 4 * PAGE, hole->rkey, 8);
	dereg("right", right);
	dereg("hole", hole);
	tell_here("here", p, 16);
}

static void unmap_ends(void)
{
	begin("both ends are unmapped, one page at a time", 8);
	for (int i = 0; i < 4; i++) {
		munmap(p + (size_t)i * PAGE, PAGE);
		munmap(p + (size_t)(7 - i) * PAGE, PAGE);
		tell_remote("old", &r, p, old->rkey, 8);
	}
	end();
}

static void remapped(void)
{
	begin("unmapped and mapped again at the same address", 4);
	for (int i = 0; i < 3; i++) {
		CALL_AS("munmap", munmap(p, 4 * PAGE));
		anon_at(p, 4);
		tell_here("here", p, 4);
		tell_remote("old", &r, p, old->rkey, 4);
		letters(p, 4, (char)('A' + 4 * i));
		struct ibv_mr *mr = fresh(p, 4);
		say("add through old: %s", wc(add(&r, p, old->rkey)));
		tell_remote("new", &r, p, mr->rkey, 4);
		dereg("new", mr);
	}
	end();
	begin("mapped over, without unmapping", 4);
	anon_at(p + PAGE, 2);
	tell_remote("old", &r, p, old->rkey, 4);
	struct ibv_mr *mr = fresh(p, 4);
	end();
	tell_remote("new", &r, p, mr->rkey, 4);
	dereg("new", mr);
}

static void many_lives(void)
{
	say("-- one address, fifty lives, all keys kept");
	struct ibv_mr *mr[50];
	p = island(2);
	for (int i = 0; i < 50; i++) {
		anon_at(p, 2);
		memset(p, 'A' + i, 2 * PAGE);
		volatile int access = ALL;
		mr[i] = ibv_reg_mr(r.pd, p, 2 * PAGE, access);
		NEED(mr[i]);
	}
	int good = 0;
	for (int i = 0; i < 50; i++)
		good += get(&r, p, mr[i]->rkey, 2 * PAGE) == IBV_WC_SUCCESS && all_are(r.buf, 2 * PAGE, (char)('A' + i));
	say("%d of 50 keys reach their pages", good);
	for (int i = 0; i < 50; i += 2)
		NEED(ibv_dereg_mr(mr[i]) == 0);
	good = 0;
	for (int i = 1; i < 50; i += 2)
		good += get(&r, p, mr[i]->rkey, 2 * PAGE) == IBV_WC_SUCCESS && all_are(r.buf, 2 * PAGE, (char)('A' + i));
	say("%d of 25 keys reach their pages", good);
	for (int i = 1; i < 50; i += 2)
		NEED(ibv_dereg_mr(mr[i]) == 0);
}

static void grows(void)
{
	begin("more is mapped on both sides", 4);
	letters(anon_at(p + 4 * PAGE, 4), 4, 'A');
	letters(anon_at(p - 4 * PAGE, 4), 4, 'K');
	tell_remote("old", &r, p, old->rkey, 4);
	struct ibv_mr *mr = fresh(p - 4 * PAGE, 12);
	CALL_AS("munmap", munmap(p - 4 * PAGE, 12 * PAGE));
	tell_remote("old", &r, p, old->rkey, 4);
	if (mr)
		tell_remote("new", &r, p - 4 * PAGE, mr->rkey, 12);
	end();
	dereg("new", mr);

	begin("page after page is added", 1);
	for (size_t i = 1; i < 12; i++) {
		memset(anon_at(p + i * PAGE, 1), 'A' + (int)i, PAGE);
		mr = fresh(p, i + 1);
		dereg("new", mr);
	}
	tell_remote("old", &r, p, old->rkey, 1);
	end();
}

static void moved(void)
{
	begin("mremap to another address", 4);
	char *place = reserve(8);
	char *q = mremap(p, 4 * PAGE, 4 * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, place);
	told("mremap", q == place);
	tell_remote("old", &r, p, old->rkey, 4);
	struct ibv_mr *mr = fresh(q, 4);
	memset(q, 'Q', PAGE);
	say("put: %s", wc(put(&r, p + PAGE, old->rkey, 'O', PAGE)));
	tell_here("here", q, 4);
	tell_remote("old", &r, p, old->rkey, 4);
	letters(anon_at(p, 4), 4, 'A');
	struct ibv_mr *third = fresh(p, 4);
	tell_remote("old", &r, p, old->rkey, 4);
	end();
	tell_remote("new", &r, q, mr->rkey, 4);
	tell_remote("third", &r, p, third->rkey, 4);
	dereg("new", mr);
	dereg("third", third);

	begin("mremap grows and shrinks in place", 8);
	CALL_AS("room", munmap(p + 8 * PAGE, 16 * PAGE));
	told("grow", mremap(p, 8 * PAGE, 12 * PAGE, 0) == p);
	letters(p + 8 * PAGE, 4, 'A');
	tell_remote("old", &r, p, old->rkey, 8);
	mr = fresh(p, 12);
	told("shrink", mremap(p, 12 * PAGE, 2 * PAGE, 0) == p);
	tell_remote("old", &r, p, old->rkey, 8);
	tell_remote("new", &r, p, mr->rkey, 12);
	reg("beyond", r.pd, p, 12 * PAGE, ALL);
	end();
	dereg("new", mr);

	begin("mremap moves the middle away", 6);
	q = mremap(p + 2 * PAGE, 2 * PAGE, 2 * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, place + 4 * PAGE);
	told("mremap", q == place + 4 * PAGE);
	tell_remote("old", &r, p, old->rkey, 6);
	mr = fresh(q, 2);
	memset(q, 'Z', 2 * PAGE);
	tell_remote("old", &r, p, old->rkey, 6);
	end();
	dereg("new", mr);

	begin("mremap keeps the old mapping, empty (MREMAP_DONTUNMAP)", 4);
	q = mremap(p, 4 * PAGE, 4 * PAGE, MREMAP_MAYMOVE | MREMAP_DONTUNMAP, NULL);
	told("mremap", q != MAP_FAILED);
	tell_remote("old", &r, p, old->rkey, 4);
	mr = fresh(p, 4);
	struct ibv_mr *there = fresh(q, 4);
	end();
	dereg("new", mr);
	dereg("there", there);
}

static void protected(void)
{
	begin("mprotect: read-only in the middle", 8);
	CALL_AS("read-only", mprotect(p + 2 * PAGE, 4 * PAGE, PROT_READ));
	tell_remote("old", &r, p, old->rkey, 8);
	say("put: %s", wc(put(&r, p + 2 * PAGE, old->rkey, 'P', PAGE)));
	tell_here("here", p, 8);
	reg("all, to write", r.pd, p, 8 * PAGE, ALL);
	reg("middle, to write", r.pd, p + 2 * PAGE, 4 * PAGE, ALL);
	struct ibv_mr *ro = reg("middle, to read", r.pd, p + 2 * PAGE, 4 * PAGE, RR);
	if (ro) {
		tell_remote("middle", &r, p + 2 * PAGE, ro->rkey, 4);
		say("put: %s", wc(put(&r, p + 2 * PAGE, ro->rkey, 'X', PAGE)));
	}
	struct ibv_mr *side = fresh(p + 6 * PAGE, 2);
	CALL_AS("read-write", mprotect(p + 2 * PAGE, 4 * PAGE, PROT_READ | PROT_WRITE));
	memset(p + 3 * PAGE, 'W', PAGE);
	tell_remote("old", &r, p, old->rkey, 8);
	if (ro)
		tell_remote("middle", &r, p + 2 * PAGE, ro->rkey, 4);
	struct ibv_mr *mr = fresh(p, 8);
	end();
	dereg("middle", ro);
	dereg("side", side);
	dereg("new", mr);

	begin("mprotect: nothing allowed", 8);
	CALL_AS("none", mprotect(p + 2 * PAGE, 4 * PAGE, PROT_NONE));
	tell_remote("old", &r, p, old->rkey, 8);
	say("put: %s", wc(put(&r, p + 2 * PAGE, old->rkey, 'P', PAGE)));
	reg("all", r.pd, p, 8 * PAGE, ALL);
	CALL_AS("read-write", mprotect(p + 2 * PAGE, 4 * PAGE, PROT_READ | PROT_WRITE));
	tell_here("here", p, 8);
	mr = fresh(p, 8);
	memset(p + 4 * PAGE, 'W', PAGE);
	tell_remote("old", &r, p, old->rkey, 8);
	end();
	tell_remote("new", &r, p, mr->rkey, 8);
	dereg("new", mr);
}

static void thrown_away(int advice, const char *name)
{
	begin(name, 8);
	CALL_AS("madvise", madvise(p + 2 * PAGE, 4 * PAGE, advice));
	tell_here("here", p, 8);
	tell_remote("old", &r, p, old->rkey, 8);
	struct ibv_mr *mr = fresh(p, 8);
	letters(p + 3 * PAGE, 2, 'A');
	tell_remote("old", &r, p, old->rkey, 8);
	tell_remote("new", &r, p, mr->rkey, 8);
	CALL_AS("madvise", madvise(p, 8 * PAGE, advice));
	memset(p, 'Y', 8 * PAGE);
	tell_remote("old", &r, p, old->rkey, 8);
	tell_remote("new", &r, p, mr->rkey, 8);
	struct ibv_mr *third = fresh(p, 8);
	end();
	dereg("third", third);
	tell_remote("new", &r, p, mr->rkey, 8);
	dereg("new", mr);
}

static void shared(void)
{
	say("-- a file in memory, mapped twice");
	int fd = memory_file(8 * PAGE);
	char *other = mmap(NULL, 8 * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	p = mmap(reserve(8), 8 * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0);
	NEED(other != MAP_FAILED && p != MAP_FAILED);
	letters(p, 8, 'a');
	old = reg("old", r.pd, p, 8 * PAGE, ALL);
	CALL_AS("munmap", munmap(p, 8 * PAGE));
	memset(other + PAGE, 'O', PAGE);
	tell_remote("old", &r, p, old->rkey, 8);
	say("put: %s", wc(put(&r, p, old->rkey, 'P', PAGE)));
	tell_here("other", other, 8);
	letters(anon_at(p, 8), 8, 'A');
	tell_remote("old", &r, p, old->rkey, 8);
	struct ibv_mr *mr = fresh(p, 8);
	dereg("new", mr);
	mr = fresh(other, 8);
	CALL_AS("MADV_REMOVE", madvise(other + 2 * PAGE, 2 * PAGE, MADV_REMOVE));
	tell_here("other", other, 8);
	tell_remote("new", &r, other, mr->rkey, 8);
	struct ibv_mr *third = fresh(other, 8);
	CALL_AS("truncate", ftruncate(fd, 4 * PAGE));
	tell_remote("old", &r, p, old->rkey, 8);
	tell_remote("third", &r, other, third->rkey, 8);
	end();
	dereg("new", mr);
	dereg("third", third);
	munmap(other, 8 * PAGE);
	close(fd);
}

static void heap(void)
{
	say("-- the break goes up and down");
	char *base = sbrk(0);
	base += -(uintptr_t)base % PAGE;
	NEED(brk(base + 8 * PAGE) == 0);
	letters(base, 8, 'a');
	p = base;
	old = reg("old", r.pd, p, 8 * PAGE, ALL);
	CALL_AS("down", brk(base + 2 * PAGE));
	tell_remote("old", &r, p, old->rkey, 8);
	CALL_AS("up", brk(base + 12 * PAGE));
	tell_here("here", p, 12);
	struct ibv_mr *mr = fresh(p, 12);
	letters(p + 2 * PAGE, 10, 'A');
	tell_remote("old", &r, p, old->rkey, 8);
	tell_remote("new", &r, p, mr->rkey, 12);
	CALL_AS("down", brk(base));
	end();
	dereg("new", mr);
}

static void many_mappings(void)
{
	say("-- one request over three kinds of memory");
	int fd = memory_file(4 * PAGE);
	p = island(12);
	NEED(mmap(p + 4 * PAGE, 4 * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0) != MAP_FAILED);
	letters(p, 12, 'a');
	old = reg("old", r.pd, p, 12 * PAGE, ALL);
	CALL_AS("munmap", munmap(p + 4 * PAGE, 4 * PAGE));
	tell_remote("old", &r, p, old->rkey, 12);
	anon_at(p + 4 * PAGE, 4);
	struct ibv_mr *mr = fresh(p, 12);
	tell_remote("old", &r, p, old->rkey, 12);
	end();
	dereg("new", mr);
	close(fd);
}

static void child_and_parent(void)
{
	begin("fork: both write afterwards", 4);
	int go[2];
	NEED(pipe(go) == 0);
	pid_t pid = fork();
	NEED(pid >= 0);
	if (pid == 0) {
		char c;
		NEED(read(go[0], &c, 1) == 1);
		tell_here("child", p, 4);
		memset(p, 'C', 4 * PAGE);
		_exit(0);
	}
	memset(p + PAGE, 'P', PAGE);
	say("put: %s", wc(put(&r, p + 2 * PAGE, old->rkey, 'Q', PAGE)));
	NEED(write(go[1], "", 1) == 1);
	reap("child", pid);
	memset(p + 3 * PAGE, 'R', PAGE);
	tell_here("here", p, 4);
	tell_remote("old", &r, p, old->rkey, 4);
	struct ibv_mr *mr = fresh(p, 4);
	end();
	dereg("new", mr);
	close(go[0]);
	close(go[1]);
}

/* Longer than any one region of the shim's. */
static void large(void)
{
	say("-- more than a region may be");
	size_t pages = (130ul << 20) / PAGE;
	p = island(pages);
	for (size_t i = 0; i < pages; i++)
		p[i * PAGE] = (char)('a' + i % 26);
	old = reg("old", r.pd, p, pages * PAGE, ALL);
	struct ibv_mr *mr = reg("some", r.pd, p + PAGE, 8 * PAGE, ALL);
	size_t mid = (64ul << 20) / PAGE;
	struct ibv_mr *across = reg("across", r.pd, p + (mid - 20) * PAGE, 40 * PAGE, ALL);
	CALL_AS("munmap", munmap(p + (mid - 2) * PAGE, 4 * PAGE));
	int good = 0;
	for (size_t at = 0; at < pages; at += 64) {
		size_t n = pages - at < 64 ? pages - at : 64;
		if (get(&r, p + at * PAGE, old->rkey, n * PAGE) != IBV_WC_SUCCESS)
			continue;
		good++;
		for (size_t i = 0; i < n; i++)
			if (r.buf[i * PAGE] != (char)('a' + (at + i) % 26)) {
				good--;
				break;
			}
	}
	say("%d stretches are right", good);
	NEED(get(&r, p + (mid - 20) * PAGE, across->rkey, 40 * PAGE) == IBV_WC_SUCCESS);
	good = 0;
	for (size_t i = 0; i < 40; i++)
		good += r.buf[i * PAGE] == (char)('a' + (mid - 20 + i) % 26);
	say("%d pages across are right", good);
	end();
	munmap(p, pages * PAGE);
	NEED(get(&r, p + PAGE, mr->rkey, 8 * PAGE) == IBV_WC_SUCCESS);
	say("some: %c", r.buf[0]);
	dereg("some", mr);
	dereg("across", across);
}

int main(void)
{
	r = rig();
	unmap_middle();
	unmap_ends();
	remapped();
	many_lives();
	grows();
	moved();
	protected();
	thrown_away(MADV_DONTNEED, "MADV_DONTNEED");
	shared();
	heap();
	many_mappings();
	child_and_parent();
	large();
	rig_down(&r);
	return wrong != 0;
}
