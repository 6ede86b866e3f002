/* Runs a command as a container's default seccomp filter does: process_vm_readv, process_vm_writev, kcmp and ptrace are EPERM. */
/* confined COMMAND ARGUMENTS... */
#include "../filter.h"

int main(int argc, char **argv)
{
	NEED(argc > 1);
	FILTER_CALLS(SECCOMP_RET_ERRNO | EPERM, SYS_process_vm_readv, SYS_process_vm_writev, SYS_kcmp,
		     SYS_ptrace);
	execvp(argv[1], argv + 1);
	NEED(!"a command");
}
