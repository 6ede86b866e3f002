/* Proves: threads that map, unmap, register and deregister at random reach, through every key, the pages it was made for. */
#include <pthread.h>
#include <stdatomic.h>
#include "rdma.h"

enum { THREADS = 7, SLOTS = 24, MOST = 24 };

static int seconds = 20;
static struct ibv_context *ctx;
static struct ibv_pd *pd;
/* Places that all threads map next to each other's. */
static char *arena;
static atomic_long rounds, operations;
static atomic_int bad;

struct key {
	struct ibv_mr *mr;
	char *at;
	size_t pages;
	char letter;
	bool mapped; /* still the pages that the program sees */
};

static void fail(const char *what)
{
	if (bad++ < 5)
		say("storm: %s", what);
}

static void *storm(void *arg)
{
	int me = (int)(intptr_t)arg;
	unsigned seed = 12345u + (unsigned)me;
	struct rig r = { .ctx = ctx, .pd = pd };
	make_pair(&r);
	r.buf = anon(BUFFER / PAGE);
	volatile int access = ALL;
	r.mr = ibv_reg_mr(pd, r.buf, BUFFER, access);
	NEED(r.mr);
	/* Every seventh stretch of the arena is this thread's. */
	struct key keys[SLOTS] = { 0 };
	char *here[SLOTS];
	bool there[SLOTS] = { false };
	for (int i = 0; i < SLOTS; i++)
		here[i] = arena + (size_t)(i * THREADS + me) * MOST * PAGE;
	struct timespec start, now;
	clock_gettime(CLOCK_MONOTONIC, &start);
	do {
		int i = rand_r(&seed) % SLOTS;
		struct key *k = &keys[rand_r(&seed) % SLOTS];
		size_t pages = 1 + (size_t)rand_r(&seed) % MOST;
		switch (rand_r(&seed) % 8) {
		case 0: /* fresh pages: what is registered here keeps the old ones */
		case 1:
			if (there[i] || rand_r(&seed) % 2)
				for (int j = 0; j < SLOTS; j++)
					if (keys[j].mr && keys[j].at >= here[i] && keys[j].at < here[i] + MOST * PAGE)
						keys[j].mapped = false;
			anon_at(here[i], MOST);
			there[i] = true;
			break;
		case 2:
			if (!there[i])
				break;
			for (int j = 0; j < SLOTS; j++)
				if (keys[j].mr && keys[j].at >= here[i] && keys[j].at < here[i] + MOST * PAGE)
					keys[j].mapped = false;
			if (rand_r(&seed) % 2) {
				/* Not a hole, where another thread's memory would come. */
				NEED(mmap(here[i], MOST * PAGE, PROT_NONE,
					  MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0) == here[i]);
				there[i] = false;
			} else {
				NEED(madvise(here[i], MOST * PAGE, MADV_DONTNEED) == 0);
			}
			break;
		case 3:
			if (!there[i])
				break;
			/* Rights come and go around live keys. */
			NEED(mprotect(here[i], pages * PAGE, PROT_READ) == 0);
			NEED(mprotect(here[i], pages * PAGE, PROT_READ | PROT_WRITE) == 0);
			break;
		case 4:
		case 5:
			if (!there[i] || k->mr)
				break;
			k->pages = 1 + (size_t)rand_r(&seed) % pages;
			k->at = here[i] + (pages - k->pages) * PAGE;
			k->mr = ibv_reg_mr(pd, k->at, k->pages * PAGE, access);
			if (!k->mr) {
				fail(strerrorname_np(errno));
				break;
			}
			k->mapped = true;
			k->letter = (char)('A' + rand_r(&seed) % 50);
			if (put(&r, k->at, k->mr->rkey, k->letter, k->pages * PAGE) != IBV_WC_SUCCESS)
				fail("a write failed");
			if (!all_are(k->at, k->pages * PAGE, k->letter))
				fail("a write went elsewhere");
			/* Others over the same pages don't know their letters any more. */
			for (int j = 0; j < SLOTS; j++)
				if (&keys[j] != k && keys[j].mr && keys[j].mapped &&
				    keys[j].at < k->at + k->pages * PAGE && k->at < keys[j].at + keys[j].pages * PAGE)
					keys[j].letter = 0;
			operations++;
			break;
		case 6:
			if (!k->mr)
				break;
			memset(r.buf, '!', k->pages * PAGE);
			if (get(&r, k->at, k->mr->rkey, k->pages * PAGE) != IBV_WC_SUCCESS)
				fail("a read failed");
			else if (k->letter && !all_are(r.buf, k->pages * PAGE, k->letter))
				fail(k->mapped ? "a read came from elsewhere" : "an old key reads other pages");
			else if (k->mapped && memcmp(r.buf, k->at, k->pages * PAGE))
				fail("a read is not what is here");
			operations++;
			break;
		case 7:
			if (!k->mr)
				break;
			if (ibv_dereg_mr(k->mr))
				fail("a deregistration failed");
			k->mr = NULL;
			break;
		}
		rounds++;
		clock_gettime(CLOCK_MONOTONIC, &now);
	} while (now.tv_sec - start.tv_sec < seconds && !bad);
	for (int j = 0; j < SLOTS; j++)
		if (keys[j].mr && ibv_dereg_mr(keys[j].mr))
			fail("a deregistration failed");
	drop_pair(&r);
	NEED(ibv_dereg_mr(r.mr) == 0);
	return NULL;
}

int main(int argc, char **argv)
{
	if (argc > 1)
		seconds = atoi(argv[1]);
	ctx = open_device(ADAPTER("0"));
	NEED(ctx);
	pd = ibv_alloc_pd(ctx);
	NEED(pd);
	arena = reserve((size_t)THREADS * SLOTS * MOST);
	pthread_t t[THREADS];
	for (int i = 0; i < THREADS; i++)
		NEED(pthread_create(&t[i], NULL, storm, (void *)(intptr_t)i) == 0);
	for (int i = 0; i < THREADS; i++)
		pthread_join(t[i], NULL);
	CALL_AS("dealloc", ibv_dealloc_pd(pd));
	CALL_AS("close", ibv_close_device(ctx));
	say("enough: %s, bad: %s", rounds > 1000 && operations > 200 ? "yes" : "no", bad ? "yes" : "no");
	if (getenv("STORM"))
		fprintf(stderr, "%ld rounds, %ld operations\n", (long)rounds, (long)operations);
	return bad != 0;
}
