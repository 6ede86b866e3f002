/*
 * Proves: a random sequence of memory calls gives the same with the shim as without: results,
 * errors, contents, protections, and what the program has locked.
 *
 *   sequences SEED CALLS [l]
 *
 * Without arguments it does many short sequences. `l`: the kernel's locks are told, which are the shim's,
 * too, where it locks memory; and what VmLck says beyond them. Where RLIMIT_MEMLOCK counts, not everything
 * that is mapped is locked at once: the shim's own memory would count.
 *
 * Everything is at fixed addresses, in a zone that nobody else maps anything in.
 */
#include <sys/shm.h>
#include <sys/uio.h>
#include "check.h"
#include "draw.h"

#define ZONE 0x200000000000ul
#define PAGES 48ul
#define FILE_PAGES 12ul

static int disk, memory;
static bool with_locks, limited;
static unsigned char fresh;
static char *start_of_heap;

static unsigned long at(uint64_t page)
{
	return ZONE + page * PAGE;
}

/* A page of the zone; now and then the last ones, or one behind it. */
static unsigned long any_page(void)
{
	return draw(24) ? draw(PAGES) : PAGES - 1 + draw(2);
}

static unsigned long any_length(void)
{
	switch (draw(12)) {
	case 0:
		return 0;
	case 1:
		return PAGE * draw(4) + 1 + draw(PAGE);
	case 2:
		return PAGES * PAGE;
	default:
		return PAGE * (1 + draw(draw(3) ? 6 : 20));
	}
}

static unsigned long any_address(void)
{
	return at(any_page()) + (draw(40) ? 0 : 1 + draw(PAGE - 1));
}

/* Bytes of the zone from `addr` on, no more than `bytes`. */
static unsigned long within(unsigned long addr, unsigned long bytes)
{
	unsigned long left = addr < at(PAGES) ? at(PAGES) - addr : 0;
	return bytes < left ? bytes : left;
}

static int any_protection(void)
{
	static const int all[] = { PROT_READ | PROT_WRITE, PROT_READ | PROT_WRITE, PROT_READ | PROT_WRITE, PROT_READ,
				   PROT_NONE, PROT_READ | PROT_EXEC };
	return all[draw(sizeof all / sizeof *all)];
}

/* What a call came to: an address of the zone by its offset. */
static void result(const char *call, long value)
{
	unsigned long in = (unsigned long)value - ZONE;
	if (value == -1)
		say("  %s: %s", call, strerrorname_np(errno));
	else if (in <= PAGES * PAGE)
		say("  %s: zone+%lx", call, in);
	else
		say("  %s: %ld", call, value);
}

/* Where the kernel has chosen the place itself: nothing stays there. */
static void elsewhere(const char *call, char *p, unsigned long bytes)
{
	unsigned long in = (unsigned long)p - ZONE;
	if (p == MAP_FAILED || in < PAGES * PAGE)
		return result(call, (long)p);
	say("  %s: elsewhere", call);
	munmap(p, bytes);
}

static bool copy(unsigned long addr, unsigned char *byte, bool write)
{
	struct iovec here = { byte, 1 }, there = { (void *)addr, 1 };
	long n = write ? process_vm_writev(getpid(), &here, 1, &there, 1, 0) :
			 process_vm_readv(getpid(), &here, 1, &there, 1, 0);
	return n == 1;
}

static void write_to(unsigned long page)
{
	fresh = fresh % 250 + 1;
	(void)copy(at(page), &fresh, true);
}

/* The zone as the kernel lists it: protections and, if they are asked for, locks of each page. Kilobytes of all
 * mappings that are locked. */
static long listed(char *prot, char *locks)
{
	long locked = 0;
	static char text[1 << 16];
	memset(prot, '.', PAGES);
	memset(locks, '.', PAGES);
	int fd = open(with_locks ? "/proc/self/smaps" : "/proc/self/maps", O_RDONLY);
	NEED(fd >= 0);
	unsigned long from = 0, to = 0, a = 0, b = 0;
	size_t kept = 0;
	for (ssize_t n; (n = read(fd, text + kept, sizeof text - 1 - kept)) > 0 || kept;) {
		size_t all = kept + (n > 0 ? (size_t)n : 0);
		text[all] = 0;
		char *line = text, *end;
		for (; (end = strchr(line, '\n')) != NULL; line = end + 1) {
			unsigned long first, last;
			char p[5];
			*end = 0;
			if (sscanf(line, "%lx-%lx %4s", &first, &last, p) == 3) {
				a = first;
				b = last;
				from = a < ZONE ? ZONE : a;
				to = b > at(PAGES) ? at(PAGES) : b;
				int bits = (p[0] == 'r') | (p[1] == 'w') << 1 | (p[2] == 'x') << 2 | (p[3] == 's') << 3;
				for (unsigned long i = from; i < to; i += PAGE)
					prot[(i - ZONE) / PAGE] = "0123456789abcdef"[bits];
			} else if (strncmp(line, "VmFlags:", 8) == 0 && strstr(line, " lo")) {
				locked += (long)(b - a) / 1024;
				for (unsigned long i = from; i < to; i += PAGE)
					locks[(i - ZONE) / PAGE] = 'L';
			}
		}
		kept = (size_t)(text + all - line);
		memmove(text, line, kept);
		if (n <= 0)
			break;
	}
	close(fd);
	return locked;
}

static long locked_kilobytes(void)
{
	static char text[8192];
	int fd = open("/proc/self/status", O_RDONLY);
	NEED(fd >= 0);
	ssize_t n = read(fd, text, sizeof text - 1);
	NEED(n > 0);
	text[n] = 0;
	close(fd);
	char *found = strstr(text, "VmLck:");
	NEED(found != NULL);
	return atol(found + 6);
}

/* What is in the zone. `probe`: and what the program has locked of it, as the kernel tells whoever asks:
 * MS_INVALIDATE is EBUSY there. */
static void state(bool probe)
{
	char bytes[PAGES + 1] = "", prot[PAGES + 1] = "", locks[PAGES + 1] = "", busy[PAGES + 1] = "";
	long locked = listed(prot, locks);
	for (unsigned long i = 0; i < PAGES; i++) {
		unsigned char byte;
		bool there = copy(at(i), &byte, false);
		bytes[i] = !there ? '-' : byte == 0 ? '0' : (char)('A' + byte % 50);
		if (probe)
			busy[i] = msync((void *)at(i), PAGE, MS_ASYNC | MS_INVALIDATE) == 0 ? '.' :
				  errno == EBUSY					      ? 'L' :
											' ';
	}
	say("    bytes %s", bytes);
	say("    prot  %s", prot);
	if (probe)
		say("    locks %s", busy);
	if (with_locks) {
		say("    lo    %s", locks);
		say("    VmLck beyond %ld", locked_kilobytes() - locked);
	}
}

static void call_mmap(void)
{
	unsigned long addr = any_address(), bytes = within(addr, any_length());
	int prot = any_protection(), fd = -1;
	int flags = draw(4) ? MAP_PRIVATE : MAP_SHARED;
	unsigned long offset = 0;
	switch (draw(5)) {
	case 0:
		fd = disk;
		break;
	case 1:
		fd = memory;
		break;
	default:
		flags |= MAP_ANONYMOUS;
	}
	if (fd >= 0)
		offset = draw(20) ? PAGE * draw(FILE_PAGES - 4) : 1 + draw(PAGE);
	switch (draw(8)) {
	case 0:
		flags |= MAP_FIXED_NOREPLACE;
		break;
	case 1:
		break;
	default:
		flags |= MAP_FIXED;
	}
	if (draw(8) == 0)
		flags |= MAP_LOCKED;
	if (draw(8) == 0)
		flags |= MAP_POPULATE;
	if (draw(8) == 0)
		flags |= MAP_NORESERVE;
	say("mmap %lx %lx prot %d flags %x file %d offset %lx", addr - ZONE, bytes, prot, flags,
	    fd < 0 ? 0 : fd == disk ? 1 : 2, offset);
	elsewhere("mmap", mmap((void *)addr, bytes, prot, flags, fd, (off_t)offset), bytes);
}

static void call_munmap(void)
{
	unsigned long addr = any_address(), bytes = within(addr, any_length());
	say("munmap %lx %lx", addr - ZONE, bytes);
	result("munmap", munmap((void *)addr, bytes));
}

static void call_mremap(void)
{
	unsigned long addr = any_address(), old = within(addr, any_length());
	unsigned long new = draw(2) ? old : any_length(), to = any_address();
	int flags = draw(6) ? MREMAP_MAYMOVE : 0;
	if (draw(3) && flags)
		flags |= MREMAP_FIXED;
	if (draw(5) == 0 && flags)
		flags |= MREMAP_DONTUNMAP;
	if (draw(30) == 0)
		flags |= draw(16);
	if (flags & MREMAP_FIXED)
		new = within(to, new);
	else if (new > old)
		/* In place: not beyond the zone. */
		new = within(addr, new);
	say("mremap %lx %lx %lx flags %x to %lx", addr - ZONE, old, new, flags, to - ZONE);
	elsewhere("mremap", mremap((void *)addr, old, new, flags, (void *)to), new);
}

static void call_mprotect(void)
{
	unsigned long addr = any_address(), bytes = any_length();
	int prot = draw(40) ? any_protection() : (int)draw(64);
	say("mprotect %lx %lx %d", addr - ZONE, bytes, prot);
	result("mprotect", mprotect((void *)addr, bytes, prot));
}

static void call_madvise(void)
{
	static const int all[] = { MADV_DONTNEED, MADV_DONTNEED, MADV_DONTNEED, MADV_FREE, MADV_REMOVE, MADV_COLD, MADV_PAGEOUT,
				   MADV_NORMAL, MADV_RANDOM, MADV_WILLNEED, MADV_DONTFORK, MADV_DOFORK, MADV_WIPEONFORK,
				   MADV_KEEPONFORK, MADV_HUGEPAGE, MADV_NOHUGEPAGE, MADV_POPULATE_READ,
				   MADV_POPULATE_WRITE, 24 /* MADV_DONTNEED_LOCKED */, 77 /* none */ };
	unsigned long addr = any_address(), bytes = any_length();
	int advice = all[draw(sizeof all / sizeof *all)];
	say("madvise %lx %lx %d", addr - ZONE, bytes, advice);
	result("madvise", madvise((void *)addr, bytes, advice));
	if (advice != MADV_FREE)
		return;
	/* When the kernel frees it nobody knows: written, or given back at once. */
	for (unsigned long page = (addr - ZONE) / PAGE; page < PAGES && at(page) < addr + bytes; page++) {
		fresh = fresh % 250 + 1;
		if (!copy(at(page), &fresh, true))
			madvise((void *)at(page), PAGE, MADV_DONTNEED);
	}
}

static void call_mlock(void)
{
	unsigned long addr = any_address(), bytes = any_length();
	int how = (int)draw(4);
	say("mlock%d %lx %lx", how, addr - ZONE, bytes);
	result("mlock", how == 0 ? mlock2((void *)addr, bytes, MLOCK_ONFAULT) :
			how == 1 ? mlock2((void *)addr, bytes, draw(8) ? 0 : 2) :
				   mlock((void *)addr, bytes));
}

static void call_munlock(void)
{
	unsigned long addr = any_address(), bytes = any_length();
	say("munlock %lx %lx", addr - ZONE, bytes);
	result("munlock", munlock((void *)addr, bytes));
}

static void call_all(void)
{
	int flags = (int)draw(8);
	if (draw(2)) {
		say("munlockall");
		result("munlockall", munlockall());
		return;
	}
	if (limited)
		flags &= ~MCL_CURRENT;
	say("mlockall %d", flags);
	result("mlockall", mlockall(flags));
}

static void call_msync(void)
{
	static const int all[] = { MS_SYNC, MS_ASYNC, MS_ASYNC | MS_INVALIDATE, MS_SYNC | MS_INVALIDATE, MS_SYNC | MS_ASYNC };
	unsigned long addr = any_address(), bytes = any_length();
	int flags = all[draw(sizeof all / sizeof *all)];
	say("msync %lx %lx %d", addr - ZONE, bytes, flags);
	result("msync", msync((void *)addr, bytes, flags));
}

/* By itself: libc keeps its own word of where the break is. */
static void call_brk(void)
{
	char *want = start_of_heap + draw(64) * PAGE + draw(2) * draw(PAGE);
	char *now = (char *)syscall(SYS_brk, want);
	say("brk %ld: %s", (long)(want - start_of_heap), now == want ? "there" : "not there");
	if (now == want && want > start_of_heap) {
		unsigned char byte = 77, back = 0;
		unsigned long last = ((unsigned long)want - 1) & ~(PAGE - 1);
		say("  written %d", copy(last, &byte, true) && copy(last, &back, false) && back == 77);
	}
}

static void call_shm(void)
{
	unsigned long addr = any_address();
	if (draw(2)) {
		say("shmdt %lx", addr - ZONE);
		result("shmdt", shmdt((void *)addr));
		return;
	}
	unsigned long bytes = PAGE * (1 + draw(5));
	addr &= ~(PAGE - 1);
	if (within(addr, bytes) < bytes)
		addr = at(0);
	int id = shmget(IPC_PRIVATE, bytes, 0600);
	int flags = (draw(3) ? SHM_REMAP : 0) | (draw(4) ? 0 : SHM_RDONLY);
	say("shmat %lx %lx flags %o", addr - ZONE, bytes, flags);
	result("shmat", (long)shmat(id, (void *)addr, flags));
	shmctl(id, IPC_RMID, NULL);
}

static void step(void)
{
	static const struct {
		unsigned weight;
		void (*call)(void);
	} calls[] = { { 10, call_mmap },  { 3, call_munmap }, { 10, call_mremap }, { 6, call_mprotect }, { 8, call_madvise },
		      { 5, call_mlock }, { 3, call_munlock }, { 2, call_all },	  { 3, call_msync },   { 2, call_brk },
		      { 2, call_shm } };
	unsigned long n = draw(54);
	for (size_t i = 0; i < sizeof calls / sizeof *calls; i++) {
		if (n < calls[i].weight)
			return calls[i].call();
		n -= calls[i].weight;
	}
}

static void sequence(uint64_t seed, long calls)
{
	seed_of_draws = 0x9e3779b97f4a7c15ull * (seed + 1);
	for (int i = 0; i < 8; i++)
		(void)draw(2);
	fresh = 0;
	say("sequence %llu", (unsigned long long)seed);
	/* Something to begin with: private memory, some of which is written. */
	(void)!mmap((void *)at(4), (PAGES - 8) * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
	for (unsigned long page = 4; page < PAGES - 4; page++)
		if (draw(2))
			write_to(page);
	for (long i = 0; i < calls; i++) {
		step();
		for (uint64_t n = draw(4); n > 0; n--)
			write_to(draw(PAGES));
		state(draw(4) == 0);
	}
	state(true);
	munlockall();
	munmap((void *)ZONE, PAGES * PAGE);
	syscall(SYS_brk, start_of_heap);
	/* The shared files are as they were. */
	for (unsigned long page = 0; page < FILE_PAGES; page++) {
		unsigned char byte = (unsigned char)(200 + page);
		NEED(pwrite(disk, &byte, 1, (off_t)(page * PAGE)) == 1);
		NEED(pwrite(memory, &byte, 1, (off_t)(page * PAGE)) == 1);
	}
}

int main(int argc, char **argv)
{
	char path[] = "/tmp/sequences-XXXXXX";
	disk = mkstemp(path);
	memory = memfd_create("sequences", MFD_CLOEXEC);
	NEED(disk >= 0 && memory >= 0 && unlink(path) == 0);
	NEED(ftruncate(disk, FILE_PAGES * PAGE) == 0 && ftruncate(memory, FILE_PAGES * PAGE) == 0);
	struct rlimit limit;
	NEED(getrlimit(RLIMIT_MEMLOCK, &limit) == 0);
	limited = geteuid() != 0 && limit.rlim_cur != RLIM_INFINITY;
	with_locks = argc > 3;
	start_of_heap = (char *)((unsigned long)((char *)syscall(SYS_brk, 0) + PAGE - 1) & ~(PAGE - 1));
	if (argc > 2) {
		sequence(strtoull(argv[1], NULL, 10), atol(argv[2]));
	} else {
		for (uint64_t seed = 0; seed < 60; seed++)
			sequence(seed, 4 + (long)seed / 4);
	}
	quiet_point("done");
	return 0;
}
