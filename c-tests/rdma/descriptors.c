/*
 * Proves: a registration by ioctl belongs to the open file, whatever number it was asked for by: a
 * number that comes to mean another adapter (dup2, close, a thread's own table) gets that one's
 * regions, an adapter is closed with its last descriptor, by whatever call that goes, what another
 * process has open stays, and descriptors of ours are in nobody's way.
 */
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <sched.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/user.h>
#include <sys/wait.h>
#include "requests.h"

static struct rig r;
static struct ibv_context *second;
static char *p;

/* Contexts and regions of this process with the second adapter. */
static void tell_left(const char *what)
{
	say("%s: %d contexts, %d regions", what, count_of("ctx", "rxe1"), count_of("mr", "rxe1"));
}

/* Whether a region by its number is the file's behind `fd`: only that one ends it. */
static void tell_whose(const char *what, int by, uint32_t pd, int file)
{
	struct asked a;
	int error = raw_reg(by, &a, pd, p, 4 * PAGE, ALL);
	say("%s: %d, ended by its file: %d", what, error, raw_destroy(file, a.out.mr_handle));
}

/* Two files of two adapters whose protection domains have one number. */
static void open_both(int *one, int *other, uint32_t *pd)
{
	*one = raw_open(r.ctx);
	*other = raw_open(second);
	*pd = raw_pd(*one);
	NEED(raw_pd(*other) == *pd);
	tell_whose("one", *one, *pd, *one);
	tell_whose("other", *other, *pd, *other);
}

static void replaced(void)
{
	int one, other;
	uint32_t pd;
	open_both(&one, &other, &pd);
	struct asked a;
	NEED(raw_reg(one, &a, pd, p, PAGE, ALL) == 0);
	int kept = dup(one);
	NEED(dup2(other, one) == one);
	tell_whose("after dup2", one, pd, other);
	int others = raw_destroy(one, a.out.mr_handle);
	say("another file's: %d, its own: %d", others, raw_destroy(kept, a.out.mr_handle));
	NEED(dup3(kept, one, O_CLOEXEC) == one);
	tell_whose("after dup3", one, pd, kept);
	NEED(syscall(SYS_close, one) == 0 && fcntl(other, F_DUPFD, one) == one);
	tell_whose("after close", one, pd, other);
	NEED(syscall(SYS_dup2, kept, one) == one);
	tell_whose("after a call past libc", one, pd, kept);
	close(one);
	close(other);
	close(kept);
}

/* dup2 by the old gate, where nobody looks. */
static void dup2_unseen(int from, int to)
{
	long result;
	__asm__ volatile("int $0x80" : "=a"(result) : "a"(63L), "b"((long)from), "c"((long)to) : "memory");
	NEED(result == to);
}

/* Has the shim register all memory in a protection domain. */
static void pay_by_ioctl(int fd, uint32_t pd)
{
	for (int i = 0; i < 200; i++) {
		struct asked a;
		NEED(raw_reg(fd, &a, pd, p, PAGE, ALL) == 0 && raw_destroy(fd, a.out.mr_handle) == 0);
	}
}

/* What is mapped while another adapter has the number is not registered there, nor what is unmapped
 * forgotten. */
static void replaced_unseen(void)
{
	int one, other;
	uint32_t pd;
	open_both(&one, &other, &pd);
	pay_by_ioctl(one, pd);
	pay_by_ioctl(other, pd);
	char *before = anon_at(p + 128 * PAGE, 4);
	int kept = dup(one);
	dup2_unseen(other, one);
	char *meanwhile = anon_at(p + 256 * PAGE, 4);
	NEED(munmap(before, 4 * PAGE) == 0);
	dup2_unseen(kept, one);
	NEED(munmap(meanwhile, 4 * PAGE) == 0);
	tell_whose("again", one, pd, kept);
	int first = raw_dealloc(one, pd);
	say("unseen, dealloc: %d %d", first, raw_dealloc(other, pd));
	close(one);
	close(other);
	close(kept);
}

static struct {
	int one, other;
	uint32_t pd;
	pthread_barrier_t turn;
} apart;

/* In a thread with a table of its own `one` is the other adapter. */
static void *with_its_own(void *arg)
{
	NEED(unshare(CLONE_FILES) == 0 && dup2(apart.other, apart.one) == apart.one);
	for (int i = 0; i < 2; i++) {
		pthread_barrier_wait(&apart.turn);
		tell_whose("in a thread", apart.one, apart.pd, apart.other);
		pthread_barrier_wait(&apart.turn);
	}
	return arg;
}

static void with_two_tables(void)
{
	open_both(&apart.one, &apart.other, &apart.pd);
	pthread_t t;
	NEED(pthread_barrier_init(&apart.turn, NULL, 2) == 0);
	NEED(pthread_create(&t, NULL, with_its_own, NULL) == 0);
	for (int i = 0; i < 2; i++) {
		tell_whose("beside it", apart.one, apart.pd, apart.one);
		pthread_barrier_wait(&apart.turn);
		pthread_barrier_wait(&apart.turn);
	}
	NEED(pthread_join(t, NULL) == 0);
	close(apart.one);
	close(apart.other);
	/* A thread is joined a moment before its table goes. */
	for (int i = 0; i < 100 && count_of("ctx", "rxe1") > 1; i++)
		usleep(10000);
	tell_left("both tables closed");
}

static int by_close(int fd)
{
	return close(fd);
}

static int by_dup2(int fd)
{
	return dup2(STDERR_FILENO, fd) == fd ? close(fd) : -1;
}

static int by_dup3(int fd)
{
	return dup3(STDERR_FILENO, fd, 0) == fd ? close(fd) : -1;
}

static int by_close_range(int fd)
{
	return close_range((unsigned int)fd, (unsigned int)fd, 0);
}

static int by_system_call(int fd)
{
	return (int)syscall(SYS_close, fd);
}

static int open_second(void)
{
	int fd = raw_open(second);
	uint32_t pd = raw_pd(fd);
	struct asked a;
	NEED(raw_reg(fd, &a, pd, p, PAGE, ALL) == 0);
	return fd;
}

static void closed(void)
{
	static const struct {
		const char *name;
		int (*close)(int);
	} ways[] = { { "close", by_close }, { "dup2", by_dup2 }, { "dup3", by_dup3 }, { "close_range", by_close_range }, { "a system call", by_system_call } };
	for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
		int fd = open_second(), other = fcntl(fd, F_DUPFD, 200);
		NEED(ways[i].close(fd) == 0);
		say("%s, another is open: %d", ways[i].name, count_of("ctx", "rxe1"));
		NEED(ways[i].close(other) == 0);
		tell_left(ways[i].name);
	}
}

/* Who closes all numbers that there may be, but for what is in use, closes ours, too. */
static void close_others(int fd)
{
	for (int i = 3; i < 1100; i++)
		if (i != fd && i != second->cmd_fd && i != second->async_fd && i != r.ctx->cmd_fd && i != r.ctx->async_fd)
			close(i);
}

/* Nothing stays behind then, by whichever way it was asked for. */
static void closed_by_a_daemon(void)
{
	int fd = raw_open(second);
	uint32_t pd = raw_pd(fd);
	struct asked a, b;
	NEED(raw_reg(fd, &a, pd, p, PAGE, ALL) == 0);
	close_others(fd);
	NEED(raw_reg(fd, &b, pd, p, PAGE, ALL) == 0);
	PROMISE(b.out.mr_handle >> 31 == a.out.mr_handle >> 31);
	int first = raw_destroy(fd, a.out.mr_handle);
	say("destroyed: %d %d", first, raw_destroy(fd, b.out.mr_handle));
	say("dealloc: %d", raw_dealloc(fd, pd));
	close(fd);
	tell_left("closed");
	struct ibv_pd *domain = ibv_alloc_pd(second);
	struct ibv_mr *mr = domain ? ibv_reg_mr(domain, p, PAGE, ALL) : NULL;
	NEED(mr);
	close_others(second->cmd_fd);
	int gone = ibv_dereg_mr(mr);
	say("by symbols: %d %d", gone, ibv_dealloc_pd(domain));
	tell_left("deallocated");
}

enum { FIRST = 940, MANY = 80 };

/* Files of the program's take the numbers from FIRST on, wherever ours are: how many are lost. */
static int lost_of(const int *files)
{
	int lost = 0;
	for (int i = 0; i < MANY; i++)
		lost += files[i] >= 0 && fcntl(files[i], F_GETFD) < 0;
	return lost;
}

/* The program's files stay open, also where they have a number of ours. */
static void under_our_numbers(void)
{
	int files[MANY];
	struct ibv_pd *domain = ibv_alloc_pd(second);
	struct ibv_mr *mr = domain ? ibv_reg_mr(domain, p, PAGE, ALL) : NULL;
	NEED(mr);
	for (int i = 0; i < MANY; i++)
		files[i] = dup2(STDERR_FILENO, FIRST + i);
	int gone = ibv_dereg_mr(mr);
	say("by symbols: %d %d", gone, ibv_dealloc_pd(domain));
	say("lost: %d", lost_of(files));
	for (int i = 0; i < MANY; i++)
		close(files[i]);
	tell_left("deallocated");
}

/* The same with files of the same device, each with a protection domain of the same number. */
static void of_the_same_device(void)
{
	enum { FILES = 8 };
	int files[MANY], fd = open_second();
	uint32_t pd[FILES];
	struct asked a[FILES];
	close_others(-1);
	for (int i = 0; i < MANY; i++)
		files[i] = -1;
	for (int i = 0; i < FILES; i++) {
		int new = raw_open(second);
		files[i] = fcntl(new, F_DUPFD, 956 + i);
		close(new);
		pd[i] = raw_pd(files[i]);
		NEED(raw_reg(files[i], &a[i], pd[i], p, PAGE, ALL) == 0);
	}
	(void)fd;
	for (int i = 0; i < 3000; i++) {
		char *m = mmap(NULL, 64 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		*m = 1;
		munmap(m, 64 * PAGE);
	}
	say("lost: %d", lost_of(files));
	int wrong_ones = 0;
	for (int i = 0; i < FILES; i++) {
		wrong_ones += raw_destroy(files[i], a[i].out.mr_handle) != 0;
		wrong_ones += raw_dealloc(files[i], pd[i]) != 0;
		close(files[i]);
	}
	say("wrong: %d", wrong_ones);
	tell_left("closed");
}

static volatile int over;

static void *map_all_the_time(void *arg)
{
	while (!over) {
		char *m = mmap(NULL, 4 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		NEED(m != MAP_FAILED);
		m[0] = 1;
		NEED(munmap(m, 4 * PAGE) == 0);
	}
	return arg;
}

/* A number at which the shim may have a descriptor for a moment becomes one of the program's. */
static void taken_by_another_thread(void)
{
	enum { THREADS = 3, ROUNDS = 4000, LOOKS = 20 };
	pthread_t t[THREADS];
	struct stat mine, now;
	int fd = open("/proc/self/exe", O_RDONLY), closed = 0, others = 0;
	NEED(fd >= 0 && fstat(fd, &mine) == 0);
	pay(r.pd, ALL);
	over = 0;
	for (int i = 0; i < THREADS; i++)
		NEED(pthread_create(&t[i], NULL, map_all_the_time, NULL) == 0);
	for (int n = 0; n < ROUNDS; n++) {
		int at = 960 + n % 4;
		NEED(dup2(fd, at) == at);
		for (int i = 0; i < LOOKS; i++) {
			int error = fstat(at, &now);
			closed += error != 0;
			others += error == 0 && now.st_ino != mine.st_ino;
			sched_yield();
		}
		close(at);
	}
	over = 1;
	for (int i = 0; i < THREADS; i++)
		NEED(pthread_join(t[i], NULL) == 0);
	close(fd);
	say("taken by another thread: closed: %s, another file: %s", closed ? "yes" : "never", others ? "yes" : "never");
}

static volatile pid_t protector;

static void *protect_all_the_time(void *arg)
{
	protector = gettid();
	while (!over) {
		char *m = mmap(NULL, 16 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		NEED(m != MAP_FAILED && mprotect(m + 4 * PAGE, 4 * PAGE, PROT_READ) == 0);
		NEED(munmap(m, 16 * PAGE) == 0);
	}
	return arg;
}

/* Where that thread is stopped: with a descriptor of ours for the program's `from`, behind the first of several
 * requests (those before an mprotect), or where it is about to close it behind the last. */
struct stop {
	int from;
	bool closes;
	pthread_t thread;
	pid_t tracer;
	int tell[2], go[2];
};

static void trace(const struct stop *s)
{
	struct user_regs_struct at;
	int ours = -1, made = -9;
	bool asked = false;
	char c;
	NEED(ptrace(PTRACE_SEIZE, protector, 0, PTRACE_O_TRACESYSGOOD) == 0);
	NEED(ptrace(PTRACE_INTERRUPT, protector, 0, 0) == 0);
	for (;;) {
		NEED(waitpid(protector, NULL, __WALL) == protector && ptrace(PTRACE_GETREGS, protector, 0, &at) == 0);
		bool done = (long)at.rax >= 0, is_ours = made == (s->closes ? 1 : 2) && (int)at.rdi == ours;
		if (at.orig_rax == SYS_mmap)
			made = 0, asked = false;
		if (done && at.orig_rax == SYS_fcntl && at.rsi == F_DUPFD_CLOEXEC && (int)at.rdi == s->from)
			made++, ours = (int)at.rax;
		asked |= done && at.orig_rax == SYS_ioctl && is_ours;
		if (asked && (!s->closes || (!done && is_ours && at.orig_rax == SYS_fcntl && at.rsi == F_GETSIG)))
			break;
		NEED(ptrace(PTRACE_SYSCALL, protector, 0, 0) == 0);
	}
	NEED(write(s->tell[1], &ours, sizeof ours) == sizeof ours);
	if (s->closes)
		usleep(300000); /* It is waited for. */
	else
		NEED(read(s->go[0], &c, 1) == 1);
	NEED(ptrace(PTRACE_DETACH, protector, 0, 0) == 0);
	_exit(wrong != 0);
}

/* The number of our descriptor, or of one that may be. */
static int stopped(struct stop *s)
{
	int ours = 960;
	over = 0;
	protector = 0;
	NEED(pipe(s->tell) == 0 && pipe(s->go) == 0);
	NEED(pthread_create(&s->thread, NULL, protect_all_the_time, NULL) == 0);
	while (protector == 0)
		usleep(1000);
	if (is_lent()) {
		s->tracer = fork();
		if (s->tracer == 0)
			trace(s);
		NEED(read(s->tell[0], &ours, sizeof ours) == sizeof ours);
	}
	return ours;
}

static void goes_on(struct stop *s)
{
	int status = 0;
	NEED(write(s->go[1], "", 1) == 1);
	NEED(s->tracer == 0 || (waitpid(s->tracer, &status, 0) == s->tracer && status == 0));
	usleep(100000);
	over = 1;
	NEED(pthread_join(s->thread, NULL) == 0);
	for (int i = 0; i < 2; i++)
		NEED(close(s->tell[i]) == 0 && close(s->go[i]) == 0);
}

/* The program gives a number of ours to a file of its own in the midst of a call that makes several requests:
 * those that follow don't go there, where the protection domain's number is somebody's, too. */
static void replaced_in_a_call(void)
{
	struct stop s = { .from = r.ctx->cmd_fd };
	int other = raw_open(second);
	while (raw_pd(other) != r.pd->handle)
		;
	int ours = stopped(&s);
	NEED(dup2(other, ours) == ours);
	goes_on(&s);
	say("replaced in a call, still open: %d", fcntl(ours, F_GETFD) >= 0);
	/* Each is listed with the thread that has registered it. */
	say("there: %d regions", objects(ADAPTER("1"), "mr"));
	close(ours);
	close(other);
}

/* The last protection domain of a file goes while another thread is about to close our descriptor of it. */
static void emptied_in_a_call(void)
{
	struct ibv_context *ctx = open_device(ADAPTER("1"));
	struct ibv_pd *pd = ctx ? ibv_alloc_pd(ctx) : NULL;
	struct ibv_mr *mr = pd ? ibv_reg_mr(pd, p, PAGE, ALL) : NULL;
	NEED(mr && ibv_dereg_mr(mr) == 0);
	pay(pd, ALL);
	struct stop s = { .from = ctx->cmd_fd, .closes = true };
	stopped(&s);
	int gone = ibv_dealloc_pd(pd);
	say("emptied in a call: %d %d", gone, ibv_close_device(ctx));
	goes_on(&s);
	tell_left("emptied in a call");
}

/* What was asked for stays as long as a child has the file, and no longer. So does what the shim has
 * registered, if the program closes its own descriptor without another word: docs/limits.md. */
static void held_by_a_child(void)
{
	int fd = open_second(), ends[2];
	NEED(pipe(ends) == 0);
	fflush(stdout);
	pid_t child = fork();
	if (child == 0) {
		char c;
		close(ends[1]);
		_exit(read(ends[0], &c, 1) != 0);
	}
	close(ends[0]);
	close(fd);
	int regions = count_of("mr", "rxe1");
	say("held by a child: %d contexts, regions: %d", count_of("ctx", "rxe1"), regions >= 1);
	PROMISE(shimmed() || regions == 1);
	close(ends[1]);
	int status;
	NEED(waitpid(child, &status, 0) == child && status == 0);
	tell_left("and not");
}

static void in_flight(void)
{
	int fd = open_second(), ends[2];
	NEED(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
	send_fd(ends[0], fd, 0);
	close(fd);
	say("in flight: %d contexts", count_of("ctx", "rxe1"));
	uint32_t none;
	fd = receive_fd(ends[1], &none);
	close(ends[0]);
	close(ends[1]);
	uint32_t pd = raw_pd(fd);
	tell_whose("received", fd, pd, fd);
	close(fd);
	tell_left("received and closed");
}

/* libibverbs closes its descriptor; a duplicate is another. */
static void closed_by_its_function(void)
{
	struct ibv_context *ctx = open_device(ADAPTER("1"));
	NEED(ctx);
	struct ibv_pd *pd = ibv_alloc_pd(ctx);
	NEED(pd);
	uint32_t number = pd->handle;
	int other = dup(ctx->cmd_fd);
	struct asked a;
	NEED(raw_reg(other, &a, number, p, PAGE, ALL) == 0);
	say("ibv_close_device: %d", ibv_close_device(ctx));
	say("by the duplicate: %d, %d", raw_destroy(other, a.out.mr_handle), raw_dealloc(other, number));
	close(other);
	tell_left("closed");
}

/* The kernel does not say whether two descriptors are one. */
static void forbid_kcmp(void)
{
	struct sock_filter all[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_kcmp, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog filter = { .len = 4, .filter = all };
	NEED(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
	NEED(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) == 0);
}

/* A protection domain goes by whatever number of its file, also if it is libibverbs' own. */
static void deallocated(void)
{
	struct ibv_pd *pd = ibv_alloc_pd(second);
	NEED(pd);
	struct ibv_mr *mr = ibv_reg_mr(pd, p, 8 * PAGE, ALL);
	NEED(mr && ibv_dereg_mr(mr) == 0);
	int other = dup(second->cmd_fd);
	tell_whose("by a duplicate", other, pd->handle, second->cmd_fd);
	say("dealloc: %d", raw_dealloc(second->cmd_fd, pd->handle));
	close(other);
}

static void *map_with_its_own(void *arg)
{
	NEED(unshare(CLONE_FILES) == 0);
	*(volatile bool *)arg = true;
	return map_all_the_time(arg);
}

/* Where a thread with a table of its own has a descriptor of ours, the program's number is another file. */
static void beside_another_table(void)
{
	enum { ROUNDS = 2000, LOOKS = 100 };
	pthread_t t;
	int failed = 0;
	volatile bool begun = false;
	over = 0;
	NEED(pthread_create(&t, NULL, map_with_its_own, (void *)&begun) == 0);
	while (!begun)
		usleep(1000);
	for (int n = 0; n < ROUNDS; n++) {
		int at = 960 + n % 2;
		NEED(dup2(STDERR_FILENO, at) == at);
		for (int i = 0; i < LOOKS; i++)
			sched_yield();
		failed += close(at) != 0 || fcntl(at, F_GETFD) >= 0;
	}
	over = 1;
	NEED(pthread_join(t, NULL) == 0);
	say("closed beside another table: %d failed", failed);
}

int main(int argc, char **argv)
{
	if (argc > 1 && strcmp(argv[1], "refused") == 0)
		forbid_kcmp();
	r = rig();
	p = island(64);
	memset(p, 'a', 64 * PAGE);
	second = open_device(ADAPTER("1"));
	NEED(second);
	replaced();
	replaced_unseen();
	deallocated();
	closed();
	closed_by_a_daemon();
	under_our_numbers();
	of_the_same_device();
	held_by_a_child();
	in_flight();
	closed_by_its_function();
	taken_by_another_thread();
	replaced_in_a_call();
	emptied_in_a_call();
	beside_another_table();
	/* Last: its contexts may stay. */
	with_two_tables();
	say("end");
	return wrong != 0;
}
