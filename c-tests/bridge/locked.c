/* Proves: who holds the lock of a file that it shares with a helper's process makes nobody wait, and keeps nobody alive. */
/*
 * A write(2) from a page that does not come holds the lock of the file for as long as it likes; who
 * waits for the lock can't be killed.
 *
 * locked own: a process of the same user holds that of its bounce buffer, and gets.
 * locked users: as root, another user does.
 * locked caller: as root, another user's owner holds that of the buffer into which others put.
 */
#include <linux/userfaultfd.h>
#include <pthread.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include "by_hand.h"

#pragma weak regall_region_create
#pragma weak regall_region_write

#define OTHER_USER 54321
#define ONE_USER 54322
#define SECRET 0x5ec7e7
#define CHUNK (128ul << 10)
enum { COOKIE_GET = 6, COOKIE_PUT };

/* A page that does not come until `let_go`. */
static int faults;
static char *slow;

/* Before this process gives root up. */
static void make_slow(void)
{
	struct uffdio_api api = { .api = UFFD_API };
	faults = (int)syscall(SYS_userfaultfd, O_CLOEXEC);
	if (faults < 0) {
		say("no userfaultfd");
		exit(77);
	}
	NEED(ioctl(faults, UFFDIO_API, &api) == 0);
	slow = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	NEED(slow != MAP_FAILED);
	struct uffdio_register all = { .range = { (uintptr_t)slow, PAGE }, .mode = UFFDIO_REGISTER_MODE_MISSING };
	NEED(ioctl(faults, UFFDIO_REGISTER, &all) == 0);
}

static void *write_slowly(void *fd)
{
	(void)!write((int)(intptr_t)fd, slow, 1);
	return NULL;
}

/* Holds the lock of this file. */
static void hold_lock_of(int fd)
{
	pthread_t thread;
	struct uffd_msg message;
	NEED(pthread_create(&thread, NULL, write_slowly, (void *)(intptr_t)fd) == 0);
	/* It waits for the page, and so it has the lock. */
	NEED(read(faults, &message, sizeof message) == sizeof message);
}

static void let_go(void)
{
	struct uffdio_zeropage zero = { .range = { (uintptr_t)slow, PAGE } };
	ioctl(faults, UFFDIO_ZEROPAGE, &zero);
}

/* The abstract name at which this process is found by other users. */
static void own_name(char *name, size_t room)
{
	struct stat namespace;
	unsigned long start = 0;
	NEED(stat("/proc/self/ns/pid", &namespace) == 0);
	FILE *f = fopen("/proc/self/stat", "re");
	NEED(f && fscanf(f, "%*d %*s %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %*u %*u %*d %*d %*d %*d %*d %*d %lu",
			 &start) == 1);
	fclose(f);
	snprintf(name, room, "regall.%d.%lu.%lu", (int)getpid(), start, (unsigned long)namespace.st_ino);
}

static socklen_t abstract(struct sockaddr_un *at, const char *name)
{
	*at = (struct sockaddr_un){ .sun_family = AF_UNIX };
	strncpy(at->sun_path + 1, name, sizeof at->sun_path - 2);
	return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + strlen(name));
}

static void become(uid_t user)
{
	NEED(setresgid(user, user, user) == 0 && setresuid(user, user, user) == 0);
	/* As after exec: /proc says whose it is. */
	NEED(prctl(PR_SET_DUMPABLE, 1) == 0);
}

static int owner(void)
{
	char line[64], name[96];
	uint64_t *secret = (uint64_t *)(void *)anon(1), cookie = 0;
	struct regall_segment all = { (uintptr_t)secret, 8 };
	*secret = SECRET;
	NEED(regall_region_create);
	NEED(regall_region_create(&all, 1, REGALL_REGION_READ, REGALL_REGION_ANY_USER, &cookie) == 0);
	own_name(name, sizeof name);
	say("%s", name);
	say("%lu", (unsigned long)cookie);
	say("%lu", (unsigned long)(uintptr_t)secret);
	while (line_from(0, line, sizeof line))
		;
	return 0;
}

static struct other o;
static char name[96];
static uint64_t cookie, secret;

static void start_owner(void)
{
	o = start_other(true, (char *[]){ "locked", "owner", NULL });
	hear(&o, name, sizeof name);
	cookie = hear_number(&o);
	secret = hear_number(&o);
}

/* The number of the directory's entry for the secret. */
static uint64_t entry(void)
{
	enum { HEADER = 8192, GENERATION = 0, START = 1, END = 2, ID = 4, SEGMENT = 1024 };
	char path[sizeof address.sun_path];
	uint64_t slot[8], id = 0;
	snprintf(path, sizeof path, "%.*s", (int)(strlen(address.sun_path) - 5), address.sun_path);
	int fd = open(path, O_RDONLY);
	NEED(fd >= 0);
	for (int n = 0; n < SEGMENT && pread(fd, slot, sizeof slot, HEADER + (off_t)sizeof slot * n) == sizeof slot; n++)
		if (slot[GENERATION] && slot[START] <= secret && secret < slot[END])
			id = slot[ID];
	close(fd);
	NEED(id);
	return id;
}

static void holds_secret(int bounce, off_t at)
{
	uint64_t got = 0;
	NEED(pread(bounce, &got, 8, at) == 8);
	IS(SECRET, got);
}

/* The owner is killed, and is gone soon. */
static void dies(void)
{
	kill(o.pid, SIGKILL);
	for (int n = 0; n < 500; n++) {
		if (waitpid(o.pid, NULL, WNOHANG) == o.pid)
			return;
		pause_us(10000);
	}
	HOLDS(!"the owner ends");
}

static void own(void)
{
	int bounce;
	start_owner();
	find(o.pid);
	make_slow();
	int s = greeted(&bounce);
	hold_lock_of(bounce);
	IS(0, ask_for(s, (struct request){ .what = GET, .number = 2, .addr = secret, .len = 8, .id = entry(), .offset = 4096 }));
	holds_secret(bounce, 4096);
	IS(0, ask_for(s, (struct request){ .what = HOLD, .number = 3, .id = cookie }));
	IS(0, ask_for(s, (struct request){ .what = COOKIE_GET, .number = 4, .len = 8, .offset = 8192 }));
	holds_secret(bounce, 8192);
	dies();
	let_go();
}

/* In a process of another user: gets, with the lock in hand, and stays. */
static void get_as_other_user(int said)
{
	struct sockaddr_un to;
	struct timeval most = { 2, 0 };
	int bounce = -1, s = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	make_slow();
	become(OTHER_USER);
	NEED(s >= 0 && setsockopt(s, SOL_SOCKET, SO_RCVTIMEO, &most, sizeof most) == 0);
	NEED(connect(s, (struct sockaddr *)&to, abstract(&to, name)) == 0);
	IS(0, ask_for_file(s, hello(), &bounce));
	IS(0, ask_for(s, (struct request){ .what = HOLD, .number = 2, .id = cookie }));
	hold_lock_of(bounce);
	IS(0, ask_for(s, (struct request){ .what = COOKIE_GET, .number = 3, .len = 8, .offset = 4096 }));
	holds_secret(bounce, 4096);
	NEED(write(said, wrong ? "w" : "r", 1) == 1);
	pause();
}

static void users(void)
{
	int said[2];
	char byte = 0;
	start_owner();
	NEED(pipe2(said, O_CLOEXEC) == 0);
	pid_t pid = fork();
	NEED(pid >= 0);
	if (pid == 0) {
		get_as_other_user(said[1]);
		_exit(1);
	}
	close(said[1]);
	NEED(read(said[0], &byte, 1) == 1);
	IS('r', byte);
	dies();
	kill(pid, SIGKILL);
	waitpid(pid, NULL, 0);
}

/* In a process of another user: an owner that holds the lock of the buffer that it hands out. */
static void hostile_owner(int ready)
{
	struct sockaddr_un at;
	struct request q;
	char own[96], folder[64];
	int bounce = memfd_create("bounce", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	make_slow();
	become(OTHER_USER);
	NEED(bounce >= 0 && ftruncate(bounce, BOUNCE) == 0);
	own_name(own, sizeof own);
	/* Who has no folder has no regions. */
	snprintf(folder, sizeof folder, "/dev/shm/regall-%d", OTHER_USER);
	HOLDS(mkdir(folder, 0700) == 0 || errno == EEXIST);
	int l = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	NEED(l >= 0 && bind(l, (struct sockaddr *)&at, abstract(&at, own)) == 0 && listen(l, 8) == 0);
	lseek(bounce, BOUNCE - 1, SEEK_SET);
	hold_lock_of(bounce);
	NEED(write(ready, "x", 1) == 1);
	int s = accept4(l, NULL, NULL, SOCK_CLOEXEC);
	struct timeval most = { 3, 0 };
	NEED(s >= 0 && setsockopt(s, SOL_SOCKET, SO_RCVTIMEO, &most, sizeof most) == 0);
	for (int puts = 0; puts < 2;) {
		if (recv(s, &q, sizeof q, 0) != sizeof q) {
			HOLDS(!"a put comes");
			let_go();
			break;
		}
		struct reply r = { .magic = MAGIC, .number = q.number, .bytes = q.what == HOLD ? 2 * CHUNK : q.len };
		if (q.what == COOKIE_PUT) {
			char first = 0, last = 0;
			NEED(pread(bounce, &first, 1, (off_t)q.offset) == 1);
			NEED(pread(bounce, &last, 1, (off_t)(q.offset + q.len) - 1) == 1);
			IS('p', first);
			IS('p', last);
			/* The last one is not answered: who has put it cuts nothing short. */
			if (++puts == 2)
				break;
		}
		NEED(send_with(s, &r, sizeof r, &bounce, q.what == HELLO) == sizeof r);
	}
	/* Until the caller has hung up. */
	HOLDS(recv(s, &q, sizeof q, 0) == 0);
	rmdir(folder);
	_exit(wrong != 0);
}

static void caller(void)
{
	int ready[2], status = -1;
	char byte, *bytes = anon(2 * CHUNK / PAGE);
	struct regall_segment local = { (uintptr_t)bytes, 2 * CHUNK };
	struct regall_done done = { 0, 0, 0, 0 };
	memset(bytes, 'p', 2 * CHUNK);
	NEED(regall_region_write);
	NEED(pipe2(ready, O_CLOEXEC) == 0);
	pid_t pid = fork();
	NEED(pid >= 0);
	if (pid == 0)
		hostile_owner(ready[1]);
	NEED(read(ready[0], &byte, 1) == 1);
	become(ONE_USER);
	HOLDS(regall_region_write(12345ull << 22 | (uint64_t)pid, 0, &local, 1, &done) < 0);
	IS(CHUNK, done.bytes);
	NEED(waitpid(pid, &status, 0) == pid);
	IS(0, status);
}

int main(int argc, char **argv)
{
	const char *what = argc > 1 ? argv[1] : "";
	no_longer_than(60);
	if (strcmp(what, "owner") == 0)
		return owner();
	if (strcmp(what, "own") == 0)
		own();
	else if (strcmp(what, "users") == 0)
		users();
	else if (strcmp(what, "caller") == 0)
		caller();
	else
		NEED(!"a chapter");
	return verdict();
}
