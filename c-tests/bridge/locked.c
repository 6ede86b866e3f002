/* Proves: who holds the lock of a file that it shares with a helper's process makes nobody wait, and keeps nobody alive. */
/*
 * A write(2) from a page that does not come holds the lock of the file for as long as it likes; who
 * waits for the lock can't be killed. Here a process holds that of its bounce buffer, and gets.
 */
#include <linux/userfaultfd.h>
#include <pthread.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include "by_hand.h"

#define SECRET 0x5ec7e7

/* A page that does not come until `let_go`. */
static int faults;
static char *slow;

static void make_slow(void)
{
	struct uffdio_api api = { .api = UFFD_API };
	faults = (int)syscall(SYS_userfaultfd, O_CLOEXEC);
	if (faults < 0) {
		say("no userfaultfd");
		exit(77);
	}
	NEED(ioctl(faults, UFFDIO_API, &api) == 0);
	slow = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	NEED(slow != MAP_FAILED);
	struct uffdio_register all = { .range = { (uintptr_t)slow, PAGE }, .mode = UFFDIO_REGISTER_MODE_MISSING };
	NEED(ioctl(faults, UFFDIO_REGISTER, &all) == 0);
}

static void *write_slowly(void *fd)
{
	(void)!write((int)(intptr_t)fd, slow, 1);
	return NULL;
}

/* Holds the lock of this file. */
static void hold_lock_of(int fd)
{
	pthread_t thread;
	struct uffd_msg message;
	NEED(pthread_create(&thread, NULL, write_slowly, (void *)(intptr_t)fd) == 0);
	/* It waits for the page, and so it has the lock. */
	NEED(read(faults, &message, sizeof message) == sizeof message);
}

static void let_go(void)
{
	struct uffdio_zeropage zero = { .range = { (uintptr_t)slow, PAGE } };
	ioctl(faults, UFFDIO_ZEROPAGE, &zero);
}

static int owner(void)
{
	char line[64];
	uint64_t *secret = (uint64_t *)(void *)anon(1);
	*secret = SECRET;
	say("%lu", (unsigned long)(uintptr_t)secret);
	while (line_from(0, line, sizeof line))
		;
	return 0;
}

static struct other o;
static uint64_t secret;

/* The number of the directory's entry for the secret. */
static uint64_t entry(void)
{
	enum { HEADER = 8192, GENERATION = 0, START = 1, END = 2, ID = 4, SEGMENT = 1024 };
	char path[sizeof address.sun_path];
	uint64_t slot[8], id = 0;
	snprintf(path, sizeof path, "%.*s", (int)(strlen(address.sun_path) - 5), address.sun_path);
	int fd = open(path, O_RDONLY);
	NEED(fd >= 0);
	for (int n = 0; n < SEGMENT && pread(fd, slot, sizeof slot, HEADER + (off_t)sizeof slot * n) == sizeof slot; n++)
		if (slot[GENERATION] && slot[START] <= secret && secret < slot[END])
			id = slot[ID];
	close(fd);
	NEED(id);
	return id;
}

static void holds_secret(int bounce, off_t at)
{
	uint64_t got = 0;
	NEED(pread(bounce, &got, 8, at) == 8);
	IS(SECRET, got);
}

/* The owner is killed, and is gone soon. */
static void dies(void)
{
	kill(o.pid, SIGKILL);
	for (int n = 0; n < 500; n++) {
		if (waitpid(o.pid, NULL, WNOHANG) == o.pid)
			return;
		pause_us(10000);
	}
	HOLDS(!"the owner ends");
}

int main(int argc, char **argv)
{
	int bounce;
	no_longer_than(60);
	if (argc > 1 && strcmp(argv[1], "owner") == 0)
		return owner();
	o = start_other(true, (char *[]){ "locked", "owner", NULL });
	secret = hear_number(&o);
	find(o.pid);
	make_slow();
	int s = greeted(&bounce);
	hold_lock_of(bounce);
	IS(0, ask_for(s, (struct request){ .what = GET, .number = 2, .addr = secret, .len = 8, .id = entry(), .offset = 4096 }));
	holds_secret(bounce, 4096);
	dies();
	let_go();
	return verdict();
}
