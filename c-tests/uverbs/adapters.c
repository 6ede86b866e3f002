#include "adapters.h"

#include <errno.h>
#include <rdma/bnxt_re-abi.h>
#include <rdma/efa-abi.h>
#include <rdma/hns-abi.h>
#include <rdma/ib_user_ioctl_verbs.h>
#include <rdma/irdma-abi.h>
#include <rdma/mlx5-abi.h>
#include <rdma/siw-abi.h>
#include <stdbool.h>
#include <stddef.h>
#include <string.h>

#define LW IB_UVERBS_ACCESS_LOCAL_WRITE
#define RW IB_UVERBS_ACCESS_REMOTE_WRITE
#define RR IB_UVERBS_ACCESS_REMOTE_READ
#define RA IB_UVERBS_ACCESS_REMOTE_ATOMIC
#define MW IB_UVERBS_ACCESS_MW_BIND
#define ZERO_BASED IB_UVERBS_ACCESS_ZERO_BASED
/* RDMA_DRIVER_MANA, which came after Linux 6.1. */
#define DRIVER_MANA (RDMA_DRIVER_ERDMA + 1)
#define end_of(type, field) (offsetof(type, field) + sizeof(((type *)0)->field))

static void take(const struct driver_data *d, void *to, size_t size)
{
	memcpy(to, d->in, d->sent < size ? d->sent : size);
}

/* As much of an answer as there is room for. */
static int give(struct driver_data *d, const void *from, size_t size)
{
	d->written = d->room < size ? d->room : (uint32_t)size;
	memcpy(d->out, from, d->written);
	return 0;
}

static bool is_clear(const struct driver_data *d)
{
	for (uint32_t i = 0; i < d->sent; i++)
		if (d->in[i])
			return false;
	return true;
}

/* Without the two features that every device has by now it is EOPNOTSUPP. */
static int efa_get_context(struct driver_data *d)
{
	struct efa_ibv_alloc_ucontext_cmd cmd = { 0 };
	const uint32_t needed = EFA_ALLOC_UCONTEXT_CMD_COMP_TX_BATCH | EFA_ALLOC_UCONTEXT_CMD_COMP_MIN_SQ_WR;
	take(d, &cmd, sizeof cmd);
	if ((cmd.comp_mask & needed) != needed)
		return -EOPNOTSUPP;
	const struct efa_ibv_alloc_ucontext_resp resp = {
		.cmds_supp_udata_mask = EFA_USER_CMDS_SUPP_UDATA_QUERY_DEVICE | EFA_USER_CMDS_SUPP_UDATA_CREATE_AH,
		.sub_cqs_per_cq = 2,
		.inline_buf_size = 32,
		.max_llq_size = 128 << 10,
		.max_tx_batch = 16,
		.min_sq_wr = 16,
	};
	return give(d, &resp, sizeof resp);
}

static int efa_alloc_pd(struct driver_data *d)
{
	const struct efa_ibv_alloc_pd_resp resp = { .pdn = 7 };
	return is_clear(d) ? give(d, &resp, sizeof resp) : -EINVAL;
}

static int efa_reg_mr(struct driver_data *d, uint32_t key)
{
	(void)key;
	return is_clear(d) ? 0 : -EINVAL;
}

static int mlx5_get_context(struct driver_data *d)
{
	struct mlx5_ib_alloc_ucontext_req_v2 req = { 0 };
	take(d, &req, sizeof req);
	if (d->sent != sizeof(struct mlx5_ib_alloc_ucontext_req) &&
	    d->sent < offsetof(struct mlx5_ib_alloc_ucontext_req_v2, max_cqe_version))
		return -EINVAL;
	if (req.flags & ~(uint32_t)MLX5_IB_ALLOC_UCTX_DEVX || req.comp_mask || req.reserved0 || req.reserved1 || req.reserved2)
		return -EOPNOTSUPP;
	if (req.total_num_bfregs == 0 || req.num_low_latency_bfregs > req.total_num_bfregs - 1)
		return -EINVAL;
	struct mlx5_ib_alloc_ucontext_resp resp = {
		.qp_tab_size = 1 << 18,
		.bf_reg_size = 512,
		.tot_bfregs = req.total_num_bfregs,
		.cache_line_size = 64,
		.max_sq_desc_sz = 1024,
		.max_rq_desc_sz = 512,
		.max_send_wqebb = 1 << 15,
		.max_recv_wr = 1 << 15,
		.max_srq_recv_wr = 1 << 15,
		.num_ports = 1,
		.cqe_version = 1,
		.eth_min_inline = MLX5_USER_INLINE_MODE_NONE,
		.log_uar_size = 12,
		.num_uars_per_page = 1,
	};
	resp.response_length = d->room < sizeof resp ? d->room : sizeof resp;
	return give(d, &resp, sizeof resp);
}

/* The kernel copies the number whatever there is room for: without any it is EFAULT. */
static int mlx5_alloc_pd(struct driver_data *d)
{
	const struct mlx5_ib_alloc_pd_resp resp = { .pdn = 7 };
	return d->room >= sizeof resp ? give(d, &resp, sizeof resp) : -EFAULT;
}

static int irdma_get_context(struct driver_data *d)
{
	struct irdma_alloc_ucontext_req req = { 0 };
	take(d, &req, sizeof req);
	if (d->sent < end_of(struct irdma_alloc_ucontext_req, rsvd8) ||
	    d->room < end_of(struct irdma_alloc_ucontext_resp, rsvd))
		return -EINVAL;
	if (req.userspace_ver < 4 || req.userspace_ver > IRDMA_ABI_VER)
		return -EINVAL;
	const struct irdma_alloc_ucontext_resp resp = {
		.max_pds = 1 << 18,
		.max_qps = 1 << 18,
		.wq_size = 2048,
		.kernel_ver = req.userspace_ver,
		.db_mmap_key = 0x1000,
		.max_hw_wq_frags = 13,
		.max_hw_read_sges = 13,
		.max_hw_inline = 101,
		.max_hw_rq_quanta = 1 << 14,
		.max_hw_wq_quanta = 1 << 15,
		.min_hw_cq_size = 4,
		.max_hw_cq_size = 1 << 20,
		.max_hw_sq_chunk = 8,
		.hw_rev = 2,
	};
	return give(d, &resp, sizeof resp);
}

static int irdma_alloc_pd(struct driver_data *d)
{
	const struct irdma_alloc_pd_resp resp = { .pd_id = 7 };
	if (d->room < end_of(struct irdma_alloc_pd_resp, pd_id))
		return -EINVAL;
	return give(d, &resp, sizeof resp);
}

/* What is registered for queues is never asked for by ibv_reg_mr. */
static int irdma_reg_mr(struct driver_data *d, uint32_t key)
{
	struct irdma_mem_reg_req req = { 0 };
	(void)key;
	if (d->sent < end_of(struct irdma_mem_reg_req, sq_pages))
		return -EINVAL;
	take(d, &req, sizeof req);
	return req.reg_type == IRDMA_MEMREG_TYPE_MEM ? 0 : -EINVAL;
}

static int hns_get_context(struct driver_data *d)
{
	const struct hns_roce_ib_alloc_ucontext_resp resp = { .qp_tab_size = 1 << 15, .cqe_size = 64, .srq_tab_size = 1 << 15 };
	return give(d, &resp, sizeof resp);
}

static int hns_alloc_pd(struct driver_data *d)
{
	const struct hns_roce_ib_alloc_pd_resp resp = { .pdn = 7 };
	return give(d, &resp, sizeof resp);
}

static int bnxt_get_context(struct driver_data *d)
{
	const struct bnxt_re_uctx_resp resp = {
		.dev_id = 1, .max_qp = 1 << 16, .pg_size = 4096, .cqe_sz = 32, .max_cqd = 1 << 15
	};
	return give(d, &resp, sizeof resp);
}

static int bnxt_alloc_pd(struct driver_data *d)
{
	const struct bnxt_re_pd_resp resp = { .pdid = 7, .dpi = 1, .dbr = 0x2000 };
	return give(d, &resp, sizeof resp);
}

/* The low byte of the key is the program's, the rest is said by both answers. */
static int siw_reg_mr(struct driver_data *d, uint32_t key)
{
	struct siw_ureq_reg_mr req = { 0 };
	if (d->sent < sizeof req || d->room < sizeof(struct siw_uresp_reg_mr))
		return -EINVAL;
	take(d, &req, sizeof req);
	const struct siw_uresp_reg_mr resp = { .stag = key | req.stag_key };
	return give(d, &resp, sizeof resp);
}

static int siw_get_context(struct driver_data *d)
{
	const struct siw_uresp_alloc_ctx resp = { .dev_id = 1 };
	return d->room < sizeof resp ? -EINVAL : give(d, &resp, sizeof resp);
}

static int nothing(struct driver_data *d)
{
	d->written = 0;
	return 0;
}

static int none(struct driver_data *d, uint32_t key)
{
	(void)key;
	return nothing(d);
}

const struct adapter adapters[] = {
	{ "mlx5", "mlx5_0", RDMA_DRIVER_MLX5, 1, "pci:v000015B3d00001017sv000015B3sd00000020bc02sc00i00",
	  LW | RW | RR | RA | MW | ZERO_BASED, mlx5_get_context, mlx5_alloc_pd, none },
	{ "efa", "rdmap0s6", RDMA_DRIVER_EFA, 1, "pci:v00001D0Fd0000EFA1sv00001D0Fsd0000EFA1bc02sc00i00",
	  LW | RW | RR, efa_get_context, efa_alloc_pd, efa_reg_mr },
	{ "irdma", "irdma0", RDMA_DRIVER_IRDMA, IRDMA_ABI_VER, "pci:v00008086d00001592sv00008086sd00000002bc02sc00i00",
	  LW | RW | RR | RA | MW | ZERO_BASED, irdma_get_context, irdma_alloc_pd, irdma_reg_mr },
	{ "hns", "hns_0", RDMA_DRIVER_HNS, 1, "pci:v000019E5d0000A222sv000019E5sd0000A222bc02sc00i00",
	  LW | RW | RR | RA | MW, hns_get_context, hns_alloc_pd, none },
	{ "bnxt_re", "bnxt_re0", RDMA_DRIVER_BNXT_RE, 1, "pci:v000014E4d00001750sv000014E4sd00002100bc02sc00i00",
	  LW | RW | RR | RA | MW, bnxt_get_context, bnxt_alloc_pd, none },
	{ "mana", "mana_0", DRIVER_MANA, 1, "",
	  LW | RW | RR, nothing, nothing, none },
	{ "siw", "siw0", RDMA_DRIVER_SIW, 1, "", LW | RW | RR, siw_get_context, nothing, siw_reg_mr },
};
const unsigned adapter_count = sizeof adapters / sizeof *adapters;
