/* Proves: a seccomp filter is over the threads that it is over and no others, and what it says is taken as the kernel takes it. */
#include <fcntl.h>
#include <dirent.h>
#include <pthread.h>
#include <signal.h>
#include <sys/wait.h>

#include "filter.h"

#define SIZE (16ul << 20)

static int stop(unsigned flags, unsigned action, const int *calls, size_t n)
{
	struct sock_filter code[220];
	size_t k = 0;
	code[k++] = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr));
	for (size_t i = 0; i < n; i++) {
		code[k++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (unsigned)calls[i], 0, 1);
		code[k++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, action);
	}
	code[k++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
	struct sock_fprog filter = { (unsigned short)k, code };
	NEED(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
	return (int)syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, flags, &filter);
}

#define STOP(flags, action, ...)                                                                   \
	stop(flags, action, (const int[]){ __VA_ARGS__ }, sizeof((const int[]){ __VA_ARGS__ }) / sizeof(int))
#define KILL SECCOMP_RET_KILL_PROCESS
#define PINNING SYS_mlock, SYS_mlock2, SYS_munlock, SYS_ioctl

static long locked(void)
{
	char line[200];
	long kib = -1;
	FILE *file = fopen("/proc/self/status", "r");
	NEED(file != NULL);
	while (fgets(line, sizeof line, file))
		if (sscanf(line, "VmLck: %ld", &kib) == 1)
			break;
	fclose(file);
	return kib;
}

/* Says how much of new memory is pinned. */
static void *grow(void *who)
{
	long before = locked();
	char *p = anon(SIZE / PAGE);
	memset(p, 1, SIZE);
	say("%s: %ld KiB", (const char *)who, locked() - before);
	return NULL;
}

static void in_thread(void *(*run)(void *), void *with)
{
	pthread_t thread;
	NEED(pthread_create(&thread, NULL, run, with) == 0);
	NEED(pthread_join(thread, NULL) == 0);
}

static pthread_barrier_t both, worker_and_main;

static void *shut_in(void *stays)
{
	NEED(STOP(0, KILL, PINNING) == 0);
	pthread_barrier_wait(&both);
	if (stays)
		pause();
	return NULL;
}

static void *shut_in_later(void *stays)
{
	pthread_barrier_wait(&both);
	return shut_in(stays);
}

static void *refused(void *with)
{
	(void)with;
	NEED(STOP(0, SECCOMP_RET_ERRNO | EPERM, PINNING) == 0);
	char *p = anon(16);
	munmap(p, 16 * PAGE);
	return NULL;
}

/* A thread's filter is over that thread. */
static void ends(void)
{
	in_thread(refused, NULL);
	grow("after its end");
	pthread_t thread;
	pthread_barrier_init(&both, NULL, 2);
	NEED(pthread_create(&thread, NULL, shut_in, NULL) == 0);
	pthread_barrier_wait(&both);
	NEED(pthread_join(thread, NULL) == 0);
	grow("after another's");
	in_thread(grow, "a new thread");
	grow("and again");
}

static void *waits(void *with)
{
	munmap(anon(1), PAGE);
	pthread_barrier_wait(&worker_and_main);
	pthread_barrier_wait(&worker_and_main);
	return grow(with);
}

/* What a program asks the kernel for to see what it can do is no filter. */
static void probes(void)
{
	syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, NULL);
	pthread_t worker, other;
	pthread_barrier_init(&both, NULL, 2);
	pthread_barrier_init(&worker_and_main, NULL, 2);
	NEED(pthread_create(&worker, NULL, waits, "worker") == 0);
	pthread_barrier_wait(&worker_and_main);
	NEED(pthread_create(&other, NULL, shut_in, "stays") == 0);
	pthread_barrier_wait(&both);
	pthread_barrier_wait(&worker_and_main);
	NEED(pthread_join(worker, NULL) == 0);
	grow("main");
}

/* What is brought twice for all leaves nothing behind. */
static void twice(void)
{
	pthread_t other;
	NEED(STOP(SECCOMP_FILTER_FLAG_TSYNC, KILL, SYS_swapon) == 0);
	NEED(STOP(SECCOMP_FILTER_FLAG_TSYNC, KILL, SYS_swapon) == 0);
	pthread_barrier_init(&both, NULL, 2);
	NEED(pthread_create(&other, NULL, shut_in_later, "stays") == 0);
	pthread_barrier_wait(&both);
	pthread_barrier_wait(&both);
	grow("main");
}

static void *own(void *n)
{
	NEED(STOP(0, KILL, 1000 + (int)(long)n) == 0);
	return NULL;
}

/* Of more filters than there is place for is known what they have in common. */
static void each(void)
{
	for (long n = 0; n < 70; n++)
		in_thread(own, (void *)n);
	grow("main");
	in_thread(grow, "a new thread");
	for (int n = 0; n < 70; n++)
		NEED(STOP(0, KILL, 2000 + n) == 0);
	grow("under 70");
	NEED(STOP(0, KILL, PINNING) == 0);
	grow("under what stops pinning");
}

static void moves(int signal)
{
	(void)signal;
	char *p = anon(16);
	memset(p, 1, 16 * PAGE);
	munmap(p, 16 * PAGE);
}

/* A handler that changes memory while filters come. */
static void signals(unsigned flags)
{
	struct sigaction action = { .sa_handler = moves };
	int calls[90];
	for (int i = 0; i < 90; i++)
		calls[i] = 900 + i;
	sigaction(SIGALRM, &action, NULL);
	ualarm(200, 200);
	for (int i = 0; i < 3000; i++)
		(void)stop(flags, KILL, calls, 90);
	ualarm(0, 0);
	grow("main");
}

static void threads(const char *when)
{
	int n = 0;
	DIR *tasks = opendir("/proc/self/task");
	NEED(tasks != NULL);
	for (struct dirent *entry; (entry = readdir(tasks));)
		n += entry->d_name[0] != '.';
	closedir(tasks);
	say("%s: %d threads", when, n);
}

/* A child that has its parent's memory is not the parent, whoever says who it is. */
static void children(void)
{
	NEED(STOP(0, KILL, SYS_getpid) == 0);
	threads("before");
	pid_t pid = vfork();
	if (pid == 0) {
		syscall(SYS_unshare, CLONE_VM | CLONE_SIGHAND);
		_exit(0);
	}
	int status;
	NEED(waitpid(pid, &status, 0) == pid);
	threads("after a child of vfork");
}

/* A child of fork under a filter that kills who makes anything that has its descriptors. */
static void flags(void)
{
	struct sock_filter code[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_clone, 0, 3),
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[0])),
		BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, CLONE_FILES, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, KILL),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	install_filter(code, sizeof code / sizeof *code);
	int status;
	pid_t pid = fork();
	if (pid == 0)
		_exit(0);
	NEED(waitpid(pid, &status, 0) == pid);
	say("child: %x", (unsigned)status);
	threads("before");
}

/* Threads of the library's own go before a filter that they could not live under. */
static void for_all(void)
{
	threads("before");
	syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, NULL);
	NEED(STOP(SECCOMP_FILTER_FLAG_TSYNC, KILL, SYS_swapon) == 0);
	threads("under what lets them live");
	NEED(STOP(SECCOMP_FILTER_FLAG_TSYNC, KILL, SYS_restart_syscall) == 0);
	threads("under what does not");
}

/* What is said to be done is not. */
static void faked(void)
{
	NEED(STOP(0, SECCOMP_RET_ERRNO, SYS_openat) == 0);
	/* What fails is looked up. */
	char *p = anon(16);
	munmap(p + 4 * PAGE, 4 * PAGE);
	NEED(mprotect(p, 16 * PAGE, PROT_READ) != 0);
	say("standard input is %s", fcntl(0, F_GETFD) < 0 ? "closed" : "open");
}

int main(int count, char **args)
{
	NEED(count == 2);
	const struct {
		const char *name;
		void (*run)(void);
	} all[] = {
		{ "ends", ends },	  { "probes", probes }, { "twice", twice }, { "each", each },
		{ "children", children }, { "for_all", for_all }, { "faked", faked },
		{ "flags", flags },
	};
	for (size_t i = 0; i < sizeof all / sizeof *all; i++)
		if (strcmp(args[1], all[i].name) == 0)
			all[i].run();
	if (strcmp(args[1], "signals") == 0)
		signals(0);
	if (strcmp(args[1], "signals_for_all") == 0)
		signals(SECCOMP_FILTER_FLAG_TSYNC);
	fflush(stdout);
	_exit(0);
}
