/* Proves: where RLIMIT_MEMLOCK binds, a call that fails for another reason leaves our pins where they are; one that our pins
 * are in the way of works as without the shim, and they come back when there is room again. */
#include <sys/shm.h>
#include "check.h"

#ifndef SYS_mseal
#define SYS_mseal 462
#endif
#ifndef SYS_memfd_secret
#define SYS_memfd_secret 447
#endif
#define LIMIT (2048 * PAGE)

static char *sample;

static void is_pinned(const char *label)
{
	quiet_claim(sample, 16 * PAGE, "registered");
	quiet_point(label);
}

static char *locked_map(size_t pages)
{
	return mmap(NULL, pages * PAGE, PROT_READ | PROT_WRITE,
		    MAP_PRIVATE | MAP_ANONYMOUS | MAP_LOCKED, -1, 0);
}

/* Our pins are not to blame for any of these. */
static void not_to_blame(void)
{
	char *p = anon(8);
	is_pinned("start");
	void *volatile much = malloc(1ul << 50);
	say("a PiB: %s", much ? "there" : strerrorname_np(errno));
	is_pinned("malloc");
	MAP_AS("mmap", mmap(NULL, 1ul << 50, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
	MAP_AS("mremap", mremap(p, 8 * PAGE, 1ul << 46, MREMAP_MAYMOVE));
	CALL(munmap(p + 4 * PAGE, PAGE));
	CALL(mprotect(p, 8 * PAGE, PROT_READ));
	CALL(mlock(p, 8 * PAGE));
	CALL(munlock(p, 4 * PAGE));
	is_pinned("holes");
	MAP_AS("more than the limit", locked_map(4096));
	CALL(mlock(p, 1ul << 40));
	CALL(brk((void *)0x7fff00000000));
	is_pinned("beyond any limit");
	char *s = anon(4);
	if (syscall(SYS_mseal, s, 4 * PAGE, 0) == 0) {
		CALL(mprotect(s, PAGE, PROT_NONE));
		CALL(munmap(s, PAGE));
		MAP_AS("mremap sealed", mremap(s, PAGE, 2 * PAGE, MREMAP_MAYMOVE));
	}
	is_pinned("sealed");
}

/* Memory until our pins are at the limit. */
static void fill(void)
{
	for (int i = 0; i < 200; i++)
		memset(mmap(NULL, 16 * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0), 1,
		       16 * PAGE);
	quiet_point("full");
}

/* They are to blame for these: each works, as without the shim. */
static void to_blame(void)
{
	char *all = anon(2040);
	CALL(mlock(all, 2040 * PAGE));
	quiet_point("nearly all is the application's");
	CALL(mlock(sample, 16 * PAGE)); /* beyond the limit with it */
	CALL(munlock(all, 2040 * PAGE));
	CALL(munmap(all, 2040 * PAGE));
	is_pinned("they are back");
	for (int i = 0; i < 40; i++) { /* a program that does so all the time */
		char *p = locked_map(2000);
		NEED(p != MAP_FAILED);
		NEED(munmap(p, 2000 * PAGE) == 0);
	}
	quiet_point("again and again");

	fill();
	char *m = MAP_AS("MAP_LOCKED", locked_map(600));
	MAP_AS("... and it grows", m = mremap(m, 600 * PAGE, 1500 * PAGE, MREMAP_MAYMOVE));
	MAP_AS("... and it is replaced", mmap(m, 500 * PAGE, PROT_READ,
					      MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_LOCKED, -1, 0));
	quiet_point("locked");
	CALL(munmap(m, 1500 * PAGE));

	char *plain = anon(32);
	memset(plain, 1, 32 * PAGE);
	MAP_AS("what nobody locks grows", plain = mremap(plain, 32 * PAGE, 3000 * PAGE, MREMAP_MAYMOVE));
	CALL(munmap(plain, 3000 * PAGE));
	char *twice = mmap(NULL, 64 * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	NEED(twice != MAP_FAILED);
	memset(twice, 7, 64 * PAGE);
	fill();
	MAP_AS("shared memory a second time", mremap(twice, 0, 64 * PAGE, MREMAP_MAYMOVE));
	CALL(remap_file_pages(twice, 32 * PAGE, 0, 1, 0));
	say("page %d", twice[0]);

	int fd = (int)syscall(SYS_memfd_secret, 0);
	if (fd >= 0 && ftruncate(fd, 1500 * PAGE) == 0) {
		char *s = MAP_AS("secret", mmap(NULL, 1500 * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0));
		MAP_AS("secret, too much", mmap(NULL, 1500 * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0));
		CALL(munmap(s, 1500 * PAGE));
	}
	quiet_point("shared and secret");
}

/* All that is mapped is charged. */
static void future(void)
{
	int id = shmget(IPC_PRIVATE, 512 * PAGE, IPC_CREAT | 0600);
	NEED(id >= 0);
	fill();
	CALL(mlockall(MCL_FUTURE));
	char *h = sbrk(0);
	/* By symbols, libc's brk is called as it is, and only looked at afterwards. */
	const char *by = getenv("REGALL_INTERCEPT");
	bool seen = !by || strcmp(by, "symbols") != 0;
	told("brk", brk(h + 600 * PAGE) == 0 || !seen);
	CALL(brk(h));
	void *s = MAP_AS("shmat", shmat(id, NULL, 0));
	CALL(shmctl(id, IPC_RMID, NULL));
	unsigned long ring = 0;
	CALL(syscall(SYS_io_setup, 64, &ring));
	CALL(syscall(SYS_io_destroy, ring));
	char *p = anon(1000);
	CALL(munlockall());
	CALL(shmdt(s));
	CALL(munmap(p, 1000 * PAGE));
	quiet_point("no future");
}

int main(int argc, char **argv)
{
	(void)argv;
	if (argc == 1) {
		struct rlimit r = { LIMIT, LIMIT };
		NEED(setrlimit(RLIMIT_MEMLOCK, &r) == 0);
		drop_privileges();
		execl("/proc/self/exe", "pins_stay", "again", (char *)NULL);
		return 91;
	}
	sample = anon(16);
	memset(sample, 1, 16 * PAGE);
	NEED(mprotect(sample + 15 * PAGE, PAGE, PROT_READ) == 0); /* a mapping of its own */
	not_to_blame();
	to_blame();
	future();
	return 0;
}
