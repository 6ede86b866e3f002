/* Proves: a program that serves its own page faults (userfaultfd) sees every one of them, as without the shim. */
#include <linux/userfaultfd.h>
#include <poll.h>
#include <pthread.h>
#include <sys/ioctl.h>
#include "check.h"

#define PAGES 16ul

static int served;

static void *serve(void *arg)
{
	int fd = *(int *)arg;
	static char page[PAGE] __attribute__((aligned(4096)));
	for (;;) {
		struct uffd_msg m;
		if (read(fd, &m, sizeof m) != sizeof m)
			return NULL;
		memset(page, 'a' + served, PAGE);
		served++;
		struct uffdio_copy c = { .dst = m.arg.pagefault.address & ~(PAGE - 1), .src = (uintptr_t)page, .len = PAGE };
		if (ioctl(fd, UFFDIO_COPY, &c) < 0 && errno != EEXIST)
			return NULL;
	}
}

/* Who asks for it is told of pages that go (UFFD_EVENT_REMOVE), and whoever lets them go waits until that is read: nobody may
 * have to be told before there is somebody to read it. */
static void told_of_what_goes(void)
{
	int fd = (int)syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK | UFFD_USER_MODE_ONLY);
	NEED(fd >= 0);
	struct uffdio_api api = { .api = UFFD_API, .features = UFFD_FEATURE_EVENT_REMOVE };
	CALL(ioctl(fd, UFFDIO_API, &api));
	char *p = anon(PAGES);
	CALL(madvise(p, PAGES * PAGE, MADV_NOHUGEPAGE));
	CALL(madvise(p, PAGES * PAGE, MADV_DONTNEED));
	struct uffdio_register reg = { .range = { (uintptr_t)p, PAGES * PAGE }, .mode = UFFDIO_REGISTER_MODE_MISSING };
	CALL(ioctl(fd, UFFDIO_REGISTER, &reg));
	reg.mode |= UFFDIO_REGISTER_MODE_WP;
	CALL_AS("once more", ioctl(fd, UFFDIO_REGISTER, &reg));
	struct uffd_msg m;
	say("told of %d", read(fd, &m, sizeof m) == sizeof m ? m.event : 0);
	quiet_claim(p, PAGES * PAGE, "registered");
	quiet_point("watched");
	close(fd);
	say("zeroes %d", all_are(p, PAGES * PAGE, 0));
	CALL(munmap(p, PAGES * PAGE));
}

int main(void)
{
	int fd = (int)syscall(SYS_userfaultfd, O_CLOEXEC | UFFD_USER_MODE_ONLY);
	if (fd < 0) {
		say("userfaultfd: %s", strerrorname_np(errno));
		return 0;
	}
	told_of_what_goes();
	struct uffdio_api api = { .api = UFFD_API };
	CALL(ioctl(fd, UFFDIO_API, &api));
	char *p = anon(PAGES);
	CALL(madvise(p, PAGES * PAGE, MADV_DONTNEED));
	struct uffdio_register reg = { .range = { (uintptr_t)p, PAGES * PAGE }, .mode = UFFDIO_REGISTER_MODE_MISSING };
	CALL(madvise(p, PAGES * PAGE, MADV_NOHUGEPAGE));
	CALL(madvise(p, PAGES * PAGE, MADV_DONTNEED));
	CALL(ioctl(fd, UFFDIO_REGISTER, &reg));
	quiet_point("registered");
	pthread_t t;
	NEED(pthread_create(&t, NULL, serve, &fd) == 0);
	char text[PAGES + 1] = "";
	for (size_t i = 0; i < PAGES; i++)
		text[i] = p[i * PAGE];
	say("faults %d pages %s", served, text);
	quiet_claim(p, PAGES * PAGE, "registered");
	quiet_point("served");
	return 0;
}
