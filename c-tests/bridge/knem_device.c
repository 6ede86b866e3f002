/*
 * /dev/knem for COMMAND and its descendants: see device_standin.c, and knem_abi.h for the
 * interface. Order and errno of every check are those of KNEM's driver (knem_main.c).
 *
 *   knem_device [--dma] [--slow=MS] [--pages] [--count FILE] COMMAND ARGS...
 *
 * --dma       there is a DMA channel (KNEM_FEATURE_DMA); without it KNEM_FLAG_DMA is EINVAL
 * --slow=MS   what is asynchronous stays pending for that long
 * --pages     a copy that meets other pages than those the region was made of fails and is
 *             counted as stale: the driver would have copied the old ones. As it does, so
 *             are pages brought in that were not there yet (inject.c): for a region to be read
 *             alone that is the zero page, or a file's. For root, where pages don't move by
 *             themselves (swap, compaction)
 * --count     what was served: "knem: creates 2 destroys 2 copies 5 bytes 4096 failed 0 stale 0
 *             warned 0"; the kernel warns of regions with more segments than kmalloc has room for
 *
 * Other than the driver: pages are not pinned, so a region is always what is mapped there
 * now, a copy of memory that was unmapped or whose process is gone or has called execve
 * since has the status FAILED (the driver still had the pages), and after munmap and mmap
 * at the same place a stale cookie works here, without --pages, and would read old pages
 * there. Not there: the poll and read of KNEM_FLAG_NOTIFY_FD, and the old calls
 * (INIT_SEND and its kin).
 */
#include "device_standin.h"

#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#include "inject.h"
#include "knem_abi.h"

/* Bytes that are on their way from one process to the other. */
#define BOUNCE (256ul << 10)
#define SEGMENTS_A_CALL 1024 /* IOV_MAX */
/* What kmalloc (4 MiB) holds of the driver's two structures for each segment. */
#define SEGMENTS_MOST ((4u << 20) / 64 - 4)

struct segments {
	pid_t pid;
	uint64_t length;
	uint32_t n;
	struct knem_cmd_param_iovec *at;
	uint64_t **pages; /* of each segment, as pagemap has them; with --pages only */
};

struct region {
	struct segments memory;
	uint32_t protection;
	bool single_use;
	int users; /* the table is one */
};

struct context {
	uint32_t index;
	struct handle *handle;
	uint32_t magic;
	uint32_t room;
	struct region **regions; /* by number; lowest free first, as the driver's */
	uint64_t slots;          /* status bytes that are mapped; 0: not yet */
};

/* A copy that has been checked and is to be done. */
struct work {
	struct context *ctx;
	struct region *source, *target; /* held; NULL where it is `local` */
	struct segments local;
	uint64_t source_offset, target_offset, length;
	uint32_t flags, slot;
};

static struct context **contexts;
static uint32_t context_room;
static uint32_t context_magic;
static bool have_dma;
static bool watch_pages;
static int slow_ms;
static struct {
	uint64_t creates, destroys, copies, bytes, failed, stale, warned;
} served;

static void free_segments(struct segments *s)
{
	for (uint32_t i = 0; s->pages && i < s->n; i++)
		free(s->pages[i]);
	free(s->pages);
	free(s->at);
}

/* ---- pages, see proc_pid_pagemap(5) ---- */

#define PRESENT (1ul << 63)
#define FRAME ((1ul << 55) - 1)

/* The frames of the pages that a range touches; 0 for those that are not there. */
static uint64_t *frames_of(pid_t pid, uint64_t base, uint64_t len)
{
	uint64_t first = base / PAGE, n = (base + len + PAGE - 1) / PAGE - first;
	uint64_t *frames = calloc(n + 1, sizeof *frames);
	char path[64];
	snprintf(path, sizeof path, "/proc/%d/pagemap", pid);
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	if (!frames || fd < 0 || pread(fd, frames, n * sizeof *frames, (off_t)(first * sizeof *frames)) < 0)
		n = 0;
	for (uint64_t i = 0; i < n; i++)
		frames[i] = frames[i] & PRESENT ? frames[i] & FRAME : 0;
	if (fd >= 0)
		close(fd);
	return frames;
}

static void note_pages(struct segments *s)
{
	s->pages = watch_pages ? calloc(s->n + 1ul, sizeof *s->pages) : NULL;
	for (uint32_t i = 0; s->pages && i < s->n; i++)
		s->pages[i] = frames_of(s->pid, s->at[i].base, s->at[i].len);
}

static bool same_pages(const uint64_t *then, uint64_t base, pid_t pid, uint64_t from, uint64_t len)
{
	uint64_t first = from / PAGE - base / PAGE, n = (from + len + PAGE - 1) / PAGE - from / PAGE;
	uint64_t *now = frames_of(pid, from, len);
	bool same = true;
	for (uint64_t i = 0; then && now && i < n; i++)
		same &= then[first + i] == 0 || then[first + i] == now[i];
	free(now);
	return same;
}

/* Whether a part of a region is made of the pages that it was made of when it was created. */
static bool still_there(const struct segments *s, uint64_t offset, uint64_t length)
{
	bool same = true;
	for (uint32_t i = 0; s->pages && length > 0 && i < s->n; i++) {
		uint64_t len = s->at[i].len;
		if (offset >= len) {
			offset -= len;
			continue;
		}
		len = len - offset < length ? len - offset : length;
		same &= same_pages(s->pages[i], s->at[i].base, s->pid, s->at[i].base + offset, len);
		length -= len;
		offset = 0;
	}
	return same;
}

/* ---- copying ---- */

struct cursor {
	pid_t pid;
	const struct knem_cmd_param_iovec *at, *end;
	uint64_t within;
};

static struct cursor cursor_at(const struct segments *s, uint64_t offset)
{
	struct cursor c = { s->pid, s->at, s->at + s->n, offset };
	while (c.at < c.end && c.within >= c.at->len) {
		c.within -= c.at->len;
		c.at++;
	}
	return c;
}

/* The next pieces, up to `want` bytes of them; returns how many bytes they are. */
static size_t take(struct cursor *c, struct iovec *pieces, int *n, size_t want)
{
	size_t got = 0;
	for (*n = 0; *n < SEGMENTS_A_CALL && got < want && c->at < c->end;) {
		uint64_t rest = c->at->len - c->within;
		size_t piece = rest < want - got ? rest : want - got;
		if (piece)
			pieces[(*n)++] = (struct iovec){ (void *)(c->at->base + c->within), piece };
		got += piece;
		c->within += piece;
		if (c->within == c->at->len) {
			c->at++;
			c->within = 0;
		}
	}
	return got;
}

/* Moves `length` bytes, which both sides have. */
static bool move(struct cursor from, struct cursor to, uint64_t length)
{
	char *bounce = malloc(BOUNCE);
	bool ok = bounce != NULL;
	while (ok && length > 0) {
		struct iovec pieces[SEGMENTS_A_CALL];
		int n;
		size_t got = take(&from, pieces, &n, length < BOUNCE ? length : BOUNCE);
		struct iovec here = { bounce, got };
		ok = got > 0 && process_vm_readv(from.pid, &here, 1, pieces, (unsigned long)n, 0) == (ssize_t)got;
		for (size_t done = 0; ok && done < got;) {
			size_t part = take(&to, pieces, &n, got - done);
			here = (struct iovec){ bounce + done, part };
			ok = part > 0 && process_vm_writev(to.pid, &here, 1, pieces, (unsigned long)n, 0) == (ssize_t)part;
			done += part;
		}
		length -= got;
	}
	free(bounce);
	return ok;
}

static const struct segments *side(const struct work *w, const struct region *r)
{
	return r ? &r->memory : &w->local;
}

static int copy(const struct work *w)
{
	struct cursor from = cursor_at(side(w, w->source), w->source_offset);
	struct cursor to = cursor_at(side(w, w->target), w->target_offset);
	bool fresh = still_there(side(w, w->source), w->source_offset, w->length) &&
		     still_there(side(w, w->target), w->target_offset, w->length);
	bool ok = fresh && move(from, to, w->length);
	pthread_mutex_lock(&standin_lock);
	served.stale += !fresh;
	served.copies++;
	served.bytes += ok ? w->length : 0;
	served.failed += !ok;
	pthread_mutex_unlock(&standin_lock);
	return ok ? KNEM_STATUS_SUCCESS : KNEM_STATUS_FAILED;
}

/* ---- regions ---- */

static void put_region(struct region *r)
{
	if (!r)
		return;
	pthread_mutex_lock(&standin_lock);
	int left = --r->users;
	pthread_mutex_unlock(&standin_lock);
	if (left == 0) {
		free_segments(&r->memory);
		free(r);
	}
}

struct range_check {
	uint64_t at, end;
	bool write;
};

static bool covers(const struct mapping *m, void *arg)
{
	struct range_check *c = arg;
	if (m->start > c->at || m->access[c->write ? 1 : 0] == '-')
		return false;
	c->at = m->end;
	return c->at < c->end;
}

/* Whether the driver could pin all of it: get_user_pages wants it mapped and readable, or
 * writable. */
static bool can_pin(const struct segments *s, bool write)
{
	for (uint32_t i = 0; i < s->n; i++) {
		uint64_t start = s->at[i].base & ~(PAGE - 1), end = s->at[i].base + s->at[i].len;
		if (s->at[i].len == 0)
			continue;
		struct range_check c = { start, end, write };
		if (end < start || !standin_mappings(s->pid, start, end, covers, &c) || c.at < end)
			return false;
	}
	return true;
}

/* The caller's own segments; errno, or 0. */
static int read_segments(const struct call *c, uint64_t array, uint32_t n, struct segments *s)
{
	*s = (struct segments){ .pid = c->tgid, .n = n };
	if (n > SEGMENTS_MOST) {
		pthread_mutex_lock(&standin_lock);
		served.warned++;
		pthread_mutex_unlock(&standin_lock);
		return ENOMEM;
	}
	s->at = calloc(n + 1ul, sizeof *s->at);
	if (!s->at)
		return ENOMEM;
	if (!standin_read(c->tid, array, s->at, n * sizeof *s->at)) {
		free(s->at);
		s->at = NULL;
		return EFAULT;
	}
	for (uint32_t i = 0; i < n; i++)
		s->length += s->at[i].len;
	return 0;
}

static uint32_t place_region(struct context *ctx, struct region *r)
{
	uint32_t i = 0;
	while (i < ctx->room && ctx->regions[i])
		i++;
	if (i == ctx->room) {
		ctx->room = ctx->room ? 2 * ctx->room : 64;
		ctx->regions = realloc(ctx->regions, ctx->room * sizeof *ctx->regions);
		if (!ctx->regions)
			abort();
		memset(ctx->regions + i, 0, (ctx->room - i) * sizeof *ctx->regions);
	}
	ctx->regions[i] = r;
	return i;
}

/* 31 bits of the context, one of SINGLEUSE, 32 of the region, each in disguise. */
static uint64_t cookie_of(const struct context *ctx, uint32_t region, bool single_use)
{
	return (uint64_t)(region ^ ctx->magic) << 32 | (uint64_t)single_use << 31 |
	       ((ctx->index ^ context_magic) & 0x7fffffff);
}

/* What get_user_pages does: pages that are not there come, to be read or to be written. */
static void bring_in(struct injection *i, const struct segments *s, bool write)
{
	const uint64_t advice = write ? MADV_POPULATE_WRITE : MADV_POPULATE_READ;
	for (uint32_t n = 0; n < s->n; n++) {
		uint64_t start = s->at[n].base & ~(PAGE - 1), end = (s->at[n].base + s->at[n].len + PAGE - 1) & ~(PAGE - 1);
		if (s->at[n].len > 0)
			inject_call(i, SYS_madvise, (uint64_t[6]){ start, end - start, advice });
	}
}

static int64_t create_region(struct call *c, struct context *ctx)
{
	struct knem_cmd_create_region p;
	if (!standin_read(c->tid, c->arg, &p, sizeof p))
		return -EFAULT;
	/* Regions for all users are not made here. */
	if (p.flags & ~KNEM_FLAG_SINGLEUSE)
		return -EINVAL;
	struct region *r = calloc(1, sizeof *r);
	if (!r)
		return -ENOMEM;
	*r = (struct region){ .protection = p.protection,
			      .single_use = p.flags & KNEM_FLAG_SINGLEUSE,
			      .users = 1 };
	int e = read_segments(c, p.iovec_array, p.iovec_nr, &r->memory);
	if (!e && !can_pin(&r->memory, p.protection & PROT_WRITE))
		e = EFAULT;
	if (e) {
		put_region(r);
		return -e;
	}
	struct injection i;
	bool held = false;
	if (watch_pages) {
		if (!inject_seize(c, &i) || !(held = inject_hold(c, &i))) {
			put_region(r);
			return -EFAULT;
		}
		bring_in(&i, &r->memory, p.protection & PROT_WRITE);
	}
	note_pages(&r->memory);
	pthread_mutex_lock(&standin_lock);
	uint32_t number = place_region(ctx, r);
	served.creates++;
	pthread_mutex_unlock(&standin_lock);
	p.cookie = cookie_of(ctx, number, r->single_use);
	int64_t value = standin_write(c->tid, c->arg, &p, sizeof p) ? 0 : -EFAULT;
	if (held)
		inject_end(&i, value);
	return value;
}

/* Of the caller's own context, whatever context the cookie names: so does the driver. */
static int64_t destroy_region(struct call *c, struct context *ctx)
{
	uint64_t cookie;
	if (!standin_read(c->tid, c->arg, &cookie, sizeof cookie))
		return -EFAULT;
	uint32_t number = (uint32_t)(cookie >> 32) ^ ctx->magic;
	struct region *r = NULL;
	pthread_mutex_lock(&standin_lock);
	if (number < ctx->room) {
		r = ctx->regions[number];
		ctx->regions[number] = NULL;
	}
	served.destroys += r != NULL;
	pthread_mutex_unlock(&standin_lock);
	put_region(r);
	return r ? 0 : -EINVAL;
}

/* The region of a cookie, held for the caller; a single use is used up by it. */
static int find_region_locked(const struct call *c, uint64_t cookie, uint32_t protection, struct region **found)
{
	uint32_t index = ((uint32_t)cookie ^ context_magic) & 0x7fffffff;
	struct context *ctx = index < context_room ? contexts[index] : NULL;
	if (!ctx || !standin_open(ctx->handle))
		return EINVAL;
	uint32_t number = (uint32_t)(cookie >> 32) ^ ctx->magic;
	struct region *r = number < ctx->room ? ctx->regions[number] : NULL;
	if (!r)
		return EINVAL;
	if (ctx->handle->uid != c->uid)
		return EPERM;
	if (!(r->protection & protection))
		return EACCES;
	if (cookie >> 31 & 1)
		ctx->regions[number] = NULL;
	else
		r->users++;
	*found = r;
	return 0;
}

static int find_region(const struct call *c, uint64_t cookie, uint32_t protection, struct region **found)
{
	pthread_mutex_lock(&standin_lock);
	int e = find_region_locked(c, cookie, protection, found);
	pthread_mutex_unlock(&standin_lock);
	return e;
}

/* ---- the status array ---- */

static bool is_status_array(const struct mapping *m, void *arg)
{
	struct context *ctx = arg;
	if (m->ino == ctx->handle->ino && m->dev == ctx->handle->dev && m->offset == 0)
		ctx->slots = m->end - m->start;
	return ctx->slots == 0;
}

/* mmap is not watched: the mapping is looked for when it is first needed. */
static bool slot_is_mapped(const struct call *c, struct context *ctx, uint32_t slot)
{
	if (ctx->slots == 0)
		standin_mappings(c->tgid, 0, UINT64_MAX, is_status_array, ctx);
	return slot < ctx->slots;
}

static void set_slot(const struct context *ctx, uint32_t slot, int status)
{
	uint8_t byte = (uint8_t)status;
	if (pwrite(ctx->handle->memfd, &byte, 1, slot) != 1)
		return; /* nobody has it open any more */
}

static int check_flags(const struct call *c, struct context *ctx, uint32_t flags, uint32_t slot)
{
	if ((flags & KNEM_FLAG_ANY_ASYNC_MASK) && !slot_is_mapped(c, ctx, slot))
		return EINVAL;
	if ((flags & KNEM_FLAG_NOTIFY_FD) &&
	    (!(flags & KNEM_FLAG_ANY_THREAD_MASK) || (flags & KNEM_FLAG_ASYNCDMACOMPLETE)))
		return EINVAL;
	if ((flags & KNEM_FLAG_DMA) && !have_dma)
		return EINVAL;
	return 0;
}

/* ---- copy requests ---- */

static void drop_work(struct work *w)
{
	put_region(w->source);
	put_region(w->target);
	free_segments(&w->local);
	free(w);
}

static void *later(void *arg)
{
	struct work *w = arg;
	struct timespec t = { slow_ms / 1000, slow_ms % 1000 * 1000000l };
	nanosleep(&t, NULL);
	set_slot(w->ctx, w->slot, copy(w));
	drop_work(w);
	return NULL;
}

static bool in_the_background(uint32_t flags)
{
	if (flags & KNEM_FLAG_DMA)
		return flags & (KNEM_FLAG_DMATHREAD | KNEM_FLAG_ASYNCDMACOMPLETE);
	return flags & KNEM_FLAG_MEMCPYTHREAD;
}

/* Does it, or has it done after the answer; `status` is the field in the caller's memory. */
static int64_t submit(struct call *c, struct work *w, uint64_t status)
{
	bool async = w->flags & KNEM_FLAG_ANY_ASYNC_MASK;
	uint32_t current = KNEM_STATUS_PENDING;
	if (async)
		set_slot(w->ctx, w->slot, KNEM_STATUS_PENDING);
	bool background = w->length && in_the_background(w->flags);
	if (!background) {
		uint32_t end = w->length ? (uint32_t)copy(w) : KNEM_STATUS_SUCCESS;
		if (async)
			set_slot(w->ctx, w->slot, (int)end);
		/* The driver leaves it pending where an asynchronous copy has nothing to do. */
		if (!async || w->length)
			current = end;
	}
	bool told = standin_write(c->tid, status, &current, sizeof current);
	if (background && told) {
		pthread_t t;
		standin_answer(c, 0);
		if (pthread_create(&t, NULL, later, w) == 0)
			pthread_detach(t);
		else
			later(w);
		return 0;
	}
	drop_work(w);
	return told ? 0 : -EFAULT;
}

static uint64_t shortest(uint64_t source, uint64_t source_offset, uint64_t target, uint64_t target_offset, uint64_t limit)
{
	if (source_offset >= source || target_offset >= target)
		return 0;
	uint64_t n = source - source_offset;
	if (n > target - target_offset)
		n = target - target_offset;
	return n < limit ? n : limit;
}

static struct work *new_work(struct context *ctx, uint32_t flags, uint32_t slot)
{
	struct work *w = calloc(1, sizeof *w);
	if (!w)
		abort();
	w->ctx = ctx;
	w->flags = flags;
	w->slot = slot;
	return w;
}

static int64_t copy_regions(struct call *c, struct context *ctx, const struct knem_cmd_copy *p, uint64_t limit,
			    uint64_t status)
{
	int e = check_flags(c, ctx, p->flags, p->async_status_index);
	if (e)
		return -e;
	struct work *w = new_work(ctx, p->flags, p->async_status_index);
	e = find_region(c, p->src_cookie, PROT_READ, &w->source);
	if (!e)
		e = find_region(c, p->dst_cookie, PROT_WRITE, &w->target);
	if (e) {
		drop_work(w);
		return -e;
	}
	w->source_offset = p->src_offset;
	w->target_offset = p->dst_offset;
	w->length = shortest(w->source->memory.length, p->src_offset, w->target->memory.length, p->dst_offset, limit);
	return submit(c, w, status);
}

static int64_t copy_inline(struct call *c, struct context *ctx, const struct knem_cmd_inline_copy *p, uint64_t limit,
			   uint64_t status)
{
	int e = check_flags(c, ctx, p->flags, p->async_status_index);
	if (e)
		return -e;
	struct work *w = new_work(ctx, p->flags, p->async_status_index);
	struct region **remote = p->write ? &w->target : &w->source;
	e = read_segments(c, p->local_iovec_array, p->local_iovec_nr, &w->local);
	if (!e)
		e = find_region(c, p->remote_cookie, p->write ? PROT_WRITE : PROT_READ, remote);
	/* The caller's memory is pinned in all cases but a plain read, where a bad address is
	 * met while copying; a single use is used up by then. */
	bool pinned = p->write || in_the_background(p->flags) || (p->flags & (KNEM_FLAG_DMA | KNEM_FLAG_PINLOCAL));
	if (!e && pinned && !can_pin(&w->local, !p->write))
		e = EFAULT;
	if (e) {
		drop_work(w);
		return -e;
	}
	*(p->write ? &w->target_offset : &w->source_offset) = p->remote_offset;
	w->length = shortest((*remote)->memory.length, p->remote_offset, w->local.length, 0, limit);
	return submit(c, w, status);
}

static int64_t copy_command(struct call *c, struct context *ctx)
{
	union {
		struct knem_cmd_copy copy;
		struct knem_cmd_copy_bounded copy_bounded;
		struct knem_cmd_inline_copy inline_copy;
		struct knem_cmd_inline_copy_bounded inline_bounded;
	} p;
	if (!standin_read(c->tid, c->arg, &p, _IOC_SIZE(c->command)))
		return -EFAULT;
#define STATUS(type) (c->arg + offsetof(struct type, current_status))
	switch (c->command) {
	case KNEM_CMD_COPY:
		return copy_regions(c, ctx, &p.copy, UINT64_MAX, STATUS(knem_cmd_copy));
	case KNEM_CMD_INLINE_COPY:
		return copy_inline(c, ctx, &p.inline_copy, UINT64_MAX, STATUS(knem_cmd_inline_copy));
	case KNEM_CMD_COPY_BOUNDED: {
		struct knem_cmd_copy plain = {
			.src_cookie = p.copy_bounded.src_cookie,
			.src_offset = p.copy_bounded.src_offset,
			.dst_cookie = p.copy_bounded.dst_cookie,
			.dst_offset = p.copy_bounded.dst_offset,
			.flags = p.copy_bounded.flags,
			.async_status_index = p.copy_bounded.async_status_index,
		};
		return copy_regions(c, ctx, &plain, p.copy_bounded.length, STATUS(knem_cmd_copy_bounded));
	}
	default: {
		struct knem_cmd_inline_copy plain = {
			.local_iovec_array = p.inline_bounded.local_iovec_array,
			.local_iovec_nr = p.inline_bounded.local_iovec_nr,
			.write = p.inline_bounded.write,
			.remote_cookie = p.inline_bounded.remote_cookie,
			.remote_offset = p.inline_bounded.remote_offset,
			.flags = p.inline_bounded.flags,
			.async_status_index = p.inline_bounded.async_status_index,
		};
		return copy_inline(c, ctx, &plain, p.inline_bounded.length, STATUS(knem_cmd_inline_copy_bounded));
	}
	}
}

/* ---- the device ---- */

static int64_t get_info(const struct call *c)
{
	struct knem_cmd_info info = { .abi = KNEM_ABI_VERSION, .features = have_dma ? KNEM_FEATURE_DMA : 0 };
	return standin_write(c->tid, c->arg, &info, sizeof info) ? 0 : -EFAULT;
}

static int64_t bind_offload(const struct call *c, struct context *ctx)
{
	struct knem_cmd_bind_offload p;
	if (!standin_read(c->tid, c->arg, &p, sizeof p))
		return -EFAULT;
	if (slot_is_mapped(c, ctx, 0))
		return -EBUSY;
	return p.flags == KNEM_BIND_FLAG_CUSTOM || p.flags == KNEM_BIND_FLAG_CURRENT ||
			       p.flags == KNEM_BIND_FLAG_CURRENT_REVERSED
		       ? 0
		       : -EINVAL;
}

static int64_t knem_ioctl(struct call *c, struct handle *h)
{
	struct context *ctx = h->state;
	if (!ctx)
		return -EBADF; /* opened for reading only */
	switch (c->command) {
	case KNEM_CMD_GET_INFO:
		return get_info(c);
	case KNEM_CMD_BIND_OFFLOAD:
		return bind_offload(c, ctx);
	case KNEM_CMD_CREATE_REGION:
		return create_region(c, ctx);
	case KNEM_CMD_DESTROY_REGION:
		return destroy_region(c, ctx);
	case KNEM_CMD_COPY:
	case KNEM_CMD_INLINE_COPY:
	case KNEM_CMD_COPY_BOUNDED:
	case KNEM_CMD_INLINE_COPY_BOUNDED:
		return copy_command(c, ctx);
	default:
		return -ENOSYS;
	}
}

static void knem_opened(struct call *c, struct handle *h)
{
	(void)c;
	if (h->access == O_RDONLY)
		return;
	struct context *ctx = calloc(1, sizeof *ctx);
	uint32_t i = 0;
	while (i < context_room && contexts[i])
		i++;
	if (i == context_room) {
		context_room = context_room ? 2 * context_room : 16;
		contexts = realloc(contexts, context_room * sizeof *contexts);
		if (!contexts)
			abort();
		memset(contexts + i, 0, (context_room - i) * sizeof *contexts);
	}
	if (!ctx || getrandom(&ctx->magic, sizeof ctx->magic, 0) != sizeof ctx->magic)
		abort();
	ctx->index = i;
	ctx->handle = h;
	contexts[i] = ctx;
	h->state = ctx;
}

/* The context stays, as work in the background may look at it. */
static void knem_closed(struct handle *h)
{
	struct context *ctx = h->state;
	if (!ctx)
		return;
	contexts[ctx->index] = NULL;
	for (uint32_t i = 0; i < ctx->room; i++) {
		struct region *r = ctx->regions[i];
		ctx->regions[i] = NULL;
		if (r && --r->users == 0) {
			free_segments(&r->memory);
			free(r);
		}
	}
}

static bool knem_option(const char *option)
{
	if (strcmp(option, "--dma") == 0)
		return have_dma = true;
	if (strcmp(option, "--pages") == 0)
		return watch_pages = true;
	return sscanf(option, "--slow=%d", &slow_ms) == 1;
}

static void knem_report(FILE *f)
{
	fprintf(f, "knem: creates %lu destroys %lu copies %lu bytes %lu failed %lu stale %lu warned %lu", served.creates,
		served.destroys, served.copies, served.bytes, served.failed, served.stale, served.warned);
}

static const struct device knem = {
	.path = KNEM_DEVICE,
	.type = 'K',
	.option = knem_option,
	.opened = knem_opened,
	.closed = knem_closed,
	.ioctl = knem_ioctl,
	.report = knem_report,
};

__attribute__((constructor)) static void offer(void)
{
	if (getrandom(&context_magic, sizeof context_magic, 0) != sizeof context_magic)
		abort();
	standin_offer(&knem);
}
