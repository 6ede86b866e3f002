/* Proves: where requests lie across what the heap has grown by, it is one region with what was there from brk on, and no request registers anything; where none does, it stays apart. */
#include "reaches.h"

#include <sys/wait.h>

#define STEP (33 * PAGE)
#define ACROSS (10 * PAGE)
#define STEPS 12

static struct rig r;

static char *grown(void)
{
	char *seam = sbrk(STEP);
	NEED(seam != (void *)-1);
	memset(seam, 'x', STEP);
	return seam;
}

/* Whether each number of `before` is in `after`: no region was replaced. */
static bool all_stay(const char *before, const char *after)
{
	for (const char *at = before; *at; at = strchr(at, ' ') + 1) {
		char number[32];
		snprintf(number, sizeof number, " %.*s ", (int)strcspn(at, " "), at);
		if (strncmp(after, number + 1, strlen(number + 1)) != 0 && !strstr(after, number))
			return false;
	}
	return true;
}

/* A request across `seam`. Whether the kernel was asked for nothing. */
static bool asked_for(char *seam)
{
	static char before[1 << 16], after[1 << 16];
	listed(before, sizeof before);
	struct ibv_mr *mr = reg("across", r.pd, seam - ACROSS / 2, ACROSS, LW);
	NEED(mr);
	listed(after, sizeof after);
	dereg("across", mr);
	return strcmp(before, after) == 0;
}

int main(void)
{
	r = rig();
	pay(r.pd, LW);
	/* What malloc needs for reading the kernel's list is there from here on. */
	static char text[1 << 16];
	listed(text, sizeof text);
	NEED((uintptr_t)sbrk(0) % PAGE == 0);
	char *first = sbrk(3 * STEP);
	NEED(first != (void *)-1);
	memset(first, 'x', 3 * STEP);
	struct ibv_mr *mr = reg("in it", r.pd, first, PAGE, LW);
	NEED(mr);
	dereg("in it", mr);

	int quiet = 0;
	for (int i = 0; i < STEPS; i++)
		quiet += asked_for(grown());
	if (shimmed())
		PROMISE(quiet == STEPS);
	/* It shrinks and grows by as much. */
	for (int i = 0; i < 3; i++) {
		NEED(sbrk(-(intptr_t)STEP) != (void *)-1);
		quiet = asked_for(grown());
		if (shimmed())
			PROMISE(quiet);
	}
	reaches(&r, "the heap", sbrk(0) - STEP - 2 * PAGE, 4 * PAGE);

	/* Nobody asks any more. The first steps are joined all the same, and one takes in those before it that are no larger. */
	static char before[1 << 16], after[1 << 16];
	int apart = 0;
	for (int i = 0; i < 3 * STEPS; i++) {
		listed(before, sizeof before);
		grown();
		listed(after, sizeof after);
		apart += all_stay(before, after);
	}
	if (shimmed())
		PROMISE(apart > STEPS / 2 && apart <= 3 * STEPS / 2);
	rig_down(&r);
	return wrong;
}
