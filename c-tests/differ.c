/*
 * Carries out a sequence of memory calls that is in a file, a call a line, and prints what each
 * came to, and what the program sees of its memory then. tests/differ.rs draws sequences, runs them without the
 * shim and with it, and compares.
 *
 * Everything lies in two arenas at fixed addresses, `a` and `b`; an address is `a+3000`, each number hexadecimal.
 * A line of output says what it is by its first letter:
 *
 *   =  a call and its result
 *   P  protections, page by page        M  mappings, with what smaps says of them but locks
 *   K  what the kernel has locked       B  the first byte of each page
 *   A  what is accounted for              C  the same as R, in a child
 *   R  which private pages are resident L  what the program has locked: MS_INVALIDATE is EBUSY there
 */
#include <linux/userfaultfd.h>
#include <sys/ioctl.h>
#include <sys/shm.h>
#include <sys/uio.h>
#include "check.h"

#define PAGES 48ul
#define ARENAS 2
#define FILE_PAGES 16ul
#define HIGH 400 /* our descriptors: a program's are below */

static const unsigned long arenas[ARENAS] = { 0x200000000000ul, 0x210000000000ul };
static char script[1 << 16], *lines[2048], *in_handler;
static size_t count;
static int disk, memory, faults = -1;
static ino_t disk_inode, memory_inode;
static unsigned char fresh;
static bool is_child;
static char *start_of_heap;

/* What one page's mapping is like. */
static struct page {
	char prot, lock, accounted, anonymous;
	char kind[160];
} pages[ARENAS][PAGES];

static void result(const char *call, long value)
{
	int e = errno;
	for (int i = 0; i < ARENAS; i++)
		if ((unsigned long)value - arenas[i] <= PAGES * PAGE)
			return say("= %s: %c+%lx", call, 'a' + i, (unsigned long)value - arenas[i]);
	if (value == -1)
		say("= %s: %s", call, strerrorname_np(e));
	else
		say("= %s: %ld", call, value);
}

static bool copy(unsigned long addr, unsigned char *byte, bool write)
{
	struct iovec here = { byte, 1 }, there = { (void *)addr, 1 };
	long n = write ? process_vm_writev(getpid(), &here, 1, &there, 1, 0) :
			 process_vm_readv(getpid(), &here, 1, &there, 1, 0);
	return n == 1;
}

/* A page of a file's mapping is behind the file's end: to write there is SIGBUS, and leaves a mark on the mapping. */
static bool is_beyond(unsigned long addr)
{
	for (int i = 0; i < ARENAS; i++) {
		unsigned char byte;
		unsigned long p = (addr - arenas[i]) / PAGE;
		if (addr >= arenas[i] && p < PAGES)
			return !pages[i][p].anonymous && !copy(addr, &byte, false);
	}
	return false;
}

static bool write_to(unsigned long addr)
{
	if (is_beyond(addr))
		return false;
	fresh = fresh % 250 + 1;
	return copy(addr, &fresh, true);
}

/* Where the kernel has chosen the place itself: what is there is told, and nothing stays. */
static void elsewhere(const char *call, char *p, unsigned long bytes)
{
	for (int i = 0; i < ARENAS; i++)
		if ((unsigned long)p - arenas[i] < PAGES * PAGE)
			return result(call, (long)p);
	if (p == MAP_FAILED)
		return result(call, -1);
	char text[260] = "";
	size_t n = 0;
	for (unsigned long at = 0; at < bytes && n + 4 < sizeof text; at += PAGE) {
		unsigned char byte = 0;
		bool there = copy((unsigned long)p + at, &byte, false);
		n += (size_t)sprintf(text + n, there ? "%02x " : "-- ", byte);
	}
	say("= %s: elsewhere %s", call, text);
	munmap(p, bytes);
}

/* A mapping's page: what `kind` says is the same of pages that may be one mapping's. */
static void put(unsigned long from, unsigned long to, const struct page *is)
{
	for (int i = 0; i < ARENAS; i++)
		for (unsigned long p = 0; p < PAGES; p++)
			if (arenas[i] + p * PAGE >= from && arenas[i] + p * PAGE < to)
				pages[i][p] = *is;
}

static const char *file_of(unsigned long inode, const char *name)
{
	if (inode == 0)
		return "none";
	if (strstr(name, "SYSV"))
		return "sysv";
	if (strstr(name, "/dev/zero"))
		return "zero";
	return inode == disk_inode ? "disk" : inode == memory_inode ? "mem" : "other";
}

/* Locks, and what is accounted for, are told apart from mappings; soft-dirty and guarded are said of all that is one mapping. */
static bool told_of(const char *flag)
{
	static const char left_out[][3] = { "lo", "lf", "ac", "sd", "gu" };
	for (size_t i = 0; i < sizeof left_out / sizeof *left_out; i++)
		if (strncmp(flag, left_out[i], 2) == 0)
			return false;
	return true;
}

/* A line of smaps. */
static bool smaps_line(char *line, struct page *now, unsigned long *from, unsigned long *to)
{
	unsigned long first, last, offset, inode;
	char p[5];
	int at = 0;
	if (sscanf(line, "%lx-%lx %4s %lx %*x:%*x %lu %n", &first, &last, p, &offset, &inode, &at) >= 5) {
		if (first > arenas[ARENAS - 1] + PAGES * PAGE)
			return false;
		*from = first;
		*to = last;
		int bits = (p[0] == 'r') | (p[1] == 'w') << 1 | (p[2] == 'x') << 2;
		now->prot = (char)('0' + bits);
		now->anonymous = p[3] == 'p' && inode == 0;
		/* Where the mapping's byte 0 would be. */
		snprintf(now->kind, sizeof now->kind, "%s %s %lx", p, file_of(inode, line + at),
			 inode ? (first - arenas[0] - offset) & 0xffffffffff : 0);
	} else if (strncmp(line, "VmFlags:", 8) == 0) {
		now->lock = strstr(line, " lo") ? 'L' : '.';
		now->accounted = strstr(line, " ac") ? 'A' : '.';
		size_t n = strlen(now->kind);
		for (char *flag = line + 9; flag[0] && flag[1]; flag += 3)
			if (told_of(flag) && n + 4 < sizeof now->kind)
				n += (size_t)sprintf(now->kind + n, " %.2s", flag);
		put(*from, *to, now);
	}
	return true;
}

static void read_mappings(void)
{
	static char text[1 << 17];
	for (int i = 0; i < ARENAS; i++)
		for (unsigned long p = 0; p < PAGES; p++)
			pages[i][p] = (struct page){ .prot = '.', .lock = '.', .accounted = '.' };
	int fd = open("/proc/self/smaps", O_RDONLY);
	NEED(fd >= 0);
	struct page now = { 0 };
	unsigned long from = 0, to = 0;
	size_t kept = 0;
	bool more = true;
	for (ssize_t n; more && (n = read(fd, text + kept, 16384)) > 0;) {
		size_t all = kept + (size_t)n;
		text[all] = 0;
		char *line = text, *end;
		for (; more && (end = strchr(line, '\n')) != NULL; line = end + 1) {
			*end = 0;
			more = smaps_line(line, &now, &from, &to);
		}
		kept = (size_t)(text + all - line);
		memmove(text, line, more ? kept : 0);
	}
	close(fd);
}

static void mappings(void)
{
	char prot[ARENAS * PAGES + 2] = "", locks[ARENAS * PAGES + 2] = "", accounts[ARENAS * PAGES + 2] = "";
	size_t n = 0;
	read_mappings();
	for (int i = 0; i < ARENAS; i++) {
		for (unsigned long p = 0, q; p < PAGES; p = q) {
			for (q = p; q < PAGES && strcmp(pages[i][p].kind, pages[i][q].kind) == 0; q++) {
				prot[n] = pages[i][q].prot;
				accounts[n] = pages[i][q].accounted;
				locks[n++] = pages[i][q].lock;
			}
			if (pages[i][p].kind[0])
				say("M %c+%lx %lx %s", 'a' + i, p, q - p, pages[i][p].kind);
		}
		prot[n] = locks[n] = accounts[n] = ' ';
		n++;
	}
	say("P %.*s", (int)n, prot);
	say("K %.*s", (int)n, locks);
	say("A %.*s", (int)n, accounts);
}

static void look(void)
{
	char bytes[2 * ARENAS * PAGES + 3] = "", there[ARENAS * PAGES + 3] = "", busy[ARENAS * PAGES + 3] = "";
	size_t n = 0;
	for (int i = 0; i < ARENAS; i++) {
		for (unsigned long p = 0; p < PAGES; p++, n++) {
			unsigned long addr = arenas[i] + p * PAGE;
			unsigned char in = 0, byte = 0;
			bool mapped = mincore((void *)addr, PAGE, &in) == 0;
			there[n] = !mapped || !pages[i][p].anonymous ? ' ' : in & 1 ? 'r' : '.';
			busy[n] = msync((void *)addr, PAGE, MS_ASYNC | MS_INVALIDATE) == 0 ? '.' : errno == EBUSY ? 'L' : ' ';
			bool readable = copy(addr, &byte, false);
			sprintf(bytes + 2 * n, readable ? "%02x" : "--", byte);
		}
	}
	say("B %s", bytes);
	say("%c %s", is_child ? 'C' : 'R', there);
	say("L %s", busy);
}

/* The words of a line: `a+3000` and hexadecimal numbers. */
static unsigned long number(const char *word)
{
	if (!word)
		return 0;
	if ((word[0] == 'a' || word[0] == 'b') && word[1] == '+')
		return arenas[word[0] - 'a'] + strtoul(word + 2, NULL, 16);
	return strtoul(word, NULL, 16);
}

static int file_named(unsigned long which)
{
	return which == 1 ? disk : which == 2 ? memory : -1;
}

static void registers(unsigned long addr, unsigned long bytes)
{
	if (faults < 0) {
		int fd = (int)syscall(SYS_userfaultfd, O_CLOEXEC | UFFD_USER_MODE_ONLY);
		struct uffdio_api api = { .api = UFFD_API, .features = UFFD_FEATURE_SIGBUS };
		if (fd < 0 || ioctl(fd, UFFDIO_API, &api) != 0)
			return say("= no userfaultfd");
		faults = fcntl(fd, F_DUPFD_CLOEXEC, HIGH);
		close(fd);
	}
	struct uffdio_register r = { .range = { addr, bytes }, .mode = UFFDIO_REGISTER_MODE_MISSING };
	result("register", ioctl(faults, UFFDIO_REGISTER, &r));
}

static void attach(unsigned long addr, unsigned long bytes, int flags)
{
	int id = shmget(IPC_PRIVATE, bytes, 0600);
	result("shmat", (long)shmat(id, (void *)addr, flags));
	shmctl(id, IPC_RMID, NULL);
}

/* When the kernel frees it nobody knows: written, or given back at once, as where a fault would tell. */
static void settle(unsigned long addr, unsigned long bytes)
{
	for (unsigned long at = addr; at < addr + bytes && at < addr + PAGES * PAGE; at += PAGE)
		if (faults >= 0 || !write_to(at))
			madvise((void *)at, PAGE, MADV_DONTNEED);
}

static void breaks(unsigned long want)
{
	/* By itself: libc keeps its own word of where the break is. */
	char *to = start_of_heap + want, *now = (char *)syscall(SYS_brk, to);
	unsigned char byte = 77, back = 0;
	unsigned long last = ((unsigned long)to - 1) & ~(PAGE - 1);
	say("= brk: %s", now == to ? "there" : "not there");
	if (now == to && want)
		say("B brk %d", copy(last, &byte, true) && copy(last, &back, false) && back == 77);
}

static void limits(unsigned long which, unsigned long value)
{
	int resource = which == 0 ? RLIMIT_MEMLOCK : which == 1 ? RLIMIT_DATA : RLIMIT_AS;
	struct rlimit l;
	NEED(getrlimit(resource, &l) == 0);
	l.rlim_cur = value == 0xffffffff ? l.rlim_max : value;
	result("setrlimit", setrlimit(resource, &l));
}

/* Calls that concern files and the process itself. */
static bool others(const char *name, const unsigned long *v)
{
	if (!strcmp(name, "truncate"))
		result(name, ftruncate(file_named(v[0]), (off_t)v[1]));
	else if (!strcmp(name, "punch"))
		result(name, fallocate(file_named(v[0]), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)v[1], (off_t)v[2]));
	else if (!strcmp(name, "seal"))
		result(name, fcntl(memory, F_ADD_SEALS, (int)v[0]));
	else if (!strcmp(name, "limit"))
		limits(v[0], v[1]);
	else if (!strcmp(name, "closes"))
		result(name, close_range(3, HIGH - 1, 0));
	else if (!strcmp(name, "input"))
		result(name, dup2(memory, 0));
	else if (!strcmp(name, "brk"))
		breaks(v[0]);
	else
		return false;
	return true;
}

static bool locks(const char *name, const unsigned long *v)
{
	void *addr = (void *)v[0];
	if (!strcmp(name, "mlock"))
		result(name, mlock(addr, v[1]));
	else if (!strcmp(name, "mlock2"))
		result(name, syscall(SYS_mlock2, addr, v[1], v[2]));
	else if (!strcmp(name, "munlock"))
		result(name, munlock(addr, v[1]));
	else if (!strcmp(name, "mlockall"))
		result(name, mlockall((int)v[0]));
	else if (!strcmp(name, "munlockall"))
		result(name, munlockall());
	else
		return false;
	return true;
}

static bool advises(const char *name, const unsigned long *v)
{
	struct iovec part = { (void *)v[0], v[1] };
	if (!strcmp(name, "madvise"))
		result(name, madvise((void *)v[0], v[1], (int)v[2]));
	else if (!strcmp(name, "process_madvise")) {
		int self = (int)syscall(SYS_pidfd_open, getpid(), 0);
		result(name, syscall(SYS_process_madvise, self, &part, 1, v[2], 0));
		close(self);
	} else
		return false;
	if (v[2] == MADV_FREE)
		settle(v[0], v[1]);
	return true;
}

static void call(char *line)
{
	char text[200], *words[8] = { NULL };
	unsigned long v[7] = { 0 };
	snprintf(text, sizeof text, "%s", line);
	int n = 0;
	char *rest = NULL;
	for (char *w = strtok_r(text, " ", &rest); w && n < 8; w = strtok_r(NULL, " ", &rest))
		words[n++] = w;
	for (int i = 1; i < n; i++)
		v[i - 1] = number(words[i]);
	const char *name = words[0];
	void *addr = (void *)v[0];
	if (!name || others(name, v) || locks(name, v) || advises(name, v))
		return;
	if (!strcmp(name, "mmap"))
		elsewhere(name, mmap(addr, v[1], (int)v[2], (int)v[3], file_named(v[4]), (off_t)v[5]), v[1]);
	else if (!strcmp(name, "munmap"))
		result(name, munmap(addr, v[1]));
	else if (!strcmp(name, "mremap"))
		elsewhere(name, mremap(addr, v[1], v[2], (int)v[3], (void *)v[4]), v[2]);
	else if (!strcmp(name, "mprotect"))
		result(name, mprotect(addr, v[1], (int)v[2]));
	else if (!strcmp(name, "pkey_mprotect"))
		result(name, syscall(SYS_pkey_mprotect, addr, v[1], v[2], (int)v[3] - 1));
	else if (!strcmp(name, "msync"))
		result(name, msync(addr, v[1], (int)v[2]));
	else if (!strcmp(name, "shmat"))
		attach(v[0], v[1], (int)v[2]);
	else if (!strcmp(name, "shmdt"))
		result(name, shmdt(addr));
	else if (!strcmp(name, "register"))
		registers(v[0], v[1]);
	else if (!strcmp(name, "write"))
		for (unsigned long at = v[0]; at < v[0] + v[1]; at += PAGE)
			(void)write_to(at);
	else if (!strcmp(name, "look"))
		look();
	else
		say("= what is %s?", line);
}

static void handles(int sig)
{
	(void)sig;
	int e = errno;
	call(in_handler);
	errno = e;
}

/* The lines from `i` on, up to `join` in a child, which ends there; where the next one is. */
static void carry_out(size_t i)
{
	for (; i < count; i++) {
		char *line = lines[i];
		if (strcmp(line, "join") == 0) {
			if (is_child)
				break;
			continue;
		}
		if (strcmp(line, "fork") == 0) {
			pid_t pid = fork();
			NEED(pid >= 0);
			if (pid == 0) {
				is_child = true;
				say("- fork");
				alarm(10);
				mappings();
				continue;
			}
			reap("= child", pid);
			while (i + 1 < count && strcmp(lines[i], "join") != 0)
				i++;
			continue;
		}
		say("- %s", line);
		if (strncmp(line, "handler ", 8) == 0) {
			in_handler = line + 8;
			raise(SIGUSR1);
		} else {
			call(line);
		}
		mappings();
	}
	mappings();
	look();
	if (is_child)
		_exit(0);
}

static int high(int fd)
{
	int to = fcntl(fd, F_DUPFD_CLOEXEC, HIGH);
	NEED(fd >= 0 && to >= 0);
	close(fd);
	return to;
}

static ino_t inode_of(int fd)
{
	struct stat is;
	NEED(fstat(fd, &is) == 0);
	return is.st_ino;
}

int main(int argc, char **argv)
{
	NEED(argc == 2);
	int from = open(argv[1], O_RDONLY);
	char path[] = "/tmp/differ-XXXXXX";
	size_t size = 0;
	for (ssize_t n; (n = read(from, script + size, sizeof script - 1 - size)) > 0;)
		size += (size_t)n;
	close(from);
	char *rest = NULL;
	for (char *l = strtok_r(script, "\n", &rest); l && count < sizeof lines / sizeof *lines; l = strtok_r(NULL, "\n", &rest))
		lines[count++] = l;
	disk = high(mkstemp(path));
	memory = high(memfd_create("differ", MFD_CLOEXEC | MFD_ALLOW_SEALING));
	NEED(unlink(path) == 0);
	disk_inode = inode_of(disk);
	memory_inode = inode_of(memory);
	for (unsigned long p = 0; p < FILE_PAGES; p++) {
		unsigned char byte[PAGE];
		memset(byte, (int)(200 + p), sizeof byte);
		NEED(pwrite(disk, byte, PAGE, (off_t)(p * PAGE)) == PAGE && pwrite(memory, byte, PAGE, (off_t)(p * PAGE)) == PAGE);
	}
	start_of_heap = (char *)((unsigned long)((char *)syscall(SYS_brk, 0) + PAGE - 1) & ~(PAGE - 1));
	struct sigaction handler = { .sa_handler = handles };
	NEED(sigaction(SIGUSR1, &handler, NULL) == 0);
	alarm(10);
	mappings();
	carry_out(0);
	return 0;
}
