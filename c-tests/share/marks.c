/* Proves: a protection key, a NUMA policy, advice and a seal stay with private memory, in a child as well, whatever is done with it. */
/*
 * marks [-t] [-b] [WORD...]: for each kind of mark, what the kernel says of the memory (the flags
 * of /proc/self/smaps that a program can ask for, the key, the policy) after each thing that
 * can be done to it, in the parent and in a child. Words: key, seal, policy, advice; all.
 *
 *   -t  another thread lives meanwhile
 *   -b  the memory must be a memfd's at first (REGALL_SHARE=heap), or nothing is tested
 *
 * Each is done in a process of its own: memory that no peer wants is left private after a while.
 */
#include <linux/mempolicy.h>
#include <pthread.h>
#include "../check.h"

#define MIB (1ul << 20)
#define BYTES (3 * MIB)
/* The middle of it is marked. */
#define FROM MIB
#define MARKED MIB

#ifndef SYS_mseal
#define SYS_mseal 462
#endif

static bool threads, backed;
static int key = -1;
static char *(*prepare)(void);
static const char *kind;

/* Lines `label: pages xFLAGS`, where neighbours say different things, of `bytes` at `p`. */
static void look(const char *label, const char *p, size_t bytes)
{
	static const char wanted[] = " rd wr ex lo lf dc wf dd hg nh mg rr sr sl ";
	char line[1024], said[256] = "", now[128];
	unsigned long start = 0, end = 0, pkey = 0;
	size_t pages = 0;
	FILE *f = fopen("/proc/self/smaps", "r");
	NEED(f);
	char before[128] = "";
	while (fgets(line, sizeof line, f)) {
		unsigned long a, b;
		if (sscanf(line, "%lx-%lx ", &a, &b) == 2) {
			start = a < (uintptr_t)p ? (uintptr_t)p : a;
			end = b > (uintptr_t)p + bytes ? (uintptr_t)p + bytes : b;
			pkey = 0;
		} else if (sscanf(line, "ProtectionKey: %lu", &pkey) == 1) {
			continue;
		} else if (strncmp(line, "VmFlags:", 8) == 0 && start < end) {
			snprintf(now, sizeof now, "key %lu", pkey);
			for (char *w = strtok(line + 8, " \n"); w; w = strtok(NULL, " \n")) {
				char word[16];
				snprintf(word, sizeof word, " %.10s ", w);
				if (strstr(wanted, word))
					strcat(strcat(now, " "), w);
			}
			if (strcmp(before, now) != 0 && pages > 0) {
				snprintf(said + strlen(said), sizeof said - strlen(said), "; %zu %s", pages, before);
				pages = 0;
			}
			strcpy(before, now);
			pages += (end - start) / PAGE;
		}
	}
	fclose(f);
	snprintf(said + strlen(said), sizeof said - strlen(said), "; %zu %s", pages, before);
	int mode = -1;
	unsigned long nodes[16] = { 0 };
	long r = syscall(SYS_get_mempolicy, &mode, nodes, 1024ul, p + bytes / 2, MPOL_F_ADDR);
	if (r == 0)
		say("%s %s%s; policy %d %lx", kind, label, said, mode, nodes[0]);
	else
		say("%s %s%s", kind, label, said);
}

static char *fresh(void)
{
	char *p = anon(BYTES / PAGE), line[512];
	bool found = false;
	memset(p, 1, BYTES);
	FILE *f = fopen("/proc/self/maps", "r");
	NEED(f);
	while (fgets(line, sizeof line, f))
		found |= strtoul(line, NULL, 16) <= (uintptr_t)p && strstr(line, " rw-s ") && strstr(line, "/memfd:regall");
	fclose(f);
	if (backed && !found)
		say("%s: it is not shared", kind);
	return p;
}

static void *idle(void *arg)
{
	pause();
	return arg;
}

/* Runs it in a process of its own. */
static void apart(void (*run)(void))
{
	pthread_t t;
	pid_t pid = fork();
	NEED(pid >= 0);
	if (pid == 0) {
		if (threads)
			NEED(pthread_create(&t, NULL, idle, NULL) == 0);
		run();
		_exit(0);
	}
	int status;
	NEED(waitpid(pid, &status, 0) == pid);
	if (status)
		say("%s: ended with %x", kind, (unsigned)status);
}

static char *with_key(void)
{
	char *p = fresh();
	NEED(pkey_mprotect(p + FROM, MARKED, PROT_READ | PROT_WRITE, key) == 0);
	return p;
}

static char *with_policy(void)
{
	char *p = fresh();
	unsigned long nodes[16] = { 1 };
	NEED(syscall(SYS_mbind, p + FROM, MARKED, MPOL_BIND, nodes, 1024ul, 0) == 0);
	return p;
}

static int advice;

static char *with_advice(void)
{
	char *p = fresh();
	madvise(p + FROM, MARKED, advice);
	return p;
}

static char *with_more(void)
{
	char *p = with_advice();
	madvise(p + FROM, MARKED, MADV_DONTDUMP);
	return p;
}

static int status_of(pid_t pid)
{
	int status;
	NEED(waitpid(pid, &status, 0) == pid);
	return status;
}

static void forks(const char *label, char *p, size_t bytes, bool deeper)
{
	pid_t pid = fork();
	if (pid < 0) {
		say("%s fork: %s", kind, strerrorname_np(errno));
		return;
	}
	if (pid == 0) {
		char name[64];
		snprintf(name, sizeof name, "%s, in a child", label);
		look(name, p, bytes);
		if (deeper) {
			madvise(p, bytes, MADV_DONTNEED);
			snprintf(name, sizeof name, "%s, in a child, emptied", label);
			look(name, p, bytes);
		}
		_exit(0);
	}
	int status = status_of(pid);
	if (status)
		say("%s %s: the child ended with %x", kind, label, (unsigned)status);
}

static void forked(void)
{
	char *p = prepare();
	look("as it is", p, BYTES);
	forks("forked", p, BYTES, true);
	look("after a fork", p, BYTES);
	madvise(p, BYTES, MADV_DONTNEED);
	look("emptied", p, BYTES);
	forks("emptied", p, BYTES, false);
}

static void made_executable(void)
{
	char *p = prepare();
	CALL_AS("executable", mprotect(p + FROM, MARKED, PROT_READ | PROT_EXEC));
	look("executable", p, BYTES);
	CALL_AS("writable again", mprotect(p + FROM, MARKED, PROT_READ | PROT_WRITE));
	madvise(p, BYTES, MADV_DONTNEED);
	look("emptied after that", p, BYTES);
	forks("then forked", p, BYTES, false);
}

static void left_behind(void)
{
	char *p = prepare();
	char *q = mremap(p + FROM, MARKED, MARKED, MREMAP_MAYMOVE | MREMAP_DONTUNMAP, NULL);
	if (!told("MREMAP_DONTUNMAP", q != MAP_FAILED))
		return;
	look("left behind", p, BYTES);
	look("moved", q, MARKED);
	forks("moved", q, MARKED, true);
	look("left behind after that", p, BYTES);
}

static void grown(void)
{
	char *p = prepare();
	NEED(munmap(p, FROM) == 0 && munmap(p + FROM + MARKED, BYTES - FROM - MARKED) == 0);
	char *q = mremap(p + FROM, MARKED, 4 * MIB, MREMAP_MAYMOVE);
	if (!told("mremap", q != MAP_FAILED))
		return;
	look("grown", q, 4 * MIB);
	forks("grown", q, 4 * MIB, false);
	look("grown and forked", q, 4 * MIB);
}

/* Everything that may put other memory in its place. */
static void all(void)
{
	apart(forked);
	apart(made_executable);
	apart(left_behind);
	apart(grown);
}

/* What a key forbids it forbids a child, and all of it may be forbidden. */
static void forbidden(void)
{
	for (int rights = 0; rights < 3; rights++) {
		char *p = with_key();
		NEED(pkey_set(key, (unsigned)rights) == 0);
		pid_t pid = fork();
		NEED(pid >= 0);
		if (pid == 0) {
			if (rights == 1)
				(void)*(volatile char *)(p + FROM);
			*(volatile char *)(p + FROM) = 2;
			_exit(0);
		}
		int status = status_of(pid);
		say("rights %d: a child ends with %x", rights, (unsigned)status);
		NEED(pkey_set(key, 0) == 0);
		say("bytes %d", all_are(p, BYTES, 1));
		look("afterwards", p, BYTES);
		munmap(p, BYTES);
	}
}

static void keys(void)
{
	key = pkey_alloc(0, 0);
	if (key < 0) {
		say("no keys");
		return;
	}
	kind = "key";
	prepare = with_key;
	all();
	apart(forbidden);
	pkey_free(key);
}

static void sealed(void)
{
	char *p = fresh();
	if (syscall(SYS_mseal, p + FROM, MARKED, 0ul) != 0) {
		say("no mseal: %s", strerrorname_np(errno));
		return;
	}
	look("as it is", p, BYTES);
	for (int i = 0; i < 2; i++) {
		forks("forked", p, BYTES, false);
		look("after a fork", p, BYTES);
		say("bytes %d", all_are(p, BYTES, 1));
	}
	CALL_AS("munmap", munmap(p + FROM, PAGE));
	CALL_AS("mprotect", mprotect(p + FROM, PAGE, PROT_READ));
	MAP_AS("mremap that grows", mremap(p + FROM, MARKED, 2 * MARKED, MREMAP_MAYMOVE));
	MAP_AS("mremap that shrinks", mremap(p + FROM, MARKED, PAGE, 0));
	MAP_AS("MREMAP_DONTUNMAP", mremap(p + FROM, MARKED, MARKED, MREMAP_MAYMOVE | MREMAP_DONTUNMAP, NULL));
	MAP_AS("MAP_FIXED", mmap(p + FROM, PAGE, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0));
	say("bytes %d", all_are(p, BYTES, 1));
	CALL_AS("MADV_DONTNEED", madvise(p + FROM, MARKED, MADV_DONTNEED));
	say("empty %d", all_are(p + FROM, MARKED, 0));
	memset(p + FROM, 3, MARKED);
	pid_t pid = fork();
	NEED(pid >= 0);
	if (pid == 0) {
		bool right = all_are(p, FROM, 1) && all_are(p + FROM, MARKED, 3);
		memset(p, 4, BYTES);
		CALL_AS("MADV_DONTNEED", madvise(p, BYTES, MADV_DONTNEED));
		say("empty %d", all_are(p, BYTES, 0));
		_exit(right ? 0 : 1);
	}
	reap("child", pid);
	say("bytes %d", all_are(p, FROM, 1) && all_are(p + FROM, MARKED, 3));
	CALL_AS("mseal of what is not there", syscall(SYS_mseal, p, 1ul << 40, 0ul));
}

/* What is sealed and could not be written to is not to be emptied either. */
static void sealed_read_only(void)
{
	static const struct {
		int number;
		const char *name;
	} some[] = {
		{ MADV_DONTNEED, "MADV_DONTNEED" },	{ MADV_FREE, "MADV_FREE" },	  { MADV_REMOVE, "MADV_REMOVE" },
		{ MADV_WIPEONFORK, "MADV_WIPEONFORK" }, { MADV_DONTFORK, "MADV_DONTFORK" }, { MADV_KEEPONFORK, "MADV_KEEPONFORK" },
	};
	char *p = fresh();
	NEED(mprotect(p + FROM, MARKED, PROT_READ) == 0);
	NEED(syscall(SYS_mseal, p + FROM, MARKED, 0ul) == 0);
	for (size_t i = 0; i < sizeof some / sizeof some[0]; i++)
		CALL_AS(some[i].name, madvise(p + FROM, MARKED, some[i].number));
	forks("read-only", p, BYTES, true);
	say("bytes %d", all_are(p, BYTES, 1));
}

/* A child finds it wiped, though nobody can write to it. */
static void sealed_wiped(void)
{
	char *p = fresh();
	NEED(madvise(p + FROM, MARKED, MADV_WIPEONFORK) == 0);
	NEED(mprotect(p + FROM, MARKED, PROT_READ) == 0);
	NEED(syscall(SYS_mseal, p + FROM, MARKED, 0ul) == 0);
	pid_t pid = fork();
	if (pid < 0) {
		told("fork of what is to be wiped", false);
		return;
	}
	if (pid == 0)
		_exit(all_are(p, FROM, 1) && all_are(p + FROM, MARKED, 0) ? 0 : 1);
	reap("child", pid);
	say("bytes %d", all_are(p, BYTES, 1));
}

/* Calls that a seal is against lose nothing: not the locks of a dozen mappings beside it,
 * and they say so. */
static void sealed_among_locks(void)
{
	char *p = anon(64), *other = anon(1);
	memset(p, 1, 64 * PAGE);
	for (int i = 0; i < 32; i += 2)
		NEED(mlock(p + (size_t)i * PAGE, PAGE) == 0);
	NEED(syscall(SYS_mseal, p + 40 * PAGE, 8 * PAGE, 0ul) == 0);
	CALL_AS("munmap", munmap(p, 64 * PAGE));
	MAP_AS("MAP_FIXED", mmap(p, 64 * PAGE, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0));
	for (int i = 0; i < 32; i++)
		CALL_AS(i % 2 ? "not locked" : "locked", madvise(p + (size_t)i * PAGE, PAGE, MADV_DONTNEED));
	*other = 2;
	MAP_AS("mremap onto it", mremap(other, PAGE, PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, p + 40 * PAGE));
	other = fresh();
	MAP_AS("mremap of shared memory onto it",
	       mremap(other, 4 * PAGE, 4 * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, p + 40 * PAGE));
	say("bytes %d", all_are(other, BYTES, 1) && all_are(p + 32 * PAGE, 32 * PAGE, 1));
}

static void seals(void)
{
	kind = "seal";
	apart(sealed);
	if (syscall(SYS_mseal, NULL, 0ul, 0ul) != 0)
		return;
	apart(sealed_read_only);
	apart(sealed_wiped);
	apart(sealed_among_locks);
}

static void give_policy(const char *label, char *p, size_t bytes, int mode)
{
	unsigned long nodes[16] = { 1 };
	CALL_AS(label, syscall(SYS_mbind, p, bytes, mode, nodes, 1024ul, 0));
}

/* Memory with two policies has both wherever it becomes other memory; and a child's are its own. */
static void bound_twice(void)
{
	char *p = fresh(), *q = p + FROM + MARKED / 2;
	give_policy("the first policy", p + FROM, MARKED, MPOL_BIND);
	give_policy("the second policy", q, MARKED / 2, MPOL_INTERLEAVE);
	for (int turn = 0; turn < 3; turn++) {
		pid_t pid = fork();
		NEED(pid >= 0);
		if (pid == 0) {
			look("first half, in a child", p + FROM, 2 * PAGE);
			look("second half, in a child", q, 2 * PAGE);
			give_policy("in a child", p, BYTES, MPOL_PREFERRED);
			look("first half, as the child has it", p + FROM, 2 * PAGE);
			_exit(all_are(p, BYTES, 1) ? 0 : 1);
		}
		reap("a child with a policy", pid);
		look("first half", p + FROM, 2 * PAGE);
		look("second half", q, 2 * PAGE);
		if (turn == 1 && !threads) /* what is frozen is sealed */
			syscall(SYS_mseal, p + FROM, MARKED, 0ul);
	}
	say("bytes %d", all_are(p, BYTES, 1));
}

static void policies(void)
{
	unsigned long nodes[16] = { 1 };
	char *p = anon(1);
	if (syscall(SYS_mbind, p, PAGE, MPOL_BIND, nodes, 1024ul, 0) != 0) {
		say("no mbind: %s", strerrorname_np(errno));
		return;
	}
	kind = "policy";
	prepare = with_policy;
	all();
	apart(bound_twice);
}

static void advices(void)
{
	static const struct {
		int number;
		const char *name;
	} some[] = {
		{ MADV_HUGEPAGE, "hugepage" }, { MADV_NOHUGEPAGE, "nohugepage" }, { MADV_MERGEABLE, "mergeable" },
		{ MADV_RANDOM, "random" },     { MADV_SEQUENTIAL, "sequential" }, { MADV_DONTDUMP, "dontdump" },
	};
	for (size_t i = 0; i < sizeof some / sizeof some[0]; i++) {
		kind = some[i].name;
		advice = some[i].number;
		prepare = with_advice;
		all();
	}
	kind = "nohugepage and dontdump";
	advice = MADV_NOHUGEPAGE;
	prepare = with_more;
	all();
}

int main(int argc, char **argv)
{
	int at = 1;
	for (; at < argc && argv[at][0] == '-'; at++) {
		threads |= argv[at][1] == 't';
		backed |= argv[at][1] == 'b';
	}
	static const struct {
		const char *word;
		void (*run)(void);
	} parts[] = { { "key", keys }, { "seal", seals }, { "policy", policies }, { "advice", advices } };
	for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++) {
		bool wanted = at == argc;
		for (int k = at; k < argc; k++)
			wanted |= strcmp(argv[k], parts[i].word) == 0;
		if (wanted)
			parts[i].run();
	}
	return 0;
}
