/* Proves: a mapping is its file's, though its descriptor is another file's before mmap has returned. */
/*
 * The descriptors are shared with a child whose mmap is stopped when the kernel has mapped the
 * file: then the number is given to another one, or closed. What is said of the mapping is what
 * the checks of its quiet point see there.
 */
#include <sys/ptrace.h>
#include "check.h"

#ifndef SYS_memfd_secret
#define SYS_memfd_secret 447
#endif
#define PAGES 64ul

static int file_of(size_t pages)
{
	int fd = memory_file(pages * PAGE);
	char page[PAGE];
	memset(page, 'a', sizeof page);
	for (size_t i = 0; i < pages; i++)
		NEED(pwrite(fd, page, PAGE, (off_t)(i * PAGE)) == (ssize_t)PAGE);
	return fd;
}

static int disk_file(size_t pages)
{
	char name[] = "/var/tmp/regall-test-XXXXXX";
	int fd = mkstemp(name);
	NEED(fd >= 0 && unlink(name) == 0 && ftruncate(fd, (off_t)(pages * PAGE)) == 0);
	return fd;
}

struct file {
	const char *name;
	int fd;
	size_t pages; /* that it has, of those that are mapped */
};

static void in_child_of(const struct file *file, int sharing, const char *label)
{
	NEED(ptrace(PTRACE_TRACEME, 0, NULL, NULL) == 0);
	NEED(raise(SIGSTOP) == 0);
	char *p = mmap(NULL, PAGES * PAGE, PROT_READ | PROT_WRITE, sharing, file->fd, 0);
	NEED(p != MAP_FAILED);
	for (size_t i = 0; i < file->pages; i++)
		p[i * PAGE] = 'b';
	if (file->pages && sharing == MAP_SHARED)
		quiet_claim(p, file->pages * PAGE, "registered");
	quiet_point(label);
	CALL(munmap(p, PAGES * PAGE));
	_exit(0);
}

/* Lets the child run until the kernel has mapped `fd` for it. */
static void stop_it(pid_t pid, int fd)
{
	struct __ptrace_syscall_info info;
	int status, deliver = 0;
	for (bool ours = false;;) {
		NEED(ptrace(PTRACE_SYSCALL, pid, NULL, (long)deliver) == 0);
		NEED(waitpid(pid, &status, __WALL) == pid && WIFSTOPPED(status));
		deliver = 0;
		if (WSTOPSIG(status) != (SIGTRAP | 0x80)) {
			deliver = WSTOPSIG(status);
			continue;
		}
		NEED(ptrace(PTRACE_GET_SYSCALL_INFO, pid, sizeof info, &info) > 0);
		if (info.op == PTRACE_SYSCALL_INFO_ENTRY)
			ours = info.entry.nr == SYS_mmap && (int)info.entry.args[4] == fd &&
			       info.entry.args[1] == PAGES * PAGE;
		else if (info.op == PTRACE_SYSCALL_INFO_EXIT && ours)
			return;
	}
}

/* `other` takes the place of `file`; -1: nothing does. */
static void replaced(struct file file, int sharing, struct file other)
{
	char label[128];
	snprintf(label, sizeof label, "%s, %s, then %s", file.name, sharing == MAP_SHARED ? "shared" : "private", other.name);
	say("%s", label);
	pid_t pid = (pid_t)syscall(SYS_clone, CLONE_FILES | SIGCHLD, NULL, NULL, NULL, NULL);
	NEED(pid >= 0);
	if (pid == 0)
		in_child_of(&file, sharing, label);
	int status;
	NEED(waitpid(pid, &status, __WALL) == pid && WIFSTOPPED(status) && WSTOPSIG(status) == SIGSTOP);
	NEED(ptrace(PTRACE_SETOPTIONS, pid, NULL, PTRACE_O_TRACESYSGOOD | PTRACE_O_EXITKILL) == 0);
	stop_it(pid, file.fd);
	int kept = fcntl(file.fd, F_DUPFD_CLOEXEC, 3);
	NEED(kept >= 0);
	NEED(other.fd >= 0 ? dup2(other.fd, file.fd) == file.fd : close(file.fd) == 0);
	NEED(ptrace(PTRACE_DETACH, pid, NULL, NULL) == 0);
	reap("child", pid);
	NEED(dup2(kept, file.fd) == file.fd && close(kept) == 0);
}

int main(void)
{
	struct file all = { "the whole", file_of(PAGES), PAGES }, less = { "less", file_of(8), 8 },
		    none = { "nothing", -1, 0 }, disk = { "a disk's", disk_file(8), 8 },
		    secret = { "a secret", (int)syscall(SYS_memfd_secret, 0), 0 },
		    zero = { "/dev/zero", open("/dev/zero", O_RDWR | O_CLOEXEC), 0 };
	NEED(zero.fd >= 0);
	const struct file *const files[] = { &all, &less, &disk, &zero, &secret }, *const others[] = { &less, &all, &none, &disk, &zero };
	for (size_t i = 0; i < sizeof files / sizeof *files; i++)
		for (size_t j = 0; j < sizeof others / sizeof *others; j++) {
			if (files[i] == others[j] || files[i]->fd < 0)
				continue;
			replaced(*files[i], MAP_SHARED, *others[j]);
			if (files[i] != &secret)
				replaced(*files[i], MAP_PRIVATE, *others[j]);
		}
	return 0;
}
