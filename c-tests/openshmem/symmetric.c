/* Proves: a symmetric heap of which little is touched fits: two OpenSHMEM PEs reserve 256 MiB each. */
#include <shmem.h>
#include <stdio.h>
#include <unistd.h>

#define MIB (1ul << 20)
#define HEAP (128 * MIB)

int main(void)
{
	shmem_init();
	int me = shmem_my_pe(), others = shmem_n_pes() - 1;
	char *p = shmem_malloc(HEAP);
	if (!p || others != 1)
		shmem_global_exit(2);
	/* What the other one reads is here and there in the heap. */
	for (size_t at = 0; at < HEAP; at += 8 * MIB)
		p[at] = (char)(me + 1);
	shmem_barrier_all();
	int sum = 0;
	for (size_t at = 0; at < HEAP; at += 8 * MIB)
		sum += shmem_char_g(p + at, 1 - me);
	shmem_barrier_all();
	if (me == 0) {
		printf("%d\n", sum);
		fflush(stdout);
	}
	shmem_barrier_all();
	/* Debian 12's shmem_finalize dies of SIGSEGV, with the shim and without. */
	shmem_global_exit(0);
}
