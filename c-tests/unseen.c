/* Proves: memory that code which nobody can see has unlocked is a gap to `regall verify`, also where as much
 * is locked that the shim has not pinned (argument `equal`); it waits to be looked at. */
#include "check.h"

#include <sys/prctl.h>

/* mov $NR,%eax; syscall; ret */
static const unsigned char body[] = { 0xb8, 0, 0, 0, 0, 0x0f, 0x05, 0xc3 };

typedef long (*two)(void *, size_t);

int main(int argc, char **argv)
{
	/* What is written into it once it is executable no call tells of. */
	unsigned char *code =
		mmap(NULL, PAGE, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	NEED(code != MAP_FAILED);
	memcpy(code, body, sizeof body);
	code[1] = SYS_munlock;
	char *p = anon(8);
	memset(p, 1, 8 * PAGE);
	two f = (two)(uintptr_t)code;
	NEED(f(p + 2 * PAGE, 3 * PAGE) == 0);
	if (argc > 1 && strcmp(argv[1], "equal") == 0)
		NEED(mlock2(reserve(3), 3 * PAGE, MLOCK_ONFAULT) == 0);
	prctl(PR_SET_NAME, "unlocked");
	pause();
	return 0;
}
