/*
 * /dev/infiniband/uverbs0 of an adapter that is not there, for rdma-core's own provider library
 * of it, and for whoever else looks (c-tests/bridge/device_standin.c):
 *
 *   uverbs_device --adapter=PROVIDER --record=FILE COMMAND...
 *
 * It answers RDMA_VERBS_IOCTL as far as programs open a device, allocate protection domains and
 * register memory, as the kernel and that adapter's driver do (adapters.c), and writes a line for
 * each such command to FILE: what it was sent, byte by byte, and what it said. What else there is
 * fails with EOPNOTSUPP. Queues can't be made: there is nobody to read them.
 *
 * /sys/class/infiniband, infiniband_verbs and the device's own folder in /sys/dev/char are
 * files of ours. What providers map of the device is the memory of a memfd.
 */
#include "../bridge/device_standin.h"
#include "adapters.h"

#include <errno.h>
#include <rdma/ib_user_ioctl_cmds.h>
#include <rdma/ib_user_ioctl_verbs.h>
#include <rdma/ib_user_verbs.h>
#include <rdma/rdma_user_ioctl_cmds.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#define ATTRS 32
#define OBJECTS 4096
#define VERBS "/sys/class/infiniband_verbs"
#define CLASS "/sys/class/infiniband"

/* A command, as it was read once. */
struct command {
	struct call *call;
	struct ib_uverbs_ioctl_hdr head;
	struct ib_uverbs_attr attrs[ATTRS];
	uint64_t attrs_at;
	uint32_t number; /* of a write command */
	struct driver_data data;
	const char *name;
	char said[320]; /* what else goes into the record */
};

static const struct adapter *adapter;
static FILE *record;
static char tree[32];
/* Handles that are there, by kind; the index is the number. */
static enum { NOTHING, DOMAIN, MEMORY } objects[OBJECTS];
static unsigned served;

/* ---- attributes ---- */

static const struct ib_uverbs_attr *find(const struct command *c, unsigned id)
{
	for (unsigned i = 0; i < c->head.num_attrs; i++)
		if (c->attrs[i].attr_id == id)
			return &c->attrs[i];
	return NULL;
}

/* What an attribute has for the kernel, up to `size`; up to 8 bytes stand in it. */
static bool take(const struct command *c, unsigned id, void *to, size_t size)
{
	const struct ib_uverbs_attr *a = find(c, id);
	size_t n = a && a->len < size ? a->len : size;
	if (!a)
		return false;
	if (a->len > sizeof a->data)
		return standin_read(c->call->tid, a->data, to, n);
	memcpy(to, &a->data, n);
	return true;
}

static int give(const struct command *c, unsigned id, const void *from, size_t size)
{
	const struct ib_uverbs_attr *a = find(c, id);
	if (!a)
		return 0;
	size_t n = a->len < size ? a->len : size;
	return standin_write(c->call->tid, a->data, from, n) ? 0 : -EFAULT;
}

static uint32_t room(const struct command *c, unsigned id)
{
	const struct ib_uverbs_attr *a = find(c, id);
	return a ? a->len : 0;
}

/* The core's answer, and the driver's behind it. */
static int answer(const struct command *c, const void *core, size_t size)
{
	int wrong = core ? give(c, UVERBS_ATTR_CORE_OUT, core, size) : 0;
	return wrong ? wrong : give(c, UVERBS_ATTR_UHW_OUT, c->data.out, c->data.written);
}

static int make(int kind)
{
	for (int i = 1; i < OBJECTS; i++)
		if (objects[i] == NOTHING) {
			objects[i] = kind;
			return i;
		}
	return -ENOMEM;
}

static int drop(uint32_t handle, unsigned kind)
{
	if (handle >= OBJECTS || objects[handle] != kind)
		return -ENOENT;
	objects[handle] = NOTHING;
	return 0;
}

/* ---- commands ---- */

static int get_context(struct command *c)
{
	const uint32_t vectors = 1;
	const uint64_t support = 0;
	c->name = "GET_CONTEXT";
	int wrong = adapter->get_context(&c->data);
	if (!wrong)
		wrong = give(c, UVERBS_ATTR_GET_CONTEXT_NUM_COMP_VECTORS, &vectors, sizeof vectors);
	if (!wrong)
		wrong = give(c, UVERBS_ATTR_GET_CONTEXT_CORE_SUPPORT, &support, sizeof support);
	return wrong ? wrong : answer(c, NULL, 0);
}

static int alloc_pd(struct command *c)
{
	c->name = "ALLOC_PD";
	int wrong = adapter->alloc_pd(&c->data);
	int handle = wrong ? wrong : make(DOMAIN);
	if (handle < 0)
		return handle;
	const struct ib_uverbs_alloc_pd_resp core = { .pd_handle = (uint32_t)handle };
	return answer(c, &core, sizeof core);
}

struct span {
	uint64_t at, end;
	bool writing;
};

static bool covered(const struct mapping *m, void *arg)
{
	struct span *s = arg;
	if (m->start > s->at || m->access[0] != 'r' || (s->writing && m->access[1] != 'w'))
		return false;
	s->at = m->end;
	return true;
}

static int reg_mr(struct command *c)
{
	struct ib_uverbs_reg_mr q = { 0 };
	const uint32_t writes = IB_UVERBS_ACCESS_LOCAL_WRITE | IB_UVERBS_ACCESS_REMOTE_WRITE |
				IB_UVERBS_ACCESS_REMOTE_ATOMIC | IB_UVERBS_ACCESS_MW_BIND;
	c->name = "REG_MR";
	if (!take(c, UVERBS_ATTR_CORE_IN, &q, sizeof q))
		return -EFAULT;
	uint32_t access = q.access_flags & ~(uint32_t)IB_UVERBS_ACCESS_OPTIONAL_RANGE;
	snprintf(c->said, sizeof c->said, " access=%#x length=%llu address=%s", q.access_flags, q.length,
		 q.hca_va == q.start ? "own" : "other");
	if (q.pd_handle >= OBJECTS || objects[q.pd_handle] != DOMAIN)
		return -ENOENT;
	if (access & ~adapter->access)
		return -EOPNOTSUPP;
	struct span s = { q.start, q.start + q.length, access & writes };
	standin_mappings(c->call->tid, s.at, s.end, covered, &s);
	if (s.at < s.end)
		return -EFAULT;
	int handle = make(MEMORY);
	if (handle < 0)
		return handle;
	uint32_t key = (uint32_t)handle << 8;
	int wrong = adapter->reg_mr(&c->data, key);
	if (wrong) {
		objects[handle] = NOTHING;
		return wrong;
	}
	const struct ib_uverbs_reg_mr_resp core = { .mr_handle = (uint32_t)handle, .lkey = key, .rkey = key };
	return answer(c, &core, sizeof core);
}

static int destroy(struct command *c, unsigned kind)
{
	uint32_t handle = 0;
	/* By method, the first attribute is the object, and its number the attribute's data. */
	const struct ib_uverbs_attr *object = find(c, UVERBS_ATTR_DESTROY_MR_HANDLE);
	c->name = kind == DOMAIN ? "DEALLOC_PD" : "DEREG_MR";
	if (c->head.object_id != UVERBS_OBJECT_DEVICE)
		handle = object ? (uint32_t)object->data : 0;
	else if (!take(c, UVERBS_ATTR_CORE_IN, &handle, sizeof handle))
		return -EFAULT;
	return drop(handle, kind);
}

static int query_device(struct command *c, bool extended)
{
	const struct ib_uverbs_ex_query_device_resp all = {
		.base = { .max_mr_size = UINT64_MAX, .page_size_cap = ~4095ull, .vendor_id = 1, .vendor_part_id = 1,
			  .max_qp = 1024, .max_qp_wr = 1024, .max_sge = 4, .max_cq = 1024, .max_cqe = 1024,
			  .max_mr = 1 << 20, .max_pd = 1024, .phys_port_cnt = 1 },
		.response_length = sizeof all,
	};
	c->name = "QUERY_DEVICE";
	return extended ? answer(c, &all, sizeof all) : answer(c, &all.base, sizeof all.base);
}

/* Of a port nothing is told but that it is there. */
static int query_port(struct command *c)
{
	const uint8_t nothing[256] = { 0 };
	c->name = "QUERY_PORT";
	int wrong = give(c, UVERBS_ATTR_QUERY_PORT_RESP, nothing, sizeof nothing);
	return wrong ? wrong : answer(c, nothing, sizeof nothing);
}

static int events(struct command *c)
{
	c->name = "ASYNC_EVENT";
	int fd = eventfd(0, EFD_CLOEXEC);
	int64_t theirs = fd < 0 ? -errno : standin_give(c->call, fd);
	close(fd);
	uint64_t at = c->attrs_at + offsetof(struct ib_uverbs_attr, data);
	if (theirs < 0)
		return (int)theirs;
	return standin_write(c->call->tid, at, &theirs, sizeof theirs) ? 0 : -EFAULT;
}

/* A command that was made for write(2). */
static int written(struct command *c)
{
	uint64_t number = 0;
	if (!take(c, UVERBS_ATTR_WRITE_CMD, &number, sizeof number))
		return -EINVAL;
	c->number = (uint32_t)number;
	const bool bare = !find(c, UVERBS_ATTR_CORE_IN) && number != IB_USER_VERBS_CMD_GET_CONTEXT;
	if (bare)
		return -ENOSPC;
	switch (number) {
	case IB_USER_VERBS_CMD_GET_CONTEXT:
		return get_context(c);
	case IB_USER_VERBS_CMD_ALLOC_PD:
		return alloc_pd(c);
	case IB_USER_VERBS_CMD_DEALLOC_PD:
		return destroy(c, DOMAIN);
	case IB_USER_VERBS_CMD_REG_MR:
		return reg_mr(c);
	case IB_USER_VERBS_CMD_DEREG_MR:
		return destroy(c, MEMORY);
	case IB_USER_VERBS_CMD_QUERY_PORT:
		return query_port(c);
	case IB_USER_VERBS_CMD_QUERY_DEVICE:
		return query_device(c, false);
	case IB_USER_VERBS_EX_CMD_QUERY_DEVICE | (uint64_t)IB_USER_VERBS_CMD_FLAG_EXTENDED:
		return query_device(c, true);
	}
	return -EOPNOTSUPP;
}

static int carry_out(struct command *c)
{
	switch (c->head.object_id << 16 | c->head.method_id) {
	case UVERBS_OBJECT_DEVICE << 16 | UVERBS_METHOD_INVOKE_WRITE:
		return written(c);
	case UVERBS_OBJECT_DEVICE << 16 | UVERBS_METHOD_GET_CONTEXT:
		return get_context(c);
	case UVERBS_OBJECT_DEVICE << 16 | UVERBS_METHOD_QUERY_PORT:
		return query_port(c);
	case UVERBS_OBJECT_DEVICE << 16 | UVERBS_METHOD_QUERY_CONTEXT:
		return -EINVAL; /* it is known, and wants more */
	case UVERBS_OBJECT_PD << 16 | UVERBS_METHOD_PD_DESTROY:
		return destroy(c, DOMAIN);
	case UVERBS_OBJECT_MR << 16 | UVERBS_METHOD_MR_DESTROY:
		return destroy(c, MEMORY);
	case UVERBS_OBJECT_ASYNC_EVENT << 16 | UVERBS_METHOD_ASYNC_EVENT_ALLOC:
		return events(c);
	}
	return -EOPNOTSUPP;
}

/* ---- the device ---- */

static void note(const struct command *c, int value)
{
	if (!c->name)
		fprintf(record, "OTHER object=%u method=%u number=%#x", c->head.object_id, c->head.method_id, c->number);
	else
		fprintf(record, "%s core-in=%u core-out=%u", c->name, room(c, UVERBS_ATTR_CORE_IN),
			room(c, UVERBS_ATTR_CORE_OUT));
	fprintf(record, "%s sent=", c->said);
	for (uint32_t i = 0; i < c->data.sent; i++)
		fprintf(record, "%02x", c->data.in[i]);
	fprintf(record, " room=%u answered=%u errno=%d\n", c->data.room, c->data.written, -value);
	fflush(record);
}

static int64_t verbs_ioctl(struct call *call, struct handle *h)
{
	struct command c = { .call = call, .attrs_at = call->arg + sizeof c.head };
	(void)h;
	if (!standin_read(call->tid, call->arg, &c.head, sizeof c.head) || c.head.num_attrs > ATTRS ||
	    !standin_read(call->tid, c.attrs_at, c.attrs, c.head.num_attrs * sizeof *c.attrs))
		return -EFAULT;
	if (c.head.driver_id != adapter->driver)
		return -EINVAL;
	uint32_t size = room(&c, UVERBS_ATTR_UHW_IN);
	c.data.sent = size < sizeof c.data.in ? size : sizeof c.data.in;
	c.data.room = room(&c, UVERBS_ATTR_UHW_OUT);
	if (size && !take(&c, UVERBS_ATTR_UHW_IN, c.data.in, c.data.sent))
		return -EFAULT;
	pthread_mutex_lock(&standin_lock);
	int value = carry_out(&c);
	served++;
	note(&c, value);
	pthread_mutex_unlock(&standin_lock);
	return value;
}

static void write_file(const char *folder, const char *name, const char *text)
{
	char path[160];
	snprintf(path, sizeof path, "%s/%s/%s", tree, folder, name);
	for (char *end = path + strlen(tree) + 1; (end = strchr(end, '/')); end++) {
		*end = 0;
		mkdir(path, 0755);
		*end = '/';
	}
	FILE *f = fopen(path, "we");
	if (!f || fprintf(f, "%s\n", text) < 0 || fclose(f) != 0) {
		fprintf(stderr, "%s: %s\n", path, strerror(errno));
		exit(125);
	}
}

static bool option(const char *text);
static bool elsewhere(const char *path, char *real, size_t size);

static void opened(struct call *c, struct handle *h)
{
	(void)c, (void)h;
	if (!adapter || !record) {
		fprintf(stderr, "uverbs_device: --adapter=PROVIDER and --record=FILE are missing\n");
		exit(125);
	}
}

static void closed(struct handle *h)
{
	(void)h;
}

static void report(FILE *f)
{
	fprintf(f, "uverbs %s commands %u", adapter ? adapter->provider : "none", served);
}

static void ended(void)
{
	char command[64];
	snprintf(command, sizeof command, "rm -rf %s", tree);
	if (tree[0] && system(command) != 0)
		fprintf(stderr, "%s is left\n", tree);
}

static const struct device device = {
	.path = "/dev/infiniband/uverbs0",
	.type = 0x1b,
	.option = option,
	.opened = opened,
	.closed = closed,
	.ioctl = verbs_ioctl,
	.report = report,
	.elsewhere = elsewhere,
	.ended = ended,
};

static void plant(void)
{
	char text[64], folder[64];
	dev_t number = standin_number(&device);
	strcpy(tree, "/tmp/uverbs_device.XXXXXX");
	if (!mkdtemp(tree)) {
		tree[0] = 0;
		fprintf(stderr, "no folder: %s\n", strerror(errno));
		exit(125);
	}
	snprintf(text, sizeof text, "%u:%u", major(number), minor(number));
	write_file("infiniband_verbs", "abi_version", "6");
	write_file("infiniband_verbs/uverbs0", "dev", text);
	write_file("infiniband_verbs/uverbs0", "ibdev", adapter->name);
	snprintf(text, sizeof text, "%u", adapter->abi);
	write_file("infiniband_verbs/uverbs0", "abi_version", text);
	snprintf(folder, sizeof folder, "infiniband/%s", adapter->name);
	write_file(folder, "node_type", "1: CA");
	snprintf(folder, sizeof folder, "infiniband/%s/device", adapter->name);
	write_file(folder, "modalias", adapter->modalias);
}

static bool option(const char *text)
{
	if (strncmp(text, "--record=", 9) == 0)
		return (record = fopen(text + 9, "we")) != NULL;
	if (strncmp(text, "--adapter=", 10) != 0)
		return false;
	for (unsigned i = 0; i < adapter_count; i++)
		if (strcmp(text + 10, adapters[i].provider) == 0)
			adapter = &adapters[i];
	if (adapter)
		plant();
	return adapter != NULL;
}

static bool below(const char *path, const char *folder, const char *in_tree, char *real, size_t size)
{
	size_t n = strlen(folder);
	if (strncmp(path, folder, n) != 0 || (path[n] != 0 && path[n] != '/'))
		return false;
	snprintf(real, size, "%s/%s%s", tree, in_tree, path + n);
	return true;
}

static bool elsewhere(const char *path, char *real, size_t size)
{
	char numbered[64];
	dev_t number = standin_number(&device);
	snprintf(numbered, sizeof numbered, "/sys/dev/char/%u:%u", major(number), minor(number));
	return below(path, VERBS, "infiniband_verbs", real, size) || below(path, CLASS, "infiniband", real, size) ||
	       below(path, numbered, "infiniband_verbs/uverbs0", real, size);
}

__attribute__((constructor)) static void offer(void)
{
	standin_offer(&device);
}
