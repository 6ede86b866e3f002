/* Proves: every function of regall.h does what its comment says, with the shim on, inert and not there. */
/*
 * Says nothing as long as all is as documented, so that its output is the same
 * in every state; what is not goes to standard output, and the exit status is 1.
 * With REGALL=1 the shim must be there and at work.
 */
#include <dlfcn.h>
#include "expect.h"
#include "reserves.h"
#include "../include/regall.h"

#define HUGE_PAGE (2ul << 20)
#define EACH(f)                                                                                    \
	f(version) f(active) f(lookup) f(opt_out) f(opt_in) f(alloc) f(alloc_unregistered) f(free)     \
		f(stats) f(audit)

static struct {
#define FIELD(name) __typeof__(regall_##name) *name;
	EACH(FIELD)
} api;

/* What is expected of memory that nothing is in the way of. */
/* `pins`: memory is held. `keeps`: without a lock. */
static bool on, pins, keeps, limited, patched;

static bool env_is(const char *name, const char *value)
{
	const char *set = getenv(name);
	return set && strcmp(set, value) == 0;
}

static bool load(void)
{
	int found = 0, all = 0;
#define LOAD(name)                                                                                 \
	api.name = (__typeof__(regall_##name) *)dlsym(RTLD_DEFAULT, "regall_" #name);              \
	found += api.name != NULL;                                                                 \
	all++;
	EACH(LOAD)
	if (found == all)
		return true;
	HOLDS(found == 0);
	HOLDS(!env_is("REGALL", "1"));
	return false;
}

/* RLIMIT_MEMLOCK binds whoever has no CAP_IPC_LOCK; it is bit 14. */
static bool memlock_binds(void)
{
	struct rlimit limit;
	NEED(getrlimit(RLIMIT_MEMLOCK, &limit) == 0);
	char line[256];
	unsigned long long caps = 0;
	FILE *f = fopen("/proc/self/status", "r");
	while (f && fgets(line, sizeof line, f))
		sscanf(line, "CapEff: %llx", &caps);
	if (f)
		fclose(f);
	return limit.rlim_cur != RLIM_INFINITY && !(caps >> 14 & 1);
}

static void find_out(void)
{
	on = env_is("REGALL", "1");
	pins = on && !env_is("REGALL_PIN", "off");
	keeps = is_kept();
	limited = memlock_binds() || getenv("REGALL_LIMIT");
	struct regall_stats stats = { .size = sizeof stats };
	if (on && api.stats(&stats) == 0)
		patched = stats.sites_patched > 0;
}

/* Whether the kernel's VmFlags of the mapping that holds `p` have `flag`. */
static bool has_vm_flag(const void *p, const char *flag)
{
	char line[1024], word[8];
	bool inside = false, has = false;
	snprintf(word, sizeof word, " %s", flag);
	FILE *f = fopen("/proc/self/smaps", "r");
	NEED(f);
	while (fgets(line, sizeof line, f)) {
		unsigned long start, end;
		if (sscanf(line, "%lx-%lx ", &start, &end) == 2)
			inside = (uintptr_t)p >= start && (uintptr_t)p < end;
		else if (inside && strncmp(line, "VmFlags:", 8) == 0)
			has = strstr(line, word) != NULL;
	}
	fclose(f);
	return has;
}

/* The range that holds all of these bytes; all zeroes if there is none. */
static struct regall_range range_of(const void *p, size_t len)
{
	struct regall_range r = { 0 };
	IS(0, api.lookup(NULL, p, len, &r));
	HOLDS(r.start <= (uintptr_t)p && r.end >= (uintptr_t)p + len);
	return r;
}

/* `p` is held by the pin set, or it is said why not and that is a true reason. */
static void is_registered_at(int line, const void *p, size_t len)
{
	int before = wrong;
	struct regall_range r = range_of(p, len);
	if (!pins) {
		IS(0, r.held);
		IS(REGALL_OFF, r.reason);
	} else if (keeps && r.reason == REGALL_CACHE) {
		IS(0, r.held);
	} else if (!(limited && r.reason == REGALL_LIMIT)) {
		IS(REGALL_REGISTERED, r.reason);
		IS(keeps ? REGALL_HELD_KEPT : REGALL_HELD_PIN, r.held);
		IS(!keeps, has_vm_flag(p, "lo"));
	}
	IS(0, r.error);
	if (wrong != before)
		say("... of the memory in line %d", line);
}
#define IS_REGISTERED(p, len) is_registered_at(__LINE__, p, len)

static void is_out_at(int line, const void *p, size_t len, enum regall_reason reason)
{
	int before = wrong;
	struct regall_range r = range_of(p, len);
	IS(reason, r.reason);
	IS(0, r.held);
	HOLDS(!has_vm_flag(p, "lo"));
	if (wrong != before)
		say("... of the memory in line %d", line);
}
#define IS_OUT(p, len, reason) is_out_at(__LINE__, p, len, reason)

static void look_up(void)
{
	struct regall_range r;
	char *small = calloc(1, 100), *large = malloc(3 << 20);
	NEED(small && large);
	memset(large, 7, 3 << 20);
	/* What malloc maps is seen only where libc's own calls are patched. */
	if (patched) {
		IS_REGISTERED(small, 100);
		IS_REGISTERED(large, 3 << 20);
		IS_REGISTERED(look_up, 1);
	}
	quiet_point("malloc");
	free(large);
	free(small);

	char *p = anon(4);
	IS_REGISTERED(p, 4 * PAGE);
	struct regall_range was = range_of(p + 17, 1);
	IS(PROT_READ | PROT_WRITE, was.prot);
	IS(0, mprotect(p + PAGE, PAGE, PROT_READ));
	IS(PROT_READ, range_of(p + PAGE, PAGE).prot);
	HOLDS(range_of(p + PAGE, 1).id != was.id);
	IS((uintptr_t)p + PAGE, range_of(p + PAGE, PAGE).start);
	IS((uintptr_t)p + 2 * PAGE, range_of(p + PAGE, PAGE).end);
	IS(-ENOENT, api.lookup(NULL, p, 2 * PAGE, &r)); /* in several ranges */
	IS(-ENOENT, api.lookup(NULL, p + PAGE - 1, 2, &r));
	IS(0, mprotect(p + PAGE, PAGE, PROT_NONE));
	r = range_of(p + PAGE, PAGE);
	IS(REGALL_NO_ACCESS, r.reason);
	IS(0, r.held);
	IS(0, r.prot);
	IS(0, munmap(p + PAGE, PAGE));
	IS(-ENOENT, api.lookup(NULL, p + PAGE, 1, &r)); /* not mapped */
	IS(-ENOENT, api.lookup(NULL, NULL, 1, &r));
	IS(-EINVAL, api.lookup(NULL, p, 0, &r));
	IS(-EINVAL, api.lookup(NULL, p, 1, NULL));
	IS(0, munmap(p, 4 * PAGE));

	int fd = memory_file(PAGE);
	p = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	NEED(p != MAP_FAILED);
	IS(PROT_READ | PROT_WRITE | REGALL_PROT_SHARED, range_of(p, PAGE).prot);
	IS_REGISTERED(p, PAGE);
	munmap(p, PAGE);
	close(fd);
}

static void *looked_up;
static int said_in_handler = -1;

static void handler(int signal)
{
	(void)signal;
	struct regall_range r;
	said_in_handler = api.lookup(NULL, looked_up, PAGE, &r);
}

static void look_up_in_a_handler(void)
{
	looked_up = anon(1);
	signal(SIGUSR1, handler);
	raise(SIGUSR1);
	IS(0, said_in_handler);
	munmap(looked_up, PAGE);
}

static void out_and_in(void)
{
	char *p = anon(8);
	memset(p, 3, 8 * PAGE);
	/* Whole pages: those that hold any byte of it. */
	IS(0, api.opt_out(p + 2 * PAGE + 100, PAGE));
	IS_OUT(p + 2 * PAGE, 2 * PAGE, REGALL_OPTED_OUT);
	IS_REGISTERED(p, 2 * PAGE);
	IS_REGISTERED(p + 4 * PAGE, 4 * PAGE);
	HOLDS(all_are(p, 8 * PAGE, 3));
	IS(0, api.opt_out(p + 2 * PAGE, 1)); /* again */
	IS_OUT(p + 2 * PAGE, 2 * PAGE, REGALL_OPTED_OUT);
	/* It stays out, whatever becomes of its protection. */
	IS(0, mprotect(p + 2 * PAGE, 2 * PAGE, PROT_READ));
	IS_OUT(p + 2 * PAGE, 2 * PAGE, REGALL_OPTED_OUT);
	IS(0, mprotect(p + 2 * PAGE, 2 * PAGE, PROT_READ | PROT_WRITE));
	IS_OUT(p + 2 * PAGE, 2 * PAGE, REGALL_OPTED_OUT);
	memset(p + 2 * PAGE, 3, 2 * PAGE);
	IS_OUT(p + 2 * PAGE, 2 * PAGE, REGALL_OPTED_OUT);

	IS(0, api.opt_in(p + 2 * PAGE, 2 * PAGE));
	IS_REGISTERED(p + 2 * PAGE, 2 * PAGE);
	HOLDS(all_are(p, 8 * PAGE, 3));
	IS(0, api.opt_in(p, 8 * PAGE)); /* what never was out */
	IS_REGISTERED(p, 2 * PAGE);

	/* What is mapped there later starts registered again. */
	IS(0, api.opt_out(p, PAGE));
	HOLDS(mmap(p, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == p);
	IS_REGISTERED(p, PAGE);

	/* Some of it is not mapped: the rest is done. */
	IS(0, munmap(p + PAGE, PAGE));
	IS(-ENOMEM, api.opt_out(p, 3 * PAGE));
	IS_OUT(p, PAGE, REGALL_OPTED_OUT);
	IS_OUT(p + 2 * PAGE, PAGE, REGALL_OPTED_OUT);
	IS(-ENOMEM, api.opt_in(p, 3 * PAGE));
	IS_REGISTERED(p, PAGE);
	IS_REGISTERED(p + 2 * PAGE, PAGE);

	IS(-EINVAL, api.opt_out(p, 0));
	IS(-EINVAL, api.opt_in(p, 0));
	IS(-EINVAL, api.opt_out(p, SIZE_MAX));
	IS(-EINVAL, api.opt_in(p, SIZE_MAX));
	munmap(p, 8 * PAGE);
}

/* A part of a reserve that comes in again is one mapping with the rest of it. */
static void in_a_reserve(void)
{
	char *p = apart(8);
	open_more(p, 1);
	close_again(p, 1);
	IS(0, api.opt_out(p + 4 * PAGE, PAGE));
	IS_OUT(p + 4 * PAGE, PAGE, REGALL_NO_ACCESS);
	IS(0, api.opt_in(p + 4 * PAGE, PAGE));
	IS(1, mappings(p, 8));
	munmap(p - PAGE, 10 * PAGE);
}

/* mremap of many mappings with a hole behind them, which moves nothing: what was out stays out. */
static void out_over_mremap(void)
{
	enum { MANY = 64 };
	char *p = anon(MANY);
	IS(0, api.opt_out(p, MANY * PAGE));
	for (int n = 0; n < 12; n++)
		if (n % 2)
			IS(0, mprotect(p + n * PAGE, PAGE, PROT_READ));
	IS(0, munmap(p + (MANY - 1) * PAGE, PAGE));
	char *q = mremap(p, MANY * PAGE, MANY * PAGE, 0);
	HOLDS(q == p || q == MAP_FAILED);
	IS_OUT(p, PAGE, REGALL_OPTED_OUT);
	IS_OUT(p + PAGE, PAGE, REGALL_OPTED_OUT);
	IS_OUT(p + 12 * PAGE, (MANY - 13) * PAGE, REGALL_OPTED_OUT);
	munmap(p, MANY * PAGE);
}

static bool transparent_huge_pages(void)
{
	char text[64] = "[never]";
	FILE *f = fopen("/sys/kernel/mm/transparent_hugepage/enabled", "r");
	if (f) {
		if (!fgets(text, sizeof text, f))
			text[0] = '\0';
		fclose(f);
	}
	return strstr(text, "[never]") == NULL;
}

/* The same whether the shim is on or inert, but for who holds the memory. */
static void allocate(void)
{
	static const size_t sizes[] = { 1, PAGE, PAGE + 1, 100000, HUGE_PAGE, HUGE_PAGE + 1, 5 * HUGE_PAGE };
	for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
		void *in = NULL, *out = NULL;
		size_t n = sizes[i];
		IS(0, api.alloc(n, &in));
		IS(0, api.alloc_unregistered(n, &out));
		HOLDS(in && (uintptr_t)in % PAGE == 0);
		HOLDS(out && (uintptr_t)out % PAGE == 0);
		if (on) {
			IS_REGISTERED(in, n);
			IS_OUT(out, n, REGALL_OPTED_OUT);
		}
		HOLDS(all_are(in, n, 0));
		HOLDS(all_are(out, n, 0));
		memset(in, 1, n);
		memset(out, 1, n);
		if (on)
			IS_OUT(out, n, REGALL_OPTED_OUT);
		/* Huge pages of the system's pool (ht), or transparent ones asked for (hg). */
		if (n >= HUGE_PAGE && transparent_huge_pages())
			HOLDS(has_vm_flag(in, "ht") || has_vm_flag(in, "hg"));
		if (n >= HUGE_PAGE)
			IS(0, (uintptr_t)in % HUGE_PAGE);
		struct regall_range r;
		IS(0, api.free(out, n));
		if (i == 3)
			quiet_point("allocated");
		IS(0, api.free(in, n));
		if (on) {
			IS(-ENOENT, api.lookup(NULL, in, 1, &r));
			IS(-ENOENT, api.lookup(NULL, out, 1, &r));
		}
	}
	void *in, *untouched = &in;
	IS(-EINVAL, api.alloc(0, &untouched));
	IS(-EINVAL, api.alloc_unregistered(0, &untouched));
	IS(-EINVAL, api.alloc(PAGE, NULL));
	IS(-EINVAL, api.alloc_unregistered(PAGE, NULL));
	for (size_t n = SIZE_MAX / 2; n; n = n == SIZE_MAX ? 0 : SIZE_MAX) {
		IS(-ENOMEM, api.alloc(n, &untouched));
		IS(-ENOMEM, api.alloc_unregistered(n, &untouched));
	}
	HOLDS(untouched == &in);
}

static void give_back_what_is_not_theirs(void)
{
	void *p = NULL;
	IS(0, api.alloc(4 * PAGE, &p));
	IS(-EINVAL, api.free((char *)p + 1, 4 * PAGE));
	IS(-EINVAL, api.free(p, 0));
	IS(-EINVAL, api.free(p, SIZE_MAX));
	IS(0, api.free(p, 4 * PAGE));
}

static void count(void)
{
	struct regall_stats a = { .size = sizeof a }, b = { .size = sizeof b };
	IS(0, api.stats(&a));
	IS(sizeof a, a.size);
	char *p = anon(16);
	IS(0, api.stats(&b));
	HOLDS(b.events > a.events);
	HOLDS(b.mappings > 0);
	HOLDS(b.bytes_registered <= b.bytes_mapped);
	HOLDS(b.bytes_pinned <= b.bytes_registered);
	HOLDS(b.bytes_mapped - a.bytes_mapped >= 16 * PAGE);
	HOLDS(b.shim_bytes > 0 && b.shim_bytes < 256 << 20);
	HOLDS(b.resyncs > 0); /* the first list was read from the kernel */
	if (pins && !keeps && !limited) {
		HOLDS(b.pins > a.pins);
		HOLDS(b.bytes_pinned - a.bytes_pinned >= 16 * PAGE);
		HOLDS(b.bytes_pinned_total - a.bytes_pinned_total >= 16 * PAGE);
	}
	if (!pins || keeps) {
		IS(0, b.bytes_pinned);
		IS(0, b.pins);
	}
	if (!limited)
		HOLDS(b.budget > 0);
	munmap(p, 16 * PAGE);

	/* No more than out->size says is written. */
	memset(&b, 0xee, sizeof b);
	b.size = 16;
	IS(0, api.stats(&b));
	HOLDS(b.mappings > 0 && b.mappings < 1 << 20);
	HOLDS(all_are((char *)&b.bytes_mapped, sizeof b - 16, (char)0xee));
	struct { struct regall_stats s; char more[64]; } later = { .s = { .size = sizeof later } };
	IS(0, api.stats(&later.s)); /* a program that is newer than the library */
	b.size = 15;
	IS(-EINVAL, api.stats(&b));
	IS(-EINVAL, api.stats(NULL));
}

/* A call without a site that could be patched: the number is not loaded in front
 * of the instruction, which is jumped to. */
static void *mmap_unseen(void)
{
	register long flags __asm__("r10") = MAP_PRIVATE | MAP_ANONYMOUS;
	register long fd __asm__("r8") = -1;
	register long offset __asm__("r9") = 0;
	long number = SYS_mmap;
	__asm__ volatile("jmp 2f\n\t.byte 0x0f, 0x1f, 0x44, 0, 0\n2:\tsyscall"
			 : "+a"(number)
			 : "D"(0l), "S"(2 * PAGE), "d"((long)(PROT_READ | PROT_WRITE)), "r"(flags), "r"(fd), "r"(offset)
			 : "rcx", "r11", "memory");
	NEED(number > 0);
	return (void *)number;
}

static void audit(void)
{
	char *p = mmap_unseen();
	IS(0, api.audit());
	IS_REGISTERED(p, 2 * PAGE);
	munmap(p, 2 * PAGE);
	IS(0, api.audit());
	struct regall_range r;
	IS(-ENOENT, api.lookup(NULL, p, 1, &r));
}

/* A child has a ledger of its own, and what it maps itself is registered. */
static void child(void)
{
	char *before = anon(2);
	before[0] = 1;
	pid_t pid = fork();
	NEED(pid >= 0);
	if (pid == 0) {
		wrong = 0;
		IS(1, api.active());
		if (pins && !env_is("REGALL_FORK", "all"))
			HOLDS(!has_vm_flag(before, "lo"));
		if (pins && !env_is("REGALL_FORK", "all"))
			IS_OUT(before, 2 * PAGE, REGALL_INHERITED);
		IS_REGISTERED(anon(2), 2 * PAGE);
		void *p = NULL;
		IS(0, api.alloc(PAGE, &p));
		IS_REGISTERED(p, PAGE);
		IS(0, api.free(p, PAGE));
		/* Whoever allocates here is not a child that execs at once: all of it comes in. */
		IS_REGISTERED(before, 2 * PAGE);
		if (pins && !keeps && !limited)
			HOLDS(has_vm_flag(before, "lo") && has_vm_flag(&wrong, "lo"));
		IS(0, api.alloc_unregistered(PAGE, &p));
		IS_OUT(p, PAGE, REGALL_OPTED_OUT);
		IS(0, api.free(p, PAGE));
		struct regall_stats stats = { .size = sizeof stats };
		IS(0, api.stats(&stats));
		_exit(wrong != 0);
	}
	int status = -1;
	NEED(waitpid(pid, &status, 0) == pid);
	IS(0, status);
	munmap(before, 2 * PAGE);
}

static void inert(void)
{
	char *p = anon(1);
	struct regall_range r;
	struct regall_stats stats = { .size = sizeof stats };
	IS(0, api.active());
	IS(-ENOSYS, api.lookup(NULL, p, PAGE, &r));
	IS(-ENOSYS, api.opt_out(p, PAGE));
	IS(-ENOSYS, api.opt_in(p, PAGE));
	IS(-ENOSYS, api.stats(&stats));
	IS(-ENOSYS, api.audit());
	IS(-EINVAL, api.lookup(NULL, p, 0, &r));
	IS(-EINVAL, api.lookup(NULL, p, 1, NULL));
	IS(-EINVAL, api.stats(NULL));
	HOLDS(!has_vm_flag(p, "lo"));
	munmap(p, PAGE);
	allocate();
	give_back_what_is_not_theirs();
}

int main(void)
{
	if (load()) {
		find_out();
		IS(REGALL_VERSION, api.version());
		if (on) {
			IS(1, api.active());
			look_up();
			look_up_in_a_handler();
			out_and_in();
			in_a_reserve();
	out_over_mremap();
			allocate();
			give_back_what_is_not_theirs();
			count();
			audit();
			child();
		} else {
			inert();
		}
	}
	quiet_point("end");
	return wrong != 0;
}
