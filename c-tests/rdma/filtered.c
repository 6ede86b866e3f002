/* Proves: a program with an open adapter that puts itself under a seccomp filter, which kills for what the program
 * itself does not call, registers, sends and unmaps on as without the shim, and an adapter sees what memory holds. */
#include "rdma.h"
#include "../filter.h"

#define COUNT(a) (sizeof(a) / sizeof *(a))

/* What this program and libibverbs call. */
#define MEMORY                                                                                     \
	SYS_mmap, SYS_munmap, SYS_mprotect, SYS_mremap, SYS_brk, SYS_madvise, SYS_exit_group, SYS_write
#define VERBS SYS_ioctl, SYS_close, SYS_sched_yield, SYS_clock_gettime

static const unsigned memory[] = { MEMORY };
static const unsigned verbs[] = { MEMORY, VERBS };
static const unsigned files[] = { SYS_openat, SYS_process_vm_readv };
static const unsigned locks[] = { SYS_mlock, SYS_mlock2, SYS_munlock, SYS_clone, SYS_futex };
static const unsigned requests[] = { SYS_ioctl };

static const struct box {
	const char *name;
	const unsigned *calls;
	size_t n;
	bool listed; /* these, and nothing else, are let through */
	bool verbs;  /* the program may ask the adapter for something */
} boxes[] = {
	{ "without openat and process_vm_readv", files, COUNT(files), false, true },
	{ "without locks and threads", locks, COUNT(locks), false, true },
	{ "nothing but libibverbs' calls", verbs, COUNT(verbs), true, true },
	{ "without ioctl", requests, COUNT(requests), false, false },
	{ "nothing but memory calls", memory, COUNT(memory), true, false },
};

static void enter(const struct box *box)
{
	struct sock_filter code[2 * FILTER_MOST + 2];
	size_t n = 0;
	unsigned yes = box->listed ? SECCOMP_RET_ALLOW : SECCOMP_RET_KILL_PROCESS;
	unsigned no = box->listed ? SECCOMP_RET_KILL_PROCESS : SECCOMP_RET_ALLOW;
	code[n++] = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr));
	for (size_t i = 0; i < box->n; i++) {
		code[n++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, box->calls[i], 0, 1);
		code[n++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, yes);
	}
	code[n++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, no);
	install_filter(code, n);
}

/* What an adapter gets from this memory, by way of a registration of the program's own. */
static void show(struct rig *r, const char *label, char *p, size_t pages, char holds)
{
	struct ibv_mr *mr = ibv_reg_mr(r->pd, p, pages * PAGE, ALL);
	if (!told(label, mr != NULL))
		return;
	memset(r->buf, '-', BUFFER);
	enum ibv_wc_status status =
		one_sided(r, IBV_WR_RDMA_READ, r->buf, r->mr->lkey, p, mr->rkey, pages * PAGE);
	say("  %s: %s, %d", label, ibv_wc_status_str(status), all_are(r->buf, pages * PAGE, holds));
	CALL_AS("  deregister", ibv_dereg_mr(mr));
}

/* Memory that comes and goes at one place, again and again with other bytes. */
static void come_and_go(struct rig *r, const struct box *box, char *at)
{
	for (char c = 'a'; c < 'e'; c++) {
		CALL(munmap(at, 32 * PAGE));
		memset(anon_at(at, 32), c, 32 * PAGE);
		if (box->verbs)
			show(r, "come and gone", at, 32, c);
		say("bytes: %d", all_are(at, 32 * PAGE, c));
	}
}

static int shut_in(const struct box *box)
{
	struct rig r = rig();
	char *old = island(32), *held = island(32), *moved = island(64);
	memset(old, 'o', 32 * PAGE);
	memset(held, 'h', 32 * PAGE);
	memset(moved, 'm', 64 * PAGE);
	struct ibv_mr *mr = ibv_reg_mr(r.pd, held, 32 * PAGE, ALL);
	NEED(mr);
	show(&r, "before", old, 32, 'o');
	/* Domains of its own, with nothing in them. */
	struct ibv_pd *pd = ibv_alloc_pd(r.ctx), *other = ibv_alloc_pd(r.ctx);
	NEED(pd && other && ibv_dealloc_pd(other) == 0);
	enter(box);
	come_and_go(&r, box, old);
	CALL(mprotect(moved, 16 * PAGE, PROT_READ));
	CALL(madvise(moved + 16 * PAGE, 16 * PAGE, MADV_DONTNEED));
	say("dropped: %d", all_are(moved + 16 * PAGE, 16 * PAGE, 0));
	char *grown = MAP_AS("grow", mremap(moved + 32 * PAGE, 32 * PAGE, 64 * PAGE, MREMAP_MAYMOVE));
	say("kept: %d", grown != MAP_FAILED && all_are(grown, 32 * PAGE, 'm'));
	for (int i = 0; i < 600; i++)
		munmap(anon(4), 4 * PAGE);
	if (!box->verbs)
		return 3;
	show(&r, "grown", grown, 32, 'm');
	show(&r, "new", memset(island(64), 'n', 64 * PAGE), 64, 'n');
	CALL_AS("deregister held", ibv_dereg_mr(mr));
	CALL(munmap(held, 32 * PAGE));
	memset(anon_at(held, 32), 'H', 32 * PAGE);
	show(&r, "held", held, 32, 'H');
	CALL_AS("close an empty domain", ibv_dealloc_pd(pd));
	CALL_AS("open another", !(pd = ibv_alloc_pd(r.ctx)));
	CALL_AS("close it", ibv_dealloc_pd(pd));
	rig_down(&r);
	return 4;
}

int main(int argc, char **argv)
{
	if (argc > 1)
		exit(shut_in(&boxes[atoi(argv[1])]));
	for (size_t i = 0; i < COUNT(boxes); i++) {
		char number[8];
		snprintf(number, sizeof number, "%zu", i);
		say("%s", boxes[i].name);
		pid_t pid = fork();
		NEED(pid >= 0);
		if (pid == 0) {
			execl("/proc/self/exe", argv[0], number, NULL);
			_exit(92);
		}
		reap(boxes[i].name, pid);
	}
	return 0;
}
