/* cputime.c: runs a rank and adds its CPU time to a file.
 *   cputime FILE VAR=VALUE... -- PROGRAM ARGS...
 * The variables are the program's alone: the launcher never sees them. Writes
 * one line: user and system time in microseconds, largest resident set in KiB.
 * SPDX-License-Identifier: MIT OR Apache-2.0 */
#include "slice.h"
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/wait.h>

int main(int argc, char **argv)
{
	int i = 2;
	pid_t child = argc > 3 ? fork() : -1;
	if (child < 0)
		fail("fork, or arguments");
	if (child == 0) {
		for (; i < argc && strcmp(argv[i], "--"); i++)
			putenv(argv[i]);
		execvp(argv[i + 1], argv + i + 1);
		fail("exec");
	}
	int status;
	struct rusage use;
	if (wait4(child, &status, 0, &use) != child)
		fail("wait4");
	int fd = open(argv[1], O_WRONLY | O_CREAT | O_APPEND, 0644);
	if (fd < 0)
		fail(argv[1]);
	dprintf(fd, "%lld %lld %ld\n", use.ru_utime.tv_sec * 1000000ll + use.ru_utime.tv_usec,
		use.ru_stime.tv_sec * 1000000ll + use.ru_stime.tv_usec, use.ru_maxrss);
	return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}
