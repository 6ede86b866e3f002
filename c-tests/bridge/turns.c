/* Proves: of more processes than a helper has places for, which all copy now and then, each has its turn: process_vm_readv, which the kernel forbids, succeeds for all of them. */
/* turns N: so many readers, whose calls are served by the owner's helper alone (REGALL_COPY=helper). */
#include "../filter.h"
#include "peers.h"

#define BYTES 8192
#define CALLS 12

static int owner(void)
{
	char line[8], *bytes = anon(BYTES / PAGE);
	memset(bytes, 'q', BYTES);
	say("%#lx", (unsigned long)(uintptr_t)bytes);
	while (line_from(0, line, sizeof line))
		;
	return 0;
}

/* Calls that fail. */
static int reads(pid_t pid, uint64_t at, unsigned number)
{
	static char here[BYTES];
	int bad = 0;
	for (unsigned n = 0; n < CALLS; n++) {
		struct iovec l = { here, BYTES }, r = { (void *)(uintptr_t)at, BYTES };
		memset(here, 0, BYTES);
		bad += process_vm_readv(pid, &l, 1, &r, 1, 0) != BYTES || here[0] != 'q' || here[BYTES - 1] != 'q';
		pause_us(10000 + (long)(number * 7919 + n * 104729) % 20000);
	}
	return bad;
}

int main(int argc, char **argv)
{
	int begin[2], failed = 0;
	char byte;
	no_longer_than(100);
	if (argc > 1 && strcmp(argv[1], "owner") == 0)
		return owner();
	unsigned readers = argc > 1 ? (unsigned)atoi(argv[1]) : 300;
	struct other o = start_other(true, (char *[]){ "turns", "owner", NULL });
	uint64_t at = hear_number(&o);
	NEED(pipe2(begin, O_CLOEXEC) == 0);
	FILTER_CALLS(SECCOMP_RET_ERRNO | EPERM, SYS_process_vm_readv);
	for (unsigned n = 0; n < readers; n++) {
		pid_t pid = fork();
		NEED(pid >= 0);
		if (pid == 0) {
			close(begin[1]);
			/* All at once. */
			NEED(read(begin[0], &byte, 1) == 0);
			_exit(reads(o.pid, at, n));
		}
	}
	close(begin[0]);
	close(begin[1]);
	for (unsigned n = 0; n < readers; n++) {
		int status = -1;
		NEED(wait(&status) > 0);
		failed += status != 0;
	}
	IS(0, failed);
	end_other(&o);
	return verdict();
}
