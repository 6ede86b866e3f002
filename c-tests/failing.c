/*
 * Proves: what a call reads of /proc does not grow with the number of mappings, where it fails, and
 * where the kernel itself goes through all of them. (Linux 6.11: PROCMAP_QUERY.)
 */
#include <linux/ioctl.h>
#include <sys/ioctl.h>
#include <sys/shm.h>
#include "check.h"

#define MANY 6000
#define ROUNDS 20
/* What a call may read: an entry of the list with its path, and what the mark of the test costs. */
#define EACH 16384

static char *where;
static int file;

/* Bytes that this process has read so far, by whatever call. */
static long bytes_read(void)
{
	char text[512];
	int fd = open("/proc/self/io", O_RDONLY);
	NEED(fd >= 0);
	ssize_t n = read(fd, text, sizeof text - 1);
	NEED(n > 7);
	text[n] = 0;
	close(fd);
	return atol(text + 7);
}

static void protect(void)
{
	mprotect(where + 31 * PAGE, 2 * PAGE, PROT_READ | PROT_WRITE);
}

static void replace(void)
{
	mmap(where, PAGE, PROT_READ | PROT_WRITE, MAP_FIXED | MAP_SHARED, file, 0);
}

static void move(void)
{
	mremap(where, 2 * PAGE, 2 * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, where + PAGE);
}

static void grow(void)
{
	mremap(where, PAGE, 2 * PAGE, 0);
}

static void detach(void)
{
	shmdt(where);
}

static void lock_beyond(void)
{
	mlock(where + 31 * PAGE, 2 * PAGE);
}

static void unlock_all(void)
{
	munlockall();
}

static void advise(void)
{
	madvise(where + 31 * PAGE, 2 * PAGE, MADV_DONTNEED);
}

static const struct {
	const char *name;
	void (*call)(void);
} CALLS[] = {
	{ "mprotect", protect }, { "MAP_FIXED", replace }, { "mremap", move }, { "mremap in place", grow },
	{ "shmdt", detach }, { "mlock", lock_beyond }, { "munlockall", unlock_all }, { "madvise", advise },
};

int main(void)
{
	/* The many lie below it: the list is read from its start. */
	where = mmap(NULL, 64 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	char *all = mmap(NULL, 2 * MANY * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	file = open("/proc/self/maps", O_RDONLY);
	NEED(all != MAP_FAILED && where != MAP_FAILED && file >= 0);
	uint64_t query[13] = { sizeof query, 0x10 };
	bool known = ioctl(file, _IOWR('f', 17, query), query) == 0;
	close(file);
	file = open("/proc/self/exe", O_RDONLY);
	NEED(munmap(where + 32 * PAGE, PAGE) == 0);
	for (long i = 0; i < MANY; i++)
		NEED(mprotect(all + 2 * i * PAGE, PAGE, PROT_READ) == 0);
	if (!known) {
		say("no PROCMAP_QUERY before Linux 6.11");
		quiet_point("many");
		return 0;
	}
	for (size_t n = 0; n < sizeof CALLS / sizeof *CALLS; n++) {
		long before = bytes_read();
		for (int i = 0; i < ROUNDS; i++)
			CALLS[n].call();
		long read = bytes_read() - before;
		say("%s: %s", CALLS[n].name, read < ROUNDS * EACH ? "does not grow" : "reads the list");
	}
	quiet_point("many");
	return 0;
}
