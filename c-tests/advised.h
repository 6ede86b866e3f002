/* Advice that locked memory refuses, on one range after the other. */
#ifndef REGALL_ADVISED_H
#define REGALL_ADVISED_H

#include "check.h"

#define MADV_DONTNEED_LOCKED_ 24
#define MADV_GUARD_INSTALL_ 102

static void advise_all(const char *what, char *p, size_t pages)
{
	static const int kinds[] = { MADV_DONTNEED, MADV_FREE, MADV_REMOVE, MADV_COLD,
				     MADV_PAGEOUT, MADV_GUARD_INSTALL_, MADV_DONTNEED_LOCKED_ };
	for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
		errno = 0;
		int r = madvise(p, pages * PAGE, kinds[i]);
		say("%s, advice %d: %s", what, kinds[i], r == 0 ? "ok" : strerrorname_np(errno));
	}
}

#endif
