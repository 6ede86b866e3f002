/* Proves: under a seccomp filter that refuses mlock2, madvise and membarrier, or kills for mlock, all is as without the shim. */
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/prctl.h>
#include "check.h"

/* Calls in the list get `action`, all others are allowed. */
static void filter(const unsigned *numbers, unsigned count, unsigned action)
{
	struct sock_filter code[64];
	unsigned n = 0;
	code[n++] = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr));
	for (unsigned i = 0; i < count; i++) {
		code[n++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, numbers[i], 0, 1);
		code[n++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, action);
	}
	code[n++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
	struct sock_fprog program = { (unsigned short)n, code };
	NEED(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
	NEED(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0);
}

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
					   SYS_process_vm_writev, SYS_mbind, SYS_add_key };
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
		filter(refused, 4, SECCOMP_RET_ERRNO | EPERM);
		work();
		char *p = anon(8);
		quiet_point("refused");
		CALL(munmap(p, PAGE));
		execl("/proc/self/exe", "seccomp", "refused", (char *)NULL);
	}
	reap("refused", pid);
	pid = fork();
	if (pid == 0) {
		filter(deadly, 8, SECCOMP_RET_KILL_PROCESS);
		work();
		execl("/proc/self/exe", "seccomp", "deadly", "b", (char *)NULL);
	}
	reap("deadly", pid);
	pid = fork();
	if (pid == 0) {
		filter(deadly, 1, SECCOMP_RET_KILL_PROCESS);
		syscall(SYS_userfaultfd, 0);
	}
	reap("the filter bites", pid);
	quiet_point("end");
	return 0;
}
