/* Proves: advice that locked memory refuses ends as without the shim, whatever memory it is given on. */
#include <sys/shm.h>
#include "advised.h"

/* Fills 64 KiB a level, so that the stack grows; where that has been. */
__attribute__((noinline)) static char *deep(int levels)
{
	volatile char block[16 * PAGE];
	memset((void *)block, 1, sizeof block);
	char *p = levels > 0 ? deep(levels - 1) : (char *)block;
	return block[levels] == 1 ? p : NULL;
}

static void stacks(void)
{
	char *p = deep(60);
	advise_all("a stack", p - (uintptr_t)p % PAGE, 8);
	p = mmap(NULL, 64 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_GROWSDOWN, -1, 0);
	NEED(p != MAP_FAILED);
	advise_all("MAP_GROWSDOWN", p, 4);
	NEED(munmap(p, 64 * PAGE) == 0);
}

static void holes(void)
{
	char *p = anon(64);
	NEED(munmap(p + 10 * PAGE, PAGE) == 0);
	advise_all("around a hole", p, 64);
	CALL(mprotect(p + 20 * PAGE, 8 * PAGE, PROT_NONE));
	advise_all("a hole and no access", p, 64);
	CALL(mprotect(p + 20 * PAGE, 8 * PAGE, PROT_READ | PROT_WRITE));
	advise_all("access again", p + 12 * PAGE, 40);
	char *n = reserve(64);
	advise_all("no access", n, 64);
	NEED(munmap(n + 10 * PAGE, PAGE) == 0);
	advise_all("no access around a hole", n, 64);
	pid_t pid = fork();
	NEED(pid >= 0);
	if (pid == 0) {
		advise_all("around a hole, in a child", p, 64);
		_exit(0);
	}
	reap("child", pid);
	CALL(mlock(p, 4 * PAGE));
	advise_all("locked in part", p, 64);
	CALL(munlock(p, 4 * PAGE));
	advise_all("unlocked again", p, 64);
}

static void moved(void)
{
	char *p = mremap(anon(64), 64 * PAGE, 128 * PAGE, MREMAP_MAYMOVE);
	NEED(p != MAP_FAILED);
	advise_all("grown", p, 128);
	char *q = mremap(p, 64 * PAGE, 64 * PAGE, MREMAP_MAYMOVE | MREMAP_DONTUNMAP);
	NEED(q != MAP_FAILED);
	advise_all("left behind", p, 128);
	advise_all("moved", q, 64);
	CALL(madvise(q, 32 * PAGE, MADV_DONTFORK));
	advise_all("MADV_DONTFORK", q, 64);
}

static void shared(void)
{
	int id = shmget(IPC_PRIVATE, 64 * PAGE, 0600);
	char *p = shmat(id, NULL, 0);
	NEED(id >= 0 && p != (char *)-1 && shmctl(id, IPC_RMID, NULL) == 0);
	advise_all("System V", p, 64);
	NEED(shmdt(p) == 0);
	int fd = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
	p = mmap(NULL, 2 * PAGE, PROT_READ, MAP_PRIVATE, fd, 0);
	NEED(fd >= 0 && p != MAP_FAILED);
	advise_all("a file", p, 2);
	close(fd);
	/* The kernel keeps it locked by itself. */
	fd = (int)syscall(447, 0); /* memfd_secret(2) */
	if (fd < 0) {
		say("memfd_secret: %s", strerrorname_np(errno));
		return;
	}
	NEED(ftruncate(fd, 8 * PAGE) == 0);
	p = mmap(anon(16) + 8 * PAGE, 8 * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0);
	NEED(p != MAP_FAILED);
	p[0] = 5;
	advise_all("secret", p, 8);
	advise_all("secret behind other memory", p - 8 * PAGE, 16);
	close(fd);
}

static void heap(void)
{
	char *p = sbrk(100 * PAGE);
	NEED(p != (char *)-1);
	p += -(uintptr_t)p % PAGE;
	advise_all("the heap", p, 90);
	NEED(munmap(p + 10 * PAGE, 2 * PAGE) == 0);
	advise_all("the heap around a hole", p, 90);
}

static void application(void)
{
	CALL(mlockall(MCL_FUTURE));
	char *p = anon(16);
	advise_all("under MCL_FUTURE", p, 16);
	CALL(munlockall());
	advise_all("after munlockall", p, 16);
}

int main(void)
{
	stacks();
	holes();
	moved();
	shared();
	application();
	heap();
	quiet_point("all");
	return 0;
}
