/*
 * The process's first thread is stopped, wherever it is, and made to map an empty file over the
 * memory: by the syscall instruction in its vdso. A system call that it was in begins anew, as
 * it does after a signal without a handler.
 */
#include "revoke.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "inject.h"

#define TRIES 200

/* Of the kernel's include/linux/errno.h. */
#define ERESTARTSYS 512
#define ERESTARTNOINTR 513
#define ERESTARTNOHAND 514
#define ERESTART_RESTARTBLOCK 516

struct code {
	uint64_t at, size;
};

/* Executable and of no file: the vdso is the last such mapping. */
static bool of_no_file(const struct mapping *m, void *arg)
{
	struct code *c = arg;
	if (strncmp(m->access, "r-x", 3) == 0 && m->ino == 0)
		*c = (struct code){ m->start, m->end - m->start };
	return true;
}

static uint64_t syscall_instruction(pid_t pid, uint64_t *string)
{
	struct code c = { 0 };
	unsigned char bytes[4 * PAGE];
	if (!standin_mappings(pid, 0, UINT64_MAX, of_no_file, &c) || !c.at)
		return 0;
	if (c.size > sizeof bytes)
		c.size = sizeof bytes;
	if (!standin_read(pid, c.at, bytes, c.size))
		return 0;
	*string = c.at;
	for (uint64_t i = 0; i + 1 < c.size; i++)
		if (bytes[i] == 0x0f && bytes[i + 1] == 0x05)
			return c.at + i;
	return 0;
}

static void begin_anew(struct user_regs_struct *r)
{
	if ((int64_t)r->orig_rax < 0)
		return;
	switch (-(int64_t)r->rax) {
	case ERESTARTSYS:
	case ERESTARTNOINTR:
	case ERESTARTNOHAND:
		r->rax = r->orig_rax;
		r->rip -= 2;
		break;
	case ERESTART_RESTARTBLOCK:
		r->rax = SYS_restart_syscall;
		r->rip -= 2;
		break;
	}
}

bool take_away(pid_t pid, uint64_t at, uint64_t size)
{
	struct injection i;
	uint64_t string = 0, instruction = syscall_instruction(pid, &string);
	bool stopped = false;
	/* Another worker may be tracing it for a moment. */
	for (int n = 0; instruction && !stopped && n < TRIES; n++) {
		stopped = inject_stop(pid, &i);
		if (!stopped && errno != EPERM)
			return false;
		if (!stopped)
			usleep(1000);
	}
	if (!stopped)
		return false;
	struct user_regs_struct was = i.regs;
	i.regs.rip = instruction + 2;
	int64_t fd = inject_call(&i, SYS_memfd_create, (uint64_t[6]){ string, MFD_CLOEXEC });
	int64_t over = -EBADF;
	if (fd >= 0) {
		over = inject_call(&i, SYS_mmap,
				   (uint64_t[6]){ at, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, (uint64_t)fd, 0 });
		inject_call(&i, SYS_close, (uint64_t[6]){ (uint64_t)fd });
	}
	begin_anew(&was);
	i.regs = was;
	inject_end(&i, (int64_t)was.rax);
	return over == (int64_t)at;
}
