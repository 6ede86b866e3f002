/* Proves: what fits without regall fits with it. Each row maps much and touches little, as programs do that were killed. */
#include <pthread.h>
#include "../check.h"

#define MIB (1ul << 20)

/* Touches a page each `step` bytes; the sum of what was there. */
static unsigned long touch(char *p, size_t bytes, size_t step)
{
	unsigned long sum = 0;
	for (size_t at = 0; at < bytes; at += step) {
		sum += (unsigned char)p[at];
		p[at] = 1;
	}
	return sum;
}

/* malloc of 15 x 2 GB, 1 MB touched. */
static void large(void)
{
	for (int i = 0; i < 15; i++) {
		char *p = malloc(2048 * MIB);
		NEED(p);
		say("%d: %lu", i, touch(p, 64 * 1024, PAGE));
	}
}

/* A matrix of 12.8 GB, used sparsely. */
static void sparse(void)
{
	char *p = calloc(40000ul * 40000, 8);
	NEED(p);
	say("%lu", touch(p, 40000ul * 40000 * 8, 16 * MIB));
}

/* A segment of 200 MB where there are 64, written here and there; two of them, and one that
 * is copied on write. */
static void segment(const char *folder)
{
	for (int i = 0; i < 3; i++) {
		char path[256];
		snprintf(path, sizeof path, "%s/segment%d", folder, i);
		int fd = open(path, O_RDWR | O_CREAT | O_EXCL, 0600);
		NEED(fd >= 0 && ftruncate(fd, 200 * MIB) == 0);
		char *p = mmap(NULL, 200 * MIB, PROT_READ | PROT_WRITE, i == 2 ? MAP_PRIVATE : MAP_SHARED, fd, 0);
		NEED(p != MAP_FAILED);
		say("%d: %lu then %lu", i, touch(p, 200 * MIB, 8 * MIB), touch(p, 200 * MIB, 8 * MIB));
		close(fd);
	}
}

static void *thread(void *unused)
{
	(void)unused;
	char stack[32 * PAGE];
	return (void *)touch(memset(stack, 0, sizeof stack), sizeof stack, PAGE);
}

/* As managed runtimes do: much reserved, some of it made accessible, less touched; threads. */
static void reserves(void)
{
	char *p = mmap(NULL, 4096 * MIB, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	NEED(p != MAP_FAILED);
	for (size_t at = 0; at < 1024 * MIB; at += 32 * MIB) {
		NEED(mprotect(p + at, 32 * MIB, PROT_READ | PROT_WRITE) == 0);
		touch(p + at, 128 * 1024, PAGE);
	}
	pthread_t threads[48];
	for (int i = 0; i < 48; i++)
		NEED(pthread_create(&threads[i], NULL, thread, NULL) == 0);
	for (int i = 0; i < 48; i++)
		NEED(pthread_join(threads[i], NULL) == 0);
	say("%lu", touch(p, 1024 * MIB, 32 * MIB));
}

/* A heap that grows and shrinks, and is given back. */
static void heap(void)
{
	unsigned long sum = 0;
	for (int i = 0; i < 40; i++) {
		char *p = sbrk(64 * MIB);
		NEED(p != (void *)-1);
		sum += touch(p, 64 * MIB, 32 * MIB);
		if (i % 4 == 3)
			NEED(sbrk(-128 * (long)MIB) != (void *)-1);
	}
	say("%lu", sum);
}

/* Writes to each page its number and `round`; before that, what the last round wrote must be there. */
static void fill(const char *what, char *p, size_t bytes, size_t round)
{
	size_t wrong = 0;
	for (size_t at = 0; at < bytes; at += PAGE) {
		size_t *word = (size_t *)(p + at);
		wrong += round && *word != (at ^ (round - 1));
		*word = at ^ round;
	}
	say("round %zu of %s: %zu wrong", round, what, wrong);
}

/* 64 MB are in use, part of them in the swap space where there is less memory. */
static void swaps(void)
{
	int fd = memfd_create("shared", 0);
	NEED(fd >= 0 && ftruncate(fd, 16 * MIB) == 0);
	char *own = anon(32 * MIB / PAGE), *heap = sbrk(16 * MIB);
	char *shared = mmap(NULL, 16 * MIB, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	NEED(shared != MAP_FAILED && heap != (void *)-1);
	heap += -(uintptr_t)heap % PAGE;
	for (size_t round = 0; round < 3; round++) {
		fill("anonymous memory", own, 32 * MIB, round);
		fill("a heap", heap, 15 * MIB, round);
		fill("shared memory", shared, 16 * MIB, round);
	}
}

/* How many of so many pages are resident. */
static size_t resident(void *p, size_t pages)
{
	static unsigned char is[1024];
	size_t many = 0;
	NEED(pages <= sizeof is && mincore(p, pages * PAGE, is) == 0);
	for (size_t i = 0; i < pages; i++)
		many += is[i] & 1;
	return many;
}

/* What calls populate that ask for it, and locks of the program's own. */
static void populates(void)
{
	static const struct { const char *name; int flags; } ways[] = {
		{ "plain", 0 }, { "populate", MAP_POPULATE }, { "locked", MAP_LOCKED }
	};
	static const int locks[] = { 0, MCL_FUTURE, MCL_FUTURE | MCL_ONFAULT, MCL_CURRENT };
	for (int l = 0; l < 4; l++) {
		NEED(munlockall() == 0 && (locks[l] == 0 || mlockall(locks[l]) == 0));
		for (int w = 0; w < 3; w++) {
			char *p = mmap(NULL, 256 * PAGE, PROT_READ | PROT_WRITE,
				       MAP_PRIVATE | MAP_ANONYMOUS | ways[w].flags, -1, 0);
			NEED(p != MAP_FAILED);
			size_t at_first = resident(p, 256);
			p = mremap(p, 256 * PAGE, 512 * PAGE, MREMAP_MAYMOVE);
			NEED(p != MAP_FAILED);
			size_t grown = resident(p, 512);
			NEED(madvise(p + 300 * PAGE, 10 * PAGE, MADV_POPULATE_WRITE) == 0);
			say("%d %s: %zu, %zu, %zu", locks[l], ways[w].name, at_first, grown, resident(p, 512));
			NEED(munmap(p, 512 * PAGE) == 0);
		}
		char *heap = sbrk(256 * PAGE);
		NEED(heap != (void *)-1);
		heap += -(uintptr_t)heap % PAGE;
		say("%d heap: %zu", locks[l], resident(heap, 255));
	}
}

/* Opens a file of which nothing is in the page cache: what an earlier run has left there is not
 * charged to this one's cgroup. */
static int cold(const char *path, int how)
{
	int fd = open(path, how);
	NEED(fd >= 0 && posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED) == 0);
	return fd;
}

/* A file that is larger than memory, read through mappings of all kinds. */
static void file(const char *path)
{
	int fd = cold(path, O_RDWR);
	struct stat s;
	NEED(fstat(fd, &s) == 0);
	size_t bytes = (size_t)s.st_size;
	static const struct { int prot, flags; } ways[] = {
		{ PROT_READ, MAP_SHARED }, { PROT_READ, MAP_PRIVATE }, { PROT_READ | PROT_WRITE, MAP_SHARED }
	};
	for (int w = 0; w < 3; w++) {
		unsigned char *p = mmap(NULL, bytes, ways[w].prot, ways[w].flags, fd, 0);
		NEED(p != MAP_FAILED);
		unsigned long sum = 0;
		for (size_t at = 0; at < bytes; at += PAGE)
			sum += p[at];
		say("%d: %lu", w, sum);
		NEED(munmap(p, bytes) == 0);
	}
	close(fd);
}

/* 160 MB of a file that are read, and 120 MB of the program's own: together they do not fit. `first`:
 * what is its own is mapped before the file; otherwise it is allocated in small pieces after it. */
static void mix(const char *path, bool first)
{
	int fd = cold(path, O_RDONLY);
	char *own = first ? anon(120 * MIB / PAGE) : NULL;
	unsigned char *p = mmap(NULL, 160 * MIB, PROT_READ, MAP_SHARED, fd, 0);
	NEED(p != MAP_FAILED);
	unsigned long sum = 0;
	for (size_t at = 0; at < 160 * MIB; at += PAGE)
		sum += p[at];
	for (int i = 0; i < 120; i++) {
		char *piece = first ? own + i * MIB : malloc(MIB);
		NEED(piece);
		memset(piece, 1, MIB);
	}
	say("%lu", sum);
}

/* As `mix`, with the program's own memory from a heap, from mremap and from mprotect. */
static void grows(const char *path)
{
	int fd = cold(path, O_RDONLY);
	char *reserve = mmap(NULL, 40 * MIB, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	char *moving = anon(1);
	unsigned char *p = mmap(NULL, 160 * MIB, PROT_READ, MAP_SHARED, fd, 0);
	NEED(reserve != MAP_FAILED && p != MAP_FAILED);
	unsigned long sum = 0;
	for (size_t at = 0; at < 160 * MIB; at += PAGE)
		sum += p[at];
	char *heap = sbrk(40 * MIB);
	NEED(heap != (void *)-1);
	memset(heap, 1, 40 * MIB);
	moving = mremap(moving, PAGE, 40 * MIB, MREMAP_MAYMOVE);
	NEED(moving != MAP_FAILED);
	memset(moving, 1, 40 * MIB);
	NEED(mprotect(reserve, 40 * MIB, PROT_READ | PROT_WRITE) == 0);
	memset(reserve, 1, 40 * MIB);
	say("%lu", sum);
}

/* Code of which next to nothing is run: shared memory that holds nothing, a file, and memory of
 * the program's own; mapped as code, and made code. */
static void code(const char *path)
{
	int all = PROT_READ | PROT_WRITE | PROT_EXEC, run = PROT_READ | PROT_EXEC;
	int shared = memfd_create("code", 0), file = open(path, O_RDONLY);
	size_t bytes = 32 * MIB;
	NEED(shared >= 0 && ftruncate(shared, (off_t)bytes) == 0 && file >= 0);
	/* What is in the page cache is there without regall, too. */
	static char buffer[1 << 16];
	while (read(file, buffer, sizeof buffer) > 0)
		;
	char *at[6] = {
		mmap(NULL, bytes, run, MAP_SHARED, shared, 0),
		mmap(NULL, bytes, PROT_READ, MAP_SHARED, shared, 0),
		mmap(NULL, bytes, run, MAP_PRIVATE, file, 0),
		mmap(NULL, bytes, PROT_READ, MAP_PRIVATE, file, 0),
		mmap(NULL, bytes, run, MAP_SHARED, file, 0),
		mmap(NULL, 8 * bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0),
	};
	for (int i = 0; i < 6; i++)
		NEED(at[i] != MAP_FAILED);
	NEED(mprotect(at[1], bytes, run) == 0 && mprotect(at[3], bytes, run) == 0);
	NEED(mprotect(at[5], 8 * bytes, all) == 0);
	struct stat s;
	NEED(fstat(shared, &s) == 0);
	say("shared memory has %ld blocks", (long)s.st_blocks);
	long total, resident;
	FILE *statm = fopen("/proc/self/statm", "r");
	NEED(statm && fscanf(statm, "%ld %ld", &total, &resident) == 2);
	say("resident: %s", resident < 16 * (long)(MIB / PAGE) ? "little" : "MUCH");
	fclose(statm);
}

/* Files of 1 GiB, of which a page is there, mapped as code: what they hold grows by what is around that
 * page at most. What is in the page is found: munmap from it is seen. */
static void holes(const char *path)
{
	static const unsigned char body[] = { 0xb8, SYS_munmap, 0, 0, 0, 0x0f, 0x05, 0xc3 };
	int memory = memfd_create("holes", 0), disk = open(path, O_RDWR);
	/* A disk may read ahead as much as 16 MiB around the page. */
	memset(anon(48 * MIB / PAGE), 1, 48 * MIB);
	for (int i = 0; i < 3; i++) {
		int fd = i == 1 ? disk : memory;
		NEED(fd >= 0 && ftruncate(fd, 1024 * MIB) == 0);
		NEED(pwrite(fd, body, sizeof body, 700 * MIB + 64) == sizeof body);
		char *code = mmap(NULL, 1024 * MIB, PROT_READ | PROT_EXEC, i == 2 ? MAP_SHARED : MAP_PRIVATE, fd, 0);
		NEED(code != MAP_FAILED);
		static unsigned char cached[1024 * MIB / PAGE];
		size_t pages = 0;
		NEED(mincore(code, 1024 * MIB, cached) == 0);
		for (size_t n = 0; n < sizeof cached; n++)
			pages += cached[n] & 1;
		say("%d: cached: %s", i, pages < 64 * MIB / PAGE ? "little" : "MUCH");
		char *p = mmap(NULL, 8 * PAGE, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		long (*run)(void *, size_t) = (long (*)(void *, size_t))(uintptr_t)(code + 700 * MIB + 64);
		NEED(p != MAP_FAILED);
		say("%d: munmap %ld", i, run(p, 8 * PAGE));
		bool jump = memcmp(code + 700 * MIB + 64, body, sizeof body) != 0;
		say("%d: %s", i, i == 2 || jump == (getenv("REGALL") != NULL) ? "as it is to be" : "NOT FOUND");
		NEED(munmap(code, 1024 * MIB) == 0);
	}
}

static int deeper(int n)
{
	volatile char frame[4096];
	memset((void *)frame, n, sizeof frame);
	return n ? deeper(n - 1) + frame[5] : 0;
}

/* A mapping that grows downwards, where 64 MiB are reserved. */
static char *growing(char *room)
{
	char *low = mmap(room + 60 * MIB, 16 * PAGE, PROT_READ | PROT_WRITE,
			 MAP_PRIVATE | MAP_ANONYMOUS | MAP_GROWSDOWN | MAP_FIXED, -1, 0);
	NEED(low != MAP_FAILED && munmap(room + 16 * MIB, 44 * MIB) == 0);
	return low;
}

static void grow(char *low, int pages)
{
	for (int n = 0; n < pages; n++)
		low[15 * PAGE - (size_t)n * PAGE] = 1;
}

static void drop_capabilities(void)
{
	unsigned head[2] = { 0x20080522, 0 }, none[6] = { 0 };
	NEED(syscall(SYS_capset, head, none) == 0);
}

/* From here on a limit of locked memory binds; `how` it comes to that. */
static void bind_limit(const char *how)
{
	struct rlimit small = { 64 * 1024, 64 * 1024 };
	if (strcmp(how, "setresuid") == 0) {
		NEED(setresgid(65534, 65534, 65534) == 0 && setresuid(65534, 65534, 65534) == 0);
	} else if (strcmp(how, "capset") == 0) {
		drop_capabilities();
	} else if (strcmp(how, "unshare") == 0) {
		if (unshare(CLONE_NEWUSER) != 0)
			drop_capabilities();
	} else if (strcmp(how, "setrlimit") == 0) {
		drop_capabilities();
		NEED(setrlimit(RLIMIT_MEMLOCK, &small) == 0);
	} else {
		NEED(strcmp(how, "prlimit") == 0);
		drop_capabilities();
		NEED(prlimit(getpid(), RLIMIT_MEMLOCK, &small, NULL) == 0);
	}
}

/* Gives its rights up; then what grows downwards grows: the stack, and mappings, one of which
 * has grown before. */
static void dropped(const char *how)
{
	touch(anon(64 * MIB / PAGE), 64 * MIB, PAGE);
	char *one = reserve(64 * MIB / PAGE), *other = reserve(64 * MIB / PAGE);
	char *low = growing(one), *grown = growing(other);
	grow(grown, 200);
	say("%d", deeper(50));
	NEED(setresgid(getgid(), getgid(), getgid()) == 0 && setresuid(getuid(), -1, -1) == 0);
	say("%d", deeper(100));
	bind_limit(how);
	say("%d", deeper(4000));
	grow(low, 1000);
	grow(grown, 1000);
	pid_t child = fork();
	NEED(child >= 0);
	if (child == 0) {
		say("%d", deeper(5000));
		_exit(0);
	}
	int status = -1;
	NEED(waitpid(child, &status, 0) == child && status == 0);
	say("grown");
}

/* Several processes that know nothing of each other, in one place. */
static void ranks(const char *self)
{
	pid_t children[4];
	for (int i = 0; i < 4; i++) {
		children[i] = fork();
		NEED(children[i] >= 0);
		if (children[i] == 0) {
			execl(self, self, "rank", NULL);
			_exit(91);
		}
	}
	for (int i = 0; i < 4; i++) {
		int status = -1;
		NEED(waitpid(children[i], &status, 0) == children[i]);
		say("%d: %s", i, status == 0 ? "well" : "DIED");
	}
}

static void rank(void)
{
	char *p = anon(120 * MIB / PAGE);
	touch(p, 8 * MIB, PAGE);
	usleep(200 * 1000);
	char *q = anon(120 * MIB / PAGE);
	touch(q, 2 * MIB, PAGE);
}

/* 100 MB of a file are read, beside 25 MB that are not used yet; then another process, which has
 * no shim, fills the cgroup step by step. Before each step there is time to see what the last one
 * took. */
static void beside(const char *self, const char *path)
{
	int to[2], from[2], fd = cold(path, O_RDONLY), status = -1;
	NEED(pipe2(to, O_CLOEXEC) == 0 && pipe2(from, O_CLOEXEC) == 0);
	anon(25 * MIB / PAGE);
	unsigned char *p = mmap(NULL, 100 * MIB, PROT_READ, MAP_SHARED, fd, 0);
	NEED(p != MAP_FAILED);
	unsigned long sum = 0;
	for (size_t at = 0; at < 100 * MIB; at += PAGE)
		sum += p[at];
	pid_t child = fork();
	NEED(child >= 0);
	if (child == 0) {
		char *none[] = { NULL };
		NEED(dup2(to[0], 0) == 0 && dup2(from[1], 1) == 1);
		execle(self, self, "filler", NULL, none);
		_exit(91);
	}
	close(to[0]);
	close(from[1]);
	char c = 0;
	int steps = 0;
	for (; steps < 10; steps++) {
		struct timespec start, now;
		clock_gettime(CLOCK_MONOTONIC, &start);
		long ms = 0;
		for (int calls = 0; calls < 1024 || ms < 300; calls++) {
			NEED(munmap(anon(1), PAGE) == 0);
			clock_gettime(CLOCK_MONOTONIC, &now);
			ms = (now.tv_sec - start.tv_sec) * 1000 + (now.tv_nsec - start.tv_nsec) / 1000000;
			if (calls >= 1024)
				usleep(1000);
		}
		if (write(to[1], &c, 1) != 1 || read(from[0], &c, 1) != 1)
			break;
	}
	close(to[1]);
	NEED(waitpid(child, &status, 0) == child);
	say("%lu, %d steps: %s", sum, steps, status == 0 ? "well" : "DIED");
}

/* Memory that is given back by MADV_FREE goes where other memory is needed. */
static void freed(void)
{
	char *p = anon(40 * MIB / PAGE);
	touch(p, 40 * MIB, PAGE);
	NEED(madvise(p, 40 * MIB, MADV_FREE) == 0);
	char *other = anon(40 * MIB / PAGE);
	say("%lu", touch(other, 40 * MIB, PAGE));
	p[0] = 1;
	say("%d", p[0]);
}

static void filler(void)
{
	char c;
	while (read(0, &c, 1) == 1) {
		touch(anon(15 * MIB / PAGE), 15 * MIB, PAGE);
		NEED(write(1, &c, 1) == 1);
	}
}

int main(int argc, char **argv)
{
	NEED(argc > 1);
	const char *row = argv[1], *place = argc > 2 ? argv[2] : ".";
	if (strcmp(row, "large") == 0)
		large();
	else if (strcmp(row, "sparse") == 0)
		sparse();
	else if (strcmp(row, "segment") == 0)
		segment(place);
	else if (strcmp(row, "reserves") == 0)
		reserves();
	else if (strcmp(row, "heap") == 0)
		heap();
	else if (strcmp(row, "swaps") == 0)
		swaps();
	else if (strcmp(row, "file") == 0)
		file(place);
	else if (strcmp(row, "code") == 0)
		code(place);
	else if (strcmp(row, "holes") == 0)
		holes(place);
	else if (strcmp(row, "resident") == 0)
		populates();
	else if (strcmp(row, "mix") == 0 || strcmp(row, "mix-first") == 0)
		mix(place, strcmp(row, "mix-first") == 0);
	else if (strcmp(row, "grows") == 0)
		grows(place);
	else if (strcmp(row, "dropped") == 0)
		dropped(place);
	else if (strcmp(row, "beside") == 0)
		beside(argv[0], place);
	else if (strcmp(row, "freed") == 0)
		freed();
	else if (strcmp(row, "filler") == 0)
		filler();
	else if (strcmp(row, "ranks") == 0)
		ranks(argv[0]);
	else if (strcmp(row, "rank") == 0)
		rank();
	else
		NEED(!"a row");
	return 0;
}
