/* Proves: a second libc in a namespace of its own (dlmopen) maps memory as without the shim, and is seen. */
#include <dlfcn.h>
#include "check.h"

int main(void)
{
	void *h = dlmopen(LM_ID_NEWLM, "libc.so.6", RTLD_NOW);
	NEED(h);
	void *(*map)(void *, size_t, int, int, int, off_t);
	int (*unmap)(void *, size_t);
	void *(*alloc)(size_t);
	void (*give)(void *);
	long (*call)(long, ...);
	*(void **)&map = dlsym(h, "mmap");
	*(void **)&unmap = dlsym(h, "munmap");
	*(void **)&alloc = dlsym(h, "malloc");
	*(void **)&give = dlsym(h, "free");
	*(void **)&call = dlsym(h, "syscall");
	NEED(map && unmap && alloc && give && call);
	say("another libc %d", (void *)map != (void *)mmap);
	quiet_point("loaded");
	char *p = map(NULL, 32 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	memset(p, 1, 32 * PAGE);
	quiet_claim(p, 32 * PAGE, "registered");
	quiet_point("mapped");
	say("unmapped %d", unmap(p + PAGE, 4 * PAGE));
	quiet_point("unmapped");
	for (int i = 0; i < 50; i++) {
		void *m = alloc((size_t)i * 20000);
		NEED(m);
		memset(m, i, (size_t)i * 20000);
		if (i % 3)
			give(m);
	}
	quiet_point("allocated");
	p = (char *)call(SYS_mmap, 0l, 4 * PAGE, (long)(PROT_READ | PROT_WRITE), (long)(MAP_PRIVATE | MAP_ANONYMOUS), -1l, 0l);
	p[0] = 1;
	quiet_claim(p, 4 * PAGE, "registered");
	quiet_point("by its syscall()");
	long r;
	__asm__ volatile("mov $11, %%eax\n\tsyscall" : "=a"(r) : "D"(p), "S"(PAGE) : "rcx", "r11", "memory");
	say("inline munmap %ld", r);
	quiet_point("inline");
	say("closed %d", dlclose(h));
	quiet_point("end");
	return 0;
}
