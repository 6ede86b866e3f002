/* spawn.c: start-up. Runs PROGRAM in each of several environments in turn.
 *   spawn ROUNDS PROGRAM NAME[,VAR=VALUE...] ...
 * Prints a line a round: ns from posix_spawn to the end of wait, for each
 * environment in the order given. Every other round goes backwards.
 * SPDX-License-Identifier: MIT OR Apache-2.0 */
#include "slice.h"
#include <spawn.h>
#include <sys/wait.h>

enum { VARIANTS = 16, VARS = 8 };

static double once(const char *program, char **env)
{
	char *args[] = {(char *)program, NULL};
	pid_t child;
	int status;
	uint64_t start = clock_ns(CLOCK_MONOTONIC);
	if (posix_spawn(&child, program, NULL, NULL, args, env))
		fail("posix_spawn");
	if (waitpid(child, &status, 0) != child || status)
		fail("the program failed");
	return (double)(clock_ns(CLOCK_MONOTONIC) - start);
}

int main(int argc, char **argv)
{
	static char *env[VARIANTS][VARS + 2];
	int variants = argc - 3;
	if (variants < 1 || variants > VARIANTS) {
		fprintf(stderr, "spawn: ROUNDS PROGRAM NAME[,VAR=VALUE...] ...\n");
		return 2;
	}
	for (int v = 0; v < variants; v++) {
		int n = 0;
		strtok(argv[v + 3], ",");
		env[v][n++] = "PATH=/usr/bin:/bin";
		for (char *var; n <= VARS && (var = strtok(NULL, ","));)
			env[v][n++] = var;
		once(argv[2], env[v]);
	}
	for (long round = 0; round < (long)number(argv[1]); round++) {
		double got[VARIANTS];
		for (int i = 0; i < variants; i++) {
			int v = round % 2 ? variants - 1 - i : i;
			got[v] = once(argv[2], env[v]);
		}
		for (int v = 0; v < variants; v++)
			printf("%.0f%c", got[v], v + 1 < variants ? ' ' : '\n');
	}
	return 0;
}
