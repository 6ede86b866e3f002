/*
 * Uses /dev/knem as UCX and Open MPI do, and at its edges: one process owns memory,
 * another one copies. A test of knem_device first of all; it is meant to pass on the real
 * driver, too. Says what is not as it should be; exit status 0 if nothing, 77 without a device.
 * `knem_client stale` uses a region whose memory has been mapped anew, and passes where that
 * fails: under knem_device --pages.
 */
#include <pthread.h>
#include <time.h>

#include "../expect.h"
#include "knem_abi.h"

#define SIZE (64 * PAGE)
#define COPIERS 4

/* What the owner tells the other one. */
struct shared {
	uint64_t all, pieces, read_only, write_only, once;
};

static struct shared *shared;

static int open_knem(void)
{
	int fd = open(KNEM_DEVICE, O_RDWR | O_CLOEXEC);
	if (fd < 0 && errno == ENOENT) {
		say("skipped: no " KNEM_DEVICE);
		_exit(77);
	}
	NEED(fd >= 0);
	return fd;
}

static uint64_t segment_at(const void *p)
{
	return (uint64_t)(uintptr_t)p;
}

static int create(int fd, struct knem_cmd_param_iovec *at, uint32_t n, uint32_t protection, uint32_t flags,
		  uint64_t *cookie)
{
	struct knem_cmd_create_region p = {
		.iovec_array = segment_at(at), .iovec_nr = n, .flags = flags, .protection = protection
	};
	int r = ioctl(fd, KNEM_CMD_CREATE_REGION, &p);
	*cookie = p.cookie;
	return r;
}

static int create_one(int fd, void *p, size_t len, uint32_t protection, uint32_t flags, uint64_t *cookie)
{
	struct knem_cmd_param_iovec one = { segment_at(p), len };
	return create(fd, &one, 1, protection, flags, cookie);
}

/* Returns as ioctl does; the status, where it succeeds, is a fourth thing to look at. */
static int inline_copy(int fd, struct knem_cmd_param_iovec *at, uint32_t n, bool write, uint64_t cookie,
		       uint64_t offset, uint32_t flags, uint32_t slot, uint32_t *status)
{
	struct knem_cmd_inline_copy p = { .local_iovec_array = segment_at(at),
					  .local_iovec_nr = n,
					  .write = write,
					  .remote_cookie = cookie,
					  .remote_offset = offset,
					  .flags = flags,
					  .current_status = 99,
					  .async_status_index = slot };
	errno = 0;
	int r = ioctl(fd, KNEM_CMD_INLINE_COPY, &p);
	*status = p.current_status;
	return r;
}

static int get(int fd, void *to, size_t len, uint64_t cookie, uint64_t offset)
{
	struct knem_cmd_param_iovec one = { segment_at(to), len };
	uint32_t status;
	int r = inline_copy(fd, &one, 1, false, cookie, offset, 0, 0, &status);
	return r < 0 ? r : status == KNEM_STATUS_SUCCESS ? 0 : 1;
}

static int put(int fd, void *from, size_t len, uint64_t cookie, uint64_t offset)
{
	struct knem_cmd_param_iovec one = { segment_at(from), len };
	uint32_t status;
	int r = inline_copy(fd, &one, 1, true, cookie, offset, 0, 0, &status);
	return r < 0 ? r : status == KNEM_STATUS_SUCCESS ? 0 : 1;
}

static char pattern(size_t i)
{
	return (char)(i * 7 + i / 251);
}

static bool is_pattern(const char *p, size_t n, size_t from)
{
	for (size_t i = 0; i < n; i++)
		if (p[i] != pattern(from + i))
			return false;
	return true;
}

/* ---- the owner ---- */

static void refuses_bad_ranges(int fd)
{
	uint64_t cookie;
	char *hole = reserve(4);
	EXPECT(fails_with(EFAULT, create_one(fd, hole, PAGE, PROT_READ, 0, &cookie)));
	NEED(mprotect(hole, PAGE, PROT_READ) == 0);
	EXPECT(create_one(fd, hole, PAGE, PROT_READ, 0, &cookie) == 0);
	EXPECT(ioctl(fd, KNEM_CMD_DESTROY_REGION, &cookie) == 0);
	EXPECT(fails_with(EINVAL, ioctl(fd, KNEM_CMD_DESTROY_REGION, &cookie)));
	EXPECT(fails_with(EFAULT, create_one(fd, hole, PAGE, PROT_WRITE, 0, &cookie)));
	EXPECT(fails_with(EFAULT, create_one(fd, hole, 2 * PAGE, PROT_READ, 0, &cookie)));
	EXPECT(fails_with(EFAULT, create(fd, NULL, 1, PROT_READ, 0, &cookie)));
	EXPECT(create_one(fd, hole + PAGE, 0, PROT_READ, 0, &cookie) == 0);
	EXPECT(fails_with(EFAULT, ioctl(fd, KNEM_CMD_CREATE_REGION, NULL)));
}

/* The whole buffer in pieces of uneven lengths, with nothing in between. */
static uint32_t cut(char *p, struct knem_cmd_param_iovec *at)
{
	uint32_t n = 0;
	size_t done = 0;
	for (size_t len = 1; done < SIZE; len = len * 3 + 1) {
		size_t piece = len < SIZE - done ? len : SIZE - done;
		at[n++] = (struct knem_cmd_param_iovec){ segment_at(p + done), piece };
		at[n++] = (struct knem_cmd_param_iovec){ n % 4 ? 0 : segment_at(p), 0 };
		done += piece;
	}
	return n;
}

static void own(int ready, int done)
{
	int fd = open_knem();
	struct knem_cmd_param_iovec at[64];
	char *p = anon(SIZE / PAGE);
	for (size_t i = 0; i < SIZE; i++)
		p[i] = pattern(i);
	refuses_bad_ranges(fd);
	const uint32_t both = PROT_READ | PROT_WRITE;
	NEED(create_one(fd, p, SIZE, both, 0, &shared->all) == 0);
	NEED(create(fd, at, cut(p, at), both, 0, &shared->pieces) == 0);
	NEED(create_one(fd, p, SIZE, PROT_READ, 0, &shared->read_only) == 0);
	NEED(create_one(fd, p, SIZE, PROT_WRITE, 0, &shared->write_only) == 0);
	NEED(create_one(fd, p, SIZE, both, KNEM_FLAG_SINGLEUSE, &shared->once) == 0);
	uint64_t none;
	EXPECT(fails_with(EINVAL, create_one(fd, p, SIZE, both, 1u << 8, &none)));
	char word;
	NEED(write(ready, "", 1) == 1 && read(done, &word, 1) == 1);
	/* What the other one wrote: see writes(). */
	EXPECT(all_are(p + 5, 3 * PAGE, 'w') && is_pattern(p, 5, 0));
	EXPECT(is_pattern(p + 5 + 3 * PAGE, PAGE, 5 + 3 * PAGE));
	EXPECT(all_are(p + SIZE - 10, 10, 'e'));
	_exit(wrong ? 1 : 0);
}

/* ---- the other one ---- */

static void reads(int fd)
{
	char *here = anon(SIZE / PAGE);
	uint64_t of[] = { shared->all, shared->pieces, shared->read_only };
	for (int i = 0; i < 3; i++) {
		memset(here, 0, SIZE);
		EXPECT(get(fd, here, SIZE, of[i], 0) == 0 && is_pattern(here, SIZE, 0));
		memset(here, 0, SIZE);
		EXPECT(get(fd, here, 10000, of[i], 12345) == 0 && is_pattern(here, 10000, 12345) && here[10000] == 0);
		/* Stops at the end of the shorter side; from there on nothing is success. */
		memset(here, '-', SIZE);
		EXPECT(get(fd, here, SIZE, of[i], SIZE - 100) == 0 && is_pattern(here, 100, SIZE - 100) && here[100] == '-');
		memset(here, '-', SIZE);
		EXPECT(get(fd, here, SIZE, of[i], SIZE) == 0 && get(fd, here, 1, of[i], UINT64_MAX) == 0 && all_are(here, SIZE, '-'));
	}
	struct knem_cmd_param_iovec many[] = { { segment_at(here), 100 },
					       { 0, 0 },
					       { segment_at(here + 5000), PAGE },
					       { segment_at(here + 100), 33 } };
	uint32_t status;
	EXPECT(inline_copy(fd, many, 4, false, shared->pieces, 77, 0, 0, &status) == 0 && status == KNEM_STATUS_SUCCESS);
	EXPECT(is_pattern(here, 100, 77) && is_pattern(here + 5000, PAGE, 177) && is_pattern(here + 100, 33, 177 + PAGE));
	munmap(here, SIZE);
}

static void writes(int fd)
{
	char *here = anon(SIZE / PAGE), back[10];
	memset(here, 'w', SIZE);
	EXPECT(put(fd, here, 3 * PAGE, shared->pieces, 5) == 0);
	EXPECT(get(fd, back, 10, shared->all, 0) == 0 && is_pattern(back, 5, 0) && all_are(back + 5, 5, 'w'));
	memset(here, 'e', SIZE);
	EXPECT(put(fd, here, SIZE, shared->write_only, SIZE - 10) == 0);
	struct knem_cmd_inline_copy_bounded p = { .local_iovec_array = segment_at(&(struct knem_cmd_param_iovec){ segment_at(here), SIZE }),
						  .local_iovec_nr = 1,
						  .remote_cookie = shared->all,
						  .remote_offset = SIZE - 10,
						  .length = 4 };
	memset(here, '-', SIZE);
	EXPECT(ioctl(fd, KNEM_CMD_INLINE_COPY_BOUNDED, &p) == 0 && p.current_status == KNEM_STATUS_SUCCESS);
	EXPECT(all_are(here, 4, 'e') && here[4] == '-');
	munmap(here, SIZE);
}

static void is_refused(int fd)
{
	char here[64];
	uint64_t gone = shared->all ^ 1ull << 40;
	EXPECT(fails_with(EINVAL, get(fd, here, 64, gone, 0)) && fails_with(EINVAL, get(fd, here, 64, 0, 0)));
	EXPECT(fails_with(EACCES, get(fd, here, 64, shared->write_only, 0)));
	EXPECT(fails_with(EACCES, put(fd, here, 64, shared->read_only, 0)));
	EXPECT(fails_with(EINVAL, ioctl(fd, KNEM_CMD_DESTROY_REGION, &shared->all)) && get(fd, here, 1, shared->all, 0) == 0);
	/* A single use is used up by a copy, however short, and not by one that was refused. */
	EXPECT(get(fd, here, 1, shared->once, SIZE) == 0 && fails_with(EINVAL, get(fd, here, 1, shared->once, 0)));
	/* Bad memory of our own: met while copying when read into, before when written from. */
	char *hole = reserve(1);
	EXPECT(get(fd, hole, PAGE, shared->all, 0) == 1);
	EXPECT(fails_with(EFAULT, put(fd, hole, PAGE, shared->all, PAGE)));
	EXPECT(fails_with(ENOSYS, ioctl(fd, _IO('K', 0x7f), 0)));
	int reader = open(KNEM_DEVICE, O_RDONLY | O_CLOEXEC);
	struct knem_cmd_info info;
	EXPECT(reader >= 0 && fails_with(EBADF, ioctl(reader, KNEM_CMD_GET_INFO, &info)));
	close(reader);
	munmap(hole, PAGE);
}

static void copies_between_regions(int fd)
{
	char *here = anon(2);
	uint64_t mine;
	EXPECT(create_one(fd, here, 2 * PAGE, PROT_WRITE, 0, &mine) == 0);
	struct knem_cmd_copy p = { .src_cookie = shared->pieces, .src_offset = 20000, .dst_cookie = mine, .dst_offset = 100 };
	EXPECT(ioctl(fd, KNEM_CMD_COPY, &p) == 0 && p.current_status == KNEM_STATUS_SUCCESS);
	EXPECT(is_pattern(here + 100, 2 * PAGE - 100, 20000) && here[99] == 0);
	struct knem_cmd_copy_bounded b = { .src_cookie = shared->all, .src_offset = 20000, .dst_cookie = mine, .length = 50 };
	EXPECT(ioctl(fd, KNEM_CMD_COPY_BOUNDED, &b) == 0 && b.current_status == KNEM_STATUS_SUCCESS);
	EXPECT(is_pattern(here, 50, 20000) && here[50] == 0);
	p.src_cookie = mine;
	EXPECT(fails_with(EACCES, ioctl(fd, KNEM_CMD_COPY, &p)));
	EXPECT(ioctl(fd, KNEM_CMD_DESTROY_REGION, &mine) == 0 && fails_with(EINVAL, ioctl(fd, KNEM_CMD_COPY, &p)));
	munmap(here, 2 * PAGE);
}

static bool comes(volatile uint8_t *slot)
{
	for (int i = 0; i < 5000 && *slot == KNEM_STATUS_PENDING; i++)
		usleep(1000);
	return *slot == KNEM_STATUS_SUCCESS;
}

static void asynchronous(int fd, uint32_t features)
{
	char *here = anon(SIZE / PAGE);
	struct knem_cmd_param_iovec one = { segment_at(here), SIZE };
	uint32_t status;
	const uint32_t in_thread = KNEM_FLAG_MEMCPYTHREAD;
	EXPECT(fails_with(EINVAL, inline_copy(fd, &one, 1, false, shared->pieces, 5000, in_thread, 7, &status)));
	volatile uint8_t *slots = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	NEED(slots != MAP_FAILED);
	slots[7] = 77;
	EXPECT(inline_copy(fd, &one, 1, false, shared->all, 20000, in_thread, 7, &status) == 0 && status == KNEM_STATUS_PENDING);
	EXPECT(comes(slots + 7) && is_pattern(here, SIZE - 20000 - 10, 20000));
	EXPECT(fails_with(EINVAL, inline_copy(fd, &one, 1, false, shared->all, 0, in_thread, PAGE, &status)));
	const uint32_t dma = KNEM_FLAG_DMA | KNEM_FLAG_ASYNCDMACOMPLETE;
	memset(here, 0, SIZE);
	if (features & KNEM_FEATURE_DMA)
		EXPECT(inline_copy(fd, &one, 1, false, shared->all, 20000, dma, 9, &status) == 0 && comes(slots + 9) &&
		       is_pattern(here, PAGE, 20000));
	else {
		/* Refused, or, by a driver that was built without it, a copy like any other. */
		int r = inline_copy(fd, &one, 1, false, shared->all, 20000, dma, 9, &status);
		EXPECT(r == 0 ? comes(slots + 9) && is_pattern(here, PAGE, 20000) : errno == EINVAL);
	}
	/* Without DMA to be completed later it is a copy like any other, and its slot is set. */
	EXPECT(inline_copy(fd, &one, 1, false, shared->all, 20000, KNEM_FLAG_ASYNCDMACOMPLETE, 11, &status) == 0 &&
	       status == KNEM_STATUS_SUCCESS && slots[11] == KNEM_STATUS_SUCCESS);
	munmap((void *)slots, PAGE);
	munmap(here, SIZE);
}

static void *copier(void *arg)
{
	int fd = *(int *)arg;
	char *here = anon(SIZE / PAGE);
	for (int i = 0; i < 200 && !wrong; i++) {
		size_t from = 20000 + (size_t)i * 131;
		EXPECT(get(fd, here, 30000, i % 2 ? shared->all : shared->pieces, from) == 0 && is_pattern(here, 30000, from));
	}
	munmap(here, SIZE);
	return NULL;
}

static void from_threads(int fd)
{
	pthread_t t[COPIERS];
	for (int i = 0; i < COPIERS; i++)
		NEED(pthread_create(&t[i], NULL, copier, &fd) == 0);
	for (int i = 0; i < COPIERS; i++)
		pthread_join(t[i], NULL);
}

/* Root gets no more than others: it is the same user or not. */
static void as_somebody_else(int fd)
{
	if (geteuid() != 0)
		return;
	pid_t pid = fork();
	NEED(pid >= 0);
	if (pid == 0) {
		char here[64];
		drop_privileges();
		EXPECT(fails_with(EPERM, get(fd, here, 64, shared->all, 0)));
		EXPECT(fails_with(EPERM, put(fd, here, 64, shared->read_only, 0)));
		_exit(wrong ? 1 : 0);
	}
	int status;
	EXPECT(waitpid(pid, &status, 0) == pid && status == 0);
}

static int stale(void)
{
	int fd = open_knem();
	char *p = anon(4), here[2 * PAGE];
	uint64_t cookie;
	memset(p, 'o', 4 * PAGE);
	NEED(create_one(fd, p, 4 * PAGE, PROT_READ, 0, &cookie) == 0);
	EXPECT(get(fd, here, 2 * PAGE, cookie, PAGE) == 0 && all_are(here, 2 * PAGE, 'o'));
	NEED(munmap(p + 2 * PAGE, PAGE) == 0);
	NEED(mmap(p + 2 * PAGE, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == p + 2 * PAGE);
	p[2 * PAGE] = 'n';
	EXPECT(get(fd, here, 2 * PAGE, cookie, 0) == 0 && get(fd, here, PAGE, cookie, 3 * PAGE) == 0);
	EXPECT(get(fd, here, 2 * PAGE, cookie, 1) == 1 && get(fd, here, 1, cookie, 2 * PAGE) == 1);
	say("%s", wrong ? "wrong" : "as it should be");
	return wrong ? 1 : 0;
}

int main(int argc, char **argv)
{
	if (argc > 1 && strcmp(argv[1], "stale") == 0)
		return stale();
	int ready[2], done[2], status;
	shared = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	NEED(shared != MAP_FAILED && pipe2(ready, O_CLOEXEC) == 0 && pipe2(done, O_CLOEXEC) == 0);
	int fd = open_knem();
	struct knem_cmd_info info = { 0 };
	EXPECT(ioctl(fd, KNEM_CMD_GET_INFO, &info) == 0 && info.abi == KNEM_ABI_VERSION);
	EXPECT(fails_with(EFAULT, ioctl(fd, KNEM_CMD_GET_INFO, NULL)));
	pid_t owner = fork();
	NEED(owner >= 0);
	if (owner == 0)
		own(ready[1], done[0]);
	char byte;
	close(ready[1]);
	NEED(read(ready[0], &byte, 1) == 1);
	reads(fd);
	writes(fd);
	is_refused(fd);
	copies_between_regions(fd);
	asynchronous(fd, info.features);
	from_threads(fd);
	as_somebody_else(fd);
	NEED(write(done[1], "", 1) == 1);
	EXPECT(waitpid(owner, &status, 0) == owner && status == 0);
	/* Its descriptor went with it, and its regions with that. */
	EXPECT(fails_with(EINVAL, get(fd, &byte, 1, shared->all, 0)));
	say("%s", wrong ? "wrong" : "as it should be");
	return wrong ? 1 : 0;
}
