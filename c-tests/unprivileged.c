/* Proves: with RLIMIT_MEMLOCK at 64 KiB and no privileges the program runs on, and coverage says `limit`. */
#include <pthread.h>
#include "check.h"

static void *thread(void *arg)
{
	for (int i = 0; i < 50; i++) {
		char *p = malloc(100000);
		memset(p, 1, 100000);
		free(p);
	}
	return arg;
}

int main(int argc, char **argv)
{
	(void)argv;
	if (argc == 1) {
		struct rlimit r = { 64 << 10, 64 << 10 };
		NEED(setrlimit(RLIMIT_MEMLOCK, &r) == 0);
		drop_privileges();
		execl("/proc/self/exe", "unprivileged", "again", (char *)NULL);
		return 97;
	}
	quiet_point("start");
	char *p = anon(4096);
	memset(p, 1, 4096 * PAGE);
	quiet_claim(p + 64 * PAGE, 4000 * PAGE, is_kept() ? "registered" : "limit");
	quiet_point("16 MiB");
	p = mremap(p, 4096 * PAGE, 8192 * PAGE, MREMAP_MAYMOVE);
	NEED(p != MAP_FAILED);
	CALL(mprotect(p, PAGE, PROT_NONE));
	CALL(madvise(p + PAGE, PAGE, MADV_DONTNEED));
	CALL(munmap(p, 8192 * PAGE));
	char *h = sbrk(1000 * PAGE);
	told("sbrk", h != (void *)-1);
	memset(h, 2, 1000 * PAGE);
	volatile char block[3 << 20];
	for (size_t i = 0; i < sizeof block; i += PAGE)
		block[i] = 1;
	say("stack %d", block[0]);
	pthread_t t[8];
	for (int i = 0; i < 8; i++)
		NEED(pthread_create(&t[i], NULL, thread, NULL) == 0);
	for (int i = 0; i < 8; i++)
		pthread_join(t[i], NULL);
	quiet_point("threads");
	pid_t pid = fork();
	if (pid == 0) {
		char *q = anon(64);
		memset(q, 1, 64 * PAGE);
		quiet_point("child");
		_exit(3);
	}
	reap("child", pid);
	char *s = mmap(NULL, 64 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	NEED(s != MAP_FAILED);
	CALL(mlock(s, 8 * PAGE));
	CALL(mlock(s, 32 * PAGE));
	CALL(munlock(s, 64 * PAGE));
	/* What the limit refuses is not locked, and not said to be. */
	CALL(mlock(s, 64 * PAGE));
	CALL(mlock2(s, 64 * PAGE, MLOCK_ONFAULT));
	quiet_point("end");
	return 0;
}
