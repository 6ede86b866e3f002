/* Proves: a child that shares its parent's memory (vfork, CLONE_VM) takes nothing from a thread of its parent's that is stopped in mid-call, and nobody from the child. */
/*
 * A tracer stops a thread where its mappings are looked at: with the shim that is in the midst
 * of a call of its own making that fails half-way, with the ledger's mutex held. Meanwhile a
 * child of vfork, and one of clone, make memory calls for longer than anybody waits for a
 * mutex before he looks after its holder.
 */
#include <pthread.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <time.h>
#include "check.h"

#define ROUNDS 1
#define OWN_FOLDER 12345 /* not looked at with an absolute path: tells our own opening */

static volatile bool stop;
static volatile pid_t tid;
static char *holes;
static int go[2], back[2];

/* mprotect that fails half-way: the shim reads the range anew. */
static void *fails(void *arg)
{
	tid = gettid();
	while (!stop) {
		mprotect(holes, 8 * PAGE, PROT_READ | PROT_WRITE);
		int fd = openat(OWN_FOLDER, "/proc/self/maps", O_RDONLY | O_CLOEXEC);
		if (fd >= 0)
			close(fd);
	}
	return arg;
}

static bool is_maps(pid_t at, uint64_t address)
{
	char path[24] = "";
	for (size_t i = 0; i < sizeof path; i += 8) {
		errno = 0;
		long word = ptrace(PTRACE_PEEKDATA, at, address + i, NULL);
		if (errno)
			return false;
		memcpy(path + i, &word, 8);
	}
	return memcmp(path, "/proc/self/maps", 16) == 0;
}

/* PROCMAP_QUERY (linux/fs.h). */
#define QUERY 0xc0686611ul

/* A look at the mappings, by a file that is open. */
static bool is_look(const struct __ptrace_syscall_info *info)
{
	return info->entry.nr == SYS_pread64 || (info->entry.nr == SYS_ioctl && info->entry.args[1] == QUERY);
}

/* Lets the thread run until its mappings are about to be looked at: by the shim, if there is one. */
static void stop_it(pid_t at)
{
	struct __ptrace_syscall_info info;
	int status, own = 0;
	NEED(ptrace(PTRACE_SEIZE, at, NULL, PTRACE_O_TRACESYSGOOD) == 0);
	NEED(ptrace(PTRACE_INTERRUPT, at, NULL, NULL) == 0);
	for (;;) {
		NEED(waitpid(at, &status, __WALL) == at && WIFSTOPPED(status));
		if (WSTOPSIG(status) == (SIGTRAP | 0x80)) {
			NEED(ptrace(PTRACE_GET_SYSCALL_INFO, at, sizeof info, &info) > 0);
			if (info.op == PTRACE_SYSCALL_INFO_ENTRY && is_look(&info))
				return;
			if (info.op == PTRACE_SYSCALL_INFO_ENTRY && info.entry.nr == SYS_openat &&
			    is_maps(at, info.entry.args[1])) {
				own += (int)info.entry.args[0] == OWN_FOLDER;
				if ((int)info.entry.args[0] != OWN_FOLDER || own > 3)
					return;
			}
		}
		NEED(ptrace(PTRACE_SYSCALL, at, NULL, NULL) == 0);
	}
}

static _Noreturn void tracer(void)
{
	pid_t at;
	while (read(go[0], &at, sizeof at) == sizeof at) {
		stop_it(at);
		NEED(write(back[1], "s", 1) == 1);
		char word;
		NEED(read(go[0], &word, 1) == 1);
		NEED(ptrace(PTRACE_DETACH, at, NULL, NULL) == 0);
		NEED(write(back[1], "d", 1) == 1);
	}
	_exit(0);
}

static int lodges(void *arg)
{
	struct timespec begun, now;
	clock_gettime(CLOCK_MONOTONIC, &begun);
	do {
		char *p = mmap(NULL, 8 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		if (p == MAP_FAILED || munmap(p, 8 * PAGE) != 0)
			_exit(1);
		clock_gettime(CLOCK_MONOTONIC, &now);
	} while (now.tv_sec - begun.tv_sec < 1 && now.tv_nsec - begun.tv_nsec < 100000000 &&
		 now.tv_nsec >= begun.tv_nsec);
	if (arg)
		return 3;
	_exit(3);
}

static void meanwhile(bool by_vfork, char *stack)
{
	char word = 0;
	pid_t thread = tid, pid;
	NEED(write(go[1], &thread, sizeof thread) == sizeof thread);
	NEED(read(back[0], &word, 1) == 1 && word == 's');
	if (by_vfork) {
		pid = vfork();
		if (pid == 0)
			lodges(NULL);
	} else {
		pid = clone(lodges, stack, CLONE_VM | CLONE_VFORK | SIGCHLD, stack);
	}
	NEED(pid > 0);
	reap(by_vfork ? "vfork" : "clone", pid);
	NEED(write(go[1], "g", 1) == 1);
	NEED(read(back[0], &word, 1) == 1 && word == 'd');
}

int main(void)
{
	pthread_t thread;
	NEED(pipe(go) == 0 && pipe(back) == 0);
	pid_t helper = fork();
	NEED(helper >= 0);
	if (helper == 0) {
		close(go[1]);
		close(back[0]);
		tracer();
	}
	close(go[0]);
	close(back[1]);
	prctl(PR_SET_PTRACER, helper, 0, 0, 0);
	holes = reserve(8);
	NEED(munmap(holes + 4 * PAGE, PAGE) == 0);
	char *stack = anon(64);
	NEED(pthread_create(&thread, NULL, fails, NULL) == 0);
	while (tid == 0)
		sched_yield();
	for (int i = 0; i < ROUNDS; i++) {
		meanwhile(true, stack + 64 * PAGE);
		meanwhile(false, stack + 64 * PAGE);
	}
	stop = true;
	pthread_join(thread, NULL);
	close(go[1]);
	reap("tracer", helper);
	char *p = anon(16);
	quiet_claim(p, 16 * PAGE, "registered");
	quiet_point("end");
	return 0;
}
