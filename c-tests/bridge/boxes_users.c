/* Proves: who may send to a process is decided as for its memory: another user never, nor one that has become another; of its own user, who the kernel lets, or the helper. */
/*
 * boxes_users others: as root, by processes of two users.
 * boxes_users hidden sent|refused: to a process that is not dumpable; REGALL_COPY says whether it
 *   has a helper.
 * boxes_users few: by a process that has few free descriptors, or none.
 */
#include "boxes.h"

#include <sys/resource.h>

#define USER 54321
#define OTHER 54322

static void become(unsigned user)
{
	NEED(setresgid(user, user, user) == 0 && setresuid(user, user, user) == 0);
}

static void become_if_root(unsigned user)
{
	if (geteuid() == 0)
		become(user);
}

/* This program again, of that user from its start on. */
static struct other start_as(unsigned user, char *const argv[])
{
	return start_after(become_if_root, user, argv);
}

/* Has a box; says how many messages have come when it is asked. */
static int receives(const char *how)
{
	_Alignas(8) static unsigned char room[ROOM];
	if (strcmp(how, "hidden") == 0)
		NEED(prctl(PR_SET_DUMPABLE, 0) == 0);
	NEED(regall_box_open() == 0);
	say("0");
	char line[16];
	while (line_from(0, line, sizeof line)) {
		int got = regall_wait(room, sizeof room, 100);
		HOLDS(got >= 0);
		say("%d", got);
	}
	return verdict();
}

/* Leaves this process so many free descriptors. */
static void keep_free(int count)
{
	struct rlimit most = { 64, 64 };
	int fd, last = -1;
	NEED(setrlimit(RLIMIT_NOFILE, &most) == 0);
	while ((fd = open("/dev/null", O_RDONLY)) >= 0)
		last = fd;
	for (; count > 0; count--)
		NEED(close(last--) == 0);
}

/* What comes of opening the process and sending to it, with so many free descriptors (-1: enough):
 * 0, or the error of either. */
static int sends(pid_t to, int free)
{
	regall_peer *peer;
	int r = regall_peer_open(to, 0, 0, &peer);
	if (free >= 0)
		keep_free(free);
	say("%d", r == 0 ? regall_send(peer, 1, "x", 1) : r);
	return 0;
}

static long sent_with(unsigned user, pid_t to, int free)
{
	char pid[16], count[16];
	snprintf(pid, sizeof pid, "%d", to);
	snprintf(count, sizeof count, "%d", free);
	struct other sender = start_as(user, (char *[]){ "boxes_users", "send", pid, count, NULL });
	char line[32];
	hear(&sender, line, sizeof line);
	end_other(&sender);
	return atol(line);
}

static long sent_by(unsigned user, pid_t to)
{
	return sent_with(user, to, -1);
}

static int few(void)
{
	struct other o = start_as(USER, (char *[]){ "boxes_users", "receive", "open", NULL });
	char line[32];
	long sent = 0;
	if (!line_from(o.from, line, sizeof line)) {
		say("SKIPPED: becoming another user: it can't run programs from here");
		return 0;
	}
	for (int free = 0; free < 8; free++) {
		long r = sent_with(USER, o.pid, free);
		HOLDS(r == 0 || r == -EMFILE);
		sent += r == 0;
	}
	HOLDS(sent > 0 && sent < 8);
	IS(sent, ask(&o, "how many"));
	end_other(&o);
	return verdict();
}

static int others(void)
{
	if (geteuid() != 0) {
		say("SKIPPED: becoming another user: not root");
		return 0;
	}
	char *receiver[] = { "boxes_users", "receive", "open", NULL };
	struct other users = start_as(USER, receiver);
	char line[32];
	if (!line_from(users.from, line, sizeof line)) {
		say("SKIPPED: becoming another user: it can't run programs from here");
		return 0;
	}
	IS(0, sent_by(USER, users.pid));
	HOLDS(sent_by(OTHER, users.pid) < 0);
	IS(1, ask(&users, "how many"));
	end_other(&users);
	/* One that had opened the peer while it was root. */
	struct other roots = start_as(0, receiver);
	hear(&roots, line, sizeof line);
	pid_t pid = fork();
	NEED(pid >= 0);
	if (pid == 0) {
		regall_peer *peer = open_peer(roots.pid, 0);
		become(USER);
		HOLDS(regall_send(peer, 1, "x", 1) < 0);
		_exit(verdict());
	}
	ends_well(pid);
	IS(0, ask(&roots, "how many"));
	end_other(&roots);
	return verdict();
}

static int hidden(const char *want)
{
	struct other o = start_as(USER, (char *[]){ "boxes_users", "receive", "hidden", NULL });
	char line[32];
	if (!line_from(o.from, line, sizeof line)) {
		say("SKIPPED: becoming another user: it can't run programs from here");
		return 0;
	}
	bool sent = strcmp(want, "sent") == 0;
	IS(sent ? 0 : -EPERM, sent_by(USER, o.pid));
	IS(sent, ask(&o, "how many"));
	end_other(&o);
	return verdict();
}

int main(int argc, char **argv)
{
	no_longer_than(60);
	const char *what = argc > 1 ? argv[1] : "", *more = argc > 2 ? argv[2] : "";
	if (strcmp(what, "receive") == 0)
		return receives(more);
	if (strcmp(what, "send") == 0)
		return sends(atoi(more), argc > 3 ? atoi(argv[3]) : -1);
	if (strcmp(what, "few") == 0)
		return few();
	return strcmp(what, "hidden") == 0 ? hidden(more) : others();
}
