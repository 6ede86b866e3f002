/* Proves: a program that unmaps and maps again in the same place, with nothing in between, always finds its own memory there. */
#include "check.h"

#define PLACES 24
#define PAGES 256ul

int main(void)
{
	/* Thousands of mappings, so that whoever keeps an account of them needs memory for it
	 * while there is a hole. The kernel puts what fits into the highest one. */
	char *place[PLACES];
	long wrong = 0;
	for (int n = 0; n < PLACES; n++)
		place[n] = reserve(PAGES);
	for (int n = 0; n < PLACES; n++) {
		NEED(munmap(place[n], PAGES * PAGE) == 0);
		for (size_t i = 0; i < PAGES; i++) {
			int prot = i % 2 ? PROT_READ | PROT_WRITE : PROT_READ;
			char *p = mmap(place[n] + i * PAGE, PAGE, prot, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
			NEED(p == place[n] + i * PAGE);
			if (i % 2)
				memset(p, n + 1, PAGE);
		}
		for (size_t i = 0; i < PAGES; i++)
			wrong += !all_are(place[n] + i * PAGE, PAGE, i % 2 ? (char)(n + 1) : 0);
	}
	say("%ld pages are wrong", wrong);
	for (int n = 0; n < PLACES; n++) {
		NEED(munmap(place[n], PAGES * PAGE) == 0);
		char *p = mmap(place[n], PAGES * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
		NEED(p == place[n]);
		wrong += !all_are(p, PAGES * PAGE, 0);
		memset(p, n, PAGES * PAGE);
		quiet_claim(p, PAGES * PAGE, "registered");
	}
	say("%ld are wrong", wrong);
	quiet_point("holes");
	return 0;
}
