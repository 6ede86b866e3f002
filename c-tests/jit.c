/* Proves: code made at run time with a memory call in it runs, is changed and runs again, as without the shim. */
#include "check.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>

/* mov %rdi... are in place already: mov $NR,%eax; syscall; ret */
static const unsigned char body[] = { 0xb8, 0, 0, 0, 0, 0x0f, 0x05, 0xc3 };

typedef long (*two)(void *, size_t);

static void write_code(unsigned char *at, unsigned nr)
{
	memcpy(at, body, sizeof body);
	memcpy(at + 1, &nr, 4);
}

static void written_then_executable(void)
{
	unsigned char *code = (unsigned char *)anon(1);
	memset(code, 0xcc, PAGE);
	write_code(code + 64, SYS_munmap);
	CALL(mprotect(code, PAGE, PROT_READ | PROT_EXEC));
	two f = (two)(uintptr_t)(code + 64);
	char *p = anon(8);
	say("munmap from new code %ld", f(p + PAGE, 2 * PAGE));
	quiet_claim(p, PAGE, "registered");
	quiet_point("new code");
	say("bad munmap from new code %ld", f(p + 1, 1));
	/* Rewritten while it is writable again. */
	CALL(mprotect(code, PAGE, PROT_READ | PROT_WRITE));
	write_code(code + 64, SYS_munlock);
	CALL(mprotect(code, PAGE, PROT_READ | PROT_EXEC));
	say("munlock from changed code %ld", f(p, PAGE));
	quiet_claim(p, PAGE, "registered");
	quiet_point("changed code");
	CALL(munmap(code, PAGE));
}

static void writable_and_executable(void)
{
	unsigned char *code = mmap(NULL, 4 * PAGE, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	NEED(code != MAP_FAILED);
	write_code(code, SYS_getpid);
	two f = (two)(uintptr_t)code;
	say("getpid %d", f(NULL, 0) == getpid());
	write_code(code + PAGE, SYS_getppid);
	f = (two)(uintptr_t)(code + PAGE);
	say("getppid %d", f(NULL, 0) == getppid());
	quiet_claim(code, 4 * PAGE, "registered");
	quiet_point("rwx");
	CALL(munmap(code, 4 * PAGE));
}

/* Two views of one memory file, as JITs under W^X do. */
static void two_views(void)
{
	int fd = memory_file(PAGE);
	unsigned char *w = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	unsigned char *x = mmap(NULL, PAGE, PROT_READ | PROT_EXEC, MAP_SHARED, fd, 0);
	NEED(w != MAP_FAILED && x != MAP_FAILED);
	write_code(w, SYS_getpid);
	say("getpid %d", ((two)(uintptr_t)x)(NULL, 0) == getpid());
	quiet_point("two views");
}

/* The bytes that code reads back are the bytes that it wrote. */
static void reads_itself(void)
{
	unsigned char *code = (unsigned char *)anon(1);
	for (size_t i = 0; i + sizeof body < PAGE; i += 16)
		write_code(code + i, SYS_getpid);
	CALL(mprotect(code, PAGE, PROT_READ | PROT_EXEC));
	bool same = true;
	for (size_t i = 0; i + sizeof body < PAGE; i += 16)
		same &= ((two)(uintptr_t)(code + i))(NULL, 0) == getpid();
	say("all of them %d", same);
	quiet_point("many sites");
}

/* A call in the program's own text, in no table of functions. */
extern const unsigned char own_munmap[8];
__asm__(".text\n"
	"own_munmap:\n"
	"	mov $11, %eax\n	syscall\n	ret\n");

/* Copies of code that has run already: of the program's own, and of one of those. */
static void copied(void)
{
	const unsigned char *from = own_munmap;
	for (int n = 0; n < 2; n++) {
		unsigned char *code = (unsigned char *)anon(1);
		memcpy(code + 64, from, sizeof own_munmap);
		CALL(mprotect(code, PAGE, PROT_READ | PROT_EXEC));
		char *p = anon(3);
		say("munmap from copied code %ld", ((two)(uintptr_t)(code + 64))(p + PAGE, PAGE));
		quiet_claim(p, PAGE, "registered");
		quiet_point("copied code");
		from = code + 64;
	}
}

/* Code in a buffer that outgrows its place. */
static void moved(void)
{
	unsigned char *code = (unsigned char *)anon(4);
	write_code(code + 64, SYS_munmap);
	CALL(mprotect(code, 4 * PAGE, PROT_READ | PROT_EXEC));
	unsigned char *place = mmap(NULL, 16 * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	NEED(place != MAP_FAILED);
	for (int n = 0; n < 2; n++) {
		unsigned char *to = place + n * 8 * PAGE;
		NEED(mremap(code, 4 * PAGE, 4 * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, to) == to);
		code = to;
		char *p = anon(3);
		say("munmap from moved code %ld", ((two)(uintptr_t)(code + 64))(p + PAGE, PAGE));
		quiet_claim(p, PAGE, "registered");
		quiet_point("moved code");
	}
}

/* Code of a file is replaced by the file itself, which is nobody's to write to. */
static void replaced(void)
{
	int fd = memory_file(PAGE);
	unsigned char page[PAGE] = { 0 };
	write_code(page + 64, SYS_munmap);
	NEED(pwrite(fd, page, PAGE, 0) == (ssize_t)PAGE);
	unsigned char *code = mmap(NULL, PAGE, PROT_READ | PROT_EXEC, MAP_PRIVATE, fd, 0);
	NEED(code != MAP_FAILED);
	NEED(mmap(code, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0) == code);
	for (int n = 0; n < 3000; n++) {
		NEED(munmap(anon(1), PAGE) == 0);
		if (n % 1000 == 0)
			usleep(150000);
	}
	unsigned char now[PAGE];
	NEED(pread(fd, now, PAGE, 0) == (ssize_t)PAGE);
	say("the file is what it was %d", memcmp(page, now, PAGE) == 0);
	quiet_point("replaced code");
}

/* Code whose memory is mapped anew in its place, and that is put back: text is moved to huge
 * pages so. */
static void put_back(void)
{
	unsigned char aside[PAGE];
	unsigned char *code = (unsigned char *)anon(1), *later = (unsigned char *)anon(1);
	write_code(code + 64, SYS_munmap);
	NEED(mprotect(code, PAGE, PROT_READ | PROT_EXEC) == 0);
	memcpy(aside, code, PAGE);
	NEED(mmap(code, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == code);
	memcpy(code, aside, PAGE);
	NEED(mprotect(code, PAGE, PROT_READ | PROT_EXEC) == 0);
	write_code(later + 64, SYS_munlock);
	NEED(mprotect(later, PAGE, PROT_READ | PROT_EXEC) == 0);
	char *p = anon(1);
	say("munmap from code put back %ld", ((two)(uintptr_t)(code + 64))(p, PAGE));
	unsigned char there;
	CALL_AS("what it has unmapped", mincore(p, PAGE, &there));
	quiet_point("code put back");
	NEED(munmap(code, PAGE) == 0 && munmap(later, PAGE) == 0);
}

/* Code that could be executed before may be running: it changes as a whole, or not at all. */
static void executable_before(void)
{
	unsigned char *code = mmap(NULL, PAGE, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	NEED(code != MAP_FAILED);
	/* Across the border of two cache lines. */
	write_code(code + 124, SYS_munlock);
	unsigned char before[sizeof body];
	memcpy(before, code + 124, sizeof before);
	CALL(mprotect(code, PAGE, PROT_READ | PROT_EXEC));
	say("as it was %d", memcmp(before, code + 124, sizeof before) == 0);
	CALL(munmap(code, PAGE));
}

static atomic_int phase;

static void *runs(void *code)
{
	long bad = 0;
	phase = 1;
	while (phase < 3)
		bad += ((two)code)(NULL, 0) != 0;
	return (void *)bad;
}

static void protected_while_it_runs(void)
{
	long bad = 0;
	for (int n = 0; n < 200; n++) {
		unsigned char *code = mmap(NULL, PAGE, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		NEED(code != MAP_FAILED);
		/* At every place in two lines. */
		write_code(code + 64 + n % 128, SYS_munlock);
		pthread_t thread;
		void *result;
		phase = 0;
		NEED(pthread_create(&thread, NULL, runs, code + 64 + n % 128) == 0);
		while (phase == 0)
			sched_yield();
		NEED(mprotect(code, PAGE, PROT_READ | PROT_EXEC) == 0);
		phase = 3;
		NEED(pthread_join(thread, &result) == 0);
		bad += (long)result;
		NEED(munmap(code, PAGE) == 0);
	}
	say("calls that failed %ld", bad);
}

/* `jit counted`: without what makes calls from code that may only be left as it is. */
int main(int argc, char **argv)
{
	(void)argv;
	written_then_executable();
	writable_and_executable();
	two_views();
	reads_itself();
	copied();
	moved();
	put_back();
	executable_before();
	if (argc == 1) {
		protected_while_it_runs();
		replaced();
	}
	quiet_point("end");
	return 0;
}
