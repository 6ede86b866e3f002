/*
 * What every test program says and how: straight to descriptor 1, one line a
 * call, with errno by name, so that two runs can be compared byte by byte.
 * To be compiled with -std=c11 -D_GNU_SOURCE.
 */
#ifndef REGALL_CHECK_H
#define REGALL_CHECK_H

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/sysinfo.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

#include "quiet.h"

#define PAGE 4096ul

__attribute__((unused, format(printf, 1, 2))) static void say(const char *format, ...)
{
	char line[512];
	va_list args;
	va_start(args, format);
	int n = vsnprintf(line, sizeof line - 1, format, args);
	va_end(args);
	line[n++] = '\n';
	for (int done = 0; done < n;) {
		ssize_t w = write(1, line + done, (size_t)(n - done));
		if (w <= 0)
			break;
		done += (int)w;
	}
}

/* Says how a call ended: its label and `ok` or errno's name. */
__attribute__((unused)) static bool told(const char *label, bool ok)
{
	int e = errno;
	say("%s: %s", label, ok ? "ok" : strerrorname_np(e));
	errno = e;
	return ok;
}

/* For calls that return 0 or -1, and for those that return an address. */
#define CALL(...) (errno = 0, told(#__VA_ARGS__, (__VA_ARGS__) == 0))
#define CALL_AS(label, ...) (errno = 0, told(label, (__VA_ARGS__) == 0))

__attribute__((unused)) static void *tell_map(const char *label, void *p)
{
	told(label, p != MAP_FAILED);
	return p;
}
#define MAP_AS(label, ...) (errno = 0, tell_map(label, (__VA_ARGS__)))

/* Ends the program: the test itself can't go on. */
#define NEED(what)                                                                                 \
	do {                                                                                       \
		if (!(what)) {                                                                     \
			say("%s:%d: needed %s: %s", __FILE__, __LINE__, #what,                     \
			    strerrorname_np(errno));                                               \
			_exit(90);                                                                 \
		}                                                                                  \
	} while (0)

__attribute__((unused)) static char *anon(size_t pages)
{
	char *p = mmap(NULL, pages * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	NEED(p != MAP_FAILED);
	return p;
}

/* Whether nothing is locked: REGALL_PIN is `auto`, and there is no swap space. */
__attribute__((unused)) static bool is_kept(void)
{
	const char *on = getenv("REGALL"), *pin = getenv("REGALL_PIN");
	struct sysinfo machine;
	NEED(sysinfo(&machine) == 0);
	return on && strcmp(on, "1") == 0 && (!pin || strcmp(pin, "auto") == 0) && machine.totalswap == 0;
}

/* A free stretch of address space that nothing else is likely to take: mapped
 * PROT_NONE, so that fixed mappings inside it hit nobody. */
__attribute__((unused)) static char *reserve(size_t pages)
{
	char *p = mmap(NULL, pages * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	NEED(p != MAP_FAILED);
	return p;
}

__attribute__((unused)) static int memory_file(size_t bytes)
{
	int fd = memfd_create("test", MFD_CLOEXEC);
	NEED(fd >= 0 && ftruncate(fd, (off_t)bytes) == 0);
	return fd;
}

__attribute__((unused)) static bool all_are(const char *p, size_t n, char c)
{
	for (size_t i = 0; i < n; i++)
		if (p[i] != c)
			return false;
	return true;
}

/* Waits for a child and says how it ended. */
__attribute__((unused)) static void reap(const char *label, pid_t pid)
{
	int status = 0;
	pid_t got;
	do
		got = waitpid(pid, &status, 0);
	while (got < 0 && errno == EINTR);
	if (got != pid)
		say("%s: waitpid: %s", label, strerrorname_np(errno));
	else if (WIFSIGNALED(status))
		say("%s: signal %s", label, sigabbrev_np(WTERMSIG(status)));
	else
		say("%s: exit %d", label, WEXITSTATUS(status));
}

/* Runs `f` in a forked child, so that a fault shows as that child's signal. */
__attribute__((unused)) static void in_child(const char *label, void (*f)(void *), void *arg)
{
	pid_t pid = fork();
	NEED(pid >= 0);
	if (pid == 0) {
		f(arg);
		_exit(0);
	}
	reap(label, pid);
}

__attribute__((unused)) static void touch_read(void *p)
{
	(void)*(volatile char *)p;
}

__attribute__((unused)) static void touch_write(void *p)
{
	*(volatile char *)p = 1;
}

/* Gives up root and, with it, CAP_IPC_LOCK; without root nothing is left to do. */
__attribute__((unused)) static void drop_privileges(void)
{
	if (geteuid() == 0)
		NEED(setresgid(65534, 65534, 65534) == 0 && setresuid(65534, 65534, 65534) == 0);
}

#endif
