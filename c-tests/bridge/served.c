/* Proves: a helper serves a peer as long as it may reach the owner and no longer, believes no other process's entry in /proc, and takes no descriptor from anybody. */
/*
 * served drops: as root, a peer that was let in gives its rights up.
 * served numbers: in a pid namespace of which /proc knows nothing.
 * served files: peers send descriptors whose end would harm the owner.
 * The library is there and does nothing, but for the owner.
 */
#include "by_hand.h"

#include <linux/capability.h>
#include <mqueue.h>
#include <netinet/in.h>
#include <sched.h>
#include <sys/prctl.h>

#pragma weak regall_lookup

#define USER 54321
#define SECRET 0x5ec7e7

/* ---- the owner ---- */

static int owner(void)
{
	char line[64];
	uint64_t *secret = (uint64_t *)(void *)anon(1);
	struct regall_range found = { 0 };
	*secret = SECRET;
	NEED(regall_lookup && regall_lookup(NULL, secret, 1, &found) == 0);
	snprintf(line, sizeof line, "/served-%d", (int)getpid());
	mqd_t queue = mq_open(line, O_RDWR | O_CREAT | O_EXCL, 0600, NULL);
	struct sigevent event = { .sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGURG };
	bool notified = queue >= 0 && mq_notify(queue, &event) == 0;
	say("%d", notified);
	say("%d", (int)getpid());
	say("%lu", (unsigned long)(uintptr_t)secret);
	say("%lu", (unsigned long)found.id);
	while (line_from(0, line, sizeof line))
		if (strcmp(line, "queue") == 0)
			say("%d", mq_notify(queue, &event) != 0 && errno == EBUSY);
		else
			say("%lu", (unsigned long)*secret);
	return 0;
}

static struct other o;
static struct request get;
static bool has_queue;
static char queue[64];

static void start_owner(void)
{
	o = start_other(true, (char *[]){ "served", "owner", NULL });
	has_queue = hear_number(&o) != 0;
	pid_t pid = (pid_t)hear_number(&o);
	uint64_t at = hear_number(&o);
	get = (struct request){ .what = GET, .addr = at, .len = 8, .id = hear_number(&o) };
	snprintf(queue, sizeof queue, "/served-%d", (int)pid);
	image = 0;
	address.sun_family = 0;
	find(pid);
}

static void end_owner(void)
{
	if (has_queue)
		mq_unlink(queue);
	end_other(&o);
	/* What it leaves is nobody's to remove, where /proc has other numbers. */
	unlink(address.sun_path);
	address.sun_path[strlen(address.sun_path) - strlen(".sock")] = 0;
	unlink(address.sun_path);
}

/* ---- peers ---- */

static void without_capabilities(void)
{
	struct __user_cap_header_struct head = { _LINUX_CAPABILITY_VERSION_3, 0 };
	struct __user_cap_data_struct none[2] = { { 0, 0, 0 }, { 0, 0, 0 } };
	NEED(syscall(SYS_capset, &head, none) == 0);
}

static void give_up(int how)
{
	switch (how) {
	case 0:
		NEED(setresgid(USER, USER, USER) == 0 && setresuid(USER, USER, USER) == 0);
		break;
	case 1:
		without_capabilities();
		break;
	case 2:
		NEED(setresgid(USER, USER, USER) == 0);
		break;
	default:
		/* Has all of them again, in a namespace of its own. */
		without_capabilities();
		if (syscall(SYS_unshare, CLONE_NEWUSER) != 0)
			_exit(77);
	}
}

static void drops(void)
{
	start_owner();
	for (int how = 0; how < 4; how++) {
		pid_t pid = fork();
		NEED(pid >= 0);
		if (pid == 0) {
			int bounce, s = greeted(&bounce);
			uint64_t got = 0, put = 666;
			IS(0, ask_for(s, get));
			NEED(pread(bounce, &got, 8, 0) == 8);
			IS(SECRET, got);
			NEED(pwrite(bounce, &put, 8, 0) == 8);
			give_up(how);
			struct request write = get;
			write.what = PUT;
			IS(-1, ask_for(s, write));
			IS(-1, ask_for(s, get));
			NEED(pread(bounce, &got, 8, 0) == 8);
			IS(666, got);
			_exit(wrong != 0);
		}
		int status = -1;
		NEED(waitpid(pid, &status, 0) == pid);
		if (status != 77 << 8)
			IS(0, status);
		IS(SECRET, ask(&o, "?"));
	}
	/* One that has not is served. */
	int bounce, s = greeted(&bounce);
	IS(0, ask_for(s, get));
	end_owner();
}

/* Whether /proc has a process of that number, which has capabilities. */
static bool is_somebody(pid_t pid)
{
	char path[64], line[128];
	bool some = false;
	snprintf(path, sizeof path, "/proc/%d/status", (int)pid);
	FILE *f = fopen(path, "re");
	while (f && fgets(line, sizeof line, f))
		some |= strncmp(line, "CapEff:", 7) == 0 && strtoull(line + 7, NULL, 16) >> 20;
	if (f)
		fclose(f);
	return some;
}

static int in_namespace(void)
{
	bool tried = false;
	start_owner();
	for (int n = 0; n < 64 && !tried; n++) {
		pid_t pid = fork();
		NEED(pid >= 0);
		if (pid == 0) {
			if (!is_somebody(getpid()))
				_exit(78);
			without_capabilities();
			IS(EPERM, ask_for(connected(), hello()));
			_exit(wrong != 0);
		}
		int status = -1;
		NEED(waitpid(pid, &status, 0) == pid);
		if (status != 78 << 8) {
			tried = true;
			IS(0, status);
		}
	}
	end_owner();
	if (!tried)
		say("no process of these numbers outside");
	return wrong != 0;
}

/* Who has no capabilities serves its user all the same. */
static int as_user_there(void)
{
	NEED(setresgid(USER, USER, USER) == 0 && setresuid(USER, USER, USER) == 0);
	NEED(prctl(PR_SET_DUMPABLE, 1) == 0);
	start_owner();
	for (int n = 0; n < 3; n++) {
		int bounce, s = greeted(&bounce);
		IS(0, ask_for(s, get));
		close(s);
	}
	end_owner();
	return wrong != 0;
}

static int numbers(void)
{
	if (syscall(SYS_unshare, CLONE_NEWPID) != 0) {
		say("no pid namespaces");
		return 77;
	}
	pid_t pid = fork();
	NEED(pid >= 0);
	if (pid == 0) {
		/* The first process there, which outlives the others. */
		for (int n = 0; n < 2; n++) {
			int status = -1;
			pid_t child = fork();
			NEED(child >= 0);
			if (child == 0)
				_exit(n ? as_user_there() : in_namespace());
			NEED(waitpid(child, &status, 0) == child);
			IS(0, status);
		}
		_exit(wrong != 0);
	}
	int status = -1;
	NEED(waitpid(pid, &status, 0) == pid);
	IS(0, status);
	return verdict();
}

/* A socket whose last close waits for a minute. */
static int lingering(void)
{
	static char bytes[65536];
	struct sockaddr_in at = { .sin_family = AF_INET, .sin_addr = { htonl(INADDR_LOOPBACK) } };
	socklen_t len = sizeof at;
	int small = 4096, l = socket(AF_INET, SOCK_STREAM, 0), s = socket(AF_INET, SOCK_STREAM, 0);
	NEED(setsockopt(l, SOL_SOCKET, SO_RCVBUF, &small, sizeof small) == 0);
	if (bind(l, (struct sockaddr *)&at, sizeof at) != 0 || listen(l, 1) != 0)
		return -1;
	NEED(getsockname(l, (struct sockaddr *)&at, &len) == 0);
	if (connect(s, (struct sockaddr *)&at, sizeof at) != 0)
		return -1;
	NEED(accept(l, NULL, NULL) >= 0);
	while (send(s, bytes, sizeof bytes, MSG_DONTWAIT) > 0)
		;
	struct linger linger = { 1, 60 };
	NEED(setsockopt(s, SOL_SOCKET, SO_LINGER, &linger, sizeof linger) == 0);
	return s;
}

/* Sends it with a HELLO, and with a request after that. Whether the kernel refuses to. */
static bool hand(int fd)
{
	struct request q = hello();
	struct reply r;
	int bounce, got, s = connected();
	bool refused = false;
	q.magic = get.magic = MAGIC;
	for (int n = 0; n < 2; n++) {
		if (send_with(s, n ? &get : &q, sizeof q, &fd, 1) < 0) {
			IS(EPERM, errno);
			refused = true;
		} else {
			IS(-1, reply(s, &r, &got));
		}
		close(s);
		s = greeted(&bounce);
		close(bounce);
	}
	close(s);
	return refused;
}

static void files(void)
{
	start_owner();
	bool refused = false;
	if (has_queue) {
		mqd_t theirs = mq_open(queue, O_RDWR);
		NEED(theirs >= 0);
		refused = hand(theirs);
		IS(1, ask(&o, "queue"));
	}
	/* An older kernel lets go of it in the helper: nothing there can keep it from that. */
	int slow = refused ? lingering() : -1;
	if (slow >= 0) {
		hand(slow);
		int bounce, s = greeted(&bounce);
		IS(0, ask_for(s, get));
		struct linger none = { 0, 0 };
		setsockopt(slow, SOL_SOCKET, SO_LINGER, &none, sizeof none);
	}
	end_owner();
}

int main(int argc, char **argv)
{
	const char *what = argc > 1 ? argv[1] : "";
	no_longer_than(60);
	if (strcmp(what, "owner") == 0)
		return owner();
	if (strcmp(what, "numbers") == 0)
		return numbers();
	if (strcmp(what, "drops") == 0)
		drops();
	else if (strcmp(what, "files") == 0)
		files();
	else
		NEED(!"a chapter");
	return verdict();
}
