/* Memory that is reserved, and opened and closed a little at a time. */
#ifndef REGALL_RESERVES_H
#define REGALL_RESERVES_H

#include "check.h"

__attribute__((unused)) static void open_more(char *p, size_t pages)
{
	NEED(mprotect(p, pages * PAGE, PROT_READ | PROT_WRITE) == 0);
}

__attribute__((unused)) static void close_again(char *p, size_t pages)
{
	NEED(mprotect(p, pages * PAGE, PROT_NONE) == 0);
}

/* How many mappings of the kernel's lie in these pages. */
__attribute__((unused)) static int mappings(char *p, size_t pages)
{
	static char line[4352];
	unsigned long at = (unsigned long)p, end = at + pages * PAGE, from, to;
	int n = 0;
	FILE *maps = fopen("/proc/self/maps", "re");
	NEED(maps);
	while (fgets(line, sizeof line, maps))
		n += sscanf(line, "%lx-%lx", &from, &to) == 2 && from < end && at < to;
	fclose(maps);
	return n;
}

/* A reserve that is one mapping with no other: what lies on both sides of it can be read. */
__attribute__((unused)) static char *apart(size_t pages)
{
	char *p = reserve(pages + 2);
	NEED(mprotect(p, PAGE, PROT_READ) == 0);
	NEED(mprotect(p + (pages + 1) * PAGE, PAGE, PROT_READ) == 0);
	return p + PAGE;
}

#endif
