/*
 * What the programs of this folder share: a loop-back pair of connected queue pairs, the
 * operations over it, and a way to show what an adapter sees of memory. Output as by
 * ../check.h: no keys, addresses or times, so that runs with and without the shim are the
 * same byte by byte. What only the shim promises is checked without a word (PROMISE).
 *
 * With IWARP they are for siw0 and siw1, which connect otherwise and have neither atomic
 * operations nor windows.
 */
#ifndef REGALL_RDMA_H
#define REGALL_RDMA_H

#include <dlfcn.h>
#include <infiniband/verbs.h>
#include "../check.h"
#include "../../include/regall.h"
#ifdef IWARP
#include "iwarp.h"
#endif

#define LW IBV_ACCESS_LOCAL_WRITE
#define RR IBV_ACCESS_REMOTE_READ
#define RW IBV_ACCESS_REMOTE_WRITE
#define RA IBV_ACCESS_REMOTE_ATOMIC
#define ALL (LW | RR | RW | RA)

/* The guest's adapters, by their number. */
#ifdef IWARP
#define ADAPTER(n) "siw" n
#define HAS_ATOMICS false
#else
#define ADAPTER(n) "rxe" n
#define HAS_ATOMICS true
#endif

/* Bytes of a rig's own buffer. */
#define BUFFER (256 * PAGE)

__attribute__((unused)) static int wrong;

/* For what the shim promises beyond being unseen. */
#define PROMISE(...)                                                                               \
	do {                                                                                       \
		if (!(__VA_ARGS__)) {                                                              \
			say("line %d: not so: %s", __LINE__, #__VA_ARGS__);                        \
			wrong++;                                                                   \
		}                                                                                  \
	} while (0)

__attribute__((unused)) static bool env_is(const char *name, const char *value)
{
	const char *set = getenv(name);
	return set && strcmp(set, value) == 0;
}

/* Whether the shim is at work. */
__attribute__((unused)) static bool shimmed(void)
{
	int (*active)(void) = (int (*)(void))dlsym(RTLD_DEFAULT, "regall_active");
	return active && active() == 1;
}

/* Whether it answers registrations with regions of its own. (`regall check` looks at the program's.) */
__attribute__((unused)) static bool lends(void)
{
	return shimmed() && !getenv("REGALL_CHECK") && !env_is("REGALL_KEYS", "exact") &&
	       !env_is("REGALL_HCA", "off");
}

/* Whether a protection domain is adopted when the program has paid for it. */
__attribute__((unused)) static bool by_price(void)
{
	return lends() && !env_is("REGALL_PIN", "populate");
}

struct rig {
	struct ibv_context *ctx;
	struct ibv_pd *pd;
	struct ibv_cq *cq;
	struct ibv_qp *qp[2];
	char *buf;
	struct ibv_mr *mr;
	struct ibv_mw *window; /* of type 2, bound by one of the queue pairs */
#ifdef IWARP
	struct iwarp connection;
#endif
	uint64_t shift; /* where peers and queue pairs see the buffer, less where it is */
};

/* Fresh memory at exactly this place. */
__attribute__((unused)) static char *anon_at(void *at, size_t pages)
{
	char *p = mmap(at, pages * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
	NEED(p == at);
	return p;
}

/* A private place: pages with a hole behind and before them, so that nothing else joins. */
__attribute__((unused)) static char *island(size_t pages)
{
	char *p = reserve(pages + 32);
	return anon_at(p + 16 * PAGE, pages);
}

__attribute__((unused)) static struct ibv_context *open_device(const char *name)
{
	int n = 0;
	struct ibv_device **all = ibv_get_device_list(&n);
	NEED(all);
	struct ibv_context *ctx = NULL;
	for (int i = 0; i < n; i++)
		if (strcmp(ibv_get_device_name(all[i]), name) == 0)
			ctx = ibv_open_device(all[i]);
	ibv_free_device_list(all);
	return ctx;
}

__attribute__((unused)) static void make_queue_pairs(struct rig *r)
{
	for (int i = 0; i < 2; i++) {
		struct ibv_qp_init_attr init = {
			.send_cq = r->cq,
			.recv_cq = r->cq,
			.cap = { .max_send_wr = 16, .max_recv_wr = 16, .max_send_sge = 1, .max_recv_sge = 1 },
			.qp_type = IBV_QPT_RC,
		};
		r->qp[i] = ibv_create_qp(r->pd, &init);
		NEED(r->qp[i]);
	}
}

#ifdef IWARP

__attribute__((unused)) static void connect_pair(struct rig *r)
{
	/* What a copy of a rig has is the other's. */
	r->connection = (struct iwarp){ 0 };
	make_queue_pairs(r);
	for (int i = 0; i < 2; i++)
		iwarp_ready(r->qp[i], RR | RW);
	uint16_t port = iwarp_listen(&r->connection, r->ctx);
	iwarp_ask(&r->connection, r->qp[0], port);
	iwarp_accept(&r->connection, r->qp[1]);
	for (int i = 0; i < 2; i++)
		iwarp_event(&r->connection, RDMA_CM_EVENT_ESTABLISHED);
}

static void disconnect_pair(struct rig *r)
{
	iwarp_end(&r->connection);
}

#else

/* Makes a queue pair ready to work with number `dest` of the same adapter; it gives up after `patience`
   attempts more than one. */
__attribute__((unused)) static void join(struct ibv_context *ctx, struct ibv_qp *qp, uint32_t dest, uint8_t patience)
{
	union ibv_gid gid;
	NEED(ibv_query_gid(ctx, 1, 0, &gid) == 0);
	struct ibv_qp_attr a = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = ALL };
	NEED(ibv_modify_qp(qp, &a, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS) == 0);
	a = (struct ibv_qp_attr){
		.qp_state = IBV_QPS_RTR,
		.path_mtu = IBV_MTU_1024,
		.dest_qp_num = dest,
		.max_dest_rd_atomic = 4,
		.min_rnr_timer = 12,
		.ah_attr = { .is_global = 1, .grh = { .dgid = gid, .hop_limit = 1 }, .port_num = 1 },
	};
	NEED(ibv_modify_qp(qp, &a,
			   IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
				   IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER) == 0);
	a = (struct ibv_qp_attr){
		.qp_state = IBV_QPS_RTS, .timeout = 17, .retry_cnt = patience, .rnr_retry = 6, .max_rd_atomic = 4
	};
	NEED(ibv_modify_qp(qp, &a,
			   IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
				   IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC) == 0);
}

/* Two queue pairs that are connected with each other. */
__attribute__((unused)) static void connect_pair(struct rig *r)
{
	make_queue_pairs(r);
	for (int i = 0; i < 2; i++)
		join(r->ctx, r->qp[i], r->qp[1 - i]->qp_num, 6);
}

static void disconnect_pair(struct rig *r)
{
	(void)r;
}

#endif

/* Queue pairs in `pd`, which is there already. */
__attribute__((unused)) static void make_pair(struct rig *r)
{
	r->cq = ibv_create_cq(r->ctx, 64, NULL, NULL, 0);
	NEED(r->cq);
	connect_pair(r);
}

/* As they were at first, after something went wrong. They are not reset: Soft-RoCE completes a request
   that failed before it is done with it, and where its queue pair is reset meanwhile, later requests
   succeed that were never carried out. A window that one of them has bound goes first: Soft-RoCE (6.1)
   destroys the queue pair all the same, and when the window goes it gives back what it held of it, at
   the expense of whatever has its memory by then. That may be the next queue pair, which is dropped
   from the table by it: packets don't arrive any more. */
__attribute__((unused)) static void connect_again(struct rig *r)
{
	if (r->window)
		NEED(ibv_dealloc_mw(r->window) == 0);
	r->window = NULL;
	disconnect_pair(r);
	for (int i = 0; i < 2; i++)
		NEED(ibv_destroy_qp(r->qp[i]) == 0);
	struct ibv_wc wc;
	while (ibv_poll_cq(r->cq, 1, &wc) > 0)
		;
	connect_pair(r);
}

/* Whether two registrations of the bytes are of one region. */
__attribute__((unused)) static bool shares(struct ibv_pd *pd, char *p, size_t len, int access)
{
	volatile int a = access;
	struct ibv_mr *one = ibv_reg_mr(pd, p, len, a), *two = ibv_reg_mr(pd, p, len, a);
	NEED(one && two);
	bool same = one->lkey == two->lkey;
	NEED(ibv_dereg_mr(one) == 0 && ibv_dereg_mr(two) == 0);
	return same;
}

/* Registers in the protection domain with this access until the shim has adopted it: it does when that has
   cost as much. As much is served then, so that the price does not rise. */
__attribute__((unused)) static void pay(struct ibv_pd *pd, int access)
{
	enum { PAY = 4 << 20 };
	if (!by_price() || !(access & LW))
		return;
	char *p = mmap(NULL, PAY, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
	NEED(p != MAP_FAILED);
	int n = 0;
	while (n < 512 && !shares(pd, p, PAY, access))
		n++;
	PROMISE(n < 512);
	while (n-- > 0)
		shares(pd, p, PAY, access);
	NEED(munmap(p, PAY) == 0);
}

/* Opens a device with all of it; the buffer is registered with `access`. */
__attribute__((unused)) static struct rig rig_with(const char *device, int access)
{
	struct rig r = { .ctx = open_device(device) };
	NEED(r.ctx);
	r.pd = ibv_alloc_pd(r.ctx);
	NEED(r.pd);
	make_pair(&r);
	r.buf = island(BUFFER / PAGE);
	memset(r.buf, '.', BUFFER);
	pay(r.pd, access);
	r.mr = ibv_reg_mr(r.pd, r.buf, BUFFER, access);
	NEED(r.mr);
	return r;
}

__attribute__((unused)) static struct rig rig(void)
{
	return rig_with(ADAPTER("0"), ALL);
}

__attribute__((unused)) static void drop_pair(struct rig *r)
{
	disconnect_pair(r);
	for (int i = 0; i < 2; i++)
		NEED(ibv_destroy_qp(r->qp[i]) == 0);
	NEED(ibv_destroy_cq(r->cq) == 0);
}

__attribute__((unused)) static void rig_down(struct rig *r)
{
	drop_pair(r);
	NEED(ibv_dereg_mr(r->mr) == 0);
	NEED(ibv_dealloc_pd(r->pd) == 0);
	NEED(ibv_close_device(r->ctx) == 0);
	munmap(r->buf, BUFFER);
}

/* The next completion's status; whatever went wrong, the pair works again then. */
__attribute__((unused)) static enum ibv_wc_status complete(struct rig *r, int many)
{
	enum ibv_wc_status status = IBV_WC_SUCCESS;
	struct timespec start, now;
#ifdef IWARP
	unsigned idle = 0;
#endif
	clock_gettime(CLOCK_MONOTONIC, &start);
	while (many > 0) {
		struct ibv_wc wc;
		int n = ibv_poll_cq(r->cq, 1, &wc);
		NEED(n >= 0);
		many -= n;
		if (n && wc.status != IBV_WC_SUCCESS) {
			if (status == IBV_WC_SUCCESS || status == IBV_WC_WR_FLUSH_ERR)
				status = wc.status;
		}
		if (!n) {
			sched_yield();
			clock_gettime(CLOCK_MONOTONIC, &now);
#ifdef IWARP
			/* What was posted before has completed by then. */
			if (iwarp_is_over(&r->connection) && ++idle > 1000) {
				status = status == IBV_WC_SUCCESS ? IBV_WC_WR_FLUSH_ERR : status;
				break;
			}
#endif
			if (now.tv_sec - start.tv_sec > 20) {
				say("nothing completes");
				_exit(91);
			}
		}
	}
	if (status != IBV_WC_SUCCESS)
		connect_again(r);
	return status;
}

/*
 * Whether what was written is there. Over iWARP a write completes when it is sent: whether it was taken
 * a read behind it tells, here of no bytes.
 */
__attribute__((unused)) static enum ibv_wc_status landed(struct rig *r)
{
#ifdef IWARP
	struct ibv_sge sge = { .addr = (uintptr_t)r->buf, .length = 0, .lkey = r->mr->lkey };
	struct ibv_send_wr wr = {
		.sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_READ, .send_flags = IBV_SEND_SIGNALED
	}, *bad;
	wr.wr.rdma.remote_addr = (uintptr_t)r->buf;
	wr.wr.rdma.rkey = r->mr->rkey;
	NEED(ibv_post_send(r->qp[0], &wr, &bad) == 0);
	return complete(r, 1);
#else
	(void)r;
	return IBV_WC_SUCCESS;
#endif
}

/* One-sided operation `op` of the first queue pair on the second one's side. */
__attribute__((unused)) static enum ibv_wc_status one_sided(struct rig *r, enum ibv_wr_opcode op,
							    void *local, uint32_t lkey, void *remote,
							    uint32_t rkey, size_t len)
{
	struct ibv_sge sge = { .addr = (uintptr_t)local + ((char *)local == r->buf ? r->shift : 0), .length = (uint32_t)len, .lkey = lkey };
	struct ibv_send_wr wr = {
		.sg_list = &sge, .num_sge = 1, .opcode = op, .send_flags = IBV_SEND_SIGNALED
	}, *bad;
	wr.wr.rdma.remote_addr = (uintptr_t)remote;
	wr.wr.rdma.rkey = rkey;
	if (op == IBV_WR_ATOMIC_FETCH_AND_ADD || op == IBV_WR_ATOMIC_CMP_AND_SWP) {
		wr.wr.atomic.remote_addr = (uintptr_t)remote;
		wr.wr.atomic.rkey = rkey;
		wr.wr.atomic.compare_add = 1;
		wr.wr.atomic.swap = 7;
	}
	if (!HAS_ATOMICS && (op == IBV_WR_ATOMIC_FETCH_AND_ADD || op == IBV_WR_ATOMIC_CMP_AND_SWP))
		return IBV_WC_GENERAL_ERR;
	NEED(ibv_post_send(r->qp[0], &wr, &bad) == 0);
	enum ibv_wc_status status = complete(r, 1);
	return op == IBV_WR_RDMA_WRITE && status == IBV_WC_SUCCESS ? landed(r) : status;
}

/* Into, or out of, the rig's own buffer. */
__attribute__((unused)) static enum ibv_wc_status get(struct rig *r, void *remote, uint32_t rkey, size_t len)
{
	return one_sided(r, IBV_WR_RDMA_READ, r->buf, r->mr->lkey, remote, rkey, len);
}

__attribute__((unused)) static enum ibv_wc_status put(struct rig *r, void *remote, uint32_t rkey, char c,
						      size_t len)
{
	memset(r->buf, c, len);
	return one_sided(r, IBV_WR_RDMA_WRITE, r->buf, r->mr->lkey, remote, rkey, len);
}

__attribute__((unused)) static enum ibv_wc_status add(struct rig *r, void *remote, uint32_t rkey)
{
	return one_sided(r, IBV_WR_ATOMIC_FETCH_AND_ADD, r->buf, r->mr->lkey, remote, rkey, 8);
}

/* A message from `from` to `to`. */
__attribute__((unused)) static enum ibv_wc_status message(struct rig *r, void *from, uint32_t lkey, void *to,
							  uint32_t to_lkey, size_t len)
{
	struct ibv_sge in = { .addr = (uintptr_t)to, .length = (uint32_t)len, .lkey = to_lkey };
	struct ibv_sge out = { .addr = (uintptr_t)from, .length = (uint32_t)len, .lkey = lkey };
	struct ibv_recv_wr rwr = { .sg_list = &in, .num_sge = 1 }, *rbad;
	struct ibv_send_wr wr = {
		.sg_list = &out, .num_sge = 1, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED
	}, *bad;
	NEED(ibv_post_recv(r->qp[1], &rwr, &rbad) == 0);
	NEED(ibv_post_send(r->qp[0], &wr, &bad) == 0);
	return complete(r, 2);
}

__attribute__((unused)) static const char *wc(enum ibv_wc_status status)
{
	return ibv_wc_status_str(status);
}

/* One character a page: what all of its bytes are; `0` for zeroes, `?` for a mixture. */
__attribute__((unused)) static void draw(char *text, const char *p, size_t pages)
{
	for (size_t i = 0; i < pages; i++) {
		char c = p[i * PAGE];
		text[i] = !all_are(p + i * PAGE, PAGE, c) ? '?' : c == 0 ? '0' : c;
	}
	text[pages] = 0;
}

/* What a peer with this key reads. */
__attribute__((unused)) static void tell_remote(const char *label, struct rig *r, void *p, uint32_t rkey,
						size_t pages)
{
	char text[BUFFER / PAGE + 1];
	NEED(pages * PAGE <= BUFFER);
	memset(r->buf, '!', pages * PAGE);
	enum ibv_wc_status status = get(r, p, rkey, pages * PAGE);
	draw(text, r->buf, pages);
	say("%s: %s", label, status == IBV_WC_SUCCESS ? text : wc(status));
}

/* What the program itself reads. */
__attribute__((unused)) static void tell_here(const char *label, const char *p, size_t pages)
{
	char text[BUFFER / PAGE + 1];
	draw(text, p, pages);
	say("%s: %s", label, text);
}

/* a, b, c, ... a letter a page. */
__attribute__((unused)) static void letters(char *p, size_t pages, char first)
{
	for (size_t i = 0; i < pages; i++)
		memset(p + i * PAGE, first + (char)(i % 26), PAGE);
}

/* Registers as programs do whose access is not a constant (ibv_reg_mr_iova2), and says
 * how it went and whether the fields are what was asked for. */
__attribute__((unused)) static struct ibv_mr *reg(const char *label, struct ibv_pd *pd, void *p, size_t len,
						  int access)
{
	volatile int a = access;
	errno = 0;
	struct ibv_mr *mr = ibv_reg_mr(pd, p, len, a);
	told(label, mr != NULL);
	if (mr && !(mr->pd == pd && mr->context == pd->context && mr->addr == p && mr->length == len))
		say("%s: other fields than asked for", label);
	return mr;
}

__attribute__((unused)) static void dereg(const char *label, struct ibv_mr *mr)
{
	if (!mr)
		return;
	int e = ibv_dereg_mr(mr);
	say("%s: deregistered: %s", label, e ? strerrorname_np(e) : "ok");
}

/* The same of four pages, for all access. */
__attribute__((unused)) static bool of_one_region(struct ibv_pd *pd, char *p)
{
	return shares(pd, p, 4 * PAGE, ALL);
}

/* Objects of this kind on the device, of all processes, by the kernel's account. */
__attribute__((unused)) static int objects(const char *device, const char *kind)
{
	char command[64], line[512] = "", word[16];
	snprintf(command, sizeof command, "rdma res show %s", device);
	FILE *f = popen(command, "r");
	NEED(f && fgets(line, sizeof line, f));
	pclose(f);
	snprintf(word, sizeof word, " %s ", kind);
	char *at = strstr(line, word);
	return at ? atoi(at + strlen(word)) : -1;
}

/* The numbers of this process's regions, as the kernel lists them; it gives each number once. */
__attribute__((unused)) static void listed(char *text, size_t size)
{
	char line[512], mine[32];
	size_t len = 0;
	snprintf(mine, sizeof mine, " pid %d ", (int)getpid());
	FILE *said = popen("rdma resource show mr", "r");
	NEED(said);
	while (fgets(line, sizeof line, said)) {
		const char *number = strstr(line, " mrn ");
		if (strstr(line, mine) && number && len < size)
			len += (size_t)snprintf(text + len, size - len, "%.*s ", (int)strcspn(number + 5, " "), number + 5);
	}
	NEED(pclose(said) == 0 && len > 0 && len < size);
}

/* A number from /proc/self/status, in KiB for memory. */
__attribute__((unused)) static long status_of(const char *field)
{
	char line[256];
	long value = 0;
	FILE *f = fopen("/proc/self/status", "r");
	NEED(f);
	while (fgets(line, sizeof line, f))
		if (strncmp(line, field, strlen(field)) == 0 && line[strlen(field)] == ':')
			value = atol(line + strlen(field) + 1);
	fclose(f);
	return value;
}

#endif
