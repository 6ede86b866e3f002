/*
 * Writes a dump of itself as crash reporters do (breakpad, crashpad's in-process handler): the
 * handler of SIGSEGV, on a stack of its own, starts a child by clone(2) that shares descriptors
 * and not memory; it stops the parent's threads by ptrace, reads their registers and memory,
 * and writes them to a file. Then the program goes on.
 */
#include <elf.h>
#include <pthread.h>
#include <setjmp.h>
#include <dirent.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/uio.h>
#include <sys/user.h>

#include "../check.h"

#define STACK (64ul << 10)
#define KEPT (1ul << 20)

static sigjmp_buf back;
static pid_t parent;
static int go[2], file;
static char *kept;
static char *child_stack;

__attribute__((noinline)) void crash_here(volatile int *at)
{
	*at = 1;
}

/* How many threads there are that are the program's. */
static int stop_all(pid_t *threads, int most)
{
	char path[64];
	snprintf(path, sizeof path, "/proc/%d/task", parent);
	DIR *dir = opendir(path);
	NEED(dir);
	int n = 0;
	for (struct dirent *e; (e = readdir(dir)) && n < most;) {
		pid_t tid = atoi(e->d_name);
		if (!tid)
			continue;
		NEED(ptrace(PTRACE_ATTACH, tid, 0, 0) == 0);
		NEED(waitpid(tid, NULL, __WALL) == tid);
		threads[n++] = tid;
	}
	closedir(dir);
	return n;
}

/* One mapping of the parent's into the file, by /proc/PID/mem, as much as can be read. */
static void write_range(int mem, unsigned long start, unsigned long end)
{
	size_t bytes = 64ul << 10;
	char *buffer = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	NEED(buffer != MAP_FAILED);
	while (start < end) {
		size_t want = end - start < bytes ? end - start : bytes;
		ssize_t got = pread(mem, buffer, want, (off_t)start);
		if (got <= 0)
			break;
		NEED(write(file, buffer, (size_t)got) == got);
		start += (unsigned long)got;
	}
	NEED(munmap(buffer, bytes) == 0);
}

static void write_memory(void)
{
	char path[64], line[512];
	snprintf(path, sizeof path, "/proc/%d/mem", parent);
	int mem = open(path, O_RDONLY | O_CLOEXEC);
	NEED(mem >= 0);
	snprintf(path, sizeof path, "/proc/%d/maps", parent);
	FILE *maps = fopen(path, "r");
	NEED(maps);
	int stacks = 0, heaps = 0;
	while (fgets(line, sizeof line, maps)) {
		unsigned long start, end;
		char prot[5];
		NEED(sscanf(line, "%lx-%lx %4s", &start, &end, prot) == 3);
		stacks += strstr(line, "[stack]") != NULL;
		heaps += strstr(line, "[heap]") != NULL;
		if (prot[0] == 'r' && prot[1] == 'w' && prot[3] == 'p')
			write_range(mem, start, end);
	}
	say("%d stack, %d heap", stacks, heaps);
	fclose(maps);
	close(mem);
}

static int dump(void *unused)
{
	char c;
	(void)unused;
	/* Until the parent has allowed it (Yama). */
	NEED(read(go[0], &c, 1) == 1);
	pid_t threads[64];
	int n = stop_all(threads, 64);
	int crashed = 0;
	for (int k = 0; k < n; k++) {
		struct user_regs_struct regs;
		struct iovec io = {&regs, sizeof regs};
		NEED(ptrace(PTRACE_GETREGSET, threads[k], NT_PRSTATUS, &io) == 0);
		crashed += threads[k] == parent;
		errno = 0;
		ptrace(PTRACE_PEEKDATA, threads[k], regs.rsp, 0);
		told("its stack", errno == 0);
	}
	say("%d threads, %d of them crashed", n, crashed);
	/* The memory that matters, in one piece. */
	char *copy = malloc(KEPT);
	NEED(copy);
	struct iovec local = {copy, KEPT}, remote = {kept, KEPT};
	told("process_vm_readv", process_vm_readv(parent, &local, 1, &remote, 1, 0) == (ssize_t)KEPT);
	told("what it reads", memcmp(copy, kept, KEPT) == 0);
	free(copy);
	write_memory();
	for (int k = 0; k < n; k++)
		NEED(ptrace(PTRACE_DETACH, threads[k], 0, 0) == 0);
	return 7;
}

static void on_crash(int signal, siginfo_t *info, void *context)
{
	(void)context;
	say("signal %d at %p", signal, info->si_addr);
	pid_t child = clone(dump, child_stack + STACK, CLONE_FILES | CLONE_FS | CLONE_UNTRACED, NULL);
	NEED(child > 0);
	prctl(PR_SET_PTRACER, child, 0, 0, 0);
	NEED(write(go[1], "g", 1) == 1);
	int status;
	NEED(waitpid(child, &status, __WALL) == child);
	say("dumped: %d %d", WIFEXITED(status), WEXITSTATUS(status));
	siglongjmp(back, 1);
}

static void *sleeper(void *unused)
{
	for (;;)
		pause();
	return unused;
}

/* Whether the file has the bytes of `kept`. */
static bool in_file(void)
{
	off_t bytes = lseek(file, 0, SEEK_END);
	char *all = mmap(NULL, (size_t)bytes, PROT_READ, MAP_SHARED, file, 0);
	NEED(all != MAP_FAILED);
	bool found = memmem(all, (size_t)bytes, kept, KEPT) != NULL;
	NEED(munmap(all, (size_t)bytes) == 0);
	return found;
}

int main(int argc, char **argv)
{
	parent = getpid();
	kept = malloc(KEPT);
	NEED(kept);
	for (size_t n = 0; n < KEPT; n++)
		kept[n] = (char)(n * 31 % 253);
	child_stack = anon(STACK / PAGE);
	stack_t alternate = {.ss_sp = anon(STACK / PAGE), .ss_size = STACK};
	NEED(sigaltstack(&alternate, NULL) == 0);
	struct sigaction action = {.sa_sigaction = on_crash, .sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER};
	NEED(sigaction(SIGSEGV, &action, NULL) == 0);
	pthread_t threads[3];
	for (int n = 0; n < 3; n++)
		NEED(pthread_create(&threads[n], NULL, sleeper, NULL) == 0);
	for (int round = 0; round < 3; round++) {
		NEED(pipe2(go, O_CLOEXEC) == 0);
		file = open(".", O_TMPFILE | O_RDWR, 0600);
		NEED(file >= 0);
		if (sigsetjmp(back, 1) == 0)
			crash_here(NULL);
		told("in the file", in_file());
		close(file), close(go[0]), close(go[1]);
		/* It goes on. */
		char *p = anon(64);
		p[0] = 1;
		NEED(munmap(p, 64 * PAGE) == 0);
	}
	say("done");
	if (argc > 1 && !strcmp(argv[1], "stay"))
		pause();
	return 0;
}
