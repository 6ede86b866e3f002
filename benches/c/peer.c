/* peer.c: regall's bridge against the system calls that it is made of. Run with the shim
 * preloaded.
 *   peer get|put BYTES [always]   one transfer / one process_vm_readv or _writev
 *   peer getv|putv SEGMENTS       one with that many remote segments, 4 KiB apart / as many calls
 *   peer getv|putv SEGMENTS once  the same / one call
 *   peer map BYTES                as get, from memory that can be mapped (REGALL_COPY=auto maps it)
 *   peer owner [shared]           the other process
 * Bursts of both alternate, A B B A, B A A B. Prints for each four of them
 *   `ns a transfer` `ns the raw way`
 * in CPU time of this thread, which is who copies.
 * SPDX-License-Identifier: MIT OR Apache-2.0 */
#include "slice.h"
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/uio.h>
#include <sys/wait.h>

#define AREA (32ul << 20)
#define WINDOW (2ul << 20) /* what is gone through again and again, unless one transfer is more */
#define SMALL 64u    /* bytes of a segment of many */
#define BURST 100000 /* ns that a burst is to take, at least one transfer */
#define FOURS 200
#define AT_MOST 1500000000ull /* ns for all of them */

static struct {
	__typeof__(regall_peer_open) *open;
	__typeof__(regall_get) *get;
	__typeof__(regall_put) *put;
	__typeof__(regall_getv) *getv;
	__typeof__(regall_putv) *putv;
} api;

static pid_t owner;
static regall_peer *peer;
static char *here;
static uint64_t there;
static size_t bytes, segments;
static int putting, once;
/* Where the next transfer is from. */
static size_t offset;
static struct regall_segment vector[4096];

static void *area(int sharing)
{
	char *p = mmap(NULL, AREA, PROT_READ | PROT_WRITE, sharing | MAP_ANONYMOUS, -1, 0);
	if (p == MAP_FAILED)
		fail("mmap");
	memset(p, 1, AREA);
	return p;
}

static int serve_memory(int sharing)
{
	char text[64];
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	snprintf(text, sizeof text, "%lu\n", (unsigned long)(uintptr_t)area(sharing));
	say(text);
	pause();
	return 0;
}

static void start_owner(int mapped)
{
	int back[2];
	char text[64] = "";
	if (pipe(back) < 0)
		fail("pipe");
	owner = fork();
	if (owner == 0) {
		dup2(back[1], 1);
		execl("/proc/self/exe", "peer", "owner", mapped ? "shared" : NULL, NULL);
		_exit(1);
	}
	close(back[1]);
	if (owner < 0 || read(back[0], text, sizeof text - 1) <= 0)
		fail("owner");
	there = strtoull(text, NULL, 10);
}

static void load(void)
{
#define LOAD(name, symbol) api.name = (__typeof__(api.name))dlsym(RTLD_DEFAULT, symbol)
	LOAD(open, "regall_peer_open");
	LOAD(get, "regall_get");
	LOAD(put, "regall_put");
	LOAD(getv, "regall_getv");
	LOAD(putv, "regall_putv");
	if (!api.open || !api.get || !api.put || !api.getv || !api.putv)
		fail("no regall");
}

static size_t next_offset(void)
{
	size_t at = offset;
	offset += bytes < 4096 ? 4096 : bytes;
	if (offset + bytes > WINDOW)
		offset = 0;
	return at;
}

static void ours(void)
{
	int r;
	if (segments) {
		struct regall_segment local = { (uint64_t)(uintptr_t)here, segments * SMALL };
		r = putting ? api.putv(peer, &local, 1, vector, segments, NULL) : api.getv(peer, &local, 1, vector, segments, NULL);
	} else {
		uint64_t at = there + next_offset();
		r = putting ? api.put(peer, here, at, bytes, NULL) : api.get(peer, here, at, bytes, NULL);
	}
	if (r != 0) {
		errno = -r;
		fail("transfer");
	}
}

static void raw_call(size_t to, uint64_t from, size_t len)
{
	struct iovec local = { here + to, len }, remote = { (void *)(uintptr_t)from, len };
	ssize_t n = putting ? process_vm_writev(owner, &local, 1, &remote, 1, 0) : process_vm_readv(owner, &local, 1, &remote, 1, 0);
	if (n != (ssize_t)len)
		fail("process_vm");
}

static void raw(void)
{
	if (!segments)
		raw_call(0, there + next_offset(), bytes);
	if (once) {
		struct iovec local = { here, segments * SMALL };
		const struct iovec *remote = (const struct iovec *)vector;
		ssize_t n = putting ? process_vm_writev(owner, &local, 1, remote, segments, 0) : process_vm_readv(owner, &local, 1, remote, segments, 0);
		if (n != (ssize_t)(segments * SMALL))
			fail("process_vm");
		return;
	}
	for (size_t i = 0; i < segments; i++)
		raw_call(i * SMALL, vector[i].addr, SMALL);
}

/* ns for one. */
static double burst(void (*f)(void), unsigned count)
{
	uint64_t start = cpu_ns();
	for (unsigned i = 0; i < count; i++)
		f();
	return (double)(cpu_ns() - start) / count;
}

int main(int argc, char **argv)
{
	if (argc > 1 && strcmp(argv[1], "owner") == 0)
		return serve_memory(argc > 2 ? MAP_SHARED : MAP_PRIVATE);
	if (argc < 3)
		return 2;
	putting = strncmp(argv[1], "put", 3) == 0;
	if (argv[1][0] != 'm' && argv[1][3] == 'v')
		segments = number(argv[2]);
	else
		bytes = number(argv[2]);
	once = segments && argc > 3;
	load();
	start_owner(argv[1][0] == 'm');
	here = area(MAP_PRIVATE);
	for (size_t i = 0; i < segments; i++)
		vector[i] = (struct regall_segment){ there + i * 4096, SMALL };
	int r = api.open(owner, 0, argc > 3 && !once ? REGALL_PEER_CHECK_ALWAYS : 0, &peer);
	if (r != 0) {
		errno = -r;
		fail("regall_peer_open");
	}
	/* What can be mapped is, once it pays. */
	burst(ours, 200);
	double one = burst(raw, 3);
	unsigned count = one < BURST ? (unsigned)(BURST / one) : 1;
	uint64_t end = clock_ns(CLOCK_MONOTONIC) + AT_MOST;
	for (unsigned i = 0; i < FOURS && clock_ns(CLOCK_MONOTONIC) < end; i++) {
		/* Who comes first pays for what came between. */
		void (*outer)(void) = i % 2 ? ours : raw, (*inner)(void) = i % 2 ? raw : ours;
		double out = burst(outer, count);
		double in = burst(inner, count) + burst(inner, count);
		out += burst(outer, count);
		double a = i % 2 ? out : in, b = i % 2 ? in : out;
		char text[64];
		snprintf(text, sizeof text, "%.1f %.1f\n", a / 2, b / 2);
		say(text);
	}
	kill(owner, SIGKILL);
	waitpid(owner, NULL, 0);
	return 0;
}
