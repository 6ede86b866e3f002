/*
 * Proves: what KNEM has hold of is what the owner writes later, too: of memory that nobody has
 * written yet, of a private file's. No child of fork keeps the owner's pages, and a region of
 * more segments than the driver takes goes by another mechanism.
 *
 *   knem_pages MECHANISM
 *
 * MECHANISM (a number of enum regall_mechanism) is expected to copy where KNEM would. Says what
 * is not as it should be; exit status 0 if nothing.
 */
#include <dirent.h>
#include <sys/fsuid.h>

#include "region.h"

#define BYTES (16 * PAGE)
#define MANY 100000

static uint32_t expected;
static int question[2], reply[2];

struct answer {
	int32_t result;
	uint32_t mechanism;
	uint64_t bytes;
	char first, last;
};

/* Another process, which reads the regions that it is told of. */
static void reader(void)
{
	static char buffer[BYTES];
	struct regall_segment to = piece(buffer, BYTES);
	uint64_t cookie;
	while (read(question[0], &cookie, sizeof cookie) == sizeof cookie) {
		struct regall_done done = { 0 };
		struct answer a = { .result = regall_region_read(cookie, 0, &to, 1, &done) };
		a.bytes = done.bytes;
		a.mechanism = done.mechanism;
		a.first = buffer[0];
		a.last = done.bytes ? buffer[done.bytes - 1] : 0;
		NEED(write(reply[1], &a, sizeof a) == sizeof a);
	}
	_exit(0);
}

static struct answer asked(uint64_t cookie)
{
	struct answer a = { 0 };
	NEED(write(question[1], &cookie, sizeof cookie) == sizeof cookie);
	NEED(read(reply[0], &a, sizeof a) == sizeof a);
	return a;
}

/* Memory that has not been written is made a region, read, written, and read again. */
static void written_later(char *p, char before, bool by_knem)
{
	uint64_t cookie = region_of(p, BYTES, REGALL_REGION_READ, 0);
	struct answer a = asked(cookie);
	IS(0, a.result);
	IS(BYTES, a.bytes);
	IS(before, a.first);
	IS(before, a.last);
	if (by_knem)
		IS(expected, a.mechanism);
	memset(p, 'w', BYTES);
	a = asked(cookie);
	IS(0, a.result);
	IS('w', a.first);
	IS('w', a.last);
	if (by_knem)
		IS(expected, a.mechanism);
	IS(0, regall_region_destroy(cookie));
}

static void kinds(void)
{
	const int both = PROT_READ | PROT_WRITE, private = MAP_PRIVATE | MAP_ANONYMOUS;
	written_later(mmap(NULL, BYTES, both, private, -1, 0), 0, true);
	written_later(mmap(NULL, BYTES, both, private | MAP_NORESERVE, -1, 0), 0, false);
	written_later(mmap(NULL, BYTES, both, MAP_SHARED | MAP_ANONYMOUS, -1, 0), 0, false);
	int file = memory_file(BYTES);
	char *p = mmap(NULL, BYTES, both, MAP_SHARED, file, 0);
	memset(p, 'f', BYTES);
	written_later(mmap(NULL, BYTES, both, MAP_PRIVATE, file, 0), 'f', false);
	/* Memory that may be written later. */
	char *q = mmap(NULL, BYTES, PROT_READ, private, -1, 0);
	uint64_t cookie = region_of(q, BYTES, REGALL_REGION_READ, 0);
	IS(0, asked(cookie).first);
	NEED(mprotect(q, BYTES, both) == 0);
	memset(q, 'm', BYTES);
	struct answer a = asked(cookie);
	HOLDS(a.result == 0 && a.first == 'm' && a.last == 'm');
	IS(0, regall_region_destroy(cookie));
	/* A file that is cut and grows again has other pages. */
	cookie = region_of(p, BYTES, REGALL_REGION_READ, 0);
	IS('f', asked(cookie).first);
	NEED(ftruncate(file, 0) == 0 && ftruncate(file, BYTES) == 0);
	memset(p, 'g', BYTES);
	IS('g', asked(cookie).first);
	IS(0, regall_region_destroy(cookie));
	close(file);
}

static int descriptors_of_the_device(void)
{
	DIR *d = opendir("/proc/self/fd");
	int count = 0;
	NEED(d);
	for (struct dirent *e; (e = readdir(d));) {
		char target[64] = { 0 };
		if (readlinkat(dirfd(d), e->d_name, target, sizeof target - 1) > 0)
			count += strstr(target, "/dev/knem") != NULL;
	}
	closedir(d);
	return count;
}

/* The driver keeps a region's pages as long as anybody has the descriptor. */
static void children(void)
{
	char *p = anon(1);
	uint64_t cookie = region_of(p, PAGE, REGALL_REGION_READ, 0);
	IS(expected == REGALL_COPY_KNEM, descriptors_of_the_device());
	pid_t child = fork();
	NEED(child >= 0);
	if (child == 0) {
		IS(0, descriptors_of_the_device());
		uint64_t own = region_of(p, PAGE, REGALL_REGION_READ, 0);
		IS(expected == REGALL_COPY_KNEM, descriptors_of_the_device());
		IS(0, regall_region_destroy(own));
		_exit(wrong != 0);
	}
	int status;
	NEED(waitpid(child, &status, 0) == child);
	IS(0, status);
	IS(0, asked(cookie).result);
	IS(0, regall_region_destroy(cookie));
}

/* A program closes what it finds, and has another file by the number. */
static void taken_over(void)
{
	char *p = anon(1);
	uint64_t cookie = region_of(p, PAGE, REGALL_REGION_READ, 0);
	IS(expected, asked(cookie).mechanism);
	int other = memory_file(PAGE);
	for (int fd = 3; fd < 1024; fd++)
		if (fd != question[1] && fd != reply[0] && fd != other && fcntl(fd, F_GETFD) >= 0)
			dup2(other, fd);
	memset(p, 'n', PAGE);
	struct answer a = asked(cookie);
	HOLDS(a.result == 0 && a.first == 'n');
	IS(0, regall_region_destroy(cookie));
	cookie = region_of(p, PAGE, REGALL_REGION_READ, 0);
	IS(expected, asked(cookie).mechanism);
	IS(0, regall_region_destroy(cookie));
}

static void many_segments(void)
{
	struct regall_segment *all = calloc(MANY, sizeof *all);
	char *p = anon(BYTES / PAGE);
	uint64_t cookie;
	NEED(all);
	memset(p, 's', BYTES);
	for (size_t i = 0; i < MANY; i++)
		all[i] = piece(p + i % BYTES, 1);
	IS(0, regall_region_create(all, MANY, REGALL_REGION_READ, 0, &cookie));
	struct answer a = asked(cookie);
	IS(0, a.result);
	IS(BYTES, a.bytes);
	HOLDS(a.first == 's' && a.last == 's' && a.mechanism != REGALL_COPY_KNEM);
	IS(0, regall_region_destroy(cookie));
	free(all);
}

/* Who has changed its credentials takes its regions back, and gives the module no more. */
static void changed(void)
{
	if (geteuid() != 0)
		return;
	char *p = anon(1);
	uint64_t before = region_of(p, PAGE, REGALL_REGION_READ, 0);
	IS(expected, asked(before).mechanism);
	setfsgid(1);
	setfsgid(getegid());
	struct answer a = asked(before);
	HOLDS(a.result != 0 || a.mechanism != REGALL_COPY_KNEM);
	uint64_t after = region_of(p, PAGE, REGALL_REGION_READ, 0);
	a = asked(after);
	HOLDS(a.result != 0 || a.mechanism != REGALL_COPY_KNEM);
	IS(0, regall_region_destroy(before));
	IS(0, regall_region_destroy(after));
}

int main(int argc, char **argv)
{
	alarm(60);
	expected = argc > 1 ? (uint32_t)atoi(argv[1]) : REGALL_COPY_KNEM;
	NEED(pipe2(question, O_CLOEXEC) == 0 && pipe2(reply, O_CLOEXEC) == 0);
	pid_t other = fork();
	NEED(other >= 0);
	if (other == 0) {
		close(question[1]);
		reader();
	}
	kinds();
	children();
	many_segments();
	taken_over();
	changed();
	close(question[1]);
	int status;
	NEED(waitpid(other, &status, 0) == other);
	IS(0, status);
	return wrong != 0;
}
