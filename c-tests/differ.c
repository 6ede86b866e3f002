/*
 * Carries out a sequence of memory calls that is in a file, a call a line, and prints what each
 * came to, and what the program sees of its memory then. tests/differ.rs draws sequences, runs them without the
 * shim and with it, and compares. Of several files each is a thread's.
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
#include <pthread.h>
#include <stdatomic.h>
#include <sys/ioctl.h>
#include <sys/shm.h>
#include <sys/uio.h>
#include "check.h"
#include "faults.h"

#define PAGES 48ul
#define ARENAS 2
#define FILE_PAGES 16ul
#define HIGH 400 /* our descriptors: a program's are below */

#define THREADS 4
#define MOST_SAID (4ul << 20)

/* A sequence; with several, each is a thread's, in arenas beside the others'. */
static struct sequence {
	char script[1 << 16], *lines[2048];
	size_t count;
	int number, disk, memory, faults;
	ino_t disk_inode, memory_inode;
	char *said;
	size_t length;
	pthread_t thread;
} sequences[THREADS];

static _Thread_local struct sequence *mine = &sequences[0];
static _Thread_local unsigned long arenas[ARENAS];
static _Thread_local char *in_handler, *own_page;
static _Thread_local unsigned char fresh;
static _Thread_local long refused;
static _Thread_local bool is_child;
static char *start_of_heap;
static int threads = 1;
static atomic_int begun, ended;

__attribute__((format(printf, 1, 2))) static void tell(const char *format, ...)
{
	char line[512];
	va_list args;
	va_start(args, format);
	int n = vsnprintf(line, sizeof line, format, args);
	va_end(args);
	if (!mine->said)
		return say("%s", line);
	if (mine->length + (size_t)n + 1 < MOST_SAID)
		mine->length += (size_t)sprintf(mine->said + mine->length, "%s\n", line);
}

/* What one page's mapping is like. */
static _Thread_local struct page {
	char prot, lock, accounted, anonymous;
	char kind[160];
} pages[ARENAS][PAGES];

static void result(const char *call, long value)
{
	int e = errno;
	for (int i = 0; i < ARENAS; i++)
		if ((unsigned long)value - arenas[i] <= PAGES * PAGE)
			return tell("= %s: %c+%lx", call, 'a' + i, (unsigned long)value - arenas[i]);
	if (value == -1)
		tell("= %s: %s", call, strerrorname_np(e));
	else
		tell("= %s: %ld", call, value);
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
	tell("= %s: elsewhere %s", call, text);
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
	return inode == mine->disk_inode ? "disk" : inode == mine->memory_inode ? "mem" : "other";
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
	static _Thread_local char text[1 << 17];
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
				tell("M %c+%lx %lx %s", 'a' + i, p, q - p, pages[i][p].kind);
		}
		prot[n] = locks[n] = accounts[n] = ' ';
		n++;
	}
	tell("P %.*s", (int)n, prot);
	tell("K %.*s", (int)n, locks);
	tell("A %.*s", (int)n, accounts);
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
	tell("B %s", bytes);
	tell("%c %s", is_child ? 'C' : 'R', there);
	tell("L %s", busy);
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
	return which == 1 ? mine->disk : which == 2 ? mine->memory : -1;
}

static void registers(unsigned long addr, unsigned long bytes)
{
	if (mine->faults < 0) {
		int fd = (int)syscall(SYS_userfaultfd, O_CLOEXEC | UFFD_USER_MODE_ONLY);
		struct uffdio_api api = { .api = UFFD_API, .features = UFFD_FEATURE_SIGBUS };
		if (fd < 0 || ioctl(fd, UFFDIO_API, &api) != 0)
			return tell("= no userfaultfd");
		mine->faults = fcntl(fd, F_DUPFD_CLOEXEC, HIGH);
		close(fd);
	}
	struct uffdio_register r = { .range = { addr, bytes }, .mode = UFFDIO_REGISTER_MODE_MISSING };
	result("register", ioctl(mine->faults, UFFDIO_REGISTER, &r));
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
		if (mine->faults >= 0 || !write_to(at))
			madvise((void *)at, PAGE, MADV_DONTNEED);
}

static void breaks(unsigned long want)
{
	/* By itself: libc keeps its own word of where the break is. */
	char *to = start_of_heap + want, *now = (char *)syscall(SYS_brk, to);
	unsigned char byte = 77, back = 0;
	unsigned long last = ((unsigned long)to - 1) & ~(PAGE - 1);
	tell("= brk: %s", now == to ? "there" : "not there");
	if (now == to && want)
		tell("B brk %d", copy(last, &byte, true) && copy(last, &back, false) && back == 77);
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
		result(name, fcntl(mine->memory, F_ADD_SEALS, (int)v[0]));
	else if (!strcmp(name, "limit"))
		limits(v[0], v[1]);
	else if (!strcmp(name, "closes"))
		result(name, close_range(3, HIGH - 1, 0));
	else if (!strcmp(name, "input"))
		result(name, dup2(mine->memory, 0));
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
	else if (!strcmp(name, "grow")) {
		if (pages[1][(v[0] - arenas[1]) / PAGE % PAGES].prot == '.')
			tell("= grow: %s", could_write(v[0]) ? "yes" : "no");
	} else if (!strcmp(name, "look"))
		look();
	else
		tell("= what is %s?", line);
}

static void handles(int sig)
{
	(void)sig;
	int e = errno;
	call(in_handler);
	errno = e;
}

/* A child, up to `join`, where it ends; where its parent goes on. */
static size_t forks(size_t i)
{
	pid_t pid = fork();
	NEED(pid >= 0);
	if (pid == 0) {
		is_child = true;
		tell("- fork");
		alarm(10);
		mappings();
		return i;
	}
	reap("= child", pid);
	while (i + 1 < mine->count && strcmp(mine->lines[i + 1], "join") != 0)
		i++;
	return i;
}

/* Threads hurry: what the kernel lists of their memory is read where they look at it. */
static void carry_out(void)
{
	for (size_t i = 0; i < mine->count; i++) {
		char *line = mine->lines[i];
		if (strcmp(line, "join") == 0 && is_child)
			break;
		if (strcmp(line, "join") == 0)
			continue;
		if (strcmp(line, "fork") == 0) {
			i = forks(i);
			continue;
		}
		tell("- %s", line);
		if (strncmp(line, "handler ", 8) == 0) {
			in_handler = line + 8;
			raise(SIGUSR1);
		} else {
			call(line);
		}
		if (threads == 1 || strcmp(line, "look") == 0)
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

static void begin(struct sequence *s, const char *file)
{
	char path[] = "/tmp/differ-XXXXXX";
	int from = open(file, O_RDONLY);
	NEED(from >= 0);
	size_t size = 0;
	for (ssize_t n; (n = read(from, s->script + size, sizeof s->script - 1 - size)) > 0;)
		size += (size_t)n;
	close(from);
	char *rest = NULL;
	for (char *l = strtok_r(s->script, "\n", &rest); l && s->count < sizeof s->lines / sizeof *s->lines;
	     l = strtok_r(NULL, "\n", &rest))
		s->lines[s->count++] = l;
	s->faults = -1;
	s->disk = high(mkstemp(path));
	s->memory = high(memfd_create("differ", MFD_CLOEXEC | MFD_ALLOW_SEALING));
	NEED(unlink(path) == 0);
	s->disk_inode = inode_of(s->disk);
	s->memory_inode = inode_of(s->memory);
	for (unsigned long p = 0; p < FILE_PAGES; p++) {
		unsigned char byte[PAGE];
		memset(byte, (int)(200 + p), sizeof byte);
		NEED(pwrite(s->disk, byte, PAGE, (off_t)(p * PAGE)) == PAGE);
		NEED(pwrite(s->memory, byte, PAGE, (off_t)(p * PAGE)) == PAGE);
	}
}

static void is_in(struct sequence *s)
{
	mine = s;
	arenas[0] = 0x200000000000ul + (unsigned long)s->number * PAGES * PAGE;
	arenas[1] = 0x210000000000ul + (unsigned long)s->number * PAGES * PAGE;
}

/* A page of the thread's own is given back whatever it does, and is zero then. */
static void gives_back(int sig)
{
	(void)sig;
	int e = errno;
	if (own_page) {
		own_page[0] = 9;
		refused += madvise(own_page, PAGE, MADV_DONTNEED) != 0 || own_page[0] != 0;
	}
	errno = e;
}

static void *works(void *s)
{
	is_in(s);
	own_page = anon(1);
	begun++;
	while (begun < threads)
		sched_yield();
	carry_out();
	tell("= handlers: %ld were refused something", refused);
	ended++;
	return NULL;
}

/* Signals reach the threads wherever they are. */
static void storm(void)
{
	for (int i = 0; i < threads; i++) {
		sequences[i].number = i;
		sequences[i].said = malloc(MOST_SAID);
		NEED(sequences[i].said != NULL);
		NEED(pthread_create(&sequences[i].thread, NULL, works, &sequences[i]) == 0);
	}
	while (begun < threads)
		sched_yield();
	for (unsigned long n = 0; ended < threads; n++) {
		pthread_kill(sequences[n % (unsigned long)threads].thread, SIGUSR2);
		usleep(20);
	}
	for (int i = 0; i < threads; i++) {
		NEED(pthread_join(sequences[i].thread, NULL) == 0);
		say("- thread %d", i);
		for (size_t done = 0; done < sequences[i].length;) {
			ssize_t n = write(1, sequences[i].said + done, sequences[i].length - done);
			NEED(n > 0);
			done += (size_t)n;
		}
	}
}

int main(int argc, char **argv)
{
	NEED(argc > 1 && argc <= THREADS + 1);
	threads = argc - 1;
	for (int i = 0; i < threads; i++)
		begin(&sequences[i], argv[i + 1]);
	start_of_heap = (char *)((unsigned long)((char *)syscall(SYS_brk, 0) + PAGE - 1) & ~(PAGE - 1));
	struct sigaction handler = { .sa_handler = handles }, back = { .sa_handler = gives_back, .sa_flags = SA_RESTART };
	NEED(sigaction(SIGUSR1, &handler, NULL) == 0 && sigaction(SIGUSR2, &back, NULL) == 0);
	alarm(threads > 1 ? 100 : 10);
	if (threads > 1) {
		storm();
	} else {
		is_in(&sequences[0]);
		mappings();
		carry_out();
	}
	alarm(0);
	quiet_point("done");
	return 0;
}
