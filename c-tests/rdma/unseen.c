/* Proves: memory that changes without a call which the shim sees is not answered with an old region. */
/*
 * unseen: private mappings of a file that is cut or rewritten, registered and not; a key that was
 *   given back while others are registered all the time.
 * unseen ring: memory that is discarded through io_uring.
 * unseen code: memory that is replaced by code in memory that is writable and executable at once.
 */
#include "rdma.h"
#include <linux/io_uring.h>
#include <sys/syscall.h>
#include <time.h>

#define PAGES 32ul

static struct rig r;

static void fill(int fd, char c)
{
	char page[PAGE];
	memset(page, c, PAGE);
	for (size_t i = 0; i < PAGES; i++)
		NEED(pwrite(fd, page, PAGE, (off_t)(i * PAGE)) == (ssize_t)PAGE);
}

static struct ibv_mr *lend(char *p, int access)
{
	volatile int a = access;
	struct ibv_mr *mr = ibv_reg_mr(r.pd, p, PAGES * PAGE, a);
	NEED(mr);
	return mr;
}

/* A file is rewritten under mappings of it; with O_TRUNC in `how` it is cut before. */
static void file(const char *label, int prot, int access, int how)
{
	char name[] = "/tmp/unseen-XXXXXX";
	int fd = mkstemp(name);
	NEED(fd >= 0);
	fill(fd, 'o');
	char *p = mmap(NULL, PAGES * PAGE, prot, MAP_PRIVATE, fd, 0);
	char *q = mmap(NULL, PAGES * PAGE, prot, MAP_PRIVATE, fd, 0);
	NEED(p != MAP_FAILED && q != MAP_FAILED);
	struct ibv_mr *mr = lend(p, access);
	say("%s", label);
	tell_remote("before", &r, p, mr->rkey, 4);
	dereg("it", mr);
	int other = open(name, O_RDWR | how);
	NEED(other >= 0);
	fill(other, 'n');
	tell_here("registered once", p, 4);
	tell_here("never registered", q, 4);
	mr = lend(p, access);
	tell_remote("registered again", &r, p, mr->rkey, 4);
	dereg("it", mr);
	NEED(munmap(p, PAGES * PAGE) == 0 && munmap(q, PAGES * PAGE) == 0);
	NEED(close(fd) == 0 && close(other) == 0 && unlink(name) == 0);
}

static void pool(const char *pages)
{
	int fd = open("/proc/sys/vm/nr_hugepages", O_WRONLY);
	NEED(fd >= 0 && write(fd, pages, strlen(pages)) == (ssize_t)strlen(pages));
	close(fd);
}

/* The same of a file of huge pages, which is cut. */
static void huge(void)
{
	size_t len = 2ul << 20;
	pool("4");
	int fd = memfd_create("unseen", MFD_HUGETLB);
	NEED(fd >= 0 && ftruncate(fd, (off_t)len) == 0);
	char *all = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	char *p = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_HUGETLB, fd, 0);
	NEED(all != MAP_FAILED && p != MAP_FAILED);
	memset(all, 'o', len);
	struct ibv_mr *mr = lend(p, ALL);
	say("huge pages");
	tell_remote("before", &r, p, mr->rkey, 4);
	dereg("it", mr);
	NEED(ftruncate(fd, 0) == 0 && ftruncate(fd, (off_t)len) == 0);
	memset(all, 'n', len);
	tell_here("here", p, 4);
	mr = lend(p, ALL);
	tell_remote("registered again", &r, p, mr->rkey, 4);
	dereg("it", mr);
	NEED(munmap(all, len) == 0 && munmap(p, len) == 0 && close(fd) == 0);
	pool("0");
}

static long ms(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

/* A key that was given back goes, though a neighbour in the same mapping is registered and given back
   all the time. */
static void steady(void)
{
	char *p = island(2 * PAGES), *q = p + PAGES * PAGE;
	letters(p, 2 * PAGES, 'a');
	struct ibv_mr *mr = lend(p, LW | RR);
	uint32_t key = mr->rkey;
	say("its key: %s", wc(get(&r, p, key, PAGE)));
	dereg("it", mr);
	enum ibv_wc_status status = IBV_WC_SUCCESS;
	for (long begin = ms(); status == IBV_WC_SUCCESS && ms() - begin < 20000;) {
		mr = lend(q, LW | RR);
		usleep(1000);
		NEED(ibv_dereg_mr(mr) == 0);
		usleep(10000);
		status = get(&r, p, key, PAGE);
	}
	say("after traffic beside it: %s", wc(status));
}

/* Discards memory by IORING_OP_MADVISE. What the kernel says of locked memory is its own business. */
static void discard(char *p)
{
	struct io_uring_params params = { 0 };
	int fd = (int)syscall(SYS_io_uring_setup, 4, &params);
	NEED(fd >= 0);
	size_t entries = params.sq_off.array + params.sq_entries * sizeof(unsigned);
	size_t done = params.cq_off.cqes + params.cq_entries * sizeof(struct io_uring_cqe);
	size_t len = entries > done ? entries : done;
	char *ring = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_SHARED, fd, IORING_OFF_SQ_RING);
	struct io_uring_sqe *sqe = mmap(NULL, params.sq_entries * sizeof *sqe, PROT_READ | PROT_WRITE,
					MAP_SHARED, fd, IORING_OFF_SQES);
	NEED(ring != MAP_FAILED && sqe != MAP_FAILED);
	*sqe = (struct io_uring_sqe){
		.opcode = IORING_OP_MADVISE,
		.addr = (uintptr_t)p,
		.len = PAGES * PAGE,
		.fadvise_advice = MADV_DONTNEED,
	};
	*(unsigned *)(ring + params.sq_off.array) = 0;
	__atomic_fetch_add((unsigned *)(ring + params.sq_off.tail), 1, __ATOMIC_RELEASE);
	NEED(syscall(SYS_io_uring_enter, fd, 1, 1, IORING_ENTER_GETEVENTS, NULL, 0) == 1);
	NEED(close(fd) == 0);
}

/* Replaces memory by system calls that are made by code which was written a moment ago. */
static void replace(char *p)
{
	/* mov rax, rdi; mov rdi, rsi; mov rsi, rdx; mov rdx, rcx; mov r10, r8; mov r8, r9;
	   mov r9, [rsp + 8]; syscall; ret */
	static const unsigned char code[] = { 0x48, 0x89, 0xf8, 0x48, 0x89, 0xf7, 0x48, 0x89, 0xd6,
					      0x48, 0x89, 0xca, 0x4d, 0x89, 0xc2, 0x4d, 0x89, 0xc8,
					      0x4c, 0x8b, 0x4c, 0x24, 0x08, 0x0f, 0x05, 0xc3 };
	char *at = mmap(NULL, PAGE, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	NEED(at != MAP_FAILED);
	memcpy(at, code, sizeof code);
	long (*call)(long, long, long, long, long, long, long) = (void *)at;
	NEED(call(SYS_munmap, (long)p, PAGES * PAGE, 0, 0, 0, 0) == 0);
	NEED(call(SYS_mmap, (long)p, PAGES * PAGE, PROT_READ | PROT_WRITE,
		  MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0) == (long)p);
}

static void changed(void (*how)(char *))
{
	char *p = island(PAGES);
	memset(p, 'o', PAGES * PAGE);
	struct ibv_mr *mr = lend(p, ALL);
	tell_remote("before", &r, p, mr->rkey, 4);
	dereg("it", mr);
	how(p);
	memset(p, 'n', PAGES * PAGE);
	mr = lend(p, ALL);
	tell_remote("registered again", &r, p, mr->rkey, 4);
	say("put: %s", wc(put(&r, p, mr->rkey, 'w', PAGE)));
	tell_here("here", p, 4);
	dereg("it", mr);
}

int main(int argc, char **argv)
{
	r = rig();
	if (argc > 1 && strcmp(argv[1], "ring") == 0) {
		changed(discard);
	} else if (argc > 1) {
		changed(replace);
	} else {
		int both = PROT_READ | PROT_WRITE;
		file("read, in place", PROT_READ, RR, 0);
		file("read, cut", PROT_READ, RR, O_TRUNC);
		file("written, in place", both, LW | RR, 0);
		file("written, cut", both, LW | RR, O_TRUNC);
		huge();
		steady();
	}
	rig_down(&r);
	return wrong != 0;
}
