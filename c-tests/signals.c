/* Proves: handlers that map memory, timers that interrupt memory calls, and jumps out of handlers, as without the shim. */
#include <pthread.h>
#include <setjmp.h>
#include <sys/time.h>
#include "check.h"

static volatile sig_atomic_t fired;
static sigjmp_buf back;

static void maps(int sig)
{
	(void)sig;
	int saved = errno;
	char *p = mmap(NULL, 8 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	p[0] = 1;
	mprotect(p, PAGE, PROT_NONE);
	munmap(p, 8 * PAGE);
	fired++;
	errno = saved;
}

static void jumps(int sig)
{
	(void)sig;
	fired++;
	siglongjmp(back, 1);
}

static void start_timer(int usec)
{
	struct itimerval t = { { 0, usec }, { 0, usec } };
	setitimer(ITIMER_REAL, &t, NULL);
}

static void handle(void (*f)(int), int flags)
{
	struct sigaction a = { .sa_handler = f, .sa_flags = flags };
	sigemptyset(&a.sa_mask);
	NEED(sigaction(SIGALRM, &a, NULL) == 0);
}

/* Memory calls as fast as they go, for as long as it takes the timer to fire n times. */
static bool work(int n)
{
	bool fine = true;
	for (long i = 0; fired < n; i++) {
		char *p = mmap(NULL, 32 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		fine &= p != MAP_FAILED;
		p[0] = (char)i;
		p = mremap(p, 32 * PAGE, 48 * PAGE, MREMAP_MAYMOVE);
		fine &= p != MAP_FAILED && p[0] == (char)i;
		fine &= mprotect(p, 4 * PAGE, PROT_READ) == 0;
		fine &= munmap(p, 48 * PAGE) == 0;
		fine &= munmap(p + 1, 1) == -1 && errno == EINVAL;
	}
	return fine;
}

static void *worker(void *arg)
{
	return work(*(int *)arg) ? arg : NULL;
}

static void storm(void)
{
	handle(maps, SA_RESTART);
	start_timer(500);
	say("storm %d", work(300));
	int n = 600;
	pthread_t t[4];
	for (int i = 0; i < 4; i++)
		NEED(pthread_create(&t[i], NULL, worker, &n) == 0);
	bool fine = true;
	for (int i = 0; i < 4; i++) {
		void *r;
		pthread_join(t[i], &r);
		fine &= r != NULL;
	}
	start_timer(0);
	say("storm in threads %d", fine);
	char *p = anon(8);
	quiet_claim(p, 8 * PAGE, "registered");
	quiet_point("storm");
}

/* What a jump leaves mapped is not known to the program: it may be anywhere in
 * work's circle. The shim must go on, and its books must still be right. */
static void jump(void)
{
	fired = 0;
	handle(jumps, SA_NODEFER);
	volatile int rounds = 0;
	if (sigsetjmp(back, 1)) {
		/* Once the timer is off, no other jump comes between here and the count. */
		start_timer(0);
		rounds = rounds + 1;
	}
	if (rounds < 200) {
		start_timer(300);
		work(1 << 30);
	}
	say("jumps %d", rounds);
	char *p = anon(8);
	p[0] = 1;
	quiet_claim(p, 8 * PAGE, "registered");
	quiet_point("jumps");
}

static void nested(int sig)
{
	fired++;
	char *p = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (fired < 20)
		raise(sig);
	munmap(p, PAGE);
}

static void alternate(void)
{
	char *small = anon(16);
	stack_t s = { .ss_sp = small, .ss_size = 16 * PAGE };
	NEED(sigaltstack(&s, NULL) == 0);
	fired = 0;
	struct sigaction a = { .sa_handler = maps, .sa_flags = SA_ONSTACK };
	NEED(sigaction(SIGUSR1, &a, NULL) == 0);
	for (int i = 0; i < 100; i++)
		raise(SIGUSR1);
	say("on another stack %d", fired);
	/* The smallest that the system allows, plus what a mapping handler may well need. */
	s.ss_size = (size_t)sysconf(_SC_MINSIGSTKSZ) + 16384;
	NEED(sigaltstack(&s, NULL) == 0);
	for (int i = 0; i < 100; i++)
		raise(SIGUSR1);
	say("on a small stack %d", fired);
	s.ss_flags = SS_DISABLE;
	NEED(sigaltstack(&s, NULL) == 0);
	fired = 0;
	a.sa_handler = nested;
	a.sa_flags = SA_NODEFER;
	NEED(sigaction(SIGUSR2, &a, NULL) == 0);
	raise(SIGUSR2);
	say("nested %d", fired);
	quiet_point("alternate");
}

/* A stack overflow caught on another stack, and left by a jump. */
static void overflow_handler(int sig)
{
	(void)sig;
	siglongjmp(back, 2);
}

static int deep(int n)
{
	volatile char block[4096];
	block[0] = (char)n;
	return n < 0 ? 0 : deep(n + 1) + block[0];
}

static void *overflow(void *arg)
{
	static char alt[65536];
	stack_t s = { .ss_sp = alt, .ss_size = sizeof alt };
	sigaltstack(&s, NULL);
	(void)arg;
	if (sigsetjmp(back, 1) == 0)
		return (void *)(intptr_t)(deep(0) == 12345);
	return (void *)1;
}

static void guard(void)
{
	struct sigaction a = { .sa_handler = overflow_handler, .sa_flags = SA_ONSTACK };
	NEED(sigaction(SIGSEGV, &a, NULL) == 0);
	pthread_t t;
	void *r;
	for (int i = 0; i < 5; i++) {
		NEED(pthread_create(&t, NULL, overflow, (void *)1) == 0);
		pthread_join(t, &r);
		NEED(r == (void *)1);
	}
	say("overflows caught");
	signal(SIGSEGV, SIG_DFL);
	quiet_point("guard");
}

/* Masks and dispositions are the program's. */
static void masks(void)
{
	sigset_t all, got;
	sigfillset(&all);
	sigprocmask(SIG_BLOCK, &all, NULL);
	for (int i = 0; i < 10; i++)
		munmap(anon(4), 4 * PAGE);
	sigprocmask(SIG_SETMASK, NULL, &got);
	int n = 0, handled = 0;
	for (int s = 1; s < 65; s++)
		n += sigismember(&got, s) == 1;
	for (int s = 1; s < 65; s++) {
		struct sigaction a;
		handled += sigaction(s, NULL, &a) == 0 && a.sa_handler != SIG_DFL;
	}
	say("blocked %d handled %d", n, handled);
	sigemptyset(&all);
	sigprocmask(SIG_SETMASK, &all, NULL);
}

int main(void)
{
	storm();
	jump();
	alternate();
	guard();
	masks();
	quiet_point("end");
	return 0;
}
