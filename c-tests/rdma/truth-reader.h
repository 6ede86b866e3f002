/*
 * The reader of truth.c: RDMA-reads the owner's memory by the keys of `regall dump`
 * and compares it with /proc/PID/mem, while the owner's threads sleep. With TRUTH_FETCHER
 * in the environment another node's fetcher (truth-fetch.h), which that command starts,
 * does the reading.
 */
#ifndef REGALL_TRUTH_READER_H
#define REGALL_TRUTH_READER_H

#include <dirent.h>
#include "truth-fetch.h"

/* A stretch of memory with its remote key, as the dump or the owner has it. */
struct line {
	uint64_t from, to;
	uint32_t rkey;
	char prot[5], hca[16];
	bool keyed, lent;
};

struct lines {
	struct line *line;
	size_t many, room;
};

struct piece {
	uint64_t at, n;
	const struct line *line;
	bool done;
	uint64_t sum[SUMS]; /* what the fetcher has read */
};

static struct {
	struct hello hello;
	struct end end;
	const char *regall;
	int mem;
	char *landing, *truth;
	struct ibv_mr *mr;
	int to_fetcher, from_fetcher; /* 0: there is none, the reader reads itself */
	struct account account[THREADS];
	struct piece piece[DEPTH];
	unsigned head, tail, answered; /* pieces head..tail are under way; answered..tail by the fetcher */
	struct quiet quiet;
	struct lines now, before;
	uint64_t ranges, bytes, loans, keys, rounds;
	double waited, dumped, read;
} r;

static bool owner_read(void *p, uint64_t from, size_t n)
{
	return pread(r.mem, p, n, (off_t)from) == (ssize_t)n;
}

/* What there is to say of an address: the kernel's line, ours, and what was done there. */
static void show(const struct line *l, uint64_t at)
{
	char path[64], text[512];
	unsigned long from, to;
	say("  line %lx-%lx %s rkey %#x hca %s%s", (unsigned long)l->from, (unsigned long)l->to, l->prot, l->rkey,
	    l->hca, l->lent ? ", registered by the program" : "");
	for (size_t i = 0; i < r.before.many; i++)
		if (r.before.line[i].from <= at && at < r.before.line[i].to)
			say("  a round ago %lx-%lx %s rkey %#x hca %s", (unsigned long)r.before.line[i].from,
			    (unsigned long)r.before.line[i].to, r.before.line[i].prot, r.before.line[i].rkey,
			    r.before.line[i].hca);
	snprintf(path, sizeof path, "/proc/%d/maps", r.hello.pid);
	FILE *f = fopen(path, "r");
	while (f && fgets(text, sizeof text, f))
		if (sscanf(text, "%lx-%lx", &from, &to) == 2 && from <= at && at < to)
			say("  maps %.*s", (int)strcspn(text, "\n"), text);
	if (f)
		fclose(f);
	for (size_t i = 0; i < r.now.many; i++)
		if (r.now.line[i].from <= at + (16 * PAGE) && at < r.now.line[i].to + (16 * PAGE))
			say("  near %lx-%lx %s rkey %#x hca %s", (unsigned long)r.now.line[i].from,
			    (unsigned long)r.now.line[i].to, r.now.line[i].prot, r.now.line[i].rkey,
			    r.now.line[i].hca);
	for (int t = 0; t < THREADS; t++)
		for (uint32_t i = 0, many = r.account[t].many; i < OPS && i < many; i++) {
			const struct op *op = &r.account[t].op[(many - 1 - i) % OPS];
			if (op->from <= at + 4 * PAGE && at < op->to + 4 * PAGE && op->round + 4 > r.quiet.round)
				say("  thread %d round %u: %s %lx-%lx", t, op->round, op->what, (unsigned long)op->from,
				    (unsigned long)op->to);
		}
}

static bool failed(const char *what, const struct line *l, uint64_t at)
{
	say("failed: %s at %lx; seed %lu round %u", what, (unsigned long)at, (unsigned long)r.hello.seed, r.quiet.round);
	if (l)
		show(l, at);
	return false;
}

/* What came of a read. */
static bool came(uint32_t slot, enum ibv_wc_status status)
{
	struct piece *got = &r.piece[slot];
	if (status != IBV_WC_SUCCESS) {
		say("RDMA read: %s", ibv_wc_status_str(status));
		return failed("not readable by its key", got->line, got->at);
	}
	got->done = true;
	return true;
}

static bool completion(const struct piece *p)
{
	struct ibv_wc wc;
	if (!completed(&r.end, &wc))
		return failed("no completion within 60 s", p->line, p->at);
	return came((uint32_t)wc.wr_id, wc.status);
}

/* The fetcher's next answer; it answers in order. */
static bool answer(void)
{
	struct answer a;
	if (!take(r.from_fetcher, &a, sizeof a))
		return failed("the fetcher is gone", NULL, 0);
	NEED(a.slot == r.answered++ % DEPTH);
	if (a.status == ~0u)
		return failed("no completion within 60 s", r.piece[a.slot].line, r.piece[a.slot].at);
	memcpy(r.piece[a.slot].sum, a.sum, sizeof a.sum);
	return came(a.slot, a.status);
}

static bool compare(const struct piece *p)
{
	size_t slot = (size_t)(p - r.piece);
	char *got = r.landing + slot * PIECE;
	if (!owner_read(r.truth, p->at, p->n))
		return failed("no /proc/PID/mem", p->line, p->at);
	if (r.to_fetcher) {
		uint64_t sum[SUMS] = { 0 };
		sum_pages(r.truth, p->n, sum);
		if (memcmp(sum, p->sum, sizeof sum) == 0)
			return true;
		struct request q = { .n = p->n, .slot = (uint32_t)slot, .show = 1 };
		NEED(give(r.to_fetcher, &q, sizeof q));
		/* Answers to what was asked for since come before it. */
		while (r.answered != r.tail)
			NEED(answer());
		NEED(take(r.from_fetcher, got, p->n));
	}
	if (memcmp(got, r.truth, p->n) == 0)
		return r.to_fetcher ? failed("another sum of the same bytes", p->line, p->at) : true;
	size_t first = 0, wrong = 0;
	for (size_t i = p->n; i-- > 0;)
		if (got[i] != r.truth[i]) {
			first = i;
			wrong++;
		}
	say("by DMA %02x, in memory %02x; %zu of %zu bytes differ", (unsigned char)got[first],
	    (unsigned char)r.truth[first], wrong, (size_t)p->n);
	return failed("wrong byte", p->line, p->at + first);
}

/* Waits for the oldest piece under way and compares it. */
static bool finish_one(void)
{
	struct piece *p = &r.piece[r.head % DEPTH];
	while (!p->done)
		if (!(r.to_fetcher ? answer() : completion(p)))
			return false;
	r.head++;
	return compare(p);
}

static bool read_line(const struct line *l)
{
	r.ranges++;
	for (uint64_t at = l->from, n; at < l->to; at += n) {
		n = l->to - at < PIECE ? l->to - at : PIECE;
		if (r.tail - r.head == DEPTH && !finish_one())
			return false;
		unsigned slot = r.tail++ % DEPTH;
		r.piece[slot] = (struct piece){ .at = at, .n = n, .line = l };
		struct request q = { .at = at, .n = n, .rkey = l->rkey, .slot = slot };
		if (r.to_fetcher)
			NEED(give(r.to_fetcher, &q, sizeof q));
		else
			post_read(&r.end, r.mr, r.landing + slot * PIECE, &q);
		r.bytes += n;
	}
	return true;
}

static void add(struct lines *all, struct line l)
{
	if (all->many == all->room) {
		all->room = all->room ? all->room * 2 : 1024;
		NEED(all->line = realloc(all->line, all->room * sizeof *all->line));
	}
	all->line[all->many++] = l;
}

static int by_all(const void *a, const void *b)
{
	const struct line *x = a, *y = b;
	if (x->from != y->from)
		return x->from < y->from ? -1 : 1;
	if (x->to != y->to)
		return x->to < y->to ? -1 : 1;
	return x->rkey < y->rkey ? -1 : x->rkey > y->rkey;
}

/* One line of the dump. False: it says something that can't be. */
static bool take_line(const char *text, int *busy)
{
	struct line l = { 0 };
	char state[16], reason[24], lkey[16], rkey[16], pin[24], access[128], word[4];
	unsigned long from, to;
	unsigned pd;
	if (text[0] == '#') {
		if (sscanf(text, "# regall %3s pid %*d start %*s generation %*s busy %d", word, busy) == 2)
			return true;
		if (sscanf(text, "# key %lx-%lx %u %127s %15s %15s", &from, &to, &pd, access, lkey, rkey) != 6)
			return false;
		strcpy(l.hca, "key");
		strcpy(l.prot, "?");
		/* What REGALL_ACCESS does not allow peers has no remote key. */
		l.keyed = pd == r.hello.pd && strstr(access, "remote-read") && rkey[0] != '-';
	} else {
		if (sscanf(text, "%lx-%lx %4s %15s %23s %15s %15s %23s %15s", &from, &to, l.prot, state, reason, lkey, rkey,
			   pin, l.hca) != 9)
			return false;
		l.keyed = strcmp(l.hca, "yes") == 0;
		/* On demand the page tables decide: there is nothing to be read. */
		if (l.prot[0] == '-' && r.hello.on_demand)
			l.keyed = false;
		/* Nobody has to wait for anything at a quiet point. */
		if (strcmp(l.hca, "off") == 0) {
			l.from = from, l.to = to;
			return failed("not registered", &l, from);
		}
	}
	l.from = from;
	l.to = to;
	l.rkey = (uint32_t)strtoul(rkey, NULL, 16);
	if (l.keyed && (rkey[0] == '-' || lkey[0] == '-'))
		return failed("registered, and has no key", &l, from);
	add(&r.now, l);
	return true;
}

/* Starts `regall dump`, without a shell: to start anything takes long in the guest. */
static FILE *start_dump(pid_t *pid)
{
	char number[16];
	char *argv[] = { (char *)r.regall, "dump", number, NULL }, *env[] = { NULL };
	int pipes[2];
	posix_spawn_file_actions_t to;
	snprintf(number, sizeof number, "%d", r.hello.pid);
	NEED(pipe2(pipes, O_CLOEXEC) == 0);
	NEED(posix_spawn_file_actions_init(&to) == 0 && posix_spawn_file_actions_adddup2(&to, pipes[1], 1) == 0);
	NEED(posix_spawn(pid, r.regall, &to, NULL, argv, env) == 0);
	posix_spawn_file_actions_destroy(&to);
	close(pipes[1]);
	return fdopen(pipes[0], "r");
}

/* Everything that `regall dump` says, sorted. */
static bool dump(void)
{
	char text[512];
	pid_t pid;
	for (int attempt = 0;; attempt++) {
		int busy = -1;
		bool good = true;
		r.now.many = 0;
		FILE *f = start_dump(&pid);
		NEED(f);
		while (good && fgets(text, sizeof text, f))
			good = take_line(text, &busy);
		if (!good)
			say("  of the dump: %s", text);
		int status;
		fclose(f);
		NEED(waitpid(pid, &status, 0) == pid);
		if (!good)
			return false;
		if (status != 0 || busy != 0) {
			say("dump: status %#x, busy %d", status, busy);
			if (attempt == 3)
				return failed("no dump", NULL, 0);
			continue;
		}
		if (r.now.many)
			qsort(r.now.line, r.now.many, sizeof *r.now.line, by_all);
		return true;
	}
}

/* Whether each thread of the owner sleeps where it does at a quiet point. */
static bool asleep(void)
{
	char path[128], text[256];
	snprintf(path, sizeof path, "/proc/%d/task", r.hello.pid);
	DIR *d = opendir(path);
	if (!d)
		return false;
	int many = 0, away = 0;
	for (struct dirent *e; (e = readdir(d));) {
		if (e->d_name[0] == '.')
			continue;
		snprintf(path, sizeof path, "/proc/%d/task/%.16s/syscall", r.hello.pid, e->d_name);
		int fd = open(path, O_RDONLY);
		ssize_t n = fd >= 0 ? read(fd, text, sizeof text - 1) : 0;
		if (fd >= 0)
			close(fd);
		text[n > 0 ? n : 0] = 0;
		long call = -1;
		unsigned long word = 0;
		sscanf(text, "%ld %lx", &call, &word);
		bool first = atoi(e->d_name) == r.hello.pid;
		bool rests = first ? call == SYS_read : call == SYS_futex && word == r.hello.go;
		many++;
		away += !rests;
	}
	closedir(d);
	return many == THREADS + 1 && away == 0;
}

static bool wait_asleep(void)
{
	double from = now_s();
	while (!asleep()) {
		if (now_s() > from + 60)
			return failed("the owner does not come to rest", NULL, 0);
		usleep(200);
	}
	r.waited += now_s() - from;
	return true;
}

static bool touched(const struct line *l)
{
	for (int t = 0; t < THREADS; t++)
		for (uint32_t i = 0, many = r.account[t].many; i < OPS && i < many; i++) {
			const struct op *op = &r.account[t].op[i];
			if (op->round == r.quiet.round && op->from < l->to && op->to > l->from)
				return true;
		}
	return false;
}

static bool known(const struct line *l)
{
	return r.before.many && bsearch(l, r.before.line, r.before.many, sizeof *l, by_all);
}

static bool read_all(void)
{
	for (size_t i = 0; i < r.now.many; i++) {
		const struct line *l = &r.now.line[i];
		bool fresh = !known(l);
		r.keys += fresh && l->keyed;
		if (l->keyed && (r.quiet.all || fresh || touched(l)) && !read_line(l))
			return false;
	}
	static struct line lent[THREADS * LOANS];
	int n = 0;
	for (int t = 0; t < THREADS; t++)
		for (int i = 0; i < LOANS; i++) {
			const struct loan *l = &r.account[t].loan[i];
			if (!l->mr || !l->same || !l->readable)
				continue;
			lent[n] = (struct line){ l->from, l->to, l->rkey, "?", "lent", true, true };
			/* On demand Soft-RoCE takes no notice of where in a page an access begins
			 * (Linux 7.2, without the shim, too): the whole pages, which the key covers. */
			if (r.hello.on_demand) {
				lent[n].from &= ~(PAGE - 1);
				lent[n].to = (l->to + PAGE - 1) & ~(PAGE - 1);
			}
			r.loans++;
			if (!read_line(&lent[n++]))
				return false;
		}
	while (r.head != r.tail)
		if (!finish_one())
			return false;
	return true;
}

static bool one_round(void)
{
	double start = now_s();
	if (!wait_asleep())
		return false;
	NEED(owner_read(r.account, r.hello.account, sizeof r.account));
	double then = now_s();
	if (!dump())
		return false;
	r.dumped += now_s() - then;
	if (!read_all())
		return false;
	struct lines old = r.before;
	r.before = r.now;
	r.now = old;
	r.rounds++;
	r.read += now_s() - start;
	return true;
}

static void tell(double start)
{
	uint64_t mapped = 0;
	for (size_t i = 0; i < r.before.many; i++)
		mapped += r.before.line[i].keyed ? r.before.line[i].to - r.before.line[i].from : 0;
	say("rounds %lu ranges %lu bytes %lu keys %lu loans %lu; at the end %zu lines, %lu bytes registered; "
	    "%.1f s, of which %.1f for reading (%.1f dump, %.1f for sleep)",
	    (unsigned long)r.rounds, (unsigned long)r.ranges, (unsigned long)r.bytes, (unsigned long)r.keys,
	    (unsigned long)r.loans, r.before.many, (unsigned long)mapped, now_s() - start, r.read, r.dumped, r.waited);
}

static int reader(int in, int out, const char *regall, const char *device)
{
	char path[64], verdict;
	r.regall = regall;
	r.landing = anon(DEPTH * SUMS);
	r.truth = anon(SUMS);
	if (!take(in, &r.hello, sizeof r.hello))
		return 4;
	const char *fetch = getenv("TRUTH_FETCHER");
	struct place place;
	if (fetch) {
		start_fetcher(fetch, &r.to_fetcher, &r.from_fetcher);
		NEED(take(r.from_fetcher, &place, sizeof place));
		NEED(give(r.to_fetcher, &r.hello.place, sizeof r.hello.place) && take(r.from_fetcher, &verdict, 1));
	} else {
		r.end = open_end(device, DEPTH);
		NEED(r.mr = ibv_reg_mr(r.end.pd, r.landing, DEPTH * PIECE, IBV_ACCESS_LOCAL_WRITE));
		r.end.asks = true;
		connect_end(&r.end, &r.hello.place);
		place = r.end.place;
	}
	NEED(give(out, &place, sizeof place) && take(in, &verdict, 1));
	if (!fetch)
		end_is_connected(&r.end);
	snprintf(path, sizeof path, "/proc/%d/mem", r.hello.pid);
	NEED((r.mem = open(path, O_RDONLY | O_CLOEXEC)) >= 0);
	double start = now_s();
	while (!r.quiet.last) {
		if (!take(in, &r.quiet, sizeof r.quiet)) {
			say("failed: the owner is gone after round %u; seed %lu", r.quiet.round, (unsigned long)r.hello.seed);
			return 5;
		}
		verdict = one_round() ? 0 : 1;
		if (!give(out, &verdict, 1) || verdict)
			break;
	}
	tell(start);
	return verdict;
}

#endif
