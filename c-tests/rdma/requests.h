/*
 * Requests to adapters as they reach the kernel (RDMA_VERBS_IOCTL), made without libibverbs.
 */
#ifndef REGALL_REQUESTS_H
#define REGALL_REQUESTS_H

#include <rdma/ib_user_ioctl_cmds.h>
#include <rdma/ib_user_verbs.h>
#include <rdma/rdma_user_ioctl_cmds.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <fcntl.h>
#include "rdma.h"

enum { RXE = 14 };

/* A message as libibverbs makes it, by which every request below is sent. */
struct message {
	struct ib_uverbs_ioctl_hdr head;
	struct ib_uverbs_attr attr[8];
};

__attribute__((unused)) static struct ib_uverbs_attr *with(struct message *m, int id, size_t len, uint64_t data)
{
	struct ib_uverbs_attr *a = &m->attr[m->head.num_attrs++];
	*a = (struct ib_uverbs_attr){ .attr_id = id, .len = len, .flags = UVERBS_ATTR_F_MANDATORY, .data = data };
	m->head.length = sizeof m->head + m->head.num_attrs * sizeof *a;
	return a;
}

__attribute__((unused)) static struct message empty(int object, int method)
{
	return (struct message){ .head = { .object_id = object, .method_id = method, .driver_id = RXE, .length = sizeof(struct ib_uverbs_ioctl_hdr) } };
}

__attribute__((unused)) static struct message command(int number)
{
	struct message m = empty(UVERBS_OBJECT_DEVICE, UVERBS_METHOD_INVOKE_WRITE);
	with(&m, UVERBS_ATTR_WRITE_CMD, 8, number);
	return m;
}

/* 0, or the error. */
__attribute__((unused)) static int send_to(int fd, void *m)
{
	return ioctl(fd, RDMA_VERBS_IOCTL, m) ? errno : 0;
}

struct asked {
	struct ib_uverbs_reg_mr in;
	struct ib_uverbs_reg_mr_resp out;
	struct message m;
};

__attribute__((unused)) static int raw_reg(int fd, struct asked *a, uint32_t pd, void *at, size_t len, uint32_t access)
{
	a->in = (struct ib_uverbs_reg_mr){ .start = (uintptr_t)at, .length = len, .hca_va = (uintptr_t)at, .pd_handle = pd, .access_flags = access };
	a->out = (struct ib_uverbs_reg_mr_resp){ 0 };
	a->m = command(IB_USER_VERBS_CMD_REG_MR);
	with(&a->m, UVERBS_ATTR_CORE_IN, 40, (uintptr_t)&a->in);
	with(&a->m, UVERBS_ATTR_CORE_OUT, 12, (uintptr_t)&a->out);
	return send_to(fd, &a->m);
}

/* By the method of its own, which Linux has from 6.17 on. */
enum { REG_MR = UVERBS_METHOD_REG_DMABUF_MR + 1 };

__attribute__((unused)) static int raw_reg_by_method(int fd, struct asked *a, uint32_t pd, void *at, size_t len, uint32_t access)
{
	a->out = (struct ib_uverbs_reg_mr_resp){ 0 };
	a->m = empty(UVERBS_OBJECT_MR, REG_MR);
	with(&a->m, 0, 0, 0);
	with(&a->m, 1, 0, pd);
	with(&a->m, 3, 8, (uintptr_t)at);
	with(&a->m, 4, 8, (uintptr_t)at);
	with(&a->m, 5, 8, len);
	with(&a->m, 6, 4, access);
	with(&a->m, 9, 4, (uintptr_t)&a->out.lkey);
	with(&a->m, 10, 4, (uintptr_t)&a->out.rkey);
	int error = send_to(fd, &a->m);
	a->out.mr_handle = (uint32_t)a->m.attr[0].data;
	return error;
}

__attribute__((unused)) static int raw_destroy(int fd, uint32_t mr)
{
	struct message m = empty(UVERBS_OBJECT_MR, UVERBS_METHOD_MR_DESTROY);
	with(&m, UVERBS_ATTR_DESTROY_MR_HANDLE, 0, mr);
	return send_to(fd, &m);
}

__attribute__((unused)) static int raw_dereg(int fd, uint32_t mr)
{
	struct message m = command(IB_USER_VERBS_CMD_DEREG_MR);
	with(&m, UVERBS_ATTR_CORE_IN, 4, mr);
	return send_to(fd, &m);
}

__attribute__((unused)) static int raw_dealloc(int fd, uint32_t pd)
{
	struct message m = empty(UVERBS_OBJECT_PD, UVERBS_METHOD_PD_DESTROY);
	with(&m, UVERBS_ATTR_DESTROY_PD_HANDLE, 0, pd);
	return send_to(fd, &m);
}

__attribute__((unused)) static uint32_t raw_pd(int fd)
{
	uint32_t pd = 0;
	struct ib_uverbs_alloc_pd in = { 0 };
	struct message m = command(IB_USER_VERBS_CMD_ALLOC_PD);
	with(&m, UVERBS_ATTR_CORE_IN, 8, in.response);
	with(&m, UVERBS_ATTR_CORE_OUT, 4, (uintptr_t)&pd);
	NEED(send_to(fd, &m) == 0);
	return pd;
}

/* The same device, opened anew, without libibverbs. */
__attribute__((unused)) static int raw_open(const struct ibv_context *ctx)
{
	char path[64];
	NEED(snprintf(path, sizeof path, "/proc/self/fd/%d", ctx->cmd_fd) > 0);
	int fd = open(path, O_RDWR | O_CLOEXEC);
	NEED(fd >= 0);
	uint32_t vectors = 0;
	uint64_t support = 0;
	struct message m = empty(UVERBS_OBJECT_DEVICE, UVERBS_METHOD_GET_CONTEXT);
	with(&m, UVERBS_ATTR_GET_CONTEXT_NUM_COMP_VECTORS, 4, (uintptr_t)&vectors);
	with(&m, UVERBS_ATTR_GET_CONTEXT_CORE_SUPPORT, 8, (uintptr_t)&support);
	NEED(send_to(fd, &m) == 0);
	return fd;
}

/* A descriptor, and a number with it. */
__attribute__((unused)) static void send_fd(int to, int fd, uint32_t number)
{
	char control[CMSG_SPACE(sizeof(int))] = { 0 };
	struct iovec part = { &number, sizeof number };
	struct msghdr m = { .msg_iov = &part, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control };
	struct cmsghdr *c = CMSG_FIRSTHDR(&m);
	*c = (struct cmsghdr){ .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS, .cmsg_len = CMSG_LEN(sizeof(int)) };
	memcpy(CMSG_DATA(c), &fd, sizeof fd);
	NEED(sendmsg(to, &m, 0) == sizeof number);
}

__attribute__((unused)) static int receive_fd(int from, uint32_t *number)
{
	int fd;
	char control[CMSG_SPACE(sizeof(int))] = { 0 };
	struct iovec part = { number, sizeof *number };
	struct msghdr m = { .msg_iov = &part, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control };
	NEED(recvmsg(from, &m, 0) == sizeof *number);
	memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&m)), sizeof fd);
	return fd;
}

/* Whether the shim answers registrations by ioctl. */
__attribute__((unused)) static bool is_lent(void)
{
	return lends() && !env_is("REGALL_VERBS", "symbols");
}

/* Objects of this process, of any device whose name begins so, that the kernel knows of. */
__attribute__((unused)) static int count_of(const char *what, const char *device)
{
	char command[128], line[512];
	snprintf(command, sizeof command, "rdma res show %s pid %d", what, getpid());
	FILE *f = popen(command, "r");
	NEED(f);
	int n = 0;
	while (fgets(line, sizeof line, f)) {
		char *dev = strstr(line, "dev ");
		n += dev && strncmp(dev + 4, device, strlen(device)) == 0;
	}
	pclose(f);
	return n;
}

__attribute__((unused)) static int count(const char *what)
{
	return count_of(what, "");
}

/* What a command prints. */
__attribute__((unused)) static int number_from(const char *command)
{
	FILE *f = popen(command, "r");
	int n = -1;
	NEED(f && fscanf(f, "%d", &n) == 1);
	pclose(f);
	return n;
}

/* Contexts of all processes with the second adapter. */
__attribute__((unused)) static int contexts_of_all(void)
{
	return number_from("rdma resource show ctx 2>/dev/null | grep -c " ADAPTER("1"));
}

#endif
