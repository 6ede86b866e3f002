/* Proves: memory that is reserved, and opened and closed a little at a time, takes every call as without the shim, and is
 * as many mappings; reserved N opens, closes and empties N times, with a further argument where no single page can be locked. */
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <stddef.h>
#include <sys/prctl.h>
#include "advised.h"
#include "reserves.h"

#define PAGES 1024ul
#define STEP 16ul
#define BIG (64ul << 20)

static int resident(char *p, size_t pages)
{
	unsigned char in[PAGES];
	int n = 0;
	NEED(pages <= PAGES && mincore(p, pages * PAGE, in) == 0);
	for (size_t i = 0; i < pages; i++)
		n += in[i] & 1;
	return n;
}

static void advise(const char *what, char *p, size_t pages)
{
	advise_all(what, p, pages);
	say("%s, msync: %s", what, msync(p, pages * PAGE, MS_ASYNC | MS_INVALIDATE) == 0 ? "ok" : strerrorname_np(errno));
}

/* To be looked at from outside: `open` pages at `p` are pinned, and `closed` behind them can't be accessed. */
static void claim(char *p, size_t open, size_t closed)
{
	if (open)
		quiet_claim(p, open * PAGE, "registered");
	if (closed)
		quiet_claim(p + open * PAGE, closed * PAGE, "no-access");
}

/* Opens, touches and closes every second page, with `between` before it is closed and `after` behind that. */
static void guarded(const char *what, char *p, size_t pages, void (*between)(char *), void (*after)(char *))
{
	for (size_t i = 0; i < pages; i += 2) {
		char *q = p + i * PAGE;
		open_more(q, 1);
		*q = 1;
		if (between)
			between(q);
		close_again(q, 1);
		if (after)
			after(q);
	}
	say("%s: %d mappings", what, mappings(p, pages, false));
}

/* A reserve whose first step is open; the rest may be locked by now, and nothing of it is resident. */
static char *begun(const char *what)
{
	char *p = reserve(PAGES);
	open_more(p, STEP);
	say("%s: resident %d", what, resident(p, PAGES));
	return p;
}

static void opened(void)
{
	char *p = begun("opened");
	for (size_t i = STEP; i < PAGES / 2; i += STEP)
		NEED(mprotect(p + i * PAGE, STEP * PAGE, PROT_READ | PROT_WRITE) == 0);
	say("open, untouched: resident %d", resident(p, PAGES));
	memset(p, 1, 8 * PAGE);
	say("touched: resident %d", resident(p, PAGES));
	claim(p, PAGES / 2, PAGES / 2);
	quiet_point("opened");
	advise("the rest", p + PAGES / 2 * PAGE, PAGES / 2);
	advise("both", p, PAGES);
	open_more(p + PAGES / 2 * PAGE, STEP);
	claim(p + PAGES / 2 * PAGE, STEP, PAGES / 2 - STEP);
	quiet_point("opened after advice");
	CALL(mprotect(p, PAGES * PAGE, PROT_NONE));
	advise("closed", p, PAGES);
	open_more(p, PAGES);
	claim(p, PAGES, 0);
	quiet_point("open again");
	CALL(munmap(p, PAGES * PAGE));
}

static void moved(void)
{
	char *p = begun("moved") + STEP * PAGE;
	char *q = mremap(p, 64 * PAGE, 128 * PAGE, MREMAP_MAYMOVE);
	NEED(q != MAP_FAILED);
	advise("moved", q, 128);
	open_more(q, STEP);
	open_more(q + 100 * PAGE, STEP);
	claim(q, STEP, 100 - STEP);
	claim(q + 100 * PAGE, STEP, 28 - STEP);
	quiet_point("moved");
	p += 64 * PAGE;
	open_more(p, STEP);
	p += STEP * PAGE;
	q = mremap(p, 64 * PAGE, 64 * PAGE, MREMAP_MAYMOVE | MREMAP_DONTUNMAP, NULL);
	NEED(q != MAP_FAILED);
	advise("left behind", p, 64);
	open_more(p, STEP);
	open_more(q, STEP);
	claim(p, STEP, 64 - STEP);
	claim(q, STEP, 64 - STEP);
	quiet_point("left behind");
	p = begun("grown");
	CALL(munmap(p + 512 * PAGE, 512 * PAGE));
	q = mremap(p + STEP * PAGE, (512 - STEP) * PAGE, 512 * PAGE, MREMAP_MAYMOVE);
	NEED(q != MAP_FAILED);
	open_more(q + (512 - STEP) * PAGE, STEP);
	advise("grown", q, 512);
	claim(q + (512 - STEP) * PAGE, STEP, 0);
	quiet_point("grown");
}

static void locked(void)
{
	char *p = begun("locked"), *rest = p + STEP * PAGE;
	CALL(mlock(rest, 64 * PAGE));
	open_more(rest, STEP);
	say("opened under mlock: resident %d", resident(rest, 64));
	CALL(munlock(rest, 128 * PAGE));
	advise("unlocked", rest + 64 * PAGE, 64);
	open_more(rest + 64 * PAGE, STEP);
	claim(rest, STEP, 64 - STEP);
	claim(rest + 64 * PAGE, STEP, 64 - STEP);
	quiet_point("unlocked");
	CALL(munlockall());
	advise("nothing locked", rest + 256 * PAGE, 64);
	open_more(rest + 256 * PAGE, STEP);
	say("resident %d", resident(rest + 256 * PAGE, 64));
	claim(rest + 256 * PAGE, STEP, 64);
	quiet_point("nothing locked");
}

static void forked(void)
{
	char *p = begun("forked"), *rest = p + STEP * PAGE;
	pid_t pid = fork();
	NEED(pid >= 0);
	if (pid == 0) {
		advise("in a child", rest, 64);
		CALL(mprotect(rest, STEP * PAGE, PROT_READ | PROT_WRITE));
		say("in a child: resident %d", resident(rest, 64));
		quiet_point("in a child");
		_exit(0);
	}
	reap("child", pid);
	open_more(rest, STEP);
	claim(p, 2 * STEP, 64);
	quiet_point("forked");
}

static void replaced(void)
{
	char *p = begun("replaced"), *rest = p + STEP * PAGE;
	NEED(munmap(rest + 64 * PAGE, PAGE) == 0);
	CALL(mprotect(rest, 128 * PAGE, PROT_READ | PROT_WRITE));
	claim(rest, 64, 0);
	quiet_claim(rest + 65 * PAGE, 63 * PAGE, "no-access");
	quiet_point("up to a hole");
	advise("behind a hole", rest + 65 * PAGE, 63);
	CALL(mprotect(rest, 128 * PAGE, PROT_NONE));
	advise("before a hole", rest, 64);
	open_more(rest, STEP);
	NEED(mmap(rest + 256 * PAGE, 64 * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) != MAP_FAILED);
	open_more(rest + 256 * PAGE, STEP);
	advise("mapped anew", rest + 256 * PAGE, 64);
	CALL(mmap(rest + 300 * PAGE, 16 * PAGE, PROT_READ, MAP_PRIVATE | MAP_FIXED, -1, 0) == MAP_FAILED ? -1 : 0);
	advise("what a file can't replace", rest + 300 * PAGE, 16);
	open_more(rest + 300 * PAGE, STEP);
	claim(rest, STEP, 64 - STEP);
	claim(rest + 256 * PAGE, STEP, 0);
	claim(rest + 300 * PAGE, STEP, 4);
	quiet_point("replaced");
}

/* RLIMIT_MEMLOCK comes to bind when much is reserved and little is open. */
static void limit_binds(void *none)
{
	struct rlimit limit = { 2 << 20, 2 << 20 };
	char *p = begun("limit"), *rest = p + STEP * PAGE;
	(void)none;
	CALL(setrlimit(RLIMIT_MEMLOCK, &limit));
	CALL(setuid(65534));
	CALL(mlock(p, STEP * PAGE));
	char *q = mremap(rest, 256 * PAGE, 600 * PAGE, MREMAP_MAYMOVE);
	told("mremap", q != MAP_FAILED);
	advise("under a limit", q, 600);
	CALL(mprotect(q, STEP * PAGE, PROT_READ | PROT_WRITE));
	say("resident %d", resident(q, 600));
	void *more = mmap(NULL, 64 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_LOCKED, -1, 0);
	told("MAP_LOCKED", more != MAP_FAILED);
	advise("above", rest + 256 * PAGE, 64);
	guarded("under a limit", p + 900 * PAGE, 64, NULL, NULL);
}

static void lock_it(char *p)
{
	NEED(mlock(p, PAGE) == 0);
}

static void unlock_it(char *p)
{
	NEED(munlock(p, PAGE) == 0);
}

static void map_anew(char *p)
{
	int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED;
	NEED(mmap(p, PAGE, PROT_NONE, flags, -1, 0) == p);
}

static void map_open(char *p)
{
	int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED;
	NEED(mmap(p, PAGE, PROT_READ | PROT_WRITE, flags, -1, 0) == p);
	close_again(p, 1);
}

static void page_out(char *p)
{
	(void)madvise(p, PAGE, MADV_PAGEOUT);
}

static void drop_pages(char *p)
{
	(void)madvise(p, PAGE, MADV_DONTNEED);
	(void)madvise(p, PAGE, MADV_COLD);
	(void)msync(p, PAGE, MS_ASYNC | MS_INVALIDATE);
}

static void move_and_back(char *p)
{
	char *q = mremap(p, PAGE, PAGE, MREMAP_MAYMOVE | MREMAP_DONTUNMAP, NULL);
	NEED(q != MAP_FAILED);
	NEED(munmap(q, PAGE) == 0);
}

static void guard_it(char *p)
{
	(void)madvise(p, PAGE, MADV_GUARD_INSTALL_);
}

/* However it is opened and closed, it is as many mappings as without the shim. */
static void merged(void)
{
	const size_t pages = 64;
	guarded("closed", apart(pages), pages, NULL, NULL);
	guarded("unlocked and closed", apart(pages), pages, lock_it, unlock_it);
	guarded("mapped anew", apart(pages), pages, NULL, map_anew);
	guarded("mapped open and closed", apart(pages), pages, NULL, map_open);
	guarded("paged out", apart(pages), pages, page_out, page_out);
	guarded("dropped", apart(pages), pages, drop_pages, drop_pages);
	guarded("moved", apart(pages), pages, NULL, move_and_back);
	guarded("guarded", apart(pages), pages, guard_it, guard_it);
	char *p = apart(pages);
	open_more(p, pages);
	for (size_t i = 0; i < pages; i += 4)
		map_anew(p + i * PAGE);
	close_again(p, pages);
	say("islands: %d mappings", mappings(p, pages, false));
	p = reserve(2 * pages);
	for (size_t i = 0; i < pages; i += 2)
		map_anew(p + i * PAGE);
	guarded("many reserves", p, pages, NULL, NULL);
	guarded("beside it", p + pages * PAGE, pages, NULL, NULL);
	say("both: %d mappings", mappings(p, 2 * pages, false));
	NEED(munmap(p + 20 * PAGE, PAGE) == 0);
	guarded("before a hole", p, 20, NULL, NULL);
	guarded("behind a hole", p + 21 * PAGE, 20, NULL, NULL);
	claim(p + PAGE, 0, 19);
	claim(p + 21 * PAGE, 0, pages);
	quiet_point("merged");
	say("all: %d mappings", mappings(p, 2 * pages, false));
	p = anon(pages);
	for (size_t i = 0; i < pages; i += 2)
		close_again(p + i * PAGE, 1);
	say("guards: %d mappings", mappings(p, pages, false));
	close_again(p, pages);
	say("no access: %d mappings", mappings(p, pages, false));
	quiet_claim(p, pages * PAGE, "no-access");
	quiet_point("no access");
	open_more(p, pages);
	say("open: %d mappings", mappings(p, pages, false));
	claim(p, pages, 0);
	quiet_point("open again");
	p = apart(pages);
	open_more(p, 1);
	pid_t pid = fork();
	NEED(pid >= 0);
	if (pid == 0) {
		/* (Not counted: some of what a child inherits stays apart, or not, without the shim, too.) */
		for (size_t i = 0; i < pages; i += 2) {
			open_more(p + i * PAGE, 1);
			touch_write(p + i * PAGE);
			close_again(p + i * PAGE, 1);
		}
		guarded("a child's own", apart(pages), pages, NULL, NULL);
		_exit(0);
	}
	reap("child", pid);
}

/* From here on mlock2 is refused for the lengths that `compare` says of `bytes`. */
static void refuse_locks(unsigned short compare, unsigned bytes)
{
	struct sock_filter code[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_mlock2, 0, 3),
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[1])),
		BPF_JUMP(BPF_JMP | compare | BPF_K, bytes, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENOMEM),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog filter = { sizeof code / sizeof *code, code };
	NEED(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
	NEED(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) == 0);
}

/* Once memory without access can't be locked any more, none is. */
static void refuse_large_locks(void *none)
{
	(void)none;
	char *before = apart(64), *p = reserve(64);
	open_more(before, 1);
	refuse_locks(BPF_JGT, 8 * PAGE);
	guarded("refused", p, 64, NULL, NULL);
	say("of it locked: %d", mappings(p, 64, true));
	open_more(before, 1);
	guarded("from before", before + 2 * PAGE, 32, NULL, NULL);
	say("of that locked: %d", mappings(before, 64, true));
	advise("from before", before, 64);
	open_more(p, 8);
	quiet_claim(p, 8 * PAGE, "registered");
	say("open: resident %d", resident(p, 8));
}

static char *neighbours, *populated;
static int ended;

/* Fails beside what is being opened, so that the kernel's list is read again and again. */
static void *fail_beside(void *none)
{
	(void)none;
	while (!__atomic_load_n(&ended, __ATOMIC_ACQUIRE))
		(void)mprotect(neighbours + (PAGES - 1) * PAGE, 2 * PAGE, PROT_NONE);
	return NULL;
}

/* Keeps the kernel from changing mappings for as long as it looks at these pages. */
static void *hold_up(void *none)
{
	(void)none;
	while (!__atomic_load_n(&ended, __ATOMIC_ACQUIRE))
		(void)madvise(populated, BIG, MADV_POPULATE_READ);
	return NULL;
}

/* What is said of memory that is opened is not undone by who reads the list meanwhile. */
static void beside_failures(void)
{
	pthread_t threads[2];
	void *(*work[])(void *) = { fail_beside, hold_up };
	neighbours = reserve(PAGES + 1);
	NEED(munmap(neighbours + PAGES * PAGE, PAGE) == 0);
	populated = anon(BIG / PAGE);
	NEED(madvise(populated, BIG, MADV_NOHUGEPAGE) == 0);
	memset(populated, 1, BIG);
	for (int round = 0; round < 20; round++) {
		if (round)
			close_again(neighbours, PAGES - 1);
		__atomic_store_n(&ended, 0, __ATOMIC_RELEASE);
		for (int i = 0; i < 2; i++)
			NEED(pthread_create(&threads[i], NULL, work[i], NULL) == 0);
		for (size_t i = 0; i < PAGES / 2; i++)
			open_more(neighbours + i * PAGE, 1);
		__atomic_store_n(&ended, 1, __ATOMIC_RELEASE);
		for (int i = 0; i < 2; i++)
			NEED(pthread_join(threads[i], NULL) == 0);
		claim(neighbours, PAGES / 2, PAGES / 2);
		quiet_point("beside failures");
	}
	CALL(munmap(populated, BIG));
}

enum { THREADS = 3 };
static char *shared_reserve;
static long refused;

/* Each has a stretch of the reserve to itself: opens it, and throws away what it has not opened. */
static void *open_stretch(void *nth)
{
	char *p = shared_reserve + (uintptr_t)nth * (PAGES / 4) * PAGE;
	long no = 0;
	for (size_t round = 0; round < 20; round++) {
		for (size_t i = 0; i < PAGES / 4; i += STEP) {
			char *rest = p + (i + STEP) * PAGE;
			no += mprotect(p + i * PAGE, STEP * PAGE, PROT_READ | PROT_WRITE) != 0;
			p[i * PAGE] = 1;
			if (i + 2 * STEP <= PAGES / 4)
				no += madvise(rest, STEP * PAGE, MADV_DONTNEED) != 0;
		}
		no += mprotect(p, PAGES / 4 * PAGE, PROT_NONE) != 0;
		no += madvise(p, PAGES / 4 * PAGE, MADV_FREE) != 0;
	}
	__atomic_fetch_add(&refused, no, __ATOMIC_RELAXED);
	return NULL;
}

static void threads(void)
{
	pthread_t thread[THREADS];
	shared_reserve = reserve(PAGES);
	for (uintptr_t i = 0; i < THREADS; i++)
		NEED(pthread_create(&thread[i], NULL, open_stretch, (void *)i) == 0);
	for (uintptr_t i = 0; i < THREADS; i++)
		NEED(pthread_join(thread[i], NULL) == 0);
	say("refused to threads: %ld", refused);
	advise("after threads", shared_reserve + PAGE, PAGES / 4 - 1);
	quiet_point("threads");
}

/* What the kernel counts as locked is right, however large it is: from 8 TiB at once on it is not. */
static void huge(void)
{
	const size_t bytes = 64ul << 40;
	char line[256];
	unsigned long kb = 0;
	for (int way = 0; way < 4; way++) {
		char *p = mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
		NEED(p != MAP_FAILED);
		open_more(p + (1ul << 41), 1);
		open_more(p + (1ul << 45), STEP);
		if (way == 2)
			CALL(mlockall(MCL_CURRENT | MCL_ONFAULT));
		if (way == 1 || way == 2)
			CALL(munlockall());
		if (way == 3)
			CALL(munlock(p, bytes));
		NEED(munmap(p, bytes) == 0);
	}
	FILE *status = fopen("/proc/self/status", "re");
	NEED(status);
	while (fgets(line, sizeof line, status))
		(void)sscanf(line, "VmLck: %lu", &kb);
	fclose(status);
	say("locked when all has gone: %s", kb < 1ul << 40 ? "not much" : "more than there can be");
	void *page = anon(1);
	CALL(mlock(page, PAGE));
}

/* A move that the kernel makes in part leaves reserved memory where it was, with the lock that it had. */
static void half_moved(void)
{
	char *p = reserve(64);
	open_more(p + 8 * PAGE, 4);
	NEED(munmap(p + 20 * PAGE, 4 * PAGE) == 0);
	open_more(p + 44 * PAGE, 1);
	/* (Before Linux 6.17 it is refused as a whole.) */
	bool moved = mremap(p + 16 * PAGE, 8 * PAGE, 8 * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, p + 40 * PAGE) != MAP_FAILED;
	say("a source with a hole: %s", moved ? "moved" : "refused");
	for (int i = 0; i < 2; i++) {
		CALL(madvise(p + 45 * PAGE, 2 * PAGE, MADV_COLD));
		CALL(msync(p + 45 * PAGE, 2 * PAGE, MS_INVALIDATE));
	}
}

int main(int argc, char **argv)
{
	if (argc > 2) {
		/* Linux before 5.18 refuses it from the start on. */
		refuse_locks(BPF_JEQ, PAGE);
		execl("/proc/self/exe", argv[0], argv[1], (char *)NULL);
		NEED(false);
	}
	if (argc > 1) {
		size_t n = (size_t)atoi(argv[1]);
		char *p = reserve((n + 64) * STEP);
		for (size_t i = 0; i < n; i++)
			open_more(p + i * STEP * PAGE, STEP);
		for (size_t i = 0; i < n; i++) {
			close_again(p + i * STEP * PAGE, STEP);
			NEED(madvise(p + i * STEP * PAGE, STEP * PAGE, MADV_DONTNEED) == 0);
		}
		return 0;
	}
	opened();
	moved();
	locked();
	forked();
	replaced();
	in_child("limit", limit_binds, NULL);
	threads();
	merged();
	in_child("refused", refuse_large_locks, NULL);
	beside_failures();
	half_moved();
	huge();
	quiet_point("all");
	return 0;
}
