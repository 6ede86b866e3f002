/* Proves: with a domain, too, what maps much and touches little fits into little memory, and can be sent from. */
#include "rdma.h"

#define MIB (1ul << 20)

static struct rig r;

/* From and to memory that nobody has touched yet. */
static void works(const char *label, char *p)
{
	struct ibv_mr *mr = reg(label, r.pd, p, PAGE, ALL);
	NEED(mr);
	bool good = put(&r, p, mr->rkey, 'b', PAGE) == IBV_WC_SUCCESS && all_are(p, PAGE, 'b');
	memset(p, 'a', PAGE);
	good &= get(&r, p, mr->rkey, PAGE) == IBV_WC_SUCCESS && all_are(r.buf, PAGE, 'a');
	say("%s: %s", label, good ? "works" : "DOES NOT WORK");
	dereg(label, mr);
}

int main(void)
{
	r = rig();
	for (int i = 0; i < 15; i++) {
		char *large = malloc(2048 * MIB);
		NEED(large);
		memset(large, 1, 64 * 1024);
		if (i % 5 == 0)
			works("large memory", large + 1024 * MIB);
	}
	/* Each is small against what is left; together they are not. */
	for (int i = 0; i < 200; i++) {
		char *small = island(MIB / PAGE);
		small[0] = 1;
		if (i % 50 == 49)
			works("small memory", small + MIB / 2);
	}
	int fd = memfd_create("sparse", 0);
	NEED(fd >= 0 && ftruncate(fd, 400 * MIB) == 0);
	char *shared = mmap(NULL, 400 * MIB, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	NEED(shared != MAP_FAILED);
	works("shared memory", shared + 100 * MIB);
	struct stat s;
	NEED(fstat(fd, &s) == 0);
	say("shared memory is %s", s.st_blocks * 512ul < 32 * MIB ? "sparse" : "FILLED");
	rig_down(&r);
	return 0;
}
