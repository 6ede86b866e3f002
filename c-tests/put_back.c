/*
 * Proves: what a call that fails was about is as it was before: mapped, published, with its contents.
 */
#include <sys/auxv.h>
#include <sys/shm.h>
#include "check.h"

#define SYS_mseal_ 462

/* The kernel looks at the file before it takes away what is there. */
static void mapping(void)
{
	int fd = memory_file(4 * PAGE), ro = open("/proc/self/exe", O_RDONLY), wo = open("/dev/null", O_WRONLY);
	NEED(fd >= 0 && ro >= 0 && wo >= 0);
	const int prot = PROT_READ | PROT_WRITE, flags = MAP_PRIVATE | MAP_FIXED;
	char *p = anon(8);
	memset(p, 7, 8 * PAGE);
	MAP_AS("bad descriptor", mmap(p + PAGE, PAGE, prot, flags, 12345, 0));
	MAP_AS("bad offset", mmap(p + 2 * PAGE, PAGE, prot, flags, fd, 100));
	MAP_AS("no file to be read", mmap(p + 3 * PAGE, PAGE, prot, flags, wo, 0));
	MAP_AS("no file to be written", mmap(p + 4 * PAGE, PAGE, prot, MAP_SHARED | MAP_FIXED, ro, 0));
	MAP_AS("no type", mmap(p + 5 * PAGE, PAGE, prot, MAP_ANONYMOUS | MAP_FIXED, -1, 0));
	say("as it was %d", all_are(p, 8 * PAGE, 7));
	quiet_claim(p, 8 * PAGE, "registered");
	quiet_point("not mapped");
	CALL(munmap(p, 8 * PAGE));
}

/* What the kernel has mapped itself can't be divided. */
static void unmapping(void)
{
	char *vdso = (char *)getauxval(AT_SYSINFO_EHDR);
	if (vdso)
		CALL(munmap(vdso + PAGE, PAGE));
	quiet_point("not unmapped");
}

/* Something is in the way of what it would be in the end. */
static void moving(void)
{
	char *p = anon(8), *r = reserve(8);
	memset(p, 7, 8 * PAGE);
	MAP_AS("over itself", mremap(p, 4 * PAGE, 4 * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, p + PAGE));
	MAP_AS("no room", mremap(p, 2 * PAGE, 4 * PAGE, 0));
	MAP_AS("to nowhere", mremap(p, 2 * PAGE, 2 * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, ~0ul << 12));
	NEED(munmap(p + 4 * PAGE, PAGE) == 0);
	MAP_AS("a hole to be longer", mremap(p + 3 * PAGE, 3 * PAGE, 5 * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, r));
	say("as it was %d %d", all_are(p, 4 * PAGE, 7), all_are(p + 5 * PAGE, 3 * PAGE, 7));
	quiet_claim(p, 4 * PAGE, "registered");
	quiet_claim(p + 5 * PAGE, 3 * PAGE, "registered");
	quiet_point("not moved");
}

/* The first of two mappings may have moved (Linux 6.17), onto memory that was locked. */
static void half(void)
{
	int exe = open("/proc/self/exe", O_RDONLY), id = shmget(IPC_PRIVATE, PAGE, IPC_CREAT | 0600);
	NEED(exe >= 0 && id >= 0);
	char *from = reserve(2), *to = reserve(2);
	NEED(mmap(from, PAGE, PROT_READ, MAP_PRIVATE | MAP_FIXED, exe, 0) == from);
	NEED(shmat(id, from + PAGE, SHM_REMAP) == from + PAGE && shmctl(id, IPC_RMID, NULL) == 0);
	NEED(mmap(to, 2 * PAGE, PROT_READ, MAP_PRIVATE | MAP_FIXED | MAP_LOCKED, exe, 0) == to);
	MAP_AS("half", mremap(from, 2 * PAGE, 2 * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, to));
	quiet_point("half moved");
}

/* A sealed heap does not shrink; what is sealed stays to the end. */
static void shrinking(void *unused)
{
	(void)unused;
	char *top = sbrk(0);
	unsigned long rest = -(unsigned long)top % PAGE;
	NEED(sbrk((intptr_t)(rest + 4 * PAGE)) == top);
	char *last = top + rest + 3 * PAGE;
	memset(last, 7, PAGE);
	if (syscall(SYS_mseal_, last, PAGE, 0) != 0) {
		say("no seals: %s", strerrorname_np(errno));
		return;
	}
	say("break stays %d", syscall(SYS_brk, top) == (long)(last + PAGE));
	say("as it was %d", all_are(last, PAGE, 7));
	quiet_point("not shrunk");
}

int main(void)
{
	mapping();
	unmapping();
	moving();
	half();
	in_child("shrinking", shrinking, NULL);
	quiet_point("end");
	return 0;
}
