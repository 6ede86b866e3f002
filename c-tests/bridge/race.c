/* Proves: of a peer that maps, unmaps and replaces memory as fast as it can, a get brings only bytes that were there in the generation that it reports, or says that they are gone. */
/*
 * race [gets]. The owner has two arenas. Every 8 bytes of every mapping in them are a
 * stamp: the mapping's number and the place in the arena. In the first arena memory is
 * anonymous, so it is zero until it is stamped; in the second it is of files that have
 * been stamped before they are mapped, so nothing but stamps is ever there. For each
 * mapping the owner notes in memory that is shared with the reader what the generation
 * of its directory was before it was mapped and after it was gone. A get that reports
 * generation G, that of the newest entry it has used, and brings a stamp is right only if
 *     before the mapping < G, and the mapping was not gone when the call began;
 * and if all of it is in one page, so that it is of one entry, only if
 *     before the mapping < G <= when it was gone, and no other stamp came with it.
 */
#include <sys/prctl.h>
#include "peers.h"

#define ARENA_PAGES 64ul
#define ARENA (ARENA_PAGES * PAGE)
#define RECORDS (1u << 20)
#define AT_MOST 8

enum { ANON, FILES, ARENAS };

/* Of one mapping. */
struct record {
	uint64_t number;
	uint64_t before; /* generation before it was mapped */
	uint64_t gone;	 /* when the last of it was unmapped; 0: it is there */
};

struct shared {
	uint64_t arena[ARENAS];
	uint64_t mapped;
	bool over;
	/* Of each arena's pages the mapping that is there; 0: none. */
	uint64_t there[ARENAS][ARENA_PAGES];
	struct record record[RECORDS];
};

static struct shared *shared;

static uint64_t stamp(uint64_t number, uint64_t word)
{
	return number << 16 | word;
}

static struct record *record_of(uint64_t number)
{
	return &shared->record[number % RECORDS];
}

static const volatile uint64_t *directory;

/* Word 6 of the directory's header. */
static uint64_t generation(void)
{
	return __atomic_load_n(&directory[6], __ATOMIC_ACQUIRE);
}

/* The owner's directory, found among its mappings. */
static void find_directory(pid_t pid)
{
	char line[512], name[64];
	snprintf(name, sizeof name, "/proc/%d/maps", (int)pid);
	FILE *f = fopen(name, "r");
	NEED(f);
	snprintf(name, sizeof name, "/dev/shm/regall-%d/%d.", (int)geteuid(), (int)pid);
	while (fgets(line, sizeof line, f)) {
		char *path = strstr(line, name);
		if (!path || directory)
			continue;
		path[strcspn(path, "\n")] = 0;
		int fd = open(path, O_RDONLY | O_CLOEXEC);
		directory = mmap(NULL, PAGE, PROT_READ, MAP_SHARED, fd, 0);
		NEED(fd >= 0 && directory != MAP_FAILED);
		close(fd);
	}
	fclose(f);
	NEED(directory);
}

/* ---- the owner ---- */

/* Pages that a mapping still has, by number. */
static unsigned pages_of[RECORDS];
/* These pages have gone, as of now. */
static void note_gone(int arena, size_t from, size_t pages)
{
	uint64_t now = generation();
	for (size_t i = from; i < from + pages; i++) {
		uint64_t number = shared->there[arena][i];
		shared->there[arena][i] = 0;
		if (number && --pages_of[number % RECORDS] == 0)
			__atomic_store_n(&record_of(number)->gone, now, __ATOMIC_RELEASE);
	}
}

static void write_stamps(uint64_t *to, uint64_t number, size_t first, size_t words)
{
	for (size_t i = 0; i < words; i++)
		to[i] = stamp(number, first + i);
}

static void map_some(int arena, char *base)
{
	size_t from = draw(ARENA_PAGES), pages = draw(AT_MOST) + 1;
	if (pages > ARENA_PAGES - from)
		pages = ARENA_PAGES - from;
	uint64_t number = ++shared->mapped;
	struct record *r = record_of(number);
	char *p = base + from * PAGE;
	size_t first = from * PAGE / 8, words = pages * PAGE / 8;
	*r = (struct record){ number, generation(), 0 };
	pages_of[number % RECORDS] = (unsigned)pages;
	if (arena == FILES) {
		/* A file of its own: what is mapped twice would change in both places. */
		static uint64_t content[AT_MOST * PAGE / 8];
		int file = memfd_create("stamps", MFD_CLOEXEC);
		write_stamps(content, number, first, words);
		NEED(file >= 0 && pwrite(file, content, words * 8, 0) == (ssize_t)(words * 8));
		NEED(mmap(p, pages * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file, 0) == p);
		close(file);
	} else {
		NEED(mmap(p, pages * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == p);
		write_stamps((uint64_t *)p, number, first, words);
	}
	/* What was there before went when the new one came. */
	note_gone(arena, from, pages);
	for (size_t i = from; i < from + pages; i++)
		shared->there[arena][i] = number;
}

static void unmap_some(int arena, char *base)
{
	size_t from = draw(ARENA_PAGES), pages = draw(AT_MOST) + 1;
	if (pages > ARENA_PAGES - from)
		pages = ARENA_PAGES - from;
	NEED(munmap(base + from * PAGE, pages * PAGE) == 0);
	note_gone(arena, from, pages);
}

static void hide_some(int arena, char *base)
{
	size_t at = draw(ARENA_PAGES);
	if (!shared->there[arena][at])
		return;
	NEED(mprotect(base + at * PAGE, PAGE, PROT_NONE) == 0);
	NEED(mprotect(base + at * PAGE, PAGE, PROT_READ | PROT_WRITE) == 0);
}

static int owner(void)
{
	char *base[ARENAS];
	shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, 3, 0);
	NEED(shared != MAP_FAILED);
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	find_directory(getpid());
	for (int a = 0; a < ARENAS; a++) {
		/* Far below where the kernel puts what has no address of its own: its holes stay ours. */
		base[a] = (char *)(0x100000000000ul + (uintptr_t)a * 0x10000000ul);
		NEED(mmap(base[a], ARENA, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0) == base[a]);
		shared->arena[a] = (uint64_t)(uintptr_t)base[a];
	}
	say("%d", 0);
	while (!__atomic_load_n(&shared->over, __ATOMIC_RELAXED)) {
		int arena = (int)draw(ARENAS);
		switch (draw(6)) {
		case 0:
		case 1:
		case 2:
			map_some(arena, base[arena]);
			break;
		case 3:
			unmap_some(arena, base[arena]);
			break;
		default:
			hide_some(arena, base[arena]);
		}
	}
	say("%lu", (unsigned long)shared->mapped);
	for (;;)
		pause();
}

/* ---- the reader ---- */

static struct {
	long all, stale, fault, access, bytes, zeros;
} sum_of;

static void bad(const char *what, uint64_t addr, uint64_t word, const struct regall_done *done)
{
	struct record *r = record_of(word >> 16);
	if (wrong++ < 10)
		say("%s: at %#lx %#lx, generation %lu; mapping %lu: %lu..%lu", what, (unsigned long)addr, (unsigned long)word,
		    (unsigned long)done->generation, (unsigned long)r->number, (unsigned long)r->before,
		    (unsigned long)r->gone);
}

/* What came from `addr` on, an address of arena `a`, by a call that began at generation
 * `began`; `one` if all of it is in one page. */
static void judge(int a, uint64_t addr, const uint64_t *words, size_t count, const struct regall_done *done,
		  uint64_t began, bool one)
{
	uint64_t first = 0;
	for (size_t i = 0; i < count; i++) {
		uint64_t place = (addr + 8 * i - shared->arena[a]) / 8, word = words[i];
		if (word == 0) {
			sum_of.zeros++;
			if (a == FILES)
				bad("zero in a file that never was", addr + 8 * i, word, done);
			continue;
		}
		struct record *r = record_of(word >> 16);
		uint64_t gone = __atomic_load_n(&r->gone, __ATOMIC_ACQUIRE);
		first = first ? first : word >> 16;
		if ((word & 0xffff) != place)
			bad("of another address", addr + 8 * i, word, done);
		else if (r->number != word >> 16)
			bad("of a mapping long gone", addr + 8 * i, word, done);
		else if (done->generation <= r->before)
			bad("of a mapping that was not yet there", addr + 8 * i, word, done);
		else if (gone && gone < (one ? done->generation : began))
			bad("of a mapping that was gone", addr + 8 * i, word, done);
		else if (one && first != word >> 16)
			bad("two mappings in one entry", addr + 8 * i, word, done);
	}
}

static void one_get(regall_peer *peer)
{
	enum { SEGMENTS = 4 };
	static uint64_t buffer[SEGMENTS * AT_MOST * PAGE / 8];
	struct regall_segment from[SEGMENTS], to = { (uint64_t)(uintptr_t)buffer, 0 };
	int arena[SEGMENTS];
	size_t count = draw(4) ? 1 : draw(SEGMENTS) + 1, sum = 0;
	for (size_t i = 0; i < count; i++) {
		arena[i] = (int)draw(ARENAS);
		size_t at = draw(ARENA / 8), words = draw(3) ? draw(16) + 1 : draw(AT_MOST * PAGE / 8) + 1;
		if (words > ARENA / 8 - at)
			words = ARENA / 8 - at;
		from[i] = (struct regall_segment){ shared->arena[arena[i]] + 8 * at, 8 * words };
		sum += 8 * words;
	}
	to.len = sum;
	struct regall_done done;
	uint64_t began = generation();
	int r = regall_getv(peer, &to, 1, from, count, &done);
	sum_of.all++;
	sum_of.bytes += (long)done.bytes;
	sum_of.stale += r == -ESTALE;
	sum_of.fault += r == -EFAULT;
	sum_of.access += r == -EACCES;
	if (r != 0 && r != -ESTALE && r != -EFAULT && r != -EACCES)
		bad(strerrorname_np(-r), from[0].addr, 0, &done);
	if (done.bytes > sum || (r == 0) != (done.bytes == sum) || done.bytes % 8)
		bad("a count", from[0].addr, done.bytes, &done);
	bool one = count == 1 && from[0].addr / PAGE == (from[0].addr + sum - 1) / PAGE;
	size_t at = 0;
	for (size_t i = 0; i < count && at < done.bytes; i++) {
		size_t len = from[i].len < done.bytes - at ? from[i].len : done.bytes - at;
		judge(arena[i], from[i].addr, buffer + at / 8, len / 8, &done, began, one);
		at += len;
	}
}

/* Now that nothing changes any more, each page is there or not: what was known of it
 * before is not held against it. */
static void all_quiet(regall_peer *peer)
{
	for (int a = 0; a < ARENAS; a++)
		for (size_t i = 0; i < ARENA_PAGES; i++) {
			uint64_t word = 0, addr = shared->arena[a] + i * PAGE, number = shared->there[a][i];
			IS(number ? 0 : -EFAULT, regall_get(peer, &word, addr, 8, NULL));
			IS(number ? stamp(number, i * PAGE / 8) : 0, word);
		}
}

int main(int argc, char **argv)
{
	if (argc > 1 && strcmp(argv[1], "owner") == 0)
		return owner();
	long gets = argc > 1 ? atol(argv[1]) : 1000000;
	no_longer_than(300);
	int fd = memfd_create("records", 0);
	NEED(fd == 3 || (fd > 0 && dup2(fd, 3) == 3 && close(fd) == 0));
	NEED(ftruncate(3, sizeof *shared) == 0);
	shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, 3, 0);
	NEED(shared != MAP_FAILED);
	char *const arguments[] = { "race", "owner", NULL };
	struct other o = start_other(true, arguments);
	hear_number(&o);
	seed_of_draws += now_ns();
	uint64_t seed = seed_of_draws, start = now_ns();
	regall_peer *peer = open_peer(o.pid, 0);
	find_directory(o.pid);
	while (sum_of.all < gets && wrong < 10)
		one_get(peer);
	__atomic_store_n(&shared->over, true, __ATOMIC_RELAXED);
	uint64_t mapped = hear_number(&o);
	all_quiet(peer);
	say("%ld gets, %lu mappings, %.1f s: %ld bytes, %ld zero words; %ld stale, %ld not registered, %ld not readable; seed %lu",
	    sum_of.all, (unsigned long)mapped, (double)(now_ns() - start) / 1e9, sum_of.bytes, sum_of.zeros, sum_of.stale, sum_of.fault,
	    sum_of.access, (unsigned long)seed);
	/* Or it has shown nothing. */
	HOLDS(sum_of.bytes > 0 && sum_of.stale > 0 && sum_of.fault > 0);
	end_other(&o);
	return verdict();
}
