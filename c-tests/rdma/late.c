/* Proves: a registration that takes longer than anybody waits for it ends with the adapter that it was for, and leaves alone what is opened in that one's place meanwhile. */
#include <pthread.h>
#include <stdatomic.h>
#include <sys/wait.h>

#include "rdma.h"

/* Longer than the library waits for who is at work in a domain that closes. */
#define DELAY "9"

static struct rig r;
static _Atomic(pid_t) thread_id;
static atomic_bool traced;
static char *mapped;

/* Maps memory. strace holds the thread back in the request by which the library registers it. */
static void *map(void *unused)
{
	(void)unused;
	thread_id = gettid();
	while (!traced)
		usleep(1000);
	mapped = anon_at(mapped, 1);
	return NULL;
}

/* strace, which holds each ioctl of the thread back before or after the kernel has done it. */
static pid_t hold_back(const char *when)
{
	char tid[16], inject[64];
	while (!thread_id)
		usleep(1000);
	snprintf(tid, sizeof tid, "%d", (int)thread_id);
	snprintf(inject, sizeof inject, "--inject=ioctl:delay_%s=" DELAY "000000:when=1", when);
	pid_t child = fork();
	NEED(child >= 0);
	if (child == 0) {
		unsetenv("LD_PRELOAD");
		execlp("strace", "strace", "-qq", "--output=/dev/null", "--trace=ioctl", inject, "-p", tid, NULL);
		_exit(127);
	}
	char path[64], line[256];
	snprintf(path, sizeof path, "/proc/self/task/%s/status", tid);
	for (int tries = 0, tracer = 0; !tracer; tries++) {
		NEED(tries < 10000);
		FILE *f = fopen(path, "r");
		NEED(f);
		while (fgets(line, sizeof line, f))
			if (sscanf(line, "TracerPid: %d", &tracer) == 1)
				break;
		fclose(f);
		usleep(1000);
	}
	return child;
}

/* Every page whose key can be looked up is reached by it. */
static void all_is_reached(void)
{
	__typeof__(regall_lookup) *lookup = (__typeof__(lookup))dlsym(RTLD_DEFAULT, "regall_lookup");
	static char text[1 << 16];
	int fd = open("/proc/self/maps", O_RDONLY), keys = 0;
	size_t len = 0;
	for (ssize_t n; (n = read(fd, text + len, sizeof text - 1 - len)) > 0;)
		len += (size_t)n;
	NEED(close(fd) == 0 && len < sizeof text - 1);
	for (char *line = text; *line; line = strchr(line, '\n') + 1) {
		uintptr_t start, end;
		NEED(sscanf(line, "%lx-%lx", &start, &end) == 2);
		for (uintptr_t at = start; at < end; at += 16 * PAGE) {
			struct regall_range range;
			if (lookup(r.pd, (void *)at, PAGE, &range) != 0 || range.rkey == 0)
				continue;
			keys++;
			PROMISE(get(&r, (void *)at, range.rkey, PAGE) == IBV_WC_SUCCESS);
		}
	}
	PROMISE(keys > 30);
}

static int regions(void)
{
	char line[512], mine[32];
	int many = 0;
	snprintf(mine, sizeof mine, " pid %d ", (int)getpid());
	FILE *said = popen("rdma resource show mr", "r");
	NEED(said);
	while (fgets(line, sizeof line, said))
		many += strstr(line, mine) != NULL;
	NEED(pclose(said) == 0);
	return many;
}

static void late(const char *when)
{
	pthread_t thread;
	char *islands[32];
	for (int i = 0; i < 32; i++)
		islands[i] = island(1);
	mapped = reserve(3) + PAGE;
	thread_id = 0;
	traced = false;
	r = rig();
	NEED(pthread_create(&thread, NULL, map, NULL) == 0);
	pid_t strace = hold_back(when);
	traced = true;
	usleep(500000);
	/* The adapter is closed with all that is open there, and opened anew. */
	drop_pair(&r);
	NEED(ibv_dereg_mr(r.mr) == 0);
	NEED(ibv_close_device(r.ctx) == 0);
	munmap(r.buf, BUFFER);
	r = rig();
	NEED(pthread_join(thread, NULL) == 0);
	NEED(waitpid(strace, NULL, 0) == strace);
	memset(mapped, 'm', PAGE);
	struct ibv_mr *mr = reg(when, r.pd, mapped, PAGE, ALL);
	NEED(mr);
	say("%s: %s", when, get(&r, mapped, mr->rkey, PAGE) == IBV_WC_SUCCESS && all_are(r.buf, PAGE, 'm') ? "reached" : "NOT REACHED");
	NEED(ibv_dereg_mr(mr) == 0);
	if (shimmed())
		all_is_reached();
	rig_down(&r);
	say("%s: left: %d", when, regions());
	for (int i = 0; i < 32; i++)
		munmap(islands[i], PAGE);
	munmap(mapped - PAGE, 3 * PAGE);
}

int main(void)
{
	if (system("strace -V >/dev/null 2>&1") != 0) {
		say("skip: no strace");
		return 0;
	}
	late("exit");
	late("enter");
	return wrong;
}
