/* Proves: where the kernel lets no peer at a process's memory, a thread of the process's copies; it outlives what its peers and its own process do, and nobody waits for one that is gone. */
/*
 * helped copy: gets and puts, byte for byte, by the helper alone (REGALL_COPY=helper).
 * helped seccomp, undumpable, namespaces: the same where the kernel forbids it.
 * helped kills: where the kernel kills who tries, nobody tries for the program.
 * helped inherits, inherits-old: what the program has open is not touched, though a helper
 *   comes late; the same where the kernel has no close_range.
 * helped life: owners that die, stop, exec, fork and close what they find in mid-copy.
 * helped hostile: whatever comes on its socket, the owner lives, and serves.
 */
#include "../filter.h"
#include "by_hand.h"

#include <linux/capability.h>
#include <linux/userfaultfd.h>
#include <mqueue.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>

#pragma weak regall_box_fd
#pragma weak regall_lookup

/* With the library itself it fits into a RLIMIT_MEMLOCK of 8 MiB. */
#define AREA (5ul << 19)
#define SECOND 1000000000ul

static unsigned char pattern(uint64_t n)
{
	uint64_t x = (n + 1) * 0x9e3779b97f4a7c15ull;
	return (unsigned char)(x >> 56 ^ x >> 24);
}

/* ---- the owner ---- */

static void fill(char *p, size_t bytes)
{
	for (size_t i = 0; i < bytes; i++)
		p[i] = (char)pattern(i);
}

static char *area, *shared;
static int shared_file;

static int wait_for_end(void *unused)
{
	(void)unused;
	struct timespec most = { 100, 0 };
	return (int)syscall(SYS_nanosleep, &most, NULL);
}

/* A page that does not come until somebody says so; NULL: that can't be. */
static char *absent;
static int faults;

static char *make_absent(void)
{
	struct uffdio_api api = { .api = UFFD_API };
	/* (Who may open the device needs no capability.) */
	int device = open("/dev/userfaultfd", O_RDWR | O_CLOEXEC);
	faults = device < 0 ? (int)syscall(SYS_userfaultfd, O_CLOEXEC) : ioctl(device, USERFAULTFD_IOC_NEW, O_CLOEXEC);
	close(device);
	if (faults < 0 || ioctl(faults, UFFDIO_API, &api) != 0)
		return NULL;
	char *p = anon(1);
	struct uffdio_register all = { .range = { (uintptr_t)p, PAGE }, .mode = UFFDIO_REGISTER_MODE_MISSING };
	NEED(madvise(p, PAGE, MADV_NOHUGEPAGE) == 0 && madvise(p, PAGE, MADV_DONTNEED) == 0);
	NEED(ioctl(faults, UFFDIO_REGISTER, &all) == 0);
	return p;
}

static void let_it_come(void)
{
	static char page[PAGE] __attribute__((aligned(4096)));
	struct uffdio_copy c = { .dst = (uintptr_t)absent, .src = (uintptr_t)page, .len = PAGE };
	NEED(ioctl(faults, UFFDIO_COPY, &c) == 0 || errno == EEXIST);
}

static void answer(const char *line)
{
	unsigned long at, bytes, seed, bad = 0;
	if (sscanf(line, "check %lu %lu %lu", &at, &bytes, &seed) == 3) {
		for (size_t i = 0; i < bytes; i++)
			bad += (unsigned char)area[at + i] != pattern(seed + i);
		say("%lu", bad);
	} else if (strcmp(line, "close") == 0) {
		say("%d", close_range(3, ~0u, 0));
	} else if (strcmp(line, "absent") == 0) {
		absent = make_absent();
		say("%#lx", (unsigned long)(uintptr_t)absent);
	} else if (strcmp(line, "come") == 0) {
		let_it_come();
		/* Who waited for it goes on. */
		pause_us(100000);
		say("%d", *(volatile char *)absent);
	} else if (strcmp(line, "fork") == 0) {
		pid_t pid = fork();
		if (pid == 0)
			for (;;)
				pause();
		say("%d", pid);
	} else if (strcmp(line, "share") == 0) {
		static char stack[16384] __attribute__((aligned(16)));
		say("%d", clone(wait_for_end, stack + sizeof stack, CLONE_VM, NULL));
	} else if (strcmp(line, "exec") == 0) {
		execv("/proc/self/exe", (char *[]){ "helped", "owner", NULL });
	} else if (strncmp(line, "id ", 3) == 0) {
		struct regall_range found = { 0 };
		int r = regall_lookup(NULL, (void *)strtoul(line + 3, NULL, 0), 1, &found);
		say("%lu", r ? 0 : (unsigned long)found.id);
	} else if (strcmp(line, "seal") == 0) {
		say("%d", fcntl(shared_file, F_ADD_SEALS, F_SEAL_SHRINK));
	} else if (strcmp(line, "freeze") == 0) {
		say("%d", mprotect(shared, PAGE, PROT_READ));
	} else if (strcmp(line, "seal writing") == 0) {
		say("%d", fcntl(shared_file, F_ADD_SEALS, F_SEAL_FUTURE_WRITE));
	} else if (strcmp(line, "out") == 0) {
		char *p = anon(1);
		NEED(regall_opt_out(p, PAGE) == 0);
		say("%#lx", (unsigned long)(uintptr_t)p);
	}
}

static int owner(const char *how)
{
	char line[64];
	if (how && strcmp(how, "undumpable") == 0)
		NEED(prctl(PR_SET_DUMPABLE, 0) == 0);
	area = anon(AREA / PAGE);
	fill(area, AREA);
	/* Two entries of it; and one that nobody may write. */
	NEED(mprotect(area + AREA / 2, PAGE, PROT_READ) == 0);
	shared_file = memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	NEED(shared_file >= 0 && ftruncate(shared_file, PAGE) == 0);
	shared = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, shared_file, 0);
	NEED(shared != MAP_FAILED);
	say("%#lx", (unsigned long)(uintptr_t)area);
	say("%#lx", (unsigned long)(uintptr_t)shared);
	while (line_from(0, line, sizeof line))
		answer(line);
	return 0;
}

/* ---- what its peers may not do ---- */

/* The right to trace whomever one likes would make all of this pointless. */
static void without_tracing(void)
{
	struct __user_cap_header_struct head = { _LINUX_CAPABILITY_VERSION_3, 0 };
	struct __user_cap_data_struct sets[2];
	if (geteuid() != 0)
		return;
	NEED(prctl(PR_CAPBSET_DROP, CAP_SYS_PTRACE) == 0);
	NEED(syscall(SYS_capget, &head, sets) == 0);
	sets[0].effective &= ~(1u << CAP_SYS_PTRACE);
	sets[0].permitted &= ~(1u << CAP_SYS_PTRACE);
	sets[0].inheritable &= ~(1u << CAP_SYS_PTRACE);
	NEED(syscall(SYS_capset, &head, sets) == 0);
}

/* That is what becomes of two system calls from now on. */
static void without(unsigned one, unsigned other, unsigned action)
{
	FILTER_CALLS(action, one, other);
}

static void without_attaching(unsigned action)
{
	without(SYS_process_vm_readv, SYS_process_vm_writev, action);
}

/* In a process without the shim's threads. */
static void leave_namespace(unsigned unused)
{
	(void)unused;
	if (syscall(SYS_unshare, CLONE_NEWUSER) != 0) {
		say("no namespaces: %s", strerrorname_np(errno));
		_exit(0);
	}
}

/* Starts this program in a user namespace of its own. */
static struct other start_apart(char *const argv[])
{
	return start_after(leave_namespace, 0, argv);
}

/* ---- gets and puts ---- */

static regall_peer *peer;
static uint64_t there, there_shared;
static char *here;

/* Bytes at `at` are as the owner has filled them. */
static void compare(const char *p, uint64_t at, size_t bytes)
{
	size_t bad = 0;
	for (size_t i = 0; i < bytes; i++)
		bad += (unsigned char)p[i] != pattern(at + i);
	IS(0, bad);
}

/* With `helped`, nothing but the helper is to copy. */
static void copies(const struct other *o, bool helped, bool puts_helped)
{
	static const size_t sizes[] = { 1, 7, 4096, 65536, 131072, 131073, 1000001, AREA };
	struct regall_done done;
	for (size_t n = 0; n < sizeof sizes / sizeof *sizes; n++) {
		size_t bytes = sizes[n], at = draw(AREA - bytes + 1);
		memset(here, 0x77, AREA + 1);
		IS(0, regall_get(peer, here, there + at, bytes, &done));
		IS(bytes, done.bytes);
		compare(here, at, bytes);
		HOLDS(here[bytes] == 0x77);
		if (helped)
			IS(REGALL_COPY_HELPER, done.mechanism);
	}
	for (int n = 0; n < 300; n++) {
		struct regall_segment from[40], to[40];
		size_t sum = 0, segments = 1 + draw(40);
		for (size_t i = 0; i < segments; i++) {
			size_t bytes = draw(5000);
			from[i] = (struct regall_segment){ there + draw(AREA - bytes), bytes };
			to[i] = (struct regall_segment){ (uintptr_t)here + sum, bytes };
			sum += bytes;
		}
		IS(0, regall_getv(peer, to, segments, from, segments, &done));
		IS(sum, done.bytes);
		for (size_t i = 0; i < segments; i++)
			compare((char *)(uintptr_t)to[i].addr, from[i].addr - there, from[i].len);
	}
	/* All of the first half, from something else. */
	size_t half = AREA / 2;
	char line[64];
	for (size_t i = 0; i < half; i++)
		here[i] = (char)pattern(12345 + i);
	IS(0, regall_put(peer, here, there, half, &done));
	IS(half, done.bytes);
	if (puts_helped)
		IS(REGALL_COPY_HELPER, done.mechanism);
	snprintf(line, sizeof line, "check 0 %zu 12345", half);
	IS(0, ask(o, line));
	/* Up to where it must not be written, and nowhere that is not registered. */
	memset(here, 0, 2 * PAGE);
	IS(-EACCES, regall_put(peer, here, there + half - PAGE, 2 * PAGE, &done));
	IS(PAGE, done.bytes);
	IS(-EFAULT, regall_get(peer, here, 64, 1, &done));
	/* Our own memory is not to be had, either. */
	char *hole = anon(3);
	NEED(munmap(hole + PAGE, PAGE) == 0);
	IS(-EFAULT, regall_get(peer, hole + PAGE, there, 16, &done));
	if (puts_helped)
		IS(-EFAULT, regall_put(peer, hole + PAGE, there, 16, &done));
	/* As far as it can be had: so much is there, and no more is said to be. */
	for (size_t pages = 1; puts_helped && pages <= half / PAGE; pages += 61) {
		char *part = anon(half / PAGE + 2);
		fill(part, half + 2 * PAGE);
		NEED(munmap(part + pages * PAGE, PAGE) == 0);
		IS(-EFAULT, regall_put(peer, part, there, half, &done));
		IS(pages * PAGE, done.bytes);
		snprintf(line, sizeof line, "check 0 %zu 0", pages * PAGE);
		IS(0, ask(o, line));
		IS(-EFAULT, regall_get(peer, part, there, half, &done));
		IS(pages * PAGE, done.bytes);
		NEED(munmap(part, half + 2 * PAGE) == 0);
	}
	IS(0, regall_get(peer, here, there_shared, PAGE, &done));
	/* A limit on files is no reason for a signal. */
	struct rlimit old, none = { 0, 0 };
	NEED(getrlimit(RLIMIT_FSIZE, &old) == 0);
	none.rlim_max = old.rlim_max;
	NEED(setrlimit(RLIMIT_FSIZE, &none) == 0);
	int r = regall_put(peer, here, there, 16, &done);
	NEED(setrlimit(RLIMIT_FSIZE, &old) == 0);
	if (puts_helped)
		IS(-EPERM, r);
	IS(0, regall_put(peer, here, there, 16, &done));
}

static struct other started(const char *how)
{
	struct other o = start_other(true, (char *[]){ "helped", "owner", (char *)how, NULL });
	there = hear_number(&o);
	there_shared = hear_number(&o);
	peer = open_peer(o.pid, 0);
	return o;
}

static void ended(struct other *o)
{
	IS(0, regall_peer_close(peer));
	end_other(o);
}

/* Both in namespaces of their own: neither may trace the other. */
static int namespaces(void)
{
	char pid[16], first[32], second[32], line[128];
	struct other o = start_apart((char *[]){ "helped", "owner", NULL });
	hear(&o, first, sizeof first);
	if (strncmp(first, "no ", 3) == 0) {
		say("%s", first);
		return 77;
	}
	hear(&o, second, sizeof second);
	snprintf(pid, sizeof pid, "%d", o.pid);
	struct other client = start_apart((char *[]){ "helped", "client", pid, first, second, NULL });
	/* It asks us to ask the owner. */
	while (line_from(client.from, line, sizeof line)) {
		if (strncmp(line, "check", 5) == 0)
			dprintf(client.to, "%lu\n", (unsigned long)ask(&o, line));
		else
			say("%s", line);
	}
	int status = -1;
	waitpid(client.pid, &status, 0);
	IS(0, status);
	end_other(&o);
	return verdict();
}

static int client(char **argv)
{
	struct other main_one = { atoi(argv[0]), 1, 0 };
	there = strtoull(argv[1], NULL, 0);
	there_shared = strtoull(argv[2], NULL, 0);
	peer = open_peer(main_one.pid, 0);
	/* The kernel lets us not at it, by its own call or by /proc; the shim answers that call. */
	char memory[32];
	snprintf(memory, sizeof memory, "/proc/%d/mem", main_one.pid);
	IS(-1, open(memory, O_RDONLY));
	struct iovec a = { here, 1 }, b = { (void *)(uintptr_t)there, 1 };
	IS(1, process_vm_readv(main_one.pid, &a, 1, &b, 1, 0));
	compare(here, 0, 1);
	copies(&main_one, true, true);
	return verdict();
}

/* ---- what becomes of owners ---- */

/* Gets until it fails, or `until`: what the last one said. */
static int gets(uint64_t until)
{
	int r = 0;
	struct regall_done done;
	while (r == 0 && now_ns() < until) {
		size_t at = draw(AREA / 2), bytes = 1 + draw(AREA / 2);
		r = regall_get(peer, here, there + at, bytes, &done);
		compare(here, at, done.bytes);
	}
	return r;
}

static void killed(void)
{
	struct other o = started(NULL);
	IS(0, gets(now_ns() + SECOND / 100));
	pid_t killer = fork();
	NEED(killer >= 0);
	if (killer == 0) {
		pause_us((long)(draw(5000)));
		kill(o.pid, SIGKILL);
		_exit(0);
	}
	draw(1);
	uint64_t since = now_ns();
	int r = gets(since + 10 * SECOND);
	HOLDS(r == -ESRCH || r == -ESTALE);
	HOLDS(now_ns() - since < SECOND);
	waitpid(o.pid, NULL, 0);
	IS(-ESRCH, regall_get(peer, here, there, 100, NULL));
	waitpid(killer, NULL, 0);
	close(o.to);
	close(o.from);
	IS(0, regall_peer_close(peer));
}

/* Its memory is somebody's, still. */
static void outlived(void)
{
	struct other o = started(NULL);
	IS(0, gets(now_ns() + SECOND / 100));
	pid_t with_its_memory = (pid_t)ask(&o, "share");
	end_other(&o);
	for (int n = 0; n < 3; n++)
		IS(-ESRCH, regall_get(peer, here, there, 100, NULL));
	kill(with_its_memory, SIGKILL);
	IS(0, regall_peer_close(peer));
}

static void stopped(void)
{
	struct other o = started(NULL);
	IS(0, gets(now_ns() + SECOND / 100));
	IS(0, regall_get(peer, here, there, 1, NULL));
	char was = here[0];
	kill(o.pid, SIGSTOP);
	pause_us(20000);
	uint64_t since = now_ns();
	/* A put that has failed is not carried out when the owner goes on. */
	here[0] = (char)~was;
	IS(-ESTALE, regall_put(peer, here, there, 1, NULL));
	HOLDS(now_ns() - since < 3 * SECOND / 2);
	IS(-ESTALE, regall_get(peer, here, there, AREA, NULL));
	HOLDS(now_ns() - since < 3 * SECOND);
	kill(o.pid, SIGCONT);
	/* As before; late answers to what was asked belong to nobody. */
	fill(here, AREA);
	uint64_t soon = now_ns() + 2 * SECOND;
	while (regall_get(peer, here, there, 1, NULL) != 0 && now_ns() < soon)
		;
	IS(was, here[0]);
	IS(0, gets(now_ns() + SECOND / 10));
	ended(&o);
}

/* A put that has failed because a page did not come is not carried out when it comes. */
static void waited(void)
{
	struct other o = started(NULL);
	uint64_t at = ask(&o, "absent");
	if (at) {
		memset(here, 1, PAGE);
		IS(-ESTALE, regall_put(peer, here, at, PAGE, NULL));
		IS(0, ask(&o, "come"));
	}
	ended(&o);
}

static void executes(void)
{
	struct other o = started(NULL);
	IS(0, gets(now_ns() + SECOND / 100));
	NEED(dprintf(o.to, "exec\n") > 0);
	int r = gets(now_ns() + 10 * SECOND);
	IS(-ESTALE, r);
	uint64_t before = there;
	there = hear_number(&o);
	there_shared = hear_number(&o);
	/* Another program, another peer: the old one does not reach it. */
	r = regall_get(peer, here, before, 100, NULL);
	IS(-ESTALE, r);
	IS(0, regall_peer_close(peer));
	peer = open_peer(o.pid, 0);
	IS(0, gets(now_ns() + SECOND / 100));
	ended(&o);
}

/* Copies go on while the owner forks; the child is a process of its own. Then the other way. */
static void forks(void)
{
	struct other o = started(NULL);
	for (int n = 0; n < 20; n++) {
		NEED(dprintf(o.to, "fork\n") > 0);
		IS(0, gets(now_ns() + SECOND / 500));
		pid_t pid = (pid_t)hear_number(&o);
		regall_peer *of_parent = peer;
		/* It has its directory before it returns from fork (though we may be here
		 * before), and all that it has inherited is excluded. */
		uint64_t soon = now_ns() + 2 * SECOND;
		while (regall_peer_open(pid, 0, 0, &peer) != 0 && now_ns() < soon)
			pause_us(100);
		HOLDS(peer != of_parent);
		IS(-EFAULT, regall_get(peer, here, there, 100, NULL));
		IS(0, regall_peer_close(peer));
		kill(pid, SIGKILL);
		peer = of_parent;
	}
	for (int n = 0; n < 20; n++) {
		pid_t pid = fork();
		NEED(pid >= 0);
		if (pid == 0) {
			alarm(20);
			IS(0, gets(now_ns() + SECOND / 100));
			_exit(wrong != 0);
		}
		IS(0, gets(now_ns() + SECOND / 100));
		int status = -1;
		waitpid(pid, &status, 0);
		IS(0, status);
	}
	ended(&o);
}

/* Either side closes all descriptors that it finds, and opens others. */
static void closing(void)
{
	struct other o = started(NULL);
	IS(0, gets(now_ns() + SECOND / 100));
	IS(0, ask(&o, "close"));
	IS(0, gets(now_ns() + SECOND / 10));
	pid_t pid = fork();
	NEED(pid >= 0);
	if (pid == 0) {
		alarm(20);
		IS(0, gets(now_ns() + SECOND / 100));
		close_range(3, ~0u, 0);
		/* What has our old numbers now is not to be written into. */
		int pair[2];
		NEED(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, pair) == 0);
		for (int fd = 900; fd < 1024; fd++)
			if (fcntl(fd, F_GETFD) < 0)
				dup2(pair[0], fd);
		IS(0, gets(now_ns() + SECOND / 100));
		struct pollfd come = { pair[1], POLLIN, 0 };
		IS(0, poll(&come, 1, 0));
		_exit(wrong != 0);
	}
	int status = -1;
	waitpid(pid, &status, 0);
	IS(0, status);
	ended(&o);
}

/* ---- what comes on the socket ---- */

/* The protocol by hand: what it gives, and what it refuses. */
static void by_hand(const struct other *o)
{
	char line[64];
	int good, fd, s;
	snprintf(line, sizeof line, "id %#lx", (unsigned long)there);
	uint64_t id = ask(o, line);
	snprintf(line, sizeof line, "id %#lx", (unsigned long)there_shared);
	uint64_t shared_id = ask(o, line);
	struct request get = { .what = GET, .addr = there, .len = 1000, .id = id, .offset = 5000 };

	s = greeted(&good);
	IS(0, ask_for(s, get));
	NEED(pread(good, here, 1000, 5000) == 1000);
	compare(here, 0, 1000);
	struct request other_entry = get;
	other_entry.id++;
	IS(ESTALE, ask_for(s, other_entry));
	struct request beyond = get;
	beyond.addr = there + AREA / 2 - 10;
	IS(EFAULT, ask_for(s, beyond));
	struct request nowhere = get;
	nowhere.addr = 4096;
	IS(ESTALE, ask_for(s, nowhere));

	struct request excluded = get;
	excluded.addr = ask(o, "out");
	snprintf(line, sizeof line, "id %#lx", (unsigned long)excluded.addr);
	excluded.id = ask(o, line);
	IS(EFAULT, ask_for(s, excluded));
	struct request read_only = get;
	read_only.what = PUT;
	read_only.addr = there + AREA / 2;
	snprintf(line, sizeof line, "id %#lx", (unsigned long)read_only.addr);
	read_only.id = ask(o, line);
	IS(EACCES, ask_for(s, read_only));

	/* The file behind the shared mapping: none that we could cut short under the owner. */
	struct request file = { .magic = MAGIC, .what = DESCRIPTOR, .addr = there_shared, .id = shared_id };
	IS(EOPNOTSUPP, ask_for_file(s, file, &fd));
	IS(-1, fd);
	IS(0, ask(o, "seal"));
	NEED(send_with(s, &file, sizeof file, NULL, 0) > 0);
	struct reply r;
	IS(0, reply(s, &r, &fd));
	HOLDS(fd >= 0);
	char *mapped = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	HOLDS(mapped != MAP_FAILED);
	if (mapped != MAP_FAILED) {
		strcpy(mapped, "seen");
		IS(0, regall_get(peer, here, there_shared, 5, NULL));
		HOLDS(strcmp(here, "seen") == 0);
	}
	/* A descriptor for reading is opened again for writing by who has it: none is handed out,
	 * unless nobody can write to the file any more. */
	IS(0, ask(o, "freeze"));
	snprintf(line, sizeof line, "id %#lx", (unsigned long)there_shared);
	file.id = ask(o, line);
	IS(EOPNOTSUPP, ask_for_file(s, file, &fd));
	IS(-1, fd);
	IS(0, ask(o, "seal writing"));
	NEED(send_with(s, &file, sizeof file, NULL, 0) > 0);
	IS(0, reply(s, &r, &fd));
	HOLDS(fd >= 0);
	char own[64];
	snprintf(own, sizeof own, "/proc/self/fd/%d", fd);
	int again = open(own, O_RDWR | O_CLOEXEC);
	HOLDS(again < 0 || mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, again, 0) == MAP_FAILED);
	HOLDS(again < 0 || pwrite(again, "x", 1, 0) == -1);
	file.addr = there;
	file.id = id;
	IS(ENXIO, ask_for(s, file));
	close(s);

	/* Without a bounce buffer nothing is copied. */
	struct request small = hello(), other_image = hello();
	small.len--;
	other_image.image ^= 1;
	s = connected();
	IS(EINVAL, ask_for(s, small));
	IS(-1, ask_for(s, get));
	close(s);
	s = connected();
	IS(ESTALE, ask_for(s, other_image));
	close(s);
	s = connected();
	IS(-1, ask_for(s, get));
	close(s);
	/* A peer's is its own, and of the right size. */
	int another, t = greeted(&another);
	struct stat one, two;
	NEED(fstat(good, &one) == 0 && fstat(another, &two) == 0);
	HOLDS(one.st_ino != two.st_ino && two.st_size == BOUNCE);
	IS(-1, ftruncate(another, BOUNCE + 1));
	/* What it takes back is not put. */
	struct request put = get;
	put.what = PUT;
	NEED(ftruncate(another, 0) == 0);
	IS(0, ask_for(t, put));
	IS(0, ask(o, "check 0 1000 0"));
	close(another);
	close(t);

	/* Messages that end the connection. */
	struct request ends[] = {
		{ .what = 0 }, { .what = 5 }, { .what = 6 }, { .what = 7 }, { .what = 99 }, hello(),
		{ .what = GET, .addr = there, .len = 0, .id = id },
		{ .what = GET, .addr = there, .len = BOUNCE, .id = id },
		{ .what = GET, .addr = there, .len = 100, .id = id, .offset = BOUNCE - 99 },
		{ .what = GET, .addr = there, .len = 100, .id = id, .offset = -50ul },
		{ .what = GET, .addr = there, .len = 100, .id = id, .reserved = 1 },
	};
	for (size_t n = 0; n < sizeof ends / sizeof *ends; n++) {
		s = greeted(&another);
		IS(-1, ask_for(s, ends[n]));
		close(another);
		close(s);
	}
	/* Descriptors: nobody has asked for any. */
	int many[8] = { good, good, good, good, good, good, good, good };
	for (size_t count = 1; count <= 8; count++) {
		s = greeted(&another);
		get.magic = MAGIC;
		if (send_with(s, &get, sizeof get, many, count) > 0)
			IS(-1, reply(s, &r, &fd));
		else
			IS(EPERM, errno);
		close(another);
		close(s);
	}
	close(good);
}

static void hostile(const struct other *o)
{
	struct regall_done done;
	static char noise[4096];
	int own = memory_file(PAGE), theirs;
	find(o->pid);
	by_hand(o);
	for (int n = 0; n < 3000; n++) {
		for (size_t i = 0; i < sizeof noise; i++)
			noise[i] = (char)draw(256);
		theirs = -1;
		int s = draw(2) ? connected() : greeted(&theirs);
		struct request q;
		for (uint64_t k = draw(4); k < 4; k++) {
			size_t len = draw(3) ? sizeof q : 1 + draw(sizeof noise - 1);
			if (len == sizeof q && draw(4)) {
				/* Nearly right. */
				memcpy(&q, noise, sizeof q);
				q.magic = MAGIC;
				q.what = (uint32_t)draw(6);
				q.reserved = 0;
				if (draw(2))
					q.addr = there + draw(AREA);
				if (draw(2))
					q.len = draw(200000);
				if (draw(2))
					q.offset = draw(BOUNCE);
				memcpy(noise, &q, sizeof q);
			}
			send_with(s, noise, len, &own, draw(4) == 0);
		}
		close(theirs);
		close(s);
		if (n % 100 == 0)
			IS(0, regall_get(peer, here, there + draw(1000), 1000, &done));
	}
	/* One that asks and does not listen. */
	int deaf = greeted(&theirs);
	fcntl(deaf, F_SETFL, O_NONBLOCK);
	struct request get = { .magic = MAGIC, .what = GET, .addr = there, .len = 1 };
	for (int n = 0; n < 10000; n++)
		send_with(deaf, &get, sizeof get, NULL, 0);
	/* More than there is room for, who say nothing. */
	int silent[300];
	for (int n = 0; n < 300; n++)
		silent[n] = connected();
	IS(0, regall_get(peer, here, there, 1000, &done));
	for (int n = 0; n < 300; n++)
		close(silent[n]);
	close(deaf);
	pause_us(20000);
	IS(0, regall_peer_close(peer));
	peer = open_peer(o->pid, 0);
	IS(0, regall_get(peer, here, there, 1000, &done));
	compare(here, 0, 1000);
	IS(REGALL_COPY_HELPER, done.mechanism);
	/* As many who ask for nothing: one that comes has the place of who is quiet for longest,
	 * which comes again when it wants something. */
	for (int n = 0; n < 300; n++)
		ask_for_file(silent[n] = connected(), hello(), &theirs), close(theirs);
	pause_us(1100000);
	regall_peer *old = peer;
	peer = open_peer(o->pid, 0);
	IS(0, regall_get(peer, here, there, 1000, &done));
	IS(0, regall_get(old, here, there, 1000, &done));
	IS(REGALL_COPY_HELPER, done.mechanism);
	IS(0, regall_peer_close(old));
	for (int n = 0; n < 300; n++)
		close(silent[n]);
	IS(0, kill(o->pid, 0));
	close(own);
}

/* ---- programs that have no helper at first, or one that nobody can ask for ---- */

static int helpers(void)
{
	char path[300], name[16];
	int found = 0;
	DIR *d = opendir("/proc/self/task");
	NEED(d);
	for (struct dirent *e; (e = readdir(d));) {
		snprintf(path, sizeof path, "/proc/self/task/%s/comm", e->d_name);
		FILE *f = fopen(path, "re");
		if (f && fgets(name, sizeof name, f))
			found += strncmp(name, "regall-helper", 13) == 0;
		if (f)
			fclose(f);
	}
	closedir(d);
	return found;
}

static int in_fork(int (*what)(void))
{
	int status = -1;
	pid_t pid = fork();
	NEED(pid >= 0);
	if (pid == 0)
		_exit(what());
	NEED(waitpid(pid, &status, 0) == pid);
	return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

static int start_under_filter(void)
{
	without_attaching(SECCOMP_RET_KILL_PROCESS);
	execv("/proc/self/exe", (char *[]){ "helped", "filtered", NULL });
	return 91;
}

/* Started under a filter that kills; so are its children. */
static int filtered(void)
{
	IS(1, helpers());
	IS(1, in_fork(helpers));
	return verdict();
}

static int kills(void)
{
	IS(0, in_fork(start_under_filter));
	/* One that came later: as without it. */
	int before = helpers();
	without_attaching(SECCOMP_RET_KILL_PROCESS);
	IS(before, in_fork(helpers));
	return verdict();
}

static int lock_file;

static int lock_is_held(void)
{
	struct flock lock = { .l_type = F_WRLCK };
	NEED(fcntl(lock_file, F_GETLK, &lock) == 0);
	return lock.l_type == F_WRLCK && lock.l_pid == getppid();
}

/* A message queue at a low number and one at a high one, a lock, and a pipe. */
static int inherits(bool old)
{
	mqd_t queues[2];
	int ends[2], signals[] = { SIGUSR1, SIGUSR2 };
	char name[64], byte = 0;
	sigset_t both;
	sigemptyset(&both);
	sigaddset(&both, SIGUSR1);
	sigaddset(&both, SIGUSR2);
	NEED(sigprocmask(SIG_BLOCK, &both, NULL) == 0);
	for (int n = 0; n < 2; n++) {
		struct mq_attr most = { .mq_maxmsg = 1, .mq_msgsize = 1 };
		struct sigevent tell = { .sigev_notify = SIGEV_SIGNAL, .sigev_signo = signals[n] };
		snprintf(name, sizeof name, "/regall-helped-%d-%d", getpid(), n);
		mqd_t q = mq_open(name, O_RDWR | O_CREAT | O_NONBLOCK, 0600, &most);
		if (q < 0) {
			say("no message queues: %s", strerrorname_np(errno));
			return 77;
		}
		mq_unlink(name);
		queues[n] = n ? dup2(q, 200) : q;
		if (n)
			mq_close(q);
		NEED(queues[n] >= 0 && mq_notify(queues[n], &tell) == 0);
	}
	struct flock lock = { .l_type = F_WRLCK };
	lock_file = memory_file(PAGE);
	NEED(fcntl(lock_file, F_SETLK, &lock) == 0 && pipe(ends) == 0);

	if (helpers() != 0) {
		say("a helper that comes late: it is there already");
		return 77;
	}
	if (old)
		without(SYS_close_range, SYS_close_range, SECCOMP_RET_ERRNO | ENOSYS);
	HOLDS(regall_box_fd() >= 0);
	IS(1, helpers());

	close(ends[1]);
	IS(0, read(ends[0], &byte, 1));
	IS(1, in_fork(lock_is_held));
	for (int n = 0; n < 2; n++) {
		struct timespec soon = { 2, 0 };
		IS(0, mq_send(queues[n], &byte, 1, 0));
		IS(signals[n], sigtimedwait(&both, NULL, &soon));
	}
	return verdict();
}

int main(int argc, char **argv)
{
	const char *what = argc > 1 ? argv[1] : "";
	no_longer_than(100);
	if (strcmp(what, "owner") == 0)
		return owner(argv[2]);
	here = anon(AREA / PAGE + 1);
	if (strcmp(what, "client") == 0)
		return client(argv + 2);
	if (strcmp(what, "filtered") == 0)
		return filtered();
	if (strcmp(what, "kills") == 0)
		return kills();
	if (strncmp(what, "inherits", 8) == 0)
		return inherits(what[8] != 0);
	without_tracing();
	if (strcmp(what, "namespaces") == 0)
		return namespaces();
	if (strcmp(what, "life") == 0) {
		for (int n = 0; n < 30; n++)
			killed();
		outlived();
		stopped();
		waited();
		executes();
		forks();
		closing();
		return verdict();
	}
	if (strcmp(what, "seccomp") == 0)
		without_attaching(SECCOMP_RET_ERRNO | EPERM);
	struct other o = started(what);
	if (strcmp(what, "hostile") == 0)
		hostile(&o);
	else
		copies(&o, strcmp(what, "seccomp") != 0, true);
	ended(&o);
	return verdict();
}
