/*
 * What is said on the socket of a process's helper (bridge/src/wire.rs), by hand: for tests of
 * what a helper gives, and what it refuses.
 */
#ifndef REGALL_BY_HAND_H
#define REGALL_BY_HAND_H

#include <dirent.h>
#include <sys/socket.h>
#include <sys/un.h>
#include "peers.h"

struct request {
	uint32_t magic, what;
	uint64_t number, image, addr, len, id, offset, reserved;
};
struct reply {
	uint32_t magic, error;
	uint64_t number, bytes, reserved;
};
enum { HELLO = 1, GET, PUT, DESCRIPTOR };
#define MAGIC 0x72676802u
#define BOUNCE (512ul << 10)

static struct sockaddr_un address;
static uint64_t image;

/* Finds the owner's socket, and in its directory the number of its image. */
static void find(pid_t pid)
{
	char folder[64], name[400];
	struct stat namespace;
	NEED(stat("/proc/self/ns/pid", &namespace) == 0);
	snprintf(folder, sizeof folder, "/dev/shm/regall-%u", geteuid());
	DIR *d = opendir(folder);
	NEED(d);
	for (struct dirent *e; (e = readdir(d));) {
		size_t n = strlen(e->d_name);
		/* Others may have had that number elsewhere. */
		int number;
		unsigned long start, where;
		if (sscanf(e->d_name, "%d.%lu.%lu", &number, &start, &where) != 3 || number != pid || where != namespace.st_ino)
			continue;
		snprintf(name, sizeof name, "%s/%s", folder, e->d_name);
		if (n > 5 && strcmp(e->d_name + n - 5, ".sock") == 0) {
			address.sun_family = AF_UNIX;
			strncpy(address.sun_path, name, sizeof address.sun_path - 1);
		} else {
			int fd = open(name, O_RDONLY);
			if (fd >= 0 && strspn(e->d_name, "0123456789.") == n)
				NEED(pread(fd, &image, 8, 24) == 8);
			close(fd);
		}
	}
	closedir(d);
	NEED(address.sun_family && image);
}

static int connected(void)
{
	int s = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	struct timeval most = { 2, 0 };
	NEED(s >= 0 && setsockopt(s, SOL_SOCKET, SO_RCVTIMEO, &most, sizeof most) == 0);
	setsockopt(s, SOL_SOCKET, SO_SNDTIMEO, &most, sizeof most);
	NEED(connect(s, (struct sockaddr *)&address, sizeof address) == 0);
	return s;
}

static ssize_t send_with(int s, const void *bytes, size_t len, const int *fds, size_t count)
{
	union {
		char room[CMSG_SPACE(8 * sizeof(int))];
		struct cmsghdr align;
	} u = { { 0 } };
	struct iovec part = { (void *)(uintptr_t)bytes, len };
	struct msghdr m = { .msg_iov = &part, .msg_iovlen = 1 };
	if (count) {
		m.msg_control = u.room;
		m.msg_controllen = CMSG_SPACE(count * sizeof(int));
		struct cmsghdr *c = CMSG_FIRSTHDR(&m);
		c->cmsg_level = SOL_SOCKET;
		c->cmsg_type = SCM_RIGHTS;
		c->cmsg_len = CMSG_LEN(count * sizeof(int));
		memcpy(CMSG_DATA(c), fds, count * sizeof(int));
	}
	return sendmsg(s, &m, MSG_NOSIGNAL);
}

/* What is answered: an errno, -1 if the connection is closed, or -2 if nothing is. */
static int reply(int s, struct reply *r, int *fd)
{
	union {
		char room[CMSG_SPACE(sizeof(int))];
		struct cmsghdr align;
	} u;
	struct iovec part = { r, sizeof *r };
	struct msghdr m = { .msg_iov = &part, .msg_iovlen = 1, .msg_control = u.room, .msg_controllen = sizeof u.room };
	ssize_t n = recvmsg(s, &m, MSG_CMSG_CLOEXEC);
	*fd = -1;
	if (n != sizeof *r)
		return n < 0 && errno == EAGAIN ? -2 : -1;
	struct cmsghdr *c = CMSG_FIRSTHDR(&m);
	if (c && c->cmsg_type == SCM_RIGHTS)
		memcpy(fd, CMSG_DATA(c), sizeof *fd);
	return (int)r->error;
}

/* The same of a request; a descriptor that comes with the answer, else -1. */
static int ask_for_file(int s, struct request q, int *fd)
{
	struct reply r;
	q.magic = MAGIC;
	*fd = -1;
	if (send_with(s, &q, sizeof q, NULL, 0) < 0)
		return -1;
	return reply(s, &r, fd);
}

static int ask_for(int s, struct request q)
{
	int fd, r = ask_for_file(s, q, &fd);
	if (fd >= 0)
		close(fd);
	return r;
}

static struct request hello(void)
{
	return (struct request){ .what = HELLO, .image = image, .len = BOUNCE, .number = 1 };
}

/* A connection on which the helper has given a bounce buffer. */
static int greeted(int *bounce)
{
	int s = connected();
	IS(0, ask_for_file(s, hello(), bounce));
	HOLDS(*bounce >= 0);
	return s;
}

#endif
