/*
 * What REGALL_SHARE=heap must not be: large private anonymous memory from memfds, and no
 * care for anything else. differ.c must find what that breaks.
 */
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#define LARGE (128ul << 10)

void *mmap(void *addr, size_t len, int prot, int flags, int fd, off_t offset)
{
	if (len >= LARGE && flags & MAP_PRIVATE && flags & MAP_ANONYMOUS && !(offset & 4095)) {
		int file = memfd_create("naive", MFD_CLOEXEC);
		if (file >= 0 && ftruncate(file, (off_t)len) == 0) {
			flags = (flags & ~(MAP_PRIVATE | MAP_ANONYMOUS)) | MAP_SHARED;
			long r = syscall(SYS_mmap, addr, len, prot, flags, file, 0l);
			close(file);
			return (void *)r;
		}
		if (file >= 0)
			close(file);
	}
	return (void *)syscall(SYS_mmap, addr, len, prot, flags, fd, offset);
}
