/* Proves: what is done again and again for a day needs no more of the shim's memory at its end than at its beginning. */
/*
 * flat WHAT TURNS. Each turn of WHAT leaves the address space as it found it, or does in the
 * end. Quiet points: after a quarter of the turns, and after the last; tests/soak/scale/flat.rs
 * looks from outside at what the shim has then. Between a change and its reverse others come.
 */
#include <dlfcn.h>
#include <malloc.h>
#include <pthread.h>
#include <sys/ipc.h>
#include <sys/prctl.h>
#include <sys/shm.h>
#include "../check.h"
#include "../draw.h"
#include "../../include/regall.h"

#pragma weak regall_alloc
#pragma weak regall_alloc_shared
#pragma weak regall_free
#pragma weak regall_opt_out
#pragma weak regall_opt_in

#define PAGES 64ul

/* A mapping of each kind; some of them of the first PAGES pages of one file. */
enum { PRIVATE, SHARED, FILE_PRIVATE, FILE_SHARED, FILE_READ, KINDS };

static int file;
static char *area[KINDS];

static char *map(int kind, void *at, size_t from, size_t pages)
{
	static const struct {
		int prot, flags;
	} how[KINDS] = {
		[PRIVATE] = { PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS },
		[SHARED] = { PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS },
		[FILE_PRIVATE] = { PROT_READ | PROT_WRITE, MAP_PRIVATE },
		[FILE_SHARED] = { PROT_READ | PROT_WRITE, MAP_SHARED },
		[FILE_READ] = { PROT_READ, MAP_PRIVATE },
	};
	int flags = how[kind].flags | (at ? MAP_FIXED : 0);
	bool of_file = !(flags & MAP_ANONYMOUS);
	char *p = mmap(at, pages * PAGE, how[kind].prot, flags, of_file ? file : -1, of_file ? (off_t)(from * PAGE) : 0);
	NEED(p != MAP_FAILED);
	return p;
}

static void prepare(void)
{
	char path[] = "/var/tmp/flat-XXXXXX";
	file = mkstemp(path);
	NEED(file >= 0 && unlink(path) == 0 && ftruncate(file, (off_t)(PAGES * PAGE)) == 0);
	for (int kind = 0; kind < KINDS; kind++) {
		/* Nothing that it could merge with on either side. */
		char *room = mmap(NULL, (PAGES + 2) * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		NEED(room != MAP_FAILED);
		area[kind] = map(kind, room + PAGE, 0, PAGES);
	}
}

/* Some pages of one of them. */
struct part {
	int kind;
	size_t from, pages;
	char *at;
};

static struct part some(int first_kind)
{
	struct part p = { .kind = first_kind + (int)draw((size_t)(KINDS - first_kind)) };
	p.from = draw(PAGES);
	p.pages = 1 + draw(p.from + 8 > PAGES ? PAGES - p.from : 8);
	p.at = area[p.kind] + p.from * PAGE;
	return p;
}

static void protect(bool last)
{
	static const int prots[] = { PROT_NONE, PROT_READ, PROT_READ | PROT_WRITE };
	struct part p = some(0);
	NEED(mprotect(p.at, p.pages * PAGE, prots[draw(3)]) == 0);
	for (int kind = 0; last && kind < KINDS; kind++)
		NEED(mprotect(area[kind], PAGES * PAGE, kind == FILE_READ ? PROT_READ : PROT_READ | PROT_WRITE) == 0);
}

static void lock(bool last)
{
	struct part p = some(0);
	switch (draw(4)) {
	case 0:
		NEED(mlock(p.at, p.pages * PAGE) == 0);
		break;
	case 1:
		NEED(mlock2(p.at, p.pages * PAGE, MLOCK_ONFAULT) == 0);
		break;
	default:
		NEED(munlock(p.at, p.pages * PAGE) == 0);
	}
	for (int kind = 0; last && kind < KINDS; kind++)
		NEED(munlock(area[kind], PAGES * PAGE) == 0);
}

static void advise(bool last)
{
	static const int there[] = { MADV_DONTFORK, MADV_WIPEONFORK, MADV_DONTDUMP, MADV_SEQUENTIAL, MADV_RANDOM, MADV_DONTNEED,
				     MADV_WILLNEED, MADV_FREE, MADV_COLD, MADV_PAGEOUT, MADV_REMOVE };
	static const int back[] = { MADV_DOFORK, MADV_KEEPONFORK, MADV_DODUMP, MADV_NORMAL };
	struct part p = some(0);
	/* What is not for this kind is refused, as without the shim. */
	if (draw(2))
		(void)madvise(p.at, p.pages * PAGE, there[draw(sizeof there / sizeof *there)]);
	else
		(void)madvise(p.at, p.pages * PAGE, back[draw(sizeof back / sizeof *back)]);
	for (int kind = 0; last && kind < KINDS; kind++)
		for (size_t k = 0; k < sizeof back / sizeof *back; k++)
			(void)madvise(area[kind], PAGES * PAGE, back[k]);
}

/* Away and back again. */
static void move(bool last)
{
	static char *room;
	if (!room)
		room = mmap(NULL, PAGES * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	NEED(room != MAP_FAILED);
	struct part p = some(0);
	char *to = room + draw(PAGES - p.pages) * PAGE;
	NEED(mremap(p.at, p.pages * PAGE, p.pages * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, to) == to);
	NEED(mremap(to, p.pages * PAGE, p.pages * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, p.at) == p.at);
	NEED(mmap(room, PAGES * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == room);
	/* Longer and shorter. */
	size_t n = 1 + draw(100), m = 1 + draw(100);
	char *q = map(PRIVATE, NULL, 0, n);
	q = mremap(q, n * PAGE, m * PAGE, MREMAP_MAYMOVE);
	NEED(q != MAP_FAILED && munmap(q, m * PAGE) == 0);
	(void)last;
}

/* Something else in the place of a part, and then that part again. */
static void overlay(bool last)
{
	struct part p = some(FILE_PRIVATE);
	switch (draw(4)) {
	case 0:
		map(PRIVATE, p.at, 0, p.pages);
		break;
	case 1:
		NEED(munmap(p.at, p.pages * PAGE) == 0);
		break;
	case 2: /* fails, and nothing has happened */
		NEED(mmap(p.at, PAGE, PROT_READ, MAP_PRIVATE | MAP_FIXED, -1, 0) == MAP_FAILED);
		break;
	default:
		break;
	}
	map(p.kind, p.at, p.from, p.pages);
	(void)last;
}

/* A file, page by page, as one that grows is mapped. */
static void beside(bool last)
{
	static char *room;
	static size_t there;
	if (!room)
		room = mmap(NULL, PAGES * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	NEED(room != MAP_FAILED);
	if (there == PAGES || last) {
		NEED(mmap(room, PAGES * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == room);
		there = 0;
	}
	for (size_t k = last ? PAGES : 1; k > 0; k--, there++)
		map(FILE_SHARED, room + there * PAGE, there, 1);
}

static void ended_well(pid_t pid)
{
	int status;
	NEED(waitpid(pid, &status, 0) == pid && status == 0);
}

static void children(bool last)
{
	pid_t pid = draw(2) ? fork() : _Fork();
	NEED(pid >= 0);
	if (pid == 0) {
		char *p = mmap(NULL, PAGE, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		_exit(p == MAP_FAILED || munmap(p, PAGE) != 0);
	}
	ended_well(pid);
	if (draw(4))
		return;
	pid = vfork();
	NEED(pid >= 0);
	if (pid == 0) {
		execl("/bin/true", "true", (char *)NULL);
		_exit(1);
	}
	ended_well(pid);
	(void)last;
}

/* The child goes on in the parent's place; the first of them waits for all. */
static void generations(bool last)
{
	static bool begun;
	bool first = !begun;
	begun = true;
	NEED(!first || prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0);
	pid_t pid = fork();
	NEED(pid >= 0);
	if (pid > 0 && !first)
		_exit(0);
	int status, wrong = 0;
	while (pid > 0 && (pid = wait(&status)) > 0)
		wrong |= status;
	if (pid < 0)
		_exit(wrong != 0);
	(void)last;
}

static void *work(void *arg)
{
	free(malloc((size_t)(uintptr_t)arg));
	return arg;
}

static void threads(bool last)
{
	enum { AT_ONCE = 8 };
	pthread_t all[AT_ONCE];
	for (int k = 0; k < AT_ONCE; k++) {
		pthread_attr_t attr;
		NEED(pthread_attr_init(&attr) == 0);
		NEED(pthread_attr_setstacksize(&attr, (16 + draw(500)) * PAGE) == 0);
		NEED(pthread_attr_setguardsize(&attr, draw(3) * PAGE) == 0);
		NEED(pthread_create(&all[k], &attr, work, (void *)(uintptr_t)draw(100000)) == 0);
		pthread_attr_destroy(&attr);
	}
	for (int k = 0; k < AT_ONCE; k++)
		NEED(pthread_join(all[k], NULL) == 0);
	(void)last;
}

static void libraries(bool last)
{
	static const char *const names[] = { "libresolv.so.2", "libnss_files.so.2", "libcrypt.so.1", "libutil.so.1", "libz.so.1", "librt.so.1" };
	void *one = dlopen(names[draw(6)], RTLD_NOW), *two = dlopen(names[draw(6)], RTLD_LAZY);
	NEED(!one || dlclose(one) == 0);
	NEED(!two || dlclose(two) == 0);
	(void)last;
}

/* mov $39,%eax (getpid); syscall; ret, and the same for munmap(0, 0): these make calls that are patched. */
static const unsigned char code[] = { 0xb8, 0x27, 0, 0, 0, 0x0f, 0x05, 0xc3, 0x31, 0xf6, 0x31, 0xff, 0xb8, 0x0b, 0, 0, 0, 0x0f, 0x05, 0xc3 };

/* Code that is made, run and thrown away, each time elsewhere: far away, now and then. */
static void generated(bool last)
{
	static uintptr_t next = 0x100000000000;
	static char *kept;
	char *p;
	/* Mapped anew in its place, for ever. */
	bool again = draw(3) == 0;
	if (again) {
		p = mmap(kept, 16 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | (kept ? MAP_FIXED : 0), -1, 0);
		kept = p;
	} else if (draw(2)) {
		p = mmap((void *)next, 16 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
		next += 5ul << 30;
		if (next > 0x400000000000)
			next = 0x100000000000;
	} else {
		p = mmap(NULL, 16 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	}
	NEED(p != MAP_FAILED);
	char *run_at = NULL;
	for (size_t k = 0; k < 16; k++)
		memcpy(run_at = p + k * PAGE + draw(1000), code, sizeof code);
	NEED(mprotect(p, 16 * PAGE, PROT_READ | PROT_EXEC) == 0);
	NEED(((long (*)(void))(uintptr_t)run_at)() == getpid());
	if (again)
		return;
	/* Not executable any more by the time that it is unmapped. */
	switch (draw(3)) {
	case 0:
		NEED(mprotect(p, (1 + draw(16)) * PAGE, PROT_READ | PROT_WRITE) == 0);
		break;
	case 1:
		NEED(mmap(p, 16 * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == p);
		break;
	default:
		break;
	}
	NEED(munmap(p, 16 * PAGE) == 0);
	(void)last;
}

static void segments(bool last)
{
	size_t pages = 1 + draw(16);
	int id = shmget(IPC_PRIVATE, pages * PAGE, IPC_CREAT | 0600);
	NEED(id >= 0);
	char *p = shmat(id, NULL, 0), *q = shmat(id, NULL, SHM_RDONLY);
	NEED(p != (void *)-1 && q != (void *)-1 && shmctl(id, IPC_RMID, NULL) == 0);
	if (draw(2))
		NEED(shmat(id, q, SHM_REMAP) == q);
	if (pages > 1 && draw(4) == 0)
		NEED(munmap(p + PAGE, PAGE) == 0);
	NEED(shmdt(p) == 0 && shmdt(q) == 0);
	(void)last;
}

/* malloc's: beyond its threshold, below it, and the heap's end. */
static void heap(bool last)
{
	static char *kept[100];
	size_t k = draw(100);
	free(kept[k]);
	kept[k] = NULL;
	if (draw(3)) {
		size_t bytes = draw(4) ? draw(100000) : draw(4000000);
		kept[k] = malloc(bytes + 1);
		NEED(kept[k]);
		memset(kept[k], 1, bytes + 1);
	}
	if (draw(20) == 0)
		malloc_trim(0);
	for (k = 0; last && k < 100; k++) {
		free(kept[k]);
		kept[k] = NULL;
	}
	if (last)
		malloc_trim(0);
}

/* Large memory that is opened and shut in parts, as arenas of allocators are. */
static void arenas(bool last)
{
	static char *big[4];
	enum { BIG = 4096 };
	size_t k = draw(4);
	if (!big[k])
		big[k] = mmap(NULL, BIG * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	NEED(big[k] != MAP_FAILED);
	size_t from = draw(BIG - 64), pages = 1 + draw(64);
	char *p = big[k] + from * PAGE;
	switch (draw(6)) {
	case 0:
		NEED(mprotect(p, pages * PAGE, PROT_NONE) == 0);
		break;
	case 1:
		NEED(madvise(p, pages * PAGE, MADV_DONTNEED) == 0);
		break;
	case 2:
		NEED(munmap(p, pages * PAGE) == 0);
		NEED(mmap(p, pages * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == p);
		break;
	case 3:
		NEED(munmap(big[k], BIG * PAGE) == 0);
		big[k] = NULL;
		break;
	default:
		NEED(mprotect(p, pages * PAGE, PROT_READ | PROT_WRITE) == 0);
	}
	for (k = 0; last && k < 4; k++) {
		NEED(!big[k] || munmap(big[k], BIG * PAGE) == 0);
		big[k] = NULL;
	}
}

/* What the C interface gives and takes; without the shim it is not there. */
static void interface(bool last)
{
	struct part p = some(0);
	size_t bytes = (1 + draw(1000)) * PAGE;
	void *one, *two;
	if (!regall_alloc)
		return;
	NEED(regall_opt_out(p.at, p.pages * PAGE) == 0);
	NEED(regall_alloc(bytes, &one) == 0 && regall_alloc_shared(bytes, &two) == 0);
	NEED(regall_free(two, bytes) == 0 && regall_free(one, bytes) == 0);
	p = some(0);
	NEED(regall_opt_in(p.at, p.pages * PAGE) == 0);
	for (int kind = 0; last && kind < KINDS; kind++)
		NEED(regall_opt_in(area[kind], PAGES * PAGE) == 0);
}

static const struct {
	const char *name;
	void (*turn)(bool last);
} all[] = {
	{ "protect", protect },
	{ "lock", lock },
	{ "advise", advise },
	{ "move", move },
	{ "overlay", overlay },
	{ "beside", beside },
	{ "children", children },
	{ "generations", generations },
	{ "threads", threads },
	{ "libraries", libraries },
	{ "generated", generated },
	{ "segments", segments },
	{ "heap", heap },
	{ "arenas", arenas },
	{ "interface", interface },
};

int main(int argc, char **argv)
{
	NEED(argc == 3);
	long turns = atol(argv[2]);
	size_t k = 0;
	while (k < sizeof all / sizeof *all && strcmp(all[k].name, argv[1]) != 0)
		k++;
	NEED(k < sizeof all / sizeof *all && turns >= 4);
	prepare();
	for (long n = 1; n <= turns; n++) {
		bool look = n == turns / 4 || n == turns;
		all[k].turn(look);
		if (look)
			quiet_point(n == turns ? "after" : "warm");
	}
	say("%s: %ld turns", argv[1], turns);
	return 0;
}
