/* regions.c: reading by cookie against getting at the address, and what many readers cost.
 * Run with the shim preloaded and memory registered.
 *   regions BURSTS
 * Two ways of the same work alternate in short bursts. A line `name a b` for each burst: ns
 * for each of the two. And `owner NS`: CPU time of the owner during all reads by the eight.
 * SPDX-License-Identifier: MIT OR Apache-2.0 */
#include "slice.h"
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/uio.h>
#include <sys/wait.h>

enum { MEMORY = 16 << 20, SCATTERED = 1024, READERS = 8, SHARE = 64 << 10, READS = 16 };

#define FIND(name) static __typeof__(regall_##name) *name##_;
FIND(region_create) FIND(region_read) FIND(peer_open) FIND(get)

/* What the owner tells of itself. */
struct owner {
	pid_t pid;
	uint64_t at, all, scattered, of_reader[READERS];
};

/* For the eight: in which round they are, and how many are done with it. */
struct rounds {
	unsigned round, done;
	int one; /* whether all of them read the same region */
};

static char *buffer;
static struct owner owner;
static regall_peer *peer;
static int wrong;

static struct regall_segment piece(uint64_t at, uint64_t len)
{
	return (struct regall_segment){ at, len };
}

static uint64_t declare(const struct regall_segment *s, size_t count)
{
	uint64_t cookie = 0;
	int e = region_create_(s, count, REGALL_REGION_READ, 0, &cookie);
	if (e) {
		errno = -e;
		fail("regall_region_create");
	}
	return cookie;
}

static void own(int to)
{
	static struct regall_segment s[SCATTERED];
	char *p = mmap(NULL, MEMORY, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	memset(p, 1, MEMORY);
	owner.pid = getpid();
	owner.at = (uint64_t)(uintptr_t)p;
	s[0] = piece(owner.at, MEMORY);
	owner.all = declare(s, 1);
	for (unsigned i = 0; i < SCATTERED; i++)
		s[i] = piece(owner.at + i * 8192, 64);
	owner.scattered = declare(s, SCATTERED);
	for (unsigned i = 0; i < READERS; i++) {
		s[0] = piece(owner.at + i * 2 * SHARE, SHARE);
		owner.of_reader[i] = declare(s, 1);
	}
	if (write(to, &owner, sizeof owner) != sizeof owner)
		fail("write");
	for (;;)
		pause();
}

static void by_cookie(size_t size)
{
	struct regall_segment here = piece((uint64_t)(uintptr_t)buffer, size);
	wrong |= region_read_(owner.all, 0, &here, 1, NULL);
}

static void at_address(size_t size)
{
	wrong |= get_(peer, buffer, owner.at, size, NULL);
}

static void one_region(size_t size)
{
	struct regall_segment here = piece((uint64_t)(uintptr_t)buffer, size);
	wrong |= region_read_(owner.scattered, 0, &here, 1, NULL);
}

static void raw_calls(size_t size)
{
	for (size_t i = 0; i < size / 64; i++) {
		struct iovec to = { buffer + i * 64, 64 };
		struct iovec from = { (void *)(uintptr_t)(owner.at + i * 8192), 64 };
		wrong |= process_vm_readv(owner.pid, &to, 1, &from, 1, 0) != 64;
	}
}

/* The kernel's part: as few calls as it allows (IOV_MAX). */
static void one_raw_call(size_t size)
{
	static struct iovec from[SCATTERED];
	struct iovec to = { buffer, size };
	for (unsigned i = 0; i < SCATTERED; i++)
		from[i] = (struct iovec){ (void *)(uintptr_t)(owner.at + i * 8192), 64 };
	wrong |= process_vm_readv(owner.pid, &to, 1, from, SCATTERED, 0) != (ssize_t)size;
}

static double burst(void (*f)(size_t), size_t size, unsigned times)
{
	uint64_t start = cpu_ns();
	for (unsigned i = 0; i < times; i++)
		f(size);
	return (double)(cpu_ns() - start) / times;
}

static void compare(const char *name, void (*a)(size_t), void (*b)(size_t), size_t size, unsigned times, unsigned bursts)
{
	burst(a, size, times);
	burst(b, size, times);
	for (unsigned i = 0; i < bursts; i++) {
		double x, y;
		if (i % 2)
			x = burst(a, size, times), y = burst(b, size, times);
		else
			y = burst(b, size, times), x = burst(a, size, times);
		printf("%s %.2f %.2f\n", name, x, y);
	}
}

/* One of the eight. */
static void read_rounds(struct rounds *r, unsigned me)
{
	struct regall_segment here = piece((uint64_t)(uintptr_t)buffer, SHARE);
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	for (unsigned round = 1;; round++) {
		while (__atomic_load_n(&r->round, __ATOMIC_ACQUIRE) != round)
			sched_yield();
		uint64_t cookie = owner.of_reader[r->one ? 0 : me];
		for (int i = 0; i < READS; i++)
			if (region_read_(cookie, 0, &here, 1, NULL))
				_exit(1);
		__atomic_add_fetch(&r->done, 1, __ATOMIC_ACQ_REL);
	}
}

static double round_of(struct rounds *r, int one)
{
	r->one = one;
	r->done = 0;
	uint64_t start = clock_ns(CLOCK_MONOTONIC);
	__atomic_add_fetch(&r->round, 1, __ATOMIC_ACQ_REL);
	while (__atomic_load_n(&r->done, __ATOMIC_ACQUIRE) < READERS)
		sched_yield();
	return (double)(clock_ns(CLOCK_MONOTONIC) - start) / READS;
}

static void eight(unsigned bursts)
{
	struct rounds *r = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	pid_t reader[READERS];
	clockid_t clock;
	for (unsigned i = 0; i < READERS; i++)
		if ((reader[i] = fork()) == 0)
			read_rounds(r, i);
	if (clock_getcpuclockid(owner.pid, &clock))
		fail("clock_getcpuclockid");
	round_of(r, 0);
	round_of(r, 1);
	uint64_t before = clock_ns(clock);
	for (unsigned i = 0; i < bursts; i++) {
		double x, y;
		if (i % 2)
			x = round_of(r, 1), y = round_of(r, 0);
		else
			y = round_of(r, 0), x = round_of(r, 1);
		printf("eight %.2f %.2f\n", x, y);
	}
	printf("owner %llu\n", (unsigned long long)(clock_ns(clock) - before));
	for (unsigned i = 0; i < READERS; i++) {
		kill(reader[i], SIGKILL);
		waitpid(reader[i], NULL, 0);
	}
}

int main(int argc, char **argv)
{
	unsigned bursts = argc > 1 ? (unsigned)number(argv[1]) : 100;
	int way[2];
#define TAKE(name) name##_ = (__typeof__(regall_##name) *)dlsym(RTLD_DEFAULT, "regall_" #name);
	TAKE(region_create) TAKE(region_read) TAKE(peer_open) TAKE(get)
	if (!region_create_ || pipe(way)) {
		fprintf(stderr, "regions: no libregall.so here\n");
		return 2;
	}
	buffer = mmap(NULL, 1 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	memset(buffer, 0, 1 << 20);
	pid_t pid = fork();
	if (pid == 0)
		own(way[1]);
	if (read(way[0], &owner, sizeof owner) != sizeof owner || peer_open_(pid, 0, 0, &peer)) {
		fprintf(stderr, "regions: no owner\n");
		return 1;
	}
	compare("read_1", by_cookie, at_address, 1, 1000, bursts);
	compare("read_4096", by_cookie, at_address, 4096, 500, bursts);
	compare("read_65536", by_cookie, at_address, 65536, 100, bursts);
	compare("read_1048576", by_cookie, at_address, 1 << 20, 5, bursts);
	compare("scattered", one_region, raw_calls, SCATTERED * 64, 2, bursts);
	compare("kernel", one_raw_call, raw_calls, SCATTERED * 64, 2, bursts);
	eight(bursts);
	kill(pid, SIGKILL);
	waitpid(pid, NULL, 0);
	if (wrong)
		fprintf(stderr, "regions: a read failed\n");
	return wrong != 0;
}
