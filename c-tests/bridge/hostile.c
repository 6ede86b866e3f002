/* Proves: whatever the directory of a process of the same user says, opening it and getting what it names ends, harmlessly. */
/*
 * hostile FILES [seed]. The peer is a process without the shim that has a forged directory
 * mapped, a copy of our own at first. It is scribbled over, opened and read through, FILES
 * times; every other time while a thread goes on scribbling. `hostile victim FILE` is that
 * process, for other tests, too.
 */
#include <pthread.h>
#include <sys/prctl.h>
#include "peers.h"

/* Of directory/src/layout.rs. */
#define HEADER 8192ul
#define SLOTS 1024ul
#define FIRST_PART (HEADER + SLOTS * 64)
#define SEGMENTS 12
enum { MAGIC, PID, START, IMAGE, NAMESPACE, UID, GENERATION, HIGH_WATER, SEGMENT_COUNT, INFLIGHT = 96 };

static char known[16 * PAGE] __attribute__((aligned(4096)));

static int victim(const char *path)
{
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	int fd = open(path, O_RDONLY);
	memset(known, 1, sizeof known);
	NEED(fd >= 0 && mmap(NULL, PAGE, PROT_READ, MAP_SHARED, fd, 0) != MAP_FAILED);
	say("%lu", (unsigned long)(uintptr_t)known);
	for (;;)
		pause();
}

static uint64_t start_time(pid_t pid)
{
	char path[64], text[1024];
	snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	ssize_t n = read(fd, text, sizeof text - 1);
	NEED(n > 0);
	close(fd);
	text[n] = 0;
	char *at = strrchr(text, ')');
	for (int field = 2; field < 22; field++)
		at = strchr(at + 1, ' ');
	return strtoull(at, NULL, 10);
}

/* Our own directory's first part. */
static void copy_own(uint64_t *to)
{
	char line[512];
	const char *from = NULL;
	FILE *f = fopen("/proc/self/maps", "r");
	NEED(f);
	while (fgets(line, sizeof line, f))
		if (strstr(line, "/dev/shm/regall-") && !from)
			from = (const char *)strtoul(line, NULL, 16);
	fclose(f);
	NEED(from);
	memcpy(to, from, FIRST_PART);
}

static uint64_t *file; /* the forged one */
static uint64_t good[FIRST_PART / 8];
static uint64_t victim_memory;
static size_t file_bytes;

static uint64_t odd_number(void)
{
	static const uint64_t ALL[] = { 0, 1, 4095, 4096, 1ul << 20, 1ul << 31, 1ul << 32, 1ul << 46, 0x7ffffffff000,
					1ul << 47, 1ul << 56, 1ul << 63, 0xffff800000000000, 0xffffffffff600000, UINT64_MAX - 4095, UINT64_MAX };
	switch (draw(4)) {
	case 0:
		return ALL[draw(sizeof ALL / sizeof *ALL)];
	case 1:
		return victim_memory + draw(64) * PAGE - 16 * PAGE;
	case 2:
		return draw(UINT64_MAX >> 16) << draw(17);
	default:
		return good[draw(FIRST_PART / 8)];
	}
}

/* One change, anywhere or where it matters. */
static void scribble(void)
{
	uint64_t word;
	switch (draw(6)) {
	case 0:
		word = GENERATION + draw(9);
		break;
	case 1:
		/* Who it is seldom: nothing is read then. */
		word = draw(20) ? draw(HEADER / 8 - 5) + 5 : draw(5);
		break;
	case 2:
		word = INFLIGHT + draw(256);
		break;
	default: {
		/* An entry, which may lie over others. */
		uint64_t *slot = file + HEADER / 8 + draw(draw(2) ? 64 : SLOTS) * 8;
		slot[1] = draw(2) ? victim_memory & ~(PAGE - 1) : odd_number();
		slot[2] = draw(2) ? slot[1] + draw(1000) * PAGE : odd_number();
		slot[3] = draw(4) ? good[HEADER / 8 + 8 * draw(20) + 3] : odd_number();
		slot[6] = draw(8) ? 0 : odd_number();
		__atomic_store_n(&slot[0], draw(4) ? draw(1000) : odd_number(), __ATOMIC_RELEASE);
		return;
	}
	}
	__atomic_store_n(&file[word], odd_number(), __ATOMIC_RELAXED);
}

static volatile int go, over;

static void *scribble_on(void *arg)
{
	while (!over)
		if (go)
			scribble();
		else
			pause_us(50);
	return arg;
}

static struct {
	long opened, refused, got;
} sum_of;

static void read_through(pid_t pid)
{
	static char buffer[64 * PAGE];
	regall_peer *peer;
	int r = regall_peer_open(pid, 0, 0, &peer);
	sum_of.opened += r == 0;
	sum_of.refused += r != 0;
	if (r != 0) {
		HOLDS(r == -ENOEXEC || r == -ENOENT || r == -EPERM || r == -ENOMEM);
		return;
	}
	for (int n = 0; n < 4; n++) {
		struct regall_segment from[3], to = { (uint64_t)(uintptr_t)buffer, sizeof buffer };
		struct regall_done done = { 0, 0, 0, 0 };
		for (int i = 0; i < 3; i++) {
			const uint64_t *slot = file + HEADER / 8 + draw(64) * 8;
			uint64_t at = draw(2) ? victim_memory + draw(sizeof known) : slot[1] + draw(5000);
			from[i] = (struct regall_segment){ at, draw(4) ? draw(20000) : odd_number() };
		}
		r = regall_getv(peer, &to, 1, from, 3, &done);
		HOLDS(r <= 0 && r > -134 && done.bytes <= sizeof buffer);
		/* It is the victim's memory at any rate. */
		if (from[0].addr - victim_memory < sizeof known) {
			size_t left = sizeof known - (from[0].addr - victim_memory);
			size_t n_good = from[0].len < done.bytes ? from[0].len : done.bytes;
			HOLDS(all_are(buffer, n_good < left ? n_good : left, 1));
		}
		sum_of.got += done.bytes > 0;
	}
	IS(0, regall_peer_close(peer));
}

int main(int argc, char **argv)
{
	NEED(argc > 1);
	if (strcmp(argv[1], "victim") == 0)
		return victim(argv[2]);
	no_longer_than(120);
	seed_of_draws += argc > 2 ? strtoull(argv[2], NULL, 10) : now_ns();
	uint64_t seed = seed_of_draws;
	copy_own(good);
	char path[128], draft[128];
	struct stat s;
	NEED(stat("/proc/self/ns/pid", &s) == 0);
	snprintf(draft, sizeof draft, "/dev/shm/regall-%d/draft.%d", (int)geteuid(), (int)getpid());
	int fd = open(draft, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
	/* All segments that there may be, most of them holes. */
	file_bytes = HEADER + SLOTS * 64 * ((1ul << SEGMENTS) - 1);
	NEED(fd >= 0 && ftruncate(fd, (off_t)file_bytes) == 0);
	char *const arguments[] = { "hostile", "victim", draft, NULL };
	struct other v = start_other(false, arguments);
	victim_memory = hear_number(&v);
	uint64_t start = start_time(v.pid);
	snprintf(path, sizeof path, "/dev/shm/regall-%d/%d.%lu.%lu", (int)geteuid(), (int)v.pid, (unsigned long)start, (unsigned long)s.st_ino);
	NEED(rename(draft, path) == 0);
	file = mmap(NULL, FIRST_PART, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	NEED(file != MAP_FAILED);
	good[PID] = (uint64_t)v.pid;
	good[START] = start;
	/* What is ours there may be the victim's, too. */
	uint64_t *entry = good + HEADER / 8;
	while (entry[0] == 0 || entry[1] > (uintptr_t)known || entry[2] <= (uintptr_t)known)
		entry += 8;
	entry[1] = victim_memory & ~(PAGE - 1);
	entry[2] = entry[1] + sizeof known;
	memcpy(file, good, FIRST_PART);
	/* Or the rest shows nothing. */
	regall_peer *peer = open_peer(v.pid, 0);
	char byte = 0;
	IS(0, regall_get(peer, &byte, victim_memory, 1, NULL));
	IS(1, byte);
	regall_peer_close(peer);
	/* The first word is stored last: without it the directory is being made. */
	file[0] = 0;
	IS(-ENOENT, regall_peer_open(v.pid, 0, 0, &peer));
	file[0] = good[0] + 1;
	IS(-ENOEXEC, regall_peer_open(v.pid, 0, 0, &peer));
	file[0] = good[0];
	pthread_t thread;
	NEED(pthread_create(&thread, NULL, scribble_on, NULL) == 0);
	uint64_t longest = 0;
	for (long n = 0; n < atol(argv[1]) && wrong < 10; n++) {
		if (n % 16 == 0)
			memcpy(file, good, FIRST_PART);
		for (uint64_t times = draw(8); times > 0; times--)
			scribble();
		go = n % 2;
		uint64_t began = now_ns();
		read_through(v.pid);
		go = 0;
		if (now_ns() - began > longest)
			longest = now_ns() - began;
	}
	over = 1;
	pthread_join(thread, NULL);
	end_other(&v);
	unlink(path);
	say("%ld opened, %ld refused, %ld times got; longest %.1f ms; seed %lu", sum_of.opened, sum_of.refused, sum_of.got,
	    (double)longest / 1e6, (unsigned long)(seed - 88172645463325252ull));
	HOLDS(sum_of.opened > 0 && sum_of.refused > 0 && sum_of.got > 0);
	return verdict();
}
