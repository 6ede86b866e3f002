/*
 * Adapters whose drivers this machine has not: what the kernel's driver of each wants to hear
 * with the commands that registering memory needs, and what it answers. As in Linux 6.1,
 * drivers/infiniband/hw and sw; a driver that is not named at a command wants and says nothing.
 */
#ifndef REGALL_ADAPTERS_H
#define REGALL_ADAPTERS_H

#include <stdint.h>

/* What a command carries beyond the part that all drivers have (UVERBS_ATTR_UHW_IN and OUT). */
struct driver_data {
	uint8_t in[256];
	uint32_t sent;
	uint8_t out[256];
	uint32_t room, written;
};

struct adapter {
	const char *provider; /* of rdma-core */
	const char *name;     /* as ibv_devices prints it */
	uint32_t driver;      /* enum rdma_driver_id */
	unsigned abi;
	const char *modalias;
	uint32_t access; /* that it can do; what is optional beside it is ignored */
	/* Each returns 0 or a negative errno. */
	int (*get_context)(struct driver_data *);
	int (*alloc_pd)(struct driver_data *);
	int (*reg_mr)(struct driver_data *, uint32_t key);
};

extern const struct adapter adapters[];
extern const unsigned adapter_count;

#endif
