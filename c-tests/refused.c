/* Proves: a call that the kernel refuses leaves many parts of memory as they were: which of them the program has locked, and what they hold. */
#include <stddef.h>
#include <sys/shm.h>
#include "check.h"

#ifndef SYS_mseal
#define SYS_mseal 462
#endif

/* Every third page is locked and every third one can't be written to: more parts than any call
 * remembers. Behind them lie as many mappings that REGALL_SHARE=heap puts files behind, with
 * advice about children. */
#define PAGES 60
#define SMALL (PAGES * PAGE)
#define LARGE (128ul << 10)
#define LARGES 12
#define BYTES (SMALL + LARGES * LARGE)

static char *place(size_t n)
{
	return (char *)0x220000000000ul + n * (64ul << 20);
}

/* By a hint: what MAP_FIXED puts somewhere is never shared. */
static char *map(char *at, size_t bytes)
{
	char *p = mmap(at, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	NEED(p == at);
	return p;
}

static char *parts(size_t n, bool hidden)
{
	char *p = map(place(n), SMALL);
	for (size_t i = 0; i < PAGES; i++) {
		p[i * PAGE] = (char)(i + 1);
		if (i % 3 == 0)
			NEED(mlock(p + i * PAGE, PAGE) == 0);
		if (i % 3 == 1)
			NEED(mprotect(p + i * PAGE, PAGE, PROT_READ) == 0);
	}
	/* Then it is not known to be sealed later: a child has not got it. */
	if (hidden)
		NEED(madvise(p, PAGE, MADV_DONTFORK) == 0);
	for (size_t i = 0; i < LARGES; i++) {
		char *large = map(p + SMALL + i * LARGE, LARGE);
		memset(large, (int)i + 1, LARGE);
		if (i % 2 == 0)
			NEED(madvise(large, LARGE, MADV_WIPEONFORK) == 0);
		if (i % 3 == 0)
			NEED(mlock(large, LARGE) == 0);
	}
	return p;
}

static void look_in_child(char *large)
{
	char said[LARGES + 1] = "";
	pid_t pid = fork();
	NEED(pid >= 0);
	if (pid == 0) {
		for (size_t i = 0; i < LARGES; i++) {
			char *p = large + i * LARGE;
			said[i] = all_are(p, LARGE, 0) ? '0' : all_are(p, LARGE, (char)(i + 1)) ? '=' : '!';
			memset(p, 99, LARGE);
		}
		say("  %s", said);
		_exit(0);
	}
	reap("  a child", pid);
}

/* What is locked can't be thrown away; a child has memory of its own, wiped if that was asked for. */
static void look(char *p)
{
	char said[PAGES + LARGES + 1] = "", *large = p + SMALL;
	look_in_child(large);
	for (size_t i = 0; i < PAGES; i++) {
		bool same = p[i * PAGE] == (char)(i + 1);
		bool dropped = madvise(p + i * PAGE, PAGE, MADV_DONTNEED) == 0;
		said[i] = !same ? '!' : dropped ? '.' : errno == EINVAL ? 'L' : 'S';
	}
	for (size_t i = 0; i < LARGES; i++) {
		char *at = large + i * LARGE;
		bool same = all_are(at, LARGE, (char)(i + 1)), dropped = madvise(at, LARGE, MADV_DONTNEED) == 0;
		if (dropped)
			same &= all_are(at, LARGE, 0);
		said[PAGES + i] = !same ? '!' : dropped ? '.' : errno == EINVAL ? 'L' : 'S';
	}
	say("  %s", said);
}

static void unmap(char *p)
{
	CALL(munmap(p - PAGE, BYTES + 2 * PAGE));
}

static void replace(char *p)
{
	MAP_AS("mmap onto it", mmap(p, BYTES, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0));
}

static void protect(char *p)
{
	CALL(mprotect(p, BYTES, PROT_NONE));
	CALL(mprotect(p, BYTES, PROT_READ | PROT_EXEC));
}

static void protect_with_key(char *p)
{
	errno = 0;
	told("pkey_mprotect with a key that is none", pkey_mprotect(p, BYTES, PROT_NONE, 15) == 0);
}

static void replace_by_nothing(char *p)
{
	MAP_AS("mmap of no file", mmap(p, BYTES, PROT_READ, MAP_PRIVATE | MAP_FIXED, 12345, 0));
	MAP_AS("mmap of neither kind", mmap(p, BYTES, PROT_READ, MAP_ANONYMOUS | MAP_FIXED, -1, 0));
	int fd = memory_file(BYTES), shut = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
	MAP_AS("mmap of a file that can't be written", mmap(p, BYTES, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, shut, 0));
	MAP_AS("mmap between pages of a file", (void *)syscall(SYS_mmap, p, BYTES, PROT_READ, MAP_PRIVATE | MAP_FIXED, fd, 100));
	close(fd);
	close(shut);
}

static void move_nothing_there(char *p)
{
	char *hole = reserve(BYTES / PAGE);
	munmap(hole, BYTES);
	MAP_AS("mremap of nothing", mremap(hole, BYTES, BYTES, MREMAP_MAYMOVE | MREMAP_FIXED, p));
}

/* Two mappings to the program, which can't be grown as one. */
static void move_two_there(char *p)
{
	char *two = reserve(8);
	NEED(mprotect(two + 4 * PAGE, 4 * PAGE, PROT_READ) == 0);
	MAP_AS("mremap of two mappings", mremap(two, 8 * PAGE, BYTES, MREMAP_MAYMOVE | MREMAP_FIXED, p));
}

/* One to the program; several to the kernel if each is pinned when it comes. */
static void move_one_there(char *p)
{
	char *one = p + (32ul << 20);
	for (int i = 0; i < 4; i++) {
		char *at = one + i * 4 * PAGE;
		int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE | MAP_FIXED_NOREPLACE;
		NEED(mmap(at, 4 * PAGE, PROT_READ | PROT_WRITE, flags, -1, 0) == at);
	}
	MAP_AS("mremap of one mapping", mremap(one, 16 * PAGE, 16 * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, p));
}

static void move_it(char *p)
{
	MAP_AS("mremap grows it", mremap(p, BYTES, 2 * BYTES, MREMAP_MAYMOVE));
	MAP_AS("mremap grows it in place", mremap(p, BYTES, 2 * BYTES, 0));
	MAP_AS("mremap leaves it", mremap(p, BYTES, BYTES, MREMAP_MAYMOVE | MREMAP_DONTUNMAP, NULL));
	MAP_AS("mremap onto itself", mremap(p, BYTES, BYTES, MREMAP_MAYMOVE | MREMAP_FIXED, p + PAGE));
}

static void advise(char *p)
{
	CALL(madvise(p, BYTES, MADV_REMOVE));
	CALL(madvise(p - PAGE, PAGE, MADV_DONTNEED));
	CALL(madvise(p, BYTES, 12345));
	CALL(msync(p, BYTES, MS_INVALIDATE | MS_SYNC));
	CALL(msync(p, BYTES + PAGE, MS_ASYNC | MS_INVALIDATE));
}

static void lock_more(char *p)
{
	errno = 0;
	told("mlock2 with flags that are none", syscall(SYS_mlock2, p, BYTES, 64) == 0);
	CALL(munlock(p - PAGE, PAGE));
	errno = 0;
	told("remap_file_pages", syscall(SYS_remap_file_pages, p, BYTES, 0, 0, 0) == 0);
}

static void attach(char *p)
{
	errno = 0;
	told("shmat of nothing", shmat(-1, p, SHM_REMAP) != (void *)-1);
	int id = shmget(IPC_PRIVATE, BYTES, 0600);
	NEED(id >= 0 && shmctl(id, IPC_RMID, NULL) == 0);
	errno = 0;
	told("shmat of what is gone", shmat(id, p, SHM_REMAP) != (void *)-1);
}

static void limited(char *p)
{
	struct rlimit none = { 0, RLIM_INFINITY }, before;
	NEED(getrlimit(RLIMIT_AS, &before) == 0 && setrlimit(RLIMIT_AS, &none) == 0);
	MAP_AS("mmap of more than may be", mmap(p, 2 * BYTES, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0));
	MAP_AS("mremap of more than may be", mremap(p, PAGE, 2 * BYTES, MREMAP_MAYMOVE));
	NEED(setrlimit(RLIMIT_AS, &before) == 0);
}

enum { SEALED = 1, HIDDEN = 2 };

static const struct {
	const char *name;
	void (*make)(char *);
	int how;
} calls[] = {
	{ "munmap", unmap, SEALED },
	{ "mmap", replace, SEALED },
	{ "mprotect", protect, SEALED },
	{ "mremap, onto what is sealed", move_one_there, SEALED },
	{ "mremap, of what is sealed", move_it, SEALED },
	{ "munmap, hidden", unmap, SEALED | HIDDEN },
	{ "mmap, hidden", replace, SEALED | HIDDEN },
	{ "mprotect, hidden", protect, SEALED | HIDDEN },
	{ "mremap, onto what is sealed, hidden", move_one_there, SEALED | HIDDEN },
	{ "mremap, of what is sealed, hidden", move_it, SEALED | HIDDEN },
	{ "mremap", move_it, 0 },
	{ "mremap of nothing", move_nothing_there, 0 },
	{ "mremap of two", move_two_there, 0 },
	{ "mmap, wrong", replace_by_nothing, 0 },
	{ "pkey_mprotect", protect_with_key, 0 },
	{ "advice", advise, 0 },
	{ "locks", lock_more, 0 },
	{ "shmat", attach, 0 },
	{ "limits", limited, 0 },
};

int main(void)
{
	bool can_seal = syscall(SYS_mseal, NULL, 0ul, 0ul) == 0;
	for (size_t n = 0; n < sizeof calls / sizeof *calls; n++) {
		if (calls[n].how & SEALED && !can_seal)
			continue;
		char *p = parts(n, calls[n].how & HIDDEN);
		say("%s", calls[n].name);
		if (calls[n].how & SEALED)
			NEED(syscall(SYS_mseal, p, BYTES, 0ul) == 0);
		calls[n].make(p);
		quiet_point(calls[n].name);
		look(p);
	}
	return 0;
}
