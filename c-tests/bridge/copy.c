/* Proves: a peer's registered memory is got and put byte for byte, in any lengths and vectors; what is not registered or not permitted is refused without being touched. */
/*
 * copy: all of it. copy big: beyond the kernel's limit for one call (needs 5 GiB).
 * copy owner: lays out memory, says where, one `name address bytes` line each and `.`,
 * and answers questions on standard input; for other tests, too.
 */
#include "peers.h"

#define MIB (1ul << 20)
#define BIG (8 * MIB)
#define PART (4 * PAGE)

/* What stands at an offset of an area, before anything is put there. */
static unsigned char pattern(uint64_t offset)
{
	uint64_t x = (offset + 1) * 0x9e3779b97f4a7c15ull;
	return (unsigned char)(x >> 56 ^ x >> 24);
}

static void fill(char *p, size_t bytes)
{
	for (size_t i = 0; i < bytes; i++)
		p[i] = (char)pattern(i);
}

/* The areas, in the order in which they are told. */
enum { BIG_AREA, MIXED, NONE, OUT, GONE, READ_ONLY, WRITE_ONLY, FILE_END, HUGE_AREA, AREAS };
static const char *const NAMES[AREAS] = { "big", "mixed", "none", "out", "gone", "read-only", "write-only", "file-end", "huge" };

struct area {
	char *at;
	size_t bytes;
};

/* ---- the owner ---- */

static char *three_parts(void)
{
	char *p = anon(12);
	fill(p, 3 * PART);
	return p;
}

/* Entries of six kinds in a row. */
static struct area mixed(void)
{
	enum { KINDS = 6 };
	size_t part = 8 * PAGE, bytes = KINDS * part;
	char *p = reserve(bytes / PAGE);
	int shared = memory_file(part), file = memory_file(part);
	int flags = MAP_FIXED | MAP_PRIVATE | MAP_ANONYMOUS;
	char *content = malloc(bytes);
	NEED(content);
	fill(content, bytes);
	NEED(pwrite(file, content + 4 * part, part, 0) == (ssize_t)part);
	NEED(mmap(p, part, PROT_READ | PROT_WRITE, flags, -1, 0) == p);
	NEED(mmap(p + part, part, PROT_READ | PROT_WRITE, flags, -1, 0) == p + part);
	NEED(mmap(p + 2 * part, part, PROT_READ | PROT_WRITE, MAP_FIXED | MAP_SHARED, shared, 0) == p + 2 * part);
	NEED(mmap(p + 3 * part, part, PROT_READ | PROT_WRITE, flags, -1, 0) == p + 3 * part);
	NEED(mmap(p + 4 * part, part, PROT_READ, MAP_FIXED | MAP_PRIVATE, file, 0) == p + 4 * part);
	NEED(mmap(p + 5 * part, part, PROT_READ | PROT_WRITE, flags | MAP_NORESERVE, -1, 0) == p + 5 * part);
	memcpy(p, content, 4 * part);
	memcpy(p + 5 * part, content + 5 * part, part);
	NEED(mprotect(p + part, part, PROT_READ) == 0);
	NEED(mprotect(p + 3 * part, part, PROT_READ | PROT_EXEC) == 0);
	close(shared);
	close(file);
	free(content);
	return (struct area){ p, bytes };
}

static void lay_out(struct area *all, bool huge)
{
	all[BIG_AREA] = (struct area){ anon(BIG / PAGE), BIG };
	fill(all[BIG_AREA].at, BIG);
	all[MIXED] = mixed();
	for (int n = NONE; n < FILE_END; n++)
		all[n] = (struct area){ three_parts(), 3 * PART };
	NEED(mprotect(all[NONE].at + PART, PART, PROT_NONE) == 0);
	NEED(munmap(all[GONE].at + PART, PART) == 0);
	NEED(mprotect(all[READ_ONLY].at + PART, PART, PROT_READ) == 0);
	NEED(mprotect(all[WRITE_ONLY].at + PART, PART, PROT_WRITE) == 0);
	/* Untouched: whoever touches it brings a page. */
	NEED(regall_opt_out(all[OUT].at + PART, PART) == 0);
	NEED(madvise(all[OUT].at + PART, PART, MADV_DONTNEED) == 0);
	int file = memory_file(3 * PAGE - 100);
	char *p = mmap(NULL, 3 * PART, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
	NEED(p != MAP_FAILED);
	fill(p, 3 * PAGE - 100);
	all[FILE_END] = (struct area){ p, 3 * PART };
	all[HUGE_AREA] = (struct area){ NULL, 0 };
	if (huge) {
		size_t bytes = 0x80000000ul + 16 * MIB;
		p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
		NEED(p != MAP_FAILED);
		for (size_t at = 0; at < bytes; at += 61 * MIB + 8 * 1237)
			*(uint64_t *)(p + at) = at + 1;
		for (size_t at = 0x7ffff000ul - 2 * PAGE; at < 0x7ffff000ul + 2 * PAGE; at += 8)
			*(uint64_t *)(p + at) = at + 1;
		all[HUGE_AREA] = (struct area){ p, bytes };
	}
}

/* Pages of the opted-out part that are there. */
static int resident(const char *p)
{
	unsigned char in[PART / PAGE];
	NEED(mincore((void *)(uintptr_t)p, PART, in) == 0);
	int sum = 0;
	for (size_t i = 0; i < sizeof in; i++)
		sum += in[i] & 1;
	return sum;
}

/* Other memory at the same place, with the same in it. */
static int replace(char *area, size_t at)
{
	NEED(mmap(area + at, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == area + at);
	for (size_t i = at; i < at + PAGE; i++)
		area[i] = (char)pattern(i);
	return 0;
}

static int owner(bool huge)
{
	struct area all[AREAS];
	char line[128];
	lay_out(all, huge);
	for (int n = 0; n < AREAS; n++)
		say("%s %lu %lu", NAMES[n], (unsigned long)all[n].at, all[n].bytes);
	say(".");
	while (line_from(0, line, sizeof line)) {
		unsigned long area, at;
		if (strcmp(line, "resident") == 0)
			say("%d", resident(all[OUT].at + PART));
		else if (sscanf(line, "replace %lu %lu", &area, &at) == 2)
			say("%d", replace(all[area].at, at));
		else if (sscanf(line, "byte %lu %lu", &area, &at) == 2)
			say("%d", (unsigned char)all[area].at[at]);
	}
	return 0;
}

/* ---- the reader ---- */

static struct other owner_process;
static regall_peer *peer;
static struct area area[AREAS];

static void start_owner(bool huge)
{
	char *const argv[] = { "copy", huge ? "huge-owner" : "owner", NULL };
	char line[128], name[32];
	owner_process = start_other(true, argv);
	for (int n = 0; n < AREAS; n++) {
		unsigned long at, bytes;
		hear(&owner_process, line, sizeof line);
		NEED(sscanf(line, "%31s %lu %lu", name, &at, &bytes) == 3 && strcmp(name, NAMES[n]) == 0);
		area[n] = (struct area){ (char *)at, bytes };
	}
	hear(&owner_process, line, sizeof line);
	peer = open_peer(owner_process.pid, 0);
}

static uint64_t address(int n, uint64_t offset)
{
	return (uint64_t)(uintptr_t)area[n].at + offset;
}

static bool is_pattern(const char *p, size_t len, uint64_t offset)
{
	for (size_t i = 0; i < len; i++)
		if ((unsigned char)p[i] != pattern(offset + i))
			return false;
	return true;
}

/* A get of len at an offset of an area: `want` bytes come, and nothing behind them. */
static void gets(int line, int n, uint64_t offset, size_t len, int result, size_t want)
{
	static char buffer[2 * MIB];
	struct regall_done done = { 1, 2, 3, 4 };
	memset(buffer, 0x5a, len + 16);
	int r = regall_get(peer, buffer, address(n, offset), len, &done);
	bool right = r == result && done.bytes == want && is_pattern(buffer, want, offset) &&
		     all_are(buffer + want, len + 16 - want, 0x5a);
	/* Where nothing was copied nothing is said of who did it. */
	right &= want == 0 || (done.mechanism != REGALL_COPY_NONE && done.generation != 0);
	if (!right) {
		say("line %d: get of %zu from %s+%lu: %d, %lu bytes by %u of generation %lu; not %d, %zu", line, len, NAMES[n],
		    (unsigned long)offset, r, (unsigned long)done.bytes, done.mechanism,
		    (unsigned long)done.generation, result, want);
		wrong++;
	}
}
#define GET(n, offset, len) gets(__LINE__, n, offset, len, 0, len)
#define GET_OF(n, offset, len, result, want) gets(__LINE__, n, offset, len, result, want)

/* A put, read back by a get and by the owner's own eyes, and undone. */
static void puts_at(int line, int n, uint64_t offset, size_t len, int result, size_t want)
{
	static char ours[2 * MIB], theirs[2 * MIB];
	struct regall_done done = { 1, 2, 3, 4 };
	char question[64];
	for (size_t i = 0; i < len; i++)
		ours[i] = (char)~pattern(offset + i);
	int r = regall_put(peer, ours, address(n, offset), len, &done);
	bool right = r == result && done.bytes == want;
	if (want > 0 && n != WRITE_ONLY) {
		IS(0, regall_get(peer, theirs, address(n, offset), want, NULL));
		right &= memcmp(ours, theirs, want) == 0;
	}
	if (want > 0) {
		snprintf(question, sizeof question, "byte %d %lu", n, (unsigned long)(offset + want - 1));
		right &= ask(&owner_process, question) == (unsigned char)ours[want - 1];
	}
	if (!right) {
		say("line %d: put of %zu to %s+%lu: %d, %lu bytes; not %d, %zu", line, len, NAMES[n], (unsigned long)offset, r,
		    (unsigned long)done.bytes, result, want);
		wrong++;
	}
	for (size_t i = 0; i < want; i++)
		ours[i] = (char)pattern(offset + i);
	IS(0, regall_put(peer, ours, address(n, offset), want, NULL));
}
#define PUT(n, offset, len) puts_at(__LINE__, n, offset, len, 0, len)
#define PUT_OF(n, offset, len, result, want) puts_at(__LINE__, n, offset, len, result, want)

static void sizes(void)
{
	static const size_t SIZES[] = { 0, 1, 7, 4095, 4096, 4097, 65536, MIB };
	static const size_t OFFSETS[] = { 0, 1, 4095, 4096, 12345 };
	for (size_t s = 0; s < sizeof SIZES / sizeof *SIZES; s++)
		for (size_t o = 0; o < sizeof OFFSETS / sizeof *OFFSETS; o++) {
			GET(BIG_AREA, OFFSETS[o], SIZES[s]);
			PUT(BIG_AREA, OFFSETS[o], SIZES[s]);
		}
	/* Of no bytes nothing is asked, not even that the address is registered. */
	IS(0, regall_get(peer, NULL, 0, 0, NULL));
	IS(0, regall_getv(peer, NULL, 0, NULL, 0, NULL));
	/* More than one piece. */
	char *all = malloc(BIG);
	struct regall_done done;
	NEED(all);
	IS(0, regall_get(peer, all, address(BIG_AREA, 0), BIG, &done));
	IS(BIG, done.bytes);
	HOLDS(is_pattern(all, BIG, 0));
	free(all);
}

static void across_entries(void)
{
	GET(MIXED, 0, area[MIXED].bytes);
	for (int n = 0; n < 200; n++) {
		uint64_t from = draw(area[MIXED].bytes);
		size_t len = draw(area[MIXED].bytes - from) + 1;
		GET(MIXED, from, len);
	}
	/* The first part may be written, the second not; the third may. */
	size_t part = 8 * PAGE;
	PUT_OF(MIXED, part - 100, 200, -EACCES, 100);
	PUT_OF(MIXED, part, 1, -EACCES, 0);
	PUT(MIXED, 2 * part, part);
	PUT_OF(MIXED, 2 * part + 5, part, -EACCES, part - 5);
	PUT_OF(MIXED, 4 * part, 10, -EACCES, 0);
	PUT(MIXED, 5 * part, part);
}

/* Refused, what is before it transferred, and where that begins with it, nothing. */
static void refusals(void)
{
	static const struct {
		int area, get, put;
	} ALL[] = {
		{ NONE, -EFAULT, -EFAULT },	  { OUT, -EFAULT, -EFAULT },	      { GONE, -EFAULT, -EFAULT },
		{ READ_ONLY, 0, -EACCES }, { WRITE_ONLY, -EACCES, 0 },
	};
	for (size_t i = 0; i < sizeof ALL / sizeof *ALL; i++) {
		int n = ALL[i].area;
		if (ALL[i].get == 0) {
			GET(n, 0, 3 * PART);
		} else {
			GET_OF(n, 0, 3 * PART, ALL[i].get, PART);
			GET_OF(n, PART - 1, 2, ALL[i].get, 1);
			GET_OF(n, PART, 1, ALL[i].get, 0);
			GET_OF(n, 2 * PART - 1, 2, ALL[i].get, 0);
		}
		GET(n, 2 * PART, PART);
		if (ALL[i].put == 0) {
			PUT(n, PART, PART);
		} else {
			PUT_OF(n, 0, 3 * PART, ALL[i].put, PART);
			PUT_OF(n, PART - 1, 2, ALL[i].put, 1);
			PUT_OF(n, PART + 1, 1, ALL[i].put, 0);
		}
		PUT(n, 2 * PART, PART);
	}
	/* No protection is no access, by whatever name. */
	int none = regall_get(peer, &none, address(NONE, PART), 1, NULL);
	HOLDS(none == -EFAULT || none == -EACCES);
	/* Beyond the page that holds a file's end there is nothing. */
	GET(FILE_END, 0, 3 * PAGE - 100);
	char byte[200];
	struct regall_done done;
	IS(0, regall_get(peer, byte, address(FILE_END, 3 * PAGE - 100), 100, NULL));
	HOLDS(all_are(byte, 100, 0));
	IS(-EFAULT, regall_get(peer, byte, address(FILE_END, 3 * PAGE - 100), 200, &done));
	IS(100, done.bytes);
	IS(-EFAULT, regall_get(peer, byte, address(FILE_END, 3 * PAGE), 1, &done));
	IS(0, done.bytes);
	IS(-EFAULT, regall_put(peer, byte, address(FILE_END, 3 * PAGE), 1, &done));
	IS(0, done.bytes);
	/* Addresses that nobody has, and that wrap. */
	static const uint64_t NOWHERE[] = { 0, 1, 1ul << 46, 0x7ffffffff000, 1ul << 47, 1ul << 63, UINT64_MAX - 4095, UINT64_MAX };
	for (size_t i = 0; i < sizeof NOWHERE / sizeof *NOWHERE; i++) {
		IS(-EFAULT, regall_get(peer, byte, NOWHERE[i], 100, &done));
		IS(0, done.bytes);
		IS(-EFAULT, regall_put(peer, byte, NOWHERE[i], 100, &done));
		IS(0, done.bytes);
	}
	/* What is ours and can't be written, or read. */
	char *p = anon(2);
	NEED(munmap(p + PAGE, PAGE) == 0);
	IS(-EFAULT, regall_get(peer, p + PAGE - 10, address(BIG_AREA, 0), 20, &done));
	IS(10, done.bytes);
	HOLDS(is_pattern(p + PAGE - 10, 10, 0));
	IS(-EFAULT, regall_put(peer, p + PAGE, address(BIG_AREA, 0), 20, &done));
	IS(0, done.bytes);
	NEED(munmap(p, PAGE) == 0);
}

/* What was known of memory is forgotten when there is other memory. */
static void replaced(void)
{
	for (int n = 0; n < 20; n++) {
		char line[64];
		size_t at = draw(BIG / PAGE) * PAGE;
		GET(BIG_AREA, at, PAGE);
		snprintf(line, sizeof line, "replace %d %lu", BIG_AREA, (unsigned long)at);
		ask(&owner_process, line);
		GET(BIG_AREA, at, PAGE);
		GET(BIG_AREA, at, 3 * PAGE < BIG - at ? 3 * PAGE : PAGE);
	}
}

/* What has been opted out was refused above, and nobody has brought its pages. */
static void untouched(void)
{
	IS(0, ask(&owner_process, "resident"));
	/* The kernel's own way touches it, so this would have been seen. */
	char byte;
	struct iovec to = { &byte, 1 }, from = { area[OUT].at + PART, 1 };
	IS(1, process_vm_readv(owner_process.pid, &to, 1, &from, 1, 0));
	IS(1, ask(&owner_process, "resident"));
}

static void bad_arguments(void)
{
	struct regall_segment one = { address(BIG_AREA, 0), 1 };
	char byte;
	IS(-EINVAL, regall_get(NULL, &byte, one.addr, 1, NULL));
	IS(-EINVAL, regall_put(NULL, &byte, one.addr, 1, NULL));
	IS(-EINVAL, regall_getv(peer, NULL, 1, &one, 1, NULL));
	IS(-EINVAL, regall_putv(peer, &one, 1, NULL, 1, NULL));
	IS(-EINVAL, regall_peer_open(owner_process.pid, 0, 0, NULL));
	regall_peer *other = NULL;
	IS(-EINVAL, regall_peer_open(0, 0, 0, &other));
	IS(-EINVAL, regall_peer_open(-1, 0, 0, &other));
	IS(-EINVAL, regall_peer_open(owner_process.pid, 0, 0x80000000u, &other));
	IS(-ESRCH, regall_peer_open(owner_process.pid, 12345, 0, &other));
	IS(-ESRCH, regall_peer_open(0x7ffffff0, 0, 0, &other));
	IS(-EINVAL, regall_peer_close(NULL));
	IS(-EINVAL, regall_peer_check(NULL));
	IS(0, regall_peer_check(peer));
	HOLDS(other == NULL);
}

static void found_among_peers(void)
{
	struct regall_process all[4096];
	int n = regall_peers(all, 4096);
	bool found = false;
	HOLDS(n >= 1 && n <= 4096);
	for (int i = 0; i < n; i++)
		if (all[i].pid == owner_process.pid) {
			regall_peer *same = NULL;
			found = true;
			IS(0, regall_peer_open(all[i].pid, all[i].start_time, 0, &same));
			IS(0, regall_peer_close(same));
		}
	HOLDS(found);
	IS(-EINVAL, regall_peers(NULL, 1));
	HOLDS(regall_peers(NULL, 0) >= 1);
}

/* ---- vectors ---- */

#define MANY 5000

/* Cuts 0..bytes of an address into `count` segments, some of them empty, in a random
 * order if they need not follow each other. */
static size_t cut(struct regall_segment *v, size_t count, uint64_t base, size_t bytes, size_t gap)
{
	size_t at = 0, sum = 0;
	for (size_t i = 0; i < count; i++) {
		size_t len = draw(4) == 0 ? 0 : draw(2 * (bytes - at) / (count - i) + 1);
		if (count == 1)
			len = bytes;
		if (len > bytes - at)
			len = bytes - at;
		v[i] = (struct regall_segment){ base + at, len };
		sum += len;
		at += len + (gap ? draw(gap) : 0);
		if (at > bytes)
			at = bytes;
	}
	for (size_t i = count - 1; i > 0; i--) {
		size_t j = draw(i + 1);
		struct regall_segment t = v[i];
		v[i] = v[j];
		v[j] = t;
	}
	return sum;
}

/* The byte at place `at` of a vector. */
struct walk {
	const struct regall_segment *v;
	size_t into;
};

static uint64_t next_address(struct walk *w)
{
	while (w->into == w->v->len) {
		w->v++;
		w->into = 0;
	}
	return w->v->addr + w->into++;
}

static void vector_pair(size_t locals, size_t remotes, size_t bytes)
{
	static struct regall_segment here[MANY], there[MANY];
	static char buffer[MIB], sent[MIB];
	struct regall_done done;
	size_t a = cut(here, locals, (uint64_t)(uintptr_t)buffer, bytes, 20);
	size_t b = cut(there, remotes, address(BIG_AREA, 0), bytes, 20);
	size_t both = a < b ? a : b;
	memset(buffer, 0x5a, sizeof buffer);
	IS(0, regall_getv(peer, here, locals, there, remotes, &done));
	IS(both, done.bytes);
	struct walk l = { here, 0 }, r = { there, 0 };
	size_t bad = 0;
	for (size_t i = 0; i < both; i++) {
		char *p = (char *)(uintptr_t)next_address(&l);
		bad += (unsigned char)*p != pattern(next_address(&r) - address(BIG_AREA, 0));
		*p = 0x5a;
	}
	IS(0, bad);
	/* Nothing beside the segments, or beyond the shorter side. */
	HOLDS(all_are(buffer, sizeof buffer, 0x5a));
	/* And back, with other bytes. */
	for (size_t i = 0; i < sizeof buffer; i++)
		sent[i] = buffer[i] = (char)draw(256);
	IS(0, regall_putv(peer, here, locals, there, remotes, &done));
	IS(both, done.bytes);
	IS(0, memcmp(sent, buffer, sizeof buffer));
	static char whole[MIB], want[MIB];
	IS(0, regall_get(peer, whole, address(BIG_AREA, 0), MIB, NULL));
	fill(want, MIB);
	l = (struct walk){ here, 0 };
	r = (struct walk){ there, 0 };
	for (size_t i = 0; i < both; i++) {
		char c = *(char *)(uintptr_t)next_address(&l);
		want[next_address(&r) - address(BIG_AREA, 0)] = c;
	}
	IS(0, memcmp(whole, want, MIB));
	fill(want, MIB);
	IS(0, regall_put(peer, want, address(BIG_AREA, 0), MIB, NULL));
}

static void vectors(void)
{
	static const size_t COUNTS[] = { 1, 2, 127, 128, 129, 1024, 1025, MANY };
	for (size_t i = 0; i < sizeof COUNTS / sizeof *COUNTS; i++)
		for (size_t j = 0; j < sizeof COUNTS / sizeof *COUNTS; j++)
			vector_pair(COUNTS[i], COUNTS[j], 300000);
	vector_pair(MANY, MANY, 5000); /* of a byte each, or none */
	/* Only empty ones. */
	struct regall_segment empty[3] = { { 0, 0 }, { 1, 0 }, { UINT64_MAX, 0 } };
	struct regall_segment one = { address(BIG_AREA, 0), 1 };
	struct regall_done done = { 9, 9, 9, 9 };
	IS(0, regall_getv(peer, empty, 3, &one, 1, &done));
	IS(0, done.bytes);
	/* The 200th of 300 is refused: what is before it has come. */
	static struct regall_segment there[300];
	static char buffer[300 * 10];
	struct regall_segment here = { (uint64_t)(uintptr_t)buffer, sizeof buffer };
	for (size_t i = 0; i < 300; i++)
		there[i] = (struct regall_segment){ address(BIG_AREA, i * 5000), 10 };
	there[200].addr = address(OUT, PART - 3);
	memset(buffer, 0x5a, sizeof buffer);
	IS(-EFAULT, regall_getv(peer, &here, 1, there, 300, &done));
	IS(2003, done.bytes);
	for (size_t i = 0; i < 200; i++)
		HOLDS(is_pattern(buffer + 10 * i, 10, i * 5000));
	HOLDS(is_pattern(buffer + 2000, 3, PART - 3) && all_are(buffer + 2003, 997, 0x5a));
}

/* Beyond 0x7ffff000 bytes, the most that the kernel takes at a time. */
static int big(void)
{
	start_owner(true);
	size_t bytes = area[HUGE_AREA].bytes;
	char *ours = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	NEED(ours != MAP_FAILED);
	madvise(ours, bytes, MADV_HUGEPAGE);
	struct regall_done done;
	IS(0, regall_get(peer, ours, address(HUGE_AREA, 0), bytes, &done));
	IS(bytes, done.bytes);
	size_t set = 0, words = 0;
	for (size_t at = 0; at < bytes; at += 8) {
		uint64_t word = *(uint64_t *)(ours + at);
		words += word != 0;
		set += word == at + 1;
	}
	IS(words, set);
	IS((bytes + 61 * MIB + 8 * 1237 - 1) / (61 * MIB + 8 * 1237) + 4 * PAGE / 8, words);
	/* A put of as much, to the same place over and over: the last of it stays. */
	static struct regall_segment there[4096];
	struct regall_segment here = { (uint64_t)(uintptr_t)ours, bytes };
	size_t count = bytes / MIB;
	for (size_t i = 0; i < count; i++)
		there[i] = (struct regall_segment){ address(HUGE_AREA, 0), MIB };
	*(uint64_t *)(ours + bytes - 8) = 42;
	IS(0, regall_putv(peer, &here, 1, there, count, &done));
	IS(bytes, done.bytes);
	uint64_t word = 0;
	IS(0, regall_get(peer, &word, address(HUGE_AREA, MIB - 8), 8, NULL));
	IS(42, word);
	end_other(&owner_process);
	return verdict();
}

int main(int argc, char **argv)
{
	if (argc > 1 && strstr(argv[1], "owner"))
		return owner(strcmp(argv[1], "huge-owner") == 0);
	no_longer_than(110);
	if (argc > 1 && strcmp(argv[1], "big") == 0)
		return big();
	start_owner(false);
	sizes();
	across_entries();
	refusals();
	vectors();
	replaced();
	untouched();
	bad_arguments();
	found_among_peers();
	IS(0, regall_peer_close(peer));
	end_other(&owner_process);
	return verdict();
}
