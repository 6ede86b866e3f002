/*
 * Proves nothing by itself: keeps mapping, unmapping, growing and registering memory of
 * an adapter's until it is killed, or for as many rounds as its argument says.
 */
#include <infiniband/verbs.h>

#include "../check.h"

#define MAPPINGS 16

static unsigned long long seed = 1;

static unsigned long next(unsigned long n)
{
	seed = seed * 6364136223846793005ull + 1442695040888963407ull;
	return (unsigned long)(seed >> 33) % n;
}

int main(int argc, char **argv)
{
	long rounds = argc > 1 ? atol(argv[1]) : -1;
	seed ^= (unsigned long long)getpid();
	struct ibv_device **devices = ibv_get_device_list(NULL);
	NEED(devices && devices[0]);
	struct ibv_context *context = ibv_open_device(devices[0]);
	NEED(context);
	ibv_free_device_list(devices);
	struct ibv_pd *pd = ibv_alloc_pd(context);
	NEED(pd);
	char *memory[MAPPINGS] = { 0 };
	size_t pages[MAPPINGS] = { 0 };
	struct ibv_mr *regions[MAPPINGS] = { 0 };
	for (long i = 0; i != rounds; i++) {
		size_t k = next(MAPPINGS);
		if (regions[k] && next(2)) {
			NEED(ibv_dereg_mr(regions[k]) == 0);
			regions[k] = NULL;
		}
		switch (memory[k] ? 1 + next(4) : 0) {
		case 0:
			pages[k] = 2 + next(64);
			memory[k] = anon(pages[k]);
			break;
		case 1:
			NEED(munmap(memory[k], pages[k] * PAGE) == 0);
			memory[k] = NULL;
			break;
		case 2: {
			size_t more = 2 + next(128);
			memory[k] = mremap(memory[k], pages[k] * PAGE, more * PAGE, MREMAP_MAYMOVE);
			NEED(memory[k] != MAP_FAILED);
			pages[k] = more;
			break;
		}
		case 3:
			NEED(madvise(memory[k], PAGE, MADV_DONTNEED) == 0);
			break;
		default:
			if (!regions[k])
				regions[k] = ibv_reg_mr(pd, memory[k], pages[k] * PAGE,
							IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ);
			NEED(regions[k]);
		}
		if (i == 20)
			say("busy");
	}
	for (size_t k = 0; k < MAPPINGS; k++)
		if (regions[k])
			NEED(ibv_dereg_mr(regions[k]) == 0);
	NEED(ibv_dealloc_pd(pd) == 0);
	NEED(ibv_close_device(context) == 0);
	say("done");
	return 0;
}
