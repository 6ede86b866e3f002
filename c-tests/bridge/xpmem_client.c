/*
 * Uses /dev/xpmem as UCX and Open MPI do (one segment over all addresses, attached in
 * pieces), and at its edges. A test of xpmem_device first of all: what is attached is
 * shared memory, since the stand-in can't attach other. Says what is not as it should be;
 * exit status 0 if nothing, 77 without a device.
 */
#include <pthread.h>
#include <sys/time.h>

#include "../expect.h"
#include "xpmem_abi.h"

#define SIZE (64 * PAGE)
#define ATTACHERS 4

struct shared {
	xpmem_segid_t everything, one, secret;
	uint64_t memory, private;
};

static struct shared *shared;

static int open_xpmem(void)
{
	int fd = open(XPMEM_DEVICE, O_RDWR | O_CLOEXEC);
	if (fd < 0 && errno == ENOENT) {
		say("skipped: no " XPMEM_DEVICE);
		_exit(77);
	}
	NEED(fd >= 0);
	return fd;
}

static xpmem_segid_t make(int fd, void *p, size_t size, uint64_t mode)
{
	struct xpmem_cmd_make m = { (uint64_t)(uintptr_t)p, size, XPMEM_PERMIT_MODE, mode, 0 };
	return ioctl(fd, XPMEM_CMD_MAKE, &m) < 0 ? -1 : m.segid;
}

static xpmem_apid_t get(int fd, xpmem_segid_t segment, int flags)
{
	struct xpmem_cmd_get g = { segment, flags, XPMEM_PERMIT_MODE, 0, 0 };
	return ioctl(fd, XPMEM_CMD_GET, &g) < 0 ? -1 : g.apid;
}

static char *attach_at(int fd, xpmem_apid_t permit, uint64_t offset, size_t size, void *at)
{
	struct xpmem_cmd_attach a = { permit, (off_t)offset, size, (uint64_t)(uintptr_t)at, fd, 0 };
	return ioctl(fd, XPMEM_CMD_ATTACH, &a) < 0 ? NULL : (char *)(uintptr_t)a.vaddr;
}

static char *attach(int fd, xpmem_apid_t permit, uint64_t offset, size_t size)
{
	return attach_at(fd, permit, offset, size, NULL);
}

static int detach(int fd, void *p)
{
	struct xpmem_cmd_detach d = { (uint64_t)(uintptr_t)p };
	return ioctl(fd, XPMEM_CMD_DETACH, &d);
}

static bool is_mapped(void *p)
{
	unsigned char in;
	return mincore(p, PAGE, &in) == 0;
}

static void own(int ready, int done)
{
	int fd = open_xpmem();
	int file = memory_file(SIZE);
	char *p = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0), *private = anon(2), word;
	NEED(p != MAP_FAILED);
	memset(p, 'o', SIZE);
	shared->memory = (uint64_t)(uintptr_t)p;
	shared->private = (uint64_t)(uintptr_t)private;
	shared->everything = make(fd, NULL, XPMEM_MAXADDR_SIZE, 0600);
	shared->one = make(fd, p + PAGE, 8 * PAGE, 0666);
	shared->secret = make(fd, p, PAGE, 0);
	NEED(shared->everything > 0 && shared->one > 0 && shared->secret > 0);
	EXPECT(fails_with(EINVAL, make(fd, p, PAGE, 01000)) && fails_with(EINVAL, make(fd, p, 0, 0600)));
	EXPECT(fails_with(EINVAL, make(fd, p + 1, PAGE, 0600)) && fails_with(EINVAL, make(fd, p, 100, 0600)));
	NEED(write(ready, "", 1) == 1 && read(done, &word, 1) == 1);
	EXPECT(all_are(p + 3 * PAGE, 2 * PAGE, 'a') && all_are(p, 3 * PAGE, 'o'));
	struct xpmem_cmd_remove r = { shared->one };
	EXPECT(ioctl(fd, XPMEM_CMD_REMOVE, &r) == 0 && fails_with(ENOENT, ioctl(fd, XPMEM_CMD_REMOVE, &r)));
	NEED(write(ready, "", 1) == 1 && read(done, &word, 1) == 1);
	_exit(wrong ? 1 : 0);
}

static void attaches(int fd, xpmem_apid_t all, xpmem_apid_t one)
{
	char *p = attach(fd, all, shared->memory + 2 * PAGE, 4 * PAGE);
	NEED(p);
	EXPECT(all_are(p, 4 * PAGE, 'o'));
	memset(p + PAGE, 'a', 2 * PAGE);
	/* The same memory through the other segment, at a place of our choice, size rounded up. */
	char *at = reserve(8), *q = attach_at(fd, one, 2 * PAGE, 2 * PAGE - 7, at + 2 * PAGE);
	EXPECT(q == at + 2 * PAGE && all_are(q, 2 * PAGE, 'a'));
	EXPECT(!attach_at(fd, one, 0, PAGE, q + PAGE) && errno == EINVAL);
	pid_t child = fork();
	NEED(child >= 0);
	if (child == 0) {
		struct xpmem_cmd_make m = { 0, PAGE, XPMEM_PERMIT_MODE, 0600, 0 };
		_exit(!is_mapped(p) && fails_with(XPMEM_ERRNO_NOPROC, ioctl(fd, XPMEM_CMD_MAKE, &m)) ? 0 : 1);
	}
	int status;
	EXPECT(waitpid(child, &status, 0) == child && status == 0);
	EXPECT(detach(fd, p + PAGE) == 0 && !is_mapped(p) && detach(fd, p) == 0);
	EXPECT(fails_with(EINVAL, detach(fd, shared)));
	struct xpmem_cmd_release r = { one };
	EXPECT(ioctl(fd, XPMEM_CMD_RELEASE, &r) == 0 && !is_mapped(q));
	EXPECT(fails_with(ENOENT, ioctl(fd, XPMEM_CMD_RELEASE, &r)) && !attach(fd, one, 0, PAGE) && errno == ENOENT);
}

static void is_refused(int fd, xpmem_apid_t all)
{
	EXPECT(fails_with(EINVAL, get(fd, 0, XPMEM_RDWR)) && fails_with(EINVAL, get(fd, shared->one, 3)));
	EXPECT(fails_with(ENOENT, get(fd, shared->one + (7ll << 32), XPMEM_RDWR)));
	struct xpmem_cmd_remove r = { shared->one };
	EXPECT(fails_with(EACCES, ioctl(fd, XPMEM_CMD_REMOVE, &r)));
	if (geteuid() != 0)
		EXPECT(fails_with(EACCES, get(fd, shared->secret, XPMEM_RDONLY)));
	xpmem_apid_t reader = get(fd, shared->one, XPMEM_RDONLY);
	EXPECT(reader > 0 && !attach(fd, reader, 0, PAGE) && errno == EACCES);
	xpmem_apid_t one = get(fd, shared->one, XPMEM_RDWR);
	EXPECT(!attach(fd, one, 8 * PAGE, PAGE) && errno == EINVAL && !attach(fd, one, 1, PAGE) && errno == EINVAL);
	EXPECT(fails_with(EFAULT, ioctl(fd, XPMEM_CMD_ATTACH, NULL)) && fails_with(ENOTTY, ioctl(fd, _IO('x', 99), NULL)));
	/* The stand-in's own limit. */
	bool real = access("/proc/xpmem", F_OK) == 0;
	char *private = attach(fd, all, shared->private, PAGE);
	if (real)
		EXPECT(private && detach(fd, private) == 0);
	else
		EXPECT(!private && errno == EINVAL);
}

struct attacher {
	int fd;
	xpmem_apid_t all;
};

static void *attacher(void *arg)
{
	const struct attacher *a = arg;
	for (size_t i = 0; i < 100 && !wrong; i++) {
		char *p = attach(a->fd, a->all, shared->memory + (16 + i % 16) * PAGE, 16 * PAGE);
		EXPECT(p && all_are(p, 16 * PAGE, 'o'));
		EXPECT(detach(a->fd, p) == 0);
	}
	return NULL;
}

static volatile sig_atomic_t ticks;

static void tick(int signal)
{
	(void)signal;
	ticks++;
}

/* With signals that come in at any moment. */
static void from_threads(int fd, xpmem_apid_t all)
{
	struct attacher a = { fd, all };
	pthread_t t[ATTACHERS];
	struct itimerval often = { { 0, 500 }, { 0, 500 } }, never = { 0 };
	struct sigaction action = { .sa_handler = tick, .sa_flags = SA_RESTART };
	NEED(sigaction(SIGALRM, &action, NULL) == 0 && setitimer(ITIMER_REAL, &often, NULL) == 0);
	for (int i = 0; i < ATTACHERS; i++)
		NEED(pthread_create(&t[i], NULL, attacher, &a) == 0);
	attacher(&a);
	for (int i = 0; i < ATTACHERS; i++)
		pthread_join(t[i], NULL);
	setitimer(ITIMER_REAL, &never, NULL);
	EXPECT(ticks > 0);
}

int main(void)
{
	int ready[2], done[2], status;
	shared = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	NEED(shared != MAP_FAILED && pipe2(ready, O_CLOEXEC) == 0 && pipe2(done, O_CLOEXEC) == 0);
	struct stat s;
	int fd = open_xpmem();
	EXPECT(stat(XPMEM_DEVICE, &s) == 0 && S_ISCHR(s.st_mode));
	EXPECT(ioctl(fd, XPMEM_CMD_VERSION, NULL) >= 0x20000);
	pid_t owner = fork();
	NEED(owner >= 0);
	if (owner == 0)
		own(ready[1], done[0]);
	char byte;
	close(ready[1]);
	NEED(read(ready[0], &byte, 1) == 1);
	xpmem_apid_t all = get(fd, shared->everything, XPMEM_RDWR), one = get(fd, shared->one, XPMEM_RDWR);
	NEED(all > 0 && one > 0);
	attaches(fd, all, one);
	is_refused(fd, all);
	from_threads(fd, all);
	one = get(fd, shared->one, XPMEM_RDWR);
	NEED(write(done[1], "", 1) == 1 && read(ready[0], &byte, 1) == 1);
	EXPECT(fails_with(ENOENT, get(fd, shared->one, XPMEM_RDWR)) && !attach(fd, one, 0, PAGE) && errno == ENOENT);
	NEED(write(done[1], "", 1) == 1);
	EXPECT(waitpid(owner, &status, 0) == owner && status == 0);
	EXPECT(!attach(fd, all, shared->memory, PAGE) && errno == ENOENT);
	say("%s", wrong ? "wrong" : "as it should be");
	return wrong ? 1 : 0;
}
