/* Proves: what is held by the absence of swap space is locked once there is some. Makes a memory call for each byte that it reads. */
#include "../check.h"

#define BYTES (4ul << 20)

int main(void)
{
	int shared = MAP_SHARED | MAP_ANONYMOUS, own = MAP_PRIVATE | MAP_ANONYMOUS;
	char *p = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, own, -1, 0);
	char *q = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, shared, -1, 0);
	NEED(p != MAP_FAILED && q != MAP_FAILED);
	memset(p, 1, BYTES);
	memset(q, 1, BYTES);
	dprintf(1, "%lx %lx\n", (unsigned long)p, (unsigned long)q);
	for (char c; read(0, &c, 1) == 1;) {
		NEED(munmap(mmap(NULL, PAGE, PROT_READ, own, -1, 0), PAGE) == 0);
		NEED(write(1, &c, 1) == 1);
	}
	return 0;
}
