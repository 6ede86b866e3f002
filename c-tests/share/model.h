/*
 * What differ.c knows of its memory: lanes of pages with their protection, their state and
 * a shadow of their bytes, and a digest of all that was seen. The shadow is a mapped file
 * (memfd), which a child maps privately: so it is nobody's anonymous memory.
 */
#ifndef REGALL_MODEL_H
#define REGALL_MODEL_H

#include <setjmp.h>
#include "../check.h"

#define LANE_PAGES 4096ul
#define LANE_BYTES (LANE_PAGES * PAGE)
#define SLOTS 18
#define ZONES 2
/* Slots, zones, sbrk's lane, what gets sealed, and one to carry pages from one lane to another. */
#define LANES (SLOTS + ZONES + 2)
#define HAND LANES
#define THE_VAULT (&lanes[SLOTS + ZONES + 1])

/* A slot is one stretch wherever the kernel put it, without holes, since anything may come
 * to lie in one. Zones are far below where the kernel puts what may lie anywhere: nothing
 * else comes there, so holes stay holes, and fixed mappings hit nobody. */
enum kind { NOTHING = 0, SLOT = 1, ZONE = 2, BREAK = 4, BLOCK = 8, VAULT = 16 };
#define ANYWHERE (SLOT | ZONE | BREAK | BLOCK | VAULT)
/* All but malloc's. */
#define MAPPINGS (SLOT | ZONE | BREAK | VAULT)
#define ZONE_AT(i) ((char *)0x200000000000ul + (size_t)(i) * (1ul << 30))

enum state {
	MAPPED = 1,
	LOCKED = 2,
	WIPE = 4,     /* MADV_WIPEONFORK */
	NOFORK = 8,   /* MADV_DONTFORK */
	ZERO = 16,    /* nothing was written: the shadow has no word in it */
	GUARD = 32,   /* MADV_GUARD_INSTALL */
	UNKNOWN = 64, /* malloc's: may hold anything */
	SEALED = 128, /* mseal: only in the vault */
};

/* What a page's bytes are owed to; for who reads of a failure. */
enum why { FRESH, WRITTEN, DROPPED, FREED, GROWN, MOVED, LEFT, WIPED, REGROWN, UNGUARDED, REASONS };
static const char *const reasons[REASONS] = {
	"fresh memory", "what was written", "MADV_DONTNEED", "MADV_FREE", "mremap's growth", "moved by mremap",
	"left by MREMAP_DONTUNMAP", "MADV_WIPEONFORK", "grown by sbrk", "MADV_GUARD_REMOVE",
};

struct page {
	unsigned char prot, state, why, policy; /* policy: of mbind */
	bool key;                               /* has the_key, not key 0 */
	uint32_t part; /* pages of one part are in one mapping of the kernel's for sure */
};

struct lane {
	enum kind kind;
	char *base;
	size_t pages, bytes; /* bytes: a block's, where its last page ends early */
	struct page page[LANE_PAGES];
};

static struct lane lanes[LANES + 1];
static char *shadows;
static int shadow_fd;
static uint32_t parts;

static uint64_t rng, digest;
static unsigned long seed, step;
static int depth; /* 1 in a child, 2 in a grandchild */
static bool verbose, going_on;
/* Who looks at memory, and after what. */
static const char *looker = "";
static char doing[200], place[100];

static uint64_t draw(void)
{
	uint64_t z = rng += 0x9e3779b97f4a7c15ul;
	z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ul;
	z = (z ^ (z >> 27)) * 0x94d049bb133111ebul;
	return z ^ (z >> 31);
}

static size_t below(size_t n)
{
	return (size_t)((draw() >> 8) % n);
}

static bool once_in(size_t n)
{
	return below(n) == 0;
}

/* 1 to most, each size as likely as its double. */
static size_t about(size_t most)
{
	size_t bits = 0;
	while (most >> bits > 1)
		bits++;
	size_t top = (size_t)1 << below(bits + 1);
	size_t n = top + below(top);
	return n > most ? most : n;
}

static void mix(uint64_t v)
{
	digest = (digest ^ v) * 0x100000001b3ul;
	digest ^= digest >> 29;
}

/* Where all processes put what is wrong, so that each kind is said once. */
#define FINDS 128
static struct finds {
	int count;
	char label[FINDS][120];
} *finds;

/* Something is not as without the shim. Ends the program unless it is to go on (-k). */
__attribute__((format(printf, 1, 2))) static void find(const char *format, ...)
{
	char label[120];
	va_list args;
	va_start(args, format);
	vsnprintf(label, sizeof label, format, args);
	va_end(args);
	for (int i = 0; i < finds->count; i++)
		if (strcmp(finds->label[i], label) == 0)
			return;
	if (finds->count < FINDS)
		strcpy(finds->label[finds->count++], label);
	say("found: %s", label);
	say("  seed %lu step %lu depth %d: %s%s", seed, step, depth, doing, place);
	if (!going_on)
		_exit(80);
}

/* What a step is about to do, for -v and for failures. Offsets, never addresses. */
__attribute__((format(printf, 1, 2))) static void describe(const char *format, ...)
{
	va_list args;
	va_start(args, format);
	vsnprintf(doing, sizeof doing, format, args);
	va_end(args);
	place[0] = 0;
}

/* Takes the result of a call into the digest. Addresses come as 0. */
static long result(long r)
{
	int e = r == -1 ? errno : 0;
	mix((uint64_t)r);
	mix((uint64_t)e);
	if (verbose)
		say("%lu.%d %s: %ld %s %016lx", step, depth, doing, r, e ? strerrorname_np(e) : "-",
		    (unsigned long)digest);
	errno = e;
	return r;
}

/* The same, and it must be `wanted` (an errno, or 0 for success). */
static bool as_wanted(const char *what, int wanted, long r)
{
	int e = r == -1 ? errno : 0;
	result(r);
	if (e != wanted)
		find("%s: %s instead of %s", what, e ? strerrorname_np(e) : "success",
		     wanted ? strerrorname_np(wanted) : "success");
	return e == 0;
}

static long address(const void *p)
{
	return p == MAP_FAILED ? -1 : 0;
}

/* Faults: one where memory should be is a find; one that is asked for is a result. */
static sigjmp_buf landing;
static volatile sig_atomic_t guarded;
static int the_key = -1; /* of pkey_alloc, where the CPU has protection keys */
static siginfo_t fault;

static void on_fault(int sig, siginfo_t *info, void *context)
{
	(void)context;
	fault = *info;
	/* A handler begins without any key, and nobody returns from this one. */
	if (the_key >= 0)
		pkey_set(the_key, 0);
	if (guarded) {
		guarded = 0;
		siglongjmp(landing, sig);
	}
	say("SIG%s outside of a look, seed %lu step %lu depth %d: %s", sigabbrev_np(sig), seed, step, depth, doing);
	_exit(82);
}

static char *at(const struct lane *l, size_t page)
{
	return l->base + page * PAGE;
}

static char *shadow(const struct lane *l, size_t page)
{
	return shadows + (size_t)(l - lanes) * LANE_BYTES + page * PAGE;
}

static size_t bytes_of(const struct lane *l, size_t page)
{
	size_t left = l->bytes - page * PAGE;
	return left < PAGE ? left : PAGE;
}

static bool is(const struct lane *l, size_t page, int state)
{
	return l->page[page].state & state;
}

static bool readable(const struct lane *l, size_t page)
{
	return is(l, page, MAPPED) && !is(l, page, GUARD) && l->page[page].prot & PROT_READ;
}

static bool writable(const struct lane *l, size_t page)
{
	return readable(l, page) && l->page[page].prot & PROT_WRITE;
}

/* A new part begins at `page`, if one goes through it. */
static void cut(struct lane *l, size_t page)
{
	if (page == 0 || page >= l->pages || l->page[page].part != l->page[page - 1].part)
		return;
	uint32_t old = l->page[page].part, part = ++parts;
	for (size_t i = page; i < l->pages && l->page[i].part == old; i++)
		l->page[i].part = part;
}

static void cut_out(struct lane *l, size_t from, size_t n)
{
	cut(l, from);
	cut(l, from + n);
}

/* Zeros, for the reason given. */
static void zero(struct lane *l, size_t page, enum why why)
{
	l->page[page].state = (unsigned char)((l->page[page].state & ~UNKNOWN) | ZERO);
	l->page[page].why = (unsigned char)why;
}

static void fresh(struct lane *l, size_t from, size_t n, int prot, enum why why)
{
	uint32_t part = ++parts;
	for (size_t i = from; i < from + n; i++)
		l->page[i] = (struct page){ .prot = (unsigned char)prot, .state = MAPPED | ZERO, .why = (unsigned char)why, .part = part };
}

/* mremap grew a mapping that `as` is a page of. */
static void grown_like(struct lane *l, size_t from, size_t n, struct page as)
{
	fresh(l, from, n, as.prot, GROWN);
	for (size_t i = from; i < from + n; i++) {
		l->page[i].part = as.part;
		l->page[i].state |= as.state & (LOCKED | WIPE | NOFORK);
		l->page[i].policy = as.policy;
		l->page[i].key = as.key;
	}
}

static void gone(struct lane *l, size_t from, size_t n)
{
	memset(&l->page[from], 0, n * sizeof l->page[0]);
}

/* Copies pages of one lane to another, or further down in the same. */
static void carry(struct lane *to, size_t there, const struct lane *from, size_t here, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		to->page[there + i] = from->page[here + i];
		if (is(from, here + i, MAPPED) && !is(from, here + i, ZERO | UNKNOWN))
			memcpy(shadow(to, there + i), shadow(from, here + i), PAGE);
	}
}

static void put_down(struct lane *to, size_t there, size_t n)
{
	uint32_t part = ++parts;
	carry(to, there, &lanes[HAND], 0, n);
	for (size_t i = 0; i < n; i++)
		to->page[there + i].part = part;
}

static struct lane *free_slot(void)
{
	for (int i = 0; i < SLOTS; i++)
		if (lanes[i].kind == NOTHING)
			return &lanes[i];
	return NULL;
}

static int free_slots(void)
{
	int n = 0;
	for (int i = 0; i < SLOTS; i++)
		n += lanes[i].kind == NOTHING;
	return n;
}

static void begin(struct lane *l, enum kind kind, char *base, size_t bytes)
{
	l->kind = kind;
	l->base = base;
	l->bytes = bytes;
	l->pages = (bytes + PAGE - 1) / PAGE;
	/* The file of shadows is to stay small; a child has it privately, and leaves it alone. */
	if (depth == 0)
		(void)fallocate(shadow_fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
				(off_t)((size_t)(l - lanes) * LANE_BYTES), LANE_BYTES);
}

static void end(struct lane *l)
{
	gone(l, 0, l->pages);
	l->kind = NOTHING;
	l->pages = l->bytes = 0;
}

/* Pages of a lane are no longer there. What is right of them in a slot becomes a slot of
 * its own, so one must be free. */
static void without(struct lane *l, size_t from, size_t n)
{
	cut_out(l, from, n);
	gone(l, from, n);
	if (l->kind != SLOT)
		return;
	size_t right = l->pages - from - n;
	if (from == 0 && right == 0) {
		end(l);
		return;
	}
	if (from > 0 && right > 0) {
		struct lane *r = free_slot();
		begin(r, SLOT, at(l, from + n), right * PAGE);
		carry(r, 0, l, from + n, right);
		gone(l, from + n, right);
	} else if (from == 0) {
		l->base = at(l, n);
		carry(l, 0, l, n, right);
		gone(l, right, n);
	}
	l->pages = from > 0 ? from : right;
	l->bytes = l->pages * PAGE;
}

/* Takes what is there for what should be; only after a find. */
static void believe(struct lane *l, size_t page)
{
	memcpy(shadow(l, page), at(l, page), bytes_of(l, page));
	l->page[page].state &= (unsigned char)~ZERO;
	l->page[page].why = WRITTEN;
}

static bool all_zero(const char *p, size_t n)
{
	return n == 0 || (p[0] == 0 && memcmp(p, p + 1, n - 1) == 0);
}

static void mix_bytes(const char *p, size_t n)
{
	for (; n >= 8; n -= 8, p += 8) {
		uint64_t v;
		memcpy(&v, p, 8);
		mix(v);
	}
	for (; n > 0; n--, p++)
		mix((unsigned char)*p);
}

/* What is said of a find in memory. */
static void where(const struct lane *l, size_t page)
{
	const struct page *p = &l->page[page];
	snprintf(place, sizeof place, "; lane %c kind %d page %zu of %zu prot %d state %x", (int)('A' + (l - lanes)),
		 (int)l->kind, page, l->pages, p->prot, p->state);
}

/* Compares a page with its shadow, all of it, and takes it into the digest. */
static void look(struct lane *l, size_t page)
{
	if (!readable(l, page) || is(l, page, UNKNOWN))
		return;
	size_t n = bytes_of(l, page);
	const char *p = at(l, page), *reason = reasons[l->page[page].why];
	int sig = sigsetjmp(landing, 0);
	if (sig) {
		where(l, page);
		find("%sSIG%s: %s", looker, sigabbrev_np(sig), reason);
		l->page[page].prot = PROT_NONE; /* nobody looks again */
		return;
	}
	guarded = 1;
	bool same = is(l, page, ZERO) ? all_zero(p, n) : memcmp(p, shadow(l, page), n) == 0;
	if (is(l, page, ZERO) && same)
		mix(page);
	else
		mix_bytes(p, n);
	if (!same) {
		where(l, page);
		find("%swrong bytes: %s", looker, reason);
		believe(l, page);
	}
	guarded = 0;
}

/* Looks at what was written, and at a few pages that never were. */
static void look_over(struct lane *l, size_t from, size_t n)
{
	for (size_t i = from; i < from + n; i++)
		if (!is(l, i, ZERO))
			look(l, i);
	for (int k = 0; n > 0 && k < 4; k++)
		look(l, from + below(n));
}

static void look_at_all(const char *who)
{
	looker = who;
	for (int i = 0; i < LANES; i++)
		look_over(&lanes[i], 0, lanes[i].pages);
	looker = "";
}

/* The shadow's part of a write within one page: `n` bytes from `src`. */
static void note_written(struct lane *l, size_t page, size_t offset, const char *src, size_t n)
{
	char *to = shadow(l, page);
	if (is(l, page, ZERO))
		memset(to, 0, PAGE);
	memcpy(to + offset, src, n);
	l->page[page].state &= (unsigned char)~(ZERO | UNKNOWN);
	l->page[page].why = WRITTEN;
}

static void open_model(void)
{
	shadow_fd = memfd_create("shadow", MFD_CLOEXEC);
	NEED(shadow_fd >= 0 && ftruncate(shadow_fd, (LANES + 1) * LANE_BYTES) == 0);
	shadows = mmap(NULL, (LANES + 1) * LANE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, shadow_fd, 0);
	NEED(shadows != MAP_FAILED);
	finds = mmap(NULL, sizeof *finds, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	NEED(finds != MAP_FAILED);
	struct sigaction act = { .sa_sigaction = on_fault, .sa_flags = SA_SIGINFO | SA_NODEFER };
	NEED(sigaction(SIGSEGV, &act, NULL) == 0 && sigaction(SIGBUS, &act, NULL) == 0);
	lanes[HAND].pages = LANE_PAGES;
	for (int i = 0; i < ZONES; i++) {
		struct lane *l = &lanes[SLOTS + i];
		char *p = mmap(ZONE_AT(i), LANE_BYTES, PROT_NONE,
			       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE, -1, 0);
		NEED(p == ZONE_AT(i) && munmap(p, LANE_BYTES) == 0);
		begin(l, ZONE, p, LANE_BYTES);
	}
}

/* A child's shadow is its own. Its parent leaves the file alone until the child has ended. */
static void model_of_child(void)
{
	if (depth == 1)
		NEED(mmap(shadows, (LANES + 1) * LANE_BYTES, PROT_READ | PROT_WRITE,
			  MAP_PRIVATE | MAP_NORESERVE | MAP_FIXED, shadow_fd, 0) == shadows);
}

#endif
