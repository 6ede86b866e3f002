/* rank.c: an MPI rank that says hello and then what it holds. Prints the KiB of
 * VmSize, VmRSS, VmLck and PSS after MPI_Init, at rest for a moment (argument 2: ms). libmpi is opened at run time, so that
 * no MPI compiler is needed.
 * SPDX-License-Identifier: MIT OR Apache-2.0 */
#include "slice.h"

static unsigned long kib_of(const char *file, const char *field)
{
	char line[256];
	unsigned long kib = 0;
	FILE *f = fopen(file, "r");
	while (f && fgets(line, sizeof line, f))
		if (!strncmp(line, field, strlen(field)))
			kib = strtoul(line + strlen(field) + 1, NULL, 10);
	if (f)
		fclose(f);
	return kib;
}

int main(int argc, char **argv)
{
	void *mpi = dlopen(argc > 1 ? argv[1] : "libmpi.so.40", RTLD_NOW | RTLD_GLOBAL);
	int (*init)(int *, char ***) = mpi ? (int (*)(int *, char ***))dlsym(mpi, "MPI_Init") : NULL;
	int (*finalize)(void) = mpi ? (int (*)(void))dlsym(mpi, "MPI_Finalize") : NULL;
	if (!init || !finalize) {
		fprintf(stderr, "rank: no MPI: %s\n", dlerror());
		return 2;
	}
	if (init(NULL, NULL))
		return 1;
	usleep(1000 * (argc > 2 ? (unsigned)number(argv[2]) : 200));
	const char *status = "/proc/self/status";
	printf("rank %lu %lu %lu %lu\n", kib_of(status, "VmSize"), kib_of(status, "VmRSS"), kib_of(status, "VmLck"),
	       kib_of("/proc/self/smaps_rollup", "Pss:"));
	fflush(stdout);
	return finalize();
}
