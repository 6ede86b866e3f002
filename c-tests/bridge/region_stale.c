/* Proves: a region never shows memory that is not its own, whatever becomes of its memory, its owner or its readers. */
#include <dirent.h>
#include <malloc.h>
#include <pthread.h>
#include <sys/prctl.h>
#include <sys/shm.h>
#include "region.h"

static const char *self;

/* Memory goes: what is done to it, and then other bytes are put in its place. */
static void unmapped(char *p)
{
	NEED(munmap(p, 2 * PAGE) == 0);
}
static void replaced(char *p)
{
	NEED(mmap(p, 2 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == p);
}
static void replaced_by_file(char *p)
{
	int fd = memory_file(2 * PAGE);
	NEED(mmap(p, 2 * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0) == p);
	close(fd);
}
static void moved(char *p)
{
	char *to = reserve(2);
	NEED(mremap(p, 2 * PAGE, 2 * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, to) == to);
}
static void moved_upon(char *p)
{
	char *from = anon(2);
	NEED(mremap(from, 2 * PAGE, 2 * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, p) == p);
}
static void cut(char *p)
{
	NEED(mremap(p, 2 * PAGE, PAGE, 0) == p);
}
static void second_page_unmapped(char *p)
{
	NEED(munmap(p + PAGE, PAGE) == 0);
}
static void detached(char *p)
{
	NEED(shmdt(p) == 0);
}
static void attached_upon(char *p)
{
	int id = shmget(IPC_PRIVATE, 2 * PAGE, IPC_CREAT | 0600);
	NEED(id >= 0 && shmat(id, p, SHM_REMAP) == p && shmctl(id, IPC_RMID, NULL) == 0);
}
static void break_lowered(char *p)
{
	NEED(brk(p) == 0 && brk(p + 2 * PAGE) == 0);
}

static char *plain(void)
{
	return anon(2);
}
static char *attached(void)
{
	int id = shmget(IPC_PRIVATE, 2 * PAGE, IPC_CREAT | 0600);
	char *p = shmat(id, NULL, 0);
	NEED(id >= 0 && p != (void *)-1 && shmctl(id, IPC_RMID, NULL) == 0);
	return p;
}
static char *broken(void)
{
	char *p = sbrk(0);
	NEED(brk(p + 2 * PAGE) == 0);
	return p;
}

#define WAY(make, go) { #go, make, go }
static const struct {
	const char *name;
	char *(*make)(void);
	void (*go)(char *);
} ways[] = {
	WAY(plain, unmapped),	     WAY(plain, replaced), WAY(plain, replaced_by_file),
	WAY(plain, moved),	     WAY(plain, cut),	   WAY(plain, second_page_unmapped),
	WAY(plain, attached_upon),   WAY(plain, moved_upon),
	WAY(attached, detached),     WAY(broken, break_lowered),
};

static void stale(void)
{
	struct worker w = start_worker();
	char *other = anon(1);
	for (size_t i = 0; i < sizeof ways / sizeof *ways; i++)
		for (int scattered = 0; scattered < 2; scattered++) {
			char *p = ways[i].make();
			struct regall_segment s[] = { piece(other, 100), piece(p + PAGE - 8, 16), piece(other, 50) };
			uint64_t cookie, whole = scattered ? 166 : 16;
			int before = wrong;
			memset(p, 'A', 2 * PAGE);
			memset(other, 'o', PAGE);
			IS(0, regall_region_create(scattered ? s : s + 1, scattered ? 3 : 1, BOTH, 0, &cookie));
			IS(0, READ_BY(&w, cookie, 0, 300));
			IS(whole, w.work->done.bytes);
			HOLDS(w.work->buffer[whole / 2] == 'o' || w.work->buffer[whole / 2] == 'A');
			ways[i].go(p);
			for (int again = 0; again < 4; again++) {
				/* Also where nothing of it has gone, and while nothing is there. */
				memset(w.work->buffer, 'x', 300);
				IS(-ESTALE, READ_BY(&w, cookie, 0, 300));
				IS(0, w.work->done.bytes);
				HOLDS(again == 0 || !memchr(w.work->buffer, 'B', 300));
				memset(w.work->buffer, 'W', 300);
				IS(-ESTALE, WRITE_BY(&w, cookie, 0, 300));
				IS(0, w.work->done.bytes);
				if (again == 1 && ways[i].go != break_lowered)
					NEED(mmap(p, 2 * PAGE, PROT_READ | PROT_WRITE,
						  MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == p);
				if (again >= 1) {
					HOLDS(!memchr(p, 'W', 2 * PAGE));
					memset(p, 'B', 2 * PAGE);
				}
			}
			/* The same memory can be in a region again. */
			uint64_t anew = region_of(p, PAGE, BOTH, 0);
			IS(0, READ_BY(&w, anew, 0, 10));
			HOLDS(all_are(w.work->buffer, 10, 'B'));
			IS(-ESTALE, READ_BY(&w, cookie, 0, 10));
			IS(0, regall_region_destroy(cookie));
			IS(-EINVAL, READ_BY(&w, cookie, 0, 10));
			IS(0, READ_BY(&w, anew, 0, 10));
			IS(0, regall_region_destroy(anew));
			if (wrong > before)
				say("that was %s", ways[i].name);
		}
	end_worker(&w);
}

/* What leaves a region usable. */
static void usable(void)
{
	struct worker w = start_worker();
	char *p = anon(8), *heap = malloc(100000);
	NEED(heap);
	memset(heap, 'h', 100000);
	memset(p, 'p', 8 * PAGE);
	struct regall_segment s[] = { piece(p + 2 * PAGE, 2 * PAGE), piece(heap, 100000) };
	uint64_t cookie;
	IS(0, regall_region_create(s, 2, BOTH, 0, &cookie));
#define WORKS                                                                                      \
	do {                                                                                       \
		IS(0, READ_BY(&w, cookie, 0, 2 * PAGE + 100000));                                  \
		IS(2 * PAGE + 100000, w.work->done.bytes);                                         \
		HOLDS(memcmp(w.work->buffer, p + 2 * PAGE, 2 * PAGE) == 0);                        \
		HOLDS(memcmp(w.work->buffer + 2 * PAGE, heap, 100000) == 0);                       \
	} while (0)
	WORKS;
	/* The heap grows and shrinks behind it. */
	char *more[100];
	for (int i = 0; i < 100; i++)
		NEED(more[i] = malloc(100000));
	WORKS;
	for (int i = 0; i < 100; i++)
		free(more[i]);
	malloc_trim(0);
	WORKS;
	/* Its neighbours change. */
	NEED(mprotect(p, PAGE, PROT_NONE) == 0 && mprotect(p + 5 * PAGE, PAGE, PROT_READ) == 0);
	WORKS;
	NEED(munmap(p + 6 * PAGE, 2 * PAGE) == 0 && munmap(p, PAGE) == 0);
	WORKS;
	/* Its bytes become zero; they are its own. */
	NEED(madvise(p + 2 * PAGE, PAGE, MADV_DONTNEED) == 0);
	HOLDS(all_are(p + 2 * PAGE, PAGE, 0) && p[3 * PAGE] == 'p');
	WORKS;
	memset(p + 2 * PAGE, 'q', PAGE);
	WORKS;
	/* Pins come and go. */
	NEED(mlock(p + 2 * PAGE, PAGE) == 0);
	WORKS;
	NEED(munlock(p + 2 * PAGE, PAGE) == 0);
	WORKS;
	NEED(mlockall(MCL_CURRENT) == 0 && munlockall() == 0);
	WORKS;
	IS(0, regall_audit());
	WORKS;
	/* Its protection: said no to, but the region is the same. */
	NEED(mprotect(p + 3 * PAGE, PAGE, PROT_READ) == 0);
	WORKS;
	IS(-EACCES, WRITE_BY(&w, cookie, PAGE, 10));
	NEED(mprotect(p + 3 * PAGE, PAGE, PROT_NONE) == 0);
	HOLDS(READ_BY(&w, cookie, 0, 2 * PAGE) != 0);
	HOLDS(w.work->done.bytes <= PAGE);
	NEED(mprotect(p + 3 * PAGE, PAGE, PROT_READ | PROT_WRITE) == 0);
	WORKS;
	/* A child comes and goes; what both write to is copied. */
	pid_t child = fork();
	if (child == 0) {
		p[3 * PAGE] = 'c';
		exit(0);
	}
	NEED(waitpid(child, NULL, 0) == child);
	p[3 * PAGE] = 'z';
	WORKS;
	IS(0, regall_region_destroy(cookie));
	end_worker(&w);
}

/* An owner that makes, unmaps, maps anew and destroys as fast as it can. */
enum { READERS = 4, READS = 25000, WORDS = 3 * PAGE / 8 };
struct churn {
	/* Number and cookie of the region, the same number before and behind. */
	uint64_t before, cookie, behind;
	uint64_t good[READERS], stale[READERS], other[READERS];
	bool over;
};

static void read_churn(struct churn *c, int me)
{
	static uint64_t got[WORDS];
	struct regall_segment to[] = { piece(got, PAGE + 8), piece(got + PAGE / 8 + 1, 2 * PAGE) };
	uint64_t last = 0, times = 0;
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	/* Until enough of them came too late as well. */
	for (int i = 0; i < READS || c->stale[me] < 200 || c->other[me] < 50; i++) {
		/* Not so often of one that the owner gets no time to make another. */
		while (times > 4 + last * 7 % 64 && __atomic_load_n(&c->behind, __ATOMIC_ACQUIRE) == last)
			sched_yield();
		uint64_t behind = __atomic_load_n(&c->behind, __ATOMIC_ACQUIRE);
		uint64_t cookie = __atomic_load_n(&c->cookie, __ATOMIC_ACQUIRE);
		if (__atomic_load_n(&c->before, __ATOMIC_ACQUIRE) != behind || behind == 0) {
			i--;
			sched_yield();
			continue;
		}
		/* Sometimes the owner has a moment to come between. */
		if (i % 8 == 0)
			sched_yield();
		struct regall_done done;
		times = behind == last ? times + 1 : 1;
		last = behind;
		int e = regall_region_read(cookie, 0, to, 2, &done);
		uint64_t words = done.bytes / 8;
		for (uint64_t n = 0; n < words; n++)
			if (got[n] != (behind << 16 | n)) {
				say("region %lu word %lu of %lu: %lx (%d)", behind, n, words, got[n], e);
				wrong++;
				break;
			}
		c->good[me] += e == 0 && words > 0;
		c->stale[me] += e == -ESTALE;
		c->other[me] += e == -EINVAL || e == -EFAULT;
		if (e != 0 && e != -ESTALE && e != -EINVAL && e != -EFAULT)
			IS(0, e);
		/* Nothing is there for a moment, so what is copied is short of a page or more. */
		if (e == 0 && words != 0)
			IS(WORDS, words);
	}
	exit(wrong != 0);
}

static void churn(void)
{
	struct churn *c = shared_memory(sizeof *c);
	enum { FILES = 8 };
	char *area = reserve(8);
	int file[FILES];
	pid_t reader[READERS];
	for (int i = 0; i < FILES; i++)
		file[i] = memory_file(4 * PAGE);
	for (int i = 0; i < READERS; i++)
		if ((reader[i] = fork()) == 0)
			read_churn(c, i);
	int left = READERS;
	uint64_t number = 0;
	while (left > 0) {
		number++;
		/* What is mapped is full of stamps of this number from the first moment on. */
		uint64_t page[4 * PAGE / 8];
		for (uint64_t n = 0; n < 4 * PAGE / 8; n++)
			page[n] = number << 16 | n;
		int fd = file[number % FILES];
		NEED(pwrite(fd, page, sizeof page, 0) == sizeof page);
		char *p = area + number % 3 * PAGE, *to = area;
		NEED(mmap(p, 4 * PAGE, PROT_READ | PROT_WRITE, MAP_FIXED | (number % 2 ? MAP_SHARED : MAP_PRIVATE), fd,
			  0) == p);
		struct regall_segment s[] = { piece(p, PAGE), piece(p + PAGE, 100), piece(p + PAGE + 100, 2 * PAGE - 100) };
		uint64_t cookie;
		IS(0, regall_region_create(s, 3, REGALL_REGION_READ, 0, &cookie));
		__atomic_store_n(&c->before, number, __ATOMIC_RELEASE);
		__atomic_store_n(&c->cookie, cookie, __ATOMIC_RELEASE);
		__atomic_store_n(&c->behind, number, __ATOMIC_RELEASE);
		if (number % 4)
			sched_yield();
		else
			pause_us(20);
		/* Others' stamps at once in its place, or nothing. */
		int next = file[(number + 3) % FILES];
		if (number % 5 == 0)
			NEED(mprotect(p, PAGE, PROT_READ) == 0);
		if (number % 5 == 1)
			NEED(munmap(p, 4 * PAGE) == 0);
		if (number % 5 == 2)
			IS(0, regall_region_destroy(cookie));
		for (int i = 0; i < 2; i++)
			NEED(mmap(to + i * 3 * PAGE, 4 * PAGE, PROT_READ, MAP_FIXED | MAP_SHARED, next, 0) != MAP_FAILED);
		if (number % 5 != 2)
			IS(0, regall_region_destroy(cookie));
		for (int i = 0; i < READERS; i++) {
			int status = 0;
			if (reader[i] > 0 && waitpid(reader[i], &status, WNOHANG) == reader[i]) {
				IS(0, status);
				reader[i] = 0;
				left--;
			}
		}
	}
	uint64_t good = 0, gone = 0, other = 0;
	for (int i = 0; i < READERS; i++)
		good += c->good[i], gone += c->stale[i], other += c->other[i];
	if (getenv("REGION_COUNTS"))
		say("regions %lu, reads good %lu, stale %lu, none %lu", number, good, gone, other);
	HOLDS(number > 500 && good > 1000);
}

/* Reads all of a large region again and again until that fails; what it said then. */
struct flight {
	uint64_t cookie, reads;
	int said;
	bool going, stop;
};
enum { LARGE = 32 };

static void *fly(void *arg)
{
	struct flight *f = arg;
	char *to = malloc(LARGE * MIB);
	struct regall_segment s = piece(to, LARGE * MIB);
	struct regall_done done;
	NEED(to);
	memset(to, 0, LARGE * MIB);
	f->going = true;
	do {
		f->said = regall_region_read(f->cookie, 0, &s, 1, &done);
		__atomic_add_fetch(&f->reads, 1, __ATOMIC_RELAXED);
		if (f->said == 0) {
			IS(LARGE * MIB, done.bytes);
			HOLDS(to[0] == 'L' && to[LARGE * MIB - 1] == 'L');
		} else {
			HOLDS(done.bytes < LARGE * MIB || f->said == -ESTALE);
			HOLDS(done.bytes == 0 || to[done.bytes - 1] == 'L');
		}
	} while (f->said == 0 && !f->stop);
	free(to);
	return NULL;
}

/* An owner of such a region, and what it does when it is told to. */
enum deed { DESTROY, UNMAP, STOP, KILL, EXEC, EXIT, FORK };
static pid_t large_owner(enum deed deed, uint64_t *cookie, int *go)
{
	int told[2], come[2];
	NEED(pipe2(told, O_CLOEXEC) == 0 && pipe2(come, O_CLOEXEC) == 0);
	pid_t pid = fork();
	if (pid == 0) {
		char *p = mmap(NULL, LARGE * MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		char c;
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		NEED(p != MAP_FAILED);
		memset(p, 'L', LARGE * MIB);
		*cookie = region_of(p, LARGE * MIB, BOTH, REGALL_REGION_NOTIFY);
		NEED(write(told[1], cookie, 8) == 8 && read(come[0], &c, 1) == 1);
		if (deed == DESTROY)
			IS(0, regall_region_destroy(*cookie));
		if (deed == UNMAP)
			NEED(munmap(p, LARGE * MIB) == 0);
		if (deed == EXIT)
			exit(0);
		if (deed == EXEC)
			execl(self, self, "wait", (char *)NULL);
		if (deed == FORK) {
			/* The child has none of its parent's regions, and its own. */
			pid_t child = fork();
			if (child == 0) {
				uint64_t own;
				struct regall_use u[2];
				IS(-EPERM, regall_region_destroy(*cookie));
				IS(-EINVAL, regall_region_uses(*cookie));
				IS(0, regall_region_used(u, 2));
				memset(p, 'C', 100);
				own = region_of(p, 100, BOTH, 0);
				char got[100];
				struct regall_segment to = piece(got, 100);
				IS(0, regall_region_read(own, 0, &to, 1, NULL));
				HOLDS(all_are(got, 100, 'C'));
				IS(0, regall_region_read(*cookie, 0, &to, 1, NULL));
				HOLDS(all_are(got, 100, 'L'));
				IS(0, regall_region_destroy(own));
				IS(-EINVAL, regall_region_destroy(own));
				exit(wrong != 0);
			}
			int status = -1;
			NEED(waitpid(child, &status, 0) == child);
			IS(0, status);
			IS(0, regall_region_destroy(*cookie));
		}
		NEED(wrong == 0);
		for (;;)
			pause();
	}
	close(told[1]);
	close(come[0]);
	NEED(read(told[0], cookie, 8) == 8);
	close(told[0]);
	*go = come[1];
	return pid;
}

static void one_flight(enum deed deed, int turn)
{
	struct flight f = { 0 };
	int go, status;
	pid_t owner = large_owner(deed, &f.cookie, &go);
	pthread_t thread;
	NEED(pthread_create(&thread, NULL, fly, &f) == 0);
	while (!__atomic_load_n(&f.reads, __ATOMIC_RELAXED))
		pause_us(100);
	pause_us(500 + 613 * turn);
	if (deed == KILL)
		NEED(kill(owner, SIGKILL) == 0);
	else if (deed == STOP)
		NEED(kill(owner, SIGSTOP) == 0);
	else
		NEED(write(go, "", 1) == 1);
	if (deed == STOP) {
		uint64_t reads = __atomic_load_n(&f.reads, __ATOMIC_RELAXED);
		while (__atomic_load_n(&f.reads, __ATOMIC_RELAXED) < reads + 3 && f.said == 0)
			pause_us(100);
		f.stop = true;
	}
	NEED(pthread_join(thread, NULL) == 0);
	if (deed == STOP)
		IS(0, f.said);
	else if (f.said != -ESTALE && f.said != -EINVAL && f.said != -ESRCH && f.said != -EFAULT)
		IS(-ESTALE, f.said);
	if (f.said == -EFAULT || (f.said == -ESRCH && (deed == DESTROY || deed == UNMAP || deed == FORK))) {
		say("deed %d: %d", deed, f.said);
		wrong++;
	}
	if (deed != STOP && deed != UNMAP) {
		char byte;
		struct regall_segment to = piece(&byte, 1);
		int e;
		/* A process that has ended and one that has not yet are told apart by their parent alone. */
		if (deed == KILL || deed == EXIT) {
			NEED(waitpid(owner, &status, 0) == owner);
			owner = 0;
		}
		e = regall_region_read(f.cookie, 0, &to, 1, NULL);
		if (e != -EINVAL && !(deed == EXEC && e == -ESTALE))
			IS(-EINVAL + 1000 * deed, e);
	}
	close(go);
	if (owner) {
		kill(owner, SIGKILL);
		NEED(waitpid(owner, &status, 0) == owner);
		IS(SIGKILL, WTERMSIG(status));
	}
}

static void flights(void)
{
	static const enum deed deeds[] = { DESTROY, UNMAP, STOP, KILL, EXEC, EXIT, FORK };
	for (size_t i = 0; i < sizeof deeds / sizeof *deeds; i++)
		for (int turn = 0; turn < 4; turn++)
			one_flight(deeds[i], turn);
}

/* Files under /dev/shm of the process `pid` whose names end so; all if that is NULL. */
static int files_of(pid_t pid, const char *end)
{
	char folder[64], start[32];
	int count = 0;
	snprintf(folder, sizeof folder, "/dev/shm/regall-%d", (int)geteuid());
	int n = snprintf(start, sizeof start, "%d.", (int)pid);
	DIR *d = opendir(folder);
	NEED(d);
	for (struct dirent *e; (e = readdir(d));) {
		size_t len = strlen(e->d_name), tail = end ? strlen(end) : 0;
		if (strncmp(e->d_name, start, (size_t)n) == 0 && len >= tail &&
		    (!end || strcmp(e->d_name + len - tail, end) == 0))
			count++;
	}
	closedir(d);
	return count;
}

/* The next process that starts under the shim. */
static void start_another(void)
{
	pid_t pid = fork();
	if (pid == 0) {
		execl(self, self, "nothing", (char *)NULL);
		_exit(99);
	}
	int status = -1;
	NEED(waitpid(pid, &status, 0) == pid);
	IS(0, status);
}

static void leftovers(void)
{
	for (int turn = 0; turn < 4; turn++) {
		enum deed deed = (enum deed[]){ EXIT, KILL, EXEC, EXIT }[turn];
		uint64_t cookie;
		int go, status;
		pid_t pid = large_owner(deed, &cookie, &go);
		IS(1, files_of(pid, ".regions"));
		IS(1, files_of(pid, ".uses"));
		IS(3, files_of(pid, NULL));
		NEED(deed == KILL ? kill(pid, SIGKILL) == 0 : write(go, "", 1) == 1);
		if (deed == EXEC) {
			/* What is left of the image before goes when the new one starts. */
			for (int n = 0; n < 2000 && files_of(pid, NULL) != 1; n++)
				pause_us(1000);
			IS(1, files_of(pid, NULL));
			NEED(kill(pid, SIGKILL) == 0);
		}
		NEED(waitpid(pid, &status, 0) == pid);
		close(go);
		if (deed == EXIT)
			IS(0, files_of(pid, NULL));
		start_another();
		IS(0, files_of(pid, NULL));
	}
}

/* Readers that are killed in the middle of a copy. */
static void kills(void)
{
	enum { KILLED = 200 };
	static pid_t pid[KILLED];
	char *p = mmap(NULL, LARGE * MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	uint64_t *reads = shared_memory(PAGE);
	NEED(p != MAP_FAILED);
	memset(p, 'L', LARGE * MIB);
	struct flight f = { .cookie = region_of(p, LARGE * MIB, BOTH, REGALL_REGION_NOTIFY) };
	/* Their buffers are the same, lest each has to fill one of its own. */
	char *to = shared_memory(4 * MIB);
	struct regall_segment s = piece(to, 4 * MIB);
	for (int i = 0; i < KILLED; i++) {
		int status;
		*reads = 0;
		pid[i] = fork();
		if (pid[i] == 0) {
			for (;;) {
				regall_region_read(f.cookie, draw(28) * MIB, &s, 1, NULL);
				__atomic_add_fetch(reads, 1, __ATOMIC_RELAXED);
			}
		}
		while (!__atomic_load_n(reads, __ATOMIC_RELAXED))
			pause_us(50);
		pause_us((long)draw(1500));
		NEED(kill(pid[i], SIGKILL) == 0 && waitpid(pid[i], &status, 0) == pid[i]);
	}
	start_another();
	for (int i = 0; i < KILLED; i++)
		IS(0, files_of(pid[i], NULL));
	HOLDS(regall_region_uses(f.cookie) >= KILLED);
	f.stop = true;
	fly(&f);
	IS(0, f.said);
	IS(0, regall_region_destroy(f.cookie));
}

/* Children that are forked while other threads read, and read as well. */
static void *keep_reading(void *arg)
{
	struct flight *f = arg;
	char byte;
	struct regall_segment to = piece(&byte, 1);
	while (!f->stop)
		IS(0, regall_region_read(f->cookie, 0, &to, 1, NULL));
	return NULL;
}

static void forks(void)
{
	struct flight f = { 0 };
	int go, status;
	pid_t owner = large_owner(STOP, &f.cookie, &go);
	pthread_t thread[3];
	for (int i = 0; i < 3; i++)
		NEED(pthread_create(&thread[i], NULL, keep_reading, &f) == 0);
	for (int i = 0; i < 300; i++) {
		pid_t pid = fork();
		if (pid == 0) {
			char byte = 0;
			struct regall_segment to = piece(&byte, 1);
			alarm(20);
			for (int n = 0; n < 10; n++)
				IS(0, regall_region_read(f.cookie, (uint64_t)n, &to, 1, NULL));
			HOLDS(byte == 'L');
			_exit(wrong != 0);
		}
		NEED(waitpid(pid, &status, 0) == pid);
		IS(0, status);
	}
	f.stop = true;
	for (int i = 0; i < 3; i++)
		NEED(pthread_join(thread[i], NULL) == 0);
	kill(owner, SIGKILL);
	waitpid(owner, &status, 0);
}

static void nothing(void)
{
}

static void wait_for_ever(void)
{
	alarm(0);
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	for (;;)
		pause();
}

int main(int argc, char **argv)
{
	static const struct chapter all[] = {
		{ "stale", stale },	{ "usable", usable },	{ "churn", churn },
		{ "flights", flights }, { "kills", kills },	{ "forks", forks },
		{ "leftovers", leftovers }, { "nothing", nothing }, { "wait", wait_for_ever },
	};
	self = argv[0];
	return run_chapter(argc, argv, all, sizeof all / sizeof *all, 60);
}
