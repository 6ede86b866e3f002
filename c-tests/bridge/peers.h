/*
 * What the programs about peers share: the functions of regall.h, which the preloaded
 * library has; expectations; and processes to be peers of, which are this program again
 * with another first argument, talked to in lines over a pair of pipes.
 */
#ifndef REGALL_PEERS_H
#define REGALL_PEERS_H

#include <sys/uio.h>
#include "../expect.h"
#include "../../include/regall.h"

/* There or not, as with any preloaded library. */
#pragma weak regall_active
#pragma weak regall_opt_out
#pragma weak regall_peers
#pragma weak regall_peer_open
#pragma weak regall_peer_close
#pragma weak regall_peer_check
#pragma weak regall_get
#pragma weak regall_put
#pragma weak regall_getv
#pragma weak regall_putv

/* A process of this program. */
struct other {
	pid_t pid;
	int to, from;
};

/* Ends the program if nothing comes for so long: nothing here may hang. */
__attribute__((unused)) static void no_longer_than(unsigned seconds)
{
	alarm(seconds);
}

__attribute__((unused)) static uint64_t now_ns(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* Reads a line without its end; false at the end of the pipe. */
__attribute__((unused)) static bool line_from(int fd, char *line, size_t room)
{
	size_t n = 0;
	for (;;) {
		char c;
		ssize_t got = read(fd, &c, 1);
		if (got < 0 && errno == EINTR)
			continue;
		if (got != 1)
			return false;
		if (c == '\n')
			break;
		if (n + 1 < room)
			line[n++] = c;
	}
	line[n] = 0;
	return true;
}

/* Starts this program with the arguments, once `first` has prepared the new process. */
static struct other start_after(void (*first)(unsigned), unsigned how, char *const argv[])
{
	int there[2], back[2];
	NEED(pipe2(there, O_CLOEXEC) == 0 && pipe2(back, O_CLOEXEC) == 0);
	pid_t pid = fork();
	NEED(pid >= 0);
	if (pid == 0) {
		NEED(dup2(there[0], 0) == 0 && dup2(back[1], 1) == 1);
		first(how);
		execv("/proc/self/exe", argv);
		_exit(91);
	}
	close(there[0]);
	close(back[1]);
	return (struct other){ pid, there[1], back[0] };
}

static void have_shim(unsigned shim)
{
	if (shim)
		setenv("REGALL", "1", 1);
	else
		unsetenv("LD_PRELOAD");
}

/* Starts this program with the arguments; without the shim if `shim` is false. */
__attribute__((unused)) static struct other start_other(bool shim, char *const argv[])
{
	return start_after(have_shim, shim, argv);
}

/* One line from it, which must come. */
__attribute__((unused)) static void hear(const struct other *o, char *line, size_t room)
{
	if (!line_from(o->from, line, room)) {
		int status = 0;
		waitpid(o->pid, &status, 0);
		say("process %d went away (status %#x)", o->pid, (unsigned)status);
		_exit(92);
	}
}

/* One number from it. */
__attribute__((unused)) static uint64_t hear_number(const struct other *o)
{
	char line[64];
	hear(o, line, sizeof line);
	return strtoull(line, NULL, 0);
}

/* Tells it a line and waits for its answer, a number. */
__attribute__((unused)) static uint64_t ask(const struct other *o, const char *line)
{
	NEED(dprintf(o->to, "%s\n", line) > 0);
	return hear_number(o);
}

/* Kills it, waits for its end and closes the pipes. */
__attribute__((unused)) static void end_other(struct other *o)
{
	kill(o->pid, SIGKILL);
	waitpid(o->pid, NULL, 0);
	close(o->to);
	close(o->from);
}

/* An open peer, which must come to be. */
__attribute__((unused)) static regall_peer *open_peer(pid_t pid, unsigned flags)
{
	regall_peer *peer = NULL;
	int r = regall_peer_open(pid, 0, flags, &peer);
	if (r != 0) {
		say("opening %d: %s", pid, strerrorname_np(-r));
		_exit(93);
	}
	return peer;
}

/* The program's end: nothing is said as long as all is as documented. */
__attribute__((unused)) static int verdict(void)
{
	if (wrong)
		say("%d wrong", wrong);
	return wrong != 0;
}

#endif
