/*
 * Character devices that this machine has no driver for, stood in for at their system
 * calls: a seccomp filter hands open and ioctl of a command and all its descendants to
 * this process, which answers for the devices that are linked into it. See
 * device_standin.c for what a program can tell from the real thing.
 */
#ifndef REGALL_DEVICE_STANDIN_H
#define REGALL_DEVICE_STANDIN_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/types.h>

#define PAGE 4096ul

/* One system call that waits for its answer. */
struct call {
	uint64_t id;
	pid_t tid, tgid;
	uid_t uid, euid;
	gid_t egid;
	int nr;
	uint64_t args[6];
	unsigned command;
	uint64_t arg;
	bool answered;
};

struct device;

/* One opening of a device: what the kernel calls an open file description. Never freed,
 * so that a thread that has found one may look at it without the lock. */
struct handle {
	const struct device *device;
	int memfd;     /* our own descriptor of what the program has open; -1 when gone */
	dev_t dev;
	ino_t ino;
	pid_t opener;
	uid_t uid;
	gid_t gid;
	int access;    /* O_RDONLY, O_WRONLY or O_RDWR */
	void *state;   /* the device's own */
	struct handle *next;
};

struct device {
	const char *path;
	unsigned char type; /* of its ioctl commands, _IOC_TYPE */
	/* Whether it understands an option of the command line. */
	bool (*option)(const char *option);
	/* Called with `standin_lock` held, both. */
	void (*opened)(struct call *, struct handle *);
	void (*closed)(struct handle *);
	/* The caller is about to close a descriptor of it, or to execute another program; goes on
	 * by itself if this does not answer. May be NULL; without the lock. */
	void (*closing)(struct call *, struct handle *);
	void (*executing)(struct call *);
	/* The ioctl's value or negative errno; not looked at if `call->answered`. */
	int64_t (*ioctl)(struct call *, struct handle *);
	/* What was served, on one line without its end. */
	void (*report)(FILE *);
	/* Whether a path below /sys is the device's, and where its file really is: there it is opened,
	 * and looked at. Netlink, which would tell of other devices, is refused then (NETLINK_RDMA).
	 * May be NULL. */
	bool (*elsewhere)(const char *path, char *real, size_t size);
	/* COMMAND has ended. May be NULL. */
	void (*ended)(void);
};

extern pthread_mutex_t standin_lock;

/* To be called from a constructor. */
void standin_offer(const struct device *);

/* A device's number, as stat tells it (st_rdev). */
dev_t standin_number(const struct device *);

/* Whether anybody still has it open; closes it if not. With the lock held. */
bool standin_open(struct handle *);

/* Whether the caller still waits, so that its pid is still its own. */
bool standin_waits(const struct call *);

/* Ends the caller's wait: its value, or negative errno. */
void standin_answer(struct call *, int64_t value);

/* The opening behind a descriptor of a thread, if it is one of ours. */
struct handle *standin_handle(pid_t tid, int fd);

/* Puts a descriptor of ours into the caller, which goes on waiting; or negative errno. */
int standin_give(const struct call *, int fd);

/* Memory of another process, whole or not at all. */
bool standin_read(pid_t, uint64_t from, void *to, size_t);
bool standin_write(pid_t, uint64_t to, const void *from, size_t);

/* A mapping of a process. */
struct mapping {
	uint64_t start, end, offset;
	char access[5]; /* "rwxp" as in /proc/PID/maps */
	dev_t dev;
	ino_t ino;
};

/* Goes through the mappings that meet a range, in their order, until `each` says no. */
bool standin_mappings(pid_t, uint64_t start, uint64_t end,
		      bool (*each)(const struct mapping *, void *), void *arg);

#endif
