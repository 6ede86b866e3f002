/*
 * The interface of /dev/xpmem, as in the public header xpmem.h (version 2.6; the same in
 * all trees since SGI's). Only 64-bit programs; the command numbers carry no size.
 */
#ifndef REGALL_XPMEM_ABI_H
#define REGALL_XPMEM_ABI_H

#include <stddef.h>
#include <stdint.h>
#include <sys/ioctl.h>
#include <sys/types.h>

#define XPMEM_DEVICE "/dev/xpmem"
#define XPMEM_CURRENT_VERSION 0x00026005
#define XPMEM_MAXADDR_SIZE ((size_t)-1l)
#define XPMEM_ERRNO_NOPROC 2004 /* this process has not opened the device itself */

#define XPMEM_RDONLY 0x1
#define XPMEM_RDWR 0x2
#define XPMEM_PERMIT_MODE 0x1

typedef int64_t xpmem_segid_t;
typedef int64_t xpmem_apid_t;

struct xpmem_cmd_make {
	uint64_t vaddr;
	size_t size;
	int permit_type;
	uint64_t permit_value;
	xpmem_segid_t segid; /* out */
};

struct xpmem_cmd_remove {
	xpmem_segid_t segid;
};

struct xpmem_cmd_get {
	xpmem_segid_t segid;
	int flags;
	int permit_type;
	uint64_t permit_value;
	xpmem_apid_t apid; /* out */
};

struct xpmem_cmd_release {
	xpmem_apid_t apid;
};

struct xpmem_cmd_attach {
	xpmem_apid_t apid;
	off_t offset;
	size_t size;
	uint64_t vaddr; /* in: where, or 0; out: where it is */
	int fd;
	int flags;
};

struct xpmem_cmd_detach {
	uint64_t vaddr;
};

#define XPMEM_CMD_VERSION _IO('x', 0)
#define XPMEM_CMD_MAKE _IO('x', 1)
#define XPMEM_CMD_REMOVE _IO('x', 2)
#define XPMEM_CMD_GET _IO('x', 3)
#define XPMEM_CMD_RELEASE _IO('x', 4)
#define XPMEM_CMD_ATTACH _IO('x', 5)
#define XPMEM_CMD_DETACH _IO('x', 6)
#define XPMEM_CMD_FORK_BEGIN _IO('x', 7)
#define XPMEM_CMD_FORK_END _IO('x', 8)

_Static_assert(XPMEM_CMD_ATTACH == 0x7805, "number");
_Static_assert(sizeof(struct xpmem_cmd_make) == 40 && offsetof(struct xpmem_cmd_make, segid) == 32, "layout");
_Static_assert(sizeof(struct xpmem_cmd_get) == 32 && offsetof(struct xpmem_cmd_get, apid) == 24, "layout");
_Static_assert(sizeof(struct xpmem_cmd_attach) == 40 && offsetof(struct xpmem_cmd_attach, vaddr) == 24, "layout");

#endif
