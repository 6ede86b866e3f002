/* Proves: what else is charged against RLIMIT_MEMLOCK (io_uring's registered buffers, perf's, SHM_LOCK, memfd_secret) fits and
 * fails as without the shim, also when our pins are at the limit; io_uring does what it does. */
#include <linux/io_uring.h>
#include <linux/perf_event.h>
#include <sys/ioctl.h>
#include <sys/shm.h>
#include <sys/uio.h>
#include "check.h"

#ifndef SYS_memfd_secret
#define SYS_memfd_secret 447
#endif
#define LIMIT (2048 * PAGE)

static struct {
	int fd;
	char *queue;
	struct io_uring_sqe *entries;
	struct io_uring_params p;
} ring;

static bool begin(void)
{
	ring.fd = (int)syscall(SYS_io_uring_setup, 4, &ring.p);
	if (ring.fd < 0) {
		say("io_uring: %s", strerrorname_np(errno));
		return false;
	}
	NEED(ring.p.features & IORING_FEAT_SINGLE_MMAP);
	size_t sq = ring.p.sq_off.array + ring.p.sq_entries * sizeof(unsigned);
	size_t cq = ring.p.cq_off.cqes + ring.p.cq_entries * sizeof(struct io_uring_cqe);
	ring.queue = mmap(NULL, sq > cq ? sq : cq, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, ring.fd,
			  IORING_OFF_SQ_RING);
	ring.entries = mmap(NULL, ring.p.sq_entries * sizeof(struct io_uring_sqe), PROT_READ | PROT_WRITE,
			    MAP_SHARED | MAP_POPULATE, ring.fd, IORING_OFF_SQES);
	NEED(ring.queue != MAP_FAILED && ring.entries != MAP_FAILED);
	return true;
}

static unsigned *word(unsigned offset)
{
	return (unsigned *)(ring.queue + offset);
}

/* Submits one operation and waits for what came of it. */
static int done(struct io_uring_sqe e)
{
	unsigned tail = *word(ring.p.sq_off.tail), at = tail & *word(ring.p.sq_off.ring_mask);
	ring.entries[at] = e;
	word(ring.p.sq_off.array)[at] = at;
	__atomic_store_n(word(ring.p.sq_off.tail), tail + 1, __ATOMIC_RELEASE);
	long n;
	do
		n = syscall(SYS_io_uring_enter, ring.fd, 1, 1, IORING_ENTER_GETEVENTS, NULL, 0);
	while (n < 0 && errno == EINTR);
	NEED(n == 1);
	unsigned head = *word(ring.p.cq_off.head);
	NEED(head != __atomic_load_n(word(ring.p.cq_off.tail), __ATOMIC_ACQUIRE));
	struct io_uring_cqe *c = (struct io_uring_cqe *)(ring.queue + ring.p.cq_off.cqes);
	int result = c[head & *word(ring.p.cq_off.ring_mask)].res;
	__atomic_store_n(word(ring.p.cq_off.head), head + 1, __ATOMIC_RELEASE);
	return result;
}

static int advise(char *p, size_t len, unsigned advice)
{
	return done((struct io_uring_sqe){ .opcode = IORING_OP_MADVISE, .addr = (uintptr_t)p,
					   .len = (unsigned)len, .fadvise_advice = advice });
}

static void rings(void)
{
	char *p = anon(128), *large = anon(8192);
	struct iovec within = { p, 128 * PAGE }, beyond = { large, 8192 * PAGE };
	CALL_AS("buffers", (int)syscall(SYS_io_uring_register, ring.fd, IORING_REGISTER_BUFFERS, &within, 1));
	int fd = memory_file(PAGE);
	NEED(pwrite(fd, "seven", 5, 0) == 5);
	int got = done((struct io_uring_sqe){ .opcode = IORING_OP_READ_FIXED, .fd = fd,
					      .addr = (uintptr_t)p, .len = 5 });
	say("read %d %.5s", got, p);
	CALL_AS("no buffers", (int)syscall(SYS_io_uring_register, ring.fd, IORING_UNREGISTER_BUFFERS, NULL, 0));
	CALL_AS("too many", (int)syscall(SYS_io_uring_register, ring.fd, IORING_REGISTER_BUFFERS, &beyond, 1));
	say("willneed %d", advise(p, PAGE, MADV_WILLNEED));
	say("nonsense %d", advise(p, PAGE, 999));
	/* This one fails on our pins, and docs/limits.md says so: the memory is whole in either case. */
	char *q = anon(1);
	q[0] = 5;
	int r = advise(q, PAGE, MADV_DONTNEED);
	say("dontneed %d", r == 0 ? q[0] == 0 : r == -EINVAL && q[0] == 5);
	CALL(mlock(q, PAGE));
	say("dontneed, locked %d", advise(q, PAGE, MADV_DONTNEED));
	CALL(munmap(q, PAGE));
	NEED(munmap(large, 8192 * PAGE) == 0 && munmap(p, 128 * PAGE) == 0 && close(fd) == 0);
}

static void others(void)
{
	struct perf_event_attr a = { .type = PERF_TYPE_SOFTWARE, .size = sizeof a, .config = PERF_COUNT_SW_PAGE_FAULTS,
				     .sample_period = 1000, .exclude_kernel = 1, .exclude_hv = 1 };
	int fd = (int)syscall(SYS_perf_event_open, &a, 0, -1, -1, 0);
	if (told("perf", fd >= 0)) {
		void *p = MAP_AS("its buffer", mmap(NULL, 9 * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0));
		quiet_point("perf");
		CALL(munmap(p, 9 * PAGE));
		MAP_AS("a large one", mmap(NULL, 16385 * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0));
		close(fd);
	}
	int id = shmget(IPC_PRIVATE, 64 * PAGE, IPC_CREAT | 0600);
	NEED(id >= 0);
	char *s = shmat(id, NULL, 0);
	CALL(shmctl(id, SHM_LOCK, NULL));
	CALL(shmctl(id, SHM_UNLOCK, NULL));
	CALL(shmctl(id, IPC_RMID, NULL));
	CALL(shmdt(s));
	int secret = (int)syscall(SYS_memfd_secret, 0);
	if (told("secret", secret >= 0)) {
		NEED(ftruncate(secret, 64 * PAGE) == 0);
		char *p = MAP_AS("mapped", mmap(NULL, 64 * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, secret, 0));
		CALL(munmap(p, 64 * PAGE));
		close(secret);
	}
	unsigned char there[64];
	char *p = anon(64);
	memset(p, 1, 16 * PAGE);
	NEED(mincore(p, 16 * PAGE, there) == 0);
	say("resident %d", there[0] & there[15] & 1);
	CALL(munmap(p, 64 * PAGE));
}

int main(int argc, char **argv)
{
	(void)argv;
	if (argc == 1) {
		struct rlimit r = { LIMIT, LIMIT };
		NEED(setrlimit(RLIMIT_MEMLOCK, &r) == 0);
		drop_privileges();
		execl("/proc/self/exe", "charged", "again", (char *)NULL);
		return 91;
	}
	bool has_ring = begin();
	quiet_point("a ring");
	for (int round = 0; round < 2; round++) {
		if (has_ring)
			rings();
		others();
		quiet_point("charged");
		for (int i = 0; i < 200; i++) /* until our pins are at the limit */
			memset(anon(16), 1, 16 * PAGE);
	}
	return 0;
}
