/* Proves: the shim takes no descriptor's number, reads and closes no descriptor of the program's, and
 * goes on whatever the program does to its own. */
#include <dirent.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <stddef.h>
#include <sys/prctl.h>
#include "check.h"

enum { ROUNDS = 400, ALL = 1100 };

static char *holes;
static int stop;

/* Calls after which the kernel's list is read: one fails half-way, one moves a part of a mapping. */
static void calls(void)
{
	char *p = anon(16);
	p[0] = 1;
	munmap(p + 4 * PAGE, PAGE);
	mprotect(p, 16 * PAGE, PROT_READ);
	char *q = mremap(p + 8 * PAGE, 4 * PAGE, 8 * PAGE, MREMAP_MAYMOVE);
	NEED(q != MAP_FAILED);
	munmap(q, 8 * PAGE);
	munmap(p, 16 * PAGE);
	mprotect(holes, 64 * PAGE, PROT_READ | PROT_WRITE);
}

static void *busy(void *unused)
{
	(void)unused;
	while (!__atomic_load_n(&stop, __ATOMIC_RELAXED))
		calls();
	return NULL;
}

/* System calls that no hook sees. */
static long unseen(long nr, long a, long b)
{
	long r;
	__asm__ volatile("int $0x80" : "=a"(r) : "a"(nr), "b"(a), "c"(b) : "memory", "r8", "r9", "r10", "r11");
	return r;
}
#define UNSEEN_CLOSE(fd) unseen(6, fd, 0)
#define UNSEEN_DUP2(from, to) unseen(63, from, to)

/* Numbers that can be had: ours may lie beyond the soft limit. */
static int numbers(void)
{
	struct rlimit limit;
	NEED(getrlimit(RLIMIT_NOFILE, &limit) == 0);
	limit.rlim_cur = limit.rlim_max < ALL ? limit.rlim_max : ALL;
	NEED(setrlimit(RLIMIT_NOFILE, &limit) == 0);
	return (int)limit.rlim_cur;
}

static int opened(void)
{
	DIR *list = opendir("/proc/self/fd");
	NEED(list);
	int many = 0;
	while (readdir(list))
		many++;
	closedir(list);
	return many;
}

static void alone(void)
{
	char *p = anon(8);
	p[0] = 1;
	calls();
	quiet_claim(p, 8 * PAGE, "registered");
}

/* What other threads map and unmap changes no number, and takes nothing from a pipe. */
static void beside_threads(void)
{
	pthread_t threads[2];
	int ends[2], other = 0, lost = 0;
	NEED(pipe(ends) == 0);
	int from = fcntl(ends[0], F_DUPFD, 20), to = fcntl(ends[1], F_DUPFD, 20);
	close(ends[0]);
	close(ends[1]);
	for (int i = 0; i < 2; i++)
		NEED(pthread_create(&threads[i], NULL, busy, NULL) == 0);
	for (int i = 0; i < ROUNDS; i++) {
		close(0);
		sched_yield();
		int fd = open("/dev/null", O_RDONLY);
		other += fd != 0;
		if (fd != 0)
			close(fd);
		NEED(dup2(from, 0) == 0);
		char byte = 0;
		NEED(write(to, "x", 1) == 1);
		sched_yield();
		fcntl(from, F_SETFL, O_NONBLOCK);
		lost += read(0, &byte, 1) != 1 || byte != 'x';
		fcntl(from, F_SETFL, 0);
		if (i % 100 == 0) {
			pid_t pid = fork();
			if (pid == 0) {
				close(0);
				int own = open("/dev/null", O_RDONLY);
				calls();
				_exit(own == 0 && fcntl(0, F_GETFD) == 0 ? 0 : 1);
			}
			int status;
			NEED(waitpid(pid, &status, 0) == pid);
			other += status != 0;
		}
	}
	__atomic_store_n(&stop, 1, __ATOMIC_RELAXED);
	for (int i = 0; i < 2; i++)
		pthread_join(threads[i], NULL);
	say("numbers that were another's: %d, bytes that were lost: %d", other, lost);
	close(from);
	close(to);
	quiet_point("beside threads");
}

/* As Chromium and CRIU do it: all that /proc lists. */
static void by_list(void *unused)
{
	(void)unused;
	DIR *list = opendir("/proc/self/fd");
	NEED(list);
	for (struct dirent *entry; (entry = readdir(list));) {
		int fd = atoi(entry->d_name);
		if (fd > 2 && fd != dirfd(list))
			close(fd);
	}
	closedir(list);
	alone();
	quiet_point("closed by the list");
}

static void by_number(void *unused)
{
	(void)unused;
	int closed = 0;
	for (int fd = 3; fd < ALL; fd++)
		closed += close(fd) == 0;
	say("closed %d", closed);
	alone();
	quiet_point("closed by number");
}

static void by_range(void *flags)
{
	NEED(syscall(SYS_close_range, 3u, ~0u, *(unsigned *)flags) == 0);
	alone();
	say("the next is %d", dup(0));
	quiet_point("closed by a range");
}

/* What is closed at exec is open until then. */
static void at_exec(void *self)
{
	NEED(syscall(SYS_close_range, 3u, ~0u, CLOSE_RANGE_CLOEXEC) == 0);
	alone();
	execl("/proc/self/exe", self, "next", (char *)NULL);
	_exit(96);
}

/* Where there is no close_range, glibc closes what /proc lists, again and again, until that is nothing. */
static void by_closefrom(void *unused)
{
	(void)unused;
	struct sock_filter steps[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_close_range, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENOSYS),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog program = { sizeof steps / sizeof *steps, steps };
	NEED(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
	NEED(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0);
	closefrom(3);
	alone();
	say("the next is %d", dup(0));
	quiet_point("closed from 3");
}

/* A child that shares the memory has a table of its own: what it does there is nothing to its parent. */
static void by_vfork(void *unused)
{
	(void)unused;
	int many = numbers(), before = opened();
	for (int round = 0; round < 3; round++) {
		pid_t pid = vfork();
		if (pid == 0) {
			for (int fd = 3; fd < many; fd++)
				dup2(0, fd);
			for (int fd = 3; fd < many; fd++)
				close(fd);
			_exit(0);
		}
		reap("vfork", pid);
		alone();
	}
	say("more are open: %d", opened() - before);
	quiet_point("after vfork");
}

/* Each number is given to the program's own. */
static void all_taken(void *unused)
{
	(void)unused;
	int many = numbers(), own = memory_file(3), wrong = 0;
	for (int fd = 3; fd < many; fd++)
		wrong += fd != own && dup2(own, fd) != fd;
	alone();
	struct stat here, there;
	fstat(own, &here);
	for (int fd = 3; fd < many; fd++)
		wrong += fstat(fd, &there) != 0 || here.st_ino != there.st_ino;
	say("wrong: %d", wrong);
	syscall(SYS_close_range, 3u, ~0u, 0u);
	quiet_point("all taken");
}

/* No hook sees that they are closed, or given to a pipe. */
static void unseen_by_hooks(void *unused)
{
	(void)unused;
	int ends[2], many = numbers();
	char bytes[4];
	for (int fd = 3; fd < many; fd++)
		UNSEEN_CLOSE(fd);
	alone();
	quiet_point("closed unseen");
	NEED(pipe(ends) == 0 && write(ends[1], "abcd", 4) == 4);
	int given = 0;
	for (int fd = 5; fd < many; fd++)
		given += UNSEEN_DUP2(ends[0], fd) == fd;
	alone();
	say("the pipe has %zd, under %d numbers", read(ends[0], bytes, 4), given);
	for (int fd = 5; fd < many; fd++)
		UNSEEN_CLOSE(fd);
	quiet_point("given away unseen");
}

static void few(void *unused)
{
	(void)unused;
	struct rlimit limit = { 4, 4 };
	NEED(setrlimit(RLIMIT_NOFILE, &limit) == 0);
	alone();
	pid_t pid = fork();
	if (pid == 0) {
		alone();
		say("the next is %d", dup(0));
		_exit(0);
	}
	reap("with few", pid);
}

/* Executed with soft limits: as many can be had as without the shim. */
static int full(void)
{
	int many = 0;
	while (dup(0) >= 0)
		many++;
	alone();
	say("the table takes %d more", many);
	for (int fd = 3; fd < ALL; fd++)
		close(fd);
	quiet_point("full");
	return 0;
}

static int all(char *self)
{
	int again = dup(0);
	say("the first free is %d", again);
	close(again);
	holes = anon(64);
	munmap(holes + 32 * PAGE, PAGE);
	beside_threads();
	in_child("by list", by_list, NULL);
	in_child("by number", by_number, NULL);
	in_child("by range", by_range, &(unsigned){ 0 });
	in_child("by range, of its own", by_range, &(unsigned){ CLOSE_RANGE_UNSHARE });
	in_child("at exec", at_exec, self);
	in_child("by closefrom", by_closefrom, NULL);
	in_child("by vfork", by_vfork, NULL);
	in_child("all taken", all_taken, NULL);
	in_child("unseen", unseen_by_hooks, NULL);
	in_child("few", few, NULL);
	return 0;
}

static void again_with(char *self, const char *what, rlim_t soft, rlim_t hard)
{
	pid_t pid = fork();
	if (pid == 0) {
		struct rlimit limit = { soft, hard };
		NEED(setrlimit(RLIMIT_NOFILE, &limit) == 0);
		execl("/proc/self/exe", self, what, (char *)NULL);
		_exit(96);
	}
	reap(what, pid);
}

int main(int argc, char **argv)
{
	if (argc > 1 && strcmp(argv[1], "full") == 0)
		return full();
	if (argc > 1 && strcmp(argv[1], "all") == 0)
		return all(argv[0]);
	if (argc > 1) {
		say("the next is %d", dup(0));
		return 0;
	}
	/* Below the limit, and beyond it. */
	struct rlimit limit;
	NEED(getrlimit(RLIMIT_NOFILE, &limit) == 0);
	again_with(argv[0], "all", 1024, 1024);
	again_with(argv[0], "all", 1024, limit.rlim_max);
	if (limit.rlim_max > 1024)
		for (rlim_t soft = 16; soft <= 1024; soft *= 4)
			again_with(argv[0], "full", soft, limit.rlim_max);
	quiet_point("end");
	return 0;
}
