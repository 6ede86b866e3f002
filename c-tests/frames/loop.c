/*
 * main calls outer calls inner, which maps and unmaps memory: for debuggers and profilers.
 * loop SECONDS (of the processor's time)
 */
#include "../check.h"
#include <time.h>

__attribute__((noinline)) static void inner(void)
{
	void *p = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	NEED(p != MAP_FAILED);
	NEED(munmap(p, PAGE) == 0);
}

__attribute__((noinline)) static void outer(clock_t until)
{
	do
		for (int n = 0; n < 100; n++)
			inner();
	while (clock() < until);
	__asm__ volatile("");
}

int main(int argc, char **argv)
{
	NEED(argc == 2);
	outer(atoi(argv[1]) * CLOCKS_PER_SEC);
	return 0;
}
