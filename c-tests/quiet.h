/*
 * A point at which the program makes no memory call, so that its coverage can
 * be checked from outside. With QUIET_SOCKET=PATH in the environment the
 * program connects to the Unix socket PATH, writes one line "PID LABEL" and
 * waits for the answer; without it nothing happens. Before the label's line it
 * may claim what must be said of a range: "claim START-END WORD", where WORD is
 * `registered` or a reason. Nothing here allocates, prints or changes errno.
 */
#ifndef REGALL_QUIET_H
#define REGALL_QUIET_H

#include <errno.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

static char quiet_claims[2048];
static size_t quiet_claimed;

/* Adds a claim that is checked at the next quiet point (in pinning modes). */
__attribute__((unused)) static void quiet_claim(const void *addr, size_t len, const char *word)
{
	uintptr_t a = (uintptr_t)addr;
	int n = snprintf(quiet_claims + quiet_claimed, sizeof quiet_claims - quiet_claimed,
			 "claim %lx-%lx %s\n", (unsigned long)a, (unsigned long)(a + len), word);
	if (n > 0 && (size_t)n < sizeof quiet_claims - quiet_claimed)
		quiet_claimed += (size_t)n;
}

__attribute__((unused)) static void quiet_point(const char *label)
{
	int saved = errno;
	const char *path = getenv("QUIET_SOCKET");
	if (path) {
		struct sockaddr_un to = { .sun_family = AF_UNIX };
		strncpy(to.sun_path, path, sizeof to.sun_path - 1);
		char line[2048 + 128];
		int n = snprintf(line, sizeof line, "%.*s%ld %s\n", (int)quiet_claimed, quiet_claims,
				 (long)syscall(SYS_getpid), label);
		int s = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
		int r;
		do
			r = connect(s, (struct sockaddr *)&to, sizeof to);
		while (r < 0 && errno == EINTR);
		if (s < 0 || (r < 0 && errno != EISCONN)) {
			static const char gone[] = "quiet_point: nobody listens\n";
			r = (int)write(2, gone, sizeof gone - 1);
			_exit(99);
		}
		for (int done = 0; done < n;) {
			ssize_t w = write(s, line + done, (size_t)(n - done));
			if (w < 0 && errno != EINTR)
				_exit(99);
			done += w > 0 ? (int)w : 0;
		}
		char ack;
		ssize_t got;
		do
			got = read(s, &ack, 1);
		while (got < 0 && errno == EINTR);
		close(s);
		if (got != 1)
			_exit(99);
	}
	quiet_claimed = 0;
	errno = saved;
}

#endif
