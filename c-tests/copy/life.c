/* Proves: what process_vm_readv and process_vm_writev are served from is the peer's memory now: peers that die, execute, unmap in mid-copy or whose pid is another's are as the kernel has them; peers are given up, and none is inherited. */
/*
 * life WHAT, with REGALL_COPY=map,cma: unmaps, dies, executes, reused, many, forks, signals.
 * life forbidden: under a filter that forbids process_vm_*, with REGALL_COPY=auto.
 */
#include "../bridge/forbid.h"
#include "../bridge/peers.h"

#include <dirent.h>
#include <linux/sched.h>
#include <sched.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/time.h>

#define AREA (1ul << 20)
#define WHERE ((char *)0x220000000000)

static char *here;

static char *area(char with)
{
	int fd = memfd_create("life", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	NEED(fd >= 0 && ftruncate(fd, AREA) == 0 && fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK) == 0);
	char *p = mmap(WHERE, AREA, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0);
	NEED(p == WHERE);
	close(fd);
	memset(p, with, AREA);
	return p;
}

static int wait_for_end(void *unused)
{
	(void)unused;
	struct timespec most = { 100, 0 };
	return (int)syscall(SYS_nanosleep, &most, NULL);
}

static int owner(const char *with)
{
	char line[32];
	area(*with);
	char *own = anon(AREA / PAGE);
	memset(own, 'p', AREA);
	say("%#lx", (unsigned long)(uintptr_t)own);
	while (line_from(0, line, sizeof line)) {
		if (strcmp(line, "exec") == 0)
			execv("/proc/self/exe", (char *[]){ "life", "owner", "x", NULL });
		if (strcmp(line, "share") == 0) {
			static char stack[16384] __attribute__((aligned(16)));
			say("%d", clone(wait_for_end, stack + sizeof stack, CLONE_VM, NULL));
			continue;
		}
		if (strcmp(line, "turn") == 0) {
			/* A memory for a moment, full of its number; then none, then another. The
			 * number of the last one that is gone stands in what is ours alone. */
			for (uint64_t n = 1;; n++) {
				uint64_t *p = (uint64_t *)(void *)area(0);
				for (size_t i = 0; i < AREA / 8; i++)
					p[i] = n;
				munmap(WHERE, AREA);
				*(volatile uint64_t *)(void *)own = n;
			}
		}
		if (*line == 'w')
			say("%d", own[5]);
		else
			say("0");
	}
	return 0;
}

static ssize_t copy(bool put, pid_t pid, void *at, void *from, size_t bytes)
{
	struct iovec l = { at, bytes }, r = { from, bytes };
	errno = 0;
	return put ? process_vm_writev(pid, &l, 1, &r, 1, 0) : process_vm_readv(pid, &l, 1, &r, 1, 0);
}

static ssize_t get(pid_t pid, size_t bytes)
{
	return copy(false, pid, here, WHERE, bytes);
}

static struct other started(const char *with)
{
	struct other o = start_other(true, (char *[]){ "life", "owner", (char *)with, NULL });
	hear_number(&o);
	return o;
}

/* Windows on the peers' memory. */
static uint64_t mapped(void)
{
	FILE *f = fopen("/proc/self/maps", "r");
	char line[512];
	uint64_t n = 0;
	NEED(f);
	while (fgets(line, sizeof line, f))
		n += strstr(line, "memfd:life") != NULL;
	fclose(f);
	return n;
}

static size_t descriptors(void)
{
	size_t n = 0;
	DIR *d = opendir("/proc/self/fd");
	while (d && readdir(d))
		n++;
	if (d)
		closedir(d);
	return n;
}

static char own_word[8];

/* Bytes of one memory, whole pages of another, or none: never of a memory that was gone
 * before the call. */
static void unmaps(void)
{
	struct other o = start_other(true, (char *[]){ "life", "owner", "a", NULL });
	void *last = (void *)(uintptr_t)hear_number(&o);
	uint64_t gone = 0;
	IS(AREA, get(o.pid, AREA));
	HOLDS(mapped() > 0);
	uint64_t *words = (uint64_t *)(void *)here;
	memset(own_word, 0, 8);
	IS(8, copy(true, o.pid, own_word, last, 8));
	NEED(dprintf(o.to, "turn\n") > 0);
	uint64_t until = now_ns() + 3000000000u, good = 0, none = 0;
	while (now_ns() < until) {
		IS(8, copy(false, o.pid, &gone, last, 8));
		ssize_t n = get(o.pid, AREA);
		if (n < 0) {
			EXPECT(errno == EFAULT);
			none++;
			continue;
		}
		/* What is filled while it is copied is zeroes yet. */
		good++;
		HOLDS((size_t)n % PAGE == 0);
		size_t old = 0;
		for (ssize_t i = 0; i < n / 8; i++)
			/* (The first one of all was full of letters.) */
			old += words[i] != 0 && (words[i] <= gone || (gone && words[i] >> 56));
		IS(0, old);
	}
	HOLDS(good > 0 && none > 0);
	end_other(&o);
}

static void dies(void)
{
	for (int n = 0; n < 40; n++) {
		struct other o = started("d");
		IS(AREA, get(o.pid, AREA));
		pid_t killer = fork();
		if (killer == 0) {
			pause_us((long)(n * 50));
			kill(o.pid, SIGKILL);
			_exit(0);
		}
		ssize_t got;
		while ((got = get(o.pid, AREA)) == (ssize_t)AREA)
			HOLDS(all_are(here, AREA, 'd'));
		/* In its last moments its memory goes bit by bit. */
		HOLDS(got >= 0 || errno == ESRCH || errno == EFAULT);
		waitpid(o.pid, NULL, 0);
		/* From when we know that it is gone on, there is nothing of it. */
		HOLDS(fails_with(ESRCH, get(o.pid, 1)));
		HOLDS(fails_with(ESRCH, get(o.pid, AREA)));
		IS(0, mapped());
		waitpid(killer, NULL, 0);
		close(o.to);
		close(o.from);
	}
	/* Known at once, not some time later. */
	for (int n = 0; n < 40; n++) {
		struct other o = started("d");
		IS(AREA, get(o.pid, AREA));
		kill(o.pid, SIGKILL);
		waitpid(o.pid, NULL, 0);
		HOLDS(fails_with(ESRCH, get(o.pid, AREA)));
		close(o.to);
		close(o.from);
	}
}

static void executes(void)
{
	struct other o = started("a");
	for (int n = 0; n < 20; n++) {
		IS(AREA, get(o.pid, AREA));
		NEED(dprintf(o.to, "exec\n") > 0);
		hear_number(&o);
		IS(AREA, get(o.pid, AREA));
		HOLDS(all_are(here, AREA, 'x'));
	}
	end_other(&o);
}

/* The pid of one that is gone, for one that has other memory. The old memory may live on, in a
 * process that shares it. */
static void reused(void)
{
	for (int n = 0; n < 20; n++) {
		struct other o = started("a");
		pid_t pid = o.pid;
		IS(AREA, get(pid, AREA));
		pid_t with_its_memory = n % 2 ? (pid_t)ask(&o, "share") : 0;
		end_other(&o);
		int there[2], back[2];
		NEED(pipe(there) == 0 && pipe(back) == 0);
		struct clone_args args = { .exit_signal = SIGCHLD, .set_tid = (uintptr_t)&pid, .set_tid_size = 1 };
		pid_t child = (pid_t)syscall(SYS_clone3, &args, sizeof args);
		if (child < 0) {
			if (with_its_memory)
				kill(with_its_memory, SIGKILL);
			say("no choice of pids");
			_exit(77);
		}
		if (child == 0) {
			dup2(there[0], 0);
			dup2(back[1], 1);
			close(there[1]);
			setenv("REGALL", "1", 1);
			execv("/proc/self/exe", (char *[]){ "life", "owner", "b", NULL });
			_exit(91);
		}
		struct other second = { pid, there[1], back[0] };
		close(back[1]);
		hear_number(&second);
		IS(AREA, get(pid, AREA));
		HOLDS(all_are(here, AREA, 'b'));
		end_other(&second);
		if (with_its_memory)
			kill(with_its_memory, SIGKILL);
		close(there[0]);
	}
}

/* More peers than are kept. */
static void many(void)
{
	enum { PEERS = 160 };
	static struct other all[PEERS];
	size_t before = descriptors();
	for (int n = 0; n < PEERS; n++) {
		all[n] = started((char[]){ (char)('a' + n % 26), 0 });
		IS(AREA, get(all[n].pid, AREA));
		HOLDS(all_are(here, AREA, (char)('a' + n % 26)));
	}
	HOLDS(mapped() <= 128);
	HOLDS(descriptors() <= before + 2 * PEERS + 128);
	for (int n = 0; n < PEERS; n++) {
		IS(AREA, get(all[n].pid, AREA));
		HOLDS(all_are(here, AREA, (char)('a' + n % 26)));
	}
	HOLDS(mapped() <= 128);
	for (int n = 0; n < PEERS; n++)
		end_other(&all[n]);
	/* Somebody else's call is enough for those that are gone to go. */
	struct other o = started("z");
	pause_us(1100000);
	for (int n = 0; n < 40; n++)
		IS(AREA, get(o.pid, AREA));
	HOLDS(mapped() <= 1);
	HOLDS(descriptors() <= before + 4);
	end_other(&o);
}

static void in_the_child(void *other)
{
	struct other *o = other;
	IS(0, mapped());
	IS(AREA, get(o->pid, AREA));
	HOLDS(mapped() > 0 && all_are(here, AREA, 'f'));
	if (wrong)
		_exit(1);
}

static void forks(void)
{
	struct other o = started("f");
	IS(AREA, get(o.pid, AREA));
	HOLDS(mapped() > 0);
	for (int n = 0; n < 5; n++) {
		int status = -1;
		pid_t pid = fork();
		if (pid == 0) {
			in_the_child(&o);
			_exit(0);
		}
		waitpid(pid, &status, 0);
		IS(0, status);
	}
	HOLDS(mapped() > 0);
	IS(AREA, get(o.pid, AREA));
	/* On its parent's stack and in its memory. */
	int status = -1;
	volatile ssize_t got = 0;
	pid_t pid = vfork();
	if (pid == 0) {
		got = get(o.pid, AREA);
		_exit(0);
	}
	waitpid(pid, &status, 0);
	IS(AREA, got);
	end_other(&o);
}

static volatile pid_t of_handler;
static volatile long handled, failed_there;
static char *there;

static void on_alarm(int signal)
{
	(void)signal;
	int e = errno;
	handled++;
	failed_there += copy(false, of_handler, there, WHERE, AREA / 4) != (ssize_t)(AREA / 4);
	errno = e;
}

static void signals(void)
{
	struct other o = started("s");
	of_handler = o.pid;
	there = anon(AREA / PAGE);
	struct sigaction act = { .sa_handler = on_alarm, .sa_flags = SA_RESTART };
	NEED(sigaction(SIGALRM, &act, NULL) == 0);
	struct itimerval often = { { 0, 300 }, { 0, 300 } }, never = { { 0, 0 }, { 0, 0 } };
	IS(AREA, get(o.pid, AREA));
	NEED(setitimer(ITIMER_REAL, &often, NULL) == 0);
	uint64_t until = now_ns() + 2000000000u;
	while (now_ns() < until)
		for (size_t bytes = 1; bytes <= AREA; bytes *= 4)
			IS(bytes, get(o.pid, bytes));
	NEED(setitimer(ITIMER_REAL, &never, NULL) == 0);
	HOLDS(handled > 100);
	IS(0, failed_there);
	end_other(&o);
}

static void forbidden(void)
{
	forbid_process_vm();
	struct other o = start_other(true, (char *[]){ "life", "owner", "q", NULL });
	char *own = (char *)(uintptr_t)hear_number(&o);
	struct iovec none[1] = { { here, 0 } };
	/* Libraries try it on themselves, and with nothing. */
	char from[8] = "itself", to[8] = "";
	IS(8, copy(false, getpid(), to, from, 8));
	HOLDS(strcmp(to, "itself") == 0);
	IS(8, copy(true, getpid(), (char[8]){ "back" }, to, 8));
	HOLDS(strcmp(to, "back") == 0);
	IS(0, process_vm_readv(o.pid, none, 1, none, 1, 0));
	/* What can be mapped, what can't, both ways. */
	IS(AREA, get(o.pid, AREA));
	HOLDS(all_are(here, AREA, 'q'));
	HOLDS(mapped() > 0);
	IS(AREA, copy(false, o.pid, here, own, AREA));
	HOLDS(all_are(here, AREA, 'p'));
	memset(here, 'w', AREA);
	IS(AREA, copy(true, o.pid, here, own, AREA));
	IS('w', ask(&o, "w"));
	/* As far as there is something, and then as the kernel says. */
	IS(PAGE, copy(false, o.pid, here, WHERE + AREA - PAGE, 2 * PAGE));
	HOLDS(fails_with(EPERM, copy(false, o.pid, here, WHERE + AREA, 1)));
	HOLDS(fails_with(EPERM, copy(false, 1, here, WHERE, 1)));
	HOLDS(fails_with(EPERM, process_vm_readv(o.pid, none, 1, none, 1, 7)));
	char *hole = anon(3);
	NEED(munmap(hole + PAGE, PAGE) == 0);
	IS(PAGE, copy(false, o.pid, hole, WHERE, 2 * PAGE));
	HOLDS(copy(false, o.pid, hole + PAGE, own, 16) < 0);
	/* One that runs without the shim. */
	struct other bare = start_other(false, (char *[]){ "life", "owner", "n", NULL });
	hear_number(&bare);
	for (int n = 0; n < 100; n++)
		HOLDS(fails_with(EPERM, get(bare.pid, AREA)));
	end_other(&bare);
	kill(o.pid, SIGKILL);
	waitpid(o.pid, NULL, 0);
	HOLDS(get(o.pid, AREA) < 0);
}

int main(int argc, char **argv)
{
	static const struct {
		const char *name;
		void (*run)(void);
	} all[] = { { "unmaps", unmaps },   { "dies", dies },	{ "executes", executes },
		    { "reused", reused },   { "many", many },	{ "forks", forks },
		    { "signals", signals }, { "forbidden", forbidden } };
	no_longer_than(100);
	if (argc == 3)
		return owner(argv[2]);
	here = anon(AREA / PAGE);
	for (size_t n = 0; n < sizeof all / sizeof *all; n++)
		if (argc > 1 && strcmp(argv[1], all[n].name) == 0)
			all[n].run();
	return verdict();
}
