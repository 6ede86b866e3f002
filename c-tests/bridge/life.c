/* Proves: a peer that dies, stops, executes another program, forks or has its pid taken by another is noticed; no byte of the other is delivered, nothing hangs, nothing is left behind. */
/*
 * life WHAT [times], where WHAT is one of the names at the end. `life owner` is the other
 * process: memory at a fixed place that is filled with a number, its image's.
 */
#include <dirent.h>
#include <linux/sched.h>
#include <pthread.h>
#include <sched.h>
#include <sys/personality.h>
#include <sys/prctl.h>
#include "peers.h"

#define SIZE (16 * PAGE)

/* The same address in every image as long as addresses are not randomised. */
static char marker[SIZE] __attribute__((aligned(4096)));

/* ---- the owner ---- */

static void tell(void)
{
	say("%lu", (unsigned long)(uintptr_t)marker);
}

static int wait_for_end(void *unused)
{
	(void)unused;
	struct timespec most = { 100, 0 };
	return (int)syscall(SYS_nanosleep, &most, NULL);
}

/* owner NUMBER: tells where its memory is and does as it is told. */
static int owner(const char *number)
{
	char line[64];
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	memset(marker, atoi(number), SIZE);
	tell();
	while (line_from(0, line, sizeof line)) {
		char *const next[] = { "life", "owner", "2", NULL };
		if (strcmp(line, "exec plain") == 0) {
			unsetenv("LD_PRELOAD");
			execv("/proc/self/exe", next);
		} else if (strcmp(line, "exec") == 0) {
			execv("/proc/self/exe", next);
		} else if (strcmp(line, "share") == 0) {
			static char stack[16384] __attribute__((aligned(16)));
			say("%d", clone(wait_for_end, stack + sizeof stack, CLONE_VM, NULL));
		} else if (strcmp(line, "fork") == 0) {
			pid_t pid = fork();
			if (pid != 0) {
				say("%d", pid);
				continue;
			}
			/* Registers what it has inherited, and lives on its own. */
			memset(marker, 3, SIZE);
			regall_opt_out(anon(1), PAGE);
			pause();
			_exit(0);
		}
	}
	return 0;
}

static struct other start_owner(bool shim)
{
	char *const argv[] = { "life", "owner", "1", NULL };
	return start_other(shim, argv);
}

/* ---- the survivor's own household ---- */

static int descriptors(void)
{
	int n = 0;
	DIR *d = opendir("/proc/self/fd");
	NEED(d);
	while (readdir(d))
		n++;
	closedir(d);
	return n;
}

static long mapped_kb(void)
{
	static char text[4096];
	int fd = open("/proc/self/status", O_RDONLY);
	ssize_t n = read(fd, text, sizeof text - 1);
	NEED(n > 0);
	close(fd);
	text[n] = 0;
	char *size = strstr(text, "VmSize:");
	return size ? atol(size + 7) : 0;
}

/* Directories of processes that are gone; the next to start has swept them up. */
static int left_behind(void)
{
	char path[64];
	struct dirent *e;
	int n = 0;
	snprintf(path, sizeof path, "/dev/shm/regall-%d", (int)geteuid());
	DIR *d = opendir(path);
	while (d && (e = readdir(d))) {
		int pid = atoi(e->d_name);
		if (pid > 0 && kill(pid, 0) < 0 && errno == ESRCH)
			n++;
	}
	if (d)
		closedir(d);
	return n;
}

static void *nothing(void *arg)
{
	return arg;
}

static struct household {
	int descriptors, left;
	long kb;
} household(void)
{
	/* A thread's stack is kept for the next one. */
	pthread_t thread;
	NEED(pthread_create(&thread, NULL, nothing, NULL) == 0 && pthread_join(thread, NULL) == 0);
	/* Somebody starts, and sweeps. */
	struct other o = start_owner(true);
	hear_number(&o);
	struct household h = { descriptors(), left_behind(), mapped_kb() };
	end_other(&o);
	return h;
}

static void nothing_left(const struct household *before)
{
	struct household now = household();
	IS(before->descriptors, now.descriptors);
	HOLDS(now.left <= before->left + 1); /* the one just ended */
	if (now.kb > before->kb + 100) {
		say("mapped: %ld KiB, then %ld", before->kb, now.kb);
		wrong++;
	}
}

/* ---- what happens ---- */

static void *kill_soon(void *arg)
{
	pause_us((long)draw(1500));
	kill(*(pid_t *)arg, SIGKILL);
	return NULL;
}

/* Gets until it fails. What came is of image 1; the error. */
static int get_until_error(regall_peer *peer, uint64_t at, size_t len, uint64_t deadline_ms)
{
	static char buffer[SIZE];
	uint64_t deadline = now_ns() + deadline_ms * 1000000;
	for (;;) {
		struct regall_done done;
		memset(buffer, 0x5a, len);
		int r = regall_get(peer, buffer, at + draw(SIZE - len + 1), len, &done);
		if (!all_are(buffer, done.bytes, 1)) {
			say("bytes of another image: %d, after %d", buffer[0], r);
			wrong++;
			return -EIO;
		}
		if (r != 0)
			return r;
		if (now_ns() > deadline) {
			say("it never ended");
			wrong++;
			return 0;
		}
	}
}

static void kill_owner(long times)
{
	struct household before = household();
	for (long n = 0; n < times; n++) {
		struct other o = start_owner(true);
		uint64_t at = hear_number(&o);
		regall_peer *peer = open_peer(o.pid, n % 2 ? REGALL_PEER_CHECK_ALWAYS : 0);
		pthread_t killer;
		NEED(pthread_create(&killer, NULL, kill_soon, &o.pid) == 0);
		/* While it ends, its memory goes first. */
		int r = get_until_error(peer, at, n % 3 ? 8 : 3 * PAGE, 5000);
		HOLDS(r == -ESRCH || r == -ESTALE);
		pthread_join(killer, NULL);
		siginfo_t info;
		NEED(waitid(P_PID, (id_t)o.pid, &info, WEXITED | WNOWAIT) == 0);
		/* A zombie. */
		IS(-ESRCH, regall_peer_check(peer));
		IS(-ESRCH, get_until_error(peer, at, 8, 1000));
		IS(-ESRCH, get_until_error(peer, at, 2 * PAGE, 1000));
		regall_peer *other;
		IS(-ESRCH, regall_peer_open(o.pid, 0, 0, &other));
		end_other(&o);
		IS(-ESRCH, regall_peer_check(peer));
		IS(-ESRCH, get_until_error(peer, at, 8, 1000));
		IS(-ESRCH, regall_put(peer, marker, at, PAGE, NULL));
		IS(0, regall_peer_close(peer));
	}
	nothing_left(&before);
}

/* reader PID ADDRESS: gets until it is killed. */
static int reader(pid_t pid, uint64_t at)
{
	static char buffer[SIZE];
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	say("0");
	for (;;) {
		regall_peer *peer = open_peer(pid, 0);
		for (int n = 0; n < 20; n++) {
			NEED(regall_get(peer, buffer, at, SIZE, NULL) == 0);
			NEED(regall_put(peer, buffer, at, PAGE, NULL) == 0);
		}
		regall_peer_close(peer);
	}
}

static void kill_reader(long times)
{
	char pid[16], at[32];
	memset(marker, 1, SIZE);
	snprintf(pid, sizeof pid, "%d", (int)getpid());
	snprintf(at, sizeof at, "%lu", (unsigned long)(uintptr_t)marker);
	struct household before = household();
	for (long n = 0; n < times; n++) {
		char *const argv[] = { "life", "reader", pid, at, NULL };
		struct other o = start_other(n % 2, argv);
		if (n % 2 == 0) {
			/* Without the shim it can't; with it inert it can. */
			end_other(&o);
			setenv("REGALL", "0", 1);
			o = start_other(true, argv);
		}
		if (n % 4)
			hear_number(&o);
		pause_us((long)draw(1500));
		end_other(&o);
	}
	HOLDS(all_are(marker, SIZE, 1));
	nothing_left(&before);
}

static void stopped(long times)
{
	(void)times;
	struct other o = start_owner(true);
	uint64_t at = hear_number(&o);
	char buffer[SIZE];
	NEED(kill(o.pid, SIGSTOP) == 0);
	int status;
	NEED(waitpid(o.pid, &status, WUNTRACED) == o.pid && WIFSTOPPED(status));
	regall_peer *peer = open_peer(o.pid, 0);
	IS(0, regall_get(peer, buffer, at, SIZE, NULL));
	HOLDS(all_are(buffer, SIZE, 1));
	IS(0, regall_put(peer, buffer, at, SIZE, NULL));
	IS(-EFAULT, regall_get(peer, buffer, 4096, 1, NULL));
	IS(0, regall_peer_check(peer));
	regall_peer_close(peer);
	end_other(&o);
}

/* Another program in the same process, at the same addresses, that has the shim or not. */
static void executes(long times)
{
	personality(ADDR_NO_RANDOMIZE);
	struct household before = household();
	for (long n = 0; n < times; n++) {
		struct other o = start_owner(true);
		uint64_t at = hear_number(&o);
		regall_peer *peer = open_peer(o.pid, n % 2 ? REGALL_PEER_CHECK_ALWAYS : 0);
		IS(0, regall_get(peer, &(char){ 0 }, at, 1, NULL));
		NEED(dprintf(o.to, "%s\n", n % 4 < 2 ? "exec" : "exec plain") > 0);
		int r = get_until_error(peer, at, n % 3 == 0 ? 8 : n % 3 == 1 ? 2 * PAGE : SIZE, 5000);
		HOLDS(r == -ESTALE);
		IS(at, hear_number(&o)); /* or the addresses are others, and it shows nothing */
		IS(-ESTALE, regall_peer_check(peer));
		IS(-ESTALE, get_until_error(peer, at, 8, 1000));
		IS(-ESTALE, get_until_error(peer, at, 2 * PAGE, 1000));
		struct regall_done done;
		IS(-ESTALE, regall_put(peer, marker, at, 8, &done));
		IS(0, done.bytes);
		IS(0, regall_peer_close(peer));
		int again = regall_peer_open(o.pid, 0, 0, &peer);
		IS(n % 4 < 2 ? 0 : -ENOENT, again);
		if (again == 0) {
			char byte = 0;
			IS(0, regall_get(peer, &byte, at, 1, NULL));
			IS(2, byte);
			regall_peer_close(peer);
		}
		end_other(&o);
	}
	nothing_left(&before);
}

static void forks(long times)
{
	(void)times;
	struct other o = start_owner(true);
	uint64_t at = hear_number(&o);
	char byte = 0;
	regall_peer *parent = open_peer(o.pid, 0), *child = NULL;
	pid_t pid = (pid_t)ask(&o, "fork");
	IS(0, regall_get(parent, &byte, at, 1, NULL));
	IS(1, byte);
	/* The child comes to be a peer of its own; its memory is another. */
	int r = -ENOENT;
	for (int n = 0; n < 2000 && byte != 3; n++) {
		if (!child)
			r = regall_peer_open(pid, 0, 0, &child);
		if (child)
			r = regall_get(child, &byte, at, 1, NULL);
		pause_us(1000);
	}
	IS(0, r);
	IS(3, byte);
	IS(0, regall_get(parent, &byte, at, 1, NULL));
	IS(1, byte);
	kill(pid, SIGKILL);
	for (int n = 0; n < 2000 && regall_peer_check(child) != -ESRCH; n++)
		pause_us(1000);
	IS(-ESRCH, regall_get(child, &byte, at, 1, NULL));
	IS(0, regall_get(parent, &byte, at, 1, NULL));
	regall_peer_close(child);
	regall_peer_close(parent);
	end_other(&o);
}

/* A process of that pid, which must be free; 0 in the child. */
static pid_t take_pid(pid_t pid)
{
	struct clone_args args = { .exit_signal = SIGCHLD, .set_tid = (uintptr_t)&pid, .set_tid_size = 1 };
	return (pid_t)syscall(SYS_clone3, &args, sizeof args);
}

static void reused(long times)
{
	personality(ADDR_NO_RANDOMIZE);
	struct household before = household();
	for (long n = 0; n < times; n++) {
		struct other o = start_owner(true);
		uint64_t at = hear_number(&o);
		regall_peer *peer = open_peer(o.pid, n % 2 ? REGALL_PEER_CHECK_ALWAYS : 0);
		char buffer[2 * PAGE] = { 0 };
		IS(0, regall_get(peer, buffer, at, sizeof buffer, NULL));
		HOLDS(all_are(buffer, sizeof buffer, 1));
		/* Its memory may live on, in a process that shares it. */
		pid_t with_its_memory = n % 5 < 2 ? (pid_t)ask(&o, "share") : 0;
		end_other(&o);
		pause_us(20000); /* start times have a hundredth of a second */
		int back[2];
		NEED(pipe2(back, O_CLOEXEC) == 0);
		pid_t pid = take_pid(o.pid);
		if (pid < 0 && (errno == EPERM || errno == ENOSYS || errno == EINVAL)) {
			say("SKIPPED: a process can't be given a certain pid here: %s", strerrorname_np(errno));
			if (with_its_memory)
				kill(with_its_memory, SIGKILL);
			return;
		}
		if (pid < 0 && errno == EEXIST) {
			if (with_its_memory)
				kill(with_its_memory, SIGKILL);
			regall_peer_close(peer);
			continue; /* somebody else was given it */
		}
		NEED(pid >= 0);
		if (pid == 0) {
			int quiet = open("/dev/null", O_RDWR);
			char *const argv[] = { "life", "owner", "2", NULL };
			int wait[2];
			if (pipe(wait) < 0 || dup2(wait[0], 0) < 0 || dup2(back[1], 1) < 0 || quiet < 0)
				_exit(91);
			if (n % 4 < 2)
				unsetenv("LD_PRELOAD");
			else
				setenv("REGALL", "1", 1);
			execv("/proc/self/exe", argv);
			_exit(91);
		}
		IS(o.pid, pid);
		close(back[1]);
		struct other heir = { pid, -1, back[0] };
		IS(at, hear_number(&heir));
		size_t len = n % 3 ? 8 : sizeof buffer;
		struct regall_done done;
		memset(buffer, 0, sizeof buffer);
		IS(-ESRCH, regall_get(peer, buffer, at, len, &done));
		IS(0, done.bytes);
		IS(-ESRCH, regall_put(peer, buffer, at, len, &done));
		if (with_its_memory)
			kill(with_its_memory, SIGKILL);
		IS(0, done.bytes);
		IS(-ESRCH, regall_peer_check(peer));
		regall_peer_close(peer);
		kill(pid, SIGKILL);
		waitpid(pid, NULL, 0);
		close(back[0]);
	}
	nothing_left(&before);
}

/* Opened and closed, there is nothing left of it. */
static void open_close(long times)
{
	struct other o = start_owner(true);
	uint64_t at = hear_number(&o);
	static char buffer[SIZE];
	regall_peer_close(open_peer(o.pid, 0));
	int before = descriptors();
	long kb = mapped_kb();
	for (long n = 0; n < times; n++) {
		regall_peer *peer = open_peer(o.pid, 0);
		IS(0, regall_get(peer, buffer, at, SIZE, NULL));
		IS(-EFAULT, regall_get(peer, buffer, 4096, 1, NULL));
		IS(0, regall_peer_close(peer));
		/* And what fails leaves nothing, either. */
		regall_peer *none;
		IS(-ESRCH, regall_peer_open(o.pid, 1, 0, &none));
		IS(-ENOENT, regall_peer_open(getppid(), 0, 0, &none));
	}
	IS(before, descriptors());
	HOLDS(mapped_kb() <= kb + 64);
	end_other(&o);
}

static regall_peer *common;
static uint64_t common_at;
static volatile bool over;

static void *get_on_and_on(void *arg)
{
	char buffer[64];
	(void)arg;
	while (!over) {
		regall_get(common, buffer, common_at, sizeof buffer, NULL);
		regall_get(common, buffer, 4096, 1, NULL); /* looks the whole directory through */
	}
	return NULL;
}

/* A child of fork uses its parent's peer, whatever the parent's threads did at the time. */
static void child_of_fork(long times)
{
	struct other o = start_owner(true);
	common_at = hear_number(&o);
	common = open_peer(o.pid, 0);
	pthread_t threads[2];
	for (int n = 0; n < 2; n++)
		NEED(pthread_create(&threads[n], NULL, get_on_and_on, NULL) == 0);
	for (long n = 0; n < times; n++) {
		pid_t pid = fork();
		NEED(pid >= 0);
		if (pid == 0) {
			char byte = 0;
			alarm(10);
			int r = regall_get(common, &byte, common_at, 1, NULL);
			_exit(r == 0 && byte == 1 ? 0 : 1);
		}
		int status;
		NEED(waitpid(pid, &status, 0) == pid);
		if (status != 0) {
			say("child %ld of fork: status %#x", n, (unsigned)status);
			wrong++;
			break;
		}
	}
	over = true;
	for (int n = 0; n < 2; n++)
		pthread_join(threads[n], NULL);
	regall_peer_close(common);
	end_other(&o);
}

int main(int argc, char **argv)
{
	static const struct {
		const char *name;
		void (*f)(long);
	} ALL[] = {
		{ "kill-owner", kill_owner }, { "kill-reader", kill_reader }, { "stop", stopped },
		{ "exec", executes },	      { "fork", forks },	      { "reuse", reused },
		{ "open-close", open_close }, { "child", child_of_fork },
	};
	NEED(argc > 1);
	if (strcmp(argv[1], "owner") == 0)
		return owner(argv[2]);
	if (strcmp(argv[1], "reader") == 0)
		return reader(atoi(argv[2]), strtoul(argv[3], NULL, 10));
	no_longer_than(120);
	seed_of_draws += now_ns();
	for (size_t i = 0; i < sizeof ALL / sizeof *ALL; i++)
		if (strcmp(argv[1], ALL[i].name) == 0)
			ALL[i].f(argc > 2 ? atol(argv[2]) : 200);
	return verdict();
}
