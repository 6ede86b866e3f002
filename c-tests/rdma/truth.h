/*
 * What the roles of truth.c have in common: the account of what the owner's
 * threads did, which the reader reads out of the owner's memory, the messages, and
 * the way to a connected queue pair.
 */
#ifndef REGALL_TRUTH_H
#define REGALL_TRUTH_H

#include <infiniband/verbs.h>
#include "../check.h"
#ifdef IWARP
#include "iwarp.h"
#endif

#define THREADS 4
#define OPS 256 /* more than a thread notes in a round */
#define LOANS 4
#define GID_INDEX 0
#ifdef IWARP
#define ADAPTER "siw0"
#else
#define ADAPTER "rxe0"
#endif

/* What was done to a stretch of memory. */
struct op {
	uint64_t from, to;
	uint32_t round;
	char what[12];
};

/* A region that the program itself has registered. */
struct loan {
	struct ibv_mr *mr;
	uint64_t from, to;
	uint32_t rkey;
	/* The memory is still the one that was registered; of use to the reader. */
	uint8_t same, readable;
};

struct account {
	uint32_t many; /* ops so far */
	struct op op[OPS];
	struct loan loan[LOANS];
};

struct place {
	union ibv_gid gid;
	uint32_t qp, psn;
};

struct hello {
	struct place place;
	uint32_t pd;       /* the kernel's handle */
	uint64_t account;  /* address of struct account[THREADS] */
	uint64_t go;       /* address of the word that threads sleep on at a quiet point */
	uint64_t seed;
	int32_t pid, on_demand;
};

struct quiet {
	uint32_t round, all, last;
};

/* Whole messages through a pipe; false: the other end is gone. */
static bool give(int fd, const void *p, size_t n)
{
	for (size_t done = 0; done < n;) {
		ssize_t w = write(fd, (const char *)p + done, n - done);
		if (w < 0 && errno != EINTR)
			return false;
		done += w > 0 ? (size_t)w : 0;
	}
	return true;
}

static bool take(int fd, void *p, size_t n)
{
	for (size_t done = 0; done < n;) {
		ssize_t r = read(fd, (char *)p + done, n - done);
		if (r == 0 || (r < 0 && errno != EINTR))
			return false;
		done += r > 0 ? (size_t)r : 0;
	}
	return true;
}

struct end {
	struct ibv_context *context;
	struct ibv_pd *pd;
	struct ibv_cq *cq;
	struct ibv_qp *qp;
	struct place place;
	bool asks; /* speaks first: where it matters who does */
#ifdef IWARP
	struct iwarp connection;
#endif
};

/* A queue pair on the device called `name`, not connected yet. */
static struct end open_end(const char *name, int depth)
{
	struct end e = { 0 };
	int n = 0;
	struct ibv_device **list = ibv_get_device_list(&n);
	NEED(list);
	for (int i = 0; i < n; i++)
		if (strcmp(ibv_get_device_name(list[i]), name) == 0)
			NEED(e.context = ibv_open_device(list[i]));
	NEED(e.context);
	ibv_free_device_list(list);
	NEED(e.pd = ibv_alloc_pd(e.context));
	NEED(e.cq = ibv_create_cq(e.context, depth + 1, NULL, NULL, 0));
	struct ibv_qp_init_attr init = {
		.send_cq = e.cq,
		.recv_cq = e.cq,
		.cap = { .max_send_wr = (uint32_t)depth + 1, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1 },
		.qp_type = IBV_QPT_RC,
	};
	NEED(e.qp = ibv_create_qp(e.pd, &init));
	NEED(ibv_query_gid(e.context, 1, GID_INDEX, &e.place.gid) == 0);
	e.place.qp = e.qp->qp_num;
#ifdef IWARP
	e.place.psn = iwarp_listen(&e.connection, e.context);
#else
	e.place.psn = (uint32_t)getpid() & 0xffffff;
#endif
	return e;
}

#ifdef IWARP

/* The one that asks waits for its answer afterwards (end_is_connected): the other is to hear of it
 * first. */
static void connect_end(struct end *e, const struct place *other)
{
	iwarp_ready(e->qp, IBV_ACCESS_REMOTE_READ);
	if (e->asks) {
		iwarp_ask(&e->connection, e->qp, (uint16_t)other->psn);
		return;
	}
	iwarp_accept(&e->connection, e->qp);
	iwarp_event(&e->connection, RDMA_CM_EVENT_ESTABLISHED);
}

static void end_is_connected(struct end *e)
{
	iwarp_event(&e->connection, RDMA_CM_EVENT_ESTABLISHED);
}

#else

static void connect_end(struct end *e, const struct place *other)
{
	struct ibv_port_attr port;
	NEED(ibv_query_port(e->context, 1, &port) == 0);
	struct ibv_qp_attr a = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = IBV_ACCESS_REMOTE_READ };
	NEED(ibv_modify_qp(e->qp, &a, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS) == 0);
	a = (struct ibv_qp_attr){
		.qp_state = IBV_QPS_RTR,
		.path_mtu = port.active_mtu,
		.dest_qp_num = other->qp,
		.rq_psn = other->psn,
		.max_dest_rd_atomic = 16,
		.min_rnr_timer = 12,
		.ah_attr = { .is_global = 1, .port_num = 1, .grh = { .dgid = other->gid, .sgid_index = GID_INDEX, .hop_limit = 64 } },
	};
	NEED(ibv_modify_qp(e->qp, &a,
			   IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
				   IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER) == 0);
	/* Six retries of a second: the machine may be busy (Soft-RoCE takes 7 for endless). */
	a = (struct ibv_qp_attr){
		.qp_state = IBV_QPS_RTS, .timeout = 18, .retry_cnt = 6, .rnr_retry = 6, .sq_psn = e->place.psn, .max_rd_atomic = 16
	};
	NEED(ibv_modify_qp(e->qp, &a,
			   IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
				   IBV_QP_MAX_QP_RD_ATOMIC) == 0);
}

static void end_is_connected(struct end *e)
{
	(void)e;
}

#endif

#endif
