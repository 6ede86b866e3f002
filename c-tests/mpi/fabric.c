/*
 * Proves: every byte of a message arrives, whatever memory it leaves from and comes to:
 * fresh and reused heap, replaced mappings, read-only, static and stack memory; point to
 * point, in collectives, and one-sided. Rank 0 says what was right, so that two runs can
 * be compared.
 */
#include <mpi.h>
#include <stdint.h>
#include <sys/mman.h>

#include "../quiet.h"

#define MAX (1u << 20)
#define SIZES(n) for (size_t n = 8; n <= MAX; n *= n < 4096 ? 32 : 8)

static int rank, size, wrong, checked;
static unsigned char fixed[MAX];

/* A byte that depends on where it is, who sent it, and in which round. */
static unsigned char byte(size_t i, int from, int round)
{
	return (unsigned char)(i * 31 + (i >> 8) * 7 + (unsigned)from * 101 + (unsigned)round * 13 + 1);
}

static void fill(unsigned char *p, size_t n, int from, int round)
{
	for (size_t i = 0; i < n; i++)
		p[i] = byte(i, from, round);
}

static void check(const unsigned char *p, size_t n, int from, int round)
{
	checked++;
	for (size_t i = 0; i < n; i++)
		if (p[i] != byte(i, from, round)) {
			wrong++;
			printf("rank %d: byte %zu of %zu from %d in round %d\n", rank, i, n, from, round);
			return;
		}
}

static void report(const char *what)
{
	int all[2], here[2] = { checked, wrong };
	MPI_Reduce(here, all, 2, MPI_INT, MPI_SUM, 0, MPI_COMM_WORLD);
	if (rank == 0)
		printf("%s: %d messages checked, %d wrong\n", what, all[0], all[1]);
	fflush(stdout);
	checked = 0;
	MPI_Barrier(MPI_COMM_WORLD);
	quiet_point(what);
}

/* There and back. */
static void ping_pong(unsigned char *out, unsigned char *in, size_t n, int round)
{
	int peer = 1 - rank;
	if (rank == 0) {
		MPI_Send(out, (int)n, MPI_BYTE, peer, 1, MPI_COMM_WORLD);
		MPI_Recv(in, (int)n, MPI_BYTE, peer, 2, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
	} else {
		MPI_Recv(in, (int)n, MPI_BYTE, peer, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
		MPI_Send(out, (int)n, MPI_BYTE, peer, 2, MPI_COMM_WORLD);
	}
	check(in, n, peer, round);
}

static void fresh_heap(void)
{
	SIZES(n)
		for (int round = 0; round < 4; round++) {
			unsigned char *out = malloc(n), *in = calloc(1, n);
			fill(out, n, rank, round);
			ping_pong(out, in, n, round);
			free(out);
			free(in);
		}
}

static void reused_heap(void)
{
	unsigned char *out = malloc(MAX), *in = malloc(MAX);
	SIZES(n)
		for (int round = 0; round < 4; round++) {
			fill(out, n, rank, round);
			memset(in, 0, n);
			ping_pong(out, in, n, round);
		}
	free(out);
	free(in);
}

/* At one address, again and again other memory: what a stale registration would miss. */
static void replaced(void)
{
	size_t n = MAX / 4;
	unsigned char *out = mmap(NULL, 2 * n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	unsigned char *in = out + n;
	for (int round = 0; round < 8; round++) {
		fill(out, n, rank, round);
		ping_pong(out, in, n, round);
		if (round % 3 == 0) {
			mmap(out, 2 * n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
		} else if (round % 3 == 1) {
			madvise(out, 2 * n, MADV_DONTNEED);
		} else {
			munmap(in, n);
			mmap(in, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
		}
	}
	munmap(out, 2 * n);
}

static void other_memory(void)
{
	unsigned char stack[65536];
	fill(fixed, MAX / 2, rank, 0);
	ping_pong(fixed, fixed + MAX / 2, MAX / 2, 0);
	fill(stack, sizeof stack / 2, rank, 1);
	ping_pong(stack, stack + sizeof stack / 2, sizeof stack / 2, 1);
	size_t n = MAX / 4;
	unsigned char *p = mmap(NULL, 2 * n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	unsigned char *in = p + n;
	fill(p, n, rank, 2);
	mprotect(p, n, PROT_READ);
	ping_pong(p, in, n, 2);
	munmap(p, n);
	/* Longer than before, and maybe elsewhere. */
	in = mremap(in, n, 4 * n, MREMAP_MAYMOVE);
	fill(in, 2 * n, rank, 3);
	ping_pong(in, in + 2 * n, 2 * n, 3);
	munmap(in, 4 * n);
}

static void collectives(void)
{
	SIZES(n) {
		unsigned char *one = malloc(n), *many = malloc(n * (size_t)size), *to = malloc(n * (size_t)size);
		for (int root = 0; root < size; root++) {
			fill(one, n, rank, root);
			MPI_Bcast(one, (int)n, MPI_BYTE, root, MPI_COMM_WORLD);
			check(one, n, root, root);
		}
		fill(one, n, rank, 5);
		MPI_Allgather(one, (int)n, MPI_BYTE, many, (int)n, MPI_BYTE, MPI_COMM_WORLD);
		for (int i = 0; i < size; i++)
			check(many + n * (size_t)i, n, i, 5);
		for (int i = 0; i < size; i++)
			fill(many + n * (size_t)i, n, rank, i);
		MPI_Alltoall(many, (int)n, MPI_BYTE, to, (int)n, MPI_BYTE, MPI_COMM_WORLD);
		for (int i = 0; i < size; i++)
			check(to + n * (size_t)i, n, i, rank);
		free(one);
		free(many);
		free(to);
		size_t k = n / 8;
		uint64_t *in = malloc(n), *sum = malloc(n);
		for (size_t i = 0; i < k; i++)
			in[i] = i * (unsigned)(rank + 1);
		MPI_Allreduce(in, sum, (int)k, MPI_UINT64_T, MPI_SUM, MPI_COMM_WORLD);
		checked++;
		for (size_t i = 0; i < k; i++)
			if (sum[i] != i * (unsigned)(size * (size + 1) / 2)) {
				wrong++;
				break;
			}
		free(in);
		free(sum);
	}
}

static void one_sided(MPI_Win win, unsigned char *window)
{
	int peer = 1 - rank;
	SIZES(n) {
		unsigned char *out = malloc(n), *in = calloc(1, n);
		fill(out, n, rank, 1);
		MPI_Win_fence(0, win);
		MPI_Put(out, (int)n, MPI_BYTE, peer, 0, (int)n, MPI_BYTE, win);
		MPI_Win_fence(0, win);
		check(window, n, peer, 1);
		MPI_Win_fence(0, win);
		MPI_Get(in, (int)n, MPI_BYTE, peer, 0, (int)n, MPI_BYTE, win);
		MPI_Win_fence(0, win);
		check(in, n, rank, 1);
		free(out);
		free(in);
	}
	uint64_t *sums = (uint64_t *)window, one = 1, before;
	memset(window, 0, 4096);
	MPI_Win_fence(0, win);
	for (int i = 0; i < 20; i++)
		MPI_Accumulate(&one, 1, MPI_UINT64_T, peer, 0, 1, MPI_UINT64_T, MPI_SUM, win);
	MPI_Win_fence(0, win);
	checked++;
	wrong += sums[0] != 20;
	MPI_Barrier(MPI_COMM_WORLD);
	MPI_Win_lock(MPI_LOCK_SHARED, peer, 0, win);
	for (int i = 0; i < 5; i++) {
		MPI_Fetch_and_op(&one, &before, MPI_UINT64_T, peer, 1, MPI_SUM, win);
		MPI_Win_flush(peer, win);
		checked++;
		wrong += before != (unsigned)i;
	}
	MPI_Win_unlock(peer, win);
	MPI_Barrier(MPI_COMM_WORLD);
}

static void windows(void)
{
	MPI_Win win;
	unsigned char *memory = malloc(MAX);
	MPI_Win_create(memory, MAX, 8, MPI_INFO_NULL, MPI_COMM_WORLD, &win);
	one_sided(win, memory);
	MPI_Win_free(&win);
	free(memory);
	MPI_Win_allocate(MAX, 8, MPI_INFO_NULL, MPI_COMM_WORLD, &memory, &win);
	one_sided(win, memory);
	MPI_Win_free(&win);
}

int main(int argc, char **argv)
{
	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &size);
	if (size != 2)
		MPI_Abort(MPI_COMM_WORLD, 3);
	fresh_heap();
	report("fresh heap");
	reused_heap();
	report("reused heap");
	replaced();
	report("replaced memory");
	other_memory();
	report("other memory");
	collectives();
	report("collectives");
	windows();
	report("windows");
	MPI_Finalize();
	return wrong != 0;
}
