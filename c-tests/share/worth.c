/*
 * Proves: memory of a size that comes and goes without a peer's mapping it is left private after
 * a while, and is shared as long as peers do map it. worth prints how many of ROUNDS mappings
 * were shared when nobody came; how many when another process read each of them; and again
 * when nobody came any more. With `alone N` it prints the first of these, of N mappings. With
 * `forks`: after each of six forks, whether memory from before them is shared, whether new memory
 * is, and whether new memory of the child was.
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
			shared = strstr(line, " rw-s ") && strstr(line, "/memfd:regall-heap");
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

static char *map(void)
{
	char *p = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	NEED(p != MAP_FAILED);
	return p;
}

static int shared_of(int rounds, int to, int from)
{
	int shared = 0;
	for (int i = 0; i < rounds; i++) {
		char *p = map();
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

static const char *word(bool shared)
{
	return shared ? "shared" : "private";
}

static int forks(void)
{
	char *old = map();
	*old = 7;
	for (int i = 0; i < 6; i++) {
		int status;
		fflush(stdout);
		pid_t child = fork();
		NEED(child >= 0);
		if (!child)
			_exit(*old == 7 ? is_shared(map()) : 2);
		NEED(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) < 2);
		char *new = map();
		printf("old %s, new %s, a child's %s\n", word(is_shared(old)), word(is_shared(new)), word(WEXITSTATUS(status)));
		NEED(munmap(new, BYTES) == 0);
	}
	return 0;
}

int main(int argc, char **argv)
{
	if (argc > 2 && !strcmp(argv[1], "alone"))
		return printf("alone %d\n", shared_of(atoi(argv[2]), -1, -1)) < 0;
	if (argc > 1)
		return strcmp(argv[1], "forks") ? reader() : forks();
	printf("alone %d\n", shared_of(ROUNDS, -1, -1));
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
	printf("read %d\n", shared_of(ROUNDS, to[1], from[0]));
	close(to[1]);
	int status;
	NEED(waitpid(child, &status, 0) == child && status == 0);
	printf("alone %d\n", shared_of(ROUNDS, -1, -1));
	return 0;
}
