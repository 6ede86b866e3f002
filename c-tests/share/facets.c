/* Proves: large private memory keeps to limits, survives a program that closes what it finds, is in core dumps, and costs no more memory. */
/*
 * facets WORD, one of those in `facets` at the end; each makes the same calls with and
 * without the shim, and says how they ended.
 */
#include <malloc.h>
#include <sys/prctl.h>
#include <pthread.h>
#include <linux/userfaultfd.h>
#include <sys/ioctl.h>
#include "../check.h"

#define MIB (1ul << 20)
#ifndef SYS_mseal
#define SYS_mseal 462
#endif
#define WANTED (PROT_READ | PROT_WRITE), (MAP_PRIVATE | MAP_ANONYMOUS), -1, 0

static char *map(size_t bytes)
{
	return mmap(NULL, bytes, WANTED);
}

static void limit(int which, rlim_t bytes)
{
	struct rlimit r;
	NEED(getrlimit(which, &r) == 0);
	r.rlim_cur = bytes;
	NEED(setrlimit(which, &r) == 0);
}

static size_t of_status(const char *name)
{
	char line[256];
	size_t kib = 0;
	FILE *f = fopen("/proc/self/status", "r");
	NEED(f);
	while (fgets(line, sizeof line, f))
		if (strncmp(line, name, strlen(name)) == 0)
			kib = strtoul(line + strlen(name), NULL, 10);
	fclose(f);
	return kib << 10;
}

/* A little of everything that memory must still do. */
static void go_on(const char *label)
{
	char *p = MAP_AS(label, map(4 * MIB));
	if (p == MAP_FAILED)
		return;
	memset(p, 5, 4 * MIB);
	p = MAP_AS("mremap", mremap(p, 4 * MIB, 9 * MIB, MREMAP_MAYMOVE));
	if (p == MAP_FAILED)
		return;
	say("kept %d, grown %d", all_are(p, 4 * MIB, 5), all_are(p + 4 * MIB, 5 * MIB, 0));
	CALL(madvise(p, 2 * MIB, MADV_DONTNEED));
	say("dropped %d", all_are(p, 2 * MIB, 0));
	pid_t pid = fork();
	NEED(pid >= 0);
	if (pid == 0) {
		bool right = all_are(p, 2 * MIB, 0) && all_are(p + 2 * MIB, 2 * MIB, 5);
		memset(p, 6, 9 * MIB);
		_exit(right ? 0 : 1);
	}
	reap("child", pid);
	say("still %d", all_are(p, 2 * MIB, 0) && all_are(p + 2 * MIB, 2 * MIB, 5));
	char *m = malloc(3 * MIB);
	NEED(m);
	memset(m, 7, 3 * MIB);
	m = realloc(m, 12 * MIB);
	NEED(m);
	say("heap %d", all_are(m, 3 * MIB, 7));
	free(m);
	char *b = sbrk(MIB);
	told("sbrk", b != (void *)-1);
	if (b != (void *)-1)
		memset(b, 8, MIB);
	CALL(munmap(p, 9 * MIB));
}

static void closes(void)
{
	char *p = anon(4 * MIB / PAGE);
	memset(p, 9, 4 * MIB);
	int fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
	say("the next descriptor is %d", fd);
	closefrom(3);
	go_on("after closefrom(3)");
	for (int i = 3; i < 4096; i++)
		(void)close(i);
	go_on("after closing every one");
	say("bytes %d", all_are(p, 4 * MIB, 9));
	CALL(munmap(p, 2 * MIB));
	p = MAP_AS("mremap", mremap(p + 2 * MIB, 2 * MIB, 8 * MIB, MREMAP_MAYMOVE));
	say("bytes %d, grown %d", all_are(p, 2 * MIB, 9), all_are(p + 2 * MIB, 6 * MIB, 0));
	fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
	say("the next descriptor is %d", fd);
}

/* Descriptors can be gone of any number of mappings: a child of vfork has them in a table of its own, others close them. */
static void gone(void)
{
	enum { MANY = 100 };
	size_t half = MIB / 4;
	static char *all[MANY];
	for (int i = 0; i < MANY; i++) {
		pid_t pid = i % 2 ? vfork() : 0;
		NEED(pid >= 0);
		if (pid == 0) {
			all[i] = map(2 * half);
			if (all[i] != MAP_FAILED) {
				memset(all[i], 'a' + i % 7, 2 * half);
				/* No part joins another one. */
				(void)mprotect(all[i] + half, half, PROT_READ);
			}
			if (i % 2)
				_exit(0);
		} else {
			NEED(waitpid(pid, NULL, 0) == pid);
		}
		NEED(all[i] != MAP_FAILED);
	}
	closefrom(3);
	int until[2];
	NEED(pipe(until) == 0);
	pid_t pid = fork();
	if (pid < 0) {
		told("fork", false);
		return;
	}
	if (pid == 0) {
		char go;
		int wrong = read(until[0], &go, 1) != 1;
		for (int i = 0; i < MANY; i++) {
			wrong += !all_are(all[i], 2 * half, (char)('a' + i % 7));
			all[i][0] = 'x';
		}
		_exit(wrong);
	}
	for (int i = 0; i < MANY; i++)
		all[i][1] = 'y';
	NEED(write(until[1], "g", 1) == 1);
	reap("child", pid);
	int wrong = 0;
	for (int i = 0; i < MANY; i++)
		wrong += all[i][0] != 'a' + i % 7 || all[i][1] != 'y';
	say("the child's writes here: %d", wrong);
}

static void *idle(void *arg)
{
	pause();
	return arg;
}

/* What is sealed can't be replaced by a copy of its own, so it has to be one before. */
static void sealed(void)
{
	char *p = anon(4 * MIB / PAGE);
	memset(p, 9, 4 * MIB);
	closefrom(3);
	bool sealed = syscall(SYS_mseal, p, 2 * MIB, 0ul) == 0;
	told("mseal", sealed);
	go_on("sealed without a descriptor");
	say("bytes %d", all_are(p, 4 * MIB, 9));
	if (sealed)
		CALL_AS("munmap of what is sealed", munmap(p, 2 * MIB));
	/* Where threads run it may not be sealed, but there are children all the same. */
	pthread_t t;
	NEED(pthread_create(&t, NULL, idle, NULL) == 0);
	p = anon(4 * MIB / PAGE);
	memset(p, 9, 4 * MIB);
	closefrom(3);
	(void)syscall(SYS_mseal, p, 2 * MIB, 0ul);
	go_on("sealed while threads run");
	say("bytes %d", all_are(p, 4 * MIB, 9));
}

/* A file larger than the limit would be SIGXFSZ. (What is said may go to a file, too.) */
static void fsize(void)
{
	limit(RLIMIT_FSIZE, 16 << 10);
	go_on("under RLIMIT_FSIZE of 16 KiB");
}

static void nofile(void)
{
	char *p = anon(MIB / PAGE);
	memset(p, 1, MIB);
	limit(RLIMIT_NOFILE, 3);
	go_on("without a descriptor to spare");
	say("bytes %d", all_are(p, MIB, 1));
}

/* Private writable memory counts, and nothing else. */
static void data(void)
{
	char *shut = reserve(32 * MIB / PAGE);
	limit(RLIMIT_DATA, of_status("VmData:") + 76 * MIB);
	/* Not before the limit: memory that is shared then does not count (docs/limits.md). */
	char *held = anon(64 * MIB / PAGE);
	char *p = MAP_AS("8 MiB of 12", map(8 * MIB));
	MAP_AS("8 MiB of 4", map(8 * MIB));
	told("sbrk of 8 MiB of 4", sbrk(8 * MIB) != (void *)-1);
	MAP_AS("mremap from 8 to 16 MiB, of 4", mremap(p, 8 * MIB, 16 * MIB, MREMAP_MAYMOVE));
	CALL_AS("mprotect of 32 MiB of 4", mprotect(shut, 32 * MIB, PROT_READ | PROT_WRITE));
	told("malloc of 32 MiB of 4", malloc(32 * MIB) != NULL);
	MAP_AS("shared", mmap(NULL, 32 * MIB, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
	CALL(munmap(held, 64 * MIB));
	p = MAP_AS("64 MiB of 68", map(64 * MIB));
	MAP_AS("8 MiB of 4", map(8 * MIB));
	/* Read-only memory does not count, and becomes what does again. */
	CALL_AS("read-only", mprotect(p, 64 * MIB, PROT_READ));
	char *q = MAP_AS("32 MiB of 68", map(32 * MIB));
	CALL_AS("writable again, 64 of 36", mprotect(p, 64 * MIB, PROT_READ | PROT_WRITE));
	CALL(munmap(q, 32 * MIB));
	CALL_AS("writable again, 64 of 68", mprotect(p, 64 * MIB, PROT_READ | PROT_WRITE));
}

static void as(void)
{
	limit(RLIMIT_AS, of_status("VmSize:") + 40 * MIB);
	char *p = MAP_AS("24 MiB of 40", map(24 * MIB));
	memset(p, 1, 24 * MIB);
	MAP_AS("24 MiB of 16", map(24 * MIB));
	MAP_AS("mremap from 24 to 48 MiB, of 16", mremap(p, 24 * MIB, 48 * MIB, MREMAP_MAYMOVE));
	told("malloc of 24 MiB of 16", malloc(24 * MIB) != NULL);
	say("bytes %d", all_are(p, 24 * MIB, 1));
	CALL(munmap(p, 24 * MIB));
	p = MAP_AS("32 MiB of 40", map(32 * MIB));
	memset(p, 1, 32 * MIB);
	/* A child's copy is its own address space. */
	pid_t pid = fork();
	NEED(pid >= 0);
	if (pid == 0)
		_exit(all_are(p, 32 * MIB, 1) ? 0 : 1);
	reap("child", pid);
}

/* Bytes for whoever looks into the core: each mark once, so the program's text has none. */
static void mark(char *p, size_t bytes, char kind)
{
	char text[64] = "differ--*--memory";
	text[8] = kind;
	for (size_t i = 0; i + 64 <= bytes; i += 64)
		memcpy(p + i, text, sizeof text);
}

static void core(void)
{
	limit(RLIMIT_CORE, RLIM_INFINITY);
	prctl(PR_SET_DUMPABLE, 1);
	char *p = anon(4 * MIB / PAGE), *hidden = anon(4 * MIB / PAGE), *block = malloc(4 * MIB);
	NEED(block);
	mark(p, 4 * MIB, 'M');
	mark(hidden, 4 * MIB, 'H');
	mark(block, 4 * MIB, 'B');
	char *shared = mmap(NULL, MIB, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	NEED(shared != MAP_FAILED);
	mark(shared, MIB, 'S');
	NEED(madvise(hidden, 4 * MIB, MADV_DONTDUMP) == 0);
	abort();
}

/* Memory that is had, used, and in part given back. */
static void work(void)
{
	char *all[8];
	for (int i = 0; i < 8; i++) {
		all[i] = anon(8 * MIB / PAGE);
		memset(all[i], i + 1, 8 * MIB);
	}
	char *block = malloc(24 * MIB), *small[512];
	NEED(block);
	memset(block, 1, 24 * MIB);
	for (int i = 0; i < 512; i++) {
		small[i] = malloc(40000);
		NEED(small[i]);
		memset(small[i], 1, 40000);
	}
	NEED(munmap(all[0], 8 * MIB) == 0);
	NEED(munmap(all[1] + MIB, 6 * MIB) == 0);
	NEED(madvise(all[2], 7 * MIB, MADV_DONTNEED) == 0);
	all[3] = mremap(all[3], 8 * MIB, MIB, 0);
	NEED(all[3] != MAP_FAILED);
	all[4] = mremap(all[4], 8 * MIB, 64 * MIB, MREMAP_MAYMOVE);
	NEED(all[4] != MAP_FAILED);
	NEED(mmap(all[5], 4 * MIB, WANTED) != MAP_FAILED);
	NEED(mmap(all[6], 4 * MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == all[6]);
	block = realloc(block, 6 * MIB);
	NEED(block);
	for (int i = 511; i >= 256; i--)
		free(small[i]);
	malloc_trim(0);
	pid_t pid = fork();
	NEED(pid >= 0);
	if (pid == 0) {
		memset(all[7], 9, 8 * MIB);
		_exit(0);
	}
	reap("child", pid);
	quiet_point("work");
	say("worked");
}

/* What is large, told to who looks from outside. */
static void large(void)
{
	char label[200], *p = anon(8 * MIB / PAGE), *block = malloc(4 * MIB), *grown, *b = sbrk(0);
	NEED(block && sbrk(4 * MIB) != (void *)-1);
	grown = mremap(anon(MIB / PAGE), MIB, 3 * MIB, MREMAP_MAYMOVE);
	NEED(grown != MAP_FAILED);
	memset(p, 1, 8 * MIB);
	memset(block, 1, 4 * MIB);
	memset(b, 1, 4 * MIB);
	memset(grown, 1, 3 * MIB);
	snprintf(label, sizeof label, "large mmap=%lx malloc=%lx brk=%lx mremap=%lx", (unsigned long)(p + MIB),
		 (unsigned long)(block + MIB), (unsigned long)(b + 2 * MIB), (unsigned long)(grown + 2 * MIB));
	quiet_point(label);
	say("large");
}

/* One mapping of which pages were given back after a fork, each by itself, grows and moves. */
static void patchwork(void)
{
	pthread_t t;
	NEED(pthread_create(&t, NULL, idle, NULL) == 0);
	size_t pages = MIB / PAGE;
	char *p = map(MIB);
	for (size_t i = 0; i < pages; i++)
		p[i * PAGE] = (char)(i + 1);
	/* A second one right behind it, so that it can't grow where it is. */
	char *behind = mmap(p + MIB, PAGE, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
	pid_t pid = fork();
	NEED(pid >= 0);
	if (pid == 0)
		_exit(0);
	reap("child", pid);
	for (size_t i = 0; i < pages; i += 2)
		CALL(madvise(p + i * PAGE, PAGE, MADV_DONTNEED));
	p = mremap(p, MIB, MIB + 2 * PAGE, MREMAP_MAYMOVE);
	say("grown %d", p != MAP_FAILED);
	NEED(p != MAP_FAILED);
	size_t wrong = 0;
	for (size_t i = 0; i < pages + 2; i++)
		wrong += p[i * PAGE] != (i < pages && i % 2 ? (char)(i + 1) : 0);
	say("wrong %zu", wrong);
	memset(p, 5, MIB + 2 * PAGE);
	CALL(munmap(p, MIB + 2 * PAGE));
	if (behind != MAP_FAILED)
		munmap(behind, PAGE);
}

/* A child finds empty what is to be wiped there, however many ranges that are. */
static void wiped(void)
{
	enum { RANGES = 200 };
	size_t each = 128ul << 10, wrong = 0;
	char *p = map(2 * RANGES * each);
	for (size_t i = 0; i < 2 * RANGES; i++) {
		p[i * each] = 'x';
		if (i % 2)
			NEED(madvise(p + i * each, each, MADV_WIPEONFORK) == 0);
	}
	for (int generation = 0; generation < 2; generation++) {
		pid_t pid = fork();
		NEED(pid >= 0);
		if (pid > 0) {
			reap("child", pid);
			break;
		}
		for (size_t i = 0; i < 2 * RANGES; i++)
			wrong += p[i * each] != (i % 2 ? 0 : 'x');
		say("wrong %zu", wrong);
		for (size_t i = 1; i < 2 * RANGES; i += 2)
			p[i * each] = 'y';
		if (generation == 1)
			_exit(0);
	}
	for (size_t i = 0; i < 2 * RANGES; i++)
		wrong += p[i * each] == 0;
	say("gone %zu", wrong);
}

static _Atomic int provided;

/* Gives each page that is missing the next letter. */
static void *provide(void *arg)
{
	static char page[PAGE] __attribute__((aligned(4096)));
	struct uffd_msg m;
	while (read(*(int *)arg, &m, sizeof m) == sizeof m) {
		memset(page, 'a' + provided++, PAGE);
		struct uffdio_copy c = { .dst = m.arg.pagefault.address & ~(PAGE - 1), .src = (uintptr_t)page, .len = PAGE };
		NEED(ioctl(*(int *)arg, UFFDIO_COPY, &c) == 0);
	}
	return NULL;
}

/* What a userfaultfd watches stays watched, and keeps the pages that it was given, whatever is said of it. */
static void watched(void)
{
	size_t bytes = 4 * MIB;
	char *p = map(bytes);
	NEED(madvise(p, bytes, MADV_NOHUGEPAGE) == 0);
	p[9 * PAGE] = 'z';
	int fd = (int)syscall(SYS_userfaultfd, O_CLOEXEC | UFFD_USER_MODE_ONLY);
	NEED(fd >= 0);
	struct uffdio_api api = { .api = UFFD_API };
	NEED(ioctl(fd, UFFDIO_API, &api) == 0);
	struct uffdio_register reg = { .range = { (uintptr_t)p, bytes }, .mode = UFFDIO_REGISTER_MODE_MISSING };
	CALL(ioctl(fd, UFFDIO_REGISTER, &reg));
	for (int before = 1; before >= 0; before--) {
		/* Once with one thread, which gives pages before they are missed. */
		pthread_t t;
		if (!before)
			NEED(pthread_create(&t, NULL, provide, &fd) == 0);
		for (size_t i = 0; before && i < 3; i++) {
			struct uffdio_copy c = { .dst = (uintptr_t)p + i * PAGE, .src = (uintptr_t)"x", .len = PAGE };
			static char page[PAGE] __attribute__((aligned(4096))) = "given";
			c.src = (uintptr_t)page;
			CALL(ioctl(fd, UFFDIO_COPY, &c));
		}
		unsigned long nodes = 1;
		(void)syscall(SYS_mbind, p, MIB, 1 /* MPOL_PREFERRED */, &nodes, 64ul, 0u);
		say("%c %c %c %c", p[0], p[PAGE], p[2 * PAGE], p[9 * PAGE]);
		CALL(madvise(p, 3 * PAGE, MADV_DONTNEED));
	}
	say("missed %c %c, %d times", p[0], p[2 * PAGE], provided);
}

/* Several mappings are moved in one call (Linux 6.17), or cut off until one is left. */
static void several(void)
{
	size_t half = MIB / 2;
	bool can = true;
	for (int how = 0; how < 10; how++) {
		char *p = map(MIB), *all = map(3 * MIB), *to = all + MIB;
		memset(p, 's', MIB);
		memset(all, 't', 3 * MIB);
		if (how / 2 == 0)
			NEED(mprotect(p + half, half, PROT_READ) == 0);
		if (how / 2 == 1 && can)
			NEED(madvise(p + half, half, MADV_RANDOM) == 0);
		if (how / 2 == 2)
			NEED(munmap(p + half, PAGE) == 0);
		if (how / 2 == 3)
			(void)syscall(SYS_mseal, p + half, half, 0ul);
		if (how / 2 == 4) /* not a file's */
			NEED(mmap(p, half, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == p);
		bool stays = how % 2;
		void *q = mremap(p, MIB, MIB, MREMAP_MAYMOVE | MREMAP_FIXED | (stays ? MREMAP_DONTUNMAP : 0), to);
		say("several %d: %s, %c", how, q == to ? "moved" : strerror(errno), all[0]);
		can = can && (q == to || errno == EPERM);
		if (!can)
			continue;
		say("%d, %d %c, %d", to[0], to[half - 1], to[half], to[MIB - 1]);
		if (stays) {
			say("left %d %d", p[0], p[MIB - 1]);
			if (how / 2 != 4)
				p[0] = 'p';
		}
		pid_t pid = fork();
		NEED(pid >= 0);
		if (pid == 0) {
			if (how / 2 != 4)
				to[1] = 'c';
			to[half] = 0;
			_exit(to[0]);
		}
		reap("child", pid);
		say("%d %c", to[1], to[half]);
		if (how / 2 != 3)
			CALL(munmap(p, MIB));
		CALL(munmap(all, 3 * MIB));
	}
	for (int to = 0; to < 4; to++) {
		char *p = map(MIB);
		memset(p, 's', MIB);
		NEED(mprotect(p + half, half, PROT_READ) == 0);
		if (to == 0)
			MAP_AS("several longer", mremap(p, MIB, 2 * MIB, MREMAP_MAYMOVE));
		else if (to == 1)
			MAP_AS("several elsewhere", mremap(p, MIB, MIB, MREMAP_MAYMOVE | MREMAP_DONTUNMAP, NULL));
		else if (to == 2)
			MAP_AS("several shorter", mremap(p, MIB, half + PAGE, 0));
		else
			p = MAP_AS("cut to one", mremap(p, MIB, half, MREMAP_MAYMOVE | MREMAP_FIXED, map(MIB)));
		pid_t pid = fork();
		NEED(pid >= 0);
		if (pid == 0) {
			p[1] = 'c';
			_exit(p[0]);
		}
		reap("child", pid);
		say("%c", p[1]);
		CALL(munmap(p, MIB));
	}
	int fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
	say("the next descriptor is %d", fd);
}

/* The same where there is no address space left: nothing may be mapped to find out whether the kernel can. */
static void several_as(void)
{
	size_t half = MIB / 2;
	char *p = map(MIB), *to = map(MIB);
	memset(p, 's', MIB);
	memset(to, 't', MIB);
	NEED(mprotect(p + half, half, PROT_READ) == 0);
	limit(RLIMIT_AS, of_status("VmSize:"));
	char *q = mremap(p, MIB, MIB, MREMAP_MAYMOVE | MREMAP_FIXED, to);
	say("several: %s, %c", q == to ? "moved" : strerrorname_np(errno), to[0]);
}

int main(int argc, char **argv)
{
	static const struct {
		const char *word;
		void (*run)(void);
	} facets[] = {
		{ "closes", closes }, { "gone", gone }, { "sealed", sealed }, { "fsize", fsize }, { "nofile", nofile }, { "data", data },
		{ "as", as },	      { "core", core },	  { "work", work },	{ "large", large },
		{ "patchwork", patchwork }, { "wiped", wiped },	{ "watched", watched }, { "several", several },
		{ "several_as", several_as },
	};
	for (size_t i = 0; argc > 1 && i < sizeof facets / sizeof facets[0]; i++)
		if (strcmp(argv[1], facets[i].word) == 0) {
			facets[i].run();
			return 0;
		}
	return 2;
}
