/* Proves: a process has no thread but its own in any user namespace: sandboxes count their threads, and unshare needs one. */
#include "check.h"

#include <dirent.h>
#include <sched.h>
#include <signal.h>
#include <sys/wait.h>

static int threads(void)
{
	DIR *tasks = opendir("/proc/self/task");
	NEED(tasks);
	int n = 0;
	for (struct dirent *e; (e = readdir(tasks));)
		n += e->d_name[0] != '.';
	closedir(tasks);
	return n;
}

/* Executed in its namespaces: as it starts, after memory calls, and after a fork. */
static int inside(const char *where)
{
	say("%s: %d", where, threads());
	char *p = anon(16);
	p[0] = 1;
	NEED(munmap(p, 16 * PAGE) == 0);
	fflush(stdout);
	pid_t pid = fork();
	if (pid == 0) {
		say("%s, a child: %d", where, threads());
		fflush(stdout);
		_exit(0);
	}
	int status;
	NEED(waitpid(pid, &status, 0) == pid);
	say("%s: %d, unshare %d", where, threads(), unshare(CLONE_NEWUSER) == 0 || errno != EINVAL);
	return 0;
}

int main(int argc, char **argv)
{
	if (argc > 1)
		return inside(argv[1]);
	static const struct {
		const char *name;
		int flags;
	} all[] = {
		{ "none", 0 },
		{ "user", CLONE_NEWUSER },
		{ "user, net", CLONE_NEWUSER | CLONE_NEWNET },
		{ "user, pid", CLONE_NEWUSER | CLONE_NEWPID },
	};
	for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
		fflush(stdout);
		pid_t pid = (pid_t)syscall(SYS_clone, all[i].flags | SIGCHLD, 0, 0, 0, 0);
		if (pid == 0) {
			execl("/proc/self/exe", argv[0], all[i].name, (char *)NULL);
			_exit(9);
		}
		int status = 0;
		if (pid > 0)
			NEED(waitpid(pid, &status, 0) == pid);
		say("%s: %s, %d", all[i].name, pid > 0 ? "made" : "not allowed", status);
	}
	quiet_point("end");
	return 0;
}
