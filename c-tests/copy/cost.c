/* Measures: nanoseconds of a process_vm_readv and a process_vm_writev, by the peer's memory and the size. With the shim and without, the quotient is what serving them is worth. */
/* cost [REPEATS]: a line for each kind of memory, direction and size: kind, way, bytes, ns. */
#include "../bridge/peers.h"

#define BYTES (4ul << 20)

#pragma weak regall_alloc_shared

static char *shared_memory(void)
{
	void *p;
	if (regall_alloc_shared && regall_active && regall_active() && regall_alloc_shared(BYTES, &p) == 0)
		return p;
	int fd = memfd_create("cost", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	NEED(fd >= 0 && ftruncate(fd, BYTES) == 0 && fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK) == 0);
	p = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd, 0);
	NEED(p != MAP_FAILED);
	return p;
}

static int owner(void)
{
	char line[8], *shared = shared_memory(), *own = anon(BYTES / PAGE);
	memset(shared, 1, BYTES);
	memset(own, 2, BYTES);
	say("%#lx", (unsigned long)(uintptr_t)shared);
	say("%#lx", (unsigned long)(uintptr_t)own);
	while (line_from(0, line, sizeof line))
		;
	return 0;
}

int main(int argc, char **argv)
{
	static const size_t sizes[] = { 1, 4096, 65536, 1 << 20 };
	no_longer_than(100);
	if (argc > 1 && strcmp(argv[1], "owner") == 0)
		return owner();
	int repeats = argc > 1 ? atoi(argv[1]) : 5;
	bool other_user = argc > 2;
	char *here = anon(BYTES / PAGE);
	memset(here, 3, BYTES);
	struct other o = start_other(!other_user, (char *[]){ "cost", "owner", NULL });
	uint64_t at[2];
	at[0] = hear_number(&o);
	at[1] = hear_number(&o);
	for (int kind = 0; kind < 2; kind++)
		for (int put = 0; put < 2; put++)
			for (size_t n = 0; n < sizeof sizes / sizeof *sizes; n++) {
				struct iovec l = { here, sizes[n] }, r = { (void *)(uintptr_t)at[kind], sizes[n] };
				int calls = (int)(sizes[n] < 10000 ? 20000 : (200ul << 20) / sizes[n]);
				uint64_t best = ~0ul;
				for (int k = 0; k <= repeats; k++) {
					uint64_t since = now_ns();
					for (int i = 0; i < calls; i++) {
						ssize_t got = put ? process_vm_writev(o.pid, &l, 1, &r, 1, 0)
								  : process_vm_readv(o.pid, &l, 1, &r, 1, 0);
						NEED(got == (ssize_t)sizes[n]);
					}
					uint64_t each = (now_ns() - since) / (uint64_t)calls;
					if (each < best)
						best = each;
				}
				say("%s %s %zu %lu", kind ? "private" : "shared", put ? "put" : "get", sizes[n],
				    (unsigned long)best);
			}
	end_other(&o);
	return 0;
}
