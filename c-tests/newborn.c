/* Children that live for milliseconds, one after the other, their pids on stdout: newborn COUNT. Every second one executes
 * this program anew. */
#include <time.h>
#include "check.h"

static void live(void)
{
	struct timespec t = { 0, 2000000 };
	nanosleep(&t, NULL);
}

int main(int argc, char **argv)
{
	NEED(argc == 2);
	if (strcmp(argv[1], "child") == 0) {
		live();
		return 0;
	}
	long count = atol(argv[1]);
	for (long i = 0; i < count; i++) {
		pid_t pid = fork();
		NEED(pid >= 0);
		if (pid == 0) {
			if (i % 2)
				execl("/proc/self/exe", "newborn", "child", (char *)NULL);
			live();
			_exit(0);
		}
		say("%d", pid);
		NEED(waitpid(pid, NULL, 0) == pid);
	}
	return 0;
}
