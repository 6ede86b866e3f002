/* preload_ucm.c: the peer that hooks: UCX's UCM, with a handler that only counts,
 * as its registration cache would have one for the same events.
 * SPDX-License-Identifier: MIT OR Apache-2.0 */
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>

/* From ucm/api/ucm.h, so that libucx0 is enough and its headers are not needed. */
enum { UCM_EVENT_VM_MAPPED = 1 << 16, UCM_EVENT_VM_UNMAPPED = 1 << 17 };
typedef void ucm_callback(int type, void *event, void *arg);
typedef int ucm_set(int events, int priority, ucm_callback *cb, void *arg);

static uint64_t events;

static void count(int type, void *event, void *arg)
{
	(void)type, (void)event, (void)arg;
	events++;
}

__attribute__((constructor)) static void start(void)
{
	/* libucm needs symbols of libucs and does not say so; libucs brings it in. */
	void *lib = dlopen("libucs.so.0", RTLD_NOW | RTLD_GLOBAL);
	ucm_set *set = lib ? (ucm_set *)dlsym(lib, "ucm_set_event_handler") : NULL;
	if (!set) {
		fprintf(stderr, "bench: no UCM: %s\n", dlerror());
		return;
	}
	int status = set(UCM_EVENT_VM_MAPPED | UCM_EVENT_VM_UNMAPPED, 1000, count, NULL);
	if (status)
		fprintf(stderr, "bench: ucm_set_event_handler: %d\n", status);
}

uint64_t bench_peer_events(void)
{
	return events;
}
