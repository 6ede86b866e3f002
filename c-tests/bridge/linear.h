/*
 * Whether a history of operations on one word is linearizable: whether they can be put in an
 * order that agrees with what each of them saw, and in which none comes before one that had ended
 * when it began (Wing and Gong, 1993; states that were tried are remembered, as Lowe has it).
 */
#ifndef REGALL_LINEAR_H
#define REGALL_LINEAR_H

#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum act { ADD, COMPARE_SWAP, SWAP, LOAD, STORE, ACTS };

/* One operation, and when it was begun and had ended. */
struct event {
	enum act act;
	uint64_t operand, expected, before;
	uint64_t begun, ended;
};

enum { THREADS_MOST = 8, EVENTS_MOST = 15, STATES = 1 << 18 };

/* What each thread did, one after the other. */
struct history {
	unsigned threads;
	unsigned count[THREADS_MOST];
	struct event event[THREADS_MOST][EVENTS_MOST];
};

/* Operations that are behind us, four bits a thread, and the word then. */
struct state {
	uint64_t done, value;
	unsigned round;
};

static struct state *states_tried;
static unsigned states_round;
static bool states_full;

static bool is_new_state(uint64_t done, uint64_t value)
{
	uint64_t at = (done * 0x9e3779b97f4a7c15ull ^ value * 0xc2b2ae3d27d4eb4full) >> 20;
	for (unsigned n = 0; n < STATES; n++) {
		struct state *s = &states_tried[(at + n) % STATES];
		if (s->round != states_round) {
			*s = (struct state){ done, value, states_round };
			return true;
		}
		if (s->done == done && s->value == value)
			return false;
	}
	states_full = true;
	return false;
}

/* Whether the word can have been `value` when this was done; what it is after that. */
static bool agrees(const struct event *e, uint64_t value, uint64_t mask, uint64_t *after)
{
	*after = value;
	switch (e->act) {
	case ADD:
		*after = (value + e->operand) & mask;
		break;
	case COMPARE_SWAP:
		*after = value == e->expected ? e->operand : value;
		break;
	case SWAP:
		*after = e->operand;
		break;
	case STORE:
		*after = e->operand;
		return true;
	default:
		break;
	}
	return e->before == value;
}

static bool can_end(const struct history *h, uint64_t done, uint64_t value, uint64_t mask, uint64_t last)
{
	if (!is_new_state(done, value))
		return false;
	uint64_t first_end = UINT64_MAX;
	bool all = true;
	for (unsigned t = 0; t < h->threads; t++) {
		unsigned n = done >> (4 * t) & 15;
		if (n < h->count[t]) {
			all = false;
			if (h->event[t][n].ended < first_end)
				first_end = h->event[t][n].ended;
		}
	}
	if (all)
		return value == last;
	for (unsigned t = 0; t < h->threads; t++) {
		unsigned n = done >> (4 * t) & 15;
		uint64_t after;
		if (n < h->count[t] && h->event[t][n].begun <= first_end &&
		    agrees(&h->event[t][n], value, mask, &after) &&
		    can_end(h, done + (1ull << (4 * t)), after, mask, last))
			return true;
	}
	return false;
}

/* Whether the word, of as many bits as `mask` has, can have gone from `first` to `last` so. */
static bool is_linearizable(const struct history *h, uint64_t first, uint64_t last, uint64_t mask)
{
	if (!states_tried)
		states_tried = calloc(STATES, sizeof *states_tried);
	if (!states_tried)
		abort();
	states_round++;
	states_full = false;
	bool can = can_end(h, 0, first, mask, last);
	/* Too many to try them all: nothing is known. That is no proof, and must not happen. */
	if (!can && states_full)
		abort();
	return can;
}

#endif
