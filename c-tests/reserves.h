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

/* How many mappings of the kernel's lie in these pages; with `locked`, only those that are locked and without access. */
__attribute__((unused)) static int mappings(char *p, size_t pages, bool locked)
{
	static char line[4352];
	unsigned long at = (unsigned long)p, end = at + pages * PAGE, from, to;
	char rights[5];
	bool here = false;
	int n = 0;
	FILE *maps = fopen(locked ? "/proc/self/smaps" : "/proc/self/maps", "re");
	NEED(maps);
	while (fgets(line, sizeof line, maps))
		if (sscanf(line, "%lx-%lx %4s", &from, &to, rights) == 3) {
			here = from < end && at < to && (!locked || strncmp(rights, "---", 3) == 0);
			n += here && !locked;
		} else if (here && locked && strncmp(line, "VmFlags:", 8) == 0) {
			n += strstr(line, " lo") != NULL;
		}
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
