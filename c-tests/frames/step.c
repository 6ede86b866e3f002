/*
 * Unwinds at every instruction of a call. The processor's trap flag makes each instruction
 * between two points a SIGTRAP, whose handler walks the stack. At every one it must come to
 * the function that makes the call, with that function's registers, and then to main.
 *
 * The walk is libgcc's (as of exceptions and backtrace()), or with -DLIBUNWIND libunwind's.
 *
 * step WHAT: one of the calls below.
 */
#include "../check.h"
#include <ucontext.h>
#ifdef LIBUNWIND
#define UNW_LOCAL_ONLY
#include <libunwind.h>
#else
#include <unwind.h>
#endif

enum { SAVED = 6 };

/* The callee-saved registers that DWARF calls 3, 6, 12 to 15. */
#ifndef LIBUNWIND
static const int numbers[SAVED] = { 3, 6, 12, 13, 14, 15 };
#endif
static const uint64_t magic[SAVED] = { 0x1111, 0x2222, 0x3333, 0x4444, 0x5555, 0x6666 };

/* call_with(function, arguments): calls it with those registers set to the magic numbers. */
int64_t call_with(void *function, const uint64_t arguments[6]);
extern const char call_with_end[];
__asm__(".text\n"
	".globl call_with\n"
	".type call_with, @function\n"
	"call_with:\n"
	".cfi_startproc\n"
#define PUSH(r) "push %" #r "\n.cfi_adjust_cfa_offset 8\n.cfi_rel_offset " #r ", 0\n"
#define POP(r) "pop %" #r "\n.cfi_adjust_cfa_offset -8\n.cfi_restore " #r "\n"
	PUSH(rbx) PUSH(rbp) PUSH(r12) PUSH(r13) PUSH(r14) PUSH(r15)
	"sub $8, %rsp\n"
	".cfi_adjust_cfa_offset 8\n"
	"mov %rdi, %rax\n"
	"mov %rsi, %r10\n"
	"mov 0(%r10), %rdi\n"
	"mov 8(%r10), %rsi\n"
	"mov 16(%r10), %rdx\n"
	"mov 24(%r10), %rcx\n"
	"mov 32(%r10), %r8\n"
	"mov 40(%r10), %r9\n"
	"mov $0x1111, %ebx\n"
	"mov $0x2222, %ebp\n"
	"mov $0x3333, %r12d\n"
	"mov $0x4444, %r13d\n"
	"mov $0x5555, %r14d\n"
	"mov $0x6666, %r15d\n"
	"pushfq\n"
	".cfi_adjust_cfa_offset 8\n"
	"orl $0x100, (%rsp)\n"
	"popfq\n"
	".cfi_adjust_cfa_offset -8\n"
	"call *%rax\n"
	"pushfq\n"
	".cfi_adjust_cfa_offset 8\n"
	"andl $~0x100, (%rsp)\n"
	"popfq\n"
	".cfi_adjust_cfa_offset -8\n"
	"add $8, %rsp\n"
	".cfi_adjust_cfa_offset -8\n"
	POP(r15) POP(r14) POP(r13) POP(r12) POP(rbp) POP(rbx)
	"ret\n"
	".cfi_endproc\n"
	".size call_with, . - call_with\n"
	".globl call_with_end\n"
	"call_with_end:\n");

/* A site of the program's own, in a function that has pushed something: munmap. */
int64_t inlined(uint64_t at, uint64_t len);
__asm__(".text\n"
	".globl inlined\n"
	".type inlined, @function\n"
	"inlined:\n"
	".cfi_startproc\n"
	PUSH(rbx)
	"sub $40, %rsp\n"
	".cfi_adjust_cfa_offset 40\n"
	"mov %rdi, %rbx\n"
	"mov $11, %eax\n"
	"syscall\n"
	"mov $7, %ebx\n"
	"add $40, %rsp\n"
	".cfi_adjust_cfa_offset -40\n"
	POP(rbx)
	"ret\n"
	".cfi_endproc\n"
	".size inlined, . - inlined\n");

/* The same with a frame pointer, by which its frame is found. */
int64_t framed(uint64_t at, uint64_t len);
__asm__(".text\n"
	".globl framed\n"
	".type framed, @function\n"
	"framed:\n"
	".cfi_startproc\n"
	PUSH(rbp)
	"mov %rsp, %rbp\n"
	".cfi_def_cfa_register rbp\n"
	"and $-64, %rsp\n"
	"mov $11, %eax\n"
	"syscall\n"
	"leave\n"
	".cfi_restore rbp\n"
	".cfi_def_cfa rsp, 8\n"
	"ret\n"
	".cfi_endproc\n"
	".size framed, . - framed\n");

static volatile unsigned steps, lost, inside;
static uint64_t lost_at[8];
static uint64_t callers[2];
static volatile bool learnt;

static void note_lost(uint64_t pc)
{
	if (lost < 8)
		lost_at[lost] = pc;
	lost = lost + 1;
}

static bool in_call_with(uint64_t pc)
{
	return pc > (uint64_t)call_with && pc < (uint64_t)call_with_end;
}

/* Where the walk is: 0, at call_with's frame not yet; then callers[n - 1] is to be next. */
struct walk {
	unsigned found;
	bool wrong;
	unsigned frames;
};

static void at_frame(struct walk *w, uint64_t pc, const uint64_t registers[SAVED])
{
	w->frames++;
	if (w->found == 0 && in_call_with(pc)) {
		w->found = 1;
		/* Only while the call is in progress are they what was set. */
		if (w->frames > 2)
			for (int i = 0; i < SAVED; i++)
				w->wrong |= registers[i] != magic[i];
	} else if (w->found > 0 && w->found <= 2) {
		if (!learnt)
			callers[w->found - 1] = pc;
		w->wrong |= pc != callers[w->found - 1];
		w->found++;
	}
}

#ifdef LIBUNWIND
static const int their_numbers[SAVED] = { UNW_X86_64_RBX, UNW_X86_64_RBP, UNW_X86_64_R12,
					  UNW_X86_64_R13, UNW_X86_64_R14, UNW_X86_64_R15 };

static void walk_stack(struct walk *w)
{
	unw_context_t context;
	unw_cursor_t cursor;
	if (unw_getcontext(&context) || unw_init_local(&cursor, &context))
		return;
	do {
		unw_word_t pc, registers[SAVED];
		unw_get_reg(&cursor, UNW_REG_IP, &pc);
		for (int i = 0; i < SAVED; i++)
			unw_get_reg(&cursor, their_numbers[i], &registers[i]);
		at_frame(w, pc, registers);
	} while (w->found < 3 && unw_step(&cursor) > 0);
}
#else
static _Unwind_Reason_Code frame(struct _Unwind_Context *context, void *walk)
{
	struct walk *w = walk;
	uint64_t registers[SAVED];
	for (int i = 0; i < SAVED; i++)
		registers[i] = _Unwind_GetGR(context, numbers[i]);
	at_frame(w, _Unwind_GetIP(context), registers);
	return w->found < 3 ? _URC_NO_REASON : _URC_END_OF_STACK;
}

static void walk_stack(struct walk *w)
{
	_Unwind_Backtrace(frame, w);
}
#endif

static void trapped(int signal, siginfo_t *info, void *context)
{
	(void)signal;
	(void)info;
	if (!learnt)
		return;
	uint64_t pc = ((ucontext_t *)context)->uc_mcontext.gregs[REG_RIP];
	struct walk w = { 0 };
	walk_stack(&w);
	steps = steps + 1;
	inside = inside + !in_call_with(pc);
	if (w.found < 3 || w.wrong)
		note_lost(pc);
}

/* A call that says who the callers are. Not by steps: a walk may block all signals. */
static void learn(void)
{
	__asm__ volatile("sub $128, %%rsp\n"
			 "pushfq\n"
			 "andl $~0x100, (%%rsp)\n"
			 "popfq\n"
			 "sub $-128, %%rsp" ::
				 : "memory", "cc");
	struct walk w = { 0 };
	walk_stack(&w);
	NEED(callers[0] && callers[1]);
	learnt = true;
}

int main(int argc, char **argv)
{
	NEED(argc == 2);
	struct sigaction action = { .sa_sigaction = trapped, .sa_flags = SA_SIGINFO };
	struct walk first = { 0 };
	walk_stack(&first); /* loads what it needs */
	NEED(sigaction(SIGTRAP, &action, NULL) == 0);
	const size_t len = 4 * 4096;
	uint64_t at = (uint64_t)mmap(NULL, len, PROT_READ | PROT_WRITE,
				     MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	NEED(at != (uint64_t)MAP_FAILED);
	const struct {
		const char *name;
		void *function;
		uint64_t arguments[6];
	} calls[] = {
		{ "mmap", mmap, { 0, len, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1UL, 0 } },
		{ "munmap", munmap, { at, len } },
		{ "mprotect", mprotect, { at, len, PROT_READ } },
		{ "madvise", madvise, { at, len, MADV_DONTNEED } },
		{ "mremap", mremap, { at, len, 2 * len, MREMAP_MAYMOVE } },
		{ "brk", brk, { (uint64_t)sbrk(0) + len } },
		{ "syscall", syscall, { SYS_munmap, at, len } },
		{ "getpid", syscall, { SYS_getpid } },
		{ "fails", munmap, { 1, len } },
		{ "inlined", inlined, { at, len } },
		{ "framed", framed, { at, len } },
	};
	for (size_t n = 0; n < sizeof calls / sizeof *calls; n++) {
		if (strcmp(argv[1], calls[n].name) != 0)
			continue;
		void *volatile functions[2] = { learn, calls[n].function };
		for (volatile int pass = 0; pass < 2; pass++)
			call_with(functions[pass], calls[n].arguments);
		for (unsigned i = 0; i < lost && i < 8; i++)
			say("no frames at %#lx", lost_at[i]);
		say("%u of %u steps lost", lost, steps);
		/* Something was stepped through. */
		NEED(inside >= 3);
		return lost != 0;
	}
	return 2;
}
