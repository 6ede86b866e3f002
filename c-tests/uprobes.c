/* Proves: probes on munmap, mmap, brk and malloc (uprobes, as perf and bpftrace set them) count as without the shim, nothing is missed under them, and nothing breaks when they go. */
#include "check.h"

#include <dlfcn.h>
#include <limits.h>
#include <linux/perf_event.h>

#define KINDS 4
#define RETURNS 1 /* `config` of a probe on a function's return */

static const char *const names[KINDS] = { "munmap", "mmap", "brk", "malloc" };

/* Where in which file a function is. */
static uint64_t find(const char *name, char path[PATH_MAX])
{
	uint64_t at = (uint64_t)(uintptr_t)dlsym(RTLD_DEFAULT, name);
	NEED(at != 0);
	FILE *maps = fopen("/proc/self/maps", "r");
	NEED(maps != NULL);
	char line[PATH_MAX + 128];
	uint64_t start, end, offset;
	while (fgets(line, sizeof line, maps))
		if (sscanf(line, "%lx-%lx %*s %lx %*s %*s %4095s", &start, &end, &offset, path) == 4 && start <= at && at < end)
			break;
	fclose(maps);
	NEED(start <= at && at < end);
	return at - start + offset;
}

static int probe(const char *name, uint64_t config)
{
	char path[PATH_MAX];
	uint64_t offset = find(name, path);
	int type = 0;
	FILE *file = fopen("/sys/bus/event_source/devices/uprobe/type", "r");
	if (!file || fscanf(file, "%d", &type) != 1) {
		say("uprobes: none here");
		exit(0);
	}
	fclose(file);
	struct perf_event_attr attr = {
		.type = (uint32_t)type,
		.size = sizeof attr,
		.config = config,
		.uprobe_path = (uint64_t)(uintptr_t)path,
		.probe_offset = offset,
	};
	int fd = (int)syscall(SYS_perf_event_open, &attr, 0, -1, -1, 0);
	if (fd < 0) {
		say("uprobes: %s", strerrorname_np(errno));
		exit(0);
	}
	return fd;
}

static uint64_t hits(int fd)
{
	uint64_t n = 0;
	NEED(read(fd, &n, sizeof n) == (ssize_t)sizeof n);
	return n;
}

static void work(void)
{
	int failed = 0;
	for (int n = 0; n < 50; n++) {
		char *p = anon(3);
		p[0] = p[PAGE] = p[2 * PAGE] = 1;
		failed += munmap(p + PAGE, PAGE) != 0;
		char *large = malloc(300000);
		NEED(large != NULL);
		memset(large, n, 300000);
		free(large);
		char *heap = sbrk(16 * (intptr_t)PAGE);
		NEED(heap != (char *)-1);
		memset(heap, n, 16 * PAGE);
		NEED(sbrk(-16 * (intptr_t)PAGE) != (void *)-1);
		if (n == 49)
			quiet_claim(p, PAGE, "registered");
		else
			failed += munmap(p, PAGE) != 0 || munmap(p + 2 * PAGE, PAGE) != 0;
	}
	say("failed calls %d", failed);
}

static void probed_work(const char *when, const int fds[KINDS])
{
	uint64_t before[KINDS];
	for (int n = 0; n < KINDS; n++)
		before[n] = hits(fds[n]);
	work();
	for (int n = 0; n < KINDS; n++)
		say("%s: %s was called %lu times", when, names[n], hits(fds[n]) - before[n]);
	quiet_point(when);
	for (int n = 0; n < KINDS; n++)
		close(fds[n]);
	work();
	quiet_point("afterwards");
}

int main(int argc, char **argv)
{
	int fds[KINDS];
	if (argc > KINDS) {
		for (int n = 0; n < KINDS; n++)
			fds[n] = atoi(argv[n + 1]);
		probed_work("probed before it began", fds);
		return 0;
	}
	for (int n = 0; n < KINDS; n++)
		fds[n] = probe(names[n], 0);
	probed_work("probed", fds);
	for (int n = 0; n < KINDS; n++)
		fds[n] = probe(names[n], RETURNS);
	probed_work("probed at its return", fds);
	/* The probes stay over exec: they are there before the program is. */
	char text[KINDS][16];
	for (int n = 0; n < KINDS; n++)
		snprintf(text[n], sizeof text[n], "%d", probe(names[n], 0));
	execl("/proc/self/exe", argv[0], text[0], text[1], text[2], text[3], (char *)NULL);
	NEED(false);
}
