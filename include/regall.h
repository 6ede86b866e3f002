/* regall.h: what a program can ask of libregall.so.
 *
 * Link with -lregall (pkg-config regall), or load the shim with LD_PRELOAD and
 * look the functions up with dlsym. Every function may be called when the shim
 * is inert (REGALL is not 1, or the executable is left out); it then says so,
 * or does the nearest harmless thing.
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
	REGALL_REFUSED = 10
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
 * end are of the part of the range that it holds. They are good until the memory is
 * unmapped, or its protection or pages change.
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

/* Memory that is registered from the start and that peers can map: see regall_map. It is
 * of a memfd that can't be made shorter, all of it there before this returns, in huge pages
 * where the system allows them for shared memory. A child of fork shares it with its parent:
 * each sees what the other writes. (Of the first 64 of them a process keeps a descriptor
 * open, below 1024, for peers that are not root to find.) Otherwise as regall_alloc. */
int regall_alloc_shared(size_t size, void **out);

/* Gives back memory of any of these kinds; `addr` and `size` as regall_alloc had them.
 * It is munmap for them: anything else that is mapped there goes, too.
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

/* Compares the ledger with /proc/self/maps and mends it: for memory that came
 * or went without a call that the shim can see. 0, or -ENOSYS: inert. */
int regall_audit(void);

/* ---- Peers: one-sided access to what other processes of the node have registered ----
 *
 * Works from the peers' directories alone, so that a program may use it without being
 * tracked itself (REGALL not 1). Not for signal handlers. A peer may be used by several
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

/* What came of a transfer, also of one that failed. */
struct regall_done {
	uint64_t bytes;      /* from the beginning, transferred and good */
	uint64_t generation; /* the highest of the directory entries that they were in */
	uint32_t mechanism;  /* enum regall_mechanism, of the last piece */
	uint32_t reserved;
};

/* An open peer. */
typedef struct regall_peer regall_peer;

/* Flag of regall_peer_open: who the peer is is checked after each transfer. Otherwise
 * that is left out if it was done within the last 50 microseconds. */
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

/* Closes it. 0, or -EINVAL: it is NULL. */
int regall_peer_close(regall_peer *peer);

/* Lets go of what is mapped here of memory that it does not have any more.
 * 0 if it is still there; -ESRCH: it has ended; -ESTALE: it executes another program. */
int regall_peer_check(regall_peer *peer);

/* Copies len bytes from the peer's address `from` to `to`, or from `from` to its address
 * `to`. Every byte must be registered (by the pin set or an adapter) and readable, or
 * writable. `done` may be NULL.
 *
 * 0, or, with done->bytes transferred and good:
 * -ESTALE: the memory was unmapped or replaced meanwhile, or the peer executes another
 *          program; what is behind done->bytes is not to be used. Start again there.
 *          (A put may then have written into what is there now.)
 * -EFAULT: it is not registered (and was not touched), or can't be had though it is: beyond
 *          the end of a file, say, or `to` is not ours to write.
 * -EACCES: its protection does not permit it.
 * -ESRCH:  the peer has ended.
 * -EPERM:  no mechanism may (or REGALL_COPY=off).
 * -EINVAL: peer is NULL. -ENOMEM. */
int regall_get(regall_peer *peer, void *to, uint64_t from, size_t len, struct regall_done *done);
int regall_put(regall_peer *peer, const void *from, uint64_t to, size_t len, struct regall_done *done);

/* The same with vectors of any length on both sides; ends where the shorter side does.
 * -EINVAL also: a vector is NULL though it has segments. */
int regall_getv(regall_peer *peer, const struct regall_segment *to, size_t tos,
		const struct regall_segment *from, size_t froms, struct regall_done *done);
int regall_putv(regall_peer *peer, const struct regall_segment *from, size_t froms,
		const struct regall_segment *to, size_t tos, struct regall_done *done);

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
 * made shorter (without REGALL_MAP_UNSEALED), or no way to open it; -EFAULT: it is not
 * registered, or beyond the end of a file; -EACCES: its protection does not permit it;
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
