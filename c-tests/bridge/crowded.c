/* Proves: who takes all the places of a helper keeps nobody out, whether it says nothing or asks for nothing. */
/*
 * crowded users: as root, another user takes all places for a region that is for all.
 * crowded own: a process of the same user takes all places.
 * The library is there and does nothing, but for the owner.
 */
#include "by_hand.h"

#pragma weak regall_region_create

#define ONE_USER 54321
#define OTHER_USER 54322
#define SECRET 0x5ec7e7
enum { COOKIE_GET = 6 };

static int owner(void)
{
	char line[64];
	uint64_t *secret = (uint64_t *)(void *)anon(1), cookie = 0;
	struct regall_segment all = { (uintptr_t)secret, 8 };
	struct stat namespace;
	unsigned long start = 0;
	*secret = SECRET;
	NEED(regall_region_create);
	NEED(regall_region_create(&all, 1, REGALL_REGION_READ, REGALL_REGION_ANY_USER, &cookie) == 0);
	NEED(stat("/proc/self/ns/pid", &namespace) == 0);
	FILE *f = fopen("/proc/self/stat", "re");
	NEED(f && fscanf(f, "%*d %*s %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %*u %*u %*d %*d %*d %*d %*d %*d %lu",
			 &start) == 1);
	fclose(f);
	say("regall.%d.%lu.%lu", (int)getpid(), start, (unsigned long)namespace.st_ino);
	say("%lu", (unsigned long)cookie);
	while (line_from(0, line, sizeof line))
		;
	return 0;
}

static struct other o;
static char name[96];
static struct request hold = { .what = HOLD };

static void start_owner(void)
{
	o = start_other(true, (char *[]){ "crowded", "owner", NULL });
	hear(&o, name, sizeof name);
	hold.id = hear_number(&o);
	find(o.pid);
}

/* As any user. */
static int open_connection(void)
{
	struct sockaddr_un to = { .sun_family = AF_UNIX };
	struct timeval most = { 2, 0 };
	int s = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	strncpy(to.sun_path + 1, name, sizeof to.sun_path - 2);
	NEED(s >= 0 && setsockopt(s, SOL_SOCKET, SO_RCVTIMEO, &most, sizeof most) == 0);
	socklen_t length = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + strlen(name));
	NEED(connect(s, (struct sockaddr *)&to, length) == 0);
	return s;
}

/* Tries to have the secret; what its last answer was. */
static int copies(void)
{
	int bounce = -1, s = open_connection(), said = ask_for_file(s, hello(), &bounce);
	struct request get = { .what = COOKIE_GET, .len = 8 };
	uint64_t got = 0;
	if (said == 0)
		said = ask_for(s, hold);
	if (said == 0)
		said = ask_for(s, get);
	if (said == 0) {
		NEED(pread(bounce, &got, 8, 0) == 8);
		IS(SECRET, got);
	}
	close(bounce);
	close(s);
	return said;
}

/* Runs it in a child that becomes the user. */
static int as(uid_t user, void (*what)(int), int argument)
{
	int ready[2], status = -1;
	char byte;
	NEED(pipe2(ready, O_CLOEXEC) == 0);
	pid_t pid = fork();
	NEED(pid >= 0);
	if (pid == 0) {
		NEED(setresgid(user, user, user) == 0 && setresuid(user, user, user) == 0);
		what(argument);
		NEED(write(ready[1], "x", 1) == 1);
		if (argument >= 0)
			pause();
		_exit(wrong != 0);
	}
	close(ready[1]);
	NEED(read(ready[0], &byte, 1) == 1);
	close(ready[0]);
	if (argument >= 0)
		return pid;
	NEED(waitpid(pid, &status, 0) == pid);
	IS(0, status);
	return 0;
}

/* Connects far more often than there are places, and goes so far with each. */
static void crowd(int how_far)
{
	for (int n = 0; n < 100; n++) {
		int bounce = -1, s = open_connection();
		if (how_far > 0)
			ask_for_file(s, hello(), &bounce);
		if (how_far > 1 && bounce >= 0)
			ask_for(s, hold);
		/* (Both stay open.) */
	}
}

static void is_served(int unused)
{
	(void)unused;
	for (int n = 0; n < 3; n++)
		IS(0, copies());
}

static void users(void)
{
	start_owner();
	for (int how_far = 0; how_far < 3; how_far++) {
		pid_t pid = as(ONE_USER, crowd, how_far);
		as(OTHER_USER, is_served, -1);
		kill(pid, SIGKILL);
		waitpid(pid, NULL, 0);
	}
	end_other(&o);
}

static void own(void)
{
	int bounce;
	start_owner();
	pid_t pid = fork();
	NEED(pid >= 0);
	if (pid == 0) {
		/* Those that say something are as many as a process may have. */
		for (int n = 0; n < 300; n++)
			if (n % 5)
				connected();
			else
				ask_for_file(connected(), hello(), &bounce);
		pause();
	}
	pause_us(1300000);
	for (int n = 0; n < 3; n++) {
		int s = greeted(&bounce);
		close(bounce);
		close(s);
	}
	kill(pid, SIGKILL);
	waitpid(pid, NULL, 0);
	end_other(&o);
}

int main(int argc, char **argv)
{
	const char *what = argc > 1 ? argv[1] : "";
	no_longer_than(60);
	if (strcmp(what, "owner") == 0)
		return owner();
	if (strcmp(what, "users") == 0)
		users();
	else if (strcmp(what, "own") == 0)
		own();
	else
		NEED(!"a chapter");
	return verdict();
}
