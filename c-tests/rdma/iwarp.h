/*
 * Queue pairs of iWARP adapters: they are connected by rdma_cm alone (TCP is below), which the
 * kernel carries out with queue pairs of ours, known by their numbers. Who connects speaks
 * first: it asks, and what it asks of only waits.
 */
#ifndef REGALL_IWARP_H
#define REGALL_IWARP_H

#include <arpa/inet.h>
#include <infiniband/verbs.h>
#include <poll.h>
#include <rdma/rdma_cma.h>
#include "../check.h"

#define IWARP_MS 10000

/* One end of a connection, or of two. */
struct iwarp {
	struct rdma_event_channel *events;
	struct rdma_cm_id *listener, *asking, *asked;
	bool over; /* the other side has ended it */
};

static struct rdma_conn_param iwarp_param(const struct ibv_qp *qp)
{
	return (struct rdma_conn_param){ .responder_resources = 16, .initiator_depth = 16, .qp_num = qp->qp_num };
}

/* siw0 and siw1 in the guest (scripts/rdma-vm.d/init). */
static struct sockaddr_in iwarp_address(const struct ibv_context *device, uint16_t port)
{
	const char *name = ibv_get_device_name(device->device);
	const char *address = name[strlen(name) - 1] == '0' ? "10.9.9.1" : "10.9.10.1";
	return (struct sockaddr_in){ .sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = inet_addr(address) };
}

/* The queue pair as rdma_create_qp would leave it. */
static void iwarp_ready(struct ibv_qp *qp, int access)
{
	struct ibv_qp_attr a = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = (unsigned)access };
	NEED(ibv_modify_qp(qp, &a, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS) == 0);
}

static struct rdma_cm_id *iwarp_event(struct iwarp *w, enum rdma_cm_event_type wanted)
{
	struct rdma_cm_event *event;
	struct pollfd p = { .fd = w->events->fd, .events = POLLIN };
	NEED(poll(&p, 1, IWARP_MS) == 1);
	NEED(rdma_get_cm_event(w->events, &event) == 0);
	if (event->event != wanted) {
		say("%s in place of %s", rdma_event_str(event->event), rdma_event_str(wanted));
		_exit(92);
	}
	struct rdma_cm_id *id = event->id;
	NEED(rdma_ack_cm_event(event) == 0);
	return id;
}

/* Waits for connections from now on; the port. */
static uint16_t iwarp_listen(struct iwarp *w, const struct ibv_context *device)
{
	struct sockaddr_in at = iwarp_address(device, 0);
	if (!w->events)
		NEED(w->events = rdma_create_event_channel());
	NEED(rdma_create_id(w->events, &w->listener, NULL, RDMA_PS_TCP) == 0);
	NEED(rdma_bind_addr(w->listener, (struct sockaddr *)&at) == 0);
	NEED(rdma_listen(w->listener, 1) == 0);
	return ntohs(rdma_get_src_port(w->listener));
}

static void iwarp_ask(struct iwarp *w, struct ibv_qp *qp, uint16_t port)
{
	struct sockaddr_in to = iwarp_address(qp->context, port);
	struct rdma_conn_param param = iwarp_param(qp);
	if (!w->events)
		NEED(w->events = rdma_create_event_channel());
	NEED(rdma_create_id(w->events, &w->asking, NULL, RDMA_PS_TCP) == 0);
	NEED(rdma_resolve_addr(w->asking, NULL, (struct sockaddr *)&to, IWARP_MS) == 0);
	iwarp_event(w, RDMA_CM_EVENT_ADDR_RESOLVED);
	NEED(rdma_resolve_route(w->asking, IWARP_MS) == 0);
	iwarp_event(w, RDMA_CM_EVENT_ROUTE_RESOLVED);
	NEED(rdma_connect(w->asking, &param) == 0);
}

static void iwarp_accept(struct iwarp *w, struct ibv_qp *qp)
{
	struct rdma_conn_param param = iwarp_param(qp);
	w->asked = iwarp_event(w, RDMA_CM_EVENT_CONNECT_REQUEST);
	NEED(rdma_accept(w->asked, &param) == 0);
}

/*
 * Whether the connection has ended. siw does not complete what a program posts after that: it has
 * no place in the queue that the kernel flushed.
 */
__attribute__((unused)) static bool iwarp_is_over(struct iwarp *w)
{
	struct pollfd p = { .fd = w->events->fd, .events = POLLIN };
	if (!w->over && poll(&p, 1, 0) == 1) {
		iwarp_event(w, RDMA_CM_EVENT_DISCONNECTED);
		w->over = true;
	}
	return w->over;
}

/* Before its queue pairs go. */
__attribute__((unused)) static void iwarp_end(struct iwarp *w)
{
	struct rdma_cm_id *ids[] = { w->asking, w->asked, w->listener };
	for (int i = 0; i < 3; i++)
		if (ids[i])
			NEED(rdma_destroy_id(ids[i]) == 0);
	if (w->events)
		rdma_destroy_event_channel(w->events);
	*w = (struct iwarp){ 0 };
}

#endif
