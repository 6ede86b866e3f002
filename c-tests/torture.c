/* Proves: eight threads making random memory calls of every kind, with fork, dlopen and signals between, leave no byte unaccounted for. */
/*
 * torture [calls] [seed] [storm]. The calls are spread over the threads; now and then
 * all of them stop at a quiet point. Every thread knows the contents that its
 * pages must have and looks before it lets go of them. On failure the seed and
 * the call are printed; the same seed makes every thread make the same calls
 * (not in the same order between threads). With `storm`, signals reach the threads
 * that make the calls, and not the one that waits for them; their handlers make calls of
 * every kind; there are more children, libraries and programs.
 */
#include <dlfcn.h>
#include <spawn.h>
#include <malloc.h>
#include <pthread.h>
#include <sys/shm.h>
#include <sys/time.h>
#include "check.h"

#define THREADS 8
#define AREAS 24
#define AREA_PAGES 64ul
#define QUIET_POINTS 20

/* What a thread knows about one of its areas. */
struct area {
	char *p;
	size_t pages;
	enum { FREE, PRIVATE, SHARED, SYSV } kind;
	unsigned char prot;
	unsigned char mark; /* first byte of each page, or 0 where never written */
	bool locked;
	int shm_id;
};

struct thread {
	uint64_t seed;
	int number;
	long calls;
	long step;
	struct area area[AREAS];
	char *arena; /* reserved, for fixed mappings */
};

static pthread_barrier_t barrier;
static uint64_t first_seed;
static long total = 1000000;
static int self_fd;
static bool storm;
static volatile long alarms, children, libraries;
extern char **environ;

static uint64_t draw(struct thread *t)
{
	t->seed ^= t->seed << 13;
	t->seed ^= t->seed >> 7;
	t->seed ^= t->seed << 17;
	return t->seed;
}

static size_t below(struct thread *t, size_t n)
{
	return (size_t)((draw(t) >> 20) % n);
}

static void fail(struct thread *t, const char *what)
{
	say("failed: %s: %s; seed %lu thread %d call %ld", what, strerrorname_np(errno),
	    (unsigned long)first_seed, t->number, t->step);
	_exit(80);
}

#define MUST(t, what)                                                                              \
	do {                                                                                       \
		if (!(what))                                                                       \
			fail(t, #what);                                                            \
	} while (0)

/* The kernel's word on an area, for the report of a failure. */
static void show(const struct area *a)
{
	FILE *f = fopen("/proc/self/smaps", "r");
	char line[512];
	unsigned long from, to;
	bool inside = false;
	say("area %lx-%lx kind %d prot %d locked %d", (unsigned long)a->p,
	    (unsigned long)(a->p + a->pages * PAGE), a->kind, a->prot, a->locked);
	while (f && fgets(line, sizeof line, f)) {
		if (sscanf(line, "%lx-%lx ", &from, &to) == 2)
			inside = from < (unsigned long)(a->p + a->pages * PAGE) && to > (unsigned long)a->p;
		if (inside && (strncmp(line, "VmFlags", 7) == 0 || strchr(line, '-')))
			say("  %.*s", (int)strcspn(line, "\n"), line);
	}
}

static void mark(struct thread *t, struct area *a)
{
	a->mark = (unsigned char)(draw(t) % 255 + 1);
	for (size_t i = 0; i < a->pages; i++)
		a->p[i * PAGE] = (char)a->mark;
}

static void look(struct thread *t, struct area *a)
{
	if (a->kind == FREE || !(a->prot & PROT_READ))
		return;
	for (size_t i = 0; i < a->pages; i++)
		if ((unsigned char)a->p[i * PAGE] != a->mark)
			fail(t, "contents");
}

static bool writable(const struct area *a)
{
	return a->kind != FREE && a->prot == (PROT_READ | PROT_WRITE);
}

static void let_go(struct thread *t, struct area *a)
{
	look(t, a);
	if (a->kind == SYSV)
		MUST(t, shmdt(a->p) == 0);
	else if (a->kind != FREE)
		MUST(t, munmap(a->p, a->pages * PAGE) == 0);
	a->kind = FREE;
	a->locked = false;
}

static void map(struct thread *t, struct area *a)
{
	static const int extra[] = { 0, 0, 0, MAP_NORESERVE, MAP_STACK, MAP_POPULATE, MAP_LOCKED };
	let_go(t, a);
	a->pages = below(t, AREA_PAGES) + 1;
	a->prot = PROT_READ | PROT_WRITE;
	a->kind = below(t, 3) ? PRIVATE : SHARED;
	int flags = (a->kind == PRIVATE ? MAP_PRIVATE : MAP_SHARED) | MAP_ANONYMOUS | extra[below(t, 7)];
	int fd = -1;
	if (below(t, 4) == 0) {
		fd = memfd_create("t", MFD_CLOEXEC);
		MUST(t, fd >= 0 && ftruncate(fd, (off_t)(a->pages * PAGE)) == 0);
		flags &= ~MAP_ANONYMOUS;
	}
	a->p = mmap(NULL, a->pages * PAGE, PROT_READ | PROT_WRITE, flags, fd, 0);
	MUST(t, a->p != MAP_FAILED);
	a->locked = flags & MAP_LOCKED;
	if (fd >= 0)
		close(fd);
	a->mark = 0;
	if (below(t, 2))
		mark(t, a);
}

static void map_fixed(struct thread *t)
{
	/* Over whatever is in the arena there: nobody else uses it. */
	size_t from = below(t, 200), n = below(t, 40) + 1;
	char *p = t->arena + from * PAGE;
	char *q = mmap(p, n * PAGE, (int)below(t, 4), MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
	MUST(t, q == p);
	if (below(t, 2)) {
		MUST(t, mprotect(p, n * PAGE, PROT_READ | PROT_WRITE) == 0);
		memset(p, 1, n * PAGE);
	}
	errno = 0;
	q = mmap(p, PAGE, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
	MUST(t, q == MAP_FAILED && errno == EEXIST);
}

static void remap(struct thread *t, struct area *a)
{
	if (a->kind != PRIVATE || a->prot != (PROT_READ | PROT_WRITE) || a->mark)
		return;
	size_t pages = below(t, AREA_PAGES) + 1;
	if (below(t, 2)) { /* into the arena */
		char *to = t->arena + below(t, 100) * PAGE;
		char *p = mremap(a->p, a->pages * PAGE, a->pages * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, to);
		MUST(t, p == to);
		a->kind = FREE;
		a->locked = false;
		return;
	}
	char *p = mremap(a->p, a->pages * PAGE, pages * PAGE, MREMAP_MAYMOVE);
	if (p == MAP_FAILED) {
		say("from %zu to %zu pages", a->pages, pages);
		show(a);
	}
	MUST(t, p != MAP_FAILED);
	a->p = p;
	if (pages > a->pages) /* a file's mapping may reach past its end now */
		MUST(t, munmap(p + a->pages * PAGE, (pages - a->pages) * PAGE) == 0);
	else
		a->pages = pages;
}

static void protect(struct thread *t, struct area *a)
{
	static const unsigned char prots[] = { PROT_NONE, PROT_READ, PROT_READ | PROT_WRITE };
	if (a->kind == FREE)
		return;
	look(t, a);
	a->prot = prots[below(t, 3)];
	MUST(t, mprotect(a->p, a->pages * PAGE, a->prot) == 0);
	look(t, a);
}

static void advise(struct thread *t, struct area *a)
{
	static const int harmless[] = { MADV_NORMAL, MADV_RANDOM, MADV_WILLNEED, MADV_HUGEPAGE, MADV_NOHUGEPAGE };
	if (a->kind == FREE)
		return;
	switch (below(t, 5)) {
	case 0:
		if (a->kind == PRIVATE && !a->locked && a->mark == 0) {
			MUST(t, madvise(a->p, a->pages * PAGE, MADV_DONTNEED) == 0);
			look(t, a);
		}
		break;
	case 1:
		if (!a->locked && a->prot && a->kind == PRIVATE)
			MUST(t, madvise(a->p, a->pages * PAGE, below(t, 2) ? MADV_COLD : MADV_PAGEOUT) == 0);
		look(t, a);
		break;
	case 2:
		if (a->locked) {
			errno = 0;
			MUST(t, madvise(a->p, a->pages * PAGE, MADV_DONTNEED) == -1 && errno == EINVAL);
			look(t, a);
		}
		break;
	case 3: {
		struct iovec { void *p; size_t n; } v = { a->p, a->pages * PAGE };
		if (!a->locked && a->kind == PRIVATE && a->prot)
			MUST(t, syscall(SYS_process_madvise, self_fd, &v, 1l, (long)MADV_COLD, 0l) == (long)v.n);
		break;
	}
	default:
		(void)madvise(a->p, a->pages * PAGE, harmless[below(t, 5)]);
	}
}

static void lock(struct thread *t, struct area *a)
{
	if (!writable(a))
		return;
	switch (below(t, 4)) {
	case 0:
		MUST(t, mlock(a->p, a->pages * PAGE) == 0);
		a->locked = true;
		break;
	case 1:
		MUST(t, mlock2(a->p, a->pages * PAGE, 1) == 0);
		a->locked = true;
		break;
	default:
		MUST(t, munlock(a->p, a->pages * PAGE) == 0);
		a->locked = false;
	}
	look(t, a);
}

static void attach(struct thread *t, struct area *a)
{
	let_go(t, a);
	a->pages = below(t, 16) + 1;
	int id = shmget(IPC_PRIVATE, a->pages * PAGE, IPC_CREAT | 0600);
	MUST(t, id >= 0);
	a->p = shmat(id, NULL, 0);
	MUST(t, a->p != (void *)-1);
	MUST(t, shmctl(id, IPC_RMID, NULL) == 0);
	a->kind = SYSV;
	a->prot = PROT_READ | PROT_WRITE;
	a->mark = 0;
}

static void punch(struct thread *t, struct area *a)
{
	if (a->kind != PRIVATE && a->kind != SHARED)
		return;
	size_t from = below(t, a->pages);
	look(t, a);
	MUST(t, munmap(a->p + from * PAGE, (a->pages - from) * PAGE) == 0);
	a->pages = from;
	if (from == 0) {
		a->kind = FREE;
		a->locked = false;
	}
}

/* Calls that fail change nothing. */
static void wrong(struct thread *t, struct area *a)
{
	errno = 0;
	switch (below(t, 6)) {
	case 0: MUST(t, munmap((void *)1, PAGE) == -1 && errno == EINVAL); break;
	case 1: MUST(t, mmap(NULL, 0, 0, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) == MAP_FAILED && errno == EINVAL); break;
	case 2: MUST(t, mprotect((void *)PAGE, PAGE, PROT_READ) == -1 && errno == ENOMEM); break;
	case 3: MUST(t, madvise((void *)PAGE, PAGE, MADV_DONTNEED) == -1 && errno == ENOMEM); break;
	case 4: MUST(t, shmdt((void *)PAGE) == -1 && errno == EINVAL); break;
	case 5:
		if (a->kind != FREE)
			MUST(t, mmap(a->p, PAGE, 0, MAP_PRIVATE | MAP_FIXED, 9999, 0) == MAP_FAILED && errno == EBADF);
		break;
	}
	look(t, a);
}

static void inline_calls(struct thread *t)
{
	long p;
	register long r10 __asm__("r10") = MAP_PRIVATE | MAP_ANONYMOUS;
	register long r8 __asm__("r8") = -1;
	register long r9 __asm__("r9") = 0;
	__asm__ volatile("syscall"
			 : "=a"(p)
			 : "a"(SYS_mmap), "D"(0), "S"(8 * PAGE), "d"(PROT_READ | PROT_WRITE), "r"(r10), "r"(r8), "r"(r9)
			 : "rcx", "r11", "memory");
	MUST(t, p > 0);
	*(char *)p = 1;
	MUST(t, syscall(SYS_munmap, p, 4 * PAGE) == 0);
	long r;
	__asm__ volatile("mov $11, %%eax\n\tsyscall" : "=a"(r) : "D"(p + 4 * (long)PAGE), "S"(4 * PAGE) : "rcx", "r11", "memory");
	MUST(t, r == 0);
}

static void heap(struct thread *t)
{
	void *p[8];
	for (int i = 0; i < 8; i++) {
		size_t n = below(t, 10) ? below(t, 3000) : below(t, 400000);
		p[i] = malloc(n + 1);
		MUST(t, p[i]);
		memset(p[i], i, n + 1);
	}
	for (int i = 0; i < 8; i++)
		free(p[i]);
	if (below(t, 50) == 0)
		malloc_trim(0);
}

static void reap_well(struct thread *t, pid_t pid)
{
	int status;
	pid_t got;
	do
		got = waitpid(pid, &status, 0);
	while (got < 0 && errno == EINTR);
	if (got != pid || status != 0) {
		say("child ended with %x", status);
		fail(t, "child");
	}
	__atomic_add_fetch(&children, 1, __ATOMIC_RELAXED);
}

static void have_child(struct thread *t)
{
	pid_t pid = below(t, 4) ? fork() : _Fork();
	MUST(t, pid >= 0);
	if (pid == 0) {
		for (int i = 0; i < AREAS; i++) {
			struct area *a = &t->area[i];
			if (a->kind == PRIVATE && a->prot & PROT_READ)
				for (size_t k = 0; k < a->pages; k++)
					if ((unsigned char)a->p[k * PAGE] != a->mark)
						_exit(1);
			if (a->kind == PRIVATE && writable(a))
				a->p[0] = 99; /* must not be seen by the parent */
		}
		char *p = mmap(NULL, 8 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		if (p == MAP_FAILED)
			_exit(2);
		p[0] = 1;
		munmap(p, 4 * PAGE);
		_exit(0);
	}
	reap_well(t, pid);
}

static void have_program(struct thread *t)
{
	char *const argv[] = { "true", NULL };
	pid_t pid;
	if (below(t, 2)) {
		MUST(t, (errno = posix_spawn(&pid, "/bin/true", NULL, NULL, argv, environ)) == 0);
	} else {
		pid = vfork();
		MUST(t, pid >= 0);
		if (pid == 0) {
			execv("/bin/true", argv);
			_exit(1);
		}
	}
	reap_well(t, pid);
}

static void library(struct thread *t)
{
	static const char *const names[] = { "libresolv.so.2", "libnsl.so.1", "libcrypt.so.1", "libutil.so.1", "libz.so.1" };
	void *h = dlopen(names[below(t, 5)], RTLD_NOW);
	if (h) {
		__atomic_add_fetch(&libraries, 1, __ATOMIC_RELAXED);
		MUST(t, dlclose(h) == 0);
	}
}

static void *empty_thread(void *arg)
{
	return arg;
}

static void short_thread(struct thread *t)
{
	pthread_t one;
	MUST(t, pthread_create(&one, NULL, empty_thread, NULL) == 0);
	MUST(t, pthread_join(one, NULL) == 0);
}

/* What else a handler does to these four pages of its own. */
static void in_storm(char *p)
{
	switch (alarms % 8) {
	case 0:
		mprotect(p + PAGE, PAGE, PROT_NONE);
		break;
	case 1:
		madvise(p, 4 * PAGE, MADV_DONTNEED);
		break;
	case 2:
		mlock(p, 2 * PAGE);
		break;
	case 3:
		mmap(p + 2 * PAGE, PAGE, PROT_READ, MAP_SHARED | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
		break;
	case 4:
		if (alarms % 64 == 4) { /* _Fork, and not fork: it is async-signal-safe */
			pid_t pid = _Fork();
			if (pid == 0) {
				munmap(p, PAGE);
				_exit(0);
			}
			while (pid > 0 && waitpid(pid, NULL, 0) < 0 && errno == EINTR)
				;
		}
		break;
	default:
		break;
	}
}

static void on_alarm(int sig)
{
	(void)sig;
	int saved = errno;
	char *p = mmap(NULL, 4 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (p != MAP_FAILED) {
		p[0] = 1;
		if (storm)
			in_storm(p);
		munmap(p, 4 * PAGE);
	}
	__atomic_add_fetch(&alarms, 1, __ATOMIC_RELAXED);
	errno = saved;
}

static void break_moves(struct thread *t)
{
	/* sbrk is one for all threads; malloc's main arena takes it into account. */
	MUST(t, sbrk((intptr_t)(below(t, 4) * PAGE)) != (void *)-1);
}

static void step(struct thread *t)
{
	struct area *a = &t->area[below(t, AREAS)];
	size_t n = below(t, 10000);
	if (storm && below(t, 500) == 0) {
		switch (below(t, 4)) {
		case 0: have_child(t); break;
		case 1: have_program(t); break;
		default: library(t);
		}
		return;
	}
	if (n < 4)
		have_child(t);
	else if (n < 14)
		library(t);
	else if (n < 24)
		short_thread(t);
	else if (n < 30 && t->number == 0)
		break_moves(t);
	else if (n < 200)
		attach(t, a);
	else if (n < 600)
		heap(t);
	else if (n < 1100)
		inline_calls(t);
	else if (n < 1900)
		map_fixed(t);
	else if (n < 2700)
		wrong(t, a);
	else if (n < 4300)
		map(t, a);
	else if (n < 5300)
		let_go(t, a);
	else if (n < 6000)
		remap(t, a);
	else if (n < 7200)
		protect(t, a);
	else if (n < 8200)
		advise(t, a);
	else if (n < 8900)
		lock(t, a);
	else if (n < 9400)
		punch(t, a);
	else if (writable(a))
		mark(t, a);
}

static void hold_alarms(int how)
{
	sigset_t alarm;
	sigemptyset(&alarm);
	sigaddset(&alarm, SIGALRM);
	if (storm)
		NEED(pthread_sigmask(how, &alarm, NULL) == 0);
}

static void *run(void *arg)
{
	struct thread *t = arg;
	long each = t->calls / QUIET_POINTS;
	for (int q = 0; q < QUIET_POINTS; q++) {
		for (long i = 0; i < each; i++, t->step++)
			step(t);
		/* At a quiet point there is no handler at work either. */
		hold_alarms(SIG_BLOCK);
		pthread_barrier_wait(&barrier);
		pthread_barrier_wait(&barrier);
		hold_alarms(SIG_UNBLOCK);
	}
	for (int i = 0; i < AREAS; i++)
		let_go(t, &t->area[i]);
	return NULL;
}

static void timer(int usec)
{
	struct itimerval i = { { 0, usec }, { 0, usec } };
	setitimer(ITIMER_REAL, &i, NULL);
}

int main(int argc, char **argv)
{
	static struct thread threads[THREADS];
	static pthread_t ids[THREADS];
	if (argc > 1)
		total = atol(argv[1]);
	first_seed = argc > 2 ? strtoul(argv[2], NULL, 0) : 20261121;
	storm = argc > 3 && strcmp(argv[3], "storm") == 0;
	self_fd = (int)syscall(434 /* pidfd_open */, getpid(), 0);
	NEED(self_fd >= 0);
	struct sigaction act = { .sa_handler = on_alarm, .sa_flags = SA_RESTART };
	NEED(sigaction(SIGALRM, &act, NULL) == 0);
	NEED(pthread_barrier_init(&barrier, NULL, THREADS + 1) == 0);
	for (int i = 0; i < THREADS; i++) {
		threads[i].seed = first_seed * 0x9e3779b97f4a7c15ul + (uint64_t)i * 0xda942042e4dd58b5ul + 1;
		threads[i].number = i;
		threads[i].calls = total / THREADS;
		threads[i].arena = reserve(512);
		NEED(pthread_create(&ids[i], NULL, run, &threads[i]) == 0);
	}
	/* A thread that does nothing but wait would be given all signals. */
	hold_alarms(SIG_BLOCK);
	timer(2000);
	for (int q = 0; q < QUIET_POINTS; q++) {
		pthread_barrier_wait(&barrier);
		timer(0);
		char label[32];
		snprintf(label, sizeof label, "torture %d", q);
		quiet_point(label);
		timer(2000);
		pthread_barrier_wait(&barrier);
	}
	for (int i = 0; i < THREADS; i++)
		pthread_join(ids[i], NULL);
	timer(0);
	say("calls %ld", total / THREADS / QUIET_POINTS * QUIET_POINTS * THREADS);
	if (storm)
		say("signals %ld children %ld libraries %ld", alarms, children, libraries);
	quiet_point("end");
	return 0;
}
