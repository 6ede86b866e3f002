/*
 * Proves: a program may close what descriptors it finds, and be given their numbers for files
 * of its own: gets and puts still reach the peer, copies that are waited for are told of, and
 * no file is read, written or closed. And memory that peers may map keeps its descriptor.
 *
 *   descriptors [zero]
 *   descriptors none      where there is no free one: a peer that lives is not gone
 *   descriptors freed     where munmap returns late
 */
#include "peers.h"

#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/resource.h>

#pragma weak regall_region_create
#pragma weak regall_region_destroy
#pragma weak regall_region_read
#pragma weak regall_region_fd
#pragma weak regall_region_used
#pragma weak regall_queue_open
#pragma weak regall_queue_close
#pragma weak regall_queue_fd
#pragma weak regall_queue_wait
#pragma weak regall_get_start
#pragma weak regall_alloc_shared
#pragma weak regall_free

#define BYTES 4096

static bool readable(int fd)
{
	struct pollfd p = { fd, POLLIN, 0 };
	return poll(&p, 1, 0) == 1;
}

/* A region of our own that tells of its uses, and one use of it. */
static void used_once(void)
{
	struct regall_use use;
	char *memory = anon(1), byte;
	struct regall_segment all = { (uintptr_t)memory, PAGE }, to = { (uintptr_t)&byte, 1 };
	uint64_t cookie = 0;
	IS(0, regall_region_create(&all, 1, REGALL_REGION_READ, REGALL_REGION_NOTIFY, &cookie));
	int fd = regall_region_fd();
	HOLDS(fd >= 0 && !readable(fd));
	IS(0, regall_region_read(cookie, 0, &to, 1, NULL));
	HOLDS(readable(fd));
	IS(1, regall_region_used(&use, 1));
	HOLDS(use.cookie == cookie && use.uses == 1 && !readable(fd));
	IS(0, regall_region_destroy(cookie));
}

static int closed(bool zeroes)
{
	int ready[2];
	if (pipe(ready) != 0)
		return 2;
	pid_t child = fork();
	if (!child) {
		char *memory = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		memset(memory, 'p', BYTES);
		if (write(ready[1], &memory, sizeof memory) != sizeof memory)
			_exit(1);
		pause();
		_exit(0);
	}
	uint64_t from = 0;
	IS(sizeof from, read(ready[0], &from, sizeof from));
	regall_peer *peer = NULL;
	IS(0, regall_peer_open(child, 0, 0, &peer));
	char got[BYTES] = { 0 };
	IS(0, regall_get(peer, got, from, 8, NULL));
	HOLDS(got[0] == 'p' && got[7] == 'p');
	regall_queue *queue = NULL;
	struct regall_completion one;
	IS(0, regall_queue_open(0, &queue));
	used_once();

	/* All of them are of one file: an ordinary one, or /dev/zero, which can be read anywhere. */
	char name[] = "/tmp/regall-descriptors-XXXXXX";
	int file = zeroes ? open("/dev/zero", O_RDWR) : mkstemp(name);
	char fs[BYTES];
	memset(fs, zeroes ? 0 : 'f', sizeof fs);
	IS(BYTES, pwrite(file, fs, BYTES, 0));
	for (int fd = 3; fd < 1024; fd++)
		if (fd != file)
			dup2(file, fd);
	for (int round = 0; round < 100; round++) {
		pause_us(round < 50 ? 100 : 0);
		for (size_t n = 1; n <= BYTES; n *= 8) {
			memset(got, 0, sizeof got);
			IS(0, regall_get(peer, got, from, n, NULL));
			for (size_t i = 0; i < n; i++)
				if (got[i] != 'p') {
					say("round %d, %zu bytes: %c", round, n, got[i]);
					wrong++;
					break;
				}
		}
		IS(0, regall_put(peer, got, from, 1, NULL));
	}
	for (uint64_t tag = 1; tag < 4; tag++) {
		IS(0, regall_get_start(queue, peer, got, from, 1, tag));
		IS(1, regall_queue_wait(queue, &one, 1, 10000));
		HOLDS(one.tag == tag && one.result == 0);
	}
	IS(0, regall_queue_close(queue));
	struct regall_use use;
	IS(0, regall_region_used(&use, 1));
	IS(0, regall_peer_close(peer));
	/* Nothing was read from the file or written to it, and none was closed. */
	char now[BYTES];
	IS(BYTES, pread(file, now, BYTES, 0));
	HOLDS(memcmp(now, fs, BYTES) == 0);
	IS(0, lseek(file, 0, SEEK_CUR));
	for (int fd = 3; fd < 1024; fd++)
		HOLDS(fcntl(fd, F_GETFD) >= 0);
	/* Who asks is given another, for which there is room. */
	for (int fd = 3; fd < 1024; fd++)
		if (fd != file)
			close(fd);
	used_once();
	if (!zeroes)
		unlink(name);
	kill(child, SIGKILL);
	return wrong != 0;
}

/* ---- no descriptor ---- */

static int none(void)
{
	int ready[2];
	NEED(pipe(ready) == 0);
	pid_t child = fork();
	if (!child) {
		char *memory = anon(1);
		memory[0] = 'p';
		NEED(write(ready[1], &memory, sizeof memory) == sizeof memory);
		pause();
		_exit(0);
	}
	uint64_t from = 0;
	IS(sizeof from, read(ready[0], &from, sizeof from));
	regall_peer *peer = NULL, *other = NULL;
	IS(0, regall_peer_open(child, 0, 0, &peer));
	char got[8];
	IS(0, regall_get(peer, got, from, 8, NULL));
	struct rlimit few = { 32, 32 };
	int file = open("/dev/null", O_RDONLY | O_CLOEXEC);
	for (int fd = 3; fd < 4096; fd++)
		if (fd != file)
			close(fd);
	NEED(setrlimit(RLIMIT_NOFILE, &few) == 0);
	while (dup(file) >= 0)
		;
	for (int n = 0; n < 3; n++) {
		pause_us(200);
		IS(-EMFILE, regall_get(peer, got, from, 8, NULL));
		IS(-EMFILE, regall_put(peer, got, from, 8, NULL));
		IS(-EMFILE, regall_peer_check(peer));
		IS(-EMFILE, regall_peer_open(child, 0, 0, &other));
	}
	close(31);
	pause_us(200);
	IS(0, regall_get(peer, got, from, 8, NULL));
	HOLDS(got[0] == 'p');
	NEED(kill(child, SIGKILL) == 0 && waitpid(child, NULL, 0) == child);
	pause_us(200);
	IS(-ESRCH, regall_get(peer, got, from, 8, NULL));
	return wrong != 0;
}

/* ---- memory that is given back in one thread, and given out in another ---- */

static atomic_bool freeing;
static void *volatile first, *volatile second;

static void *give_back(void *unused)
{
	freeing = true;
	IS(0, regall_free(first, PAGE));
	return unused;
}

static void *give_out(void *unused)
{
	void *p = NULL;
	while (!freeing)
		pause_us(100);
	pause_us(20000);
	IS(0, regall_alloc_shared(PAGE, &p));
	second = p;
	return unused;
}

/* Descriptors of the file that is mapped at an address. */
static int descriptors_of(const void *p)
{
	char line[256], path[64];
	unsigned long start, end, inode = 0;
	FILE *maps = fopen("/proc/self/maps", "re");
	NEED(maps);
	while (fgets(line, sizeof line, maps)) {
		unsigned long at;
		if (sscanf(line, "%lx-%lx %*s %*s %*s %lu", &start, &end, &at) == 3 &&
		    start <= (uintptr_t)p && (uintptr_t)p < end)
			inode = at;
	}
	fclose(maps);
	int found = 0;
	for (int fd = 0; fd < 1024; fd++) {
		struct stat s;
		snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
		found += stat(path, &s) == 0 && s.st_ino == inode;
	}
	return inode ? found : -1;
}

static int freed(void)
{
	bool same = false;
	for (int n = 0; n < 5 && !same; n++) {
		pthread_t back, out;
		void *p = NULL;
		freeing = false;
		IS(0, regall_alloc_shared(PAGE, &p));
		IS(1, descriptors_of(p));
		first = p;
		NEED(pthread_create(&back, NULL, give_back, NULL) == 0);
		NEED(pthread_create(&out, NULL, give_out, NULL) == 0);
		pthread_join(back, NULL);
		pthread_join(out, NULL);
		same = first == second;
		IS(1, descriptors_of(second));
		IS(0, regall_free(second, PAGE));
	}
	if (!same)
		say("SKIPPED: no address was given out twice");
	return wrong != 0;
}

int main(int argc, char **argv)
{
	const char *what = argc > 1 ? argv[1] : "";
	no_longer_than(60);
	if (strcmp(what, "none") == 0)
		return none();
	return strcmp(what, "freed") == 0 ? freed() : closed(strcmp(what, "zero") == 0);
}
