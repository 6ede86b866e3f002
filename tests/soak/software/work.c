/* Threads that use malloc and mappings, and a result that tells whether all was kept.
   `work ROUNDS`; with a second argument the last round reads behind a block of malloc's. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { THREADS = 4, BLOCKS = 64, EACH = 500 };

static long churn(unsigned seed)
{
	char *block[BLOCKS] = { NULL };
	size_t size[BLOCKS] = { 0 };
	long sum = 0;

	for (int i = 0; i < EACH; i++) {
		int n = i % BLOCKS;

		seed = seed * 1103515245 + 12345;
		if (block[n] && block[n][size[n] - 1] != (char)n)
			abort();
		size[n] = 1 + (seed >> 8) % (i % 16 ? 4096 : 400000);
		block[n] = realloc(block[n], size[n]);
		memset(block[n], n, size[n]);
		sum += size[n] % 97;
	}
	for (int n = 0; n < BLOCKS; n++)
		free(block[n]);
	return sum;
}

static long mappings(int seed)
{
	size_t len = 1 << 20;
	long sum = 0;

	for (int i = 0; i < 8; i++) {
		unsigned char *at = mmap(NULL, len, PROT_READ | PROT_WRITE,
					 MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

		if (at == MAP_FAILED)
			abort();
		memset(at, seed + i, len);
		at = mremap(at, len, 2 * len, MREMAP_MAYMOVE);
		if (at == MAP_FAILED || mprotect(at, len, PROT_READ))
			abort();
		munmap(at + len / 2, 3 * len / 2);
		sum += at[len / 4];
		munmap(at, len / 2);
	}
	return sum;
}

static void *thread(void *seed)
{
	return (void *)(churn((unsigned)(long)seed) + mappings((int)(long)seed));
}

int main(int argc, char **argv)
{
	int rounds = argc > 1 ? atoi(argv[1]) : 1;
	long sum = 0;

	for (int round = 0; round < rounds; round++) {
		pthread_t threads[THREADS];

		for (long n = 0; n < THREADS; n++)
			if (pthread_create(&threads[n], NULL, thread, (void *)(n + round)))
				abort();
		for (int n = 0; n < THREADS; n++) {
			void *part;

			pthread_join(threads[n], &part);
			sum += (long)part;
		}
	}
	if (argc > 2) {
		volatile char *block = malloc(100);

		sum += block[100 + argc - 3];
	}
	printf("sum %ld\n", sum);
	return 0;
}
