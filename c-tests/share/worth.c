/*
 * Proves: memory of a size that comes and goes without a peer's mapping it is left private after
 * a while, and is shared as long as peers do map it. worth prints how many of ROUNDS mappings
 * were shared when nobody came; how many when another process read each of them; and again
 * when nobody came any more.
 */
#include <sys/uio.h>
#include <sys/wait.h>
#include "../check.h"

#define ROUNDS 400
#define BYTES ((size_t)1 << 20)
/* As often as a peer must come for mapping to be worth its while, and more. */
#define READS 8

static bool is_shared(const void *at)
{
	FILE *f = fopen("/proc/self/maps", "r");
	char line[512];
	bool shared = false;
	NEED(f);
	while (fgets(line, sizeof line, f)) {
		unsigned long start, end;
		if (sscanf(line, "%lx-%lx", &start, &end) == 2 && start <= (uintptr_t)at && (uintptr_t)at < end)
			shared = strstr(line, "/memfd:regall-heap") != NULL;
	}
	fclose(f);
	return shared;
}

/* The other process: reads what it is told of, and says so. */
static int reader(void)
{
	static char buffer[BYTES];
	char *at;
	while (read(0, &at, sizeof at) == sizeof at) {
		struct iovec here = { buffer, BYTES }, there = { at, BYTES };
		for (int i = 0; i < READS; i++)
			NEED(process_vm_readv(getppid(), &here, 1, &there, 1, 0) == (ssize_t)BYTES);
		NEED(buffer[0] == 7 && buffer[BYTES - 1] == 9);
		NEED(write(1, &at, sizeof at) == sizeof at);
	}
	return 0;
}

static int shared_of(int to, int from)
{
	int shared = 0;
	for (int i = 0; i < ROUNDS; i++) {
		char *p = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		NEED(p != MAP_FAILED);
		p[0] = 7;
		p[BYTES - 1] = 9;
		shared += is_shared(p);
		if (to >= 0) {
			char *said;
			NEED(write(to, &p, sizeof p) == sizeof p);
			NEED(read(from, &said, sizeof said) == sizeof said && said == p);
		}
		NEED(munmap(p, BYTES) == 0);
	}
	return shared;
}

int main(int argc, char **argv)
{
	if (argc > 1)
		return reader();
	printf("alone %d\n", shared_of(-1, -1));
	int to[2], from[2];
	NEED(pipe(to) == 0 && pipe(from) == 0);
	fflush(stdout);
	pid_t child = fork();
	NEED(child >= 0);
	if (!child) {
		dup2(to[0], 0);
		dup2(from[1], 1);
		close(to[1]);
		execl("/proc/self/exe", argv[0], "reader", (char *)NULL);
		_exit(127);
	}
	close(to[0]);
	printf("read %d\n", shared_of(to[1], from[0]));
	close(to[1]);
	int status;
	NEED(waitpid(child, &status, 0) == child && status == 0);
	printf("alone %d\n", shared_of(-1, -1));
	return 0;
}
