/* Proves: the shim's counters of events grow by exactly the number of calls made; counts N makes N calls of each kind. */
#include <linux/userfaultfd.h>
#include <sys/ioctl.h>
#include <sys/shm.h>
#include <sys/uio.h>
#include "check.h"

int main(int argc, char **argv)
{
	int n = argc > 1 ? atoi(argv[1]) : 10;
	int id = shmget(IPC_PRIVATE, PAGE, IPC_CREAT | 0600);
	int self = (int)syscall(434 /* pidfd_open */, getpid(), 0);
	char *base = sbrk(0);
	int fd = memory_file(4 * PAGE);
	NEED(id >= 0 && self >= 0);
	char *s = mmap(NULL, 4 * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	NEED(s != MAP_FAILED);
	int watcher = (int)syscall(SYS_userfaultfd, O_CLOEXEC | UFFD_USER_MODE_ONLY);
	struct uffdio_api api = { .api = UFFD_API };
	bool watches = watcher >= 0 && ioctl(watcher, UFFDIO_API, &api) == 0;
	for (int i = 0; i < n; i++) {
		char *p = mmap(NULL, 4 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		NEED(p != MAP_FAILED);
		p = mremap(p, 4 * PAGE, 8 * PAGE, MREMAP_MAYMOVE);
		NEED(p != MAP_FAILED);
		NEED(mprotect(p, PAGE, PROT_READ) == 0);
		NEED(madvise(p + PAGE, PAGE, MADV_DONTNEED) == 0);
		struct iovec v = { p + PAGE, PAGE };
		NEED(syscall(SYS_process_madvise, self, &v, 1l, (long)MADV_COLD, 0l) == (long)PAGE);
		NEED(mlock(p, PAGE) == 0);
		NEED(mlock2(p + PAGE, PAGE, 1) == 0);
		NEED(munlock(p, 2 * PAGE) == 0);
		NEED(msync(s, PAGE, MS_SYNC | MS_INVALIDATE) == 0);
		NEED(syscall(SYS_remap_file_pages, s, PAGE, 0l, 1l, 0l) == 0);
		struct uffdio_register reg = { .range = { (uintptr_t)p + 4 * PAGE, PAGE }, .mode = UFFDIO_REGISTER_MODE_MISSING };
		NEED(!watches || ioctl(watcher, UFFDIO_REGISTER, &reg) == 0);
		NEED(munmap(p, 8 * PAGE) == 0);
		NEED(brk(base + (i % 2 ? 0 : 4 * PAGE)) == 0);
		char *at = shmat(id, NULL, 0);
		NEED(at != (void *)-1 && shmdt(at) == 0);
		NEED(mlockall(MCL_FUTURE) == 0 && munlockall() == 0);
	}
	shmctl(id, IPC_RMID, NULL);
	say("done%s", watches ? "" : ", without a userfaultfd");
	return 0;
}
