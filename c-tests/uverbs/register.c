/*
 * register [loaded]
 *
 * Registers memory over the first adapter, as programs do: through rdma-core's library of
 * that adapter. loaded: by functions that are looked up in libibverbs itself, as NCCL does: what is
 * preloaded does not see them called. For c-tests/uverbs/uverbs_device.c, which writes down what the kernel is sent;
 * output does not tell the shim.
 */
#include <dlfcn.h>
#include <infiniband/verbs.h>
#include "../check.h"

#define BYTES (16 * PAGE)

/* Private to rdma-core (libibverbs/driver.h, version 34): what a library of an adapter is
 * registered by. */
struct match {
	void *data;
	const char *modalias;
	uint16_t vendor, device;
	uint8_t kind; /* 2: by modalias, or name */
};
struct driver {
	const char *name;
	uint32_t abi[2];
	const struct match *table;
	void *rest[6];
};

/*
 * Two libraries know their devices by what netlink says of them alone (the driver's number), which a
 * kernel without RDMA has no answer to: here they know them by name. Nothing else is changed.
 */
void verbs_register_driver_34(const struct driver *of)
{
	static const struct match by_name[][2] = { { { .modalias = "rdma_device:*Nmana_*", .kind = 2 } },
						   { { .modalias = "rdma_device:*Nsiw*", .kind = 2 } } };
	static struct driver known[2];
	void (*real)(const struct driver *) =
		(void (*)(const struct driver *))dlvsym(RTLD_NEXT, "verbs_register_driver_34", "IBVERBS_PRIVATE_34");
	NEED(real);
	for (int i = 0; i < 2; i++)
		if (strcmp(of->name, i ? "siw" : "mana") == 0) {
			known[i] = *of;
			known[i].table = by_name[i];
			of = &known[i];
		}
	real(of);
}

/* What earlier calls left where a library has a structure that it does not fill. */
__attribute__((noinline)) static void leave_traces(void)
{
	volatile char traces[16384];
	for (size_t i = 0; i < sizeof traces; i++)
		traces[i] = (char)0xa5;
}

static struct ibv_mr *(*loaded_reg)(struct ibv_pd *, void *, size_t, uint64_t, unsigned);
static int (*loaded_dereg)(struct ibv_mr *);

static void load(void)
{
	void *library = dlopen("libibverbs.so.1", RTLD_NOW);
	NEED(library);
	loaded_reg = (__typeof__(loaded_reg))dlvsym(library, "ibv_reg_mr_iova2", "IBVERBS_1.8");
	loaded_dereg = (__typeof__(loaded_dereg))dlvsym(library, "ibv_dereg_mr", "IBVERBS_1.1");
	NEED(loaded_reg && loaded_dereg);
}

static void registers(struct ibv_pd *pd, char *p, size_t length, int access)
{
	leave_traces();
	errno = 0;
	struct ibv_mr *mr = loaded_reg ? loaded_reg(pd, p, length, (uintptr_t)p, (unsigned)access) :
					 ibv_reg_mr(pd, p, length, access);
	say("register %zu bytes, access %#x: %s", length, (unsigned)access, mr ? "ok" : strerrorname_np(errno));
	if (!mr)
		return;
	NEED(mr->pd == pd && mr->context == pd->context && mr->addr == p && mr->length == length);
	NEED(mr->lkey != 0);
	int e = loaded_dereg ? loaded_dereg(mr) : ibv_dereg_mr(mr);
	say("deregister: %s", e ? strerrorname_np(e) : "ok");
}

int main(int argc, char **argv)
{
	if (argc > 1 && strcmp(argv[1], "loaded") == 0)
		load();
	int n = 0;
	char *p = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	NEED(p != MAP_FAILED);
	memset(p, 1, BYTES);
	struct ibv_device **all = ibv_get_device_list(&n);
	NEED(all);
	say("%d devices: %s", n, n ? ibv_get_device_name(all[0]) : "");
	if (n != 1)
		return 1;
	struct ibv_context *context = ibv_open_device(all[0]);
	if (!told("open", context != NULL))
		return 1;
	ibv_free_device_list(all);
	struct ibv_pd *pd = ibv_alloc_pd(context);
	if (!told("a protection domain", pd != NULL))
		return 1;
	const int reached = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE;
	registers(pd, p, BYTES, reached);
	for (int i = 0; i < 20; i++)
		registers(pd, p + i % 4 * PAGE, 3 * PAGE + 1, IBV_ACCESS_LOCAL_WRITE);
	registers(pd, p + 1, PAGE, IBV_ACCESS_REMOTE_READ);
	say("dealloc: %s", ibv_dealloc_pd(pd) == 0 ? "ok" : "no");
	say("close: %s", ibv_close_device(context) == 0 ? "ok" : "no");
	return 0;
}
