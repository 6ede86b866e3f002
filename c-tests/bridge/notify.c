/* Proves: whoever has taken the message of a put sees all of its bytes, and may overwrite what was got once it has the message of a get, whatever copies them; a copy that was not made is not told of. */
/*
 * notify [private]: with memory that peers can map, or not; REGALL_COPY says how.
 */
#include "boxes.h"

#pragma weak regall_alloc_shared
#pragma weak regall_queue_open
#pragma weak regall_queue_close
#pragma weak regall_queue_wait
#pragma weak regall_put_notify_start
#pragma weak regall_get_notify_start

#define WORDS (24ul << 10)
#define ROUNDS 300u

/* Two areas: one that is put to, one that is got from. */
static uint64_t *area;

static uint64_t word_of(unsigned round, uint64_t n)
{
	return (round * 2654435761ull + n) * 0x9e3779b97f4a7c15ull;
}

/* How much is copied in a round, in words: little, a lot, and in between. */
static size_t words_in(unsigned round)
{
	static const size_t some[] = { 1, 8, 511, 4096, WORDS };
	return some[round % 5];
}

static const struct regall_message *next_message(void)
{
	static _Alignas(8) unsigned char room[sizeof(struct regall_message)];
	IS(1, regall_wait(room, sizeof room, 20000));
	return (const void *)room;
}

/* Has memory, and says at each message what it is to be by then. */
static int owner(const char *kind)
{
	if (strcmp(kind, "private") == 0)
		area = (void *)anon(2 * WORDS * 8 / 4096);
	else
		NEED(regall_alloc_shared(2 * WORDS * 8, (void **)&area) == 0);
	NEED(regall_box_open() == 0);
	uint64_t *got_from = area + WORDS;
	for (uint64_t n = 0; n < WORDS; n++)
		got_from[n] = word_of(0, n);
	say("%#lx", (unsigned long)(uintptr_t)area);
	for (unsigned round = 0; round < ROUNDS; round++) {
		const struct regall_message *m = next_message();
		size_t words = words_in(round);
		IS(REGALL_MESSAGE_PUT, m->kind);
		IS(round, m->tag);
		IS(words * 8, m->bytes);
		for (uint64_t n = 0; n < words; n++)
			if (area[n] != word_of(round, n) && wrong++ < 5)
				say("round %u: word %lu was not there yet", round, (unsigned long)n);
		m = next_message();
		IS(REGALL_MESSAGE_GET, m->kind);
		IS(round | 1ull << 63, m->tag);
		/* It is ours again: the other must not see this. */
		for (uint64_t n = 0; n < WORDS; n++)
			got_from[n] = word_of(round + 1, n);
		IS(0, wrong);
		char line[16];
		say("%d", wrong);
		if (!line_from(0, line, sizeof line) || wrong)
			break;
	}
	return verdict();
}

static void finished(regall_queue *queue, uint64_t tag, uint64_t bytes)
{
	struct regall_completion c;
	IS(1, regall_queue_wait(queue, &c, 1, 20000));
	IS(tag, c.tag);
	IS(0, c.result);
	IS(bytes, c.done.bytes);
}

int main(int argc, char **argv)
{
	no_longer_than(100);
	if (argc > 2)
		return owner(argv[2]);
	char *kind = argc > 1 ? argv[1] : "shared";
	struct other other = start_other(true, (char *[]){ argv[0], "owner", kind, NULL });
	uint64_t there = hear_number(&other);
	regall_peer *peer = open_peer(other.pid, 0);
	regall_queue *queue;
	NEED(regall_queue_open(0, &queue) == 0);
	uint64_t *from = (void *)anon(WORDS * 8 / 4096), *to = (void *)anon(WORDS * 8 / 4096);
	for (unsigned round = 0; round < ROUNDS && !wrong; round++) {
		size_t bytes = words_in(round) * 8;
		uint64_t notice = round | 1ull << 63;
		struct regall_done done;
		for (uint64_t n = 0; n < WORDS; n++)
			from[n] = word_of(round, n);
		if (round % 2) {
			IS(0, regall_put_notify(peer, from, there, bytes, round, &done));
			IS(bytes, done.bytes);
			IS(0, regall_get_notify(peer, to, there + WORDS * 8, bytes, notice, &done));
		} else {
			IS(0, regall_put_notify_start(queue, peer, from, there, bytes, round, 7));
			finished(queue, 7, bytes);
			IS(0, regall_get_notify_start(queue, peer, to, there + WORDS * 8, bytes, notice,
						      8));
			finished(queue, 8, bytes);
		}
		for (uint64_t n = 0; n < bytes / 8; n++)
			if (to[n] != word_of(round, n) && wrong++ < 5)
				say("round %u: word %lu was overwritten", round, (unsigned long)n);
		IS(0, hear_number(&other));
		/* What can't be copied is not told of: the owner would say so. */
		IS(-EFAULT, regall_put_notify(peer, from, 4096, 8, 1234, NULL));
		NEED(dprintf(other.to, "on\n") > 0);
	}
	IS(0, regall_queue_close(queue));
	IS(0, regall_peer_close(peer));
	ends_well(other.pid);
	return verdict();
}
