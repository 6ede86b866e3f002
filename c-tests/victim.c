/* Proves nothing by itself: maps the file whose name it reads, says so and waits to be killed; for forged directories. `victim MIB`: /proc/self/environ is so long, and takes no memory. */
#include <sys/prctl.h>

#include <linux/prctl.h>

#include "check.h"

/* Fields 26 to 51 of /proc/self/stat (proc_pid_stat(5)), by their numbers. */
static void addresses(unsigned long *field)
{
	char text[4096];
	FILE *file = fopen("/proc/self/stat", "r");
	NEED(file && fgets(text, sizeof text, file));
	fclose(file);
	char *word = strtok(strrchr(text, ')') + 2, " ");
	for (int n = 3; word && n < 52; n++, word = strtok(NULL, " "))
		field[n] = strtoul(word, NULL, 10);
}

static void make_environ_long(unsigned long bytes)
{
	unsigned long field[52] = {0};
	addresses(field);
	char *at = mmap(NULL, bytes, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	NEED(at != MAP_FAILED);
	struct prctl_mm_map map = {
		.start_code = field[26],
		.end_code = field[27],
		.start_stack = field[28],
		.start_data = field[45],
		.end_data = field[46],
		.start_brk = field[47],
		.brk = (unsigned long)sbrk(0),
		.arg_start = field[48],
		.arg_end = field[49],
		.env_start = (unsigned long)at,
		.env_end = (unsigned long)at + bytes,
		.exe_fd = -1,
	};
	NEED(!prctl(PR_SET_MM, PR_SET_MM_MAP, &map, sizeof map, 0));
}

int main(int argc, char **argv)
{
	char path[512];
	if (!fgets(path, sizeof path, stdin))
		return 1;
	path[strcspn(path, "\n")] = 0;
	int fd = open(path, O_RDONLY);
	NEED(fd >= 0);
	NEED(mmap(NULL, PAGE, PROT_READ, MAP_SHARED, fd, 0) != MAP_FAILED);
	if (argc > 1)
		make_environ_long(strtoul(argv[1], NULL, 10) << 20);
	say("mapped");
	for (;;)
		pause();
}
