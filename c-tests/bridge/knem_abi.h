/*
 * The interface of /dev/knem, ABI 0xd, as in the public header knem_io.h (KNEM 0.9.8 and
 * later). Numbers and layouts are held together below; the names are those of that header.
 */
#ifndef REGALL_KNEM_ABI_H
#define REGALL_KNEM_ABI_H

#include <stdint.h>
#include <sys/ioctl.h>

#define KNEM_ABI_VERSION 0xdu
#define KNEM_DEVICE "/dev/knem"

#define KNEM_FEATURE_DMA (1u << 0)

#define KNEM_FLAG_DMA (1u << 0)
#define KNEM_FLAG_ASYNCDMACOMPLETE (1u << 1)
#define KNEM_FLAG_DMATHREAD (1u << 2)
#define KNEM_FLAG_MEMCPYTHREAD (1u << 3)
#define KNEM_FLAG_PINLOCAL (1u << 4)
#define KNEM_FLAG_SINGLEUSE (1u << 5)
#define KNEM_FLAG_NOTIFY_FD (1u << 6)
#define KNEM_FLAG_ANY_THREAD_MASK (KNEM_FLAG_DMATHREAD | KNEM_FLAG_MEMCPYTHREAD)
#define KNEM_FLAG_ANY_ASYNC_MASK (KNEM_FLAG_ASYNCDMACOMPLETE | KNEM_FLAG_ANY_THREAD_MASK)

#define KNEM_BIND_FLAG_CUSTOM (1u << 0)
#define KNEM_BIND_FLAG_CURRENT (1u << 1)
#define KNEM_BIND_FLAG_CURRENT_REVERSED (1u << 2)

enum { KNEM_STATUS_PENDING, KNEM_STATUS_SUCCESS, KNEM_STATUS_FAILED };

struct knem_cmd_info {
	uint32_t abi, features, ignored_flags, forced_flags;
};

struct knem_cmd_bind_offload {
	uint32_t flags, mask_len;
	uint64_t mask_ptr;
};

struct knem_cmd_param_iovec {
	uint64_t base, len;
};

struct knem_cmd_create_region {
	uint64_t iovec_array;
	uint32_t iovec_nr, flags, protection, pad1;
	uint64_t cookie;
};

struct knem_cmd_copy {
	uint64_t src_cookie, src_offset, dst_cookie, dst_offset;
	uint32_t flags, current_status, async_status_index, pad;
};

struct knem_cmd_copy_bounded {
	uint64_t src_cookie, src_offset, dst_cookie, dst_offset, length;
	uint32_t flags, current_status, async_status_index, pad;
};

struct knem_cmd_inline_copy {
	uint64_t local_iovec_array;
	uint32_t local_iovec_nr, write;
	uint64_t remote_cookie, remote_offset;
	uint32_t flags, current_status, async_status_index, pad;
};

struct knem_cmd_inline_copy_bounded {
	uint64_t local_iovec_array;
	uint32_t local_iovec_nr, write;
	uint64_t remote_cookie, remote_offset, length;
	uint32_t flags, current_status, async_status_index, pad;
};

/* The direction bits are the header's own: they don't say which way data goes. */
#define KNEM_CMD_GET_INFO _IOW('K', 0x10, struct knem_cmd_info)
#define KNEM_CMD_BIND_OFFLOAD _IOR('K', 0x11, struct knem_cmd_bind_offload)
#define KNEM_CMD_CREATE_REGION _IOWR('K', 0x21, struct knem_cmd_create_region)
#define KNEM_CMD_DESTROY_REGION _IOR('K', 0x22, uint64_t)
#define KNEM_CMD_COPY _IOR('K', 0x32, struct knem_cmd_copy)
#define KNEM_CMD_INLINE_COPY _IOR('K', 0x33, struct knem_cmd_inline_copy)
#define KNEM_CMD_COPY_BOUNDED _IOR('K', 0x34, struct knem_cmd_copy_bounded)
#define KNEM_CMD_INLINE_COPY_BOUNDED _IOR('K', 0x35, struct knem_cmd_inline_copy_bounded)

_Static_assert(KNEM_FLAG_NOTIFY_FD == 0x40, "number");
_Static_assert(KNEM_CMD_GET_INFO == 0x40104b10, "number");
_Static_assert(KNEM_CMD_BIND_OFFLOAD == 0x80104b11, "number");
_Static_assert(KNEM_CMD_CREATE_REGION == 0xc0204b21, "number");
_Static_assert(KNEM_CMD_DESTROY_REGION == 0x80084b22, "number");
_Static_assert(KNEM_CMD_COPY == 0x80304b32, "number");
_Static_assert(KNEM_CMD_INLINE_COPY == 0x80304b33, "number");
_Static_assert(KNEM_CMD_COPY_BOUNDED == 0x80384b34, "number");
_Static_assert(KNEM_CMD_INLINE_COPY_BOUNDED == 0x80384b35, "number");

#endif
