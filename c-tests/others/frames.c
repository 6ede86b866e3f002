/* Frames with names, over memory calls: frames ROUNDS. */
#include "../check.h"

#define BYTES (64ul << 10)

__attribute__((noinline)) int inner(int n);
__attribute__((noinline)) int middle(int n);
__attribute__((noinline)) int outer(int n);

int inner(int n)
{
	char *p = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	NEED(p != MAP_FAILED);
	p[BYTES / 2] = (char)n;
	int read = p[BYTES / 2];
	NEED(munmap(p, BYTES) == 0);
	return (read & 1) + 1;
}

/* More than a tail call. */
int middle(int n)
{
	return inner(n) + 1;
}

int outer(int n)
{
	return middle(n) + 1;
}

int main(int argc, char **argv)
{
	long rounds = argc > 1 ? atol(argv[1]) : 1;
	long sum = 0;
	for (long n = 0; n < rounds; n++)
		sum += outer((int)(n & 0xff));
	say("sum %ld", sum);
	return 0;
}
