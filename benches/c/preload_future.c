/* preload_future.c: the peer that needs no hooks and populates nothing: the kernel locks, on
 * fault, whatever is mapped from now on.
 * SPDX-License-Identifier: MIT OR Apache-2.0 */
#define _GNU_SOURCE
#include <stdint.h>
#include <stdio.h>
#include <sys/mman.h>

static uint64_t locked;

__attribute__((constructor)) static void lock_future(void)
{
	if (mlockall(MCL_FUTURE | MCL_ONFAULT))
		perror("bench: mlockall");
	else
		locked = 1;
}

/* Not calls seen, but that it works. */
uint64_t bench_peer_events(void)
{
	return locked;
}
