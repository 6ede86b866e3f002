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

int main(void)
{
	int fd = (int)syscall(SYS_userfaultfd, O_CLOEXEC | UFFD_USER_MODE_ONLY);
	if (fd < 0) {
		say("userfaultfd: %s", strerrorname_np(errno));
		return 0;
	}
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
