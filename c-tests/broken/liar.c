/* A preloaded library that is not transparent: the harness must notice. */
#include <stddef.h>
#include <sys/mman.h>

int mlock(const void *addr, size_t len)
{
	(void)addr;
	(void)len;
	return 0;
}
