/* Proves: what a probe does to a function's first byte, and to its system call's, breaks nothing and is noticed: a breakpoint comes, stands, and the file's byte comes back. */
#include "check.h"

#include <dlfcn.h>
#include <link.h>
#include <time.h>
#include <ucontext.h>

static const unsigned char BREAKPOINT = 0xcc;

static int memory;

/* A probe: where it stands, and what the file has there and behind it. */
static struct {
	unsigned char *at;
	unsigned char file[16];
} probe;

/* The kernel's part: the instruction that the file has there is executed out of line. */
static void step(int sig, siginfo_t *info, void *context)
{
	(void)sig;
	(void)info;
	greg_t *r = ((ucontext_t *)context)->uc_mcontext.gregs;
	if ((unsigned char *)r[REG_RIP] != probe.at + 1)
		_exit(91);
	uint32_t number;
	memcpy(&number, probe.file + 1, 4);
	if (probe.file[0] == 0xb8) {
		r[REG_RAX] = number;
		r[REG_RIP] += 4;
	} else if (probe.file[0] == 0x0f && probe.file[1] == 0x05) {
		register long r10 __asm__("r10") = (long)r[REG_R10];
		long result;
		__asm__ volatile("syscall"
				 : "=a"(result)
				 : "a"(r[REG_RAX]), "D"(r[REG_RDI]), "S"(r[REG_RSI]), "d"(r[REG_RDX]), "r"(r10)
				 : "rcx", "r11", "memory");
		r[REG_RAX] = result;
		r[REG_RIP] += 1;
	} else {
		_exit(92);
	}
}

static void put(unsigned char byte)
{
	NEED(pwrite(memory, &byte, 1, (off_t)(uintptr_t)probe.at) == 1);
}

static void attach(const char *name, size_t offset)
{
	Dl_info info;
	struct link_map *map;
	probe.at = (unsigned char *)(uintptr_t)dlsym(RTLD_DEFAULT, name) + offset;
	NEED(dladdr1(probe.at, &info, (void **)&map, RTLD_DL_LINKMAP) != 0);
	int fd = open(info.dli_fname, O_RDONLY | O_CLOEXEC);
	/* Text stands in the C library's file where it is in memory. */
	off_t at = (off_t)((uintptr_t)probe.at - map->l_addr);
	NEED(fd >= 0 && pread(fd, probe.file, sizeof probe.file, at) == (ssize_t)sizeof probe.file);
	close(fd);
	put(BREAKPOINT);
}

static void detach(void)
{
	/* As the kernel does it: only what is a breakpoint is replaced. */
	if (*(volatile unsigned char *)probe.at == BREAKPOINT)
		put(probe.file[0]);
}

static void cycle(int times, bool claimed)
{
	int failed = 0;
	for (int n = 0; n < times; n++) {
		char *p = anon(3);
		p[0] = p[2 * PAGE] = 1;
		failed += munmap(p + PAGE, PAGE) != 0;
		failed += mprotect(p, PAGE, PROT_READ) != 0;
		failed += madvise(p, PAGE, MADV_NORMAL) != 0;
		failed += munmap(p + 1, PAGE) == 0 || errno != EINVAL;
		if (claimed && n == times - 1)
			quiet_claim(p + 2 * PAGE, PAGE, "registered");
		else
			failed += munmap(p, PAGE) != 0 || munmap(p + 2 * PAGE, PAGE) != 0;
	}
	say("failed calls %d", failed);
}

/* Long enough, and events enough, that the shim looks at its patches. */
static void meanwhile(void)
{
	struct timespec while_ = { .tv_nsec = 400 * 1000 * 1000 };
	nanosleep(&while_, NULL);
	cycle(200, false);
}

static void first_byte(const char *name)
{
	attach(name, 0);
	cycle(20, true);
	say("%s is probed", name);
	quiet_point("probed");
	detach();
	cycle(20, true);
	say("%s is not probed any more", name);
	quiet_point("not probed any more");
}

/* A probe on the system call itself: its calls are missed, and that is put right. */
static void call_itself(size_t offset)
{
	attach("munmap", offset);
	cycle(20, false);
	meanwhile();
	say("its system call is probed");
	detach();
	meanwhile();
	cycle(20, true);
	say("its system call is not probed any more");
	quiet_point("the call is not probed any more");
}

int main(void)
{
	memory = open("/proc/self/mem", O_RDWR | O_CLOEXEC);
	NEED(memory >= 0);
	struct sigaction action = { .sa_sigaction = step, .sa_flags = SA_SIGINFO };
	NEED(sigaction(SIGTRAP, &action, NULL) == 0);
	unsigned char *munmap_ = (unsigned char *)(uintptr_t)dlsym(RTLD_DEFAULT, "munmap");
	unsigned char head[4];
	memcpy(head, munmap_, sizeof head);
	if (memcmp(head, "\xf3\x0f\x1e\xfa", 4) == 0) {
		/* Another instruction is the first one: there is nothing to prove. */
		quiet_point("begins with endbr64");
		return 0;
	}
	first_byte("munmap");
	first_byte("mprotect");
	first_byte("madvise");
	call_itself(5);
	return 0;
}
