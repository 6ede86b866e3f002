/*
 * A region of scattered memory, for whoever has its cookie:
 *   example_region declare                      prints the cookie and waits to be killed
 *   example_region read COOKIE OFFSET LENGTH    prints bytes of it
 */
#include <inttypes.h>
#include <regall.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static struct regall_segment piece(void *p, size_t len)
{
	return (struct regall_segment){ (uintptr_t)p, len };
}

static int declare(void)
{
	static char first[] = "...scattered ", second[] = "...memory\n";
	struct regall_segment s[] = { piece(first + 3, 10), piece(NULL, 0), piece(second + 3, 7) };
	uint64_t cookie;
	int e = regall_region_create(s, 3, REGALL_REGION_READ, 0, &cookie);
	if (e < 0) {
		fprintf(stderr, "create: %s\n", strerror(-e)); /* ENOSYS: not under the shim */
		return 1;
	}
	printf("%#" PRIx64 "\n", cookie); /* by any means: a pipe, a file, a message, paper */
	fflush(stdout);
	pause();
	return 0;
}

static int read_it(uint64_t cookie, uint64_t offset, size_t length)
{
	char *to = malloc(length);
	struct regall_segment here = piece(to, length);
	struct regall_done done;
	int e = to ? regall_region_read(cookie, offset, &here, 1, &done) : -12;
	if (e < 0)
		fprintf(stderr, "read: %s\n", strerror(-e));
	else
		fwrite(to, 1, done.bytes, stdout); /* fewer than `length` at the end */
	free(to);
	return e < 0;
}

int main(int argc, char **argv)
{
	if (argc == 2 && strcmp(argv[1], "declare") == 0)
		return declare();
	if (argc == 5 && strcmp(argv[1], "read") == 0)
		return read_it(strtoull(argv[2], NULL, 0), strtoull(argv[3], NULL, 0), strtoull(argv[4], NULL, 0));
	fprintf(stderr, "example_region declare | example_region read COOKIE OFFSET LENGTH\n");
	return 2;
}
