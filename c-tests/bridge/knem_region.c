/*
 * Proves: regions through the KNEM module, which has hold of pages and not of addresses. What
 * is read is what the owner sees at these addresses, whatever has become of the pages: thrown
 * away, copied by a fork, unmapped. `knem_region MECHANISM`: the one that is expected to
 * have copied as long as the pages are the same (a number of enum regall_mechanism).
 * Another process reads; the owner says in a pipe when.
 */
#include <sys/mman.h>
#include <sys/wait.h>
#include "../check.h"
#include "../../include/regall.h"

#pragma weak regall_region_create
#pragma weak regall_region_destroy
#pragma weak regall_region_read
#pragma weak regall_region_write

/* Or the program ends, and says where. */
#define CHECK(...)                                                                                 \
	do {                                                                                       \
		if (!(__VA_ARGS__)) {                                                              \
			say("line %d: not %s (errno %d)", __LINE__, #__VA_ARGS__, errno);          \
			exit(1);                                                                   \
		}                                                                                  \
	} while (0)

#define BYTES (1 << 20)
#define EDGE 5000

struct question {
	uint64_t cookie;
	uint32_t offset, write; /* what to write, or 0: read */
};

struct answer {
	int32_t result;
	uint32_t mechanism;
	uint64_t bytes;
	char first, last;
};

static int ask[2], tell[2];

/* The other process: does as it is told. */
static void peer(void)
{
	static char buffer[BYTES];
	struct regall_segment local[2] = { { (uintptr_t)buffer, 77 }, { (uintptr_t)buffer + 77, BYTES - 77 } };
	struct question q;
	while (read(ask[0], &q, sizeof q) == sizeof q) {
		struct regall_done done = { 0 };
		struct answer a = { 0 };
		memset(buffer, (int)q.write, sizeof buffer);
		a.result = q.write ? regall_region_write(q.cookie, q.offset, local, 2, &done)
				   : regall_region_read(q.cookie, q.offset, local, 2, &done);
		a.bytes = done.bytes;
		a.mechanism = done.mechanism;
		a.first = buffer[0];
		a.last = done.bytes ? buffer[done.bytes - 1] : 0;
		if (write(tell[1], &a, sizeof a) != sizeof a)
			_exit(1);
	}
	_exit(0);
}

static struct answer asked(uint64_t cookie, uint32_t offset, uint32_t write_it)
{
	struct question q = { cookie, offset, write_it };
	struct answer a = { 0 };
	CHECK(write(ask[1], &q, sizeof q) == sizeof q);
	CHECK(read(tell[0], &a, sizeof a) == sizeof a);
	return a;
}

static void expect(struct answer a, int result, uint64_t bytes, char first, char last, int line)
{
	if (a.result != result || a.bytes != bytes || (bytes && (a.first != first || a.last != last))) {
		say("line %d: %d, %lu bytes, %d to %d", line, a.result, (unsigned long)a.bytes, a.first, a.last);
		exit(1);
	}
}
#define EXPECT(answer, result, bytes, first, last) expect(answer, result, bytes, first, last, __LINE__)

int main(int argc, char **argv)
{
	uint32_t mechanism = argc > 1 ? (uint32_t)atoi(argv[1]) : REGALL_COPY_KNEM;
	CHECK(pipe(ask) == 0 && pipe(tell) == 0);
	pid_t child = fork();
	if (!child) {
		close(ask[1]);
		peer();
	}
	char *m = mmap(NULL, 4 * BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	CHECK(m != MAP_FAILED);
	memset(m, 'a', 4 * BYTES);
	m[EDGE] = 'b';
	struct regall_segment s[3] = { { (uintptr_t)m + EDGE, EDGE }, { 0, 0 }, { (uintptr_t)m + BYTES, BYTES / 2 } };
	uint64_t cookie;
	CHECK(regall_region_create(s, 3, REGALL_REGION_READ | REGALL_REGION_WRITE, 0, &cookie) == 0);
	uint64_t all = EDGE + BYTES / 2;

	struct answer a = asked(cookie, 0, 0);
	EXPECT(a, 0, all, 'b', 'a');
	CHECK(a.mechanism == mechanism);
	m[BYTES] = 'c';
	EXPECT(asked(cookie, EDGE, 0), 0, BYTES / 2, 'c', 'a');
	EXPECT(asked(cookie, (uint32_t)all, 0), 0, 0, 0, 0);
	a = asked(cookie, EDGE - 1, 'w');
	CHECK(a.result == 0 && a.bytes == BYTES / 2 + 1 && a.mechanism == mechanism);
	CHECK(m[2 * EDGE - 1] == 'w' && m[BYTES] == 'w' && m[BYTES + BYTES / 2 - 1] == 'w');
	CHECK(m[2 * EDGE - 2] == 'a' && m[BYTES + BYTES / 2] == 'a');

	/* New pages at the same address: zeroes, not what KNEM has hold of. */
	CHECK(madvise(m + BYTES, BYTES, MADV_DONTNEED) == 0);
	EXPECT(asked(cookie, EDGE, 0), 0, BYTES / 2, 0, 0);
	CHECK(regall_region_destroy(cookie) == 0);
	EXPECT(asked(cookie, 0, 0), -EINVAL, 0, 0, 0);

	/* After a fork what the parent writes may be in copies. */
	CHECK(regall_region_create(s, 3, REGALL_REGION_READ, 0, &cookie) == 0);
	CHECK(asked(cookie, 0, 0).mechanism == mechanism);
	pid_t fork_of_us = fork();
	if (!fork_of_us) {
		pause();
		_exit(0);
	}
	memset(m, 'd', 2 * BYTES);
	EXPECT(asked(cookie, 0, 0), 0, all, 'd', 'd');
	CHECK(kill(fork_of_us, SIGKILL) == 0 && waitpid(fork_of_us, NULL, 0) == fork_of_us);

	/* Other memory at the same address. */
	CHECK(mmap(m + BYTES, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) ==
	      m + BYTES);
	EXPECT(asked(cookie, EDGE, 0), -ESTALE, 0, 0, 0);
	CHECK(regall_region_destroy(cookie) == 0);

	/* As many as KNEM has, ours has: nothing is left there. */
	for (int i = 0; i < 300; i++) {
		CHECK(regall_region_create(s, 1, REGALL_REGION_READ, 0, &cookie) == 0);
		CHECK(regall_region_destroy(cookie) == 0);
	}
	close(ask[1]);
	int status;
	CHECK(waitpid(child, &status, 0) == child && status == 0);
	return 0;
}
