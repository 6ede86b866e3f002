/* Proves: of a sender that dies in the midst of a message nothing of that is delivered, and all that it had sent before is; who is stopped there holds up nobody else; a receiver that has died is -ESRCH; nothing is left of either. */
/*
 * boxes_end dies mail|ring: a sender dies while its message is copied.
 * boxes_end stops mail|ring: it is stopped there, and goes on later.
 * boxes_end receiver: how soon a sender learns that its receiver was killed is said.
 * boxes_end boxless: so it learns of one that never had a box, and of memory that was never there.
 */
#include "boxes.h"

#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>

/* More than a mailbox gives, and less. */
static unsigned before;

/* A message of two pages' parts, of which the second is not there. */
static unsigned char *torn(void)
{
	unsigned char *at = (void *)anon(2);
	NEED(mprotect(at + 4096, 4096, PROT_NONE) == 0);
	return at + 4096 - 100;
}

static volatile sig_atomic_t stopped;

/* The copy has come to the missing page. */
static void stops(int signal, siginfo_t *info, void *context)
{
	(void)signal;
	(void)context;
	unsigned char *page = (unsigned char *)((uintptr_t)info->si_addr & ~4095ul);
	stopped = 1;
	raise(SIGSTOP);
	if (mprotect(page, 4096, PROT_READ | PROT_WRITE) != 0)
		_exit(90);
	for (unsigned n = 0; n < 100; n++)
		page[n] = byte_of(before, 100 + n);
}

static void send_torn(pid_t to, bool stop)
{
	regall_peer *peer = open_peer(to, 0);
	send_some(peer, 0, before, 200);
	unsigned char *data = torn();
	fill(data, 100, before);
	if (stop) {
		struct sigaction act = { .sa_sigaction = stops, .sa_flags = SA_SIGINFO | SA_NODEFER };
		NEED(sigaction(SIGSEGV, &act, NULL) == 0);
	} else {
		signal(SIGSEGV, SIG_DFL);
		struct rlimit none = { 0, 0 };
		setrlimit(RLIMIT_CORE, &none);
	}
	IS(0, regall_send(peer, before, data, 200));
	HOLDS(stopped);
	send_some(peer, before + 1, 20, 200);
	_exit(verdict());
}

static _Alignas(8) unsigned char room[ROOM];

/* Takes what is there; how many are of this sender, which are in order from *next on. */
static unsigned take_of(pid_t pid, uint64_t *next, size_t most)
{
	unsigned others = 0;
	int got = regall_wait(room, sizeof room, 50);
	const struct regall_message *m = (const void *)room;
	HOLDS(got >= 0);
	for (int n = 0; n < got; n++, m = regall_message_next(m)) {
		is_whole(m);
		if (m->pid == pid) {
			IS((*next)++, m->tag);
			if (m->tag != before)
				IS(length_of(m->tag, most), m->bytes);
		} else {
			others++;
		}
	}
	return others;
}

/* Another sender gets through whatever has become of the first. */
static void another_sends(unsigned count, uint64_t *next, pid_t first)
{
	regall_peer *self = open_peer(getpid(), 0);
	unsigned got = 0;
	unsigned char data[300];
	for (unsigned n = 0; n < count; n++) {
		uint64_t tag = 1ull << 40 | n;
		fill(data, n % 300, tag);
		while (regall_send(self, tag, data, n % 300) == -EAGAIN)
			got += take_of(first, next, 200);
	}
	while (got < count && !wrong)
		got += take_of(first, next, 200);
	IS(count, got);
	IS(0, regall_peer_close(self));
}

static int sender_ends(bool stop)
{
	NEED(regall_box_open() == 0);
	pid_t parent = getpid(), pid = begin_child();
	if (pid == 0)
		send_torn(parent, stop);
	uint64_t next = 0;
	int status;
	NEED(waitpid(pid, &status, WUNTRACED) == pid);
	HOLDS(stop ? WIFSTOPPED(status) : WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV);
	another_sends(2000, &next, pid);
	IS(before, next);
	if (stop) {
		kill(pid, SIGCONT);
		uint64_t since = now_ns();
		while (next < before + 21 && now_ns() - since < 20000000000u)
			take_of(pid, &next, 200);
		IS(before + 21, next);
		ends_well(pid);
	}
	/* What it had is had by others again: they come one after another, each with all of it. */
	for (unsigned n = 0; n < 40; n++) {
		pid = begin_child();
		if (pid == 0) {
			regall_peer *peer = open_peer(parent, 0);
			send_some(peer, 0, 5, 200);
			_exit(verdict());
		}
		ends_well(pid);
		next = 0;
		while (next < 5 && !wrong)
			take_of(pid, &next, 200);
	}
	IS(0, regall_poll(room, sizeof room));
	return verdict();
}

/* A box that is read no more: killed with messages in it. */
static int receiver_ends(void)
{
	int ready[2];
	NEED(pipe(ready) == 0);
	pid_t pid = begin_child();
	if (pid == 0) {
		NEED(regall_box_open() == 0 && write(ready[1], "!", 1) == 1);
		for (;;)
			regall_wait(room, sizeof room, -1);
	}
	char c;
	NEED(read(ready[0], &c, 1) == 1);
	regall_peer *peer = open_peer(pid, 0);
	send_some(peer, 0, 200, 200);
	uint64_t since = now_ns();
	kill(pid, SIGKILL);
	NEED(waitpid(pid, NULL, 0) == pid);
	int r;
	while ((r = regall_send(peer, 0, "", 0)) == 0 || r == -EAGAIN)
		pause_us(100);
	IS(-ESRCH, r);
	say("%.1f ms", (double)(now_ns() - since) / 1e6);
	IS(-ESRCH, regall_send(peer, 0, "", 0));
	uint64_t word = 0;
	IS(-ESRCH, regall_put_notify(peer, &word, (uintptr_t)&word, 8, 0, NULL));
	IS(0, regall_peer_close(peer));
	return verdict();
}

/* A process that never had a box, and ends or executes another program. */
static void boxless(bool executes, int error)
{
	int ready[2], go[2];
	NEED(pipe(ready) == 0 && pipe(go) == 0);
	pid_t pid = begin_child();
	char c = 0;
	if (pid == 0) {
		NEED(write(ready[1], "!", 1) == 1 && read(go[0], &c, 1) == 1);
		if (executes)
			execlp("sleep", "sleep", "100", (char *)NULL);
		_exit(0);
	}
	NEED(read(ready[0], &c, 1) == 1);
	regall_peer *peer = open_peer(pid, 0);
	uint64_t word = 0;
	IS(-ENOTCONN, regall_send(peer, 0, "", 0));
	IS(-EFAULT, regall_get(peer, &word, 4096, 8, NULL));
	NEED(write(go[1], "!", 1) == 1);
	while (regall_peer_check(peer) == 0)
		pause_us(100);
	IS(error, regall_peer_check(peer));
	IS(error, regall_send(peer, 0, "", 0));
	IS(error, regall_put_notify(peer, &word, (uintptr_t)&word, 8, 0, NULL));
	IS(error, regall_get(peer, &word, 4096, 8, NULL));
	IS(0, regall_peer_close(peer));
	kill(pid, SIGKILL);
	NEED(waitpid(pid, NULL, 0) == pid);
}

static int without_a_box(void)
{
	boxless(false, -ESRCH);
	boxless(true, -ESTALE);
	return verdict();
}

int main(int argc, char **argv)
{
	no_longer_than(100);
	const char *what = argc > 1 ? argv[1] : "", *where = argc > 2 ? argv[2] : "";
	if (strcmp(what, "receiver") == 0)
		return receiver_ends();
	if (strcmp(what, "boxless") == 0)
		return without_a_box();
	before = strcmp(where, "ring") == 0 ? 50 : 5;
	return sender_ends(strcmp(what, "stops") == 0);
}
