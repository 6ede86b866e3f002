/*
 * Frames with names, over memory calls: `frames ROUNDS`; or they stay there for who looks at
 * them, in two threads: `frames park`.
 */
#include <pthread.h>

#include "../check.h"

#define BYTES (64ul << 10)

#define PARK (-1)
#define KEPT (1ul << 20)

/* For who reads this process's memory. */
char *kept;
volatile long found = 0x5eed;

__attribute__((noinline)) int inner(int n);
__attribute__((noinline)) int middle(int n);
__attribute__((noinline)) int outer(int n);

int inner(int n)
{
	while (n == PARK)
		pause();
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

static void *other(void *unused)
{
	outer(PARK);
	return unused;
}

static void park(void)
{
	kept = malloc(KEPT);
	NEED(kept);
	for (size_t n = 0; n < KEPT; n++)
		kept[n] = (char)(n % 251);
	pthread_t thread;
	NEED(pthread_create(&thread, NULL, other, NULL) == 0);
	say("parked");
	outer(PARK);
}

int main(int argc, char **argv)
{
	if (argc > 1 && !strcmp(argv[1], "park"))
		park();
	long rounds = argc > 1 ? atol(argv[1]) : 1;
	long sum = 0;
	for (long n = 0; n < rounds; n++)
		sum += outer((int)(n & 0xff));
	say("sum %ld", sum);
	return 0;
}
