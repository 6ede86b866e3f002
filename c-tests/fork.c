/* Proves: fork, _Fork and grandchildren: data stays apart, children map and unmap, exit statuses come through. */
#include <pthread.h>
#include "check.h"

static char *shared, *own;

static void *busy(void *stop)
{
	while (!__atomic_load_n((int *)stop, __ATOMIC_RELAXED)) {
		char *p = anon(16);
		p[0] = 1;
		munmap(p, 16 * PAGE);
	}
	return NULL;
}

static void child(int depth)
{
	own[0] = (char)(100 + depth);
	shared[depth] = 1;
	char *p = anon(32);
	memset(p, depth, 32 * PAGE);
	munmap(p + 8 * PAGE, PAGE);
	void *m = malloc(1 << 20);
	memset(m, 1, 1 << 20);
	quiet_claim(p, 8 * PAGE, "registered");
	quiet_point("child");
	say("depth %d own %d", depth, own[0]);
	if (depth < 3) {
		pid_t pid = fork();
		NEED(pid >= 0);
		if (pid == 0) {
			child(depth + 1);
			_exit(depth + 1);
		}
		reap("grandchild", pid);
		say("own is still %d", own[0]);
	}
	CALL(munmap(own, 8 * PAGE)); /* inherited memory given back */
	CALL(mprotect(shared, PAGE, PROT_READ));
	char *fresh = anon(8);
	quiet_claim(fresh, 8 * PAGE, "registered");
	quiet_point("child's end");
	free(m);
}

int main(void)
{
	own = anon(8);
	shared = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	memset(own, 9, 8 * PAGE);
	pid_t pid = fork();
	NEED(pid >= 0);
	if (pid == 0) {
		child(1);
		_exit(1);
	}
	reap("child", pid);
	say("parent %d %d %d %d", own[0], shared[1], shared[2], shared[3]);
	quiet_claim(own, 8 * PAGE, "registered");
	quiet_point("parent");

	pid = _Fork();
	NEED(pid >= 0);
	if (pid == 0) {
		char *p = mmap(NULL, 8 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		p[0] = 1;
		own[0] = 77;
		munmap(p, PAGE);
		quiet_claim(p + PAGE, 7 * PAGE, "registered");
		quiet_point("_Fork");
		_exit(own[0]);
	}
	reap("_Fork", pid);
	say("parent %d", own[0]);

	/* While other threads map. */
	int stop = 0;
	pthread_t threads[3];
	for (int i = 0; i < 3; i++)
		NEED(pthread_create(&threads[i], NULL, busy, &stop) == 0);
	int fine = 0;
	for (int i = 0; i < 40; i++) {
		pid = fork();
		NEED(pid >= 0);
		if (pid == 0) {
			char *p = malloc(300000);
			char *q = anon(8);
			memset(p, 1, 300000);
			munmap(q, 8 * PAGE);
			free(p);
			if (i % 10 == 0)
				quiet_point("child of a threaded process");
			_exit(i);
		}
		int status;
		NEED(waitpid(pid, &status, 0) == pid);
		fine += WIFEXITED(status) && WEXITSTATUS(status) == i;
	}
	__atomic_store_n(&stop, 1, __ATOMIC_RELAXED);
	for (int i = 0; i < 3; i++)
		pthread_join(threads[i], NULL);
	say("forks beside threads %d", fine);
	/* Many children at once. */
	pid_t pids[30];
	for (int i = 0; i < 30; i++) {
		pids[i] = fork();
		NEED(pids[i] >= 0);
		if (pids[i] == 0) {
			for (int k = 0; k < 50; k++)
				munmap(anon(4), 4 * PAGE);
			exit(i);
		}
	}
	fine = 0;
	for (int i = 0; i < 30; i++) {
		int status;
		NEED(waitpid(pids[i], &status, 0) == pids[i]);
		fine += WEXITSTATUS(status) == i;
	}
	say("children at once %d", fine);
	quiet_point("end");
	return 0;
}
