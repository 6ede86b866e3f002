/* Proves: memory calls through syscall() and by inline instructions act as without the shim, registers kept. */
#include "check.h"

static long raw6(long nr, long a, long b, long c, long d, long e, long f)
{
	long r;
	register long r10 __asm__("r10") = d;
	register long r8 __asm__("r8") = e;
	register long r9 __asm__("r9") = f;
	__asm__ volatile("syscall"
			 : "=a"(r)
			 : "a"(nr), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)
			 : "rcx", "r11", "memory");
	return r;
}

/* The number in eax right before the instruction, as in libc's wrappers. */
static long raw_munmap(void *p, size_t n)
{
	long r;
	__asm__ volatile("mov $11, %%eax\n\tsyscall" : "=a"(r) : "D"(p), "S"(n) : "rcx", "r11", "memory");
	return r;
}

/* mmap by the same pattern, without a stack adjustment and with a live red zone. */
extern long bare_mmap(void *, size_t, int, int, int, long);
/* Fills every register that the kernel keeps, calls munmap(0, 0), and stores them. */
extern void fill_and_call(uint64_t kept[16]);
__asm__(".text\n"
	".globl bare_mmap\n"
	"bare_mmap:\n"
	"	mov %rcx, %r10\n"
	"	movq $0x77, -8(%rsp)\n"
	"	movq $0x88, -128(%rsp)\n"
	"	mov $9, %eax\n"
	"	syscall\n"
	"	cmpq $0x77, -8(%rsp)\n"
	"	jne 1f\n"
	"	cmpq $0x88, -128(%rsp)\n"
	"	jne 1f\n"
	"	ret\n"
	"1:	ud2\n"
	".globl fill_and_call\n"
	"fill_and_call:\n"
	"	push %rbx\n	push %rbp\n	push %r12\n	push %r13\n	push %r14\n	push %r15\n"
	"	push %rdi\n"
	"	mov $1, %rbx\n	mov $2, %rbp\n	mov $3, %r12\n	mov $4, %r13\n"
	"	mov $5, %r14\n	mov $6, %r15\n	mov $7, %r8\n	mov $8, %r9\n"
	"	mov $9, %r10\n	mov $10, %rdx\n	mov $11, %rdi\n	mov $12, %rsi\n"
	"	mov $13, %rax\n	movq %rax, %xmm0\n	mov $14, %rax\n	movq %rax, %xmm7\n"
	"	mov $15, %rax\n	movq %rax, %xmm15\n"
	"	mov $11, %eax\n"
	"	syscall\n"
	"	pop %rcx\n"
	"	mov %rbx, 0(%rcx)\n	mov %rbp, 8(%rcx)\n	mov %r12, 16(%rcx)\n	mov %r13, 24(%rcx)\n"
	"	mov %r14, 32(%rcx)\n	mov %r15, 40(%rcx)\n	mov %r8, 48(%rcx)\n	mov %r9, 56(%rcx)\n"
	"	mov %r10, 64(%rcx)\n	mov %rdx, 72(%rcx)\n	mov %rdi, 80(%rcx)\n	mov %rsi, 88(%rcx)\n"
	"	movq %xmm0, 96(%rcx)\n	movq %xmm7, 104(%rcx)\n	movq %xmm15, 112(%rcx)\n"
	"	mov %rax, 120(%rcx)\n"
	"	pop %r15\n	pop %r14\n	pop %r13\n	pop %r12\n	pop %rbp\n	pop %rbx\n"
	"	ret\n");

static void inline_calls(void)
{
	long p = raw6(SYS_mmap, 0, 16 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	say("inline mmap %d", p > 0);
	memset((char *)p, 3, 16 * PAGE);
	quiet_claim((char *)p, 16 * PAGE, "registered");
	quiet_point("inline mmap");
	say("inline mprotect %ld", raw6(SYS_mprotect, p, PAGE, PROT_NONE, 0, 0, 0));
	say("inline mprotect, hole %ld", raw6(SYS_mprotect, PAGE, PAGE, PROT_NONE, 0, 0, 0));
	quiet_claim((char *)p, PAGE, "no-access");
	quiet_point("inline mprotect");
	long q = raw6(SYS_mremap, p + (long)PAGE, 15 * PAGE, 32 * PAGE, MREMAP_MAYMOVE, 0, 0);
	say("inline mremap %d %d", q > 0, ((char *)q)[0]);
	say("inline madvise %ld %d", raw6(SYS_madvise, q, PAGE, MADV_DONTNEED, 0, 0, 0), ((char *)q)[0]);
	quiet_claim((char *)q, 32 * PAGE, "registered");
	quiet_point("inline mremap");
	say("inline munmap %ld %ld", raw_munmap((void *)q, 32 * PAGE), raw_munmap((void *)p, PAGE));
	say("inline munmap, bad %ld", raw_munmap((void *)(q + 1), 1));
	p = bare_mmap(NULL, 4 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	say("bare mmap %d", p > 0);
	quiet_claim((char *)p, 4 * PAGE, "registered");
	quiet_point("bare");
	say("bare mmap, bad %ld", bare_mmap(NULL, 0, 0, 0, 0, 0));
	uint64_t kept[16] = { 0 };
	fill_and_call(kept);
	bool fine = true;
	for (size_t i = 0; i < 15; i++)
		if (kept[i] != i + 1) {
			say("register %zu lost", i);
			fine = false;
		}
	say("registers %d result %ld", fine, (long)kept[15]);
}

/* syscall() with numbers that are memory calls and with others. */
static void through_libc(void)
{
	long p = syscall(SYS_mmap, 0l, 16 * PAGE, (long)(PROT_READ | PROT_WRITE), (long)(MAP_PRIVATE | MAP_ANONYMOUS), -1l, 0l);
	say("syscall mmap %d", p != -1);
	quiet_claim((char *)p, 16 * PAGE, "registered");
	quiet_point("syscall mmap");
	CALL_AS("syscall mprotect", syscall(SYS_mprotect, p, PAGE, (long)PROT_NONE));
	CALL_AS("syscall mprotect, bad", syscall(SYS_mprotect, p + 1, PAGE, (long)PROT_NONE));
	CALL_AS("syscall mlock", syscall(SYS_mlock, p + (long)PAGE, PAGE));
	CALL_AS("syscall munlock", syscall(SYS_munlock, p, 16 * PAGE));
	CALL_AS("syscall munmap", syscall(SYS_munmap, p, 16 * PAGE));
	say("syscall getpid %d", syscall(SYS_getpid) == getpid());
	CALL_AS("syscall of no such number", syscall(100000));
	CALL_AS("syscall of number -1", syscall(-1));
	say("syscall gettid %d", syscall(SYS_gettid) == getpid());
	pid_t pid = (pid_t)syscall(SYS_fork);
	if (pid == 0) {
		char *mine = anon(4);
		memset(mine, 1, 4 * PAGE);
		quiet_claim(mine, 4 * PAGE, "registered");
		quiet_point("child of a raw fork");
		syscall(SYS_exit_group, 7);
	}
	reap("raw fork", pid);
	pid = (pid_t)syscall(SYS_clone, (long)SIGCHLD, 0l, 0l, 0l, 0l);
	if (pid == 0) {
		quiet_point("child of a raw clone");
		syscall(SYS_exit, 8);
	}
	reap("raw clone", pid);
	pid = (pid_t)raw6(SYS_fork, 0, 0, 0, 0, 0, 0);
	if (pid == 0) {
		char *mine = anon(4);
		quiet_claim(mine, 4 * PAGE, "registered");
		quiet_point("child of an inline fork");
		raw6(SYS_exit_group, 9, 0, 0, 0, 0, 0);
	}
	reap("inline fork", pid);
}

int main(void)
{
	inline_calls();
	through_libc();
	quiet_point("end");
	return 0;
}
