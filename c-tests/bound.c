/* Proves: memory that a call leaves with RLIMIT_MEMLOCK binding can be had as without the shim. */
#include <linux/capability.h>
#include <pthread.h>
#include "check.h"

#define MANY 4096ul /* pages, twice the limit */

__attribute__((noinline)) static int deep(int levels)
{
	volatile char block[16 * PAGE];
	memset((void *)block, 1, sizeof block);
	return levels > 0 ? deep(levels - 1) + block[levels] : block[0];
}

/* Every way to come by memory, for far more than the limit. */
static void memory(void)
{
	char *p = MAP_AS("mmap", mmap(NULL, MANY * PAGE, PROT_READ | PROT_WRITE,
				      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
	char *r = MAP_AS("mremap", mremap(p, MANY * PAGE, 2 * MANY * PAGE, MREMAP_MAYMOVE));
	told("sbrk", sbrk(MANY * PAGE) != (void *)-1);
	MAP_AS("MAP_GROWSDOWN", mmap(NULL, 16 * PAGE, PROT_READ | PROT_WRITE,
				     MAP_PRIVATE | MAP_ANONYMOUS | MAP_GROWSDOWN, -1, 0));
	say("stack %d", deep(90));
	if (r != MAP_FAILED)
		CALL(munmap(r, 2 * MANY * PAGE));
}

static void by_setuid(void)
{
	CALL(setuid(65534));
}

static void by_number(void)
{
	CALL(syscall(SYS_setresuid, 65534, 65534, 65534));
}

static void by_effective_id(void)
{
	CALL(seteuid(65534));
}

static void by_capset(void)
{
	struct __user_cap_header_struct head = { _LINUX_CAPABILITY_VERSION_3, 0 };
	struct __user_cap_data_struct none[2] = { 0 };
	CALL(syscall(SYS_capset, &head, none));
}

static void by_unshare(void)
{
	CALL(unshare(CLONE_NEWUSER));
}

static void by_prlimit(void)
{
	struct rlimit less = { 1 << 20, 1 << 20 };
	CALL(setuid(65534));
	CALL(prlimit(0, RLIMIT_MEMLOCK, &less, NULL));
}

/* Maps, opens and grows memory without pause, until told to stop. Says how often it was refused. */
static void *map_always(void *stop)
{
	long refused = 0;
	do {
		char *p = mmap(NULL, 64 * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		if (p == MAP_FAILED) {
			refused++;
			continue;
		}
		refused += mprotect(p, 64 * PAGE, PROT_READ | PROT_WRITE) != 0;
		p[PAGE] = 1;
		char *q = mremap(p, 64 * PAGE, 128 * PAGE, MREMAP_MAYMOVE);
		refused += q == MAP_FAILED;
		munmap(q == MAP_FAILED ? p : q, q == MAP_FAILED ? 64 * PAGE : 128 * PAGE);
	} while (!__atomic_load_n((int *)stop, __ATOMIC_ACQUIRE));
	return (void *)refused;
}

/* libc has every thread make the call, in a handler. */
static void by_setuid_among_threads(void)
{
	pthread_t threads[4];
	int stop = 0;
	for (size_t i = 0; i < 4; i++)
		NEED(pthread_create(&threads[i], NULL, map_always, &stop) == 0);
	usleep(2000);
	CALL(setuid(65534));
	usleep(2000);
	__atomic_store_n(&stop, 1, __ATOMIC_RELEASE);
	for (size_t i = 0; i < 4; i++) {
		void *refused = NULL;
		pthread_join(threads[i], &refused);
		say("refused %ld", (long)refused);
	}
}

static void *alone(void *none)
{
	by_capset();
	memory();
	return none;
}

/* The limit binds one thread; the others keep their capabilities. */
static void by_capset_of_a_thread(void)
{
	pthread_t thread;
	NEED(pthread_create(&thread, NULL, alone, NULL) == 0);
	pthread_join(thread, NULL);
}

/* A child that shares the memory changes its own rights, and maps. */
static void by_setuid_behind_vfork(void)
{
	pid_t pid = vfork();
	if (pid == 0) {
		bool done = syscall(SYS_setresuid, 65534, 65534, 65534) == 0;
		char *p = mmap(NULL, MANY * PAGE, PROT_READ | PROT_WRITE,
			       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
		_exit(done && p != MAP_FAILED && munmap(p, MANY * PAGE) == 0 ? 0 : 1);
	}
	NEED(pid > 0);
	reap("behind vfork", pid);
}

static void by_nothing(void)
{
}

int main(int argc, char **argv)
{
	static const struct { const char *name; void (*change)(void); } ways[] = {
		{ "setuid", by_setuid }, { "setresuid by number", by_number },
		{ "seteuid", by_effective_id }, { "capset", by_capset },
		{ "unshare", by_unshare }, { "prlimit", by_prlimit }, { "nothing", by_nothing },
		{ "setuid among threads", by_setuid_among_threads },
		{ "capset of a thread", by_capset_of_a_thread },
		{ "setuid behind vfork", by_setuid_behind_vfork },
	};
	/* With CAP_IPC_LOCK it does not bind yet; and who is to change that is not who sets it. */
	struct rlimit limit;
	NEED(getrlimit(RLIMIT_MEMLOCK, &limit) == 0);
	limit.rlim_cur = limit.rlim_max < 8 << 20 ? limit.rlim_max : 8 << 20;
	NEED(argc > 1 || setrlimit(RLIMIT_MEMLOCK, &limit) == 0);
	if (argc == 1)
		quiet_point("start");
	for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
		if (argc > 1 && strcmp(argv[1], ways[i].name) == 0) {
			ways[i].change();
			memory();
			return 0;
		}
		if (argc > 1)
			continue;
		pid_t pid = fork();
		NEED(pid >= 0);
		if (pid == 0) {
			execl("/proc/self/exe", "bound", ways[i].name, (char *)NULL);
			_exit(97);
		}
		reap(ways[i].name, pid);
	}
	return 0;
}
