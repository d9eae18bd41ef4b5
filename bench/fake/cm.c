/*
 * A librdmacm for the fake libibverbs: connects queue pairs of this process with each other, as on RoCE. Events come through a real
 * descriptor, so whoever waits for them waits as it does for the real one. Everything answers at once; an address is whatever is
 * bound first.
 *
 * What a connect goes through: resolve, route, connect -> CONNECT_REQUEST at the listener, accept -> CONNECT_RESPONSE at the
 * initiator, establish -> ESTABLISHED at the acceptor; disconnect -> DISCONNECTED at the other side, whose own answers it.
 */
#include <errno.h>
#include <netinet/in.h>
#include <pthread.h>
#include <rdma/rdma_cma.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

/* Bytes of private data that the transport pads to: request, reply, reject. */
enum { REQUEST = 56, REPLY = 196, REJECT = 148, MOST = 196 };
enum { NOBODY_LISTENS = 8, CONSUMER_REJECT = 28 };

struct event {
	struct rdma_cm_event event;
	struct event *next;
	uint8_t data[MOST];
};

struct channel {
	struct rdma_event_channel channel;
	struct event *head, **tail;
};

/* An id; with `peer`, one end of a connection or of an attempt. */
struct end {
	struct rdma_cm_id id;
	struct end *next, *peer;
	uint32_t qp_num;
	uint8_t responder_resources, initiator_depth;
	/* It listens; it waits for an answer; it stands; its DISCONNECTED has been told. */
	int listens, waits, stands, told;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct end *all;
static struct ibv_context *device;

static struct end *end_of(struct rdma_cm_id *id)
{
	return (struct end *)id;
}

static int failed(int error)
{
	errno = error;
	return -1;
}

/* Returns with the lock let go. */
static int ended(int error)
{
	pthread_mutex_unlock(&lock);
	return error ? failed(error) : 0;
}

/* ---- events ---- */

static struct event *push(struct end *to, enum rdma_cm_event_type kind, int status)
{
	struct channel *channel = (struct channel *)to->id.channel;
	struct event *e = calloc(1, sizeof *e);
	uint64_t one = 1;
	e->event.id = &to->id;
	e->event.event = kind;
	e->event.status = status;
	*channel->tail = e;
	channel->tail = &e->next;
	if (write(channel->channel.fd, &one, sizeof one) != sizeof one)
		abort();
	return e;
}

static void say(struct event *e, const void *data, size_t length, size_t padded)
{
	if (length)
		memcpy(e->data, data, length < padded ? length : padded);
	e->event.param.conn.private_data = e->data;
	e->event.param.conn.private_data_len = (uint8_t)padded;
}

/* Takes the events of an id out of its channel; returns them in order. */
static struct event *take(struct end *end)
{
	struct channel *channel = (struct channel *)end->id.channel;
	struct event *taken = NULL, **to = &taken, **at = &channel->head;
	while (*at) {
		struct event *e = *at;
		if (e->event.id != &end->id) {
			at = &e->next;
			continue;
		}
		*at = e->next;
		e->next = NULL;
		*to = e;
		to = &e->next;
	}
	channel->tail = at;
	return taken;
}

struct rdma_event_channel *rdma_create_event_channel(void)
{
	struct channel *channel = calloc(1, sizeof *channel);
	channel->tail = &channel->head;
	channel->channel.fd = eventfd(0, EFD_CLOEXEC);
	if (channel->channel.fd < 0) {
		free(channel);
		return NULL;
	}
	return &channel->channel;
}

void rdma_destroy_event_channel(struct rdma_event_channel *channel)
{
	close(channel->fd);
	free(channel);
}

/* Never waits: its users make the descriptor non-blocking. */
int rdma_get_cm_event(struct rdma_event_channel *raw, struct rdma_cm_event **event)
{
	struct channel *channel = (struct channel *)raw;
	struct event *e;
	uint64_t count;

	pthread_mutex_lock(&lock);
	e = channel->head;
	if (e) {
		channel->head = e->next;
		if (!channel->head)
			channel->tail = &channel->head;
		*event = &e->event;
	}
	/* Readable while there are events. */
	if (!channel->head && read(raw->fd, &count, sizeof count) < 0 && errno != EAGAIN)
		abort();
	return ended(e ? 0 : EAGAIN);
}

int rdma_ack_cm_event(struct rdma_cm_event *event)
{
	free(event);
	return 0;
}

/* ---- ids ---- */

static struct end *new_end(struct rdma_event_channel *channel, void *context, enum rdma_port_space space)
{
	struct end *end = calloc(1, sizeof *end);
	end->id.channel = channel;
	end->id.context = context;
	end->id.ps = space;
	end->id.qp_type = IBV_QPT_RC;
	end->next = all;
	all = end;
	return end;
}

int rdma_create_id(struct rdma_event_channel *channel, struct rdma_cm_id **id, void *context, enum rdma_port_space space)
{
	pthread_mutex_lock(&lock);
	*id = &new_end(channel, context, space)->id;
	return ended(0);
}

static void tell_the_end(struct end *to)
{
	if (to && to->stands && !to->told) {
		to->told = 1;
		push(to, RDMA_CM_EVENT_DISCONNECTED, 0);
	}
}

int rdma_destroy_id(struct rdma_cm_id *id)
{
	struct end *end = end_of(id), **at = &all;
	struct event *e, *next;

	pthread_mutex_lock(&lock);
	tell_the_end(end->peer);
	if (end->peer && end->peer->waits) {
		end->peer->waits = 0;
		say(push(end->peer, RDMA_CM_EVENT_REJECTED, CONSUMER_REJECT), NULL, 0, REJECT);
	}
	if (end->peer)
		end->peer->peer = NULL;
	for (e = take(end); e; e = next) {
		next = e->next;
		free(e);
	}
	while (*at != end)
		at = &(*at)->next;
	*at = end->next;
	free(end);
	return ended(0);
}

int rdma_migrate_id(struct rdma_cm_id *id, struct rdma_event_channel *channel)
{
	struct channel *to = (struct channel *)channel;
	struct event *e;
	uint64_t one = 1;

	pthread_mutex_lock(&lock);
	e = take(end_of(id));
	id->channel = channel;
	if (e) {
		*to->tail = e;
		while (e->next)
			e = e->next;
		to->tail = &e->next;
		if (write(channel->fd, &one, sizeof one) != sizeof one)
			abort();
	}
	return ended(0);
}

int rdma_set_option(struct rdma_cm_id *id, int level, int name, void *value, size_t length)
{
	(void)id, (void)level, (void)name, (void)value, (void)length;
	return 0;
}

/* ---- addresses ---- */

static in_port_t *port_of(struct sockaddr *addr)
{
	return addr->sa_family == AF_INET ? &((struct sockaddr_in *)addr)->sin_port : &((struct sockaddr_in6 *)addr)->sin6_port;
}

static int same(const struct sockaddr *a, const struct sockaddr *b)
{
	if (a->sa_family != b->sa_family)
		return 0;
	if (a->sa_family == AF_INET)
		return memcmp(a, b, offsetof(struct sockaddr_in, sin_zero)) == 0;
	return memcmp(a, b, offsetof(struct sockaddr_in6, sin6_scope_id)) == 0;
}

static socklen_t length_of(const struct sockaddr *addr)
{
	return addr->sa_family == AF_INET ? sizeof(struct sockaddr_in) : sizeof(struct sockaddr_in6);
}

/* Puts the id on the device, with a port of its own if none is asked for. */
static void bind_to(struct rdma_cm_id *id, const struct sockaddr *addr)
{
	static uint16_t next = 20000;
	memcpy(&id->route.addr.src_storage, addr, length_of(addr));
	if (!*port_of(&id->route.addr.src_addr))
		*port_of(&id->route.addr.src_addr) = htons(next++);
	if (!device) {
		struct ibv_device **list = ibv_get_device_list(NULL);
		device = ibv_open_device(list[0]);
		ibv_free_device_list(list);
	}
	id->verbs = device;
	id->port_num = 1;
}

int rdma_bind_addr(struct rdma_cm_id *id, struct sockaddr *addr)
{
	pthread_mutex_lock(&lock);
	bind_to(id, addr);
	return ended(0);
}

int rdma_listen(struct rdma_cm_id *id, int backlog)
{
	(void)backlog;
	pthread_mutex_lock(&lock);
	end_of(id)->listens = 1;
	return ended(0);
}

int rdma_resolve_addr(struct rdma_cm_id *id, struct sockaddr *from, struct sockaddr *to, int limit)
{
	struct sockaddr_storage own;
	(void)limit;
	pthread_mutex_lock(&lock);
	memcpy(&id->route.addr.dst_storage, to, length_of(to));
	if (!id->verbs) {
		memset(&own, 0, sizeof own);
		memcpy(&own, from ? from : to, length_of(from ? from : to));
		if (!from)
			*port_of((struct sockaddr *)&own) = 0;
		bind_to(id, (struct sockaddr *)&own);
	}
	push(end_of(id), RDMA_CM_EVENT_ADDR_RESOLVED, 0);
	return ended(0);
}

int rdma_resolve_route(struct rdma_cm_id *id, int limit)
{
	(void)limit;
	pthread_mutex_lock(&lock);
	push(end_of(id), RDMA_CM_EVENT_ROUTE_RESOLVED, 0);
	return ended(0);
}

/* ---- connections ---- */

int rdma_connect(struct rdma_cm_id *id, struct rdma_conn_param *param)
{
	struct end *end = end_of(id), *listener, *new;
	struct event *e;

	pthread_mutex_lock(&lock);
	end->qp_num = param->qp_num;
	for (listener = all; listener; listener = listener->next)
		if (listener->listens && same(&listener->id.route.addr.src_addr, &id->route.addr.dst_addr))
			break;
	if (!listener) {
		say(push(end, RDMA_CM_EVENT_REJECTED, NOBODY_LISTENS), NULL, 0, REJECT);
		return ended(0);
	}
	new = new_end(listener->id.channel, listener->id.context, id->ps);
	new->id.route.addr.src_storage = id->route.addr.dst_storage;
	new->id.route.addr.dst_storage = id->route.addr.src_storage;
	new->id.verbs = device;
	new->id.port_num = 1;
	new->peer = end;
	end->peer = new;
	end->waits = 1;
	e = push(new, RDMA_CM_EVENT_CONNECT_REQUEST, 0);
	e->event.listen_id = &listener->id;
	say(e, param->private_data, param->private_data_len, REQUEST);
	e->event.param.conn.responder_resources = param->initiator_depth;
	e->event.param.conn.initiator_depth = param->responder_resources;
	e->event.param.conn.qp_num = param->qp_num;
	return ended(0);
}

int rdma_accept(struct rdma_cm_id *id, struct rdma_conn_param *param)
{
	struct end *end = end_of(id);
	struct event *e;

	pthread_mutex_lock(&lock);
	if (!end->peer || !end->peer->waits)
		return ended(ECONNRESET);
	end->qp_num = param->qp_num;
	end->waits = 1;
	end->peer->waits = 0;
	e = push(end->peer, RDMA_CM_EVENT_CONNECT_RESPONSE, 0);
	say(e, param->private_data, param->private_data_len, REPLY);
	e->event.param.conn.responder_resources = param->initiator_depth;
	e->event.param.conn.initiator_depth = param->responder_resources;
	return ended(0);
}

int rdma_establish(struct rdma_cm_id *id)
{
	struct end *end = end_of(id);

	pthread_mutex_lock(&lock);
	if (!end->peer || !end->peer->waits)
		return ended(EINVAL);
	end->peer->waits = 0;
	end->stands = end->peer->stands = 1;
	push(end->peer, RDMA_CM_EVENT_ESTABLISHED, 0);
	return ended(0);
}

int rdma_reject(struct rdma_cm_id *id, const void *data, uint8_t length)
{
	struct end *end = end_of(id);

	pthread_mutex_lock(&lock);
	if (!end->peer || !end->peer->waits)
		return ended(EINVAL);
	end->peer->waits = 0;
	say(push(end->peer, RDMA_CM_EVENT_REJECTED, CONSUMER_REJECT), data, length, REJECT);
	return ended(0);
}

int rdma_disconnect(struct rdma_cm_id *id)
{
	struct end *end = end_of(id);

	pthread_mutex_lock(&lock);
	if (!end->stands || !end->peer)
		return ended(EINVAL);
	tell_the_end(end->peer);
	return ended(0);
}

/* What a queue pair has to be told to reach a state. */
int rdma_init_qp_attr(struct rdma_cm_id *id, struct ibv_qp_attr *attr, int *mask)
{
	struct end *end = end_of(id);
	int error = 0;

	pthread_mutex_lock(&lock);
	switch (attr->qp_state) {
	case IBV_QPS_INIT:
		attr->port_num = 1;
		attr->qp_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;
		*mask = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS;
		break;
	case IBV_QPS_RTR:
		if (!end->peer) {
			error = EINVAL;
			break;
		}
		attr->path_mtu = IBV_MTU_1024;
		attr->dest_qp_num = end->peer->qp_num;
		attr->max_dest_rd_atomic = 1;
		attr->ah_attr.is_global = attr->ah_attr.port_num = 1;
		attr->ah_attr.grh.hop_limit = 1;
		*mask = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC |
			IBV_QP_MIN_RNR_TIMER;
		break;
	default:
		attr->timeout = 14;
		attr->retry_cnt = 7;
		attr->max_rd_atomic = 1;
		*mask = IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC;
	}
	return ended(error);
}
