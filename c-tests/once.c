/*
 * Proves: a call that fails half-way is made once; what it has moved, and what the program has locked, is what it would
 * be without the shim.
 */
#include <linux/userfaultfd.h>
#include <sys/ioctl.h>
#include <sys/shm.h>
#include <sys/uio.h>
#include "check.h"

#define FROM ((char *)0x200000000000ul)
#define TO ((char *)0x210000000000ul)
#define PAGES 32

static void *map_at(char *at, unsigned long pages)
{
	void *p = mmap(at, pages * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
	NEED(p == at);
	return p;
}

static void unmap_both(void)
{
	munmap(FROM, PAGES * 3 * PAGE);
	munmap(TO, PAGES * 3 * PAGE);
}

/* The first byte of each page, by the kernel. */
static void bytes(const char *what, char *at, int pages)
{
	char text[PAGES * 3 + 1] = "";
	for (int i = 0; i < pages; i++) {
		char c = 0;
		struct iovec here = { &c, 1 }, there = { at + (unsigned long)i * PAGE, 1 };
		long n = process_vm_readv(getpid(), &here, 1, &there, 1, 0);
		text[i] = n != 1 ? '-' : c ? c : '0';
	}
	say("  %s %s", what, text);
}

static void fill(char *at, int pages, char first)
{
	for (int i = 0; i < pages; i++)
		at[(unsigned long)i * PAGE] = first + (char)(i % 26);
}

/* Several mappings, of which the kernel refuses to move a later one. */
static void half_way(const char *what, int flags, bool watched, int locked)
{
	say("%s", what);
	map_at(FROM, 25);
	fill(FROM, 25, 'a');
	map_at(TO, 25);
	int fd = -1;
	if (watched) {
		fd = (int)syscall(SYS_userfaultfd, O_CLOEXEC | UFFD_USER_MODE_ONLY);
		struct uffdio_api api = { UFFD_API, 0, 0 };
		struct uffdio_register part = { { (uint64_t)FROM + 8 * PAGE, 8 * PAGE }, UFFDIO_REGISTER_MODE_MISSING, 0 };
		if (fd < 0 || ioctl(fd, UFFDIO_API, &api) || ioctl(fd, UFFDIO_REGISTER, &part)) {
			say("userfaultfd: not for us");
			close(fd);
			return unmap_both();
		}
	} else {
		for (unsigned long i = 0; i < 20; i += 2)
			NEED(mprotect(FROM + i * PAGE, PAGE, PROT_READ) == 0);
		int id = shmget(IPC_PRIVATE, 5 * PAGE, 0600);
		NEED(shmat(id, FROM + 20 * PAGE, SHM_REMAP) != (void *)-1);
		shmctl(id, IPC_RMID, NULL);
	}
	for (int i = 0; i < locked; i++)
		NEED(mlock(FROM + (unsigned long)i * 3 * PAGE, PAGE) == 0);
	void *moved = mremap(FROM, 25 * PAGE, 25 * PAGE, flags, TO);
	say("  mremap: %s", moved == MAP_FAILED ? strerrorname_np(errno) : "moved");
	bytes("source", FROM, 25);
	bytes("target", TO, 25);
	char busy[51];
	for (unsigned long i = 0; i < 50; i++) {
		char *at = (i < 25 ? FROM : TO) + i % 25 * PAGE;
		busy[i] = msync(at, PAGE, MS_ASYNC | MS_INVALIDATE) == 0 ? '.' : errno == EBUSY ? 'L' : ' ';
	}
	busy[50] = 0;
	say("  locked %s", busy);
	close(fd);
	unmap_both();
}

/* The program's own locks, where a source has a hole. */
static void hole(const char *what, bool all)
{
	say("%s", what);
	map_at(FROM, PAGES);
	map_at(TO, PAGES);
	memset(FROM, 1, PAGES * PAGE);
	memset(TO, 2, PAGES * PAGE);
	NEED(munmap(FROM + 8 * PAGE, 4 * PAGE) == 0);
	if (all ? mlockall(MCL_CURRENT) : mlock(TO, PAGES * PAGE)) {
		say("  not locked: %s", strerrorname_np(errno));
		return unmap_both();
	}
	void *moved = mremap(FROM, PAGES * PAGE, PAGES * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, TO);
	say("  mremap: %s", moved == MAP_FAILED ? strerrorname_np(errno) : "moved");
	static const unsigned long at[] = { 0, 9, 14, 31 };
	for (size_t i = 0; i < sizeof at / sizeof *at; i++) {
		int r = madvise(TO + at[i] * PAGE, PAGE, MADV_DONTNEED);
		say("  page %lu: %s, %d", at[i], r ? strerrorname_np(errno) : "dropped", TO[at[i] * PAGE]);
	}
	munlockall();
	unmap_both();
}

/* Ranges that overlap, in a child as well: what lies around them was never locked. */
static void overlap(void)
{
	char *p = FROM;
	void *moved = mremap(p + 70 * PAGE, 8 * PAGE, 8 * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, p + 64 * PAGE);
	say("  mremap: %s", moved == MAP_FAILED ? strerrorname_np(errno) : "moved");
	int r = madvise(p, 96 * PAGE, MADV_DONTNEED);
	say("  MADV_DONTNEED: %s, %d", r ? strerrorname_np(errno) : "dropped", p[75 * PAGE]);
}

/* Pages of 64 that are resident. */
static int resident(char *p)
{
	unsigned char in[64];
	int count = 0;
	NEED(mincore(p, sizeof in * PAGE, in) == 0);
	for (size_t i = 0; i < sizeof in; i++)
		count += in[i] & 1;
	return count;
}

int main(void)
{
	half_way("a userfaultfd on a part, and nothing is unmapped", MREMAP_MAYMOVE | MREMAP_FIXED | MREMAP_DONTUNMAP, true, 0);
	half_way("a userfaultfd on a part", MREMAP_MAYMOVE | MREMAP_FIXED, true, 0);
	half_way("many parts, then a segment", MREMAP_MAYMOVE | MREMAP_FIXED | MREMAP_DONTUNMAP, false, 0);
	half_way("the same, and some are locked", MREMAP_MAYMOVE | MREMAP_FIXED | MREMAP_DONTUNMAP, false, 5);

	hole("a target that is locked", false);
	struct rlimit limit;
	/* Under a limit the shim's own memory would count. */
	if (getrlimit(RLIMIT_MEMLOCK, &limit) == 0 && (geteuid() == 0 || limit.rlim_cur == RLIM_INFINITY))
		hole("everything is locked", true);

	say("overlap");
	map_at(FROM, 96);
	memset(FROM, 5, 96 * PAGE);
	pid_t pid = fork();
	if (pid == 0) {
		overlap();
		_exit(0);
	}
	waitpid(pid, NULL, 0);
	overlap();
	unmap_both();

	/* What was locked for a while is not, and not resident once it is given back. */
	say("given back: %s", mlockall(MCL_FUTURE) ? strerrorname_np(errno) : "locked");
	char *p = mmap(NULL, 64 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	CALL(munlockall());
	if (p != MAP_FAILED) {
		memset(p, 1, 64 * PAGE);
		CALL(madvise(p, 64 * PAGE, MADV_DONTNEED));
		/* (Where everything is populated, it is again.) */
		const char *pin = getenv("REGALL_PIN");
		say("  resident %d", pin && strcmp(pin, "populate") == 0 ? 0 : resident(p));
		munmap(p, 64 * PAGE);
	}

	/* What the shim maps for the program is not locked by MCL_FUTURE, if that was not. */
	say("guarded");
	char *a = mmap(NULL, 64 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	NEED(a != MAP_FAILED);
	memset(a, 7, 64 * PAGE);
	if (mlockall(MCL_FUTURE | MCL_ONFAULT) == 0) {
		if (madvise(a + PAGE, PAGE, 102 /* MADV_GUARD_INSTALL */) == 0)
			CALL(madvise(a + PAGE, PAGE, 103 /* MADV_GUARD_REMOVE */));
		CALL(madvise(a, 64 * PAGE, MADV_DONTNEED));
		say("  %d %d %d", a[0], a[PAGE], a[2 * PAGE]);
		munlockall();
	}
	quiet_point("done");
	return 0;
}
