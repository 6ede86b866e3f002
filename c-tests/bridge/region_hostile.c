/* Proves: a cookie can't be guessed, and whatever is written into an owner's table, nobody crashes, hangs or gets at what is not registered. */
#include <glob.h>
#include <sys/prctl.h>
#include "region.h"

static void guess(void)
{
	enum { REGIONS = 100, GUESSES = 1000000 };
	char *p = anon(1), byte = 7;
	uint64_t cookie = 0;
	for (int i = 0; i < REGIONS; i++)
		cookie = region_of(p, PAGE, BOTH, 0);
	pid_t reader = fork();
	if (reader == 0) {
		struct regall_segment to = piece(&byte, 1);
		struct regall_done done;
		uint64_t pid = cookie & 0x3fffff;
		for (int i = 0; i < GUESSES; i++) {
			uint64_t high = draw(1ull << 21) << 21 | draw(1ull << 21);
			int e = regall_region_read(high << 22 | pid, 0, &to, 1, &done);
			if (e != -EINVAL || done.bytes != 0)
				IS(-EINVAL, e);
		}
		IS(7, byte);
		IS(0, regall_region_read(cookie, 0, &to, 1, &done));
		exit(wrong != 0);
	}
	int status = -1;
	NEED(waitpid(reader, &status, 0) == reader);
	IS(0, status);
}

enum { COOKIES = 64, READERS = 2, SECONDS = 3 };
struct hostile {
	uint64_t cookie[COOKIES];
	uint64_t reads[READERS], good[READERS], writes, made;
	bool over;
};

/* The table of the process `pid`, as any process of the user can have it. */
static uint64_t *table_of(pid_t pid, size_t *bytes)
{
	char name[96];
	glob_t found;
	struct stat st;
	snprintf(name, sizeof name, "/dev/shm/regall-%d/%d.*.regions", (int)geteuid(), (int)pid);
	NEED(glob(name, 0, NULL, &found) == 0 && found.gl_pathc == 1);
	int fd = open(found.gl_pathv[0], O_RDWR | O_CLOEXEC);
	NEED(fd >= 0 && fstat(fd, &st) == 0);
	uint64_t *table = mmap(NULL, (size_t)st.st_size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	NEED(table != MAP_FAILED);
	close(fd);
	globfree(&found);
	*bytes = (size_t)st.st_size;
	return table;
}

/* Words that something might be made of. */
static uint64_t word(const struct hostile *h, uint64_t near)
{
	switch (draw(8)) {
	case 0:
		return draw(8);
	case 1:
		return UINT64_MAX - draw(3);
	case 2:
		return near + draw(1 << 16);
	case 3:
		return near & ~0xffful;
	case 4:
		return h->cookie[draw(COOKIES)];
	case 5:
		return draw(1 << 20);
	case 6:
		return 1ul << draw(64);
	default:
		return draw(UINT64_MAX) << 16 | draw(1 << 16);
	}
}

static void attack(struct hostile *h, pid_t owner, uint64_t near)
{
	size_t bytes, first = PAGE / 8;
	uint64_t *table = table_of(owner, &bytes);
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	while (!h->over) {
		/* Most of all slots, live cookies and all; now and then, the head. */
		size_t n = draw(1000) == 0 ? draw(3) : draw(4) ? first + draw(256 * 8) : first + draw(bytes / 8 - first);
		uint64_t was = table[n];
		__atomic_store_n(&table[n], word(h, near), __ATOMIC_RELAXED);
		h->writes++;
		/* Some of what it was comes back, so that there is something left to find. */
		if (draw(3) || n < 3)
			__atomic_store_n(&table[n], was, __ATOMIC_RELAXED);
		if (draw(64) == 0)
			sched_yield();
	}
	exit(0);
}

/* Reads and writes, with nothing mapped behind its buffer. */
static void suffer(struct hostile *h, int me)
{
	char *around = reserve(34);
	NEED(mprotect(around + PAGE, 32 * PAGE, PROT_READ | PROT_WRITE) == 0);
	char *got = around + PAGE;
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	while (!h->over) {
		uint64_t cookie = h->cookie[draw(COOKIES)], len = 1 + draw(32 * PAGE);
		if (draw(16) == 0)
			cookie ^= draw(1ull << 40) << 22;
		struct regall_segment s = piece(got + 32 * PAGE - len, len);
		struct regall_done done;
		int e;
		memset(got, 'g', 32 * PAGE - len);
		switch (draw(8)) {
		case 0:
			e = regall_region_copy(cookie, draw(10), h->cookie[draw(COOKIES)], draw(10), len, &done);
			break;
		default:
			e = regall_region_read(cookie, draw(4) ? 0 : draw(1 << 20), &s, 1, &done);
		}
		HOLDS(done.bytes <= len);
		HOLDS(all_are(got, 32 * PAGE - len, 'g'));
		h->reads[me]++;
		h->good[me] += e == 0 && done.bytes > 0;
		if (e && e != -EINVAL && e != -ESTALE && e != -EFAULT && e != -EACCES && e != -EPERM)
			IS(0, e);
	}
	/* Its memory is still what the ledger says. */
	quiet_point("a reader after the attack");
	exit(wrong != 0);
}

static void table(void)
{
	struct hostile *h = shared_memory(sizeof *h);
	/* A table that says longer regions has others write behind them: nothing is mapped there. */
	char *p = reserve(64 + 40), *bystander = anon(16);
	NEED(mprotect(p, 64 * PAGE, PROT_READ | PROT_WRITE) == 0);
	struct regall_segment s[20];
	pid_t other[READERS + 1];
	uint64_t held[COOKIES];
	memset(bystander, 'b', 16 * PAGE);
	for (int i = 0; i < COOKIES; i++)
		h->cookie[i] = held[i] = region_of(p + i % 32 * PAGE, 100, BOTH, 0);
	pid_t me = getpid();
	for (int i = 0; i <= READERS; i++) {
		other[i] = fork();
		seed_of_draws += (uint64_t)i * 1000;
		if (other[i] == 0 && i < READERS)
			suffer(h, i);
		if (other[i] == 0)
			attack(h, me, (uint64_t)(uintptr_t)p);
	}
	time_t end = time(NULL) + SECONDS;
	while (time(NULL) < end) {
		int i = (int)draw(COOKIES);
		/* What it knows of its own regions is nobody's to change. */
		IS(0, regall_region_destroy(held[i]));
		IS(-EINVAL, regall_region_destroy(held[i]));
		size_t n = draw(2) ? 1 : 20;
		for (size_t k = 0; k < n; k++)
			s[k] = piece(p + draw(64) * PAGE + draw(100), draw(3000));
		IS(0, regall_region_create(s, n, BOTH, draw(2) ? REGALL_REGION_NOTIFY : 0, &held[i]));
		h->cookie[i] = held[i];
		h->made++;
		struct regall_use use[4];
		HOLDS(regall_region_used(use, 4) <= COOKIES && regall_region_uses(held[draw(COOKIES)]) >= 0);
		/* Memory goes, and regions with it. */
		if (draw(4) == 0) {
			char *q = p + draw(64) * PAGE;
			NEED(mmap(q, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == q);
		}
	}
	h->over = true;
	for (int i = 0; i <= READERS; i++) {
		int status = -1;
		NEED(waitpid(other[i], &status, 0) == other[i]);
		IS(0, status);
	}
	for (int i = 0; i < COOKIES; i++)
		IS(0, regall_region_destroy(held[i]));
	HOLDS(h->reads[0] > 1000 && h->good[0] > 100 && h->writes > 10000 && h->made > 100);
	if (getenv("REGION_COUNTS"))
		say("reads %lu, good %lu, words %lu, regions %lu", h->reads[0], h->good[0], h->writes, h->made);
	quiet_point("the owner after the attack");
}

int main(int argc, char **argv)
{
	static const struct chapter all[] = { { "guess", guess }, { "table", table } };
	return run_chapter(argc, argv, all, sizeof all / sizeof *all, 60);
}
