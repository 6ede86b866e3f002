/*
 * refuse ERRNO COMMAND...: runs a command under a seccomp filter that refuses, with ERRNO,
 * to make memory executable that was not mapped so from a file: what SELinux's execmem and
 * execmod forbid; and to write to it by /proc/self/mem. A program can't be patched without.
 */
#include "../filter.h"

#define ARGUMENT(n) ((unsigned)(offsetof(struct seccomp_data, args) + (n) * 8))

int main(int argc, char **argv)
{
	if (argc < 3)
		return 120;
	unsigned refuse = SECCOMP_RET_ERRNO | (unsigned)atoi(argv[1]);
	struct sock_filter code[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		/* By which /proc/self/mem is written. */
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_pwrite64, 8, 0),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_mprotect, 4, 0),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_pkey_mprotect, 3, 0),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_mmap, 0, 4),
		/* mmap: anonymous memory alone. */
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, ARGUMENT(3)),
		BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, MAP_ANONYMOUS, 0, 2),
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, ARGUMENT(2)),
		BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, PROT_EXEC, 1, 0),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
		BPF_STMT(BPF_RET | BPF_K, refuse),
	};
	install_filter(code, sizeof code / sizeof *code);
	execvp(argv[2], argv + 2);
	return 127;
}
