/* Proves: clone with CLONE_VM and without, with and without a stack of its own, as without the shim. */
#include "check.h"

static volatile int seen;
static char *made;

static int share(void *arg)
{
	made = mmap(NULL, 8 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	made[0] = 9;
	seen = *(int *)arg;
	return 3;
}

static int apart(void *arg)
{
	char *p = mmap(NULL, 8 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	p[0] = 1;
	seen = 1000;
	quiet_claim(p, 8 * PAGE, "registered");
	quiet_point("clone");
	return *(int *)arg;
}

int main(void)
{
	char *stack = anon(64);
	int value = 5;
	for (int i = 0; i < 20; i++) {
		value = i;
		pid_t pid = clone(share, stack + 64 * PAGE, CLONE_VM | SIGCHLD, &value);
		NEED(pid > 0);
		int status;
		NEED(waitpid(pid, &status, 0) == pid && WEXITSTATUS(status) == 3);
		NEED(seen == i && made[0] == 9);
		if (i % 5 == 0) {
			quiet_claim(made, 8 * PAGE, "registered");
			quiet_point("mapped by a child that shares");
		}
		NEED(munmap(made, 8 * PAGE) == 0);
	}
	say("shared %d", seen);
	pid_t pid = clone(share, stack + 64 * PAGE, CLONE_VM | CLONE_VFORK | SIGCHLD, &value);
	reap("vfork-like", pid);
	quiet_claim(made, 8 * PAGE, "registered");
	quiet_point("vfork-like");
	seen = 1;
	value = 6;
	pid = clone(apart, stack + 64 * PAGE, SIGCHLD, &value);
	reap("apart", pid);
	say("parent's memory %d", seen);
	pid = clone(apart, stack + 64 * PAGE, CLONE_FILES | CLONE_FS | SIGCHLD, &value);
	reap("apart, shared files", pid);
	errno = 0;
	told("bad flags", clone(apart, stack + 64 * PAGE, CLONE_SIGHAND | SIGCHLD, &value) > 0);
	quiet_point("end");
	return 0;
}
