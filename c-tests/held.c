/* Proves: with more calls held up in the kernel than there are places for calls in progress, and a timer whose handler maps, the rest of the program goes on. */
/*
 * The calls are mlock's, of memory whose page faults the program serves itself
 * (userfaultfd), and does not until it has gone on for a while.
 */
#include <linux/userfaultfd.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/time.h>
#include "crowd.h"

#define HELD 300ul /* there are 256 places */
#define ROUNDS 100
#define HANDLED 20

static char *missing;
static pthread_barrier_t barrier;
static volatile sig_atomic_t handled, mapped;

static void *locks(void *arg)
{
	char *page = missing + (uintptr_t)arg * PAGE;
	pthread_barrier_wait(&barrier);
	return mlock(page, PAGE) == 0 && *page == 0 ? arg : MAP_FAILED;
}

static void on_alarm(int sig)
{
	(void)sig;
	int saved = errno;
	char *p = mmap(NULL, 4 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (p != MAP_FAILED) {
		p[0] = 1;
		mapped += munmap(p, 4 * PAGE) == 0;
	}
	handled++;
	errno = saved;
}

static void alarms(int usec)
{
	struct itimerval i = { { 0, usec }, { 0, usec } };
	NEED(setitimer(ITIMER_REAL, &i, NULL) == 0);
}

/* A descriptor by which all faults of `missing` are served. */
static int faults_of_our_own(void)
{
	/* Those of the kernel's own accesses, too, which not everybody may. */
	int fd = (int)syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK);
	if (fd < 0) {
		say("userfaultfd: %s", strerrorname_np(errno));
		exit(0);
	}
	struct uffdio_api api = { .api = UFFD_API };
	NEED(ioctl(fd, UFFDIO_API, &api) == 0);
	/* No memory of which copies are kept, or which is mapped for others: it stays missing. */
	missing = mmap(NULL, HELD * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	NEED(missing != MAP_FAILED);
	NEED(madvise(missing, HELD * PAGE, MADV_NOHUGEPAGE) == 0);
	NEED(madvise(missing, HELD * PAGE, MADV_DONTNEED) == 0);
	struct uffdio_register all = { .range = { (uintptr_t)missing, HELD * PAGE },
				       .mode = UFFDIO_REGISTER_MODE_MISSING };
	NEED(ioctl(fd, UFFDIO_REGISTER, &all) == 0);
	return fd;
}

/* Until each thread waits for its page. */
static void wait_held(int fd)
{
	static bool seen[HELD];
	for (size_t n = 0; n < HELD;) {
		struct pollfd p = { .fd = fd, .events = POLLIN };
		NEED(poll(&p, 1, 60000) == 1);
		struct uffd_msg m;
		if (read(fd, &m, sizeof m) != sizeof m) {
			NEED(errno == EAGAIN);
			continue;
		}
		NEED(m.event == UFFD_EVENT_PAGEFAULT);
		size_t page = (m.arg.pagefault.address - (uintptr_t)missing) / PAGE;
		NEED(page < HELD);
		n += !seen[page];
		seen[page] = true;
	}
}

static void go_on(void)
{
	alarms(2000);
	for (int i = 0; i < ROUNDS || handled < HANDLED; i++) {
		char *p = anon(8);
		memset(p, 1, 8 * PAGE);
		NEED(mprotect(p, 2 * PAGE, PROT_READ) == 0);
		NEED(all_are(p, 8 * PAGE, 1));
		NEED(munmap(p, 8 * PAGE) == 0);
	}
	alarms(0);
	say("went on %d", mapped == handled);
}

int main(void)
{
	static pthread_t t[HELD];
	sigset_t set;
	struct sigaction act = { .sa_handler = on_alarm, .sa_flags = SA_RESTART };
	NEED(sigaction(SIGALRM, &act, NULL) == 0);
	int fd = faults_of_our_own();
	NEED(pthread_barrier_init(&barrier, NULL, HELD + 1) == 0);
	sigemptyset(&set);
	sigaddset(&set, SIGALRM);
	NEED(pthread_sigmask(SIG_BLOCK, &set, NULL) == 0); /* the threads inherit that */
	crowd_start(t, HELD, locks);
	NEED(pthread_sigmask(SIG_UNBLOCK, &set, NULL) == 0);
	quiet_point("created");
	pthread_barrier_wait(&barrier);
	wait_held(fd);
	go_on();
	char *kept = anon(8);
	quiet_claim(kept, 8 * PAGE, "registered");
	quiet_point("held");
	/* One by one: the kernel serves no two mappings at once, and locks make many of one. */
	for (size_t i = 0; i < HELD; i++) {
		struct uffdio_zeropage zero = { .range = { (uintptr_t)missing + i * PAGE, PAGE } };
		NEED(ioctl(fd, UFFDIO_ZEROPAGE, &zero) == 0);
	}
	say("locked %d", crowd_join(t, HELD));
	quiet_claim(missing, HELD * PAGE, "registered");
	quiet_claim(kept, 8 * PAGE, "registered");
	quiet_point("served");
	return 0;
}
