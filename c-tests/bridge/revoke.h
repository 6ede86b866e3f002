/*
 * Takes memory away from a process, wherever its threads are: what is touched there from now
 * on is SIGBUS.
 */
#ifndef REGALL_REVOKE_H
#define REGALL_REVOKE_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

bool take_away(pid_t pid, uint64_t at, uint64_t size);

#endif
