/* Proves: in a seccomp sandbox memory moves and becomes executable as without the shim, whatever of it can't be read and whatever the filter refuses or kills for. */
#include "filter.h"

#ifndef MADV_GUARD_INSTALL
#define MADV_GUARD_INSTALL 102
#endif
#define PAGES 8

/* mov $SYS_getppid, %eax; syscall; ret: something to be found. */
static const unsigned char code[] = { 0xb8, SYS_getppid, 0, 0, 0, 0x0f, 0x05, 0xc3 };

static int file;

static void *guarded(void)
{
	char *p = anon(PAGES);
	memset(p, 0xcc, PAGES * PAGE);
	memcpy(p, code, sizeof code);
	(void)madvise(p + 3 * PAGE, 2 * PAGE, MADV_GUARD_INSTALL); /* Linux 6.13 */
	return p;
}

/* A page, and what is behind the file's end. */
static void *cut_short(int flags)
{
	char *p = mmap(NULL, PAGES * PAGE, PROT_READ, flags, file, 0);
	NEED(p != MAP_FAILED);
	return p;
}

static void *cut_short_shared(void)
{
	return cut_short(MAP_SHARED);
}

static void *cut_short_private(void)
{
	return cut_short(MAP_PRIVATE);
}

/* Without a key, in most machines. */
static void *keyed(void)
{
	char *p = anon(PAGES);
	memset(p, 0xcc, PAGES * PAGE);
	int key = pkey_alloc(0, PKEY_DISABLE_ACCESS);
	if (key >= 0)
		NEED(pkey_mprotect(p + 3 * PAGE, 2 * PAGE, PROT_READ | PROT_WRITE, key) == 0);
	return p;
}

static const struct memory {
	const char *name;
	void *(*get)(void);
} memories[] = {
	{ "guards", guarded },
	{ "a shared file's end", cut_short_shared },
	{ "a private file's end", cut_short_private },
	{ "a key", keyed },
};

enum { ALL = 1, NO_ADVICE = 2, FALSE_ADVICE = 4, KILLS = 8 };

static const struct box {
	const char *name;
	int what;
} boxes[] = {
	{ "nothing but memory calls", ALL },
	{ "memory calls without advice", ALL | NO_ADVICE },
	{ "memory calls, advice is said to be taken", ALL | FALSE_ADVICE },
	{ "all but reading", 0 },
	{ "all but reading and advice", NO_ADVICE },
	{ "all but reading, advice is said to be taken", FALSE_ADVICE },
	{ "nothing but memory calls, or it kills", ALL | KILLS },
	{ "memory calls without advice, or it kills", ALL | NO_ADVICE | KILLS },
	{ "memory calls, advice is said to be taken, or it kills", ALL | FALSE_ADVICE | KILLS },
	{ "all but reading and advice, or it kills", NO_ADVICE | KILLS },
};

/* With REGALL_INTERCEPT=strict a call from code that can't be searched is a signal. */
static const unsigned memory_calls[] = { SYS_mmap,  SYS_munmap,     SYS_mprotect, SYS_mremap,
					     SYS_write, SYS_exit_group, SYS_getppid,  SYS_rt_sigreturn };
static const unsigned reading[] = { SYS_rt_sigprocmask, SYS_process_vm_readv, SYS_open,	   SYS_openat,
				    SYS_pread64,	SYS_mincore,	      SYS_mlock2, SYS_mlock };

#define COUNT(a) (sizeof(a) / sizeof *(a))

static size_t answer(struct sock_filter *code, size_t n, unsigned call, unsigned with)
{
	code[n++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, call, 0, 1);
	code[n++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, with);
	return n;
}

static void lock_in(int what)
{
	struct sock_filter code[2 * FILTER_MOST + 2];
	unsigned refused = what & KILLS ? SECCOMP_RET_KILL_PROCESS : SECCOMP_RET_ERRNO | EPERM;
	size_t n = 0;
	code[n++] = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr));
	unsigned advice = what & NO_ADVICE ? refused : what & FALSE_ADVICE ? SECCOMP_RET_ERRNO : SECCOMP_RET_ALLOW;
	n = answer(code, n, SYS_madvise, advice);
	if (what & ALL)
		for (size_t i = 0; i < COUNT(memory_calls); i++)
			n = answer(code, n, memory_calls[i], SECCOMP_RET_ALLOW);
	else
		for (size_t i = 0; i < COUNT(reading); i++)
			n = answer(code, n, reading[i], refused);
	code[n++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, what & ALL ? refused : SECCOMP_RET_ALLOW);
	install_filter(code, n);
}

static void try(const struct memory *memory, const struct box *box)
{
	char *p = memory->get();
	lock_in(box->what);
	errno = 0;
	int r = mprotect(p, PAGES * PAGE, PROT_READ | PROT_EXEC);
	say("%s, %s: %s", memory->name, box->name, r == 0 ? "executable" : strerrorname_np(errno));
	if (strcmp(memory->name, "a key") != 0) {
		long parent = ((long (*)(void))(uintptr_t)p)();
		say("  its code %s", parent > 0 ? "runs" : "fails");
	}
	_exit(0);
}

/* Memory that REGALL_SHARE=heap puts a file behind. */
static void move(int what)
{
	size_t bytes = 512ul << 10;
	char *p = anon(bytes / PAGE), *to = reserve(bytes / PAGE);
	memset(p, 1, bytes);
	memset(p + 40 * PAGE, 2, 10 * PAGE);
	lock_in(what);
	int leave = MREMAP_MAYMOVE | MREMAP_FIXED | MREMAP_DONTUNMAP;
	MAP_AS("left", mremap(p + 46 * PAGE, 2 * PAGE, 2 * PAGE, leave, to));
	say("  %d %d", all_are(to, 2 * PAGE, 2), all_are(p + 46 * PAGE, 2 * PAGE, 0));
	MAP_AS("moved", mremap(p, 44 * PAGE, 44 * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, to + 4 * PAGE));
	say("  %d %d", all_are(to + 4 * PAGE, 40 * PAGE, 1), all_are(to + 44 * PAGE, 4 * PAGE, 2));
	if (!(what & (NO_ADVICE | FALSE_ADVICE))) {
		CALL(madvise(to + 4 * PAGE, 8 * PAGE, MADV_DONTNEED));
		say("  %d", all_are(to + 4 * PAGE, 8 * PAGE, 0));
	}
	char *grown = MAP_AS("grown", mremap(p + 60 * PAGE, 2 * PAGE, 80 * PAGE, MREMAP_MAYMOVE));
	say("  %d", grown != MAP_FAILED && all_are(grown, 2 * PAGE, 1) && all_are(grown + 2 * PAGE, 78 * PAGE, 0));
	_exit(0);
}

int main(void)
{
	file = memory_file(PAGE);
	NEED(pwrite(file, code, sizeof code, 0) == sizeof code);
	for (size_t m = 0; m < COUNT(memories); m++)
		for (size_t b = 0; b < COUNT(boxes); b++) {
			pid_t pid = fork();
			NEED(pid >= 0);
			if (pid == 0)
				try(&memories[m], &boxes[b]);
			reap("child", pid);
		}
	for (size_t b = 0; b < COUNT(boxes); b++) {
		pid_t pid = fork();
		NEED(pid >= 0);
		if (pid == 0)
			move(boxes[b].what);
		reap(boxes[b].name, pid);
	}
	quiet_point("end");
	return 0;
}
