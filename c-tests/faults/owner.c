/*
 * owner: leaves behind all that a process with the shim can leave if it is killed: a
 * directory that has grown, regions with their notifications, the helper's socket, shared
 * memory; and keeps making memory calls, with children, until then. Says `ready` once.
 */
#include <sys/prctl.h>
#include "../bridge/peers.h"

#pragma weak regall_region_create
#pragma weak regall_region_destroy
#pragma weak regall_region_fd
#pragma weak regall_alloc_shared

int main(void)
{
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	char *place = anon(2048);
	uint64_t cookie = 0;
	void *shared;
	if (regall_region_create) {
		struct regall_segment s = { .addr = (uint64_t)(uintptr_t)place, .len = 64 * PAGE };
		IS(0, regall_region_create(&s, 1, REGALL_REGION_READ, REGALL_REGION_NOTIFY, &cookie));
		HOLDS(regall_region_fd() >= 0);
		IS(0, regall_alloc_shared(1 << 20, &shared));
	}
	if (wrong)
		return 1;
	say("ready");
	for (long i = 0;; i++) {
		for (size_t k = 64; k < 2048; k += 2)
			mprotect(place + k * PAGE, PAGE, i % 2 ? PROT_READ : PROT_READ | PROT_WRITE);
		char *p = malloc(3 << 20);
		memset(p, 1, 3 << 20);
		free(p);
		if (regall_region_create) {
			struct regall_segment s = { .addr = (uint64_t)(uintptr_t)place, .len = PAGE };
			if (regall_region_create(&s, 1, REGALL_REGION_READ, 0, &cookie) == 0)
				regall_region_destroy(cookie);
		}
		pid_t pid = fork();
		if (pid == 0) {
			prctl(PR_SET_PDEATHSIG, SIGKILL);
			free(malloc(1 << 20));
			_exit(0);
		}
		waitpid(pid, NULL, 0);
	}
}
