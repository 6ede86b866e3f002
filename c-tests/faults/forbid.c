/*
 * forbid NUMBER ERRNO COMMAND...: runs a command under a seccomp filter that refuses the system
 * call NUMBER with ERRNO, whoever makes it.
 */
#include "../filter.h"

int main(int argc, char **argv)
{
	if (argc < 4)
		return 120;
	FILTER_CALLS(SECCOMP_RET_ERRNO | (unsigned)atoi(argv[2]), (unsigned)atoi(argv[1]));
	execvp(argv[3], argv + 3);
	return 121;
}
