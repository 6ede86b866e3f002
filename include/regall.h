/* regall.h: what a program can ask of libregall.so.
 *
 * Link with -lregall (pkg-config regall), or load the shim with LD_PRELOAD and
 * look the functions up with dlsym. Every function may be called when the shim
 * is inert (REGALL is not 1, or the executable is left out): it then returns
 * -ENOSYS, or does something harmless.
 *
 * In a child of fork, the first call that is not a look-up or a statistic registers
 * what the child has inherited.
 *
 * Errors are negative errno values. Lengths and addresses are in bytes.
 * SPDX-License-Identifier: MIT OR Apache-2.0 */
#ifndef REGALL_H
#define REGALL_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Version of this interface; regall_version() returns that of the library. */
#define REGALL_VERSION 1
int regall_version(void);

/* 1 if the shim tracks this process, 0 if it is inert or has given up. */
int regall_active(void);

/* Bits of regall_range.held: who holds the range registered. */
#define REGALL_HELD_PIN 1u
#define REGALL_HELD_HCA 2u
#define REGALL_HELD_KEPT 4u /* by nobody: there is no swap space to which it could be written */

/* Bits of regall_range.prot, as PROT_READ, PROT_WRITE, PROT_EXEC; and shared. */
#define REGALL_PROT_SHARED 8u

/* Why a range is not registered: regall_range.reason. */
enum regall_reason {
	REGALL_REGISTERED = 0,
	REGALL_NO_ACCESS = 1,
	REGALL_KERNEL = 2,
	REGALL_DEVICE = 3,
	REGALL_SHIM = 4,
	REGALL_OPTED_OUT = 5,
	REGALL_SCOPE = 6,
	REGALL_LIMIT = 7,
	REGALL_INHERITED = 8,
	REGALL_OFF = 9,
	REGALL_REFUSED = 10,
	REGALL_UNTOUCHED = 11,
	REGALL_MANAGED = 12,
	REGALL_ON_REQUEST = 13,
	REGALL_CACHE = 15
};

/* What is known of the range around an address. */
struct regall_range {
	uint64_t start;   /* first address */
	uint64_t end;     /* first address behind it */
	uint64_t id;      /* of this entry; another one as soon as it changes */
	uint32_t prot;    /* PROT_ bits and REGALL_PROT_SHARED */
	uint32_t held;    /* REGALL_HELD_ bits */
	uint32_t reason;  /* enum regall_reason */
	int32_t error;    /* with REGALL_REFUSED: the kernel's errno, positive */
	uint32_t lkey;    /* local key in the protection domain asked for; 0: none */
	uint32_t rkey;    /* remote key, likewise */
};

/* Looks up the range that holds all of addr..addr+len. No lock and no system
 * call; may be called from a signal handler. `pd` is the struct ibv_pd * whose keys
 * are wanted, or NULL for the shim's own protection domain (REGALL_HCA=<device>). Keys
 * are 0 if no one memory region there holds all of the bytes; if one does, start and
 * end are of the part of the range that it holds. An adapter has one pair of keys for all of
 * a region. So they are good until a call unmaps, moves, protects or discards any page of it,
 * also one beside addr..addr+len (free() may make such calls), or regall_opt_out names one, or
 * the protection domain goes. What is left has other keys then. Memory that comes beside it and
 * requests that lie across do not change them. To learn whether keys are good still, look them
 * up again: others, or 0, mean that they have ended. Keys of regions that ibv_reg_mr has lent with
 * more access for peers than REGALL_ACCESS gives are taken back some time after ibv_dereg_mr:
 * these are never looked up, and regall_register_all makes others.
 * Memory of files has keys only with REGALL_PIN=populate or onfault, a device in REGALL_HCA, or
 * after regall_register_all. Such keys may go stale: when the file is cut or rewritten by anybody,
 * they reach the old pages.
 * 0, or -ENOENT: some of it is not mapped or the bytes lie in several ranges;
 * -EINVAL: len is 0 or wraps, or `out` is NULL; -EBUSY: the ledger was changing all the
 * time (a signal handler that interrupted a change); -ENOSYS: inert. */
int regall_lookup(const void *pd, const void *addr, size_t len, struct regall_range *out);

/* Registers all memory in the protection domain `pd`, a struct ibv_pd *, now and as
 * it comes, with local access and what REGALL_ACCESS allows peers: the
 * ibv_register_mr_all() that was proposed in 2009. regall_lookup has the keys. Ends
 * when the protection domain is deallocated. Again for the same one: does nothing.
 * 0, or -EINVAL: pd is NULL; -EOPNOTSUPP: REGALL_HCA=off, or the adapter's driver can't be
 * served; -EMFILE: too many protection domains; -EBUSY: called from a signal handler at a
 * bad moment; -ENOSYS: inert. */
int regall_register_all(void *pd);

/* Registers all of addr..addr+len in the protection domain `pd`, and fills `out` in as
 * regall_lookup does then. With REGALL_PIN=auto large memory is registered when it is asked
 * for or has been touched, shared memory, thread stacks and memory that can't be written when
 * they are asked for, and not before. This asks for it, as ibv_reg_mr does, and nothing has to be deregistered. Keys are 0
 * where no one memory region can hold all of the bytes (more than 2 GiB, memory of files with
 * REGALL_PIN=auto, memory of several kinds, or a part of them is in a region whose keys were
 * looked up, which is not replaced by a larger one). Not for signal handlers.
 * 0, or what regall_lookup returns; -EOPNOTSUPP, -EMFILE, -EBUSY: as regall_register_all. */
int regall_register(void *pd, const void *addr, size_t len, struct regall_range *out);

/* Takes the pages that hold any byte of addr..addr+len out of registration
 * (their state is `opted-out`), and back in. What is mapped there later starts
 * registered again.
 * 0, or -EINVAL: len is 0 or wraps; -ENOMEM: some of it is not mapped (the rest
 * is done); -EBUSY: called from a signal handler at a bad moment, try again;
 * -ENOSYS: inert (nothing is registered anyway). */
int regall_opt_out(void *addr, size_t len);
int regall_opt_in(void *addr, size_t len);

/* Memory that is registered from the start, in the manner of MPI_Alloc_mem:
 * explicit huge pages where the system has them free, else transparent ones
 * where allowed, else ordinary pages. Zeroed, page-aligned. When the shim is
 * inert it is just memory. *out is set on success.
 * 0, or -EINVAL: size is 0 or out is NULL; -ENOMEM. */
int regall_alloc(size_t size, void **out);

/* Memory that is never registered (`opted-out`) and never locked by the shim.
 * As regall_alloc otherwise, in ordinary pages. */
int regall_alloc_unregistered(size_t size, void **out);

/* Memory that is registered from the start, as far as RLIMIT_MEMLOCK and the budget allow
 * (regall_lookup tells), and that peers can map: see regall_map. It lies
 * in a memfd that can't be made shorter. All of it is resident before this returns, in huge
 * pages where the system allows them for shared memory. A child of fork shares it with its parent:
 * each sees what the other writes. (Of the first 64 of them a process keeps a descriptor
 * open, below 1024, for peers that are not root to find.) Otherwise as regall_alloc. */
int regall_alloc_shared(size_t size, void **out);

/* Gives back memory of any of these kinds; `addr` and `size` as regall_alloc had them.
 * It is munmap for them: anything else that is mapped there is unmapped, too.
 * 0, or -EINVAL: addr is not page-aligned or size is 0. */
int regall_free(void *addr, size_t size);

/* Counters of this process. */
struct regall_stats {
	uint64_t size;             /* set to sizeof(struct regall_stats) before the call */
	uint64_t mappings;         /* ranges in the ledger */
	uint64_t bytes_mapped;
	uint64_t bytes_registered;
	uint64_t bytes_pinned;
	uint64_t budget;           /* bytes that may be pinned; UINT64_MAX: no limit */
	uint64_t events;           /* hooked calls so far */
	uint64_t pins;             /* mlock calls made */
	uint64_t bytes_pinned_total; /* added up over all of them */
	uint64_t shim_bytes;       /* memory of the shim's own */
	uint64_t resyncs;          /* ranges read anew from the kernel */
	uint64_t sites_patched;
	uint64_t sites_refused;
};
/* Fills as much of *out as out->size says.
 * 0, or -EINVAL: out is NULL or out->size is below 16; -EBUSY as above; -ENOSYS: inert. */
int regall_stats(struct regall_stats *out);

/* Compares the shim's list of mappings with /proc/self/maps and corrects it: for memory
 * that came or went without a call that the shim can see. 0, or -ENOSYS: inert. */
int regall_audit(void);

/* ---- Peers: one-sided access to what other processes of the node have registered ----
 *
 * Works from the peers' directories alone, so that a program may use it without being
 * tracked itself (REGALL not 1). Not for signal handlers, nor to be left by cancellation or
 * siglongjmp. A peer may be used by several
 * threads at once, and by a child of fork. REGALL_COPY says by which mechanisms. */

/* A piece of memory, laid out as struct iovec. */
struct regall_segment {
	uint64_t addr;
	uint64_t len;     /* bytes */
};

/* A process: a pid can come again, pid and start time together do not. */
struct regall_process {
	int32_t pid;
	uint32_t reserved;
	uint64_t start_time; /* clock ticks since boot: field 22 of /proc/PID/stat */
};

/* What copied: regall_done.mechanism. */
enum regall_mechanism {
	REGALL_COPY_NONE = 0,
	REGALL_COPY_MAP = 1,    /* the peer's memory, mapped here */
	REGALL_COPY_XPMEM = 2,
	REGALL_COPY_CMA = 3,    /* process_vm_readv and its kin */
	REGALL_COPY_KNEM = 4,
	REGALL_COPY_HELPER = 5  /* a thread of the owner's */
};

/* The result of a transfer, also of one that failed. */
struct regall_done {
	uint64_t bytes;      /* from the beginning, transferred and good */
	uint64_t generation; /* the highest of the directory entries that they were in */
	uint32_t mechanism;  /* enum regall_mechanism, of the last piece */
	uint32_t reserved;
};

/* An open peer. */
typedef struct regall_peer regall_peer;

/* Flag of regall_peer_open: after each transfer check that the peer is still the same
 * process. Without it the check is left out if the last one is at most 50 microseconds ago. */
#define REGALL_PEER_CHECK_ALWAYS 1u

/* Fills `out` with processes of this user, in this pid namespace, that are tracked: as
 * many as there are or as `room` is for.
 * How many there are, or -EINVAL: out is NULL though room is not 0. */
int regall_peers(struct regall_process *out, size_t room);

/* Opens the process `pid`; if start_time is not 0, only the one that started then. It is
 * that process, in the program that it executes now, until it is closed.
 * 0, or -ESRCH: there is no such process; -ENOENT: it runs without the shim; -EXDEV: it is
 * in another pid namespace that shares /dev/shm with this one, and has no number here;
 * -EACCES, -EPERM: it is somebody else's; -ENOEXEC: its directory is of another version,
 * or corrupt; -EINVAL: pid is not above 0, unknown flags, or out is NULL; -ENOMEM; errors of
 * open(2) and mmap(2). */
int regall_peer_open(int pid, uint64_t start_time, unsigned flags, regall_peer **out);

/* Closes it. 0, or -EINVAL: it is NULL; -EBUSY: a copy that was started with it is not
 * finished. */
int regall_peer_close(regall_peer *peer);

/* Unmaps here what the peer no longer has.
 * 0 if it is still there; -ESRCH: it has ended; -ESTALE: it executes another program. */
int regall_peer_check(regall_peer *peer);

/* Copies len bytes from the peer's address `from` to `to`, or from `from` to its address
 * `to`. Every byte must be registered (by the pin set or an adapter) and readable, or
 * writable. `done` may be NULL.
 *
 * 0, or, with done->bytes transferred and good:
 * -ESTALE: the memory was unmapped or replaced meanwhile, or the peer executes another
 *          program; what is behind done->bytes is not to be used. Start again there.
 *          (A put may then have written into what is there now.) Also: the peer's helper
 *          does the copying, and has not answered for a second: the peer may be stopped.
 * -EFAULT: it is not registered (and was not touched); or it is registered and can't be
 *          read, beyond the end of a file for example; or the caller's own memory can't be
 *          written (get) or read (put).
 * -EACCES: its protection does not permit it.
 * -ESRCH:  the peer has ended, whatever the address is; so -ESTALE where it executes another program.
 * -EPERM:  no mechanism may (or REGALL_COPY=off).
 * -EAGAIN: more processes copy by the peer's helper than it has places for (256), and none of them
 *          made room within 10 s.
 * -EINVAL: peer is NULL. -ENOMEM. */
int regall_get(regall_peer *peer, void *to, uint64_t from, size_t len, struct regall_done *done);
int regall_put(regall_peer *peer, const void *from, uint64_t to, size_t len, struct regall_done *done);

/* The same with vectors of any length on both sides; ends where the shorter side does.
 * -EINVAL also: a vector is NULL though it has segments. */
int regall_getv(regall_peer *peer, const struct regall_segment *to, size_t tos,
		const struct regall_segment *from, size_t froms, struct regall_done *done);
int regall_putv(regall_peer *peer, const struct regall_segment *from, size_t froms,
		const struct regall_segment *to, size_t tos, struct regall_done *done);

/* ---- Atomic operations on words of a peer's memory ----
 *
 * Each is carried out by one instruction of the processor, on memory that can be mapped here (see
 * regall_map: regall_alloc_shared, REGALL_SHARE=heap, other shared memory); other memory has none
 * (-EOPNOTSUPP). All of these, of whichever processes, and what the peer itself does to the word by
 * C11 atomics, are atomic with each other. They are not atomic with regall_put, process_vm_writev(2), write(2) and read(2) into
 * the memory, nor with atomics of an adapter, unless the adapter says so (IBV_ATOMIC_GLOB). On
 * mapped memory, C11 atomics on regall_mapping.at do the same at a lower cost.
 *
 * Of the C11 memory model they are: load memory_order_acquire, store memory_order_release, the
 * others memory_order_acq_rel. `addr` is the word's address in the peer, naturally aligned.
 *
 * 0, or -EINVAL: peer is NULL, addr is not a multiple of the word's size, or `value` of a load is
 * NULL; -EOPNOTSUPP: the memory can't be mapped; -EFAULT, -EACCES, -EPERM: as regall_get and
 * regall_put; none of these was carried out. -ESTALE and -ESRCH, as
 * regall_put: whether it was carried out, and on what, is not known. (Memory that
 * comes or goes beside the word seldom causes it.) After a run of more than 64 operations on mapped
 * memory that follow each other within 3 microseconds, up to 15 more on the same page may succeed though the peer
 * has ended, unless it was opened with REGALL_PEER_CHECK_ALWAYS. */

/* Adds, modulo 2^32 or 2^64. What was there goes to *before, if that is not NULL. */
int regall_fetch_add32(regall_peer *peer, uint64_t addr, uint32_t add, uint32_t *before);
int regall_fetch_add64(regall_peer *peer, uint64_t addr, uint64_t add, uint64_t *before);

/* Puts `desired` there if `expected` is there. What was there goes to *before, if that is not NULL:
 * `expected` if it was done. (A comparison that fails is 0, too, and needs memory that can be
 * written.) */
int regall_compare_swap32(regall_peer *peer, uint64_t addr, uint32_t expected, uint32_t desired,
			  uint32_t *before);
int regall_compare_swap64(regall_peer *peer, uint64_t addr, uint64_t expected, uint64_t desired,
			  uint64_t *before);

/* Puts `value` there. What was there goes to *before, if that is not NULL. */
int regall_swap32(regall_peer *peer, uint64_t addr, uint32_t value, uint32_t *before);
int regall_swap64(regall_peer *peer, uint64_t addr, uint64_t value, uint64_t *before);

/* Reads, whole, into *value; writes `value`, whole. */
int regall_load32(regall_peer *peer, uint64_t addr, uint32_t *value);
int regall_load64(regall_peer *peer, uint64_t addr, uint64_t *value);
int regall_store32(regall_peer *peer, uint64_t addr, uint32_t value);
int regall_store64(regall_peer *peer, uint64_t addr, uint64_t value);

/* ---- Regions: scattered memory under a cookie, in KNEM's manner ----
 *
 * Whoever is given the cookie, by any means, can read or write the region at an offset
 * and needs to know nothing of its segments. Errors are KNEM's: -EINVAL for a cookie that
 * is unknown or used up, -EACCES where the region's protection does not permit it, -EPERM
 * where it is another user's; an offset behind the end is success with 0 bytes. There is
 * also -ESTALE: the memory was unmapped or replaced since, or the region destroyed in
 * the meantime. */

/* Protection. */
#define REGALL_REGION_READ 1u
#define REGALL_REGION_WRITE 2u
/* Flags. */
#define REGALL_REGION_SINGLE_USE 1u /* the first that reads, writes or copies it is the last */
#define REGALL_REGION_ANY_USER 2u   /* as KNEM's, for other users, too: there are no such regions */
#define REGALL_REGION_NOTIFY 4u     /* uses are counted, and regall_region_fd tells of them */

/* Makes a region of `count` segments, which may be empty or overlap. It lasts until it is
 * destroyed, the process ends or executes another program; a child of fork does not have
 * it. Its memory stays the process's: what is unmapped or replaced takes the region out
 * of use.
 * 0 and *cookie, or -EINVAL: no segments, a protection or flag that there is not, NULL;
 * -EOPNOTSUPP: REGALL_REGION_ANY_USER; -EFAULT: some of it is not registered, or its protection
 * is less than `prot`; -ENOSPC: too many regions (65,280) or segments; -ENOSYS: inert; -ENOMEM;
 * errors of open(2), fallocate(2) and mmap(2) of the file under /dev/shm that says so. */
int regall_region_create(const struct regall_segment *segments, size_t count, unsigned prot,
			 unsigned flags, uint64_t *cookie);

/* Destroys one of this process's. A copy in flight finishes or ends in -ESTALE.
 * 0, or -EINVAL: there is none of that cookie; -EPERM: it is another process's. */
int regall_region_destroy(uint64_t cookie);

/* Copies from a region, `offset` bytes from its beginning, into the vector `to`, or from
 * the vector `from` into the region; ends where the shorter side does.
 * 0, or the errors above and those of regall_get; -ESRCH: its owner has ended meanwhile;
 * -EXDEV: its owner is in another pid namespace; -EBUSY: more than 128 owners at once. */
int regall_region_read(uint64_t cookie, uint64_t offset, const struct regall_segment *to,
		       size_t tos, struct regall_done *done);
int regall_region_write(uint64_t cookie, uint64_t offset, const struct regall_segment *from,
			size_t froms, struct regall_done *done);

/* Copies up to `len` bytes between two regions, of whichever processes; errors likewise. One
 * copy if either is this process's, or can be mapped here (see regall_map) and it pays; else two.
 * They must not overlap, and be of processes of this user (-EPERM). */
int regall_region_copy(uint64_t from, uint64_t from_offset, uint64_t to, uint64_t to_offset,
		       uint64_t len, struct regall_done *done);

/* A descriptor that becomes readable when a region of this process's with
 * REGALL_REGION_NOTIFY was used. Not to be read or closed: regall_region_used does.
 * The descriptor, or -ENOSYS: inert; -EBUSY; errors of mknod(2) and open(2). */
int regall_region_fd(void);

/* A region, and how often it was used. */
struct regall_use {
	uint64_t cookie;
	uint64_t uses;
};

/* Fills `out` with those regions with REGALL_REGION_NOTIFY that were used and are not
 * destroyed; the descriptor is readable again after the next use.
 * How many there are, also beyond `room`, or -EINVAL: out is NULL though room is not 0. */
int regall_region_used(struct regall_use *out, size_t room);

/* How often a region with REGALL_REGION_NOTIFY was used, or -EINVAL: there is none. */
int64_t regall_region_uses(uint64_t cookie);

/* ---- Asynchronous copies ----
 *
 * A copy is put into a queue and carried out by a thread of the shim's, one for the whole
 * process, in the order in which copies were started. A queue may be used by several
 * threads at once. It is of the process that opened it: in a child of fork there is
 * nothing under way, and a queue of the parent's can only be closed. */

/* The result of a copy. */
struct regall_completion {
	uint64_t tag;     /* as it was started with */
	int32_t result;   /* 0 or negative: what regall_get and regall_put return */
	uint32_t reserved;
	struct regall_done done;
};

/* A queue. */
typedef struct regall_queue regall_queue;

/* Opens a queue, and starts the thread if there is none. flags is 0.
 * 0, or -EINVAL: unknown flags, or out is NULL; -ENOMEM; -EMFILE, -ENFILE: no descriptor;
 * -ENOENT: no /proc; -EAGAIN, -EPERM: no thread. */
int regall_queue_open(unsigned flags, regall_queue **out);

/* Waits until nothing of it is under way, and closes it; completions that were not
 * polled are lost. 0, or -EINVAL: it is NULL. */
int regall_queue_close(regall_queue *queue);

/* A descriptor to wait on with poll(2) and its kin: readable as long as there are
 * completions. It stays the queue's: not to be read, written or closed.
 * The descriptor, or -EINVAL: queue is NULL. */
int regall_queue_fd(regall_queue *queue);

/* Starts a copy; the rest is as for the functions without _start. Until its completion
 * has been polled the memory at both ends, the vectors, and the peer must stay.
 * 0: there will be a completion; -EAGAIN: 256 of this queue's copies are not finished or not
 * polled, or 512 of all queues' are not finished; -EINVAL: queue or peer is NULL, or a vector
 * that has segments; -ECHILD: in a child of fork. */
int regall_get_start(regall_queue *queue, regall_peer *peer, void *to, uint64_t from, size_t len,
		     uint64_t tag);
int regall_put_start(regall_queue *queue, regall_peer *peer, const void *from, uint64_t to, size_t len,
		     uint64_t tag);
int regall_getv_start(regall_queue *queue, regall_peer *peer, const struct regall_segment *to, size_t tos,
		      const struct regall_segment *from, size_t froms, uint64_t tag);
int regall_putv_start(regall_queue *queue, regall_peer *peer, const struct regall_segment *from,
		      size_t froms, const struct regall_segment *to, size_t tos, uint64_t tag);

/* The same by cookie; the rest is as for the functions without _start. Until its completion has
 * been polled the caller's memory and vector must stay. What is wrong with a cookie is in
 * the completion's result. A copy that waits in a queue does not keep the region: if that is
 * destroyed meanwhile, the result is -EINVAL or -ESTALE.
 * 0, -EAGAIN, -EINVAL, -ECHILD: as above. */
int regall_region_read_start(regall_queue *queue, uint64_t cookie, uint64_t offset,
			     const struct regall_segment *to, size_t tos, uint64_t tag);
int regall_region_write_start(regall_queue *queue, uint64_t cookie, uint64_t offset,
			      const struct regall_segment *from, size_t froms, uint64_t tag);
int regall_region_copy_start(regall_queue *queue, uint64_t from, uint64_t from_offset, uint64_t to,
			     uint64_t to_offset, uint64_t len, uint64_t tag);

/* Takes up to `room` completions, oldest first. regall_queue_wait waits for the first of
 * them: up to timeout_ms milliseconds, without end if that is negative, and not at all if
 * nothing is under way.
 * How many, or -EINVAL: queue is NULL, or out is though room is not 0; -ECHILD: in a child of
 * fork. */
int regall_queue_poll(regall_queue *queue, struct regall_completion *out, size_t room);
int regall_queue_wait(regall_queue *queue, struct regall_completion *out, size_t room, int timeout_ms);

/* ---- Messages: boxes ----
 *
 * A process has a box, to which its peers send short messages. It is made by the first call of
 * regall_box_open, regall_box_fd, regall_poll or regall_wait. The first messages of a peer go to
 * the box's mailbox, which all peers share; after REGALL_BOX_THRESHOLD of them the peer gets a ring
 * of its own, if one is free. Nobody waits for anybody: a message is in the box when regall_send
 * returns 0, or it is not sent.
 *
 * Messages of one thread by one regall_peer arrive in the order in which they were sent, whichever
 * of the functions below has sent them. Other messages are not ordered.
 *
 * In the words of the C11 memory model, a message is published by a release operation and taken by
 * an acquire operation: what the sender did before regall_send happens before what the receiver
 * does after the regall_poll that has returned the message.
 *
 * Any number of threads may send to one peer and take messages at the same time. These functions
 * are not for signal handlers, nor to be left by cancellation or siglongjmp. In a child of fork there
 * is no box until the child makes its own, and a regall_peer that it has inherited sends as the
 * child. */

/* What a message is: regall_message.kind. */
enum regall_message_kind {
	REGALL_MESSAGE_DATA = 1, /* regall_send */
	REGALL_MESSAGE_PUT = 2,  /* regall_put_notify: the bytes are in this process's memory */
	REGALL_MESSAGE_GET = 3   /* regall_get_notify: the bytes were read, and may be overwritten */
};

/* A message, in front of its data. `pid` and `start_time` are what the sender says of itself: any
 * process of the same user could say the same. */
struct regall_message {
	uint64_t size;       /* bytes from here to the next message */
	uint64_t tag;        /* the sender's */
	uint64_t bytes;      /* of the data; or how many were put or got: then there are no data */
	uint64_t start_time; /* of the sender, as in regall_process */
	int32_t pid;         /* 0: the sender is in another pid namespace */
	uint32_t kind;       /* enum regall_message_kind */
};

/* The data of a message (const void *); the message behind it. */
#define regall_message_data(message) ((const void *)((message) + 1))
#define regall_message_next(message) \
	((const struct regall_message *)((const char *)(message) + (message)->size))

/* Makes this process's box, if there is none yet, so that peers can send before it is first read.
 * 0, or -ENOSYS: inert; -ENOMEM; -EMFILE, -ENFILE: no descriptor for it. */
int regall_box_open(void);

/* Sends `len` bytes at `data`, and `tag`, to a peer's box. Does not wait: at most, of the threads
 * of this process, for one that sends to the same peer at this moment.
 * 0, or
 * -EAGAIN:   there is no room; nothing was sent.
 * -EMSGSIZE: the message is longer than the peer's REGALL_BOX_LIMIT (4 KiB).
 * -ENOTCONN: the peer has no box yet.
 * -ESRCH:    the peer has ended. Messages that it has not taken are lost, as are those that are
 *            sent within the next 10 ms.
 * -ESTALE:   it executes another program.
 * -EPERM:    its box is not for this process: as for regall_get by its helper, or, without a helper,
 *            what /proc/PID/fd says.
 * -EINVAL:   peer is NULL, or data is though len is not 0. -ENOSYS: inert.
 * -EMFILE, -ENFILE, -ENOMEM, errors of open(2) and mmap(2): the box can't be mapped (at the first
 *            message), or there is no descriptor by which to wake its owner. */
int regall_send(regall_peer *peer, uint64_t tag, const void *data, size_t len);

/* Takes messages, oldest first of each sender, as many as fit into the `room` bytes at `out`: each
 * is a struct regall_message, aligned to 8 bytes if `out` is, and its data, rounded up to a multiple
 * of 8 bytes. Nothing checks that `out` can be written, nor that the data of regall_send can be read.
 * regall_wait waits for the first: up to timeout_ms milliseconds, without end if that is negative.
 * How many there are, or -EMSGSIZE: the first needs more room, and stays in the box; -EINVAL: out is
 * NULL though room is not 0; errors of regall_box_open. */
int regall_poll(void *out, size_t room);
int regall_wait(void *out, size_t room, int timeout_ms);

/* A descriptor to wait on with poll(2) and its kin: readable if something has come since
 * regall_poll has last returned 0 (perhaps also if not). It is not to be read, written or closed.
 * From then on a sender makes a system call if this process may be waiting. It is passed to senders
 * by this process's helper thread, which is started.
 * The descriptor, or -EOPNOTSUPP: there is no helper (REGALL_COPY has none); -EMFILE, -ENFILE;
 * -ENOENT: no /proc; errors of regall_box_open. */
int regall_box_fd(void);

/* As regall_put and regall_get, and then sends the peer a message with `tag` and the number of bytes.
 * The peer that has taken the message of a put sees the bytes; after that of a get it may overwrite
 * what was read: the copy happens before what it does then. If not all was copied, no message is sent.
 * 0, or the errors of regall_put and regall_get, and of regall_send: then nothing was copied. (-ESTALE
 * can also mean that the bytes were copied and the peer has thrown this process's ring away.) */
int regall_put_notify(regall_peer *peer, const void *from, uint64_t to, size_t len, uint64_t tag,
		      struct regall_done *done);
int regall_get_notify(regall_peer *peer, void *to, uint64_t from, size_t len, uint64_t tag,
		      struct regall_done *done);

/* The same by the queue's thread; `notice` is the message's tag, `tag` the completion's. Errors as
 * regall_put_start's; -ENOSYS: inert. Where the peer's box is full when it is the copy's turn, the
 * completion says -EAGAIN, and nothing was copied. */
int regall_put_notify_start(regall_queue *queue, regall_peer *peer, const void *from, uint64_t to,
			    size_t len, uint64_t notice, uint64_t tag);
int regall_get_notify_start(regall_queue *queue, regall_peer *peer, void *to, uint64_t from,
			    size_t len, uint64_t notice, uint64_t tag);

/* ---- A peer's memory, mapped ----
 *
 * Memory that a peer shares can be mapped here, and be read, reduced or written where it
 * is: of regall_alloc_shared, other memfds, System V segments, MAP_SHARED|MAP_ANONYMOUS (as
 * root or with CAP_CHECKPOINT_RESTORE), files. regall_get and regall_put map it by
 * themselves where that pays. Memory mapped so is not registered here. */

/* Flags of regall_map. */
#define REGALL_MAP_WRITE 1u    /* to write there, too */
#define REGALL_MAP_UNSEALED 2u /* even of a file that can be made shorter: SIGBUS if it is */

/* What regall_map has mapped. */
struct regall_mapping {
	void *at;            /* the peer's byte at `addr` */
	uint64_t len;        /* bytes, as asked for */
	uint64_t generation; /* of the directory entry that it is of */
	uint64_t internal[4];
};

/* Maps `len` bytes at the peer's address `addr`, which must all be registered and lie in one
 * of the ranges of its directory. What is mapped stays, and can be touched without harm,
 * until regall_unmap, even if the peer unmaps it or ends: it may then no longer be
 * what the peer has at that address, which regall_map_check tells.
 * 0, or -EOPNOTSUPP: it can't be mapped: private memory, several ranges, a file that could be
 * made shorter or is of hugetlb (without REGALL_MAP_UNSEALED), a segment of hugetlb, or no way
 * to open it; -EFAULT: it is not registered, or beyond the end of a file; -EACCES: its protection
 * does not permit it;
 * -ESTALE: it changed meanwhile, or the peer executes another program; -ESRCH: the
 * peer has ended; -EINVAL: peer or out is NULL, len is 0 or wraps, unknown flags; -ENOMEM. */
int regall_map(regall_peer *peer, uint64_t addr, size_t len, unsigned flags, struct regall_mapping *out);

/* Whether the peer still has mapped there what it had when it was mapped here. To be called
 * after what was read has been used: 0 says that it was right. No system call, mostly.
 * 0, or -ESTALE: it has been unmapped or replaced, or its protection has changed, or the peer
 * executes another program; -ESRCH: the peer has ended; -EINVAL: NULL, or not mapped. */
int regall_map_check(regall_peer *peer, const struct regall_mapping *mapping);

/* Unmaps it; before or after the peer is closed. 0, or -EINVAL: NULL, or not mapped. */
int regall_unmap(struct regall_mapping *mapping);

#ifdef __cplusplus
}
#endif

#endif
