/* A seccomp filter for this process and what it executes. */
#ifndef REGALL_FILTER_H
#define REGALL_FILTER_H

#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#include "check.h"

#define FILTER_MOST 32

__attribute__((unused)) static void install_filter(struct sock_filter *code, size_t n)
{
	struct sock_fprog filter = { (unsigned short)n, code };
	NEED(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
	NEED(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) == 0);
}

/* Calls with these numbers get `action`, all others are allowed. */
__attribute__((unused)) static void filter_calls(unsigned action, const unsigned *numbers, size_t count)
{
	struct sock_filter code[2 * FILTER_MOST + 2];
	size_t n = 0;
	NEED(count <= FILTER_MOST);
	code[n++] = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr));
	for (size_t i = 0; i < count; i++) {
		code[n++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, numbers[i], 0, 1);
		code[n++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, action);
	}
	code[n++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
	install_filter(code, n);
}

#define FILTER_CALLS(action, ...)                                                                  \
	filter_calls(action, (const unsigned[]){ __VA_ARGS__ },                                    \
		     sizeof((const unsigned[]){ __VA_ARGS__ }) / sizeof(unsigned))

#endif
