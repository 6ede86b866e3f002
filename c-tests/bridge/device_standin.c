/*
 * COMMAND and all its descendants run under a seccomp filter that sends open, openat,
 * stat and ioctl (of the devices' types) to this process; see seccomp_unotify(2). An open
 * of a device gets a memfd of its own, made known by its inode, which is what ioctls are
 * told by; everything else goes on in the kernel as if nobody had looked.
 *
 * A device may have files below /sys, too, which are opened elsewhere.
 *
 * A device that wants to know is told of descriptors that are closed (close, close_range, dup2,
 * dup3; not of those that exec or a thread's end closes) and of execve.
 *
 * What a program can tell from the real thing: poll is always ready, mmap works at every offset
 * and twice, setuid programs get no rights (NO_NEW_PRIVS), and the program can't have another
 * filter with a listener. An ordinary user can't serve processes that are not dumpable.
 */
#include "device_standin.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/netlink.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <signal.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#ifndef SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV
#define SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV (1UL << 5)
#endif

#if defined(__x86_64__)
#define ARCH AUDIT_ARCH_X86_64
#elif defined(__aarch64__)
#define ARCH AUDIT_ARCH_AARCH64
#endif

/* Calls that are answered at the same time; a further one waits. */
#define WORKERS 16
/* Bytes of the memfd: as many status bytes as anybody asks for, and no memory until used. */
#define DEVICE_BYTES (1l << 24)
/* How long descendants that outlive COMMAND are served. */
#define LINGER_MS 2000
#define DEVICES 4
/* Bytes of a path that are looked at. */
#define PATH_BYTES 256

pthread_mutex_t standin_lock = PTHREAD_MUTEX_INITIALIZER;
static const struct device *devices[DEVICES];
static int device_count;
static struct handle *handles; /* pushed with the lock, never taken out */
static int listener = -1;
static pid_t command = -1;

#define NEED(what)                                                                                 \
	do {                                                                                       \
		if (!(what)) {                                                                     \
			fprintf(stderr, "%s:%d: needed %s: %s\n", __FILE__, __LINE__, #what,       \
				strerrorname_np(errno));                                           \
			exit(125);                                                                 \
		}                                                                                  \
	} while (0)

void standin_offer(const struct device *d)
{
	if (device_count < DEVICES)
		devices[device_count++] = d;
}

/* ---- memory and files of other processes ---- */

bool standin_read(pid_t pid, uint64_t from, void *to, size_t n)
{
	struct iovec here = { to, n }, there = { (void *)from, n };
	return n == 0 || process_vm_readv(pid, &here, 1, &there, 1, 0) == (ssize_t)n;
}

bool standin_write(pid_t pid, uint64_t to, const void *from, size_t n)
{
	struct iovec here = { (void *)from, n }, there = { (void *)to, n };
	return n == 0 || process_vm_writev(pid, &here, 1, &there, 1, 0) == (ssize_t)n;
}

bool standin_mappings(pid_t pid, uint64_t start, uint64_t end,
		      bool (*each)(const struct mapping *, void *), void *arg)
{
	char line[4600];
	snprintf(line, sizeof line, "/proc/%d/maps", pid);
	FILE *f = fopen(line, "re");
	if (!f)
		return false;
	bool go_on = true;
	while (go_on && fgets(line, sizeof line, f)) {
		struct mapping m;
		unsigned major, minor;
		unsigned long ino;
		if (sscanf(line, "%lx-%lx %4s %lx %x:%x %lu", &m.start, &m.end, m.access, &m.offset,
			   &major, &minor, &ino) != 7)
			continue;
		m.dev = makedev(major, minor);
		m.ino = ino;
		if (m.start >= end)
			break;
		if (m.end > start)
			go_on = each(&m, arg);
	}
	fclose(f);
	return true;
}

/* Who calls: from /proc/TID/status. */
static bool identify(struct call *c)
{
	char path[64], text[2048];
	snprintf(path, sizeof path, "/proc/%d/status", c->tid);
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	ssize_t n = fd < 0 ? -1 : read(fd, text, sizeof text - 1);
	if (fd >= 0)
		close(fd);
	if (n <= 0)
		return false;
	text[n] = 0;
	const char *tgid = strstr(text, "\nTgid:"), *uid = strstr(text, "\nUid:"), *gid = strstr(text, "\nGid:");
	unsigned real_gid;
	return tgid && uid && gid && sscanf(tgid + 6, "%d", &c->tgid) == 1 &&
	       sscanf(uid + 5, "%u %u", &c->uid, &c->euid) == 2 &&
	       sscanf(gid + 5, "%u %u", &real_gid, &c->egid) == 2;
}

/* ---- openings ---- */

bool standin_open(struct handle *h)
{
	if (h->memfd < 0)
		return false;
	/* The kernel grants a write lease only where nobody else has the file open (fcntl(2)),
	 * and a file is closed before its process can be waited for. */
	if (fcntl(h->memfd, F_SETLEASE, F_WRLCK) < 0)
		return true;
	fcntl(h->memfd, F_SETLEASE, F_UNLCK);
	h->device->closed(h);
	close(h->memfd);
	h->memfd = -1;
	return false;
}

static void sweep(void)
{
	for (struct handle *h = handles; h; h = h->next)
		standin_open(h);
}

struct handle *standin_handle(pid_t tid, int fd)
{
	char path[64];
	struct stat s;
	snprintf(path, sizeof path, "/proc/%d/fd/%d", tid, fd);
	if (stat(path, &s) < 0)
		return NULL;
	pthread_mutex_lock(&standin_lock);
	struct handle *h = handles;
	while (h && !(h->memfd >= 0 && h->dev == s.st_dev && h->ino == s.st_ino))
		h = h->next;
	pthread_mutex_unlock(&standin_lock);
	return h;
}

/* A file for a new opening, with the access that was asked for. Both the program's and
 * ours are opened anew: they must not share an open file description, and what
 * memfd_create returns is not counted among the writers that a lease looks for. */
static int fresh_file(struct handle *h, int flags)
{
	char path[64];
	struct stat s;
	int fd = memfd_create(h->device->path, MFD_CLOEXEC);
	NEED(fd >= 0 && ftruncate(fd, DEVICE_BYTES) == 0 && fchmod(fd, 0666) == 0 && fstat(fd, &s) == 0);
	h->dev = s.st_dev;
	h->ino = s.st_ino;
	snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
	h->memfd = open(path, O_RDWR | O_CLOEXEC);
	NEED(h->memfd >= 0);
	int theirs = open(path, (flags & O_ACCMODE) | O_CLOEXEC);
	close(fd);
	return theirs;
}

static void open_device(struct call *c, const struct device *d, int flags)
{
	if (!identify(c) || !standin_waits(c))
		return standin_answer(c, -EIO);
	struct handle *h = calloc(1, sizeof *h);
	NEED(h);
	h->device = d;
	h->opener = c->tgid;
	h->uid = c->uid;
	h->gid = c->egid;
	h->access = flags & O_ACCMODE;
	int fd = fresh_file(h, flags);
	NEED(fd >= 0);
	pthread_mutex_lock(&standin_lock);
	sweep();
	d->opened(c, h);
	h->next = handles;
	handles = h;
	pthread_mutex_unlock(&standin_lock);
	struct seccomp_notif_addfd add = {
		.id = c->id,
		.flags = SECCOMP_ADDFD_FLAG_SEND,
		.srcfd = (uint32_t)fd,
		.newfd_flags = (uint32_t)flags & O_CLOEXEC,
	};
	int r = ioctl(listener, SECCOMP_IOCTL_NOTIF_ADDFD, &add);
	int e = errno;
	close(fd);
	if (r < 0)
		standin_answer(c, -e); /* EMFILE, as open itself would say */
	c->answered = true;
}

/* ---- answers ---- */

bool standin_waits(const struct call *c)
{
	return ioctl(listener, SECCOMP_IOCTL_NOTIF_ID_VALID, &c->id) == 0;
}

static void respond(struct call *c, struct seccomp_notif_resp r)
{
	r.id = c->id;
	/* ENOENT: it was killed meanwhile, and nobody waits. */
	ioctl(listener, SECCOMP_IOCTL_NOTIF_SEND, &r);
	c->answered = true;
}

void standin_answer(struct call *c, int64_t value)
{
	respond(c, value < 0 ? (struct seccomp_notif_resp){ .error = (int32_t)value }
			     : (struct seccomp_notif_resp){ .val = value });
}

static void go_on(struct call *c)
{
	respond(c, (struct seccomp_notif_resp){ .flags = SECCOMP_USER_NOTIF_FLAG_CONTINUE });
}

int standin_give(const struct call *c, int fd)
{
	struct seccomp_notif_addfd add = {
		.id = c->id, .srcfd = (uint32_t)fd, .newfd_flags = O_CLOEXEC
	};
	int r = ioctl(listener, SECCOMP_IOCTL_NOTIF_ADDFD, &add);
	return r < 0 ? -errno : r;
}

dev_t standin_number(const struct device *d)
{
	unsigned i = 0;
	while (devices[i] != d)
		i++;
	return makedev(10, 60 + i);
}

static bool read_path(pid_t tid, uint64_t address, char path[PATH_BYTES])
{
	struct iovec here = { path, PATH_BYTES - 1 };
	/* In two parts, so that a string in front of unmapped memory is read up to there. */
	size_t first = PAGE - address % PAGE;
	if (first > PATH_BYTES - 1)
		first = PATH_BYTES - 1;
	struct iovec there[] = { { (void *)address, first },
				 { (void *)(address + first), PATH_BYTES - 1 - first } };
	memset(path, 0, PATH_BYTES);
	return process_vm_readv(tid, &here, 1, there, 2, 0) > 0;
}

static const struct device *device_of(const struct call *c, int fd)
{
	struct handle *h = standin_handle(c->tid, fd);
	return h ? h->device : NULL;
}

static const struct device *device_at(const char *path)
{
	for (int i = 0; i < device_count; i++)
		if (strcmp(path, devices[i]->path) == 0)
			return devices[i];
	return NULL;
}

static bool is_elsewhere(const char *path, char real[PATH_BYTES])
{
	for (int i = 0; i < device_count; i++)
		if (devices[i]->elsewhere && devices[i]->elsewhere(path, real, PATH_BYTES))
			return true;
	return false;
}

static void open_elsewhere(struct call *c, const char *real, int flags)
{
	int fd = open(real, (flags & (O_ACCMODE | O_DIRECTORY)) | O_CLOEXEC);
	if (fd < 0)
		return standin_answer(c, -errno);
	int theirs = standin_give(c, fd);
	close(fd);
	standin_answer(c, theirs);
}

static void serve_open(struct call *c, uint64_t address, int flags)
{
	char path[PATH_BYTES], real[PATH_BYTES];
	const struct device *d = NULL;
	if (read_path(c->tid, address, path))
		d = device_at(path);
	if (d)
		open_device(c, d, flags);
	else if (is_elsewhere(path, real))
		open_elsewhere(c, real, flags);
	else
		go_on(c);
}

static void tell_stat(struct call *c, const struct stat *s, uint64_t buffer)
{
	bool told = standin_waits(c) && standin_write(c->tid, buffer, s, sizeof *s);
	standin_answer(c, told ? 0 : -EFAULT);
}

/* libxpmem asks for a character device before it opens one, libibverbs for its number. */
static void serve_stat(struct call *c, const struct device *d, uint64_t buffer)
{
	if (!d)
		return go_on(c);
	dev_t number = standin_number(d);
	struct stat s = { .st_mode = S_IFCHR | 0666, .st_nlink = 1, .st_blksize = PAGE,
			  .st_ino = 1000u + minor(number), .st_rdev = number };
	tell_stat(c, &s, buffer);
}

static void serve_stat_at(struct call *c, uint64_t address, uint64_t buffer)
{
	char path[PATH_BYTES], real[PATH_BYTES];
	struct stat s;
	const struct device *d = NULL;
	if (read_path(c->tid, address, path))
		d = device_at(path);
	if (!d && is_elsewhere(path, real) && stat(real, &s) == 0)
		return tell_stat(c, &s, buffer);
	serve_stat(c, d, buffer);
}

static void serve_ioctl(struct call *c, int fd, unsigned cmd, uint64_t arg)
{
	struct handle *h = standin_handle(c->tid, fd);
	if (!h || h->device->type != (cmd >> 8 & 0xff))
		return go_on(c);
	c->command = cmd;
	c->arg = arg;
	if (!identify(c) || !standin_waits(c))
		return standin_answer(c, -EIO);
	int64_t value = h->device->ioctl(c, h);
	if (!c->answered)
		standin_answer(c, value);
}

static bool tell_closing(struct call *c, int fd)
{
	struct handle *h = standin_handle(c->tid, fd);
	if (!h || !h->device->closing || !identify(c))
		return false;
	h->device->closing(c, h);
	return true;
}

static void serve_close_range(struct call *c, unsigned first, unsigned last, unsigned flags)
{
	/* What a new table does not get is not closed. */
	for (unsigned fd = first; flags == 0 && !c->answered && fd <= last && fd < 4096; fd++)
		tell_closing(c, (int)fd);
}

static void serve_exec(struct call *c)
{
	for (int i = 0; identify(c) && i < device_count; i++)
		if (devices[i]->executing)
			devices[i]->executing(c);
}

static void serve(const struct seccomp_notif *n)
{
	struct call c = { .id = n->id, .tid = (pid_t)n->pid, .nr = n->data.nr };
	const __u64 *a = n->data.args;
	memcpy(c.args, a, sizeof c.args);
	switch (n->data.nr) {
#ifdef SYS_open
	case SYS_open:
		return serve_open(&c, a[0], (int)a[1]);
	case SYS_stat:
		return serve_stat_at(&c, a[0], a[1]);
	case SYS_dup2:
#endif
	case SYS_dup3:
		if (a[0] != a[1])
			tell_closing(&c, (int)a[1]);
		break;
	case SYS_openat:
		return serve_open(&c, a[1], (int)a[2]);
	case SYS_newfstatat:
		/* As glibc before 2.39 makes fstat. */
		if (a[3] & AT_EMPTY_PATH)
			return serve_stat(&c, device_of(&c, (int)a[0]), a[2]);
		return serve_stat_at(&c, a[1], a[2]);
	case SYS_fstat:
		return serve_stat(&c, device_of(&c, (int)a[0]), a[1]);
	case SYS_close:
		tell_closing(&c, (int)a[0]);
		break;
	case SYS_close_range:
		serve_close_range(&c, (unsigned)a[0], (unsigned)a[1], (unsigned)a[2]);
		break;
	case SYS_execve:
	case SYS_execveat:
		serve_exec(&c);
		break;
	case SYS_ioctl:
		return serve_ioctl(&c, (int)a[0], (unsigned)a[1], a[2]);
	}
	if (!c.answered)
		go_on(&c);
}

static void *worker(void *unused)
{
	struct seccomp_notif_sizes sizes;
	NEED(syscall(SYS_seccomp, SECCOMP_GET_NOTIF_SIZES, 0, &sizes) == 0);
	size_t size = sizes.seccomp_notif > sizeof(struct seccomp_notif) ? sizes.seccomp_notif
									  : sizeof(struct seccomp_notif);
	struct seccomp_notif *n = malloc(size);
	NEED(n);
	for (;;) {
		memset(n, 0, size);
		if (ioctl(listener, SECCOMP_IOCTL_NOTIF_RECV, n) == 0)
			serve(n);
		else if (errno != EINTR && errno != ENOENT)
			return unused;
		else if (errno == ENOENT) {
			/* The caller was killed first, or nobody is left: then don't spin. */
			struct pollfd p = { .fd = listener, .events = POLLIN };
			if (poll(&p, 1, -1) > 0 && (p.revents & POLLHUP))
				return unused;
		}
	}
}

/* ---- the filter and COMMAND ---- */

#define LOAD(field) BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, field))
#define ALLOW BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)
#define NOTIFY BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_USER_NOTIF)
/* One more instruction if the loaded word is this. */
#define ONLY_IF(value) BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (value), 0, 1)

static int install_filter(void)
{
	struct sock_filter code[56 + 2 * DEVICES];
	unsigned short n = 0;
	const unsigned paths[] = { SYS_openat, SYS_newfstatat, SYS_fstat,
#ifdef SYS_open
				   SYS_open, SYS_stat,
#endif
	};
	const unsigned ends[] = { SYS_close, SYS_close_range, SYS_dup3, SYS_execve, SYS_execveat,
#ifdef SYS_dup2
				  SYS_dup2,
#endif
	};
	bool told = false, apart = false;
	for (int i = 0; i < device_count; i++) {
		told |= devices[i]->closing != NULL;
		apart |= devices[i]->elsewhere != NULL;
	}
	const struct sock_filter netlink[] = {
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_socket, 0, 6), LOAD(args[0]),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, AF_NETLINK, 0, 3), LOAD(args[2]),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, NETLINK_RDMA, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPROTONOSUPPORT), LOAD(nr),
	};
	const struct sock_filter head[] = { LOAD(arch), BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, ARCH, 1, 0), ALLOW, LOAD(nr) };
	for (size_t i = 0; i < sizeof head / sizeof *head; i++)
		code[n++] = head[i];
	for (size_t i = 0; apart && i < sizeof netlink / sizeof *netlink; i++)
		code[n++] = netlink[i];
	for (size_t i = 0; i < sizeof paths / sizeof *paths; i++) {
		code[n++] = (struct sock_filter)ONLY_IF(paths[i]);
		code[n++] = (struct sock_filter)NOTIFY;
	}
	for (size_t i = 0; told && i < sizeof ends / sizeof *ends; i++) {
		code[n++] = (struct sock_filter)ONLY_IF(ends[i]);
		code[n++] = (struct sock_filter)NOTIFY;
	}
	const struct sock_filter ioctls[] = { BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_ioctl, 1, 0), ALLOW, LOAD(args[1]),
					      BPF_STMT(BPF_ALU | BPF_AND | BPF_K, 0xff00) };
	for (size_t i = 0; i < sizeof ioctls / sizeof *ioctls; i++)
		code[n++] = ioctls[i];
	for (int i = 0; i < device_count; i++) {
		code[n++] = (struct sock_filter)ONLY_IF((unsigned)devices[i]->type << 8);
		code[n++] = (struct sock_filter)NOTIFY;
	}
	code[n++] = (struct sock_filter)ALLOW;
	struct sock_fprog prog = { .len = n, .filter = code };
	NEED(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
	/* A signal must not cut a call short that is half done already (and would be made anew);
	 * older kernels (before 5.19) can't promise that. */
	unsigned long flags = SECCOMP_FILTER_FLAG_NEW_LISTENER;
	int fd = (int)syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER,
			      flags | SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV, &prog);
	if (fd < 0 && errno == EINVAL)
		fd = (int)syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, flags, &prog);
	NEED(fd >= 0);
	return fd;
}

union one_fd {
	char bytes[CMSG_SPACE(sizeof(int))];
	struct cmsghdr align;
};

static struct msghdr message(struct iovec *byte, union one_fd *control)
{
	return (struct msghdr){ .msg_iov = byte, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof *control };
}

static void send_fd(int socket, int fd)
{
	union one_fd control = { .bytes = { 0 } };
	struct iovec byte = { "", 1 };
	struct msghdr m = message(&byte, &control);
	struct cmsghdr *c = CMSG_FIRSTHDR(&m);
	*c = (struct cmsghdr){ .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS, .cmsg_len = CMSG_LEN(sizeof fd) };
	memcpy(CMSG_DATA(c), &fd, sizeof fd);
	NEED(sendmsg(socket, &m, 0) == 1);
}

static int receive_fd(int socket)
{
	union one_fd control;
	char got;
	int fd = -1;
	struct iovec byte = { &got, 1 };
	struct msghdr m = message(&byte, &control);
	if (recvmsg(socket, &m, MSG_CMSG_CLOEXEC) == 1 && CMSG_FIRSTHDR(&m))
		memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&m)), sizeof fd);
	return fd;
}

static void run(char **argv, int socket, pid_t parent)
{
	/* Nobody would answer it any more. */
	NEED(prctl(PR_SET_PDEATHSIG, SIGKILL) == 0 && getppid() == parent);
	send_fd(socket, install_filter());
	execvp(argv[0], argv);
	int e = errno;
	fprintf(stderr, "%s: %s\n", argv[0], strerror(e));
	_exit(e == ENOENT ? 127 : 126);
}

static void forward(int signal)
{
	if (command > 0)
		kill(command, signal);
}

static int64_t now_ms(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

/* Waits for COMMAND by its pidfd: waitpid could take a stop that a worker, who traces it
 * for a moment, waits for. */
static int wait_for_command(int pidfd)
{
	struct pollfd p = { .fd = pidfd, .events = POLLIN };
	while (poll(&p, 1, -1) < 0)
		NEED(errno == EINTR);
	int status;
	NEED(waitpid(command, &status, 0) == command);
	struct pollfd rest = { .fd = listener };
	for (int64_t end = now_ms() + LINGER_MS, now; !(rest.revents & POLLHUP) && (now = now_ms()) < end;)
		poll(&rest, 1, (int)(end - now));
	return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

static void report(const char *name)
{
	FILE *f = strcmp(name, "-") == 0 ? stderr : fopen(name, "we");
	if (!f) {
		fprintf(stderr, "%s: %s\n", name, strerror(errno));
		return;
	}
	pthread_mutex_lock(&standin_lock);
	for (int i = 0; i < device_count; i++) {
		devices[i]->report(f);
		fputc('\n', f);
	}
	fflush(f);
}

static bool known_option(const char *option)
{
	for (int i = 0; i < device_count; i++)
		if (devices[i]->option && devices[i]->option(option))
			return true;
	return false;
}

int main(int argc, char **argv)
{
	const char *count = NULL;
	int first = 1;
	for (; first < argc && strncmp(argv[first], "--", 2) == 0; first++) {
		if (strcmp(argv[first], "--") == 0) {
			first++;
			break;
		} else if (strcmp(argv[first], "--count") == 0 && first + 1 < argc) {
			count = argv[++first];
		} else if (!known_option(argv[first])) {
			fprintf(stderr, "%s: unknown option %s\n", argv[0], argv[first]);
			return 125;
		}
	}
	if (first >= argc) {
		fprintf(stderr, "usage: %s [--count FILE|-] [options of the device] COMMAND ARGS...\n", argv[0]);
		return 125;
	}
	int pair[2];
	NEED(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) == 0);
	pid_t self = getpid();
	command = fork();
	NEED(command >= 0);
	if (command == 0)
		run(argv + first, pair[1], self);
	close(pair[1]);
	listener = receive_fd(pair[0]);
	if (listener < 0)
		return 125; /* it has said why */
	int pidfd = (int)syscall(SYS_pidfd_open, command, 0);
	NEED(pidfd >= 0);
	/* The terminal's signals reach COMMAND by themselves. */
	signal(SIGINT, SIG_IGN);
	signal(SIGQUIT, SIG_IGN);
	signal(SIGTERM, forward);
	signal(SIGHUP, forward);
	for (int i = 0; i < WORKERS; i++) {
		pthread_t t;
		NEED(pthread_create(&t, NULL, worker, NULL) == 0);
	}
	int status = wait_for_command(pidfd);
	if (count)
		report(count);
	for (int i = 0; i < device_count; i++)
		if (devices[i]->ended)
			devices[i]->ended();
	_exit(status);
}
