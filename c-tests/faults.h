/* Writes where memory may grow to, or may not be. */
#pragma once
#include <setjmp.h>
#include <signal.h>
#include <stdbool.h>

static sigjmp_buf fault;

static void no_fault(int sig)
{
	siglongjmp(fault, sig);
}

static bool could_write(unsigned long addr)
{
	if (signal(SIGSEGV, no_fault) == SIG_ERR || signal(SIGBUS, no_fault) == SIG_ERR || sigsetjmp(fault, 1) != 0)
		return false;
	*(volatile char *)addr = 88;
	return true;
}
