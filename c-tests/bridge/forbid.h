/* A filter as containers have it: process_vm_readv and process_vm_writev are EPERM from here on. */
#ifndef REGALL_FORBID_H
#define REGALL_FORBID_H

#include "../filter.h"

static void forbid_process_vm(void)
{
	FILTER_CALLS(SECCOMP_RET_ERRNO | EPERM, SYS_process_vm_readv, SYS_process_vm_writev);
}

#endif
