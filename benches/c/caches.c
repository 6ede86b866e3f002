/*
 * What becomes of registrations in an MPI program, by patterns of work: rank 0 sends, rank 1
 * receives, and every byte is checked. `benches/caches` runs it in the guest and reads a line
 * for each pattern.
 *
 *   caches            counts what the adapter's driver is asked for, by the kprobes caches/reg
 *                     and caches/dereg, and memory that is mapped anew, by caches/map, inside
 *                     MPI calls and in all; fails without them
 *   caches --rdtsc    counts what MPI calls take by the time stamp counter instead: under
 *                     QEMU's -icount on one CPU these are instructions, user's and kernel's
 *
 * The ranks take turns by a flag in shared memory and rest in between, so that no MPI call
 * has to wait for the peer.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <linux/perf_event.h>
#include <mpi.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>
#include <x86intrin.h>

#define MESSAGE (256u << 10)
#define ROUNDS 16
#define SMALL (40u << 10)
#define MANY 64

enum { REG, DEREG, MAP, EVENTS };

static int rank, wrong, messages, by_clock;
static int mine[EVENTS], all[EVENTS]; /* perf's descriptors: of this thread, of all threads */
static int refused; /* as `all`: registrations that the driver has refused */
static uint64_t inside[EVENTS], base[EVENTS];
static uint64_t cost[4 * MANY], beside[4 * MANY], pending;
static int costs, peak, maps_at_peak;
static _Atomic int *turn;

/* A count that can't be had is none, not 0: the run fails. */
static void fail(const char *what)
{
	perror(what);
	_exit(3);
}

static int opened(const char *name, int inherit)
{
	if (by_clock)
		return -1;
	char path[128], id[32] = "";
	snprintf(path, sizeof path, "/sys/kernel/tracing/events/caches/%s/id", name);
	int fd = open(path, O_RDONLY);
	if (fd < 0 || read(fd, id, sizeof id - 1) <= 0)
		fail(path);
	close(fd);
	struct perf_event_attr attr = { .type = PERF_TYPE_TRACEPOINT, .size = sizeof attr, .inherit = inherit & 1 };
	attr.config = strtoull(id, NULL, 10);
	fd = (int)syscall(SYS_perf_event_open, &attr, 0, -1, -1, 0);
	if (fd < 0)
		fail("perf_event_open");
	return fd;
}

static uint64_t counted(int fd)
{
	uint64_t n = 0;
	if (fd >= 0 && read(fd, &n, sizeof n) != sizeof n)
		fail("reading a count");
	return n;
}

static uint64_t begun[EVENTS], clock_then;

static void enter(void)
{
	for (int e = 0; e < EVENTS; e++)
		begun[e] = counted(mine[e]);
	clock_then = __rdtsc();
}

static uint64_t leave(void)
{
	uint64_t took = __rdtsc() - clock_then;
	for (int e = 0; e < EVENTS; e++)
		inside[e] += counted(mine[e]) - begun[e];
	return took;
}

#define INSIDE(call) (enter(), (call), leave())

/* What a message's memory takes beside its MPI calls; what comes after one is the next one's. */
#define BESIDE(work)                              \
	do {                                      \
		uint64_t then = __rdtsc();        \
		work;                             \
		pending += __rdtsc() - then;      \
	} while (0)

static int mappings(void)
{
	char buffer[4096];
	int n = 0, fd = open("/proc/self/maps", O_RDONLY);
	for (ssize_t got; (got = read(fd, buffer, sizeof buffer)) > 0;)
		for (ssize_t i = 0; i < got; i++)
			n += buffer[i] == '\n';
	close(fd);
	return n;
}

static int alive(void)
{
	return (int)(counted(all[REG]) - counted(refused) - counted(all[DEREG]));
}

static void look(void)
{
	int now = alive();
	if (now > peak) {
		peak = now;
		maps_at_peak = mappings();
	}
}

static unsigned char byte(size_t i, int round)
{
	return (unsigned char)(i * 31 + (i >> 8) * 7 + (unsigned)round * 13 + 1);
}

static void fill(unsigned char *p, size_t n, int round)
{
	for (size_t i = 0; i < n; i++)
		p[i] = byte(i, round);
}

static void check(const unsigned char *p, size_t n, int round)
{
	for (size_t i = 0; i < n; i++)
		if (p[i] != byte(i, round)) {
			wrong++;
			return;
		}
}

/* What is on its way arrives, and is acknowledged. */
static void rest(void)
{
	usleep(by_clock ? 20000 : 4000);
}

static void until(int value)
{
	while (atomic_load(turn) < value)
		usleep(200);
}

/* One message from `p` there to `p` here; each rank keeps what its own calls took. */
static void message(unsigned char *p, size_t n, int round)
{
	static int step;
	MPI_Request request;
	uint64_t took;
	int there = 0;

	if (rank == 0) {
		BESIDE(fill(p, n, round));
		took = INSIDE(MPI_Isend(p, (int)n, MPI_BYTE, 1, 7, MPI_COMM_WORLD, &request));
		atomic_store(turn, step + 1);
		until(step + 2);
		rest();
		took += INSIDE(MPI_Wait(&request, MPI_STATUS_IGNORE));
	} else {
		until(step + 1);
		do {
			rest();
			INSIDE(MPI_Iprobe(0, 7, MPI_COMM_WORLD, &there, MPI_STATUS_IGNORE));
		} while (!there);
		took = INSIDE(MPI_Irecv(p, (int)n, MPI_BYTE, 0, 7, MPI_COMM_WORLD, &request));
		rest();
		took += INSIDE(MPI_Wait(&request, MPI_STATUS_IGNORE));
		BESIDE(check(p, n, round));
		atomic_store(turn, step + 2);
	}
	step += 2;
	beside[costs] = pending;
	pending = 0;
	cost[costs++] = took;
	messages++;
	look();
}

static unsigned char *map_at(void *where, size_t n)
{
	int flags = MAP_PRIVATE | MAP_ANONYMOUS | (where ? MAP_FIXED : 0);
	return mmap(where, n, PROT_READ | PROT_WRITE, flags, -1, 0);
}

static void reused(void)
{
	static unsigned char *p;
	if (!p)
		p = map_at(NULL, MESSAGE);
	for (int i = 0; i < ROUNDS; i++)
		message(p, MESSAGE, i);
}

/* Either rank sends and receives, so that each kind of access has been asked for. */
static void first(void)
{
	static double from[MESSAGE / sizeof(double)], to[MESSAGE / sizeof(double)];
	for (int i = 0; i < 4; i++)
		INSIDE(MPI_Allreduce(from, to, MESSAGE / sizeof(double), MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD));
	INSIDE(MPI_Sendrecv(from, MESSAGE, MPI_BYTE, 1 - rank, 9, to, MESSAGE, MPI_BYTE, 1 - rank, 9, MPI_COMM_WORLD, MPI_STATUS_IGNORE));
	reused();
}

static void fresh(void)
{
	/* Side by side, so that none comes back at an address that there was. */
	for (int i = 0; i < ROUNDS; i++) {
		unsigned char *p, *apart = map_at(NULL, MESSAGE + 4096);
		mprotect(apart + MESSAGE, 4096, PROT_NONE);
		BESIDE(p = map_at(NULL, MESSAGE));
		message(p, MESSAGE, i);
		BESIDE(munmap(p, MESSAGE));
	}
}

static void remapped(void)
{
	unsigned char *p = map_at(NULL, MESSAGE);
	for (int i = 0; i < ROUNDS; i++) {
		message(p, MESSAGE, i);
		BESIDE(munmap(p, MESSAGE));
		BESIDE(p = map_at(p, MESSAGE));
	}
	munmap(p, MESSAGE);
}

static unsigned char *small[MANY];

static void many_small(void)
{
	for (int i = 0; i < MANY; i++) {
		BESIDE(small[i] = malloc(SMALL));
		message(small[i], SMALL, i);
	}
}

static void small_again(void)
{
	for (int i = 0; i < MANY; i++) {
		message(small[i], SMALL, i + 1);
		BESIDE(free(small[i]));
	}
}

static void forked(void)
{
	unsigned char *p = map_at(NULL, MESSAGE);
	for (int i = 0; i < ROUNDS; i++) {
		message(p, MESSAGE, i);
		pid_t child = fork();
		if (child == 0) {
			memset(p, 0xee, MESSAGE);
			_exit(0);
		}
		if (waitpid(child, NULL, 0) != child || p[1] != byte(1, i))
			wrong++;
	}
	munmap(p, MESSAGE);
}

static void allreduce(void)
{
	for (int i = 1; i <= ROUNDS; i++) {
		size_t n = (size_t)i * 8192;
		double *from = malloc(n * sizeof *from), *to = malloc(n * sizeof *to);
		for (size_t k = 0; k < n; k++)
			from[k] = (double)(k % 1000) + rank + i;
		INSIDE(MPI_Allreduce(from, to, (int)n, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD));
		for (size_t k = 0; k < n; k++)
			if (to[k] != 2 * ((double)(k % 1000) + i) + 1) {
				wrong++;
				break;
			}
		messages++;
		look();
		free(from);
		free(to);
	}
}

/* Blocks with as much between them, from as many places, in one call. */
static void one_sided(void)
{
	enum { BLOCKS = 8, BLOCK = 32 << 10, SPAN = 2 * BLOCKS * BLOCK };
	unsigned char *window = map_at(NULL, SPAN);
	MPI_Datatype blocks;
	MPI_Win win;
	MPI_Type_vector(BLOCKS, BLOCK, 2 * BLOCK, MPI_BYTE, &blocks);
	MPI_Type_commit(&blocks);
	INSIDE(MPI_Win_create(window, SPAN, 1, MPI_INFO_NULL, MPI_COMM_WORLD, &win));
	for (int i = 0; i < ROUNDS; i++) {
		unsigned char *p = map_at(NULL, SPAN);
		INSIDE(MPI_Win_fence(0, win));
		if (rank == 0) {
			fill(p, SPAN, i);
			INSIDE(MPI_Put(p, 1, blocks, 1, 0, 1, blocks, win));
		}
		INSIDE(MPI_Win_fence(0, win));
		for (int b = 0; rank == 1 && b < BLOCKS; b++)
			for (size_t k = 0; k < BLOCK; k++)
				if (window[2 * b * BLOCK + k] != byte(2 * b * BLOCK + k, i)) {
					wrong++;
					k = BLOCK;
				}
		messages++;
		look();
		munmap(p, SPAN);
	}
	INSIDE(MPI_Win_free(&win));
	MPI_Type_free(&blocks);
	munmap(window, SPAN);
}

static int by_size(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
	return (x > y) - (x < y);
}

/* Runs a pattern; rank 0 says what both have counted. */
static void pattern(const char *name, void (*work)(void))
{
	long here[9], sum[9], most[2];
	/* The rank that has more regions for its mappings. */
	struct {
		double share;
		int rank;
	} fullest;
	messages = costs = wrong = 0;
	peak = -1;
	memset(inside, 0, sizeof inside);
	MPI_Barrier(MPI_COMM_WORLD);
	for (int e = 0; e < EVENTS; e++)
		base[e] = counted(all[e]);
	work();
	qsort(cost, (size_t)costs, sizeof *cost, by_size);
	qsort(beside, (size_t)costs, sizeof *beside, by_size);
	here[0] = (long)inside[REG];
	here[1] = (long)inside[DEREG];
	here[2] = (long)(counted(all[REG]) - base[REG]);
	here[3] = (long)(counted(all[DEREG]) - base[DEREG]);
	here[4] = wrong;
	here[5] = costs ? (long)cost[costs / 2] : 0;
	here[6] = costs ? (long)beside[costs / 2] : 0;
	here[7] = (long)inside[MAP];
	here[8] = (long)(counted(all[MAP]) - base[MAP]);
	most[0] = peak;
	most[1] = maps_at_peak;
	fullest.share = (double)peak / (maps_at_peak > 0 ? maps_at_peak : 1);
	fullest.rank = rank;
	MPI_Allreduce(MPI_IN_PLACE, &fullest, 1, MPI_DOUBLE_INT, MPI_MAXLOC, MPI_COMM_WORLD);
	MPI_Bcast(most, 2, MPI_LONG, fullest.rank, MPI_COMM_WORLD);
	MPI_Reduce(here, sum, 9, MPI_LONG, MPI_SUM, 0, MPI_COMM_WORLD);
	if (rank == 0) {
		printf("pattern %s messages %d reg_inside %ld dereg_inside %ld reg %ld dereg %ld wrong %ld clock %ld beside %ld map_inside %ld map %ld alive %ld maps %ld\n",
		       name, messages, sum[0], sum[1], sum[2], sum[3], sum[4], sum[5], sum[6], sum[7], sum[8], most[0], most[1]);
		fflush(stdout);
	}
}

/* Whose code munmap begins with a jump to. */
static const char *patched_by(void)
{
	const unsigned char *p = dlsym(RTLD_DEFAULT, "munmap");
	void *to = NULL;
	int32_t far;
	Dl_info info = { 0 };
	if (p[0] == 0xe9) {
		memcpy(&far, p + 1, sizeof far);
		to = (void *)(uintptr_t)(p + 5 + far);
	} else if (p[0] == 0x49 && p[1] == 0xbb) {
		memcpy(&to, p + 2, sizeof to);
	}
	if (!to || !dladdr(to, &info) || !info.dli_fname || strstr(info.dli_fname, "libregall"))
		return "nobody";
	const char *slash = strrchr(info.dli_fname, '/');
	return slash ? slash + 1 : info.dli_fname;
}

/* The clock's ticks for a loop of 2,000,000 instructions. */
static unsigned long calibrated(void)
{
	unsigned long n = 1000000;
	uint64_t then = __rdtsc();
	__asm__ volatile("1: dec %0; jnz 1b" : "+r"(n));
	return (unsigned long)(__rdtsc() - then);
}

/* As `rdma` tells it, for a rank that is alive. */
static void regions(void)
{
	char line[512];
	int n = 0;
	snprintf(line, sizeof line, " pid %d ", (int)getpid());
	FILE *said = popen("rdma resource show mr", "r");
	for (char text[512]; said && fgets(text, sizeof text, said);)
		n += strstr(text, line) != NULL;
	if (said)
		pclose(said);
	printf("regions %d counted %d mappings %d patched_by %s ticks %lu\n", n, alive(), mappings(), patched_by(), calibrated());
	fflush(stdout);
}

int main(int argc, char **argv)
{
	by_clock = argc > 1 && strcmp(argv[1], "--rdtsc") == 0;
	static const char *const names[EVENTS] = { "reg", "dereg", "map" };
	for (int e = 0; e < EVENTS; e++) {
		mine[e] = opened(names[e], 0);
		all[e] = opened(names[e], 1);
	}
	refused = opened("refused", 1);
	if (refused >= 0 && ioctl(refused, PERF_EVENT_IOC_SET_FILTER, "ret < 0 && ret > -4096") != 0)
		fail("PERF_EVENT_IOC_SET_FILTER");
	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);

	int fd = open(getenv("CACHES_TURN") ? getenv("CACHES_TURN") : "/dev/shm/caches-turn", O_RDWR | O_CREAT, 0600);
	if (fd < 0 || ftruncate(fd, 4096) != 0)
		MPI_Abort(MPI_COMM_WORLD, 1);
	turn = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (rank == 0)
		atomic_store(turn, 0);
	MPI_Barrier(MPI_COMM_WORLD);

	pattern("first", first);
	pattern("reused", reused);
	pattern("fresh", fresh);
	pattern("remapped", remapped);
	pattern("small", many_small);
	pattern("small-again", small_again);
	pattern("forked", forked);
	if (!by_clock) {
		pattern("allreduce", allreduce);
		/* Another kind of access is another domain. */
		pattern("first-one-sided", one_sided);
		pattern("one-sided", one_sided);
	}
	if (rank == 0)
		regions();
	MPI_Barrier(MPI_COMM_WORLD);
	MPI_Finalize();
	return 0;
}
