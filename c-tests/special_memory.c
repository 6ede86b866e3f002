/* Proves: huge pages, memfd_secret, growing mappings, sealed memory and io rings, as without the shim. */
#include <linux/aio_abi.h>
#include "check.h"

#ifndef SYS_memfd_secret
#define SYS_memfd_secret 447
#endif
#define SYS_map_shadow_stack_ 453
#define SYS_mseal_ 462

static void huge(void)
{
	size_t two = 2ul << 20;
	char *p = MAP_AS("MAP_HUGETLB", mmap(NULL, two, PROT_READ | PROT_WRITE,
					     MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB, -1, 0));
	if (p != MAP_FAILED) {
		p[0] = 1;
		quiet_point("hugetlb");
		MAP_AS("part", mmap(p, two, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0));
		CALL(munmap(p, two));
	}
	MAP_AS("MAP_HUGETLB of no size", mmap(NULL, two, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB | 5 << MAP_HUGE_SHIFT, -1, 0));
	/* Transparent ones: large, aligned, advised, split by an unmap. */
	p = anon(4096);
	CALL(madvise(p, 4096 * PAGE, MADV_HUGEPAGE));
	memset(p, 2, 4096 * PAGE);
	CALL(munmap(p + 1000 * PAGE, 3 * PAGE));
	say("around the hole %d %d", p[999 * PAGE], p[1003 * PAGE]);
	quiet_claim(p, 1000 * PAGE, "registered");
	quiet_claim(p + 1003 * PAGE, 3093 * PAGE, "registered");
	quiet_point("transparent");
	CALL(munmap(p, 4096 * PAGE));
}

static void secret(void)
{
	int fd = (int)syscall(SYS_memfd_secret, 0);
	if (fd < 0) {
		say("memfd_secret: %s", strerrorname_np(errno));
		return;
	}
	NEED(ftruncate(fd, 4 * PAGE) == 0);
	char *p = MAP_AS("memfd_secret", mmap(NULL, 4 * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0));
	if (p == MAP_FAILED)
		return;
	p[0] = 5;
	say("secret %d", p[0]);
	quiet_point("secret");
	CALL(munmap(p, 4 * PAGE));
}

static void grows(void)
{
	char *r = reserve(1024);
	NEED(munmap(r, 1024 * PAGE) == 0);
	char *p = MAP_AS("MAP_GROWSDOWN", mmap(r + 1000 * PAGE, 8 * PAGE, PROT_READ | PROT_WRITE,
					       MAP_PRIVATE | MAP_ANONYMOUS | MAP_GROWSDOWN | MAP_FIXED_NOREPLACE, -1, 0));
	p[0] = 1;
	quiet_point("growsdown");
	p[-1] = 2; /* grows by a page, without a call */
	p[-(long)(10 * PAGE)] = 3;
	say("grown %d %d %d", p[0], p[-1], p[-(long)(10 * PAGE)]);
	quiet_point("grown");
	CALL(munmap(p - 20 * PAGE, 28 * PAGE));
	in_child("read", touch_read, p);
}

static void rings(void)
{
	aio_context_t ring = 0;
	CALL(syscall(SYS_io_setup, 64, &ring));
	quiet_point("ring");
	CALL(syscall(SYS_io_destroy, ring));
	CALL(syscall(SYS_io_setup, 0, &ring));
	quiet_point("no ring");
}

static void sealed(void)
{
	char *p = anon(4);
	long r = syscall(SYS_mseal_, p, 4 * PAGE, 0);
	if (r < 0) {
		say("mseal: %s", strerrorname_np(errno));
		return;
	}
	CALL(munmap(p, 4 * PAGE));
	CALL(mprotect(p, PAGE, PROT_READ));
	MAP_AS("fixed over sealed", mmap(p, PAGE, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0));
	MAP_AS("sealed moved", mremap(p, 4 * PAGE, 8 * PAGE, MREMAP_MAYMOVE));
	p[0] = 3;
	say("alive %d", p[0]);
	quiet_claim(p, 4 * PAGE, "registered");
	quiet_point("sealed");
}

static void shadow(void)
{
	errno = 0;
	told("map_shadow_stack", syscall(SYS_map_shadow_stack_, 0, 4 * PAGE, 0) != -1);
	quiet_point("shadow");
}

int main(void)
{
	huge();
	secret();
	grows();
	rings();
	sealed();
	shadow();
	quiet_point("end");
	return 0;
}
