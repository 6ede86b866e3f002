/*
 * /dev/xpmem for COMMAND and its descendants: see device_standin.c, and xpmem_abi.h for
 * the interface. Order and errno of the checks are those of the driver (hpc/xpmem).
 *
 *   xpmem_device [--count FILE] COMMAND ARGS...
 *
 * --count   what was served: "xpmem: makes 1 gets 1 attaches 1 bytes 4096 detaches 1 unmappable 0
 *           hangs 0"; the driver (openucx) never ends what has something attached and executes
 *           another program, unless a thread with a table of its own had the device open
 *
 * As with the driver, a process that closes any descriptor of the device loses its segments,
 * permits and attachments; and what is attached of a process that has ended, executes another
 * program or has closed a descriptor is SIGBUS (revoke.c).
 *
 * An attachment is a second mapping of the file that the owner has mapped there, made in
 * the caller (inject.c). Hence the limits:
 * - Only memory that is MAP_SHARED, readable and writable, and of one file over the whole
 *   range can be attached: memfd, files, as root also anonymous and System V memory. An
 *   ordinary user needs the owner to have a descriptor of that file open as well. Anything
 *   else, above all private memory, is EINVAL; the driver attaches all memory.
 * - The driver looks pages up when they are touched. Here a range must be mapped when it
 *   is attached, and what the owner maps there later is not seen.
 * - Attachments outlive REMOVE (the driver: SIGBUS), they outlive their owner for up to 20 ms,
 *   and unmapping one with munmap does not kill the process.
 */
#include "device_standin.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/kcmp.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "inject.h"
#include "revoke.h"
#include "xpmem_abi.h"

#define TASK_SIZE 0x7ffffffff000ul

struct attachment {
	uint64_t at, size;
	bool revoked;
	struct attachment *next;
};

struct permit {
	xpmem_apid_t id;
	int mode;
	pid_t owner; /* of the segment */
	struct group *from;
	xpmem_segid_t segment;
	struct attachment *attachments;
	struct permit *next;
};

struct segment {
	xpmem_segid_t id;
	uint64_t start, size, mode;
	struct segment *next;
};

/* A process that has opened the device: the driver's thread group. */
struct group {
	pid_t tgid;
	int pidfd;
	uid_t uid;
	gid_t gid;
	bool gone;
	uint32_t segments_made, permits_made;
	struct segment *segments;
	struct permit *permits;
	struct handle **handles;
	int handle_count;
	struct group *next;
};

static struct group *groups;
static struct {
	uint64_t makes, gets, attaches, bytes, detaches, unmappable, hangs;
} served;

/* ---- tables; all with the lock held ---- */

static bool alive(struct group *g)
{
	struct pollfd p = { .fd = g->pidfd, .events = POLLIN };
	if (!g->gone && poll(&p, 1, 0) != 0)
		g->gone = true;
	bool open = false;
	for (int i = 0; !g->gone && i < g->handle_count; i++)
		open |= standin_open(g->handles[i]);
	g->gone |= !open;
	return !g->gone;
}

static struct group *group_of(pid_t tgid)
{
	for (struct group *g = groups; g; g = g->next)
		if (g->tgid == tgid && alive(g))
			return g;
	return NULL;
}

static int64_t new_id(pid_t tgid, uint32_t *made)
{
	return (int64_t)++*made << 32 | tgid;
}

static pid_t tgid_of(int64_t id)
{
	return (pid_t)id;
}

static struct segment *segment_of(pid_t tgid, xpmem_segid_t id)
{
	struct group *g = group_of(tgid);
	struct segment *s = g ? g->segments : NULL;
	while (s && s->id != id)
		s = s->next;
	return s;
}

static struct permit *permit_of(struct group *g, xpmem_apid_t id)
{
	struct permit *p = g->permits;
	while (p && p->id != id)
		p = p->next;
	return p;
}

/* ---- MAKE, REMOVE, GET ---- */

static int64_t make_locked(const struct call *c, struct xpmem_cmd_make *p)
{
	if (p->permit_type != XPMEM_PERMIT_MODE || (p->permit_value & ~0777ul) || p->size == 0)
		return -EINVAL;
	struct group *g = group_of(c->tgid);
	if (!g)
		return -XPMEM_ERRNO_NOPROC;
	if (p->vaddr + p->size > TASK_SIZE) {
		if (p->size != XPMEM_MAXADDR_SIZE)
			return -EINVAL;
		p->size = TASK_SIZE - p->vaddr;
	}
	if (p->vaddr % PAGE || p->size % PAGE)
		return -EINVAL;
	struct segment *s = calloc(1, sizeof *s);
	if (!s)
		return -ENOMEM;
	p->segid = new_id(c->tgid, &g->segments_made);
	*s = (struct segment){ p->segid, p->vaddr, p->size, p->permit_value, g->segments };
	g->segments = s;
	served.makes++;
	return 0;
}

static int64_t remove_locked(const struct call *c, xpmem_segid_t id)
{
	if (id <= 0)
		return -EINVAL;
	struct group *g = group_of(tgid_of(id));
	if (!g)
		return -ENOENT;
	if (g->tgid != c->tgid)
		return -EACCES;
	for (struct segment **at = &g->segments; *at; at = &(*at)->next)
		if ((*at)->id == id) {
			struct segment *s = *at;
			*at = s->next;
			free(s);
			return 0;
		}
	return -ENOENT;
}

/* The kernel's rule for System V objects, less supplementary groups. */
static bool permitted(const struct call *c, const struct group *g, uint64_t mode, int flags)
{
	uint64_t wanted = flags & XPMEM_RDWR ? 6 : 4;
	if (c->euid == g->uid)
		mode >>= 6;
	else if (c->egid == g->gid)
		mode >>= 3;
	return !(wanted & ~mode & 7) || c->euid == 0;
}

static int64_t get_locked(const struct call *c, struct xpmem_cmd_get *p)
{
	if (p->segid <= 0 || (p->flags != 0 && p->flags != XPMEM_RDONLY && p->flags != XPMEM_RDWR) ||
	    p->permit_type != XPMEM_PERMIT_MODE || p->permit_value != 0)
		return -EINVAL;
	pid_t owner = tgid_of(p->segid);
	struct segment *s = segment_of(owner, p->segid);
	if (!s)
		return -ENOENT;
	if (!permitted(c, group_of(owner), s->mode, p->flags))
		return -EACCES;
	struct group *g = group_of(c->tgid);
	if (!g)
		return -XPMEM_ERRNO_NOPROC;
	struct permit *new = calloc(1, sizeof *new);
	if (!new)
		return -ENOMEM;
	p->apid = new_id(c->tgid, &g->permits_made);
	*new = (struct permit){ .id = p->apid, .mode = p->flags, .owner = owner, .from = group_of(owner),
				.segment = p->segid, .next = g->permits };
	g->permits = new;
	served.gets++;
	return 0;
}

/* ---- the owner's memory as a file ---- */

struct source {
	uint64_t at, end;
	struct mapping first; /* the mapping that the range begins in */
	bool good;
};

static bool same_file(const struct mapping *m, void *arg)
{
	struct source *s = arg;
	bool begins = s->first.end == 0;
	if (m->start > s->at || strncmp(m->access, "rw", 2) != 0 || m->access[3] != 's' || m->ino == 0)
		return false;
	if (begins)
		s->first = *m;
	else if (m->dev != s->first.dev || m->ino != s->first.ino ||
		 m->offset - s->first.offset != m->start - s->first.start)
		return false;
	s->at = m->end;
	s->good = s->at >= s->end;
	return !s->good;
}

/* One of the owner's descriptors of the same file. */
static int open_descriptor(pid_t owner, const struct mapping *m)
{
	char path[320];
	snprintf(path, sizeof path, "/proc/%d/fd", owner);
	DIR *dir = opendir(path);
	int fd = -1;
	for (struct dirent *e; dir && fd < 0 && (e = readdir(dir));) {
		struct stat s;
		snprintf(path, sizeof path, "/proc/%d/fd/%s", owner, e->d_name);
		if (stat(path, &s) == 0 && s.st_ino == m->ino && s.st_dev == m->dev)
			fd = open(path, O_RDWR | O_CLOEXEC);
	}
	if (dir)
		closedir(dir);
	return fd;
}

static int open_source(pid_t owner, uint64_t start, uint64_t size, uint64_t *offset)
{
	struct source s = { .at = start, .end = start + size };
	char path[96];
	if (!standin_mappings(owner, start, start + size, same_file, &s) || !s.good)
		return -1;
	*offset = s.first.offset + (start - s.first.start);
	/* Needs CAP_CHECKPOINT_RESTORE, hence the second way. */
	snprintf(path, sizeof path, "/proc/%d/map_files/%lx-%lx", owner, s.first.start, s.first.end);
	int fd = open(path, O_RDWR | O_CLOEXEC);
	return fd >= 0 ? fd : open_descriptor(owner, &s.first);
}

/* ---- ATTACH, DETACH, RELEASE ---- */

#define ARGS(...) ((const uint64_t[6]){ __VA_ARGS__ })

static bool overlaps(const struct group *g, uint64_t at, uint64_t size)
{
	for (struct permit *p = g->permits; p; p = p->next)
		for (struct attachment *a = p->attachments; a; a = a->next)
			if (a->at < at + size && at < a->at + a->size)
				return true;
	return false;
}

/* Checks it, and says where the memory is in the owner. */
static int64_t attach_locked(const struct call *c, struct xpmem_cmd_attach *p, pid_t *owner, uint64_t *start)
{
	if (p->apid <= 0 || (p->vaddr && p->vaddr + PAGE >= TASK_SIZE) || p->vaddr % PAGE || p->offset % (off_t)PAGE)
		return -EINVAL;
	p->size = (p->size + PAGE - 1) & ~(PAGE - 1);
	struct group *g = group_of(tgid_of(p->apid));
	struct permit *permit = g ? permit_of(g, p->apid) : NULL;
	if (!permit)
		return -ENOENT;
	struct segment *s = alive(permit->from) ? segment_of(permit->owner, permit->segment) : NULL;
	if (!s)
		return -ENOENT;
	if (g->tgid != c->tgid || permit->mode == XPMEM_RDONLY)
		return -EACCES; /* the driver attaches for writing or not at all */
	if (p->offset < 0 || p->size == 0 || (uint64_t)p->offset + p->size > s->size)
		return -EINVAL;
	*owner = permit->owner;
	*start = s->start + (uint64_t)p->offset;
	bool itself = *owner == c->tgid && p->vaddr + p->size > *start && p->vaddr < *start + p->size;
	return p->vaddr && (itself || overlaps(g, p->vaddr, p->size)) ? -EINVAL : 0;
}

static void remember(const struct call *c, const struct xpmem_cmd_attach *p, uint64_t at)
{
	pthread_mutex_lock(&standin_lock);
	struct group *g = group_of(c->tgid);
	struct permit *permit = g ? permit_of(g, p->apid) : NULL;
	struct attachment *a = permit ? malloc(sizeof *a) : NULL;
	if (a) {
		*a = (struct attachment){ .at = at, .size = p->size, .next = permit->attachments };
		permit->attachments = a;
	}
	served.attaches++;
	served.bytes += p->size;
	pthread_mutex_unlock(&standin_lock);
}

static int64_t map_there(struct call *c, const struct xpmem_cmd_attach *p, int fd, uint64_t offset)
{
	struct injection i;
	if (!inject_seize(c, &i))
		return -EINVAL;
	int theirs = standin_give(c, fd);
	if (!inject_hold(c, &i))
		return 0;
	if (theirs < 0) {
		inject_end(&i, theirs);
		return 0;
	}
	uint64_t flags = MAP_SHARED | (p->vaddr ? MAP_FIXED : 0);
	int64_t at = inject_call(&i, SYS_mmap, ARGS(p->vaddr, p->size, PROT_READ | PROT_WRITE, flags, (uint64_t)theirs, offset));
	inject_call(&i, SYS_close, ARGS((uint64_t)theirs));
	if (at > 0) {
		/* A child of the caller's does not get it. */
		inject_call(&i, SYS_madvise, ARGS((uint64_t)at, p->size, MADV_DONTFORK));
		remember(c, p, (uint64_t)at);
		if (!standin_write(c->tid, c->arg + offsetof(struct xpmem_cmd_attach, vaddr), &at, sizeof at))
			at = -EFAULT;
	}
	inject_end(&i, at < 0 ? at : 0);
	return 0;
}

static int64_t attach(struct call *c)
{
	struct xpmem_cmd_attach p;
	pid_t owner = 0;
	uint64_t start = 0, offset = 0;
	if (!standin_read(c->tid, c->arg, &p, sizeof p))
		return -EFAULT;
	pthread_mutex_lock(&standin_lock);
	int64_t e = attach_locked(c, &p, &owner, &start);
	pthread_mutex_unlock(&standin_lock);
	if (e)
		return e;
	int fd = open_source(owner, start, p.size, &offset);
	if (fd < 0) {
		pthread_mutex_lock(&standin_lock);
		served.unmappable++;
		pthread_mutex_unlock(&standin_lock);
		return -EINVAL;
	}
	e = map_there(c, &p, fd, offset);
	close(fd);
	return e;
}

/* Unmaps in the caller what is no longer in any table, and frees the list. */
static int64_t unmap_there(struct call *c, struct attachment *list)
{
	struct injection i;
	bool seized = list && inject_seize(c, &i), held = seized && inject_hold(c, &i);
	for (struct attachment *a = list, *next; a; a = next) {
		next = a->next;
		if (held)
			inject_call(&i, SYS_munmap, ARGS(a->at, a->size));
		free(a);
	}
	if (held)
		inject_end(&i, 0);
	return list && !seized ? -EINVAL : 0;
}

static struct attachment *take_attachment(pid_t tgid, uint64_t at)
{
	struct group *g = group_of(tgid);
	for (struct permit *p = g ? g->permits : NULL; p; p = p->next)
		for (struct attachment **a = &p->attachments; *a; a = &(*a)->next)
			if ((*a)->at <= at && at < (*a)->at + (*a)->size) {
				struct attachment *found = *a;
				*a = found->next;
				found->next = NULL;
				served.detaches++;
				return found;
			}
	return NULL;
}

static bool is_mapped(const struct mapping *m, void *found)
{
	(void)m;
	*(bool *)found = true;
	return false;
}

static int64_t detach(struct call *c)
{
	struct xpmem_cmd_detach p;
	if (!standin_read(c->tid, c->arg, &p, sizeof p))
		return -EFAULT;
	pthread_mutex_lock(&standin_lock);
	struct attachment *a = take_attachment(c->tgid, p.vaddr);
	pthread_mutex_unlock(&standin_lock);
	if (a)
		return unmap_there(c, a);
	bool other = false;
	standin_mappings(c->tgid, p.vaddr, p.vaddr + 1, is_mapped, &other);
	return other ? -EINVAL : 0;
}

static int64_t release_locked(const struct call *c, xpmem_apid_t id, struct attachment **list)
{
	if (id <= 0)
		return -EINVAL;
	struct group *g = group_of(tgid_of(id));
	if (!g)
		return -ENOENT;
	if (g->tgid != c->tgid)
		return -EACCES;
	for (struct permit **at = &g->permits; *at; at = &(*at)->next)
		if ((*at)->id == id) {
			struct permit *p = *at;
			*at = p->next;
			*list = p->attachments;
			for (struct attachment *a = *list; a; a = a->next)
				served.detaches++;
			free(p);
			return 0;
		}
	return -ENOENT;
}

/* ---- ends ---- */

#define REVOKED 64

/* What is attached of those who are gone. Without the lock, as the others wait for answers. */
static void *watch(void *unused)
{
	for (;; usleep(10000)) {
		struct {
			pid_t pid;
			uint64_t at, size;
		} gone[REVOKED];
		int n = 0;
		pthread_mutex_lock(&standin_lock);
		for (struct group *g = groups; g; g = g->next)
			for (struct permit *p = alive(g) ? g->permits : NULL; p; p = p->next)
				for (struct attachment *a = alive(p->from) ? NULL : p->attachments; a; a = a->next)
					if (!a->revoked && n < REVOKED) {
						a->revoked = true;
						gone[n].pid = g->tgid;
						gone[n].at = a->at;
						gone[n++].size = a->size;
					}
		pthread_mutex_unlock(&standin_lock);
		while (n-- > 0)
			take_away(gone[n].pid, gone[n].at, gone[n].size);
	}
	return unused;
}

/* All of a process's attachments. */
static struct attachment *take_all(struct group *g)
{
	struct attachment *all = NULL;
	for (struct permit *p = g->permits; p; p = p->next)
		for (struct attachment *a = p->attachments, *next; a; a = next) {
			next = a->next;
			a->next = all;
			all = a;
			p->attachments = NULL;
		}
	return all;
}

/* The driver's flush: it goes by the process alone. */
static void xpmem_closing(struct call *c, struct handle *h)
{
	(void)h;
	pthread_mutex_lock(&standin_lock);
	struct group *g = group_of(c->tgid);
	struct attachment *all = g ? take_all(g) : NULL;
	if (g)
		g->gone = true;
	pthread_mutex_unlock(&standin_lock);
	struct injection i;
	if (!all || !inject_seize(c, &i) || !inject_hold(c, &i))
		return;
	for (struct attachment *a = all, *next; a; a = next) {
		next = a->next;
		inject_call(&i, SYS_munmap, ARGS(a->at, a->size));
		free(a);
	}
	/* Its own call, which was answered. */
	inject_end(&i, inject_call(&i, c->nr, c->args));
}

static bool has_open(const struct group *g, pid_t tid)
{
	char path[64];
	snprintf(path, sizeof path, "/proc/%d/fd", tid);
	DIR *dir = opendir(path);
	bool found = false;
	for (struct dirent *e; dir && !found && (e = readdir(dir));) {
		struct handle *h = e->d_name[0] == '.' ? NULL : standin_handle(tid, atoi(e->d_name));
		for (int i = 0; h && i < g->handle_count; i++)
			found |= g->handles[i] == h;
	}
	if (dir)
		closedir(dir);
	return found;
}

/* Whether the kernel closes a descriptor of the device before it lets go of the memory: that of
 * another thread that does not share its descriptors with this one. */
static bool is_guarded(const struct call *c, const struct group *g)
{
	char path[64];
	snprintf(path, sizeof path, "/proc/%d/task", c->tgid);
	DIR *dir = opendir(path);
	bool found = false;
	for (struct dirent *e; dir && !found && (e = readdir(dir));) {
		pid_t tid = atoi(e->d_name);
		found = tid > 0 && tid != c->tid && syscall(SYS_kcmp, tid, c->tid, KCMP_FILES, 0, 0) > 0 && has_open(g, tid);
	}
	if (dir)
		closedir(dir);
	return found;
}

static void xpmem_executing(struct call *c)
{
	pthread_mutex_lock(&standin_lock);
	struct group *g = group_of(c->tgid);
	bool attached = false;
	for (struct permit *p = g ? g->permits : NULL; p; p = p->next)
		attached |= p->attachments != NULL;
	pthread_mutex_unlock(&standin_lock);
	if (attached && !is_guarded(c, g))
		served.hangs++;
}

/* ---- the device ---- */

static int64_t with_argument(struct call *c)
{
	union {
		struct xpmem_cmd_make make;
		struct xpmem_cmd_remove remove;
		struct xpmem_cmd_get get;
		struct xpmem_cmd_release release;
	} p;
	struct attachment *list = NULL;
	int64_t e;
	size_t size = c->command == XPMEM_CMD_MAKE ? sizeof p.make : c->command == XPMEM_CMD_GET ? sizeof p.get : sizeof p.remove;
	if (!standin_read(c->tid, c->arg, &p, size))
		return -EFAULT;
	pthread_mutex_lock(&standin_lock);
	if (c->command == XPMEM_CMD_MAKE)
		e = make_locked(c, &p.make);
	else if (c->command == XPMEM_CMD_GET)
		e = get_locked(c, &p.get);
	else if (c->command == XPMEM_CMD_REMOVE)
		e = remove_locked(c, p.remove.segid);
	else
		e = release_locked(c, p.release.apid, &list);
	pthread_mutex_unlock(&standin_lock);
	if (e)
		return e;
	if (c->command == XPMEM_CMD_MAKE)
		return standin_write(c->tid, c->arg + offsetof(struct xpmem_cmd_make, segid), &p.make.segid, sizeof p.make.segid) ? 0 : -EFAULT;
	if (c->command == XPMEM_CMD_GET)
		return standin_write(c->tid, c->arg + offsetof(struct xpmem_cmd_get, apid), &p.get.apid, sizeof p.get.apid) ? 0 : -EFAULT;
	return unmap_there(c, list);
}

static int64_t xpmem_ioctl(struct call *c, struct handle *h)
{
	(void)h; /* the driver goes by the process alone */
	switch (c->command) {
	case XPMEM_CMD_VERSION:
		return XPMEM_CURRENT_VERSION;
	case XPMEM_CMD_MAKE:
	case XPMEM_CMD_REMOVE:
	case XPMEM_CMD_GET:
	case XPMEM_CMD_RELEASE:
		return with_argument(c);
	case XPMEM_CMD_ATTACH:
		return attach(c);
	case XPMEM_CMD_DETACH:
		return detach(c);
	case XPMEM_CMD_FORK_BEGIN:
	case XPMEM_CMD_FORK_END:
		return 0;
	default:
		return -ENOTTY;
	}
}

static void xpmem_opened(struct call *c, struct handle *h)
{
	struct group *g = group_of(c->tgid);
	pthread_t watcher;
	if (!groups && pthread_create(&watcher, NULL, watch, NULL) != 0)
		abort();
	if (!g) {
		g = calloc(1, sizeof *g);
		if (!g)
			abort();
		*g = (struct group){ .tgid = c->tgid, .pidfd = (int)syscall(SYS_pidfd_open, c->tgid, 0),
				     .uid = c->uid, .gid = c->egid, .next = groups };
		groups = g;
	}
	g->handles = realloc(g->handles, (size_t)(g->handle_count + 1) * sizeof(struct handle *));
	if (!g->handles)
		abort();
	g->handles[g->handle_count++] = h;
}

/* What was the group's is not found any more, see alive(). */
static void xpmem_closed(struct handle *h)
{
	(void)h;
}

static void xpmem_report(FILE *f)
{
	fprintf(f, "xpmem: makes %lu gets %lu attaches %lu bytes %lu detaches %lu unmappable %lu hangs %lu", served.makes, served.gets,
		served.attaches, served.bytes, served.detaches, served.unmappable, served.hangs);
}

static const struct device xpmem = {
	.path = XPMEM_DEVICE,
	.type = 'x',
	.opened = xpmem_opened,
	.closing = xpmem_closing,
	.executing = xpmem_executing,
	.closed = xpmem_closed,
	.ioctl = xpmem_ioctl,
	.report = xpmem_report,
};

__attribute__((constructor)) static void offer(void)
{
	standin_offer(&xpmem);
}
