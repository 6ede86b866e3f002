/* Proves: with RLIMIT_MEMLOCK low and no privileges the application's locks fit and fail exactly as without the shim. */
#include "check.h"

static bool locked(char *p)
{
	return madvise(p, PAGE, MADV_DONTNEED) == -1 && errno == EINVAL;
}

static void limit(rlim_t bytes)
{
	struct rlimit r = { bytes, bytes };
	NEED(setrlimit(RLIMIT_MEMLOCK, &r) == 0);
}

static void pattern(void)
{
	char *p = anon(64);
	memset(p, 1, 64 * PAGE);
	char text[65] = "";
	for (size_t i = 0; i < 32; i++)
		text[i] = mlock(p + 2 * i * PAGE, PAGE) == 0 ? 'y' : errno == ENOMEM ? 'n' : '?';
	say("every second page: %s", text);
	say("locked %d %d", locked(p), locked(p + 40 * PAGE));
	CALL(munlock(p, 8 * PAGE));
	CALL(mlock(p + 60 * PAGE, 4 * PAGE));
	CALL(mlock(p + 20 * PAGE, 4 * PAGE));
	CALL(munlock(p, 64 * PAGE));
	CALL(mlock(p, 16 * PAGE)); /* the limit exactly */
	CALL(mlock(p, 16 * PAGE)); /* again: counts once */
	CALL(mlock(p + 16 * PAGE, PAGE));
	CALL(mlock2(p + 16 * PAGE, PAGE, 1));
	MAP_AS("MAP_LOCKED beyond", mmap(NULL, PAGE, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_LOCKED, -1, 0));
	MAP_AS("a locked mapping grown beyond", mremap(p, 4 * PAGE, 80 * PAGE, MREMAP_MAYMOVE));
	CALL(mlockall(MCL_CURRENT));
	quiet_point("at the limit");
	CALL(munlock(p, 16 * PAGE));
	char *q = MAP_AS("MAP_LOCKED", mmap(NULL, 16 * PAGE, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_LOCKED, -1, 0));
	CALL(mlock(p, PAGE));
	CALL(munmap(q, 16 * PAGE));
	CALL(mlock(p, 16 * PAGE));
	CALL(munlockall());
	CALL(mlockall(MCL_FUTURE)); /* all that comes counts */
	MAP_AS("within", mmap(NULL, 8 * PAGE, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
	MAP_AS("beyond", mmap(NULL, 64 * PAGE, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
	MAP_AS("without access: counts too", mmap(NULL, 64 * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
	CALL(munlockall());
	MAP_AS("large again", mmap(NULL, 64 * PAGE, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
	quiet_point("pattern");
}

/* What needs no lock must not feel the limit. */
static void plain(void)
{
	char *p = anon(1024);
	memset(p, 2, 1024 * PAGE);
	p = mremap(p, 1024 * PAGE, 4096 * PAGE, MREMAP_MAYMOVE);
	NEED(p != MAP_FAILED);
	CALL(mprotect(p, PAGE, PROT_NONE));
	CALL(mprotect(p, PAGE, PROT_READ | PROT_WRITE));
	CALL(munmap(p, 4096 * PAGE));
	char *h = sbrk(256 * PAGE);
	told("sbrk", h != (void *)-1);
	memset(h, 1, 256 * PAGE);
	CALL(brk(h));
	volatile char deep[1 << 20];
	for (size_t i = 0; i < sizeof deep; i += PAGE)
		deep[i] = 1;
	say("stack %d", deep[0]);
	quiet_point("plain");
}

int main(int argc, char **argv)
{
	(void)argv;
	if (argc > 1) { /* started anew with the limit in force */
		say("started under the limit");
		plain();
		pattern();
		say("limit 0");
		limit(0);
		char *p = anon(1);
		CALL(mlock(p, PAGE));
		CALL(mlockall(MCL_CURRENT));
		plain();
		return 0;
	}
	limit(16 * PAGE);
	drop_privileges();
	say("limit and privileges dropped while running");
	plain();
	pattern();
	execl("/proc/self/exe", "mlock_limit", "again", (char *)NULL);
	return 91;
}
