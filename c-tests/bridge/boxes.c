/* Proves: messages arrive whole, once and in each sender's order, by mailbox and by ring, from several threads and processes; a full box says so; children and executed programs have boxes of their own. */
/*
 * boxes many: 3 processes of 2 threads send to 2 receivers, each with 2 threads that take.
 * boxes full, errors: what a full box says, and wrong arguments.
 * boxes fork, exec: who has a box then, and whose messages are whose.
 * boxes event: a receiver that waits for its descriptor misses nothing.
 * boxes crowd PEERS: so many senders, then silence: what the box takes.
 */
#include "boxes.h"

#include <dirent.h>
#include <poll.h>
#include <stdatomic.h>

/* ---- many ---- */

#define SENDERS 3
#define THREADS 2
#define MESSAGES 20000u

static pid_t receivers[2];

/* Tags: the sender's number above, then a count. */
static uint64_t tag_of(unsigned sender, unsigned n)
{
	return (uint64_t)sender << 32 | n;
}

static void *sends(void *number)
{
	unsigned sender = (unsigned)(uintptr_t)number;
	regall_peer *peers[2] = { open_soon(receivers[0]), open_soon(receivers[1]) };
	unsigned char data[4096];
	for (unsigned n = 0; n < MESSAGES; n++) {
		uint64_t tag = tag_of(sender, n);
		size_t len = length_of(tag, sizeof data);
		fill(data, len, tag);
		IS(0, send_patiently(peers[n & 1], tag, data, len));
	}
	IS(0, regall_peer_close(peers[0]));
	IS(0, regall_peer_close(peers[1]));
	return NULL;
}

static int sender(unsigned number)
{
	pthread_t threads[THREADS];
	for (unsigned n = 0; n < THREADS; n++)
		NEED(pthread_create(&threads[n], NULL, sends,
				    (void *)(uintptr_t)(number * THREADS + n)) == 0);
	for (unsigned n = 0; n < THREADS; n++)
		pthread_join(threads[n], NULL);
	return verdict();
}

static atomic_uint come;
static unsigned char seen[SENDERS * THREADS][MESSAGES];

static void *takes(void *waits)
{
	unsigned char *room = aligned_alloc(8, ROOM);
	unsigned last[SENDERS * THREADS];
	memset(last, 0xff, sizeof last);
	while (atomic_load(&come) < SENDERS * THREADS * MESSAGES / 2) {
		int got = waits ? regall_wait(room, ROOM, 50) : regall_poll(room, ROOM);
		const struct regall_message *m = (const void *)room;
		HOLDS(got >= 0);
		for (int n = 0; n < got; n++, m = regall_message_next(m)) {
			unsigned from = (unsigned)(m->tag >> 32), number = (unsigned)m->tag;
			NEED(from < SENDERS * THREADS && number < MESSAGES);
			IS(length_of(m->tag, 4096), m->bytes);
			is_whole(m);
			/* Of what one thread takes, a sender's order is kept. */
			HOLDS((int)last[from] < (int)number);
			last[from] = number;
			IS(1, ++seen[from][number]);
		}
		atomic_fetch_add(&come, got > 0 ? (unsigned)got : 0);
	}
	free(room);
	return NULL;
}

static int receiver(void)
{
	pthread_t threads[THREADS];
	NEED(regall_box_open() == 0);
	for (unsigned n = 0; n < THREADS; n++)
		NEED(pthread_create(&threads[n], NULL, takes, (void *)(uintptr_t)n) == 0);
	for (unsigned n = 0; n < THREADS; n++)
		pthread_join(threads[n], NULL);
	IS(0, regall_poll(NULL, 0));
	return verdict();
}

static int many(void)
{
	int ready[2];
	NEED(pipe(ready) == 0);
	for (int n = 0; n < 2; n++)
		if ((receivers[n] = begin_child()) == 0) {
			NEED(regall_box_open() == 0 && write(ready[1], "!", 1) == 1);
			_exit(receiver());
		}
	char c;
	NEED(read(ready[0], &c, 1) == 1 && read(ready[0], &c, 1) == 1);
	pid_t senders[SENDERS];
	for (unsigned n = 0; n < SENDERS; n++)
		if ((senders[n] = begin_child()) == 0)
			_exit(sender(n));
	for (unsigned n = 0; n < SENDERS; n++)
		ends_well(senders[n]);
	ends_well(receivers[0]);
	ends_well(receivers[1]);
	return verdict();
}

/* ---- one process that sends to itself ---- */

static int full(void)
{
	regall_peer *self = open_peer(getpid(), 0);
	NEED(regall_box_open() == 0);
	/* By the mailbox, then by a ring: either is full at some time, and nothing is lost. */
	for (int round = 0; round < 3; round++) {
		uint64_t tag = 0;
		unsigned char data[4096];
		for (;; tag++) {
			size_t len = length_of(tag, sizeof data);
			fill(data, len, tag);
			int r = regall_send(self, tag, data, len);
			if (r == -EAGAIN)
				break;
			IS(0, r);
		}
		HOLDS(tag > 4 && tag < 2000);
		IS(-EAGAIN, regall_send(self, tag, data, 4096));
		/* Nor are bytes put of which nobody could be told. */
		while (regall_send(self, tag, data, 0) == 0)
			tag++;
		uint64_t word = 0, new = 7;
		IS(-EAGAIN, regall_put_notify(self, &new, (uintptr_t)&word, 8, 1, NULL));
		IS(0, word);
		_Alignas(8) unsigned char room[8192];
		for (uint64_t n = 0; n < tag;) {
			int got = regall_poll(room, sizeof room);
			HOLDS(got > 0);
			const struct regall_message *m = (const void *)room;
			for (int i = 0; i < got; i++, m = regall_message_next(m))
				IS(n++, m->tag);
			if (got <= 0)
				break;
		}
		IS(0, regall_poll(room, sizeof room));
	}
	IS(0, regall_peer_close(self));
	return verdict();
}

static int errors(void)
{
	unsigned char data[5000] = { 0 };
	_Alignas(8) unsigned char room[8192];
	IS(-EINVAL, regall_send(NULL, 0, data, 1));
	IS(-EINVAL, regall_put_notify(NULL, data, 0, 1, 0, NULL));
	if (!regall_active()) {
		/* Every function may be called when the shim is inert. */
		IS(-ENOSYS, regall_box_open());
		IS(-ENOSYS, regall_box_fd());
		IS(-ENOSYS, regall_poll(room, sizeof room));
		IS(-ENOSYS, regall_wait(room, sizeof room, 10));
		return verdict();
	}
	regall_peer *self = open_peer(getpid(), 0);
	IS(-ENOTCONN, regall_send(self, 0, data, 1));
	IS(-EINVAL, regall_poll(NULL, 1));
	IS(0, regall_poll(NULL, 0));
	IS(-EINVAL, regall_send(self, 0, NULL, 1));
	IS(0, regall_send(self, 1, NULL, 0));
	IS(-EMSGSIZE, regall_send(self, 2, data, 4097));
	IS(0, regall_send(self, 3, data, 4096));
	IS(-EMSGSIZE, regall_poll(room, sizeof(struct regall_message) - 1));
	IS(1, regall_poll(room, 4096));
	IS(1, ((struct regall_message *)room)->tag);
	IS(-EMSGSIZE, regall_wait(room, 4096, 0));
	IS(1, regall_wait(room, sizeof room, -1));
	const struct regall_message *m = (const void *)room;
	IS(3, m->tag);
	IS(4096, m->bytes);
	IS(getpid(), m->pid);
	IS(0, regall_wait(room, sizeof room, 1));
	/* A copy that fails is not told of, and no room is lost by it. */
	for (int n = 0; n < 100; n++)
		IS(-EFAULT, regall_put_notify(self, data, 4096, 8, 1, NULL));
	IS(0, regall_poll(room, sizeof room));
	IS(0, regall_peer_close(self));
	return verdict();
}

/* ---- children ---- */

/* Whether a box is mapped, or open. */
static int boxes_in(const char *path)
{
	FILE *maps = fopen(path, "r");
	NEED(maps);
	char line[512];
	int count = 0;
	while (fgets(line, sizeof line, maps))
		count += strstr(line, "memfd:regall.box") != NULL;
	fclose(maps);
	return count;
}

static int forked(void)
{
	struct other other = start_other(true, (char *[]){ "boxes", "echo", NULL });
	char line[64];
	hear(&other, line, sizeof line);
	regall_peer *peer = open_peer(other.pid, 0);
	NEED(regall_box_open() == 0);
	/* 1200 of ours and 100 of the child's. */
	NEED(dprintf(other.to, "1300\n") > 0);
	send_some(peer, tag_of(1, 0), 100, 100);
	HOLDS(boxes_in("/proc/self/maps") == 2);
	/* The parent sends on while its child does: by one peer, but not by one ring. */
	pid_t parent = getpid(), pid = begin_child();
	if (pid == 0) {
		IS(0, boxes_in("/proc/self/maps"));
		send_some(peer, tag_of(2, 0), 100, 100);
		/* Its own box is not its parent's, ... */
		regall_peer *old = open_peer(parent, 0), *self = open_soon(getpid());
		IS(-ENOTCONN, regall_send(self, 7, "", 0));
		IS(0, regall_poll(NULL, 0));
		send_some(self, 7, 1, 100);
		take_some(7, 1, 100);
		/* ... to whom it can send. */
		send_some(old, 8, 1, 100);
		IS(0, regall_peer_close(peer));
		_exit(verdict());
	}
	send_some(peer, tag_of(1, 100), 1000, 100);
	ends_well(pid);
	send_some(peer, tag_of(1, 1100), 100, 100);
	take_some(8, 1, 100);
	IS(0, regall_poll(NULL, 0));
	IS(1300, hear_number(&other));
	/* A child of vfork shares our memory, and sends as we do. */
	pid = vfork();
	if (pid == 0)
		_exit(regall_send(peer, tag_of(1, 1200), "", 0) != 0);
	ends_well(pid);
	IS(1301, ask(&other, "1301"));
	IS(0, regall_peer_close(peer));
	end_other(&other);
	return verdict();
}

/* Takes so many messages as it is told, which each sender must have sent in its order. */
static int echo(void)
{
	_Alignas(8) static unsigned char room[ROOM];
	NEED(regall_box_open() == 0);
	say("ready");
	unsigned count = 0, next[4] = { 0 };
	char line[64];
	while (line_from(0, line, sizeof line)) {
		if (strcmp(line, "exec") == 0)
			execl("/proc/self/exe", "boxes", "echo", (char *)NULL);
		for (unsigned want = (unsigned)atoi(line); count < want;) {
			int got = regall_wait(room, sizeof room, 10000);
			const struct regall_message *m = (const void *)room;
			if (got <= 0)
				break;
			for (int n = 0; n < got; n++, m = regall_message_next(m)) {
				unsigned from = m->tag >> 32 & 3;
				is_whole(m);
				count += next[from]++ == (unsigned)m->tag;
			}
		}
		say("%u", count);
	}
	return 0;
}

static int executed(void)
{
	struct other other = start_other(true, (char *[]){ "boxes", "echo", NULL });
	char line[64];
	hear(&other, line, sizeof line);
	regall_peer *peer = open_peer(other.pid, 0);
	send_some(peer, tag_of(1, 0), 50, 100);
	IS(50, ask(&other, "50"));
	NEED(dprintf(other.to, "exec\n") > 0);
	hear(&other, line, sizeof line);
	/* What the peer was is gone. */
	int r;
	for (int n = 0; (r = regall_send(peer, tag_of(1, 50), "", 0)) == 0 || r == -EAGAIN; n++)
		pause_us(1000);
	IS(-ESTALE, r);
	IS(0, regall_peer_close(peer));
	peer = open_peer(other.pid, 0);
	send_some(peer, tag_of(1, 0), 50, 100);
	IS(50, ask(&other, "50"));
	IS(0, regall_peer_close(peer));
	end_other(&other);
	return verdict();
}

/* ---- waiting for the descriptor ---- */

static int event(void)
{
	int fd = regall_box_fd();
	if (fd == -EOPNOTSUPP) {
		say("SKIPPED: no helper thread");
		return 0;
	}
	HOLDS(fd >= 0);
	IS(fd, regall_box_fd());
	pid_t parent = getpid(), pid = begin_child();
	if (pid == 0) {
		regall_peer *peer = open_peer(parent, 0);
		for (unsigned n = 0; n < 400; n++) {
			send_some(peer, tag_of(0, n), 1, 300);
			if (n % 40 > 35)
				pause_us(2000);
		}
		_exit(verdict());
	}
	_Alignas(8) static unsigned char room[ROOM];
	for (uint64_t want = 0; want < 400;) {
		struct pollfd wait = { .fd = fd, .events = POLLIN };
		IS(1, poll(&wait, 1, 20000));
		/* One at a time: there may be more. */
		int got = regall_poll(room, want % 3 ? sizeof room : 400);
		HOLDS(got >= 0);
		const struct regall_message *m = (const void *)room;
		for (int n = 0; n < got; n++, m = regall_message_next(m)) {
			IS(want++, m->tag);
			is_whole(m);
		}
		if (wrong)
			break;
	}
	ends_well(pid);
	IS(0, regall_poll(room, sizeof room));
	struct pollfd quiet = { .fd = fd, .events = POLLIN };
	IS(0, poll(&quiet, 1, 0));
	return verdict();
}

/* ---- many peers ---- */

/* Bytes that the box takes. */
static long box_bytes(void)
{
	DIR *folder = opendir("/proc/self/fd");
	NEED(folder);
	long bytes = -1;
	for (struct dirent *e; (e = readdir(folder));) {
		char to[256] = { 0 };
		struct stat s;
		if (readlinkat(dirfd(folder), e->d_name, to, sizeof to - 1) > 0 &&
		    strstr(to, "memfd:regall.box") && fstat(atoi(e->d_name), &s) == 0)
			bytes = s.st_blocks * 512;
	}
	closedir(folder);
	return bytes;
}

static _Alignas(8) unsigned char crowd_room[ROOM];

/* Takes what has come, each sender's in its order; how many. */
static unsigned hear_crowd(unsigned *next)
{
	int count = regall_poll(crowd_room, sizeof crowd_room);
	const struct regall_message *m = (const void *)crowd_room;
	for (int i = 0; i < count; i++, m = regall_message_next(m)) {
		IS(next[m->tag >> 32]++, (unsigned)m->tag);
		is_whole(m);
	}
	HOLDS(count >= 0);
	return count > 0 ? (unsigned)count : 0;
}

static int crowd(unsigned peers)
{
	NEED(regall_box_open() == 0);
	regall_peer **all = calloc(peers, sizeof *all);
	for (unsigned n = 0; n < peers; n++)
		all[n] = open_peer(getpid(), 0);
	unsigned *next = calloc(peers, sizeof *next);
	unsigned char *room = crowd_room;
	unsigned sent = 0, got = 0;
	for (unsigned n = 0; n < 60; n++)
		for (unsigned p = 0; p < peers; p++, sent++) {
			uint64_t tag = tag_of(p, n);
			unsigned char data[600];
			int r;
			fill(data, tag % 600, tag);
			while ((r = regall_send(all[p], tag, data, tag % 600)) == -EAGAIN)
				got += hear_crowd(next);
			IS(0, r);
			if (n % 8 == 7)
				got += hear_crowd(next);
		}
	while (got < sent && !wrong)
		got += hear_crowd(next);
	IS(sent, got);
	/* They are quiet now: rings go back. */
	uint64_t since = now_ns();
	while (box_bytes() > 64 << 10 && now_ns() - since < 20000000000u)
		regall_wait(room, ROOM, 20);
	HOLDS(box_bytes() <= 64 << 10);
	/* And all can send still. */
	for (unsigned p = 0; p < peers; p++) {
		IS(0, regall_send(all[p], p, NULL, 0));
		IS(1, regall_poll(room, ROOM));
		IS(0, regall_peer_close(all[p]));
	}
	free(all);
	free(next);
	return verdict();
}

int main(int argc, char **argv)
{
	no_longer_than(100);
	const char *what = argc > 1 ? argv[1] : "";
	static const struct {
		const char *name;
		int (*run)(void);
	} all[] = { { "many", many },	  { "full", full },	{ "errors", errors }, { "fork", forked },
		    { "exec", executed }, { "event", event }, { "echo", echo } };
	if (strcmp(what, "crowd") == 0 && argc > 2)
		return crowd((unsigned)atoi(argv[2]));
	for (unsigned n = 0; n < sizeof all / sizeof *all; n++)
		if (strcmp(what, all[n].name) == 0)
			return all[n].run();
	return 99;
}
