/* Proves: a sender that dies in the midst of a message leaves no cell of the mailbox taken, in whatever pid namespace, and whatever children it has; who is stopped there keeps its own. */
/*
 * boxes_cells beside|apart: the receiver is in the pid namespace of its senders, or in one below it.
 *
 * A message lies on two pages of which the second is not there: the copy into the cell stops
 * between them. More senders die there than there are cells.
 */
#include "boxes.h"

#include <sys/mman.h>
#include <sys/resource.h>

#define CELLS 32u
#define STOPPED 7u
#define SMALL 200ul
#define LARGE 1000ul

static struct other receiver;
static bool apart;
/* Children of senders end when it does. */
static int end_of_all[2];

/* Says of each message: its tag, who it says it is from, and whether it is whole. */
static int receives(void)
{
	_Alignas(8) static unsigned char room[ROOM];
	prctl(PR_SET_PDEATHSIG, SIGKILL); /* the first of a namespace does not die of an alarm */
	NEED(regall_box_open() == 0);
	say("ready");
	for (;;) {
		int got = regall_wait(room, sizeof room, -1);
		const struct regall_message *m = (const void *)room;
		for (int n = 0; n < got; n++, m = regall_message_next(m)) {
			int before = wrong;
			is_whole(m);
			say("%lu from %d %s", (unsigned long)m->tag, (int)m->pid, wrong == before ? "whole" : "WRONG");
		}
	}
}

/* The next message is this one. */
static void comes(uint64_t tag, pid_t from)
{
	char line[64], want[64];
	snprintf(want, sizeof want, "%lu from %d whole", (unsigned long)tag, apart ? 0 : from);
	hear(&receiver, line, sizeof line);
	if (strcmp(line, want) != 0 && wrong++ < 20)
		say("%s, not %s", line, want);
}

static void restores(int signal, siginfo_t *info, void *context)
{
	(void)signal;
	(void)context;
	unsigned char *page = (unsigned char *)((uintptr_t)info->si_addr & ~4095ul);
	raise(SIGSTOP);
	if (mprotect(page, 4096, PROT_READ | PROT_WRITE) != 0)
		_exit(90);
	for (unsigned n = 0; n < SMALL - 100; n++)
		page[n] = byte_of(STOPPED, 100 + n);
}

/* In a child: sends a message that it dies at. */
static void send_torn(regall_peer *peer, uint64_t tag, size_t len)
{
	unsigned char *data = (unsigned char *)anon(2) + 4096 - 100;
	fill(data, 100, tag);
	NEED(mprotect(data + 100, 4096, PROT_NONE) == 0);
	IS(0, send_patiently(peer, tag, data, len));
}

static void send_whole(regall_peer *peer, uint64_t tag, size_t len)
{
	unsigned char data[LARGE];
	fill(data, len, tag);
	IS(0, send_patiently(peer, tag, data, len));
}

static pid_t stops(void)
{
	pid_t pid = begin_child();
	if (pid == 0) {
		struct sigaction act = { .sa_sigaction = restores, .sa_flags = SA_SIGINFO | SA_NODEFER };
		NEED(sigaction(SIGSEGV, &act, NULL) == 0);
		regall_peer *peer = open_peer(receiver.pid, 0);
		send_torn(peer, STOPPED, SMALL);
		send_whole(peer, STOPPED + 1, SMALL);
		_exit(verdict());
	}
	int status;
	NEED(waitpid(pid, &status, WUNTRACED) == pid);
	HOLDS(WIFSTOPPED(status));
	return pid;
}

static void dies(uint64_t tag, size_t len, bool has_child)
{
	pid_t pid = begin_child();
	if (pid == 0) {
		struct rlimit none = { 0, 0 };
		setrlimit(RLIMIT_CORE, &none);
		regall_peer *peer = open_peer(receiver.pid, 0);
		if (has_child) {
			send_whole(peer, tag, SMALL);
			char c;
			pid_t child = fork();
			NEED(child >= 0);
			close(end_of_all[1]);
			if (child == 0)
				_exit(read(end_of_all[0], &c, 1) != 0);
		}
		send_torn(peer, tag, len);
		_exit(verdict());
	}
	int status;
	NEED(waitpid(pid, &status, 0) == pid);
	HOLDS(WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV);
	if (has_child)
		comes(tag, pid);
}

static void sends(uint64_t tag, size_t len)
{
	pid_t pid = begin_child();
	if (pid == 0) {
		send_whole(open_peer(receiver.pid, 0), tag, len);
		_exit(verdict());
	}
	ends_well(pid);
	comes(tag, pid);
}

static bool begin_receiver(void)
{
	char *again[] = { "boxes_cells", "receive", NULL };
	int own = -1;
	if (apart) {
		own = open("/proc/self/ns/pid", O_RDONLY | O_CLOEXEC);
		if (own < 0 || unshare(CLONE_NEWPID) != 0)
			return false;
	}
	receiver = start_other(true, again);
	if (apart)
		NEED(setns(own, CLONE_NEWPID) == 0 && close(own) == 0);
	char line[32];
	hear(&receiver, line, sizeof line);
	return true;
}

int main(int argc, char **argv)
{
	no_longer_than(100);
	const char *what = argc > 1 ? argv[1] : "";
	if (strcmp(what, "receive") == 0)
		return receives();
	apart = strcmp(what, "apart") == 0;
	if (!begin_receiver()) {
		say("SKIPPED: a pid namespace of its own: %s", strerrorname_np(errno));
		return 0;
	}
	NEED(pipe2(end_of_all, O_CLOEXEC) == 0);
	signal(SIGSEGV, SIG_DFL);
	pid_t stopped = stops();
	for (unsigned n = 0; n < CELLS + 8; n++)
		dies(100 + n, SMALL, false);
	for (unsigned n = 0; n < CELLS + 8; n++)
		dies(200 + n, LARGE, false);
	for (unsigned n = 0; n < CELLS + 8; n++)
		dies(300 + n, n % 2 ? LARGE : SMALL, true);
	for (unsigned n = 0; n < CELLS + 8; n++)
		sends(400 + n, n % 2 ? LARGE : SMALL);
	kill(stopped, SIGCONT);
	comes(STOPPED, stopped);
	comes(STOPPED + 1, stopped);
	ends_well(stopped);
	end_other(&receiver);
	return verdict();
}
