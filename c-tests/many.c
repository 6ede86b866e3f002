/* Proves: tens of thousands of mappings are covered as they come and as they go, and so is the memory that the shim takes for them. */
/*
 * The shim's memory comes in pieces, each for hundreds of mappings; so there are quiet
 * points at many counts, and in several orders of coming. At each of them the harness
 * asks, too, how much it is (tests/programs.rs).
 */
#include "check.h"

/* Mappings, about, at which there is a quiet point. */
static const size_t points[] = { 1000,	2000,  4000,  4200,  5000,  8000,  8400,
				 10000, 12000, 15000, 20000, 30000, 33500, 60000 };
#define POINTS (sizeof points / sizeof *points)
/* What the program and the shim have beside. */
#define OTHERS 500

static size_t most;

/* How many the system allows; fewer points where that is not the default. */
static void find_out(void)
{
	FILE *f = fopen("/proc/sys/vm/max_map_count", "r");
	NEED(f && fscanf(f, "%zu", &most) == 1 && most > points[0] + OTHERS);
	fclose(f);
	most -= OTHERS;
}

static void point(const char *what, size_t count)
{
	char label[64];
	snprintf(label, sizeof label, "%s, %zu", what, count);
	quiet_point(label);
}

enum order { UP, DOWN, SCATTERED };

static size_t nth(enum order order, size_t k, size_t n)
{
	return order == UP ? k : order == DOWN ? n - 1 - k : k * 7919 % n;
}

/* Cuts `p` up, every second page from the one before it, until there are `n` mappings. */
static void cut(const char *what, char *p, size_t n, enum order order)
{
	size_t next = 0;
	for (size_t k = 0; k < n / 2; k++) {
		NEED(mprotect(p + 2 * nth(order, k, n / 2) * PAGE, PAGE, PROT_NONE) == 0);
		if (next < POINTS && 2 * (k + 1) >= points[next])
			point(what, points[next++]);
	}
}

/* In a child, where all begins anew. */
static void child_cuts(void *order)
{
	size_t n = most < 33500 ? most : 33500;
	cut("cut in a child", anon(n), n, *(enum order *)order);
}

/* One mapping a call, unlike its neighbours; and away again. */
static void child_maps(void *unused)
{
	(void)unused;
	size_t n = most < 20000 ? most : 20000;
	char **all = calloc(n, sizeof *all);
	NEED(all);
	size_t next = 0;
	for (size_t k = 0; k < n; k++) {
		int prot = k % 2 ? PROT_NONE : PROT_READ | PROT_WRITE;
		all[k] = mmap(NULL, PAGE, prot, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		NEED(all[k] != MAP_FAILED);
		if (next < POINTS && k + 1 >= points[next])
			point("mapped", points[next++]);
	}
	for (size_t k = 0; k < n; k++) {
		NEED(munmap(all[nth(SCATTERED, k, n)], PAGE) == 0);
		if ((k + 1) % (n / 3) == 0)
			point("unmapped", k + 1);
	}
}

/* As many as there can be, in one process, fewer, and more again. */
static void come_and_go(void)
{
	size_t n = most < 60000 ? most : 60000;
	char *p = anon(n);
	cut("cut", p, n, UP);
	for (size_t k = 0; k < n / 2; k++) {
		NEED(mprotect(p + 2 * k * PAGE, PAGE, PROT_READ | PROT_WRITE) == 0);
		if ((k + 1) % (n / 8) == 0)
			point("joined", 2 * (k + 1));
	}
	for (size_t k = 0; k < n / 3; k++) {
		NEED(munmap(p + (2 * k + 1) * PAGE, PAGE) == 0);
		if ((k + 1) % (n / 6) == 0)
			point("holes", k + 1);
	}
	NEED(munmap(p, n * PAGE) == 0);
	point("gone", 0);
}

int main(void)
{
	find_out();
	enum order orders[] = { DOWN, SCATTERED };
	in_child("cut from above", child_cuts, &orders[0]);
	in_child("cut all over", child_cuts, &orders[1]);
	in_child("mapped one by one", child_maps, NULL);
	come_and_go();
	say("all done");
	return 0;
}
