/* Proves: malloc, realloc and aligned memory of all sizes keep their contents, in several threads, with forks between. */
#include <malloc.h>
#include <pthread.h>
#include "check.h"

#define SLOTS 200

static uint64_t step(uint64_t *s)
{
	*s ^= *s << 13;
	*s ^= *s >> 7;
	*s ^= *s << 17;
	return *s;
}

static void *churn(void *arg)
{
	uint64_t seed = (uintptr_t)arg * 7919 + 12345, sum = 0;
	struct { unsigned char *p; size_t n; } slot[SLOTS] = { 0 };
	for (int i = 0; i < 20000; i++) {
		size_t k = step(&seed) % SLOTS, n = step(&seed) % 100 == 0 ? step(&seed) % (4 << 20) : step(&seed) % 5000;
		for (size_t j = 0; j < slot[k].n; j += 977)
			NEED(slot[k].p[j] == (unsigned char)(k + j));
		switch (step(&seed) % 4) {
		case 0:
			slot[k].p = realloc(slot[k].p, n + 1);
			for (size_t j = 0; j < slot[k].n && j < n; j += 977)
				NEED(slot[k].p[j] == (unsigned char)(k + j));
			break;
		case 1:
			free(slot[k].p);
			slot[k].p = aligned_alloc(4096, (n + 4095) & ~4095ul);
			break;
		default:
			free(slot[k].p);
			slot[k].p = calloc(n + 1, 1);
			for (size_t j = 0; j < n; j += 977)
				NEED(slot[k].p[j] == 0);
		}
		slot[k].n = n;
		for (size_t j = 0; j < n; j += 977)
			slot[k].p[j] = (unsigned char)(k + j);
		sum += n;
	}
	for (size_t k = 0; k < SLOTS; k++)
		free(slot[k].p);
	return (void *)(uintptr_t)sum;
}

int main(void)
{
	say("main %lu", (unsigned long)(uintptr_t)churn((void *)99));
	quiet_point("main");
	pthread_t t[4];
	for (uintptr_t i = 0; i < 4; i++)
		NEED(pthread_create(&t[i], NULL, churn, (void *)i) == 0);
	for (int i = 0; i < 5; i++) {
		pid_t pid = fork();
		NEED(pid >= 0);
		if (pid == 0) {
			free(malloc(1 << 20));
			_exit((int)((uintptr_t)churn((void *)5) % 100));
		}
		reap("child", pid);
	}
	for (int i = 0; i < 4; i++) {
		void *sum;
		pthread_join(t[i], &sum);
		say("thread %lu", (unsigned long)(uintptr_t)sum);
	}
	malloc_trim(0);
	quiet_point("end");
	return 0;
}
