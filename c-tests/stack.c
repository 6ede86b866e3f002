/* Proves: the main stack grows as far as its limit lets it, under several limits, as without the shim. */
#include <pthread.h>
#include "check.h"

static int deep(size_t bytes)
{
	volatile char block[8192];
	block[0] = 1;
	block[sizeof block - 1] = 2;
	return bytes > sizeof block + 200 ? deep(bytes - sizeof block - 200) + block[0] : block[0];
}

static void dive(void *arg)
{
	deep((size_t)(uintptr_t)arg << 20);
	quiet_point("dived");
}

/* What nobody has touched of a thread's stack is not resident. */
static void *looks(void *unused)
{
	static unsigned char pages[2048];
	pthread_attr_t attr;
	void *start;
	size_t bytes, n = 0;
	NEED(pthread_getattr_np(pthread_self(), &attr) == 0 && pthread_attr_getstack(&attr, &start, &bytes) == 0);
	NEED(bytes / PAGE <= sizeof pages && mincore(start, bytes, pages) == 0);
	for (size_t i = 0; i < bytes / PAGE; i++)
		n += pages[i] & 1;
	say("most of a thread's stack is resident %d", n > bytes / PAGE / 2);
	return unused;
}

static void thread(void)
{
	pthread_attr_t attr;
	pthread_t t;
	NEED(pthread_attr_init(&attr) == 0 && pthread_attr_setstacksize(&attr, 2048 * PAGE) == 0);
	NEED(pthread_create(&t, &attr, looks, NULL) == 0 && pthread_join(t, NULL) == 0);
}

int main(int argc, char **argv)
{
	static const struct {
		const char *name;
		rlim_t limit;
		int ok, too_deep;
	} cases[] = { { "1 MiB", 1 << 20, 0, 2 },
		      { "8 MiB", 8 << 20, 6, 12 },
		      { "60 MiB", 60 << 20, 50, 64 },
		      { "200 MiB", 200 << 20, 150, 210 },
		      { "none", RLIM_INFINITY, 100, 0 } };
	quiet_point("start");
	if (argc > 1) {
		int i = atoi(argv[1]);
		quiet_point("limited");
		if (cases[i].ok)
			in_child("deep enough", dive, (void *)(uintptr_t)cases[i].ok);
		if (cases[i].ok && cases[i].ok <= 64)
			deep((size_t)cases[i].ok << 20);
		quiet_point("after diving");
		if (cases[i].too_deep)
			in_child("too deep", dive, (void *)(uintptr_t)cases[i].too_deep);
		return i;
	}
	deep(6 << 20);
	say("6 MiB fit");
	quiet_point("6 MiB");
	for (int i = 0; i < 5; i++) {
		pid_t pid = fork();
		NEED(pid >= 0);
		if (pid == 0) {
			struct rlimit r = { cases[i].limit, cases[i].limit };
			struct rlimit was;
			NEED(getrlimit(RLIMIT_STACK, &was) == 0);
			r.rlim_max = was.rlim_max;
			if (setrlimit(RLIMIT_STACK, &r) != 0) {
				say("not allowed");
				_exit(0);
			}
			char number[2] = { (char)('0' + i), 0 };
			execl("/proc/self/exe", "stack", number, (char *)NULL);
			_exit(97);
		}
		reap(cases[i].name, pid);
	}
	thread();
	/* The limit changed while running. */
	struct rlimit r;
	NEED(getrlimit(RLIMIT_STACK, &r) == 0);
	r.rlim_cur = 16 << 20;
	if (r.rlim_max == RLIM_INFINITY || r.rlim_max >= r.rlim_cur) {
		NEED(setrlimit(RLIMIT_STACK, &r) == 0);
		deep(7 << 20);
		in_child("20 of 16 MiB", dive, (void *)20);
	}
	quiet_point("end");
	return 0;
}
