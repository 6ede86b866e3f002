/*
 * Threads that are cancelled, and exceptions thrown by a signal handler, while memory is
 * mapped and unmapped: every destructor runs, every exception is caught.
 */
#include <atomic>
#include <csignal>
#include <cstdio>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <unistd.h>

static const int ROUNDS = 150;

static std::atomic<int> destroyed, caught;
static std::atomic<bool> running;

struct Guard {
	~Guard() { destroyed++; }
};

/* Nothing here has a destructor: an exception may come at any instruction. */
static void loop()
{
	for (;;) {
		void *p = mmap(nullptr, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		munmap(p, 4096);
		running = true;
	}
}

/* The compiler must not see that nothing in it throws. */
static void (*volatile const map_and_unmap)() = loop;

static void *cancelled(void *)
{
	Guard guard;
	pthread_setcanceltype(PTHREAD_CANCEL_ASYNCHRONOUS, nullptr);
	map_and_unmap();
	return nullptr;
}

static void cancel()
{
	for (int n = 0; n < ROUNDS; n++) {
		pthread_t thread;
		running = false;
		pthread_create(&thread, nullptr, cancelled, nullptr);
		while (!running)
			usleep(10);
		usleep(n % 7 * 20);
		pthread_cancel(thread);
		pthread_join(thread, nullptr);
	}
}

static void alarm_in(int us)
{
	itimerval once = {};
	once.it_value.tv_usec = us;
	setitimer(ITIMER_REAL, &once, nullptr);
}

/* Only the loop may be left so: setitimer(), for one, is declared not to throw. */
static void alarmed(int)
{
	if (running)
		throw 1;
	alarm_in(100);
}

static void throw_and_catch()
{
	struct sigaction action = {};
	action.sa_handler = alarmed;
	action.sa_flags = SA_NODEFER;
	sigaction(SIGALRM, &action, nullptr);
	for (int n = 0; n < ROUNDS; n++) {
		running = false;
		alarm_in(100 + n % 17 * 10);
		try {
			Guard guard;
			map_and_unmap();
		} catch (int) {
			caught++;
		}
	}
}

int main()
{
	cancel();
	printf("cancelled: %d destructors\n", destroyed.load());
	throw_and_catch();
	printf("thrown: %d destructors, %d caught\n", destroyed.load() - ROUNDS, caught.load());
	return 0;
}
