/* words.c: atomic operations on words of another process against the bare instruction on memory
 * that both share. Run with the shim preloaded.
 *   words BURSTS
 * Two ways of the same work alternate in short bursts, on lines that nobody else uses at that time.
 * A line `name a b` for each burst: ns for each of the two.
 *   call    regall_fetch_add64 at an address that can be mapped / lock xadd
 *   mapped  lock xadd on what regall_map has mapped             / lock xadd
 * SPDX-License-Identifier: MIT OR Apache-2.0 */
#include "slice.h"
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>

enum { PAGES = 16, TIMES = 20000 };

#define FIND(name) static __typeof__(regall_##name) *name##_;
FIND(peer_open) FIND(fetch_add64) FIND(map) FIND(alloc_shared)

static regall_peer *peer;
static uint64_t there;
static uint64_t *mapped, *shared;
static int wrong;

/* Each time on the line that the last time was not on: 64 of them. */
static size_t place(unsigned i)
{
	return i % 64 * 8;
}

static void by_call(void)
{
	for (unsigned i = 0; i < TIMES; i++)
		wrong |= fetch_add64_(peer, there + 8 * place(i), 1, NULL);
}

static void by_mapping(void)
{
	for (unsigned i = 0; i < TIMES; i++)
		__atomic_fetch_add(&mapped[place(i)], 1, __ATOMIC_ACQ_REL);
}

static void bare(void)
{
	for (unsigned i = 0; i < TIMES; i++)
		__atomic_fetch_add(&shared[place(i)], 1, __ATOMIC_ACQ_REL);
}

static double burst(void (*f)(void))
{
	uint64_t start = cpu_ns();
	f();
	return (double)(cpu_ns() - start) / TIMES;
}

static void compare(const char *name, void (*a)(void), void (*b)(void), unsigned bursts)
{
	burst(a);
	burst(b);
	for (unsigned i = 0; i < bursts; i++) {
		double x, y;
		if (i % 2)
			x = burst(a), y = burst(b);
		else
			y = burst(b), x = burst(a);
		printf("%s %.3f %.3f\n", name, x, y);
	}
}

static void own(int to)
{
	void *p = NULL;
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (alloc_shared_(PAGES * 4096, &p) != 0)
		fail("regall_alloc_shared");
	there = (uint64_t)(uintptr_t)p;
	memset(p, 0, PAGES * 4096);
	shared[0] = 0;
	if (write(to, &there, sizeof there) != sizeof there)
		fail("write");
	for (;;)
		pause();
}

int main(int argc, char **argv)
{
	unsigned bursts = argc > 1 ? (unsigned)number(argv[1]) : 100;
	struct regall_mapping m;
	int back[2];
#define LOAD(name) name##_ = (__typeof__(name##_))dlsym(RTLD_DEFAULT, "regall_" #name)
	LOAD(peer_open);
	LOAD(fetch_add64);
	LOAD(map);
	LOAD(alloc_shared);
	if (!peer_open_ || !fetch_add64_ || !map_ || !alloc_shared_)
		fail("no regall");
	shared = mmap(NULL, PAGES * 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (shared == MAP_FAILED || pipe(back) < 0)
		fail("mmap, pipe");
	memset(shared, 0, PAGES * 4096);
	pid_t pid = fork();
	if (pid == 0)
		own(back[1]);
	if (pid < 0 || read(back[0], &there, sizeof there) != sizeof there)
		fail("owner");
	int e = peer_open_(pid, 0, 0, &peer);
	e = e ? e : map_(peer, there, PAGES * 4096, REGALL_MAP_WRITE, &m);
	if (e) {
		errno = -e;
		fail("regall_peer_open, regall_map");
	}
	mapped = m.at;
	compare("call", by_call, bare, bursts);
	compare("mapped", by_mapping, bare, bursts);
	if (wrong) {
		errno = EIO;
		fail("regall_fetch_add64");
	}
	return 0;
}
