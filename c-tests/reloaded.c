/* Proves: when libibverbs has been unloaded, and is loaded again elsewhere, its functions are called where they are now. */
#include <dlfcn.h>
#include "check.h"

typedef void *alloc_pd(void *context);

static alloc_pd *found(void *in)
{
	alloc_pd *f;
	*(void **)&f = dlsym(in, "ibv_alloc_pd");
	return f;
}

/* Loads it; a process without the shim calls it there, another by the shim's function of that name. */
static void *loaded(const char *path)
{
	void *h = dlopen(path, RTLD_NOW);
	NEED(h && found(h));
	alloc_pd *f = found(RTLD_DEFAULT) ? found(RTLD_DEFAULT) : found(h);
	for (int i = 0; i < 3; i++)
		say("answers from where it lies: %s", f(NULL) == found(h)(NULL) ? "yes" : "no");
	return h;
}

int main(void)
{
	char path[4096] = { 0 };
	NEED(readlink("/proc/self/exe", path, sizeof path - 64) > 0);
	char *slash = strrchr(path, '/');
	NEED(slash);
	strcpy(slash, "/plugins/libibverbs.so.1");
	for (int i = 0; i < 4; i++) {
		void *h = loaded(path);
		char *at = (char *)((uintptr_t)found(h) & ~(PAGE - 1));
		say("closed: %d", dlclose(h));
		/* It can't come back there. */
		char *there = mmap(at, PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
		say("its place is free: %s", there == at ? "yes" : "no");
		quiet_point("closed");
	}
	return 0;
}
