/* Proves: remap_file_pages, file tails and files that shrink or grow under a mapping, as without the shim. */
#include <dlfcn.h>
#include <sys/shm.h>
#include "../include/regall.h"
#include "check.h"

/* Sites of calls that can't be intercepted, as in code that processes share; where nobody looks for sites one
 * more each time. */
static unsigned long unseen(void)
{
	static unsigned long alone;
	const char *how = getenv("REGALL_INTERCEPT");
	if (how && strcmp(how, "symbols") == 0)
		return ++alone;
	int (*stats)(struct regall_stats *) = (int (*)(struct regall_stats *))dlsym(RTLD_DEFAULT, "regall_stats");
	struct regall_stats s = { .size = sizeof s };
	return stats && stats(&s) == 0 ? s.sites_refused : ++alone;
}

/* Code that comes to be shared memory is looked at, by whatever call. */
static void shared_code(void)
{
	static const unsigned char munmap_stub[] = { 0xb8, SYS_munmap, 0, 0, 0, 0x0f, 0x05, 0xc3 };
	int fd = memory_file(2 * PAGE);
	NEED(pwrite(fd, munmap_stub, sizeof munmap_stub, PAGE + 64) == sizeof munmap_stub);
	unsigned long before = unseen();
	char *p = mmap(NULL, PAGE, PROT_READ | PROT_EXEC, MAP_SHARED, fd, 0);
	NEED(p != MAP_FAILED);
	CALL(syscall(SYS_remap_file_pages, p, PAGE, 0, 1, 0));
	say("remapped code %s", unseen() > before ? "was looked at" : "WAS NOT SEEN");
	int id = shmget(IPC_PRIVATE, PAGE, IPC_CREAT | 0700);
	NEED(id >= 0);
	char *to = shmat(id, NULL, 0);
	NEED(to != (void *)-1 && shmctl(id, IPC_RMID, NULL) == 0);
	memcpy(to + 64, munmap_stub, sizeof munmap_stub);
	before = unseen();
	NEED(shmat(id, NULL, SHM_EXEC) != (void *)-1);
	say("attached code %s", unseen() > before ? "was looked at" : "WAS NOT SEEN");
	quiet_point("shared code");
}

static void remap(void)
{
	int fd = memory_file(16 * PAGE);
	char *p = mmap(NULL, 16 * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	NEED(p != MAP_FAILED);
	for (size_t i = 0; i < 16; i++)
		p[i * PAGE] = (char)(i + 1);
	for (size_t i = 0; i < 8; i++) /* the first half, backwards */
		CALL(syscall(SYS_remap_file_pages, p + i * PAGE, PAGE, 0, 15 - i, 0));
	for (size_t i = 0; i < 16; i++)
		say("%zu shows %d", i, p[i * PAGE]);
	quiet_claim(p, 16 * PAGE, "registered");
	quiet_point("remapped");
	CALL(syscall(SYS_remap_file_pages, p, PAGE, PROT_READ, 0, 0));
	CALL(syscall(SYS_remap_file_pages, anon(1), PAGE, 0, 0, 0));
	CALL(syscall(SYS_remap_file_pages, p, 0, 0, 0, 0));
	CALL(munmap(p, 16 * PAGE));
}

static void tails(void)
{
	int fd = memory_file(2 * PAGE + 100);
	char *p = MAP_AS("beyond the end", mmap(NULL, 8 * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0));
	char *q = MAP_AS("private", mmap(NULL, 8 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE, fd, 0));
	p[2 * PAGE + 200] = 1; /* behind the end, in its last page */
	in_child("read of the tail", touch_read, p + 3 * PAGE);
	in_child("read of the private tail", touch_read, q + 3 * PAGE);
	quiet_claim(p, 3 * PAGE, "registered");
	quiet_claim(q, 3 * PAGE, "registered");
	quiet_point("tails");
	NEED(ftruncate(fd, 5 * (off_t)PAGE) == 0);
	memset(p, 4, 5 * PAGE);
	say("grown %d %d", p[4 * PAGE], q[4 * PAGE]);
	quiet_point("grown");
	NEED(ftruncate(fd, PAGE) == 0);
	in_child("read of what was cut off", touch_read, p + PAGE);
	say("first page %d", p[0]);
	quiet_point("cut");
	char *r = MAP_AS("all beyond", mmap(NULL, 4 * PAGE, PROT_READ, MAP_SHARED, fd, 4 * (off_t)PAGE));
	in_child("read", touch_read, r);
	CALL(munmap(r, 4 * PAGE));
	int empty = memory_file(0);
	r = MAP_AS("empty file", mmap(NULL, 4 * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, empty, 0));
	in_child("read", touch_read, r);
	quiet_point("empty");
	NEED(fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, PAGE) == 0);
	say("punched %d", p[0]);
}

static void real_file(void)
{
	char name[] = "/tmp/regall-test-XXXXXX";
	int fd = mkstemp(name);
	NEED(fd >= 0 && unlink(name) == 0);
	char text[3 * PAGE];
	memset(text, 'x', sizeof text);
	NEED(write(fd, text, sizeof text) == (ssize_t)sizeof text);
	char *p = MAP_AS("file", mmap(NULL, 3 * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0));
	p[PAGE] = 'y';
	CALL(msync(p, 3 * PAGE, MS_SYNC));
	char c = 0;
	NEED(pread(fd, &c, 1, PAGE) == 1);
	say("file has %c", c);
	NEED(pwrite(fd, "z", 1, 0) == 1);
	say("memory has %c", p[0]);
	quiet_claim(p, 3 * PAGE, "registered");
	quiet_point("deleted file");
	CALL(munmap(p, 3 * PAGE));
}

static void devices(void)
{
	int zero = open("/dev/zero", O_RDWR);
	char *p = MAP_AS("/dev/zero private", mmap(NULL, 4 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE, zero, 0));
	char *q = MAP_AS("/dev/zero shared", mmap(NULL, 4 * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, zero, 0));
	p[0] = q[0] = 1;
	say("%d %d", p[1], q[1]);
	MAP_AS("/dev/null", mmap(NULL, PAGE, PROT_READ, MAP_PRIVATE, open("/dev/null", O_RDONLY), 0));
	quiet_point("devices");
}

int main(void)
{
	shared_code();
	remap();
	tails();
	real_file();
	devices();
	quiet_point("end");
	return 0;
}
