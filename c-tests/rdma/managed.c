/* Proves: memory of the device whose driver moves it between host and device is registered by no adapter, but where the program asks for it. */
#include <sys/sysmacros.h>
#include "reaches.h"

#define MIB (1ul << 20)
#define LEN (64 * MIB)

static char folder[] = "/tmp/regall-managed-XXXXXX", path[64];

static void clean(void)
{
	unlink(path);
	rmdir(folder);
}

int main(void)
{
	/* The stand-in: a device with the driver's name whose memory is anybody's, /dev/zero's. */
	NEED(mkdtemp(folder));
	atexit(clean);
	snprintf(path, sizeof path, "%s/nvidia-uvm", folder);
	NEED(mknod(path, S_IFCHR | 0600, makedev(1, 5)) == 0);
	int fd = open(path, O_RDWR | O_CLOEXEC);
	NEED(fd >= 0);
	char *r = reserve(LEN / PAGE + 32);
	char *before = r + 16 * PAGE;
	char *p = mmap(before, LEN, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0);
	NEED(p == before);
	memset(p, 'm', LEN);
	struct rig rig_ = rig();
	char *later = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	NEED(later != MAP_FAILED);
	later[0] = 1;
	if (shimmed()) {
		int (*lookup)(const void *, const void *, size_t, struct regall_range *) =
			(int (*)(const void *, const void *, size_t, struct regall_range *))dlsym(RTLD_DEFAULT, "regall_lookup");
		struct regall_range range;
		PROMISE(call_audit());
		for (int i = 0; i < 2; i++) {
			PROMISE(lookup(rig_.pd, i ? later : p, PAGE, &range) == 0);
			PROMISE(range.reason == REGALL_MANAGED && range.held == 0 && range.lkey == 0);
		}
		/* What adapters have pinned, as the kernel counts it. */
		PROMISE((size_t)status_of("VmPin") << 10 < LEN);
	}
	quiet_claim(p, LEN, "managed");
	quiet_point("registered");
	reaches(&rig_, "asked for", p, PAGE);
	rig_down(&rig_);
	say("wrong: %d", wrong);
	return 0;
}
