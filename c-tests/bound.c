/* Proves: memory that a call leaves with RLIMIT_MEMLOCK binding can be had as without the shim. */
#include <linux/capability.h>
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

static void by_nothing(void)
{
}

int main(int argc, char **argv)
{
	static const struct { const char *name; void (*change)(void); } ways[] = {
		{ "setuid", by_setuid }, { "setresuid by number", by_number },
		{ "seteuid", by_effective_id }, { "capset", by_capset },
		{ "unshare", by_unshare }, { "prlimit", by_prlimit }, { "nothing", by_nothing },
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
