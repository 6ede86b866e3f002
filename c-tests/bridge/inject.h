/*
 * System calls made in another process, by a thread of it that waits for an answer of
 * ours: it is traced from before the answer until it has done them, so that to the program
 * they look like part of the call that it made.
 */
#ifndef REGALL_INJECT_H
#define REGALL_INJECT_H

#include <sys/user.h>

#include "device_standin.h"

struct injection {
	pid_t tid;
	uint64_t mask;
	struct user_regs_struct regs;
};

/* Takes hold of the thread; false where somebody else traces it. It can still be given
 * descriptors (standin_give). */
bool inject_seize(struct call *, struct injection *);

/* Answers the call and holds its thread on its way back; false: the thread is dead. */
bool inject_hold(struct call *, struct injection *);

/* Stops the thread, wherever it is; false: it can't be, errno says why. Its registers' `rip`
 * must lie behind a syscall instruction before a call is made. */
bool inject_stop(pid_t tid, struct injection *);

/* Makes a system call there; its value or negative errno. */
int64_t inject_call(struct injection *, long number, const uint64_t args[6]);

/* Lets the thread go, with this as the value of its own call. */
void inject_end(struct injection *, int64_t value);

#endif
