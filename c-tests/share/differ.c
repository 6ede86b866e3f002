/* Proves: private anonymous memory stays what it is under any sequence of memory calls, forks and accesses. */
/*
 * differ [-v] [-k] [-f] [-o WORD] [STEPS [SEED]]
 *
 * Makes STEPS memory calls and accesses, drawn from SEED, and checks every byte against its
 * own model of what must be there, and errors where the manual says which. Prints a digest
 * of every result, errno and byte now and then, which the shim must not change: the same
 * steps and seed give the same output wherever the kernel puts what may lie anywhere.
 *
 *   -v       a line a step, to find where two runs part
 *   -k       goes on after what is wrong, and says each kind of it once
 *   -f       also writes through /proc/self/mem into memory that is not writable
 *   -o WORD  of mremap, madvise, brk, heap and fork only WORD
 *
 * differ -r FORKS: forks while a thread writes two counters, a before b: a child has to see
 * one moment, a == b or a == b + 1.
 */
#include <linux/sched.h>
#include <malloc.h>
#include <pthread.h>
#include <sys/uio.h>
#include "model.h"

#define SOURCE (256ul << 10)
#define MOST_WRITTEN 3072ul /* pages */
#define MOST_LOCKED 512ul

static char source[SOURCE];
static int source_fd;
static bool force;

static const char *some_source(size_t n)
{
	return source + below(SOURCE - n);
}

static struct lane *some_lane(int kinds)
{
	for (int k = 0; k < 40; k++) {
		struct lane *l = &lanes[below(LANES)];
		if (l->kind & kinds && l->pages > 0)
			return l;
	}
	return &lanes[SLOTS]; /* a zone, which will always do */
}

static char name_of(const struct lane *l)
{
	return (char)('A' + (l - lanes));
}

/* A page of a lane that is `good`, or LANE_PAGES. */
static size_t some_page(const struct lane *l, bool (*good)(const struct lane *, size_t))
{
	for (int k = 0; k < 12; k++) {
		size_t i = below(l->pages);
		if (good(l, i))
			return i;
	}
	return LANE_PAGES;
}

static bool is_mapped(const struct lane *l, size_t page)
{
	return is(l, page, MAPPED);
}

static bool is_plain(const struct lane *l, size_t page)
{
	return writable(l, page) && !is(l, page, UNKNOWN);
}

static bool is_inherited(const struct lane *l, size_t page)
{
	return is_plain(l, page) && !is(l, page, WIPE | NOFORK);
}

/* How many pages from `from` on are as good, at most `most`. */
static size_t run(const struct lane *l, size_t from, size_t most, bool (*good)(const struct lane *, size_t))
{
	size_t n = 0;
	while (n < most && from + n < l->pages && good(l, from + n))
		n++;
	return n;
}

/* Pages from `from` on that are in one mapping for sure. */
static size_t run_of_part(const struct lane *l, size_t from, size_t most)
{
	size_t n = 1;
	while (n < most && from + n < l->pages && l->page[from + n].part == l->page[from].part)
		n++;
	return n;
}

static size_t count(const struct lane *l, size_t from, size_t n, int state)
{
	size_t c = 0;
	for (size_t i = from; i < from + n; i++)
		c += is(l, i, state);
	return c;
}

static void nothing(void)
{
	describe("nothing");
	result(0);
}

/* -- mapping and unmapping ------------------------------------------------------------- */

static size_t some_size(void)
{
	return once_in(2) ? 32 + below(480) : about(LANE_PAGES);
}

static int some_prot(void)
{
	static const int prots[] = { PROT_NONE, PROT_READ, PROT_READ | PROT_EXEC, PROT_READ | PROT_WRITE | PROT_EXEC };
	return once_in(4) ? prots[below(4)] : PROT_READ | PROT_WRITE;
}

static int some_flags(void)
{
	static const int flags[] = { 0, 0, 0, 0, MAP_NORESERVE, MAP_POPULATE, MAP_STACK, MAP_NORESERVE | MAP_POPULATE };
	return MAP_PRIVATE | MAP_ANONYMOUS | flags[below(8)];
}

static void unmap(struct lane *l, size_t from, size_t n);

static void op_map(void)
{
	struct lane *l = free_slot();
	if (!l) {
		l = &lanes[below(SLOTS)];
		if (l->kind == SLOT)
			unmap(l, 0, l->pages);
		else
			nothing();
		return;
	}
	size_t n = some_size();
	int prot = some_prot(), flags = some_flags();
	/* Where there is something already, nowhere in particular, or between pages. */
	void *hints[] = { NULL, NULL, NULL, lanes[below(SLOTS)].base, (void *)(0x7000dead0000ul + below(PAGE)) };
	int hint = (int)below(5), fd = once_in(4) ? 12345 : -1;
	off_t offset = once_in(4) ? (off_t)(below(1000) * PAGE) : 0;
	size_t bytes = n * PAGE - (once_in(3) ? below(PAGE) : 0);
	describe("mmap %c %zu prot %d flags %x hint %d fd %d", name_of(l), bytes, prot, flags, hint, fd);
	char *p = mmap(hints[hint], bytes, prot, flags, fd, offset);
	if (!as_wanted("mmap", 0, address(p)))
		return;
	begin(l, SLOT, p, n * PAGE);
	fresh(l, 0, n, prot, FRESH);
	if (once_in(4))
		look_over(l, 0, n);
}

static void op_map_fixed(void)
{
	struct lane *l = some_lane(ZONE | SLOT);
	size_t from = below(l->pages), n = some_size();
	if (n > l->pages - from)
		n = l->pages - from;
	if (once_in(4)) {
		describe("mmap NOREPLACE %c %zu+%zu", name_of(l), from, n);
		bool taken = count(l, from, n, MAPPED) > 0;
		char *p = mmap(at(l, from), n * PAGE, PROT_READ | PROT_WRITE,
			       MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
		if (!as_wanted("MAP_FIXED_NOREPLACE", taken ? EEXIST : 0, address(p)))
			return;
		fresh(l, from, n, PROT_READ | PROT_WRITE, FRESH);
		return;
	}
	int prot = some_prot(), flags = some_flags() | MAP_FIXED;
	describe("mmap FIXED %c %zu+%zu prot %d flags %x", name_of(l), from, n, prot, flags);
	char *p = mmap(at(l, from), n * PAGE, prot, flags, -1, 0);
	if (!as_wanted("MAP_FIXED", 0, address(p)))
		return;
	if (p != at(l, from))
		find("MAP_FIXED elsewhere");
	cut_out(l, from, n);
	fresh(l, from, n, prot, FRESH);
	look_over(l, from, n);
}

static void unmap(struct lane *l, size_t from, size_t n)
{
	describe("munmap %c %zu+%zu of %zu", name_of(l), from, n, l->pages);
	look_over(l, from, n);
	if (as_wanted("munmap", 0, munmap(at(l, from), n * PAGE - (once_in(3) ? below(PAGE) : 0))))
		without(l, from, n);
}

static void op_unmap(void)
{
	struct lane *l = some_lane(SLOT | ZONE);
	size_t from = 0, n = l->pages;
	switch (below(4)) {
	case 0: n = about(l->pages); break;
	case 1: from = below(l->pages); n = l->pages - from; break;
	case 2:
		if (free_slots() > 0) {
			from = below(l->pages);
			n = about(l->pages - from);
		}
	}
	if (l->kind == SLOT || n < l->pages)
		unmap(l, from, n);
	else
		nothing();
}

/* -- mremap ---------------------------------------------------------------------------- */

static void shrink(struct lane *l)
{
	size_t from = l->pages - 1;
	while (from > 0 && l->page[from - 1].part == l->page[from].part)
		from--;
	if (!is(l, from, MAPPED) || l->pages - from < 2) {
		nothing();
		return;
	}
	size_t old = l->pages - from, new = 1 + below(old - 1);
	describe("mremap shrinks %c %zu+%zu to %zu", name_of(l), from, old, new);
	char *p = mremap(at(l, from), old * PAGE, new * PAGE, once_in(2) ? MREMAP_MAYMOVE : 0);
	if (!as_wanted("mremap that shrinks", 0, address(p)))
		return;
	if (p != at(l, from))
		find("mremap moves what shrinks");
	without(l, from + new, old - new);
	look_over(l, from, new);
}

static void grow(struct lane *l)
{
	size_t old = l->pages, new = old + about(LANE_PAGES - old + 1);
	if (l->kind != SLOT || !is(l, 0, MAPPED) || run_of_part(l, 0, old) < old || new > LANE_PAGES) {
		nothing();
		return;
	}
	struct page as = l->page[0];
	describe("mremap grows %c %zu to %zu", name_of(l), old, new);
	char *p = mremap(l->base, old * PAGE, new * PAGE, MREMAP_MAYMOVE);
	if (!as_wanted("mremap that grows", 0, address(p)))
		return;
	l->base = p;
	l->pages = new;
	l->bytes = new * PAGE;
	grown_like(l, old, new - old, as);
	look_over(l, 0, new);
}

/* In a zone it is known what is behind. */
static void grow_in_place(struct lane *l)
{
	size_t from = some_page(l, is_mapped);
	if (l->kind != ZONE || from == LANE_PAGES) {
		nothing();
		return;
	}
	size_t old = run_of_part(l, from, LANE_PAGES), end = from + old, more = about(256);
	if (end + more > l->pages) {
		nothing();
		return;
	}
	struct page as = l->page[from];
	bool taken = count(l, end, more, MAPPED) > 0;
	describe("mremap grows %c %zu+%zu by %zu in place", name_of(l), from, old, more);
	char *p = mremap(at(l, from), old * PAGE, (old + more) * PAGE, 0);
	if (!as_wanted(taken ? "mremap without room" : "mremap in place", taken ? ENOMEM : 0, address(p)))
		return;
	grown_like(l, end, more, as);
	look_over(l, from, old + more);
}

static bool apart(const struct lane *a, size_t i, size_t n, const struct lane *b, size_t j, size_t m)
{
	return a != b || i + n <= j || j + m <= i;
}

/* To a fixed place in a zone, growing or shrinking on the way; or anywhere, leaving zeros. */
static void move(struct lane *l)
{
	struct lane *to = &lanes[SLOTS + below(ZONES)];
	size_t from = some_page(l, is_mapped);
	if (from == LANE_PAGES || free_slots() < 2) {
		nothing();
		return;
	}
	size_t n = about(run_of_part(l, from, LANE_PAGES)), there = below(to->pages);
	bool fixed = !once_in(3), leave = !fixed || once_in(3);
	size_t new = leave || once_in(2) ? n : about(LANE_PAGES);
	/* The kernel would unlock the whole mapping that this is a part of. */
	if (leave && is(l, from, LOCKED)) {
		nothing();
		return;
	}
	if (!fixed)
		there = 0;
	else if (there + new > to->pages)
		there = to->pages - new;
	bool clash = fixed && !apart(l, from, n, to, there, new);
	int flags = MREMAP_MAYMOVE | (fixed ? MREMAP_FIXED : 0) | (leave ? MREMAP_DONTUNMAP : 0);
	struct page as = l->page[from];
	describe("mremap %c %zu+%zu to %s %c %zu+%zu flags %x", name_of(l), from, n, fixed ? "" : "anywhere for",
		 name_of(to), there, new, flags);
	/* MREMAP_DONTUNMAP alone takes the address for a hint. */
	char *p = mremap(at(l, from), n * PAGE, new * PAGE, flags, fixed ? at(to, there) : NULL);
	if (!as_wanted(clash ? "mremap onto itself" : leave ? "MREMAP_DONTUNMAP" : "MREMAP_FIXED", clash ? EINVAL : 0,
		       address(p)))
		return;
	if (fixed && p != at(to, there))
		find("MREMAP_FIXED elsewhere");
	carry(&lanes[HAND], 0, l, from, n < new ? n : new);
	if (leave) {
		cut_out(l, from, n);
		for (size_t i = from; i < from + n; i++) {
			l->page[i].state &= (unsigned char)~(LOCKED | GUARD);
			zero(l, i, LEFT);
		}
		if (count(l, from, n, MAPPED) < n)
			find("the model is wrong");
	} else {
		without(l, from, n);
	}
	if (!fixed) {
		to = free_slot();
		begin(to, SLOT, p, new * PAGE);
	}
	cut_out(to, there, new);
	grown_like(to, there, new, as);
	put_down(to, there, n < new ? n : new);
	for (size_t i = there; i < there + (n < new ? n : new); i++)
		if (is(to, i, ZERO))
			to->page[i].why = MOVED;
	/* Not fixed: whatever lies beside it, it is one mapping. */
	for (size_t i = there; i < there + new; i++)
		to->page[i].part = to->page[there].part;
	look_over(to, there, new);
}

/* An old size of 0 is for shared memory: it makes a second mapping of it. */
static void duplicate(struct lane *l)
{
	size_t from = some_page(l, is_mapped);
	if (from == LANE_PAGES) {
		nothing();
		return;
	}
	describe("mremap of nothing at %c %zu", name_of(l), from);
	char *p = mremap(at(l, from), 0, PAGE, MREMAP_MAYMOVE);
	if (as_wanted("mremap with an old size of 0", EINVAL, address(p)))
		munmap(p, PAGE);
}

static void op_remap(void)
{
	struct lane *l = some_lane(SLOT | ZONE);
	switch (below(8)) {
	case 0: shrink(l); break;
	case 1: case 2: grow(l); break;
	case 3: grow_in_place(&lanes[SLOTS + below(ZONES)]); break;
	case 4: duplicate(l); break;
	default: move(l); break;
	}
}

/* -- what changes pages ---------------------------------------------------------------- */

static size_t some_range(struct lane *l, size_t *n)
{
	size_t from = below(l->pages);
	*n = once_in(3) ? l->pages - from : about(l->pages - from);
	return from;
}

static void protect(struct lane *l, size_t from, size_t n, int prot)
{
	describe("mprotect %c %zu+%zu prot %d", name_of(l), from, n, prot);
	size_t good = run(l, from, n, is_mapped);
	as_wanted("mprotect", good == n ? 0 : ENOMEM, mprotect(at(l, from), n * PAGE, prot));
	cut_out(l, from, good);
	for (size_t i = from; i < from + good; i++)
		l->page[i].prot = (unsigned char)prot;
	look_over(l, from, good);
}

static void op_protect(void)
{
	struct lane *l = some_lane(SLOT | ZONE | BREAK);
	size_t n, from = some_range(l, &n);
	protect(l, from, n, some_prot());
}

#ifndef MADV_DONTNEED_LOCKED
#define MADV_DONTNEED_LOCKED 24
#endif
#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25
#endif
#ifndef MADV_GUARD_INSTALL
#define MADV_GUARD_INSTALL 102
#define MADV_GUARD_REMOVE 103
#endif

static const struct advice {
	int number;
	const char *name;
} advices[] = {
#define ADVICE(x) { MADV_##x, "MADV_" #x }
	ADVICE(DONTNEED), ADVICE(DONTNEED), ADVICE(DONTNEED), ADVICE(FREE), ADVICE(FREE), ADVICE(REMOVE),
	ADVICE(WIPEONFORK), ADVICE(KEEPONFORK), ADVICE(DONTFORK), ADVICE(DOFORK), ADVICE(HUGEPAGE), ADVICE(NOHUGEPAGE),
	ADVICE(COLD), ADVICE(PAGEOUT), ADVICE(POPULATE_READ), ADVICE(POPULATE_WRITE), ADVICE(MERGEABLE),
	ADVICE(UNMERGEABLE), ADVICE(DONTDUMP), ADVICE(DODUMP), ADVICE(NORMAL), ADVICE(RANDOM), ADVICE(SEQUENTIAL),
	ADVICE(WILLNEED), ADVICE(DONTNEED_LOCKED), ADVICE(COLLAPSE), ADVICE(GUARD_INSTALL), ADVICE(GUARD_REMOVE),
	{ 12345, "no advice" },
};
#define ADVICES (sizeof advices / sizeof advices[0])

static bool stops_at_locks(int advice)
{
	return advice == MADV_DONTNEED || advice == MADV_FREE || advice == MADV_REMOVE || advice == MADV_COLD ||
	       advice == MADV_PAGEOUT;
}

/* What makes bytes disappear: refused where what is sealed could not be written to. */
static bool discards(int advice)
{
	return advice == MADV_DONTNEED || advice == MADV_DONTNEED_LOCKED || advice == MADV_FREE ||
	       advice == MADV_REMOVE || advice == MADV_DONTFORK || advice == MADV_WIPEONFORK;
}

/* Pages that the kernel comes to, and in *wanted what it must say: -1 if it may say what it
 * likes, as long as it says the same without the shim. */
static size_t reach(const struct lane *l, size_t from, size_t n, int advice, int *wanted)
{
	size_t mapped = count(l, from, n, MAPPED);
	if (is(l, from, SEALED) && !(l->page[from].prot & PROT_WRITE) && discards(advice)) {
		*wanted = EPERM;
		return 0;
	}
	*wanted = mapped == n ? 0 : ENOMEM;
	if (advice == MADV_REMOVE && mapped > 0)
		*wanted = EINVAL;
	for (size_t i = from; stops_at_locks(advice) && i < from + n; i++)
		if (is(l, i, LOCKED)) {
			*wanted = EINVAL;
			return i - from;
		}
	switch (advice) {
	case MADV_DONTNEED: case MADV_DONTNEED_LOCKED: case MADV_FREE: case MADV_REMOVE: case MADV_WIPEONFORK:
	case MADV_KEEPONFORK: case MADV_DONTFORK: case MADV_DOFORK: case MADV_COLD: case MADV_PAGEOUT:
		return n;
	}
	*wanted = -1;
	return n;
}

/* MADV_FREE leaves the old bytes or zeros until something is written; then the rest of the
 * page is settled. What can't be written to is thrown away. */
static void settle_freed(struct lane *l, size_t from, size_t n)
{
	for (size_t i = from; i < from + n; i++) {
		char *p = at(l, i);
		if (!is(l, i, MAPPED) || is(l, i, ZERO | GUARD))
			continue;
		if (!writable(l, i)) {
			if (madvise(p, PAGE, MADV_DONTNEED) == 0)
				zero(l, i, DROPPED);
			continue;
		}
		p[0] = (char)(shadow(l, i)[0] + 1);
		if (!all_zero(p + 1, PAGE - 1) && memcmp(p + 1, shadow(l, i) + 1, PAGE - 1) != 0)
			find("after MADV_FREE neither zeros nor what was written");
		const char *src = some_source(PAGE);
		memcpy(p, src, PAGE);
		note_written(l, i, 0, src, PAGE);
		l->page[i].why = FREED;
	}
}

static void apply(struct lane *l, size_t page, int advice)
{
	struct page *p = &l->page[page];
	switch (advice) {
	case MADV_DONTNEED: case MADV_DONTNEED_LOCKED: zero(l, page, DROPPED); break;
	case MADV_WIPEONFORK: p->state |= WIPE; break;
	case MADV_KEEPONFORK: p->state &= (unsigned char)~WIPE; break;
	case MADV_DONTFORK: p->state |= NOFORK; break;
	case MADV_DOFORK: p->state &= (unsigned char)~NOFORK; break;
	}
}

static void guard(struct lane *l, size_t from, size_t n, int advice)
{
	if (count(l, from, n, MAPPED) < n || count(l, from, n, LOCKED) > 0 || l->kind == BREAK) {
		nothing();
		return;
	}
	if (result(madvise(at(l, from), n * PAGE, advice)) != 0)
		return; /* Linux before 6.13 */
	for (size_t i = from; i < from + n; i++) {
		if (advice == MADV_GUARD_INSTALL) {
			zero(l, i, UNGUARDED);
			l->page[i].state |= GUARD;
		} else {
			l->page[i].state &= (unsigned char)~GUARD;
		}
	}
}

static void advise(struct lane *l, size_t from, size_t n, const struct advice *a)
{
	describe("%s %c %zu+%zu", a->name, name_of(l), from, n);
	int wanted;
	size_t reached = reach(l, from, n, a->number, &wanted);
	look_over(l, from, n);
	int r = madvise(at(l, from), n * PAGE, a->number);
	if (a->number == MADV_COLLAPSE)
		mix(0); /* as the kernel finds huge pages */
	else if (wanted < 0)
		result(r);
	else
		as_wanted(a->name, wanted, r);
	if (wanted > 0 || r == 0)
		for (size_t i = from; i < from + reached; i++)
			if (is(l, i, MAPPED))
				apply(l, i, a->number);
	cut_out(l, from, n);
	if (a->number == MADV_FREE)
		settle_freed(l, from, reached);
	look_over(l, from, n);
}

static void op_advise(void)
{
	struct lane *l = some_lane(SLOT | ZONE | BREAK);
	size_t n, from = some_range(l, &n);
	const struct advice *a = &advices[below(ADVICES)];
	/* Anything may come to lie where a slot was not forked. */
	if (a->number == MADV_DONTFORK && l->kind == SLOT)
		l = &lanes[SLOTS + below(ZONES)], from = 0, n = about(l->pages);
	if (a->number == MADV_GUARD_INSTALL || a->number == MADV_GUARD_REMOVE) {
		describe("%s %c %zu+%zu", a->name, name_of(l), from, n);
		guard(l, from, n < 64 ? n : 64, a->number);
	} else {
		advise(l, from, n, a);
	}
}

/* What was asked for memory by advice, as the kernel has it: for as many pages as are told.
 * (Of huge pages the shim asks for some itself, and MADV_WIPEONFORK of shared memory it does.) */
static void op_flags(void)
{
	static const char wanted[] = " dd nh mg rr sr dc sl ";
	static uint16_t flags[LANE_PAGES];
	struct lane *l = some_lane(SLOT | ZONE | VAULT);
	unsigned long start = 0, end = 0, from = (uintptr_t)l->base, to = from + l->pages * PAGE;
	char line[1024];
	int key = 0;
	describe("flags of %c", name_of(l));
	memset(flags, 0, sizeof flags);
	FILE *f = fopen("/proc/self/smaps", "re");
	NEED(f);
	while (fgets(line, sizeof line, f)) {
		unsigned long a, b;
		if (sscanf(line, "%lx-%lx ", &a, &b) == 2) {
			start = a < from ? from : a;
			end = b > to ? to : b;
			key = 0;
			continue;
		}
		(void)sscanf(line, "ProtectionKey: %d", &key);
		if (strncmp(line, "VmFlags:", 8) != 0 || start >= end)
			continue;
		uint16_t all = key > 0 && key == the_key ? 257 : 1;
		for (char *w = strtok(line + 8, " \n"); w; w = strtok(NULL, " \n")) {
			char word[16];
			snprintf(word, sizeof word, " %.10s ", w);
			const char *at = strstr(wanted, word);
			if (at)
				all |= (uint16_t)(2u << (at - wanted) / 3);
		}
		for (size_t i = (start - from) / PAGE; i < (end - from) / PAGE; i++)
			flags[i] = all;
	}
	fclose(f);
	for (size_t i = 0; i < l->pages; i++)
		mix(flags[i]);
	result(0);
}

static void op_sync(void)
{
	struct lane *l = some_lane(MAPPINGS);
	size_t n, from = some_range(l, &n);
	static const int flags[] = { MS_SYNC, MS_ASYNC, MS_INVALIDATE, MS_SYNC | MS_INVALIDATE,
				     MS_ASYNC | MS_INVALIDATE, MS_SYNC | MS_ASYNC, 0, 64 };
	static unsigned char vector[LANE_PAGES];
	if (once_in(3)) {
		describe("mincore %c %zu+%zu", name_of(l), from, n);
		as_wanted("mincore", count(l, from, n, MAPPED) == n ? 0 : ENOMEM, mincore(at(l, from), n * PAGE, vector));
	} else {
		int f = flags[below(8)];
		describe("msync %c %zu+%zu flags %x", name_of(l), from, n, f);
		result(msync(at(l, from), n * PAGE, f));
	}
	look_over(l, from, n);
}

static size_t locked_pages(void)
{
	size_t all = 0;
	for (int i = 0; i < LANES; i++)
		all += count(&lanes[i], 0, lanes[i].pages, LOCKED);
	return all;
}

static void op_lock(void)
{
	struct lane *l = some_lane(MAPPINGS);
	size_t from = some_page(l, is_mapped);
	if (from == LANE_PAGES) {
		nothing();
		return;
	}
	size_t n = about(run(l, from, 64, is_mapped));
	bool locks = once_in(3) && locked_pages() < MOST_LOCKED;
	int way = (int)below(3);
	describe("%s %c %zu+%zu", locks ? "mlock" : "munlock", name_of(l), from, n);
	long r = !locks ? munlock(at(l, from), n * PAGE) :
		 way    ? mlock(at(l, from), n * PAGE) :
			  mlock2(at(l, from), n * PAGE, MLOCK_ONFAULT);
	result(r);
	/* Memory that can't be read is locked, and an error: neither is of interest. */
	if (locks && r != 0)
		munlock(at(l, from), n * PAGE);
	cut_out(l, from, n);
	for (size_t i = from; i < from + n; i++)
		l->page[i].state = (unsigned char)((l->page[i].state & ~LOCKED) | (locks && r == 0 ? LOCKED : 0));
	look_over(l, from, n);
}

/* -- the heap -------------------------------------------------------------------------- */

static void store(struct lane *l, size_t page, size_t offset, const char *src, size_t n);

static bool by_sbrk; /* else malloc takes the break as it likes */

static void op_break(void)
{
	struct lane *l = &lanes[SLOTS + ZONES];
	if (!by_sbrk || sbrk(0) != l->base + l->bytes) {
		nothing();
		return;
	}
	long by = (long)(about(512) * PAGE) + (once_in(3) ? (long)below(PAGE) : 0);
	if (once_in(2) || l->bytes + (size_t)by > LANE_BYTES)
		by = (size_t)by > l->bytes ? -(long)l->bytes : -by;
	describe("sbrk %ld at %zu", by, l->bytes);
	if (!as_wanted("sbrk", 0, sbrk(by) == (void *)-1 ? -1 : 0))
		return;
	size_t old = l->pages;
	l->bytes = (size_t)((long)l->bytes + by);
	l->pages = (l->bytes + PAGE - 1) / PAGE;
	if (l->pages > old)
		fresh(l, old, l->pages - old, PROT_READ | PROT_WRITE, REGROWN);
	else
		gone(l, l->pages, old - l->pages);
	/* What is beyond the break on its last page is nobody's and stays what it was. */
	size_t rest = l->pages * PAGE - l->bytes;
	if (by < 0 && rest > 0 && writable(l, l->pages - 1)) {
		memset(l->base + l->bytes, 0, rest);
		memset(shadow(l, 0) + l->bytes, 0, rest);
	} else if (by < 0 && rest > 0) {
		l->page[l->pages - 1].state |= UNKNOWN;
	}
	look_over(l, 0, l->pages);
}

static void allocate(struct lane *l, size_t n, bool clear)
{
	describe("%s %c %zu", clear ? "calloc" : "malloc", name_of(l), n);
	char *p = clear ? calloc(1, n) : malloc(n);
	if (!as_wanted("malloc", 0, p ? 0 : -1))
		return;
	begin(l, BLOCK, p, n);
	fresh(l, 0, l->pages, PROT_READ | PROT_WRITE, FRESH);
	for (size_t i = 0; !clear && i < l->pages; i++)
		l->page[i].state = MAPPED | UNKNOWN;
	look_over(l, 0, l->pages);
}

static void reallocate(struct lane *l, size_t n)
{
	size_t old = l->bytes, was = l->pages, kept = old < n ? old : n;
	describe("realloc %c %zu to %zu", name_of(l), old, n);
	char *p = realloc(l->base, n);
	if (!as_wanted("realloc", 0, p ? 0 : -1))
		return;
	l->base = p;
	l->bytes = n;
	l->pages = (n + PAGE - 1) / PAGE;
	if (l->pages < was)
		gone(l, l->pages, was - l->pages);
	for (size_t i = was; i < l->pages; i++)
		l->page[i] = (struct page){ .prot = PROT_READ | PROT_WRITE, .state = MAPPED | UNKNOWN, .why = FRESH };
	/* The page with the old end: what is behind it may be anything. */
	size_t last = (kept - 1) / PAGE, offset = kept - last * PAGE;
	if (n > old && offset < bytes_of(l, last))
		store(l, last, offset, some_source(PAGE), bytes_of(l, last) - offset);
	look_over(l, 0, l->pages);
}

static void op_heap(void)
{
	struct lane *l = &lanes[below(SLOTS)];
	size_t n = some_size() * PAGE + below(PAGE);
	if (n > LANE_BYTES)
		n = LANE_BYTES;
	if (l->kind == NOTHING) {
		allocate(l, n, once_in(2));
	} else if (l->kind != BLOCK) {
		nothing();
	} else if (once_in(2)) {
		reallocate(l, n);
	} else {
		describe("free %c", name_of(l));
		look_over(l, 0, l->pages);
		free(l->base);
		end(l);
		if (once_in(8))
			malloc_trim(0);
		result(0);
	}
}

/* -- accesses -------------------------------------------------------------------------- */

/* The signal that copying ended with, or 0. */
static int copied(char *to, const char *src, size_t n)
{
	int sig = sigsetjmp(landing, 0);
	if (sig == 0) {
		guarded = 1;
		memcpy(to, src, n);
		guarded = 0;
	}
	return sig;
}

/* Within one page, which must be writable. */
static void store(struct lane *l, size_t page, size_t offset, const char *src, size_t n)
{
	if (is(l, page, UNKNOWN)) {
		offset = 0;
		n = bytes_of(l, page);
		src = source;
	}
	int sig = copied(at(l, page) + offset, src, n);
	if (sig) {
		find("SIG%s on writing: %s", sigabbrev_np(sig), reasons[l->page[page].why]);
		l->page[page].prot = PROT_NONE;
		return;
	}
	note_written(l, page, offset, src, n);
}

static void op_write(void)
{
	struct lane *l = some_lane(ANYWHERE);
	size_t page = some_page(l, writable);
	if (page == LANE_PAGES) {
		nothing();
		return;
	}
	size_t pages = once_in(10) ? run(l, page, 1 + below(32), writable) : 1;
	bool whole = once_in(3);
	describe("write %c %zu+%zu", name_of(l), page, pages);
	for (size_t i = page; i < page + pages; i++) {
		size_t n = bytes_of(l, i), offset = whole || pages > 1 ? 0 : below(n);
		n -= offset;
		if (offset > 0 || !whole)
			n = 1 + below(n < 64 ? n : 64);
		look(l, i);
		store(l, i, offset, some_source(n), n);
		look(l, i);
	}
	result(0);
}

static long by_pipe(char *to, const char *src, size_t n)
{
	int p[2];
	NEED(pipe2(p, O_CLOEXEC) == 0 && write(p[1], src, n) == (ssize_t)n);
	long r = read(p[0], to, n);
	int e = errno;
	close(p[0]);
	close(p[1]);
	errno = e;
	return r;
}

static long by_proc_mem(char *to, const char *src, size_t n)
{
	int fd = open("/proc/self/mem", O_RDWR | O_CLOEXEC);
	NEED(fd >= 0);
	long r = pwrite(fd, src, n, (off_t)(uintptr_t)to);
	int e = errno;
	close(fd);
	errno = e;
	return r;
}

static long by_the_kernel(int way, char *to, const char *src, size_t n)
{
	struct iovec from = { (void *)(uintptr_t)src, n }, there = { to, n };
	switch (way) {
	case 0: return process_vm_writev(getpid(), &from, 1, &there, 1, 0);
	case 1: return by_proc_mem(to, src, n);
	case 2: return by_pipe(to, src, n);
	default: return pread(source_fd, to, n, src - source);
	}
}

/* Into memory as the kernel puts it there for the program, all of it writable. */
static void op_receive(void)
{
	static const char *const ways[] = { "process_vm_writev", "/proc/self/mem", "read from a pipe", "pread" };
	struct lane *l = some_lane(ANYWHERE);
	size_t page = some_page(l, is_plain);
	if (page == LANE_PAGES) {
		nothing();
		return;
	}
	size_t pages = run(l, page, about(15), is_plain), offset = below(bytes_of(l, page));
	size_t most = (pages - 1) * PAGE + bytes_of(l, page + pages - 1) - offset, n = 1 + below(most);
	const char *src = some_source(n);
	int way = (int)below(4);
	describe("%s %c %zu n %zu", ways[way], name_of(l), page, n);
	long r = by_the_kernel(way, at(l, page) + offset, src, n);
	result(r);
	if (r != (long)n) {
		find("%s: %ld of its bytes", ways[way], r < 0 ? r : r * 100 / (long)n);
		return;
	}
	while (n > 0) {
		size_t some = bytes_of(l, page) - offset < n ? bytes_of(l, page) - offset : n;
		note_written(l, page, offset, src, some);
		look(l, page++);
		src += some;
		n -= some;
		offset = 0;
	}
}

static bool is_shut(const struct lane *l, size_t page)
{
	return is(l, page, MAPPED) && !is(l, page, GUARD | UNKNOWN) && !(l->page[page].prot & PROT_WRITE);
}

/* Into a page that is not writable: refused, but for /proc/self/mem, which a debugger uses. */
static void op_receive_shut(void)
{
	struct lane *l = some_lane(MAPPINGS);
	size_t page = some_page(l, is_shut);
	if (page == LANE_PAGES) {
		nothing();
		return;
	}
	int way = force && once_in(2) ? 1 : once_in(2) ? 0 : 2;
	const char *src = some_source(PAGE);
	size_t n = 1 + below(PAGE);
	describe("way %d into what is not writable %c %zu n %zu", way, name_of(l), page, n);
	long r = by_the_kernel(way, at(l, page), src, n);
	if (way == 1) {
		if (as_wanted("/proc/self/mem, not writable", 0, r))
			note_written(l, page, 0, src, n);
	} else {
		as_wanted("received into what is not writable", EFAULT, r);
	}
	look(l, page);
}

/* The kernel reads what the program has. */
static void op_send(void)
{
	static char got[PAGE];
	struct lane *l = some_lane(ANYWHERE);
	size_t page = below(l->pages), n = bytes_of(l, page);
	if (is(l, page, UNKNOWN)) {
		nothing();
		return;
	}
	bool may = readable(l, page), vm = once_in(2);
	int p[2];
	describe("%s from %c %zu", vm ? "process_vm_readv" : "write", name_of(l), page);
	NEED(pipe2(p, O_CLOEXEC) == 0);
	struct iovec here = { got, n }, there = { at(l, page), n };
	long r = vm ? process_vm_readv(getpid(), &here, 1, &there, 1, 0) : write(p[1], at(l, page), n);
	if (as_wanted("sent", may ? 0 : EFAULT, r)) {
		if (!vm)
			NEED(read(p[0], got, n) == (ssize_t)n);
		bool same = is(l, page, ZERO) ? all_zero(got, n) : memcmp(got, shadow(l, page), n) == 0;
		if (!same)
			find("the kernel reads other bytes: %s", reasons[l->page[page].why]);
	}
	close(p[0]);
	close(p[1]);
}

static void op_look(void)
{
	struct lane *l = some_lane(ANYWHERE);
	size_t from = below(l->pages), n = about(l->pages - from);
	describe("look %c %zu+%zu", name_of(l), from, n);
	look_over(l, from, n < 128 ? n : 128);
	result(0);
}

static void op_look_at_all(void)
{
	describe("look at all");
	look_at_all("");
	result(0);
}

/* An access that must be SIGSEGV, there and for that reason. */
static void op_fault(void)
{
	struct lane *l = some_lane(MAPPINGS);
	size_t page = below(l->pages);
	bool writes = once_in(2);
	if (writes ? writable(l, page) : readable(l, page)) {
		nothing();
		return;
	}
	describe("fault %c %zu, %s", name_of(l), page, writes ? "writing" : "reading");
	volatile char *p = at(l, page) + below(PAGE);
	int sig = sigsetjmp(landing, 0);
	if (sig == 0) {
		guarded = 1;
		if (writes)
			*p = 1;
		else
			(void)*p;
		guarded = 0;
		find("an access that must fault does not");
	}
	int code = is(l, page, MAPPED) ? SEGV_ACCERR : SEGV_MAPERR;
	if (sig && (sig != SIGSEGV || fault.si_addr != p || (fault.si_code != code && !is(l, page, GUARD))))
		find("SIG%s code %d instead of SIGSEGV code %d", sigabbrev_np(sig), fault.si_code, code);
	mix((uint64_t)fault.si_code);
	result(sig);
}

/* -- calls that must fail and change nothing -------------------------------------------- */

static void op_wrong(void)
{
	struct lane *l = some_lane(SLOT | ZONE);
	size_t page = below(l->pages);
	char *p = at(l, page);
	static const int mode = PROT_READ | PROT_WRITE, anonymous = MAP_PRIVATE | MAP_ANONYMOUS;
	int n = (int)below(15);
	describe("wrong %d %c %zu", n, name_of(l), page);
	switch (n) {
	case 0: as_wanted("munmap between pages", EINVAL, munmap(p + 1, PAGE)); break;
	case 1: as_wanted("munmap of nothing", EINVAL, munmap(p, 0)); break;
	case 2: as_wanted("mmap of nothing", EINVAL, address(mmap(NULL, 0, mode, anonymous, -1, 0))); break;
	case 3: as_wanted("mmap of all", ENOMEM, address(mmap(NULL, (size_t)1 << 60, mode, anonymous, -1, 0))); break;
	case 4: as_wanted("mmap of too much", ENOMEM, address(mmap(NULL, (size_t)1 << 47, mode, anonymous, -1, 0))); break;
	case 5: as_wanted("MAP_FIXED between pages", EINVAL, address(mmap(p + 1, PAGE, mode, anonymous | MAP_FIXED, -1, 0))); break;
	case 6: as_wanted("mmap, neither private nor shared", EINVAL, address(mmap(NULL, PAGE, mode, MAP_ANONYMOUS, -1, 0))); break;
	case 7: as_wanted("mmap at half a page", EINVAL, syscall(SYS_mmap, NULL, 1 << 20, mode, anonymous, -1, 100)); break;
	case 8: as_wanted("mprotect between pages", EINVAL, mprotect(p + 1, PAGE, mode)); break;
	case 9: as_wanted("madvise between pages", EINVAL, madvise(p + 1, PAGE, MADV_DONTNEED)); break;
	case 10: as_wanted("madvise of too much", EINVAL, madvise(p, (size_t)-1, MADV_DONTNEED)); break;
	case 11: as_wanted("madvise of nothing", 0, madvise(p, 0, MADV_DONTNEED)); break;
	case 12: as_wanted("mremap between pages", EINVAL, address(mremap(p + 1, PAGE, 2 * PAGE, MREMAP_MAYMOVE))); break;
	case 13: as_wanted("mremap to nothing", EINVAL, address(mremap(p, PAGE, 0, MREMAP_MAYMOVE))); break;
	case 14: as_wanted("mremap, fixed but not to move", EINVAL, address(mremap(p, PAGE, PAGE, MREMAP_FIXED, ZONE_AT(0)))); break;
	}
	look(l, page);
}

#include "marked.h"
#include "forks.h"

/* -- all of it ------------------------------------------------------------------------- */

/* Keeps what was written within bounds, so that a step costs what it costs. */
static void relieve(void)
{
	size_t all = 0, most = 0;
	struct lane *largest = NULL;
	for (int k = 0; k < LANES; k++) {
		struct lane *l = &lanes[k];
		size_t n = count(l, 0, l->pages, MAPPED) - count(l, 0, l->pages, ZERO);
		all += n;
		if (n > most && l->kind != BREAK && l->kind != VAULT) {
			most = n;
			largest = l;
		}
	}
	if (all < MOST_WRITTEN)
		return;
	if (largest->kind == BLOCK) {
		free(largest->base);
		end(largest);
	} else {
		unmap(largest, 0, largest->pages);
	}
}

static struct op {
	const char *word; /* for -o */
	unsigned weight;
	void (*make)(void);
} ops[] = {
	{ "", 700, op_map },	      { "", 500, op_map_fixed },    { "", 600, op_unmap },
	{ "mremap", 700, op_remap },  { "", 800, op_protect },	    { "madvise", 1500, op_advise },
	{ "", 400, op_sync },	      { "", 300, op_lock },	    { "brk", 300, op_break },
	{ "heap", 500, op_heap },     { "", 2000, op_write },	    { "", 500, op_receive },
	{ "", 100, op_receive_shut }, { "", 300, op_send },	    { "", 800, op_look },
	{ "", 10, op_look_at_all },   { "", 100, op_fault },	    { "", 200, op_wrong },
	{ "fork", 25, op_fork },      { "fork", 2, op_vfork },	    { "fork", 2, op_race },
	{ "", 20, op_flags },	      { "", 100, op_key },	    { "fork", 10, op_forbid },
	{ "", 100, op_bind },	      { "", 100, op_policy },	    { "", 400, op_vault },
	{ "fork", 8, op_sandbox },
};
#define OPS (sizeof ops / sizeof ops[0])

static void one_step(void)
{
	static unsigned all;
	if (all == 0)
		for (size_t i = 0; i < OPS; i++)
			all += ops[i].weight;
	unsigned n = (unsigned)below(all);
	for (size_t i = 0; i < OPS; i++) {
		if (n < ops[i].weight) {
			ops[i].make();
			return;
		}
		n -= ops[i].weight;
	}
}

static void steps(unsigned long n)
{
	unsigned long every = n / 20 ? n / 20 : n;
	for (unsigned long i = 1; i <= n; i++) {
		step++;
		if (step % 32 == 0)
			relieve();
		one_step();
		if (depth == 0 && i % every == 0)
			say("step %lu digest %016lx", i, (unsigned long)digest);
	}
}

static void only(const char *word)
{
	for (size_t i = 0; i < OPS; i++)
		if (ops[i].word[0] && strcmp(ops[i].word, word) != 0)
			ops[i].weight = 0;
}

static void begin_heap(void)
{
	/* An odd seed leaves the break to malloc, an even one has it for itself. */
	by_sbrk = seed % 2 == 0;
	if (by_sbrk)
		mallopt(M_MMAP_THRESHOLD, 128 << 10);
	free(malloc(1));
	uintptr_t rest = -(uintptr_t)sbrk(0) % PAGE;
	if (by_sbrk && sbrk((intptr_t)rest) != (void *)-1)
		begin(&lanes[SLOTS + ZONES], BREAK, sbrk(0), 0);
}

int main(int argc, char **argv)
{
	unsigned long n = 20000;
	long forks = 0;
	int c;
	if (argc > 1 && strcmp(argv[1], "-leaf") == 0)
		return 7;
	while ((c = getopt(argc, argv, "vkfo:r:")) != -1) {
		switch (c) {
		case 'v': verbose = true; break;
		case 'k': going_on = true; break;
		case 'f': force = true; break;
		case 'o': only(optarg); break;
		case 'r': forks = atol(optarg); break;
		default: return 2;
		}
	}
	if (optind < argc)
		n = strtoul(argv[optind++], NULL, 0);
	seed = optind < argc ? strtoul(argv[optind], NULL, 0) : 1;
	rng = seed * 0xda942042e4dd58b5ul + 12345;
	open_model();
	for (size_t i = 0; i < SOURCE; i += 8) {
		uint64_t v = draw() | 0x0101010101010101ul;
		memcpy(source + i, &v, 8);
	}
	source_fd = memory_file(SOURCE);
	NEED(pwrite(source_fd, source, SOURCE, 0) == (ssize_t)SOURCE);
	if (forks > 0) {
		going_on = true;
		races(forks);
		return finds->count ? 80 : 0;
	}
	begin_heap();
	begin_marks();
	steps(n);
	describe("the end");
	look_at_all("");
	quiet_point("end");
	say("end %lu steps digest %016lx, wrong %d", n, (unsigned long)digest, finds->count);
	return finds->count ? 80 : 0;
}
