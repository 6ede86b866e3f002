/*
 * Proves: what is read and written through memory that is mapped from a peer is the
 * peer's, byte by byte, whatever it maps there meanwhile; and no file that is cut short,
 * no bad address and no end of the peer is a signal.
 *
 *   mapping SCENARIO [nobody]
 *
 * Runs itself once more as the peer, which does as it is told over a socket. REGALL_COPY
 * says what is to be seen; `nobody`: as an unprivileged user. Says what is not as it should
 * be; exit status 0 if nothing.
 */
#include <dlfcn.h>
#include <pthread.h>
#include <stddef.h>
#include <sys/ipc.h>
#include <sys/prctl.h>
#include <sys/shm.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include "forbid.h"
#include "../../include/regall.h"
#include "../check.h"

#define EACH(f)                                                                                    \
	f(peer_open) f(peer_close) f(peer_check) f(get) f(put) f(getv) f(map) f(map_check) f(unmap)   \
		f(alloc_shared) f(free)

static struct {
#define FIELD(name) __typeof__(regall_##name) *name;
	EACH(FIELD)
} api;

static int wrong;

#define IS(want, ...)                                                                              \
	do {                                                                                       \
		long got_ = (long)(__VA_ARGS__), want_ = (long)(want);                             \
		if (got_ != want_ && ++wrong < 30)                                                 \
			say("line %d: %s is %ld, not %ld", __LINE__, #__VA_ARGS__, got_, want_);   \
	} while (0)
#define HOLDS(...) IS(true, (bool)(__VA_ARGS__))

static unsigned char byte_at(uint64_t seed, uint64_t i)
{
	uint64_t x = (seed << 32 ^ i >> 3) * 0x9e3779b97f4a7c15ul;
	return (unsigned char)((x ^ x >> 29) >> (i & 7) * 8);
}

static void fill(void *p, uint64_t from, size_t len, uint64_t seed)
{
	for (size_t i = 0; i < len; i++)
		((unsigned char *)p)[i] = byte_at(seed, from + i);
}

static bool is_filled(const void *p, uint64_t from, size_t len, uint64_t seed)
{
	for (size_t i = 0; i < len; i++)
		if (((const unsigned char *)p)[i] != byte_at(seed, from + i))
			return false;
	return true;
}

/* ---- the owner ---- */

enum kind { PRIVATE, SEALED, UNSEALED, CLOSED, NAMED, DISK, ANONYMOUS, SYSV, ALLOCATED, KINDS };
static const char *const names[KINDS] = { "private", "sealed", "unsealed", "closed", "named", "disk", "anonymous", "sysv", "allocated" };

struct order {
	enum { MAP, FILL, IS_FILLED, UNMAP, CUT, PROTECT, SWAP, FLICKER, REOPEN } what;
	uint64_t addr, len, arg;
};

static int last_fd = -1;

static int make_file(enum kind kind, size_t len)
{
	char path[64];
	snprintf(path, sizeof path, "%s/regall-mapping-%d", kind == DISK ? "/var/tmp" : "/dev/shm", getpid());
	int fd = kind == NAMED || kind == DISK ? open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600) :
						 memfd_create("mapping", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	NEED(fd >= 0 && ftruncate(fd, (off_t)len) == 0);
	if (kind == SEALED || kind == CLOSED)
		NEED(fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK) == 0);
	return fd;
}

static void *make(enum kind kind, void *at, size_t len)
{
	int fixed = at ? MAP_FIXED : 0;
	if (kind == PRIVATE)
		return mmap(at, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | fixed, -1, 0);
	if (kind == ANONYMOUS)
		return mmap(at, len, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | fixed, -1, 0);
	if (kind == SYSV) {
		int id = shmget(IPC_PRIVATE, len, IPC_CREAT | 0600);
		void *p = shmat(id, at, at ? SHM_REMAP : 0);
		shmctl(id, IPC_RMID, NULL);
		return p;
	}
	if (kind == ALLOCATED) {
		void *p = MAP_FAILED;
		IS(0, api.alloc_shared(len, &p));
		return p;
	}
	int fd = make_file(kind, len);
	void *p = mmap(at, len, PROT_READ | PROT_WRITE, MAP_SHARED | fixed, fd, 0);
	if (kind == CLOSED)
		close(fd);
	else
		last_fd = fd;
	return p;
}

/* Maps one file after the other at `at`, each full of its own number. */
static void flicker(char *at, size_t len, uint64_t rounds)
{
	int fds[4];
	for (int f = 0; f < 4; f++) {
		fds[f] = make_file(f < 3 ? SEALED : UNSEALED, len);
		char *p = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_SHARED, fds[f], 0);
		memset(p, 1 + f, len);
		munmap(p, len);
	}
	for (uint64_t i = 0; i < rounds; i++) {
		if (i % 3 == 0)
			munmap(at, len);
		NEED(mmap(at, len, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fds[i % 4], 0) == at);
		if (i % 8 == 0)
			usleep(300);
	}
	for (int f = 0; f < 4; f++)
		close(fds[f]);
}

static uint64_t obey(const struct order *o)
{
	char *p = (char *)(uintptr_t)o->addr;
	switch (o->what) {
	case MAP:
		return (uintptr_t)make((enum kind)o->arg, p, o->len);
	case FILL:
		fill(p, 0, o->len, o->arg);
		return 0;
	case IS_FILLED:
		return is_filled(p, 0, o->len, o->arg);
	case UNMAP:
		return o->arg == SYSV ? (uint64_t)shmdt(p) : o->arg == ALLOCATED ? (uint64_t)api.free(p, o->len) : (uint64_t)munmap(p, o->len);
	case CUT: /* again and again, if told so */
		for (uint64_t i = 0; i <= o->arg; i++) {
			NEED(ftruncate(last_fd, (off_t)o->len) == 0);
			if (i < o->arg)
				NEED(ftruncate(last_fd, 64 * (off_t)PAGE) == 0);
		}
		return 0;
	case PROTECT:
		return (uint64_t)mprotect(p, o->len, (int)o->arg);
	case SWAP: /* the same file, another part of it */
		return (uintptr_t)mmap(p, o->len, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, last_fd, (off_t)o->arg);
	case FLICKER:
		flicker(p, o->len, o->arg);
		return 0;
	case REOPEN:
		close(last_fd);
		return 0;
	}
	return 0;
}

static int own(int fd)
{
	struct order o;
	while (read(fd, &o, sizeof o) == sizeof o) {
		uint64_t answer = obey(&o);
		if (write(fd, &answer, sizeof answer) != sizeof answer)
			break;
	}
	return wrong != 0;
}

/* Removes the files of an owner. */
static void remove_files(pid_t pid)
{
	char path[64];
	for (int i = 0; i < 2; i++) {
		snprintf(path, sizeof path, "%s/regall-mapping-%d", i ? "/var/tmp" : "/dev/shm", pid);
		unlink(path);
	}
}

/* ---- the reader ---- */

static pid_t owner;
static int line;
static regall_peer *peer;
static bool root, maps_only, by_cma, by_xpmem, by_size;

static void start_owner(void)
{
	int pair[2];
	NEED(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) == 0);
	owner = fork();
	NEED(owner >= 0);
	if (owner == 0) {
		char number[16];
		snprintf(number, sizeof number, "%d", dup(pair[1]));
		execl("/proc/self/exe", "mapping", "--own", number, (char *)NULL);
		_exit(91);
	}
	close(pair[1]);
	line = pair[0];
}

static void say_to(struct order o)
{
	NEED(write(line, &o, sizeof o) == sizeof o);
}

static uint64_t answer(void)
{
	uint64_t a = 0;
	NEED(read(line, &a, sizeof a) == sizeof a);
	return a;
}

#define TELL(...) (say_to((struct order){ __VA_ARGS__ }), answer())

static uint64_t map_there(enum kind kind, size_t len, uint64_t at)
{
	uint64_t addr = TELL(MAP, at, len, kind);
	HOLDS(addr != (uint64_t)-1);
	return addr;
}

/* Whether it can be mapped. */
static bool can_map(enum kind kind, bool write)
{
	switch (kind) {
	case PRIVATE:
		/* The stand-in can't, see xpmem_device.c. */
		return by_xpmem && access("/proc/xpmem", F_OK) == 0;
	case CLOSED:
	case ANONYMOUS:
		return root;
	case UNSEALED:
	case NAMED:
	case DISK:
		return !write && !by_xpmem;
	default:
		return true;
	}
}

static uint32_t mapper(bool can)
{
	return by_xpmem ? REGALL_COPY_XPMEM : can && !by_cma ? REGALL_COPY_MAP : REGALL_COPY_CMA;
}

static char buffer[1 << 20];

static void read_and_write(enum kind kind)
{
	struct regall_done done;
	size_t len = 40 * PAGE + 100;
	uint64_t addr = map_there(kind, len, 0);
	for (uint64_t round = 1; round < 4; round++) {
		bool reads = can_map(kind, false), writes = can_map(kind, true);
		TELL(FILL, addr, len, round);
		memset(buffer, 0, len);
		int r = api.get(peer, buffer, addr, len, &done);
		if (maps_only && !reads) {
			IS(-EPERM, r);
			continue;
		}
		IS(0, r);
		IS(len, done.bytes);
		if (!by_size)
			IS(mapper(reads), done.mechanism);
		HOLDS(is_filled(buffer, 0, len, round));
		for (size_t at = 1; at < len; at += 3777) {
			size_t n = len - at < 5000 ? len - at : 5000;
			IS(0, api.get(peer, buffer, addr + at, n, &done));
			HOLDS(is_filled(buffer, at, n, round));
		}
		struct regall_segment to[2] = { { (uintptr_t)buffer, 1000 }, { (uintptr_t)buffer + 5000, 9000 } };
		struct regall_segment from[2] = { { addr + 8000, 4000 }, { addr + 100, 6000 } };
		IS(0, api.getv(peer, to, 2, from, 2, &done));
		HOLDS(is_filled(buffer, 8000, 1000, round) && is_filled(buffer + 5000, 9000, 3000, round) &&
		      is_filled(buffer + 8000, 100, 6000, round));
		fill(buffer, 0, len, round + 100);
		r = api.put(peer, buffer, addr, len, &done);
		if (maps_only && !writes) {
			IS(-EPERM, r);
			continue;
		}
		IS(0, r);
		if (!by_size)
			IS(mapper(writes), done.mechanism);
		IS(1, TELL(IS_FILLED, addr, len, round + 100));
	}
	IS(0, TELL(UNMAP, addr, len, kind));
	int gone = api.get(peer, buffer, addr, 10, &done);
	HOLDS(gone == -EFAULT || gone == -ESTALE);
	if (wrong)
		say("that was %s", names[kind]);
}

static void all_kinds(void)
{
	for (int k = 0; k < KINDS; k++)
		read_and_write((enum kind)k);
}

/* Something else is mapped at the same addresses: other files, other parts of one. */
static void replaced(void)
{
	static const enum kind all[] = { SEALED, SYSV, UNSEALED, NAMED, SEALED };
	/* What can be cut short is not attached. */
	static const enum kind steady[] = { SEALED, SYSV, SEALED, SYSV, SEALED };
	const enum kind *some = by_xpmem ? steady : all;
	size_t len = 16 * PAGE;
	uint64_t addr = map_there(SEALED, len, 0);
	for (uint64_t i = 0; i < 200; i++) {
		enum kind kind = some[i % 5];
		TELL(FILL, addr, len, i);
		IS(0, api.get(peer, buffer, addr, len, NULL));
		HOLDS(is_filled(buffer, 0, len, i));
		if (kind == NAMED) {
			/* Two pages of one file, at one address. */
			TELL(SWAP, addr, PAGE, 0);
			TELL(FILL, addr, PAGE, 1000 + i);
			IS(0, api.get(peer, buffer, addr, PAGE, NULL));
			HOLDS(is_filled(buffer, 0, PAGE, 1000 + i));
			TELL(SWAP, addr, PAGE, 5 * PAGE);
			TELL(FILL, addr, PAGE, 2000 + i);
			IS(0, api.get(peer, buffer, addr, PAGE, NULL));
			HOLDS(is_filled(buffer, 0, PAGE, 2000 + i));
			kind = SEALED;
		}
		IS(addr, map_there(kind, len, addr));
	}
	/* One file at two addresses: its window serves both. */
	IS(addr, map_there(SEALED, len, addr));
	TELL(FILL, addr, len, 7);
	IS(0, api.get(peer, buffer, addr, len, NULL));
	uint64_t second = map_there(PRIVATE, 4 * PAGE, 0);
	TELL(SWAP, second, 2 * PAGE, 5 * PAGE);
	IS(0, api.get(peer, buffer, second, 2 * PAGE, NULL));
	HOLDS(is_filled(buffer, 5 * PAGE, 2 * PAGE, 7));
	IS(0, api.get(peer, buffer, addr, len, NULL));
	HOLDS(is_filled(buffer, 0, len, 7));
}

/* All bytes are of one file, or the call says that they are not good. */
static void flickers(void)
{
	size_t len = 16 * PAGE;
	uint64_t addr = map_there(SEALED, len, 0), good = 0, stale = 0, mapped = 0;
	IS(0, api.get(peer, buffer, addr, len, NULL));
	say_to((struct order){ FLICKER, addr, len, 20000 });
	struct regall_done done;
	uint64_t finished = 0;
	while (recv(line, &finished, sizeof finished, MSG_DONTWAIT) < 0) {
		memset(buffer, 99, len);
		int r = api.get(peer, buffer, addr, len, &done);
		HOLDS(r == 0 || r == -ESTALE || r == -EFAULT);
		stale += r != 0;
		good += r == 0;
		mapped += r == 0 && done.mechanism == REGALL_COPY_MAP;
		for (size_t i = 0; i < done.bytes; i++)
			if (good > 4 && (buffer[i] < 1 || buffer[i] > 4 || buffer[i] != buffer[0])) {
				IS(buffer[0], buffer[i]);
				break;
			}
	}
	say("# %lu good, %lu of them mapped, %lu not", good, mapped, stale);
	HOLDS(good > 100 && mapped > 0 && stale > 0);
}

/* A file is cut short while it is read: never a signal, never what is not there. */
static void cut_short(void)
{
	struct regall_done done;
	static const enum kind some[] = { UNSEALED, NAMED, DISK };
	for (int k = 0; k < 3; k++) {
		size_t len = 64 * PAGE;
		uint64_t addr = map_there(some[k], len, 0);
		TELL(FILL, addr, len, 5);
		IS(0, api.get(peer, buffer, addr, len, NULL));
		say_to((struct order){ CUT, addr, 3 * PAGE + 10, 8000 });
		uint64_t finished = 0;
		while (recv(line, &finished, sizeof finished, MSG_DONTWAIT) < 0) {
			int r = api.get(peer, buffer, addr, len, &done);
			HOLDS(r == 0 ? done.bytes == len : r == -EFAULT && done.bytes < len);
			HOLDS(is_filled(buffer, 0, 3 * PAGE + 10, 5));
			r = api.put(peer, buffer, addr, 3 * PAGE, &done);
			HOLDS(r == 0 || (maps_only && r == -EPERM));
		}
		/* It is short now. */
		int r = api.get(peer, buffer, addr, len, &done);
		IS(-EFAULT, r);
		HOLDS(done.bytes >= 3 * PAGE + 10 && done.bytes <= 4 * PAGE);
		r = api.put(peer, buffer, addr + 8 * PAGE, PAGE, &done);
		HOLDS(r == -EFAULT || (maps_only && r == -EPERM));
		TELL(UNMAP, addr, len, some[k]);
	}
}

static int windows(void)
{
	char text[512];
	int count = 0;
	FILE *f = fopen("/proc/self/maps", "r");
	while (f && fgets(text, sizeof text, f))
		count += strstr(text, "/memfd:mapping") != NULL;
	fclose(f);
	return count;
}

/* So many there are, or which ones is said. */
static void windows_are(int want)
{
	/* What the driver attaches is detached after each copy. */
	if (by_xpmem)
		want = 0;
	int found = windows();
	IS(want, found);
	if (found == want)
		return;
	char text[256];
	FILE *f = fopen("/proc/self/maps", "r");
	while (f && fgets(text, sizeof text, f))
		if (strstr(text, "/memfd:"))
			say("%.*s", (int)strcspn(text, "\n"), text);
	fclose(f);
}

#define MANY 150

struct share {
	uint64_t *addr;
	unsigned step;
};

static void *read_many(void *arg)
{
	struct share *s = arg;
	char *mine = malloc(8 * PAGE);
	for (unsigned i = 0; i < 3000; i++) {
		unsigned n = i * s->step % MANY;
		IS(0, api.get(peer, mine, s->addr[n], 8 * PAGE, NULL));
		HOLDS(is_filled(mine, 0, 8 * PAGE, n));
	}
	free(mine);
	return NULL;
}

/* More files than there may be windows, by several threads at once. */
static void many(void)
{
	static uint64_t addr[MANY];
	struct share shares[3] = { { addr, 7 }, { addr, 11 }, { addr, 1 } };
	pthread_t threads[3];
	for (unsigned i = 0; i < MANY; i++) {
		addr[i] = map_there(SEALED, 8 * PAGE, 0);
		TELL(FILL, addr[i], 8 * PAGE, i);
	}
	for (int t = 0; t < 3; t++)
		NEED(pthread_create(&threads[t], NULL, read_many, &shares[t]) == 0);
	for (int t = 0; t < 3; t++)
		pthread_join(threads[t], NULL);
	HOLDS(windows() > 10 && windows() <= 64);
	/* What the owner has given back is not kept. */
	for (unsigned i = 0; i < MANY; i++)
		TELL(UNMAP, addr[i], 8 * PAGE, SEALED);
	IS(0, api.peer_check(peer));
	windows_are(0);
}

/* A mapping of several windows, read across their borders. */
static void large(void)
{
	size_t len = 136ul << 20, step = 8ul << 20;
	uint64_t addr = map_there(SEALED, len, 0);
	for (size_t at = 0; at + step <= len; at += step) {
		TELL(FILL, addr + at - (at ? 2 * PAGE : 0), 4 * PAGE, at);
		for (int i = 0; i < 3; i++)
			IS(0, api.get(peer, buffer, addr + at - (at ? 2 * PAGE : 0), 4 * PAGE, NULL));
		HOLDS(is_filled(buffer, 0, 4 * PAGE, at));
	}
	for (uint64_t border = (addr | 0x3ffffff) + 1; border < addr + len; border += 64 << 20) {
		TELL(FILL, border - 100000, 200000, border);
		IS(0, api.get(peer, buffer, border - 100000, 200000, NULL));
		HOLDS(is_filled(buffer, 0, 200000, border));
	}
	HOLDS(by_xpmem || (windows() >= 2 && windows() <= 4));
	/* A small one over such a border, from behind it on. */
	uint64_t border = (addr | 0x3ffffff) + 1;
	TELL(UNMAP, addr, len, SEALED);
	IS(border - 16 * PAGE, map_there(SEALED, 32 * PAGE, border - 16 * PAGE));
	TELL(FILL, border - 16 * PAGE, 32 * PAGE, 8);
	IS(0, api.get(peer, buffer, border + PAGE, 15 * PAGE, NULL));
	HOLDS(is_filled(buffer, 17 * PAGE, 15 * PAGE, 8));
	IS(0, api.get(peer, buffer, border - 16 * PAGE, 32 * PAGE, NULL));
	HOLDS(is_filled(buffer, 0, 32 * PAGE, 8));
}

/* Our own address is bad: an error, as with system calls. */
static void bad_addresses(void)
{
	static const enum kind some[] = { SEALED, UNSEALED, SYSV };
	struct regall_done done;
	for (int k = 0; k < 3; k++) {
		uint64_t addr = map_there(some[k], 16 * PAGE, 0);
		char *p = anon(16);
		for (int i = 0; i < 3; i++)
			IS(0, api.get(peer, p, addr, 16 * PAGE, &done));
		NEED(munmap(p + 4 * PAGE, 12 * PAGE) == 0);
		IS(-EFAULT, api.get(peer, p, addr, 16 * PAGE, &done));
		HOLDS(done.bytes <= 4 * PAGE);
		IS(-EFAULT, api.get(peer, NULL, addr, 10, &done));
		NEED(mprotect(p, PAGE, PROT_READ) == 0);
		IS(-EFAULT, api.get(peer, p, addr, 100, &done));
		if (some[k] != UNSEALED) {
			IS(0, api.put(peer, p, addr, 100, &done));
			IS(-EFAULT, api.put(peer, p + 6 * PAGE, addr, 100, &done));
			IS(0, TELL(PROTECT, addr, PAGE, PROT_READ));
			IS(-EACCES, api.put(peer, p, addr, 100, &done));
			IS(0, api.get(peer, p + PAGE, addr, 100, &done));
		}
	}
}

static void ends(void)
{
	uint64_t addr = map_there(SEALED, 16 * PAGE, 0);
	for (int i = 0; i < 50; i++)
		IS(0, api.get(peer, buffer, addr, 16 * PAGE, NULL));
	windows_are(1);
	NEED(kill(owner, SIGKILL) == 0);
	waitpid(owner, NULL, 0);
	/* Its memory stays for as long as somebody looks at it: a reader of its smaps, say. */
	for (int i = 0; i < 2000 && api.get(peer, buffer, addr, 16 * PAGE, NULL) == 0; i++)
		usleep(1000);
	IS(-ESRCH, api.get(peer, buffer, addr, 16 * PAGE, NULL));
	windows_are(0);
}

/* regall_map */
static void mapped(void)
{
	struct regall_mapping m, w;
	for (int k = 0; k < KINDS; k++) {
		enum kind kind = (enum kind)k;
		size_t len = 9 * PAGE;
		uint64_t addr = map_there(kind, len, 0);
		TELL(FILL, addr, len, 77);
		int r = api.map(peer, addr + 100, len - 200, 0, &m);
		if (!can_map(kind, true)) {
			IS(-EOPNOTSUPP, r);
			r = api.map(peer, addr + 100, len - 200, REGALL_MAP_UNSEALED, &m);
			if (!can_map(kind, false)) {
				IS(-EOPNOTSUPP, r);
				continue;
			}
		}
		IS(0, r);
		IS(len - 200, m.len);
		HOLDS(is_filled(m.at, 100, len - 200, 77));
		IS(0, api.map(peer, addr, len, REGALL_MAP_WRITE | REGALL_MAP_UNSEALED, &w));
		fill(w.at, 0, len, 78);
		IS(1, TELL(IS_FILLED, addr, len, 78));
		HOLDS(is_filled(m.at, 100, len - 200, 78));
		IS(0, api.map_check(peer, &m));
		IS(-EFAULT, api.map(peer, addr + (1ul << 46), 10, 0, &w));
		IS(-EINVAL, api.map(peer, addr, 0, 0, &w));
		IS(-EINVAL, api.map(peer, addr, 1, 4, &w));
		IS(-EOPNOTSUPP, api.map(peer, addr, 64 * PAGE, 0, &w));
		IS(0, api.unmap(&w));
		IS(-EINVAL, api.unmap(&w));
		IS(0, TELL(UNMAP, addr, len, kind));
		IS(-ESTALE, api.map_check(peer, &m));
		HOLDS(is_filled(m.at, 100, len - 200, 78)); /* still there */
		IS(0, api.unmap(&m));
		IS(-EINVAL, api.map_check(peer, &m));
		memset(&m, 0x5a, sizeof m);
		IS(-EINVAL, api.map_check(peer, &m));
		windows_are(0);
	}
	uint64_t addr = map_there(SEALED, 4 * PAGE, 0);
	IS(0, api.map(peer, addr, PAGE, 0, &m));
	IS(0, TELL(PROTECT, addr, 4 * PAGE, PROT_READ));
	IS(-ESTALE, api.map_check(peer, &m));
	IS(-EACCES, api.map(peer, addr, PAGE, REGALL_MAP_WRITE, &w));
	IS(0, api.unmap(&m));
	IS(0, api.map(peer, addr, PAGE, 0, &m));
	NEED(kill(owner, SIGKILL) == 0);
	waitpid(owner, NULL, 0);
	for (int i = 0; i < 2000 && api.map_check(peer, &m) == 0; i++)
		usleep(1000);
	IS(-ESRCH, api.map_check(peer, &m));
	(void)*(volatile char *)m.at;
	IS(0, api.unmap(&m));
}

/* A child of fork goes on with the peer; memory of regall_alloc_shared is both's. */
static void forked(void)
{
	uint64_t addr = map_there(SEALED, 16 * PAGE, 0);
	TELL(FILL, addr, 16 * PAGE, 3);
	IS(0, api.get(peer, buffer, addr, 16 * PAGE, NULL));
	char *shared = NULL;
	IS(0, api.alloc_shared(3 * PAGE, (void **)&shared));
	pid_t child = fork();
	NEED(child >= 0);
	if (child == 0) {
		struct regall_done done;
		memset(buffer, 0, 16 * PAGE);
		IS(0, api.get(peer, buffer, addr, 16 * PAGE, &done));
		HOLDS(is_filled(buffer, 0, 16 * PAGE, 3));
		strcpy(shared, "from the child");
		IS(0, api.free(shared, 3 * PAGE));
		_exit(wrong != 0);
	}
	int status;
	NEED(waitpid(child, &status, 0) == child);
	IS(0, status);
	IS(0, strcmp(shared, "from the child"));
	IS(0, api.free(shared, 3 * PAGE));
	IS(0, api.get(peer, buffer, addr, 16 * PAGE, NULL));
	HOLDS(is_filled(buffer, 0, 16 * PAGE, 3));
}

/* No descriptor is left over, however often memory is taken and given back. */
static void allocated(void)
{
	int before = dup(0);
	close(before);
	for (int i = 0; i < 300; i++) {
		char *p = NULL;
		IS(0, api.alloc_shared(1 + (size_t)i * 5000, (void **)&p));
		HOLDS(((uintptr_t)p & (PAGE - 1)) == 0 && p[0] == 0 && p[i * 5000] == 0);
		p[0] = 1;
		IS(0, api.free(p, 1 + (size_t)i * 5000));
	}
	char path[64], target[64];
	for (int fd = 0; fd < 4096; fd++) {
		snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
		ssize_t n = readlink(path, target, sizeof target - 1);
		if (n > 0 && (target[n] = 0, strstr(target, "memfd:regall")))
			IS(0, fd);
	}
	void *p;
	IS(-EINVAL, api.alloc_shared(0, &p));
	IS(-EINVAL, api.alloc_shared(1, NULL));
	IS(-ENOMEM, api.alloc_shared(SIZE_MAX, &p));
	IS(-ENOMEM, api.alloc_shared(1ul << 50, &p));
	/* There are addresses for it, but no memory. */
	IS(-ENOMEM, api.alloc_shared(1ul << 45, &p));
	/* A file may not be so long: no signal. */
	struct rlimit was, page = { PAGE, RLIM_INFINITY };
	NEED(getrlimit(RLIMIT_FSIZE, &was) == 0 && setrlimit(RLIMIT_FSIZE, &page) == 0);
	IS(-ENOMEM, api.alloc_shared(2 * PAGE, &p));
	NEED(setrlimit(RLIMIT_FSIZE, &was) == 0);
}

/* The program closes what it finds, and another file gets the descriptor that was kept. */
static void taken_over(void)
{
	uint64_t addr = map_there(UNSEALED, 16 * PAGE, 0);
	TELL(FILL, addr, 16 * PAGE, 4);
	for (int i = 0; i < 20; i++)
		IS(0, api.get(peer, buffer, addr, 16 * PAGE, NULL));
	int other = memory_file(16 * PAGE), taken = 0;
	for (int fd = 3; fd < 4096; fd++) {
		char path[64], target[64];
		snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
		ssize_t n = readlink(path, target, sizeof target - 1);
		if (n > 0 && (target[n] = 0, strstr(target, "memfd:mapping")) && ++taken)
			dup2(other, fd);
	}
	IS(1, taken);
	memset(buffer, 1, 16 * PAGE);
	int r = api.get(peer, buffer, addr, 16 * PAGE, NULL);
	HOLDS(r == 0 ? is_filled(buffer, 0, 16 * PAGE, 4) : maps_only);
}

/* Where process_vm_* is forbidden, what can be mapped is, from the first byte on. */
static void filtered(void)
{
	forbid_process_vm();
	struct regall_done done;
	static const enum kind some[] = { SEALED, SYSV, ALLOCATED };
	for (int k = 0; k < 3; k++) {
		uint64_t addr = map_there(some[k], 16 * PAGE, 0);
		fill(buffer, 0, 16 * PAGE, 9);
		IS(0, api.put(peer, buffer, addr, 16 * PAGE, &done));
		IS(REGALL_COPY_MAP, done.mechanism);
		IS(1, TELL(IS_FILLED, addr, 16 * PAGE, 9));
		memset(buffer, 0, 16 * PAGE);
		IS(0, api.get(peer, buffer, addr, 16 * PAGE, &done));
		IS(REGALL_COPY_MAP, done.mechanism);
		HOLDS(is_filled(buffer, 0, 16 * PAGE, 9));
	}
}

static const struct {
	const char *name;
	void (*run)(void);
} scenarios[] = {
	{ "kinds", all_kinds }, { "replaced", replaced }, { "flickers", flickers }, { "cut", cut_short },
	{ "many", many }, { "large", large }, { "bad", bad_addresses }, { "ends", ends },
	{ "mapped", mapped }, { "forked", forked }, { "allocated", allocated },
	{ "filtered", filtered }, { "taken", taken_over },
};

int main(int argc, char **argv)
{
#define LOAD(name) NEED((api.name = (__typeof__(regall_##name) *)dlsym(RTLD_DEFAULT, "regall_" #name)));
	EACH(LOAD)
	if (argc > 2 && strcmp(argv[1], "--own") == 0)
		return own(atoi(argv[2]));
	NEED(argc > 1);
	if (argc > 2) {
		drop_privileges();
		execl("/proc/self/exe", "mapping", argv[1], (char *)NULL);
		return 97;
	}
	root = geteuid() == 0;
	const char *copy = getenv("REGALL_COPY");
	by_xpmem = copy && strcmp(copy, "xpmem") == 0;
	maps_only = (copy && strcmp(copy, "map") == 0) || by_xpmem;
	by_cma = copy && strcmp(copy, "cma") == 0;
	by_size = !copy || strcmp(copy, "auto") == 0;
	start_owner();
	/* Its directory is there when it has answered. */
	TELL(UNMAP, 0, PAGE, PRIVATE);
	IS(0, api.peer_open(owner, 0, 0, &peer));
	for (size_t i = 0; peer && i < sizeof scenarios / sizeof *scenarios; i++)
		if (strcmp(scenarios[i].name, argv[1]) == 0) {
			scenarios[i].run();
			IS(0, api.peer_close(peer));
			windows_are(0);
			close(line);
			remove_files(owner);
			return wrong != 0;
		}
	return 98;
}
