/* Proves: vfork, posix_spawn and exec with other environments and arguments, from threads too, as without the shim. */
#include <pthread.h>
#include <spawn.h>
#include "check.h"

extern char **environ;

static void *exec_from_thread(void *arg)
{
	(void)arg;
	execl("/proc/self/exe", "exec", "thread", (char *)NULL);
	_exit(92);
}

int main(int argc, char **argv)
{
	if (argc > 1) { /* the image that was started */
		char *p = anon(16);
		memset(p, 1, 16 * PAGE);
		quiet_claim(p, 16 * PAGE, "registered");
		quiet_point("new image");
		say("started by %s, X=%s", argv[1], getenv("X") ? getenv("X") : "");
		return argc;
	}
	char *p = anon(64);
	memset(p, 5, 64 * PAGE);
	pid_t pid = vfork();
	NEED(pid >= 0);
	if (pid == 0) {
		execl("/proc/self/exe", "exec", "vfork", (char *)NULL);
		_exit(93);
	}
	reap("vfork", pid);
	pid = vfork();
	if (pid == 0)
		_exit(17);
	reap("vfork and _exit", pid);
	pid = vfork();
	if (pid == 0) {
		execl("/nowhere", "nowhere", (char *)NULL);
		_exit(errno);
	}
	reap("vfork and a failed exec", pid);
	p[0] = 6;
	quiet_claim(p, 64 * PAGE, "registered");
	quiet_point("after vfork");

	char *args[] = { "exec", "spawn", "two", NULL };
	for (int i = 0; i < 20; i++) {
		NEED(posix_spawn(&pid, "/proc/self/exe", NULL, NULL, args, environ) == 0);
		if (i == 19)
			reap("spawn", pid);
		else
			NEED(waitpid(pid, NULL, 0) == pid);
	}
	say("spawn of nothing: %s", strerrorname_np(posix_spawn(&pid, "/nowhere", NULL, NULL, args, environ)));
	char *empty[] = { "X=empty", NULL };
	NEED(posix_spawn(&pid, "/proc/self/exe", NULL, NULL, args, empty) == 0);
	reap("spawn with another environment", pid);
	say("system: %d", system("exit 5") >> 8);
	FILE *f = popen("echo from a pipe", "r");
	char line[64] = "";
	NEED(f && fgets(line, sizeof line, f));
	say("popen: %.*s, %d", (int)strcspn(line, "\n"), line, pclose(f));
	fflush(stdout);

	pid = fork();
	if (pid == 0) {
		setenv("X", "set", 1);
		execl("/proc/self/exe", "exec", "fork", "a", "b", (char *)NULL);
	}
	reap("fork and exec", pid);
	pid = fork();
	if (pid == 0) {
		pthread_t t;
		pthread_create(&t, NULL, exec_from_thread, NULL);
		pause();
	}
	reap("exec from a thread", pid);
	errno = 0;
	told("exec of nothing", execl("/nowhere", "nowhere", (char *)NULL) == 0);
	told("exec of a directory", execl("/tmp", "tmp", (char *)NULL) == 0);
	quiet_claim(p, 64 * PAGE, "registered");
	quiet_point("after failed execs");
	say("contents %d", all_are(p + 1, 64 * PAGE - 1, 5));
	execle("/proc/self/exe", "exec", "itself", (char *)NULL, environ);
	return 94;
}
