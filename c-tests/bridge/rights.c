/* Proves: by regall a process reaches no other that the kernel's rules on credentials keep it from; what gives a user or capabilities up lends nothing any more. */
/*
 * rights reach HOW: as root, has an owner become another user as HOW says and fork, and that
 *   user read and write it by every way that there is. Nothing may come of it, but for `user`.
 * rights ends CALL: a process whose helper runs makes the call: then it has none, at once.
 * rights stays: it has one still after calls that change nothing.
 * rights filtered: the change itself is all that a process under a filter is seen to do.
 * rights unshares: threads leave the table of descriptors, where nothing of the library's stays.
 * rights stands: of a program that lends, nothing stands in the folder once it has executed one
 *   that does not.
 * rights yama [any]: where kernel.yama.ptrace_scope is 1, the library copies between processes
 *   of one user, and others stay kept apart, unless REGALL_PTRACER=any.
 * rights namespaces: an owner that is root lends nothing to one in a user namespace of its own.
 */
#include "../filter.h"
#include "peers.h"

#include <dirent.h>
#include <linux/capability.h>
#include <pthread.h>
#include <sched.h>
#include <sys/fsuid.h>
#include <sys/prctl.h>

#pragma weak regall_box_fd

#define USER 54321
#define OTHER 54322
#define SECRET 0x5ec7e7

static struct __user_cap_data_struct sets[2];

static void capabilities(uint64_t effective, uint64_t permitted, uint64_t inheritable)
{
	struct __user_cap_header_struct head = { _LINUX_CAPABILITY_VERSION_3, 0 };
	for (int n = 0; n < 2; n++)
		sets[n] = (struct __user_cap_data_struct){ (unsigned)(effective >> 32 * n),
							   (unsigned)(permitted >> 32 * n),
							   (unsigned)(inheritable >> 32 * n) };
	NEED(syscall(SYS_capset, &head, sets) == 0);
}

#define OVERRIDE (1ul << CAP_DAC_OVERRIDE)

/* Becomes the user, and keeps what it may keep of a capability. */
static void keeping(uint64_t kept)
{
	NEED(prctl(PR_SET_KEEPCAPS, 1) == 0);
	NEED(setresgid(USER, USER, USER) == 0 && setresuid(USER, USER, USER) == 0);
	capabilities(kept, kept, kept);
}

/* ---- owners ---- */

static uint64_t *secret;

static int owns(void)
{
	secret = (uint64_t *)(void *)anon(1);
	*secret = SECRET;
	say("%d %#lx", getpid(), (unsigned long)(uintptr_t)secret);
	char line[64];
	while (line_from(0, line, sizeof line))
		say("%lx", (unsigned long)*secret);
	return 0;
}

/* The same in a child. */
static int forked(void)
{
	pid_t pid = fork();
	NEED(pid >= 0);
	if (pid == 0)
		_exit(owns());
	int status = -1;
	NEED(waitpid(pid, &status, 0) == pid);
	return WIFEXITED(status) ? WEXITSTATUS(status) : 90;
}

static int executed(void)
{
	execl("/proc/self/exe", "rights", "owns", (char *)NULL);
	return 91;
}

static void without_attaching(void)
{
	FILTER_CALLS(SECCOMP_RET_ERRNO | EPERM, SYS_process_vm_readv, SYS_process_vm_writev);
}

static int owner(const char *how)
{
	if (strcmp(how, "user") == 0 || strcmp(how, "group") == 0) {
		/* The control: a user like any other, whom the filter alone keeps from others. */
		gid_t group = how[0] == 'u' ? USER : OTHER;
		NEED(setresgid(group, group, group) == 0 && setresuid(USER, USER, USER) == 0);
		without_attaching();
		return executed();
	}
	if (strcmp(how, "root") == 0) {
		without_attaching();
		return executed();
	}
	if (strcmp(how, "ambient") == 0) {
		keeping(OVERRIDE);
		NEED(prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE, CAP_DAC_OVERRIDE, 0, 0) == 0);
		without_attaching();
		return executed();
	}
	if (strcmp(how, "yama") == 0) {
		NEED(setresgid(USER, USER, USER) == 0 && setresuid(USER, USER, USER) == 0);
		return executed();
	}
	/* From here on the library was there before. */
	if (strcmp(how, "seteuid") == 0)
		NEED(setegid(USER) == 0 && seteuid(USER) == 0);
	else if (strcmp(how, "saved") == 0)
		NEED(setresgid(USER, USER, USER) == 0 && setresuid(USER, USER, 0) == 0);
	else if (strcmp(how, "real") == 0)
		NEED(setresgid(USER, USER, USER) == 0 && setresuid(0, USER, USER) == 0);
	else if (strcmp(how, "setuid") == 0)
		NEED(setgid(USER) == 0 && setuid(USER) == 0);
	else if (strcmp(how, "raw") == 0)
		NEED(syscall(SYS_setgid, USER) == 0 && syscall(SYS_setuid, USER) == 0);
	else if (strcmp(how, "files") == 0) {
		setfsgid(USER);
		setfsuid(USER);
	} else if (strcmp(how, "kept") == 0)
		keeping(OVERRIDE);
	else
		NEED(!"a way");
	return forked();
}

/* ---- who wants to reach them ---- */

/* What comes of `regall WHAT PID [ADDRESS 8]`. */
static int by_command(const char *what, const char *pid, const char *at)
{
	const char *command = getenv("COMMAND");
	NEED(command);
	pid_t child = fork();
	NEED(child >= 0);
	if (child == 0) {
		int null = open("/dev/null", O_WRONLY);
		dup2(null, 1);
		dup2(null, 2);
		execl(command, command, what, pid, at, "8", (char *)NULL);
		_exit(127);
	}
	int status = -1;
	NEED(waitpid(child, &status, 0) == child);
	NEED(WIFEXITED(status) && WEXITSTATUS(status) != 127);
	return WEXITSTATUS(status);
}

static int attack(const char *of, const char *at, bool filtered)
{
	pid_t pid = atoi(of);
	uint64_t there = strtoull(at, NULL, 0), got = 0, put = 666, reached = 0;
	/* So that nothing but what the library does is left. */
	if (filtered)
		without_attaching();
	struct iovec own = { &got, 8 }, gives = { &put, 8 }, theirs = { (void *)(uintptr_t)there, 8 };
	reached |= 1 * (process_vm_readv(pid, &own, 1, &theirs, 1, 0) == 8);
	reached |= 2 * (process_vm_writev(pid, &gives, 1, &theirs, 1, 0) == 8);
	regall_peer *peer = NULL;
	if (regall_peer_open && regall_peer_open(pid, 0, 0, &peer) == 0) {
		reached |= 4 * (regall_get(peer, &got, there, 8, NULL) == 0);
		reached |= 8 * (regall_put(peer, &put, there, 8, NULL) == 0);
		reached |= 32;
	}
	reached |= 16 * (by_command("peek", of, at) == 0);
	say("%lu", (unsigned long)reached);
	return 0;
}

/* Runs this program as the user, and hears a number from it. */
static uint64_t as_user(bool shim, char *const argv[])
{
	int back[2];
	NEED(pipe2(back, O_CLOEXEC) == 0);
	pid_t pid = fork();
	NEED(pid >= 0);
	if (pid == 0) {
		NEED(setresgid(USER, USER, USER) == 0 && setresuid(USER, USER, USER) == 0);
		NEED(dup2(back[1], 1) == 1);
		if (!shim)
			unsetenv("LD_PRELOAD");
		execv("/proc/self/exe", argv);
		_exit(91);
	}
	close(back[1]);
	char line[64] = "";
	NEED(line_from(back[0], line, sizeof line));
	close(back[0]);
	NEED(waitpid(pid, NULL, 0) == pid);
	return strtoull(line, NULL, 0);
}

static int reach(const char *how)
{
	char line[64], pid[16], at[32];
	struct other o = start_other(true, (char *[]){ "rights", "owner", (char *)(uintptr_t)how, NULL });
	hear(&o, line, sizeof line);
	NEED(sscanf(line, "%15s %31s", pid, at) == 2);
	uint64_t reached = as_user(true, (char *[]){ "rights", "attack", pid, at, NULL });
	NEED(dprintf(o.to, "?\n") > 0);
	hear(&o, line, sizeof line);
	bool active = regall_active && regall_active();
	if (strcmp(how, "user") == 0) {
		/* All ways, or what was tried here proves nothing. */
		IS(active ? 63 : 0, reached);
	} else {
		/* Of what a group keeps apart, the directory is not: its folder is the user's. */
		IS(active && strcmp(how, "group") == 0 ? 32 : 0, reached);
		IS(SECRET, strtoull(line, NULL, 16));
	}
	/* Root sees what there is. */
	if (active)
		IS(0, by_command("verify", pid, NULL));
	kill(atoi(pid), SIGKILL);
	end_other(&o);
	return verdict();
}

static int yama(bool any)
{
	char line[64], pid[16], at[32];
	struct other o = start_other(true, (char *[]){ "rights", "owner", "yama", NULL });
	hear(&o, line, sizeof line);
	NEED(sscanf(line, "%15s %31s", pid, at) == 2);
	bool active = regall_active && regall_active();
	char *const open[] = { "rights", "attack", pid, at, "open", NULL };
	/* Others, by the kernel's calls; then its peers. */
	IS(any ? 3 : 0, as_user(false, open) & 3);
	IS(active ? 63 : 0, as_user(true, open));
	end_other(&o);
	return verdict();
}

/* ---- the helper's end ---- */

static int helpers(void)
{
	char path[300], name[16];
	int found = 0;
	DIR *d = opendir("/proc/self/task");
	NEED(d);
	for (struct dirent *e; (e = readdir(d));) {
		snprintf(path, sizeof path, "/proc/self/task/%s/comm", e->d_name);
		FILE *f = fopen(path, "re");
		if (f && fgets(name, sizeof name, f))
			found += strncmp(name, "regall-helper", 13) == 0;
		if (f)
			fclose(f);
	}
	closedir(d);
	return found;
}

/* It has its name a moment after it was started. */
static void some_helper(void)
{
	for (uint64_t since = now_ns(); helpers() == 0 && now_ns() - since < 5000000000u;)
		pause_us(1000);
	IS(1, helpers());
}

static pthread_barrier_t barrier;

static void *idle(void *unused)
{
	pthread_barrier_wait(&barrier);
	pthread_barrier_wait(&barrier);
	return unused;
}

static void call(const char *name)
{
	struct __user_cap_header_struct head = { _LINUX_CAPABILITY_VERSION_3, 0 };
	if (strcmp(name, "setuid") == 0)
		NEED(setuid(USER) == 0);
	else if (strcmp(name, "setgid") == 0)
		NEED(setgid(USER) == 0);
	else if (strcmp(name, "seteuid") == 0)
		NEED(seteuid(USER) == 0);
	else if (strcmp(name, "setreuid") == 0)
		NEED(setreuid(USER, -1u) == 0);
	else if (strcmp(name, "setregid") == 0)
		NEED(setregid(USER, -1u) == 0);
	else if (strcmp(name, "setresuid") == 0)
		NEED(setresuid(-1u, -1u, USER) == 0);
	else if (strcmp(name, "setresgid") == 0)
		NEED(setresgid(-1u, -1u, USER) == 0);
	else if (strcmp(name, "setfsuid") == 0)
		setfsuid(USER);
	else if (strcmp(name, "setfsgid") == 0)
		setfsgid(USER);
	else if (strcmp(name, "raw setuid") == 0)
		NEED(syscall(SYS_setuid, USER) == 0);
	else if (strcmp(name, "raw setfsuid") == 0)
		syscall(SYS_setfsuid, USER);
	else if (strcmp(name, "raw setresgid") == 0)
		NEED(syscall(SYS_setresgid, USER, USER, USER) == 0);
	else if (strcmp(name, "capset") == 0) {
		NEED(syscall(SYS_capget, &head, sets) == 0);
		sets[0].permitted &= ~(unsigned)OVERRIDE;
		sets[0].effective &= ~(unsigned)OVERRIDE;
		NEED(syscall(SYS_capset, &head, sets) == 0);
	} else
		NEED(!"a call");
}

static int ends(const char *name)
{
	pthread_t t;
	bool threads = strncmp(name, "threads ", 8) == 0;
	NEED(pthread_barrier_init(&barrier, NULL, 2) == 0);
	if (threads) {
		NEED(pthread_create(&t, NULL, idle, NULL) == 0);
		pthread_barrier_wait(&barrier);
	}
	some_helper();
	call(threads ? name + 8 : name);
	IS(0, helpers());
	/* For good, in children, too, and whatever is asked for. */
	/* (For this thread alone: after a raw call libc's threads differ, which it ends the program for.) */
	NEED(syscall(SYS_setresuid, -1, 0, -1) == 0 || errno == EPERM);
	if (regall_box_fd)
		regall_box_fd();
	IS(0, helpers());
	pid_t pid = fork();
	NEED(pid >= 0);
	if (pid == 0)
		_exit(helpers());
	int status = -1;
	NEED(waitpid(pid, &status, 0) == pid);
	IS(0, status);
	if (threads) {
		pthread_barrier_wait(&barrier);
		pthread_join(t, NULL);
	}
	return verdict();
}

static int stays(void)
{
	struct __user_cap_header_struct head = { _LINUX_CAPABILITY_VERSION_3, 0 };
	some_helper();
	NEED(setuid(0) == 0 && setgid(0) == 0 && setresuid(-1u, 0, -1u) == 0 && seteuid(0) == 0);
	setfsuid(0);
	setfsgid(-1u);
	IS(-1, setuid(-1u));
	NEED(syscall(SYS_capget, &head, sets) == 0 && syscall(SYS_capset, &head, sets) == 0);
	/* What a child of vfork does is its own. */
	pid_t pid = vfork();
	NEED(pid >= 0);
	if (pid == 0) {
		syscall(SYS_setuid, USER);
		_exit(0);
	}
	NEED(waitpid(pid, NULL, 0) == pid);
	/* Namespaces that any process may join, whatever threads it has; and what is none. */
	const char *joined[] = { "net", "uts", "ipc", "cgroup", "pid_for_children" };
	for (size_t n = 0; n < sizeof joined / sizeof *joined; n++) {
		char path[64];
		snprintf(path, sizeof path, "/proc/self/ns/%s", joined[n]);
		int fd = open(path, O_RDONLY | O_CLOEXEC);
		NEED(fd >= 0);
		NEED(setns(fd, 0) == 0);
		NEED(close(fd) == 0);
	}
	int fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
	IS(-1, setns(fd, 0));
	NEED(close(fd) == 0);
	IS(-1, setns(-1, 0));
	IS(1, helpers());
	return verdict();
}

static int filtered(void)
{
	some_helper();
	FILTER_CALLS(SECCOMP_RET_KILL_PROCESS, SYS_socket, SYS_connect, SYS_setfsuid, SYS_setfsgid, SYS_sendto,
		     SYS_sendmsg);
	NEED(setegid(USER) == 0 && seteuid(USER) == 0);
	IS(0, helpers());
	return verdict();
}

static int descriptors(void)
{
	int found = 0;
	DIR *d = opendir("/proc/self/fd");
	NEED(d);
	while (readdir(d))
		found++;
	closedir(d);
	return found;
}

static void *leaves_table(void *unused)
{
	NEED(unshare(CLONE_FILES) == 0);
	return unused;
}

static int unshares(void)
{
	pthread_t t;
	some_helper();
	int before = descriptors();
	for (int n = 0; n < 8; n++) {
		NEED(pthread_create(&t, NULL, leaves_table, NULL) == 0);
		NEED(pthread_join(t, NULL) == 0);
	}
	IS(before, descriptors());
	IS(1, helpers());
	return verdict();
}

/* What stands of this process in its user's folder. */
static int standing(void)
{
	char folder[64], name[32];
	int found = 0;
	snprintf(folder, sizeof folder, "/dev/shm/regall-%u", geteuid());
	int length = snprintf(name, sizeof name, "%d.", getpid());
	DIR *d = opendir(folder);
	if (!d)
		return 0;
	for (struct dirent *e; (e = readdir(d));)
		found += strncmp(e->d_name, name, (size_t)length) == 0;
	closedir(d);
	return found;
}

static int stands(bool executed)
{
	if (executed) {
		IS(0, standing());
		return verdict();
	}
	some_helper();
	IS(2, standing());
	struct __user_cap_header_struct head = { _LINUX_CAPABILITY_VERSION_3, 0 };
	NEED(syscall(SYS_capget, &head, sets) == 0);
	sets[0].inheritable |= (unsigned)OVERRIDE;
	NEED(syscall(SYS_capset, &head, sets) == 0);
	NEED(prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE, CAP_DAC_OVERRIDE, 0, 0) == 0);
	execl("/proc/self/exe", "rights", "stands", "executed", (char *)NULL);
	return 91;
}

/* ---- root, and others in namespaces ---- */

/* Starts one there that tries. */
static struct other start_apart(char *pid, char *at, bool mapped)
{
	int there[2], back[2];
	char line[64];
	NEED(pipe2(there, O_CLOEXEC) == 0 && pipe2(back, O_CLOEXEC) == 0);
	pid_t child = fork();
	NEED(child >= 0);
	if (child == 0) {
		NEED(dup2(there[0], 0) == 0 && dup2(back[1], 1) == 1);
		if (syscall(SYS_unshare, CLONE_NEWUSER) != 0)
			_exit(77);
		say("apart");
		NEED(line_from(0, line, sizeof line));
		execv("/proc/self/exe", (char *[]){ "rights", "attack", pid, at, NULL });
		_exit(91);
	}
	struct other c = { child, there[1], back[0] };
	close(there[0]);
	close(back[1]);
	hear(&c, line, sizeof line);
	for (int n = 0; mapped && n < 3; n++) {
		static const char *const files[] = { "setgroups", "uid_map", "gid_map" };
		snprintf(line, sizeof line, "/proc/%d/%s", child, files[n]);
		int fd = open(line, O_WRONLY);
		NEED(fd >= 0 && dprintf(fd, "%s", n ? "0 0 1\n" : "deny") > 0);
		close(fd);
	}
	NEED(dprintf(c.to, "\n") > 0);
	return c;
}

static int namespaces(void)
{
	char line[64], pid[16], at[32];
	pid_t probe = fork();
	int status = -1;
	if (probe == 0)
		_exit(syscall(SYS_unshare, CLONE_NEWUSER) != 0);
	NEED(waitpid(probe, &status, 0) == probe);
	if (status != 0) {
		say("no user namespaces");
		return 77;
	}
	struct other o = start_other(true, (char *[]){ "rights", "owner", "root", NULL });
	hear(&o, line, sizeof line);
	NEED(sscanf(line, "%15s %31s", pid, at) == 2);
	/* Root there, and the same user as root here; and nobody at all. */
	for (int mapped = 0; mapped < 2; mapped++) {
		struct other c = start_apart(pid, at, mapped);
		IS(0, hear_number(&c) & ~32ul);
		end_other(&c);
	}
	NEED(dprintf(o.to, "?\n") > 0);
	hear(&o, line, sizeof line);
	IS(SECRET, strtoull(line, NULL, 16));
	end_other(&o);
	return verdict();
}

int main(int argc, char **argv)
{
	const char *what = argc > 1 ? argv[1] : "";
	no_longer_than(60);
	if (strcmp(what, "owns") == 0)
		return owns();
	if (strcmp(what, "stays") == 0)
		return stays();
	if (strcmp(what, "filtered") == 0)
		return filtered();
	if (strcmp(what, "unshares") == 0)
		return unshares();
	if (strcmp(what, "stands") == 0)
		return stands(argc > 2);
	if (strcmp(what, "namespaces") == 0)
		return namespaces();
	if (strcmp(what, "yama") == 0)
		return yama(argc > 2);
	NEED(argc > 2);
	if (strcmp(what, "owner") == 0)
		return owner(argv[2]);
	if (strcmp(what, "reach") == 0)
		return reach(argv[2]);
	if (strcmp(what, "ends") == 0)
		return ends(argv[2]);
	NEED(argc > 3 && strcmp(what, "attack") == 0);
	return attack(argv[2], argv[3], argc == 4);
}
