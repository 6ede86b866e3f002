/*
 * Proves: what a process has registered by ioctl is within a peer's reach until it closes the adapter,
 * and out of it when close(2) has returned.
 */
#include <sys/wait.h>
#include "requests.h"

/* What the process that has the memory and its peer tell each other. */
static struct told {
	volatile uint32_t qp[2];
	volatile uint64_t at;
	volatile uint32_t rkey;
	volatile int step;
} *between;

enum { NUMBERED = 1, JOINED, TO_BE_CLOSED, CLOSED, OVER };

static void step(int to)
{
	__sync_synchronize();
	between->step = to;
}

static void await(int at)
{
	while (between->step < at)
		usleep(1000);
	__sync_synchronize();
}

/* The rings of its queues are mapped, and keep the adapter open. */
static void unmap_device(void)
{
	FILE *f = fopen("/proc/self/maps", "r");
	NEED(f);
	unsigned long from[16], to[16];
	int many = 0;
	char line[512];
	while (fgets(line, sizeof line, f))
		if (strstr(line, "/dev/infiniband/") && many < 16)
			many += sscanf(line, "%lx-%lx", &from[many], &to[many]) == 2;
	fclose(f);
	for (int i = 0; i < many; i++)
		NEED(munmap((void *)from[i], to[i] - from[i]) == 0);
}

/* A rig whose queue pairs are not joined with others, and without a buffer. */
static struct rig unjoined(void)
{
	struct rig r = { .ctx = open_device(ADAPTER("0")) };
	NEED(r.ctx);
	r.pd = ibv_alloc_pd(r.ctx);
	r.cq = ibv_create_cq(r.ctx, 64, NULL, NULL, 0);
	NEED(r.pd && r.cq);
	make_queue_pairs(&r);
	return r;
}

/* The process that has the memory. It has its queues by libibverbs, and the region by ioctl. */
static void own(void)
{
	struct rig end = unjoined();
	char *p = island(4);
	memset(p, 'x', 4 * PAGE);
	struct asked a;
	NEED(raw_reg(end.ctx->cmd_fd, &a, end.pd->handle, p, 4 * PAGE, ALL) == 0);
	PROMISE(a.out.mr_handle >> 31 == is_lent());
	between->qp[1] = end.qp[0]->qp_num;
	between->at = (uintptr_t)p;
	between->rkey = a.out.rkey;
	step(NUMBERED);
	await(JOINED);
	join(end.ctx, end.qp[0], between->qp[0], 1);
	step(TO_BE_CLOSED);
	usleep(50000);
	unmap_device();
	NEED(close(end.ctx->cmd_fd) == 0);
	step(CLOSED);
	await(OVER);
}

static enum ibv_wc_status peer_reads(struct rig *r)
{
	struct ibv_sge sge = { .addr = (uintptr_t)r->buf, .length = PAGE, .lkey = r->mr->lkey };
	struct ibv_send_wr wr = { .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_READ, .send_flags = IBV_SEND_SIGNALED }, *bad;
	wr.wr.rdma.remote_addr = between->at;
	wr.wr.rdma.rkey = between->rkey;
	NEED(ibv_post_send(r->qp[0], &wr, &bad) == 0);
	struct ibv_wc wc;
	int n;
	while ((n = ibv_poll_cq(r->cq, 1, &wc)) == 0)
		sched_yield();
	NEED(n == 1);
	return wc.status;
}

int main(void)
{
	between = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	NEED(between != MAP_FAILED);
	pid_t child = fork();
	if (child == 0) {
		own();
		fflush(stdout);
		_exit(wrong);
	}
	struct rig r = unjoined();
	r.buf = island(1);
	memset(r.buf, '.', PAGE);
	r.mr = ibv_reg_mr(r.pd, r.buf, PAGE, LW);
	NEED(r.mr);
	between->qp[0] = r.qp[0]->qp_num;
	await(NUMBERED);
	join(r.ctx, r.qp[0], between->qp[1], 1);
	step(JOINED);
	await(TO_BE_CLOSED);
	enum ibv_wc_status status = peer_reads(&r);
	say("open: %d, read: %d", status, all_are(r.buf, PAGE, 'x'));
	while (between->step < CLOSED)
		if (status == IBV_WC_SUCCESS)
			status = peer_reads(&r);
	__sync_synchronize();
	say("closed, read: %d", peer_reads(&r) == IBV_WC_SUCCESS);
	step(OVER);
	int end;
	NEED(waitpid(child, &end, 0) == child);
	say("ended: %d", end);
	NEED(ibv_dereg_mr(r.mr) == 0);
	drop_pair(&r);
	NEED(ibv_dealloc_pd(r.pd) == 0 && ibv_close_device(r.ctx) == 0);
	say("end");
	return wrong != 0;
}
