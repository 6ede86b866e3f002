/* Proves: shmat and shmdt with every flag and error as without the shim. */
#include <sys/ipc.h>
#include <sys/shm.h>
#include "check.h"

static char *tell_at(const char *label, void *p)
{
	told(label, p != (void *)-1);
	return p;
}
#define AT(label, ...) (errno = 0, tell_at(label, shmat(__VA_ARGS__)))

int main(void)
{
	int id = shmget(IPC_PRIVATE, 10 * PAGE + 100, IPC_CREAT | 0600);
	NEED(id >= 0);
	char *p = AT("attach", id, NULL, 0), *q = AT("attach again", id, NULL, SHM_RDONLY);
	NEED(shmctl(id, IPC_RMID, NULL) == 0); /* goes with its last user */
	p[5] = 42;
	say("shared %d", q[5]);
	in_child("write to read-only", touch_write, q);
	quiet_claim(p, 11 * PAGE, "registered");
	quiet_claim(q, 11 * PAGE, "registered");
	quiet_point("attached");
	char *r = reserve(32);
	AT("at a taken address", id, r + 4 * PAGE, 0);
	char *t = AT("remap", id, r + 4 * PAGE, SHM_REMAP);
	say("there %d shows %d", t == r + 4 * PAGE, t[5]);
	quiet_claim(r, 4 * PAGE, "no-access");
	quiet_claim(t, 11 * PAGE, "registered");
	quiet_point("remapped");
	CALL(munmap(t + 3 * PAGE, PAGE)); /* a hole; shmdt still takes the rest */
	quiet_point("hole");
	CALL(shmdt(t));
	quiet_point("detached");
	in_child("read after shmdt", touch_read, t);
	AT("unaligned", id, r + 1, SHM_REMAP);
	char *u = AT("rounded", id, r + 8 * PAGE + 1, SHM_RND | SHM_REMAP);
	say("there %d", u == r + 8 * PAGE);
	CALL(shmdt(u));
	AT("remap without address", id, NULL, SHM_REMAP);
	AT("no such segment", 0x7ffffff0, NULL, 0);
	CALL(shmdt(p + PAGE));
	CALL(shmdt(p + 1));
	CALL(shmdt((void *)PAGE));
	quiet_point("errors");
	pid_t pid = fork();
	NEED(pid >= 0);
	if (pid == 0) {
		p[6] = 43;
		CALL(shmdt(p));
		quiet_point("child");
		_exit(0);
	}
	reap("child", pid);
	say("child wrote %d", q[6]);
	CALL(shmdt(p));
	CALL(shmdt(q));
	CALL(shmdt(q));
	quiet_point("end");
	return 0;
}
