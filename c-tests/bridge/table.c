/* Proves: what a child that shares its parent's descriptors, or its number, does at its birth and its end is nothing to its parent. */
/*
 * table files: children of clone(CLONE_FILES) without CLONE_VM close nothing of the parent's.
 * table first: the first process of a pid namespace makes that of another; its end takes
 *   nothing of the parent's along. "no ..." and exit status 77 where there are no namespaces.
 */
#include "peers.h"

#include <dirent.h>
#include <sched.h>

#pragma weak regall_active

static char *here;
static regall_peer *peer;
static uint64_t there;

static int gets(void *unused)
{
	(void)unused;
	char *p = anon(1);
	*p = 1;
	struct iovec own = { here, 8 }, theirs = { (void *)(uintptr_t)there, 8 };
	process_vm_readv((pid_t)0x7ffffff0, &own, 1, &theirs, 1, 0);
	return peer ? regall_get(peer, here, there, 8, NULL) != 0 : 0;
}

struct seen {
	int fd;
	ino_t inode;
};

static size_t descriptors(struct seen *all, size_t most)
{
	size_t n = 0;
	DIR *d = opendir("/proc/self/fd");
	NEED(d);
	for (struct dirent *e; (e = readdir(d));) {
		struct stat s;
		int fd = atoi(e->d_name);
		if (e->d_name[0] != '.' && fd != dirfd(d) && n < most && fstat(fd, &s) == 0)
			all[n++] = (struct seen){ fd, s.st_ino };
	}
	closedir(d);
	return n;
}

static void ended(pid_t pid)
{
	int status = -1;
	NEED(pid > 0 && waitpid(pid, &status, __WALL) == pid);
	IS(0, status);
}

static char stack[1 << 18] __attribute__((aligned(16)));

static int files(void)
{
	static struct seen before[256];
	bool active = regall_active && regall_active();
	struct other o = start_other(true, (char *[]){ "table", "owner", NULL });
	there = hear_number(&o);
	if (active) {
		peer = open_peer(o.pid, 0);
		IS(0, regall_get(peer, here, there, 8, NULL));
	}
	for (int way = 0; way < 3; way++) {
		size_t n = descriptors(before, 256);
		pid_t pid;
		if (way == 0)
			pid = (pid_t)syscall(SYS_clone, CLONE_FILES | SIGCHLD, 0, 0, 0, 0);
		else
			pid = clone(gets, stack + sizeof stack, CLONE_FILES | SIGCHLD | (way == 2 ? CLONE_VFORK : 0),
				    NULL);
		if (pid == 0)
			_exit(gets(NULL));
		ended(pid);
		for (size_t i = 0; i < n; i++) {
			struct stat s = { 0 };
			if (fstat(before[i].fd, &s) != 0 || s.st_ino != before[i].inode)
				IS(-1, before[i].fd);
		}
		if (active)
			IS(0, regall_get(peer, here, there, 8, NULL));
	}
	end_other(&o);
	return verdict();
}

/* When the test began. */
static struct timespec began;

/* Those of first processes of this pid namespace. The kernel gives one the number of another that is
   gone, whose files may stand. */
static int directories(void)
{
	char folder[64], name[32];
	int found = 0;
	struct stat ns;
	NEED(stat("/proc/self/ns/pid", &ns) == 0);
	snprintf(folder, sizeof folder, "/dev/shm/regall-%u", geteuid());
	snprintf(name, sizeof name, ".%lu", (unsigned long)ns.st_ino);
	DIR *d = opendir(folder);
	if (!d)
		return 0;
	for (struct dirent *e; (e = readdir(d));) {
		const char *end = strstr(e->d_name, name);
		struct stat s;
		if (strncmp(e->d_name, "1.", 2) != 0 || !end || end[strlen(name)] != 0 ||
		    fstatat(dirfd(d), e->d_name, &s, 0) != 0)
			continue;
		found += s.st_ctim.tv_sec > began.tv_sec ||
			 (s.st_ctim.tv_sec == began.tv_sec && s.st_ctim.tv_nsec >= began.tv_nsec);
	}
	closedir(d);
	return found;
}

static int leaves(void *how)
{
	if (how)
		exit(0);
	_exit(0);
}

/* In the first process of a pid namespace. */
static int in_first(void)
{
	bool active = regall_active && regall_active();
	IS(1, getpid());
	IS(active, directories());
	for (int way = 0; way < 4; way++) {
		int flags = CLONE_NEWPID | SIGCHLD | (way & 1 ? CLONE_VM | CLONE_VFORK : 0);
		/* (exit would run the parent's functions where memory is shared.) */
		bool runs = way == 2;
		ended(clone(leaves, stack + sizeof stack, flags, runs ? stack : NULL));
		IS(active, directories());
	}
	return verdict();
}

static int first(void)
{
	char now[64];
	NEED(clock_gettime(CLOCK_REALTIME_COARSE, &began) == 0);
	snprintf(now, sizeof now, "%ld %ld", (long)began.tv_sec, began.tv_nsec);
	pid_t pid = fork();
	NEED(pid >= 0);
	if (pid == 0) {
		if (unshare(CLONE_NEWPID) != 0) {
			say("no namespaces: %s", strerrorname_np(errno));
			_exit(77);
		}
		pid_t one = fork();
		NEED(one >= 0);
		if (one == 0) {
			execl("/proc/self/exe", "table", "in first", now, (char *)NULL);
			_exit(91);
		}
		int status = -1;
		NEED(waitpid(one, &status, 0) == one);
		_exit(WIFEXITED(status) ? WEXITSTATUS(status) : 90);
	}
	int status = -1;
	NEED(waitpid(pid, &status, 0) == pid);
	return WIFEXITED(status) ? WEXITSTATUS(status) : 90;
}

int main(int argc, char **argv)
{
	const char *what = argc > 1 ? argv[1] : "";
	no_longer_than(60);
	here = anon(1);
	if (strcmp(what, "owner") == 0) {
		char line[64];
		say("%#lx", (unsigned long)(uintptr_t)here);
		while (line_from(0, line, sizeof line))
			;
		return 0;
	}
	if (strcmp(what, "files") == 0)
		return files();
	if (strcmp(what, "first") == 0)
		return first();
	NEED(argc == 3 && strcmp(what, "in first") == 0);
	NEED(sscanf(argv[2], "%ld %ld", &began.tv_sec, &began.tv_nsec) == 2);
	return in_first();
}
