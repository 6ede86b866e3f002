/* Proves: under a seccomp filter that refuses mlock2, madvise and membarrier, or kills for mlock, all is as without the shim. */
#include <linux/audit.h>
#include "filter.h"

static void work(void)
{
	for (int i = 0; i < 20; i++) {
		char *p = anon(16);
		memset(p, i, 16 * PAGE);
		NEED(mprotect(p, PAGE, PROT_NONE) == 0);
		NEED(munmap(p, 16 * PAGE) == 0);
		free(malloc(500000));
	}
	say("work done");
}

int main(int argc, char **argv)
{
	(void)argv;
	static const unsigned refused[] = { SYS_mlock2, SYS_membarrier, SYS_process_vm_readv, SYS_userfaultfd };
	/* What a container may forbid altogether and no plain program calls. */
	static const unsigned deadly[] = { SYS_userfaultfd, SYS_kcmp, SYS_bpf, SYS_perf_event_open, SYS_ptrace,
					   SYS_process_vm_writev, SYS_mbind, SYS_add_key, SYS_setfsuid,
					   SYS_setfsgid };
	if (argc > 1) {
		work();
		char *p = anon(8);
		p[0] = 1;
		CALL(mlock(p, PAGE));
		CALL(syscall(SYS_mlock2, p, PAGE, 1));
		CALL(munlock(p, PAGE));
		quiet_point("started under the filter");
		return argc;
	}
	work();
	pid_t pid = fork();
	NEED(pid >= 0);
	if (pid == 0) {
		filter_calls(SECCOMP_RET_ERRNO | EPERM, refused, 4);
		work();
		char *p = anon(8);
		quiet_point("refused");
		CALL(munmap(p, PAGE));
		execl("/proc/self/exe", "seccomp", "refused", (char *)NULL);
	}
	reap("refused", pid);
	pid = fork();
	if (pid == 0) {
		filter_calls(SECCOMP_RET_KILL_PROCESS, deadly, sizeof deadly / sizeof *deadly);
		work();
		pid = fork();
		NEED(pid >= 0);
		if (pid == 0) {
			work();
			_exit(0);
		}
		reap("a child under it", pid);
		execl("/proc/self/exe", "seccomp", "deadly", "b", (char *)NULL);
	}
	reap("deadly", pid);
	pid = fork();
	if (pid == 0) {
		filter_calls(SECCOMP_RET_KILL_PROCESS, deadly, 1);
		syscall(SYS_userfaultfd, 0);
	}
	reap("the filter bites", pid);
	quiet_point("end");
	return 0;
}
