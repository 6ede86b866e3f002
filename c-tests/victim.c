/* Proves nothing by itself: maps the file whose name it reads, says so and waits to be killed; for forged directories. */
#include "check.h"

int main(void)
{
	char path[512];
	if (!fgets(path, sizeof path, stdin))
		return 1;
	path[strcspn(path, "\n")] = 0;
	int fd = open(path, O_RDONLY);
	NEED(fd >= 0);
	NEED(mmap(NULL, PAGE, PROT_READ, MAP_SHARED, fd, 0) != MAP_FAILED);
	say("mapped");
	for (;;)
		pause();
}
