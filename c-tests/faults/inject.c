/*
 * Makes system calls fail that libregall.so makes, from outside, by ptrace. Those of the
 * application, which the library makes in its place, are left alone: it notes where in its
 * text they are made (section .regall.application). Its own are all made by one instruction
 * (section .regall.entered): their site is the address that it was called from, which is on
 * top of the stack.
 *
 *   inject LIBRARY REPORT list COMMAND...
 *   inject LIBRARY REPORT SITE:CALL:NTH:ERRNO COMMAND...
 *
 * `list` writes a line "SITE CALL" for each call to REPORT, in order. Otherwise the NTH call
 * (0: each) of number CALL (or `-`: any) from the address SITE of the library (or `-`) fails
 * with ERRNO, is not made, and is such a line. Ends as the command does. What preloads the
 * library into the command is the command's own: `env LD_PRELOAD=...`.
 */
#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/personality.h>
#include <sys/ptrace.h>
#include <sys/stat.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <unistd.h>

#define SYSCALL_BYTES 2ul
#define THREADS 4096

/* What is asked for; UINT64_MAX is any. */
static uint64_t want_site = UINT64_MAX, want_call = UINT64_MAX, want_nth, matched;
static int with_errno;
static bool list;
static int report;

/* The library: its name, text segment, and where it makes the application's calls and its own. */
static const char *library;
static uint64_t text_address, text_offset;
static uint64_t *application, *own;
static size_t applications, owns;

/* A thread that is traced. */
struct thread {
	pid_t tid;
	bool known, pending;
	unsigned looks;
	uint64_t from, to, bias; /* the library's text in its memory */
};
static struct thread threads[THREADS];

static void die(const char *what)
{
	fprintf(stderr, "inject: %s: %s\n", what, strerror(errno));
	exit(120);
}

static void read_library(void)
{
	struct stat s;
	int fd = open(library, O_RDONLY | O_CLOEXEC);
	if (fd < 0 || fstat(fd, &s) != 0)
		die(library);
	const char *p = mmap(NULL, (size_t)s.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
	if (p == MAP_FAILED)
		die(library);
	close(fd);
	const Elf64_Ehdr *head = (const void *)p;
	const Elf64_Phdr *segment = (const void *)(p + head->e_phoff);
	const Elf64_Shdr *section = (const void *)(p + head->e_shoff);
	const char *names = p + section[head->e_shstrndx].sh_offset;
	for (int i = 0; i < head->e_phnum; i++)
		if (segment[i].p_type == PT_LOAD && segment[i].p_flags & PF_X) {
			text_address = segment[i].p_vaddr;
			text_offset = segment[i].p_offset;
		}
	for (int i = 0; i < head->e_shnum; i++) {
		uint64_t *at = (uint64_t *)(uintptr_t)(p + section[i].sh_offset);
		if (strcmp(names + section[i].sh_name, ".regall.application") == 0) {
			application = at;
			applications = section[i].sh_size / sizeof *at;
		}
		if (strcmp(names + section[i].sh_name, ".regall.entered") == 0) {
			own = at;
			owns = section[i].sh_size / sizeof *at;
		}
	}
	if (applications == 0 || owns == 0) {
		errno = ENOENT;
		die("the library does not say where it makes the application's calls and its own");
	}
}

static struct thread *thread_of(pid_t tid)
{
	struct thread *unused = NULL;
	for (int i = 0; i < THREADS; i++) {
		if (threads[i].tid == tid)
			return &threads[i];
		if (threads[i].tid == 0 && !unused)
			unused = &threads[i];
	}
	if (!unused)
		die("too many threads");
	*unused = (struct thread){ .tid = tid };
	return unused;
}

/* Where the library is in this thread's memory, if it is there yet. */
static void find_library(struct thread *t)
{
	char path[64], line[4352];
	if (t->known || t->looks++ > 500)
		return;
	snprintf(path, sizeof path, "/proc/%d/maps", t->tid);
	FILE *maps = fopen(path, "re");
	while (maps && fgets(line, sizeof line, maps)) {
		unsigned long from, to, offset;
		char rights[5];
		int name = 0;
		line[strcspn(line, "\n")] = 0;
		if (sscanf(line, "%lx-%lx %4s %lx %*s %*s %n", &from, &to, rights, &offset, &name) < 4)
			continue;
		if (name == 0 || rights[2] != 'x' || strcmp(line + name, library) != 0)
			continue;
		t->from = from;
		t->to = to;
		t->bias = from - (text_address + (offset - text_offset));
		t->known = true;
	}
	if (maps)
		fclose(maps);
}

static bool is_among(const uint64_t *sites, size_t n, uint64_t site)
{
	for (size_t i = 0; i < n; i++)
		if (sites[i] == site)
			return true;
	return false;
}

static void entered(struct thread *t, const struct __ptrace_syscall_info *info)
{
	find_library(t);
	uint64_t at = info->instruction_pointer - SYSCALL_BYTES;
	if (!t->known || at < t->from || at >= t->to)
		return;
	uint64_t site = at - t->bias;
	if (is_among(application, applications, site))
		return;
	if (is_among(own, owns, site)) {
		errno = 0;
		site = (uint64_t)ptrace(PTRACE_PEEKDATA, t->tid, info->stack_pointer, 0) - t->bias;
		if (errno != 0)
			return; /* killed meanwhile */
	}
	if (!list) {
		if ((want_site != UINT64_MAX && want_site != site) ||
		    (want_call != UINT64_MAX && want_call != info->entry.nr))
			return;
		matched++;
		if (want_nth != 0 && want_nth != matched)
			return;
		if (ptrace(PTRACE_POKEUSER, t->tid, offsetof(struct user, regs.orig_rax), -1l) != 0)
			return; /* killed meanwhile */
		t->pending = true;
	}
	dprintf(report, "%lx %lu\n", (unsigned long)site, (unsigned long)info->entry.nr);
}

static void stopped_at_call(struct thread *t)
{
	struct __ptrace_syscall_info info = { 0 };
	if (ptrace(PTRACE_GET_SYSCALL_INFO, t->tid, sizeof info, &info) <= 0)
		return;
	if (info.op == PTRACE_SYSCALL_INFO_ENTRY) {
		entered(t, &info);
	} else if (info.op == PTRACE_SYSCALL_INFO_EXIT && t->pending) {
		t->pending = false;
		ptrace(PTRACE_POKEUSER, t->tid, offsetof(struct user, regs.rax), -(long)with_errno);
	}
}

/* A new thread or process has its parent's memory, or a copy of it. */
static void inherit(struct thread *parent)
{
	unsigned long child = 0;
	if (ptrace(PTRACE_GETEVENTMSG, parent->tid, 0, &child) != 0)
		return;
	struct thread *t = thread_of((pid_t)child);
	*t = *parent;
	t->tid = (pid_t)child;
	t->pending = false;
}

/* Returns the status with which the first process has ended. */
static int follow(pid_t first)
{
	int status, end = 0;
	for (;;) {
		pid_t tid = waitpid(-1, &status, __WALL);
		if (tid < 0 && errno == EINTR)
			continue;
		if (tid < 0)
			return end;
		struct thread *t = thread_of(tid);
		if (WIFEXITED(status) || WIFSIGNALED(status)) {
			t->tid = 0;
			if (tid == first)
				end = status;
			continue;
		}
		int signal = WSTOPSIG(status), event = status >> 16;
		if (signal == (SIGTRAP | 0x80)) {
			stopped_at_call(t);
			signal = 0;
		} else if (event == PTRACE_EVENT_STOP) {
			bool group = signal != SIGTRAP;
			ptrace(group ? PTRACE_LISTEN : PTRACE_SYSCALL, tid, 0, 0);
			continue;
		} else if (event != 0) {
			if (event == PTRACE_EVENT_EXEC)
				*t = (struct thread){ .tid = tid };
			else
				inherit(t);
			signal = 0;
		}
		ptrace(PTRACE_SYSCALL, tid, 0, (long)signal);
	}
}

static void parse(char *what)
{
	char *part[4] = { what };
	if (strcmp(what, "list") == 0) {
		list = true;
		return;
	}
	for (int i = 1; i < 4; i++) {
		part[i] = strchr(part[i - 1], ':');
		if (!part[i]) {
			errno = EINVAL;
			die(what);
		}
		*part[i]++ = 0;
	}
	if (strcmp(part[0], "-") != 0)
		want_site = strtoul(part[0], NULL, 16);
	if (strcmp(part[1], "-") != 0)
		want_call = strtoul(part[1], NULL, 10);
	want_nth = strtoul(part[2], NULL, 10);
	with_errno = atoi(part[3]);
}

int main(int argc, char **argv)
{
	if (argc < 5) {
		errno = EINVAL;
		die("LIBRARY REPORT list|SITE:CALL:NTH:ERRNO COMMAND...");
	}
	library = argv[1];
	read_library();
	report = open(argv[2], O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
	if (report < 0)
		die(argv[2]);
	parse(argv[3]);
	int gate[2];
	if (pipe2(gate, O_CLOEXEC) != 0)
		die("pipe");
	pid_t first = fork();
	if (first < 0)
		die("fork");
	if (first == 0) {
		char go;
		/* Calls come in the same order from run to run if addresses are the same. */
		personality(ADDR_NO_RANDOMIZE);
		if (read(gate[0], &go, 1) != 1)
			_exit(120);
		execvp(argv[4], argv + 4);
		_exit(127);
	}
	long options = PTRACE_O_TRACESYSGOOD | PTRACE_O_TRACECLONE | PTRACE_O_TRACEFORK | PTRACE_O_TRACEVFORK |
		       PTRACE_O_TRACEEXEC | PTRACE_O_EXITKILL;
	if (ptrace(PTRACE_SEIZE, first, 0, options) != 0)
		die("ptrace");
	if (write(gate[1], "g", 1) != 1)
		die("pipe");
	int end = follow(first);
	if (WIFSIGNALED(end)) {
		signal(WTERMSIG(end), SIG_DFL);
		raise(WTERMSIG(end));
	}
	return WEXITSTATUS(end);
}
