/* Proves: code that becomes executable while other threads' code is being searched is seen before it runs, be it mapped or written. */
#include "check.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>

#define ROUNDS 60
/* Enough to take a while to be searched. */
#define JIT_PAGES 512ul

typedef long (*two)(void *, size_t);

static atomic_bool over;

/* A compiler that turns a lot of code on and off all the time, none of which matters. */
static void *jit(void *unused)
{
	(void)unused;
	char *code = anon(JIT_PAGES);
	memset(code, 0x90, JIT_PAGES * PAGE);
	for (size_t at = 64; at < JIT_PAGES * PAGE; at += 64)
		memcpy(code + at, "\xb8\x27\x00\x00\x00\x0f\x05\xc3", 8); /* getpid */
	while (!over) {
		NEED(mprotect(code, JIT_PAGES * PAGE, PROT_READ | PROT_EXEC) == 0);
		NEED(mprotect(code, JIT_PAGES * PAGE, PROT_READ | PROT_WRITE) == 0);
	}
	NEED(munmap(code, JIT_PAGES * PAGE) == 0);
	return NULL;
}

/* Libraries come and go. */
static void *loader(void *unused)
{
	(void)unused;
	while (!over) {
		void *library = dlopen("libm.so.6", RTLD_NOW | RTLD_LOCAL);
		NEED(library != NULL);
		NEED(dlclose(library) == 0);
	}
	return NULL;
}

static void write_code(unsigned char *at, unsigned nr)
{
	static const unsigned char body[] = { 0xb8, 0, 0, 0, 0, 0x0f, 0x05, 0xc3 };
	memcpy(at, body, sizeof body);
	memcpy(at + 1, &nr, 4);
}

/* munmap, in memory that was written to before. */
static two written(void)
{
	unsigned char *code = (unsigned char *)anon(1);
	write_code(code + 64, SYS_munmap);
	NEED(mprotect(code, PAGE, PROT_READ | PROT_EXEC) == 0);
	return (two)(uintptr_t)(code + 64);
}

/* munmap, in a file. */
static two mapped(int fd)
{
	unsigned char *code = mmap(NULL, PAGE, PROT_READ | PROT_EXEC, MAP_PRIVATE, fd, 0);
	NEED(code != MAP_FAILED);
	return (two)(uintptr_t)(code + 64);
}

int main(void)
{
	int fd = memory_file(PAGE);
	unsigned char page[PAGE] = { 0 };
	write_code(page + 64, SYS_munmap);
	NEED(pwrite(fd, page, PAGE, 0) == (ssize_t)PAGE);
	pthread_t threads[4];
	for (int n = 0; n < 4; n++)
		NEED(pthread_create(&threads[n], NULL, n < 3 ? jit : loader, NULL) == 0);
	int done = 0;
	char *left[ROUNDS];
	for (int n = 0; n < ROUNDS; n++) {
		char *p = left[n] = anon(3);
		two f = n % 2 ? mapped(fd) : written();
		done += f(p + PAGE, PAGE) == 0;
		p[0] = p[2 * PAGE] = 1;
	}
	over = true;
	for (int n = 0; n < 4; n++)
		NEED(pthread_join(threads[n], NULL) == 0);
	say("unmapped %d", done);
	for (int n = 0; n < ROUNDS; n++)
		quiet_claim(left[n], PAGE, "registered");
	quiet_point("beside a JIT");
	return 0;
}
