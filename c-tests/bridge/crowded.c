/* Proves: a process that takes all the places of a helper keeps no other out, whether it says nothing or asks for nothing. */
/* The library is there and does nothing, but for the owner. */
#include "by_hand.h"

enum { BOX_FILE = 10 };

static int owner(void)
{
	char line[64];
	say("there");
	while (line_from(0, line, sizeof line))
		;
	return 0;
}

int main(int argc, char **argv)
{
	char line[64];
	int bounce;
	no_longer_than(60);
	if (argc > 1 && strcmp(argv[1], "owner") == 0)
		return owner();
	struct other o = start_other(true, (char *[]){ "crowded", "owner", NULL });
	hear(&o, line, sizeof line);
	find(o.pid);
	pid_t pid = fork();
	NEED(pid >= 0);
	if (pid == 0) {
		/* Those that say something are as many as a process may have. */
		for (int n = 0; n < 300; n++)
			if (n % 5)
				connected();
			else
				ask_for_file(connected(), hello(), &bounce);
		pause();
	}
	pause_us(1300000);
	for (int n = 0; n < 3; n++) {
		int s = greeted(&bounce);
		/* It is served: the owner has no box. */
		IS(ENOTCONN, ask_for(s, (struct request){ .what = BOX_FILE, .number = 2 }));
		close(bounce);
		close(s);
	}
	kill(pid, SIGKILL);
	waitpid(pid, NULL, 0);
	end_other(&o);
	return verdict();
}
