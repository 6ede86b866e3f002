/* Proves: a program that closes every descriptor, or starts without the standard ones, runs as without the shim. */
#include "check.h"

int main(int argc, char **argv)
{
	(void)argv;
	char *p;
	if (argc > 1) { /* started with 0, 1 and 2 closed; 100 leads to where 1 did */
		int a = open("/dev/null", O_RDWR), b = open("/dev/null", O_RDWR), c = open("/dev/null", O_RDWR);
		if (fcntl(100, F_GETFD) >= 0)
			NEED(dup2(100, 1) == 1);
		say("the first free descriptors are %d %d %d", a, b, c);
		p = anon(8);
		p[0] = 1;
		quiet_claim(p, 8 * PAGE, "registered");
		quiet_point("no standard descriptors");
		return 21;
	}
	int fd = open("/dev/null", O_RDONLY);
	say("the first free descriptor is %d", fd);
	close(fd);
	for (fd = 3; fd < 1024; fd++)
		close(fd);
	syscall(SYS_close_range, 3u, ~0u, 0u);
	p = anon(8);
	p[0] = 1;
	quiet_claim(p, 8 * PAGE, "registered");
	quiet_point("all closed");
	CALL(munmap(p, 4 * PAGE));
	quiet_point("unmapped");
	pid_t pid = fork();
	if (pid == 0) {
		p = anon(8);
		quiet_claim(p, 8 * PAGE, "registered");
		quiet_point("child");
		_exit(0);
	}
	reap("child", pid);
	/* Every number taken by something else. */
	for (fd = 3; fd < 200; fd++)
		NEED(open("/dev/null", O_RDWR) == fd);
	p = anon(8);
	quiet_point("all taken");
	syscall(SYS_close_range, 3u, ~0u, 0u);
	pid = fork();
	if (pid == 0) {
		NEED(dup2(1, 100) == 100);
		close(0);
		close(1);
		close(2);
		execl("/proc/self/exe", "descriptors", "again", (char *)NULL);
		_exit(96);
	}
	reap("started without descriptors", pid);
	struct rlimit r = { 8, 8 };
	NEED(setrlimit(RLIMIT_NOFILE, &r) == 0);
	pid = fork();
	if (pid == 0) {
		p = anon(8);
		p[0] = 1;
		execl("/proc/self/exe", "descriptors", "again", (char *)NULL);
		_exit(96);
	}
	reap("few descriptors", pid);
	quiet_point("end");
	return 0;
}
