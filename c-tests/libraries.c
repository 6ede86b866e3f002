/* Proves: dlopen and dlclose again and again, and their failures, as without the shim. */
#include <dlfcn.h>
#include "check.h"

int main(void)
{
	static const char *const names[] = { "libm.so.6", "libresolv.so.2", "libnsl.so.1", "libz.so.1",
					     "libgcc_s.so.1", "libstdc++.so.6", "libcrypt.so.1" };
	quiet_point("start");
	for (int round = 0; round < 30; round++) {
		void *h[sizeof names / sizeof *names];
		for (size_t i = 0; i < sizeof names / sizeof *names; i++)
			h[i] = dlopen(names[i], round % 2 ? RTLD_NOW : RTLD_LAZY);
		if (h[0]) {
			double (*cosine)(double);
			*(void **)&cosine = dlsym(h[0], "cos");
			NEED(cosine && cosine(0) == 1.0);
		}
		if (round % 10 == 0)
			quiet_point("open");
		for (size_t i = 0; i < sizeof names / sizeof *names; i++)
			if (h[i])
				NEED(dlclose(h[i]) == 0);
		if (round % 10 == 0)
			quiet_point("closed");
	}
	say("no such library %d", dlopen("libnowhere.so", RTLD_NOW) == NULL);
	say("not a library %d", dlopen("/proc/self/maps", RTLD_NOW) == NULL);
	char broken[] = "/tmp/regall-broken-XXXXXX";
	int fd = mkstemp(broken);
	NEED(fd >= 0 && write(fd, "\177ELF\2\1\1", 7) == 7 && ftruncate(fd, 100000) == 0);
	say("broken library %d", dlopen(broken, RTLD_NOW) == NULL);
	unlink(broken);
	quiet_point("end");
	return 0;
}
