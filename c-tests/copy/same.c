/* Proves: process_vm_readv and process_vm_writev return, copy and refuse byte for byte what they do without the shim, whatever the peer's memory is and wherever a vector points. */
/*
 * same SEED CALLS: random calls on a process of this program; a line for each call, with
 * what it returned and what both sides' memory is afterwards.
 */
#include "../bridge/peers.h"

#include <sys/shm.h>

#define SPAN 96ul /* pages of a side */
#define MOST 1100

static uint64_t state = 1;

static uint64_t any(uint64_t below)
{
	state = state * 6364136223846793005ull + 1442695040888963407ull;
	return (state >> 33) % below;
}

static char *span;
static int cut = -1;

static void *at(size_t page, size_t pages, int prot, int flags, int fd, size_t offset)
{
	void *p = mmap(span + page * PAGE, pages * PAGE, prot, flags | MAP_FIXED, fd, (off_t)(offset * PAGE));
	NEED(p == span + page * PAGE);
	return p;
}

static int sealed(size_t pages)
{
	int fd = memfd_create("same", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	NEED(fd >= 0 && ftruncate(fd, (off_t)(pages * PAGE)) == 0);
	NEED(fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK) == 0);
	return fd;
}

/*
 * Every kind of memory, one next to the other. The holes are what is left of the span. It is
 * where nobody else maps anything, and in every run where it was: vectors lie in it.
 */
static void lay_out(uintptr_t where, uint64_t salt)
{
	int rw = PROT_READ | PROT_WRITE, one = sealed(24), other = memory_file(8 * PAGE);
	span = mmap((void *)where, SPAN * PAGE, PROT_NONE,
		    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE, -1, 0);
	NEED(span == (char *)where);
	char *start = span + PAGE;
	NEED(munmap(span, PAGE) == 0);
	at(1, 12, rw, MAP_SHARED, one, 0);
	at(13, 8, rw, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	at(21, 12, rw, MAP_SHARED, one, 12);
	at(33, 8, rw, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	/* 41 and 42: no access. */
	at(43, 8, rw, MAP_SHARED, sealed(8), 0);
	int id = shmget(IPC_PRIVATE, 8 * PAGE, IPC_CREAT | 0600);
	NEED(id >= 0 && shmat(id, span + 52 * PAGE, SHM_REMAP) == span + 52 * PAGE);
	NEED(shmctl(id, IPC_RMID, NULL) == 0);
	at(60, 8, rw, MAP_SHARED, other, 0);
	at(68, 4, rw, MAP_PRIVATE, other, 4);
	at(72, 4, rw, MAP_SHARED, sealed(4), 0);
	at(76, 4, rw, MAP_SHARED, sealed(2), 0);
	at(80, 6, rw, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	for (size_t i = 0; i < 76 * PAGE; i++) {
		size_t page = 1 + i / PAGE;
		bool gone = page == 41 || page == 42 || page == 51 || page == 68 || page > 75;
		if (!gone)
			start[i] = (char)(i * 31 + i / 251 + salt);
	}
	NEED(mprotect(span + 45 * PAGE, 2 * PAGE, PROT_READ) == 0);
	NEED(mprotect(span + 72 * PAGE, PAGE, PROT_WRITE) == 0);
	NEED(mprotect(span + 74 * PAGE, PAGE, PROT_NONE) == 0);
	NEED(munmap(span + 88 * PAGE, 8 * PAGE) == 0);
	cut = other;
}

/* Of all that can be read. */
static uint64_t hash(void)
{
	uint64_t h = 14695981039346656037ull;
	for (size_t page = 1; page < 86; page++) {
		bool gone = page == 41 || page == 42 || page == 51 || page == 72 || page == 74 ||
			    (page >= 62 && page < 72) || (page >= 78 && page < 80);
		const uint64_t *p = (const uint64_t *)(const void *)(span + page * PAGE);
		for (size_t i = 0; !gone && i < PAGE / 8; i++)
			h = (h ^ p[i]) * 1099511628211ull;
	}
	return h;
}

static int owner(void)
{
	char line[32];
	lay_out(0x210000000000, 7);
	NEED(ftruncate(cut, 2 * PAGE) == 0);
	say("%#lx", (unsigned long)(uintptr_t)span);
	while (line_from(0, line, sizeof line)) {
		if (*line == 'm') {
			/* The same memory, mapped elsewhere in its file. */
			static int turn;
			int fd = sealed(8);
			NEED(pwrite(fd, span + 13 * PAGE, 8 * PAGE, 0) == (ssize_t)(8 * PAGE));
			if (turn++ % 2)
				at(43, 8, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
			else
				at(43, 8, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
			close(fd);
		}
		say("%lu", (unsigned long)hash());
	}
	return 0;
}

static struct iovec some(char *base)
{
	size_t lens[] = { 0, 1 + any(16), any(200), any(PAGE), any(4 * PAGE), any(40 * PAGE) };
	size_t len = lens[any(6)];
	char *p = base + any(SPAN * PAGE);
	if (any(3) == 0)
		p = base + any(SPAN) * PAGE + any(16);
	/* Mostly where something is. */
	if (any(4) > 0)
		p = base + PAGE + any(38 * PAGE);
	switch (any(300)) {
	case 0:
		p = NULL;
		break;
	case 1:
		p = (char *)0xffff888000000000ull;
		break;
	case 2:
		len = (size_t)-1;
		break;
	case 3:
		len = 1ul << 62;
		break;
	case 4:
		p = (char *)0x7ffffffff000ull;
		break;
	}
	return (struct iovec){ p, len };
}

static size_t how_many(void)
{
	switch (any(200)) {
	case 0:
		return 1024;
	case 1:
		return 1025;
	case 2:
		return 33 + any(100);
	case 3:
		return 0;
	default:
		return any(3) ? 1 : 1 + any(any(2) ? 4 : 32);
	}
}

int main(int argc, char **argv)
{
	static struct iovec here[MOST], there[MOST];
	no_longer_than(100);
	if (argc == 2)
		return owner();
	state = strtoull(argv[1], NULL, 0);
	int calls = atoi(argv[2]);
	lay_out(0x200000000000, 99);
	struct other o = start_other(true, (char *[]){ "same", "owner", NULL });
	char *theirs = (char *)(uintptr_t)hear_number(&o);
	NEED(ftruncate(cut, 2 * PAGE) == 0);
	pid_t dead = fork();
	if (dead == 0)
		_exit(0);
	NEED(waitpid(dead, NULL, 0) == dead);
	for (int n = 0; n < calls; n++) {
		size_t locals = how_many(), remotes = how_many();
		for (size_t i = 0; i < MOST; i++) {
			here[i] = some(span);
			there[i] = some(theirs);
		}
		struct iovec *local = here, *remote = there;
		switch (any(40)) {
		case 0: /* Overwritten by what it says is to be read. */
			local = (struct iovec *)(void *)(span + PAGE + any(100) * 8);
			memcpy(local, here, 32 * sizeof *here);
			remote = (struct iovec *)(void *)(span + 3 * PAGE + any(100) * 8);
			memcpy(remote, there, 32 * sizeof *there);
			break;
		case 1: /* Only the beginning of it is there. */
			local = (struct iovec *)(void *)(span + 41 * PAGE - 32);
			memcpy(local, here, 32);
			break;
		case 2: /* Nothing of it is there. */
			remote = (struct iovec *)(void *)(span + 63 * PAGE);
			break;
		}
		pid_t pid = o.pid;
		switch (any(100)) {
		case 0:
			pid = dead;
			break;
		case 1:
			pid = getpid();
			break;
		case 2:
			pid = any(2) ? -1 : 0;
			break;
		}
		unsigned long flags = any(100) == 0 ? 1 + any(4) : 0;
		bool put = any(2), raw = any(4) == 0;
		long got;
		errno = 0;
		if (raw)
			got = syscall(put ? SYS_process_vm_writev : SYS_process_vm_readv, pid, local, locals,
				      remote, remotes, flags);
		else if (put)
			got = process_vm_writev(pid, local, locals, remote, remotes, flags);
		else
			got = process_vm_readv(pid, local, locals, remote, remotes, flags);
		int e = got < 0 ? errno : 0;
		say("%d %s %zu/%zu: %ld %s %lx %lx", n, put ? "put" : "get", locals, remotes, got,
		    e ? strerrorname_np(e) : "-", (unsigned long)hash(),
		    (unsigned long)ask(&o, any(60) ? "hash" : "move"));
	}
	end_other(&o);
	return 0;
}
