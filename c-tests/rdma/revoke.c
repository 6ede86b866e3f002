/* Proves: a key that was deregistered reaches nothing any more, soon or at once, and one that is registered is good, whatever was revoked meanwhile. */
#include <dirent.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include "rdma.h"

static struct rig r;
/* Keys are for what was asked for, and go at once. */
static bool exact;

static void pause_ms(long ms)
{
	nanosleep(&(struct timespec){ .tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000 }, NULL);
}

static struct ibv_mr *lend(void *p, size_t len)
{
	volatile int access = ALL;
	struct ibv_mr *mr = ibv_reg_mr(r.pd, p, len, access);
	NEED(mr);
	return mr;
}

/* What a peer gets by a key that was deregistered. With the shim it may be good for a moment. */
static void tell_revoked(const char *label, char *p, uint32_t rkey)
{
	enum ibv_wc_status status;
	int looks = 0;
	do {
		status = get(&r, p, rkey, PAGE);
		/* (So Soft-RoCE says it of a key that goes while it reads.) */
		if (status != IBV_WC_SUCCESS && status != IBV_WC_RETRY_EXC_ERR)
			break;
		PROMISE(!exact || status != IBV_WC_SUCCESS);
		pause_ms(10);
	} while (++looks < 500 && shimmed());
	say("%s: %s", label, wc(status));
}

/* It succeeds before, and fails after. */
static void once(void)
{
	char *p = island(8);
	letters(p, 8, 'a');
	struct ibv_mr *mr = lend(p, 8 * PAGE);
	uint32_t rkey = mr->rkey;
	tell_remote("before", &r, p, rkey, 8);
	dereg("it", mr);
	tell_revoked("after", p, rkey);
	/* A new key is good, and the old one is no better for it. */
	mr = lend(p, 8 * PAGE);
	tell_remote("again", &r, p, mr->rkey, 8);
	say("put: %s", wc(put(&r, p, mr->rkey, 'p', PAGE)));
	tell_revoked("the old one", p, rkey);
	rkey = mr->rkey;
	dereg("again", mr);
	tell_revoked("after", p, rkey);
}

/* A program that comes back in time has its key for as long as it holds it. */
static void in_time(void)
{
	char *p = island(4);
	letters(p, 4, 'a');
	struct ibv_mr *mr = lend(p, 4 * PAGE);
	unsigned seed = 1;
	for (int i = 0, many = getenv("REGALL_REVOKE_MS") ? 400 : 20; i < many; i++) {
		NEED(ibv_dereg_mr(mr) == 0);
		usleep((unsigned)rand_r(&seed) % 3000);
		mr = lend(p, 4 * PAGE);
		NEED(get(&r, p, mr->rkey, PAGE) == IBV_WC_SUCCESS && all_are(r.buf, PAGE, 'a'));
	}
	pause_ms(250);
	tell_remote("in time", &r, p, mr->rkey, 4);
	uint32_t rkey = mr->rkey;
	/* The memory goes, and the key stays with its pages; then it goes, too. */
	munmap(p, PAGE);
	pause_ms(150);
	tell_remote("without the first page", &r, p, rkey, 4);
	NEED(ibv_dereg_mr(mr) == 0);
	tell_revoked("after", p + PAGE, rkey);
}

/* Children, and threads that come and go, are no business of it. */
static void with_children(void)
{
	char *p = island(2);
	letters(p, 2, 'a');
	struct ibv_mr *mr = lend(p, 2 * PAGE);
	uint32_t rkey = mr->rkey;
	NEED(ibv_dereg_mr(mr) == 0);
	for (int i = 0; i < 3; i++) {
		pid_t pid = fork();
		if (pid == 0)
			_exit(p[0] != 'a');
		int status;
		NEED(waitpid(pid, &status, 0) == pid && status == 0);
		pause_ms(20);
	}
	tell_revoked("after fork", p, rkey);
}

/* A protection domain can go as soon as nothing is registered in it. */
static void domains(void)
{
	char *p = island(16);
	int good = 0;
	for (int i = 0; i < 12; i++) {
		struct ibv_pd *pd = ibv_alloc_pd(r.ctx);
		NEED(pd);
		volatile int access = ALL;
		struct ibv_mr *mr = ibv_reg_mr(pd, p, 16 * PAGE, access);
		NEED(mr && ibv_dereg_mr(mr) == 0);
		if (i % 2)
			pause_ms(i % 5);
		good += ibv_dealloc_pd(pd) == 0;
	}
	say("%d protection domains", good);
}

/* What is looked up stays, whatever the program has registered and deregistered there. */
static void looked_up(void)
{
	__typeof__(regall_lookup) *lookup = (__typeof__(lookup))dlsym(RTLD_DEFAULT, "regall_lookup");
	__typeof__(regall_register_all) *all =
		(__typeof__(all))dlsym(RTLD_DEFAULT, "regall_register_all");
	if (!shimmed() || env_is("REGALL_HCA", "off"))
		return;
	char *p = island(4);
	letters(p, 4, 'a');
	struct regall_range before, after;
	PROMISE(all(r.pd) == 0);
	PROMISE(lookup(r.pd, p, PAGE, &before) == 0 && before.lkey != 0);
	struct ibv_mr *mr = lend(p, 4 * PAGE);
	PROMISE(mr->lkey != before.lkey);
	uint32_t rkey = mr->rkey;
	/* Without REGALL_ACCESS a key that was looked up gives peers nothing. */
	PROMISE(get(&r, p, before.rkey, PAGE) != IBV_WC_SUCCESS);
	NEED(ibv_dereg_mr(mr) == 0);
	int looks = 0;
	while (get(&r, p, rkey, PAGE) == IBV_WC_SUCCESS && ++looks < 500)
		pause_ms(10);
	PROMISE(looks < 500);
	PROMISE(lookup(r.pd, p, PAGE, &after) == 0 && after.lkey == before.lkey);
	PROMISE(message(&r, p, before.lkey, r.buf, r.mr->lkey, PAGE) == IBV_WC_SUCCESS);
	PROMISE(all_are(r.buf, PAGE, 'a'));
}

/* A region with a memory window bound to it can't go; it goes when the window has gone. */
static void windows(void)
{
	if (!shimmed() || exact || env_is("REGALL_HCA", "off"))
		return;
	char *p = island(2);
	letters(p, 2, 'a');
	volatile int access = ALL | IBV_ACCESS_MW_BIND;
	pay(r.pd, access);
	struct ibv_mr *mr = ibv_reg_mr(r.pd, p, 2 * PAGE, access);
	struct ibv_mw *mw = ibv_alloc_mw(r.pd, IBV_MW_TYPE_2);
	NEED(mr);
	if (!mw) {
		NEED(ibv_dereg_mr(mr) == 0);
		return;
	}
	struct ibv_send_wr wr = { .opcode = IBV_WR_BIND_MW, .send_flags = IBV_SEND_SIGNALED }, *bad;
	wr.bind_mw.mw = mw;
	wr.bind_mw.rkey = ibv_inc_rkey(mw->rkey);
	wr.bind_mw.bind_info = (struct ibv_mw_bind_info){
		.mr = mr, .addr = (uintptr_t)p, .length = PAGE, .mw_access_flags = RR
	};
	NEED(ibv_post_send(r.qp[1], &wr, &bad) == 0);
	enum ibv_wc_status bound = complete(&r, 1);
	fprintf(stderr, "bound: %s\n", wc(bound));
	uint32_t rkey = mr->rkey;
	PROMISE(bound != IBV_WC_SUCCESS || get(&r, p, wr.bind_mw.rkey, PAGE) == IBV_WC_SUCCESS);
	PROMISE(ibv_dereg_mr(mr) == 0);
	pause_ms(300);
	if (bound == IBV_WC_SUCCESS)
		PROMISE(get(&r, p, wr.bind_mw.rkey, PAGE) == IBV_WC_SUCCESS);
	PROMISE(ibv_dealloc_mw(mw) == 0);
	int looks = 0;
	while (get(&r, p, rkey, PAGE) == IBV_WC_SUCCESS && ++looks < 500)
		pause_ms(10);
	PROMISE(looks < 500);
}

/* However many can't go at once: all go with their windows. */
static void many_windows(void)
{
	enum { MANY = 40 };
	if (!shimmed() || exact || env_is("REGALL_HCA", "off"))
		return;
	struct ibv_mw *mw[MANY];
	char *p[MANY];
	uint32_t rkey[MANY];
	for (int i = 0; i < MANY; i++) {
		p[i] = island(1);
		letters(p[i], 1, 'a');
		volatile int access = ALL | IBV_ACCESS_MW_BIND;
		struct ibv_mr *mr = ibv_reg_mr(r.pd, p[i], PAGE, access);
		mw[i] = ibv_alloc_mw(r.pd, IBV_MW_TYPE_2);
		NEED(mr && mw[i]);
		struct ibv_send_wr wr = { .opcode = IBV_WR_BIND_MW, .send_flags = IBV_SEND_SIGNALED }, *bad;
		wr.bind_mw.mw = mw[i];
		wr.bind_mw.rkey = ibv_inc_rkey(mw[i]->rkey);
		wr.bind_mw.bind_info = (struct ibv_mw_bind_info){
			.mr = mr, .addr = (uintptr_t)p[i], .length = PAGE, .mw_access_flags = RR
		};
		NEED(ibv_post_send(r.qp[1], &wr, &bad) == 0 && complete(&r, 1) == IBV_WC_SUCCESS);
		rkey[i] = mr->rkey;
		PROMISE(ibv_dereg_mr(mr) == 0);
	}
	pause_ms(300);
	for (int i = 0; i < MANY; i++)
		PROMISE(ibv_dealloc_mw(mw[i]) == 0);
	int left = 0;
	for (int looks = 0; looks < 500; looks++, pause_ms(10)) {
		left = 0;
		for (int i = 0; i < MANY; i++)
			left += get(&r, p[i], rkey[i], PAGE) == IBV_WC_SUCCESS;
		if (!left)
			break;
	}
	PROMISE(left == 0);
}

static bool rotates(void)
{
	bool found = false;
	DIR *tasks = opendir("/proc/self/task");
	NEED(tasks);
	for (struct dirent *e; (e = readdir(tasks));) {
		char path[300], name[32] = "";
		snprintf(path, sizeof path, "/proc/self/task/%s/comm", e->d_name);
		FILE *f = fopen(path, "r");
		found |= f && fgets(name, sizeof name, f) && strcmp(name, "regall-rotator\n") == 0;
		if (f)
			fclose(f);
	}
	closedir(tasks);
	return found;
}

/* Gives a region back where no adapter can be reached, when nobody is there who can. */
static void *gives_back_apart(void *mr)
{
	NEED(unshare(CLONE_FILES) == 0 && close_range(3, ~0u, 0) == 0);
	for (int looks = 0; rotates(); looks++) {
		NEED(looks < 1000);
		pause_ms(10);
	}
	PROMISE(ibv_dereg_mr(mr) == 0);
	return NULL;
}

/* A thread with descriptors of its own leaves the key to one that has the process's. */
static void apart(void)
{
	if (!shimmed() || exact || env_is("REGALL_HCA", "off"))
		return;
	char *p = island(2);
	letters(p, 2, 'a');
	struct ibv_mr *mr = lend(p, 2 * PAGE);
	uint32_t rkey = mr->rkey;
	pthread_t t;
	NEED(pthread_create(&t, NULL, gives_back_apart, mr) == 0 && pthread_join(t, NULL) == 0);
	enum ibv_wc_status status = IBV_WC_SUCCESS;
	for (int looks = 0; looks < 500 && status == IBV_WC_SUCCESS; looks++) {
		for (int i = 0; i < 100; i++)
			munmap(anon(1), PAGE);
		status = get(&r, p, rkey, PAGE);
		pause_ms(10);
	}
	PROMISE(status != IBV_WC_SUCCESS);
}

/* A call that is for processes with one thread is as it would be. */
static void alone(void)
{
	char *p = island(2);
	letters(p, 2, 'a');
	struct ibv_mr *mr = lend(p, 2 * PAGE);
	NEED(ibv_dereg_mr(mr) == 0);
	/* From here on the kernel takes no write(2) of this process's to an adapter. */
	told("unshare", unshare(CLONE_NEWUSER) == 0);
	mr = lend(p, 2 * PAGE);
	NEED(ibv_dereg_mr(mr) == 0);
	pause_ms(150);
	told("setuid", setreuid((uid_t)-1, (uid_t)-1) == 0);
	NEED(unshare(CLONE_FS) == 0);
}

/* A filter that lets everything through: one who asks can't know that. */
static void shut_in(void)
{
	struct sock_filter all[] = { BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW) };
	struct sock_fprog filter = { .len = 1, .filter = all };
	NEED(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
	NEED(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) == 0);
}

int main(int argc, char **argv)
{
	exact = !shimmed() || env_is("REGALL_KEYS", "exact") || env_is("REGALL_HCA", "off");
	if (argc > 2 && strcmp(argv[2], "again") == 0)
		shut_in();
	r = rig();
	if (argc > 1 && strcmp(argv[1], "shut") == 0) {
		shut_in();
		/* No thread may be made from here on, perhaps: keys go at once. */
		exact = true;
		once();
		rig_down(&r);
		return wrong != 0;
	}
	once();
	in_time();
	with_children();
	domains();
	windows();
	many_windows();
	looked_up();
	apart();
	alone();
	rig_down(&r);
	say("end");
	return wrong != 0;
}
