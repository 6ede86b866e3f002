/* Proves: memory of the device whose driver moves it between host and device is left alone, as a part and in a child, too. */
#include <sys/sysmacros.h>
#include "check.h"

static char folder[] = "/tmp/regall-managed-XXXXXX", path[64];

static void clean(void)
{
	unlink(path);
	rmdir(folder);
}

/* The stand-in: a device with the driver's name whose memory is anybody's, /dev/zero's. */
static int device(void)
{
	NEED(mkdtemp(folder));
	atexit(clean);
	snprintf(path, sizeof path, "%s/nvidia-uvm", folder);
	return mknod(path, S_IFCHR | 0600, makedev(1, 5)) == 0 ? open(path, O_RDWR | O_CLOEXEC) : -1;
}

/* (In a child the kernel's list names the stand-in otherwise.) */
static void in_a_child(void *p)
{
	say("child %d", *(char *)p);
	quiet_point("child");
}

int main(int argc, char **argv)
{
	bool short_run = argc > 1 && strcmp(argv[1], "short") == 0;
	int fd = device();
	if (fd < 0) {
		say("skip: no device can be made and opened here");
		return 0;
	}
	/* As CUDA does: shared, in the place of memory that is reserved. */
	char *r = reserve(96);
	char *p = mmap(r + 16 * PAGE, 64 * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0);
	NEED(p == r + 16 * PAGE);
	quiet_claim(p, 64 * PAGE, "managed");
	quiet_point("mapped");
	if (short_run)
		return 0;
	memset(p, 7, 64 * PAGE);
	quiet_claim(p, 64 * PAGE, "managed");
	quiet_point("touched");
	in_child("in a child", in_a_child, p);
	CALL(mprotect(p + 8 * PAGE, 8 * PAGE, PROT_NONE));
	quiet_point("closed");
	CALL(mprotect(p + 8 * PAGE, 8 * PAGE, PROT_READ | PROT_WRITE));
	CALL(munmap(p + 32 * PAGE, PAGE));
	quiet_claim(p, 32 * PAGE, "managed");
	quiet_claim(p + 33 * PAGE, 31 * PAGE, "managed");
	quiet_point("parts");
	char *moved = mremap(p, 4 * PAGE, 4 * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, r);
	NEED(moved == r);
	quiet_claim(r, 4 * PAGE, "managed");
	quiet_point("moved");
	say("kept %d", r[5]);
	CALL(munmap(r, 96 * PAGE));
	quiet_point("end");
	return 0;
}
