/*
 * What the programs about boxes share: messages that say what they must be, and those who send
 * them.
 */
#ifndef REGALL_BOXES_H
#define REGALL_BOXES_H

#include "peers.h"

#include <pthread.h>
#include <sys/prctl.h>
#include <sys/stat.h>

#pragma weak regall_box_open
#pragma weak regall_box_fd
#pragma weak regall_send
#pragma weak regall_poll
#pragma weak regall_wait
#pragma weak regall_put_notify
#pragma weak regall_get_notify

#define ROOM (64ul << 10)

/* Byte n of the message with this tag. */
static inline unsigned char byte_of(uint64_t tag, uint64_t n)
{
	uint64_t x = (tag + n / 8 + 1) * 0x9e3779b97f4a7c15ull;
	return (unsigned char)(x >> (n % 8 * 8));
}

static inline void fill(unsigned char *data, size_t len, uint64_t tag)
{
	for (size_t n = 0; n < len; n++)
		data[n] = byte_of(tag, n);
}

/* Messages are of lengths that their tags say. */
static inline size_t length_of(uint64_t tag, size_t most)
{
	uint64_t x = tag * 0xd1342543de82ef95ull >> 20;
	return x % 8 < 5 ? x / 8 % 64 : x / 8 % (most + 1);
}

static inline void is_whole(const struct regall_message *m)
{
	const unsigned char *data = regall_message_data(m);
	IS(REGALL_MESSAGE_DATA, m->kind);
	for (uint64_t n = 0; n < m->bytes; n++)
		if (data[n] != byte_of(m->tag, n) && wrong++ < 20)
			say("message %#lx: byte %lu of %lu is wrong", (unsigned long)m->tag,
			    (unsigned long)n, (unsigned long)m->bytes);
}

/* Sends it when there is room; what else goes wrong. */
static inline int send_patiently(regall_peer *peer, uint64_t tag, const void *data, size_t len)
{
	int r;
	while ((r = regall_send(peer, tag, data, len)) == -EAGAIN)
		sched_yield();
	return r;
}

/* Messages tag, tag + 1, ... */
static inline void send_some(regall_peer *peer, uint64_t tag, unsigned count, size_t most)
{
	unsigned char data[4096];
	for (unsigned n = 0; n < count; n++, tag++) {
		size_t len = length_of(tag, most);
		fill(data, len, tag);
		IS(0, send_patiently(peer, tag, data, len));
	}
}

/* Takes `count` messages, which must be these tags from one sender. */
static inline void take_some(uint64_t tag, unsigned count, size_t most)
{
	static _Alignas(8) unsigned char room[ROOM];
	for (unsigned got = 0; got < count;) {
		int n = regall_wait(room, sizeof room, 20000);
		if (n <= 0) {
			IS(count, (long)got);
			return;
		}
		const struct regall_message *m = (const void *)room;
		for (int i = 0; i < n; i++, got++, tag++, m = regall_message_next(m)) {
			IS(tag, m->tag);
			IS(length_of(m->tag, most), m->bytes);
			is_whole(m);
		}
	}
}

/* A child that goes with its parent. */
static inline pid_t begin_child(void)
{
	pid_t pid = fork();
	NEED(pid >= 0);
	if (pid == 0)
		prctl(PR_SET_PDEATHSIG, SIGKILL);
	return pid;
}

static inline void ends_well(pid_t pid)
{
	int status = -1;
	NEED(waitpid(pid, &status, 0) == pid);
	IS(0, status);
}

/* Opens the peer, which has only just been made. */
static inline regall_peer *open_soon(pid_t pid)
{
	regall_peer *peer = NULL;
	int r;
	while ((r = regall_peer_open(pid, 0, 0, &peer)) == -ENOENT)
		pause_us(200);
	IS(0, r);
	NEED(peer);
	return peer;
}

#endif
