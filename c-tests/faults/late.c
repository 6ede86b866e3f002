/* Proves: advice for memory that was pinned before a filter forbade munlock does what it does without the shim. */
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/prctl.h>
#include "../check.h"

#define PAGES 256ul

static void forbid_munlock(void)
{
	struct sock_filter code[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_munlock, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog filter = { sizeof code / sizeof *code, code };
	NEED(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
	NEED(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) == 0);
}

static char *filled(int flags)
{
	char *p = mmap(NULL, PAGES * PAGE, PROT_READ | PROT_WRITE, flags | MAP_ANONYMOUS, -1, 0);
	NEED(p != MAP_FAILED);
	memset(p, 7, PAGES * PAGE);
	return p;
}

int main(void)
{
	char *private = filled(MAP_PRIVATE), *shared = filled(MAP_SHARED);
	forbid_munlock();
	CALL(madvise(private, PAGES * PAGE, MADV_COLD));
	CALL(madvise(private, PAGES * PAGE, MADV_PAGEOUT));
	CALL(madvise(private, PAGES * PAGE, MADV_FREE));
	private[0] = 1;
	CALL(madvise(private, PAGES * PAGE, MADV_DONTNEED));
	say("private %d", private[0]);
	CALL(madvise(shared, PAGES * PAGE, MADV_FREE));
	CALL(madvise(shared, PAGES * PAGE, MADV_DONTNEED));
	say("shared %d", shared[PAGES * PAGE - 1]);
	return 0;
}
