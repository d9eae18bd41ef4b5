/*
 * A libibverbs with one device that has no hardware behind it. A program that is started with this file's folder in LD_LIBRARY_PATH
 * opens the device "fake0" as it would open any other, so every language binding is measured through the very same code.
 *
 * It moves no data but does what a provider does in memory: it builds a 64-byte entry in the queue's ring (with the data, if inline),
 * rings a doorbell (a volatile store), and completes at once: a send when it is posted, a receive too, as if a message of 8 bytes had been
 * waiting. It checks nothing, so that a post and a poll together take about 70 instructions, and takes no locks, so that those
 * of its users show.
 *
 * With FAKE_FABRIC in the environment messages do move, between the queue pairs of this process: see fabric.c.
 */
#include "fake.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>

struct fake_device {
	struct ibv_device device;
};

static struct fake_device fake = {
	.device = {
		.node_type = IBV_NODE_CA,
		.transport_type = IBV_TRANSPORT_IB,
		.name = "fake0",
		.dev_name = "uverbs-fake0",
	},
};

static uint32_t power_of_two(uint32_t n)
{
	uint32_t p = 1;
	while (p < n)
		p <<= 1;
	return p;
}

/* ---- the message path ---- */

static inline void complete(struct fake_cq *cq, uint64_t wr_id, uint16_t opcode, uint16_t length, uint32_t qp_num)
{
	struct completion *c = &cq->entries[cq->tail++ & cq->mask];
	c->wr_id = wr_id;
	c->qp_num = qp_num;
	c->opcode = opcode;
	c->length = length;
}

/* Lists go a longer way, so that single requests need no loop. */
static __attribute__((noinline, cold)) int next_send(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad)
{
	return qp->context->ops.post_send(qp, wr, bad);
}

static __attribute__((noinline, cold)) int next_recv(struct ibv_qp *qp, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad)
{
	return qp->context->ops.post_recv(qp, wr, bad);
}

static int fake_post_send(struct ibv_qp *ibqp, struct ibv_send_wr *wr, struct ibv_send_wr **bad)
{
	struct fake_qp *qp = (struct fake_qp *)ibqp;
	struct entry *e = &qp->send.entries[qp->send.tail & qp->send.mask];
	const struct ibv_sge *sge = wr->sg_list;
	uint64_t wr_id = wr->wr_id;
	uint32_t flags = wr->send_flags;

	if (flags & IBV_SEND_INLINE) {
		/* One word, whatever the length: that of the measured messages. */
		memcpy(e->data, (const void *)(uintptr_t)sge->addr, 8);
	} else if (wr->num_sge) {
		e->addr = sge->addr;
		e->lkey = sge->lkey;
	}
	e->wr_id = wr_id;
	e->flags = flags;
	qp->send.doorbell = ++qp->send.tail;
	if (flags & IBV_SEND_SIGNALED)
		complete((struct fake_cq *)ibqp->send_cq, wr_id, IBV_WC_SEND, 0, ibqp->qp_num);
	return wr->next ? next_send(ibqp, wr->next, bad) : 0;
}

static int fake_post_recv(struct ibv_qp *ibqp, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad)
{
	struct fake_qp *qp = (struct fake_qp *)ibqp;
	struct entry *e = &qp->recv.entries[qp->recv.tail & qp->recv.mask];
	const struct ibv_sge *sge = wr->sg_list;
	uint64_t wr_id = wr->wr_id;

	e->addr = sge->addr;
	e->length = sge->length;
	e->lkey = sge->lkey;
	e->wr_id = wr_id;
	qp->recv.doorbell = ++qp->recv.tail;
	complete((struct fake_cq *)ibqp->recv_cq, wr_id, IBV_WC_RECV, MESSAGE, ibqp->qp_num);
	return wr->next ? next_recv(ibqp, wr->next, bad) : 0;
}

static int fake_poll_cq(struct ibv_cq *ibcq, int room, struct ibv_wc *wc)
{
	struct fake_cq *cq = (struct fake_cq *)ibcq;
	int n = 0;

	while (n < room && cq->head != cq->tail) {
		const struct completion *c = &cq->entries[cq->head++ & cq->mask];
		wc[n].wr_id = c->wr_id;
		wc[n].status = IBV_WC_SUCCESS;
		wc[n].opcode = c->opcode;
		wc[n].byte_len = c->length;
		wc[n].qp_num = c->qp_num;
		wc[n].wc_flags = 0;
		n++;
	}
	return n;
}

static int fake_req_notify_cq(struct ibv_cq *cq, int solicited_only)
{
	(void)cq;
	(void)solicited_only;
	return 0;
}

/* ---- set-up ---- */

struct ibv_device **ibv_get_device_list(int *count)
{
	struct ibv_device **list = calloc(2, sizeof *list);
	list[0] = &fake.device;
	if (count)
		*count = 1;
	return list;
}

void ibv_free_device_list(struct ibv_device **list)
{
	free(list);
}

const char *ibv_get_device_name(struct ibv_device *device)
{
	return device->name;
}

__be64 ibv_get_device_guid(struct ibv_device *device)
{
	(void)device;
	return 1;
}

int ibv_get_device_index(struct ibv_device *device)
{
	(void)device;
	return 0;
}

struct ibv_context *ibv_open_device(struct ibv_device *device)
{
	struct verbs_context *all = calloc(1, sizeof *all);
	struct ibv_context *context = &all->context;

	all->sz = sizeof *all;
	context->abi_compat = __VERBS_ABI_IS_EXTENDED;
	context->device = device;
	context->cmd_fd = context->async_fd = -1;
	context->num_comp_vectors = 1;
	context->ops.post_send = fake_post_send;
	context->ops.post_recv = fake_post_recv;
	context->ops.poll_cq = fake_poll_cq;
	context->ops.req_notify_cq = fake_req_notify_cq;
	if (getenv("FAKE_FABRIC"))
		fabric_open(context);
	return context;
}

int ibv_close_device(struct ibv_context *context)
{
	free((char *)context - offsetof(struct verbs_context, context));
	return 0;
}

int ibv_query_device(struct ibv_context *context, struct ibv_device_attr *attr)
{
	(void)context;
	*attr = (struct ibv_device_attr){
		.max_mr_size = UINT64_MAX,
		.max_qp = 1 << 16,
		.max_qp_wr = 1 << 14,
		.max_sge = 1,
		.max_cq = 1 << 10,
		.max_cqe = 1 << 20,
		.max_mr = 1 << 16,
		.max_pd = 1 << 10,
		.max_qp_rd_atom = 16,
		.max_qp_init_rd_atom = 16,
		.phys_port_cnt = 1,
	};
	return 0;
}

/* Older callers' struct ends with link_layer. */
#undef ibv_query_port
int ibv_query_port(struct ibv_context *context, uint8_t port, struct _compat_ibv_port_attr *compat)
{
	struct ibv_port_attr *attr = (struct ibv_port_attr *)compat;
	(void)context;
	if (port != 1)
		return EINVAL;
	memset(attr, 0, offsetof(struct ibv_port_attr, flags));
	attr->state = IBV_PORT_ACTIVE;
	attr->max_mtu = attr->active_mtu = IBV_MTU_4096;
	attr->gid_tbl_len = 1;
	attr->max_msg_sz = 1u << 31;
	attr->link_layer = IBV_LINK_LAYER_ETHERNET;
	return 0;
}

int ibv_query_gid(struct ibv_context *context, uint8_t port, int index, union ibv_gid *gid)
{
	(void)context;
	if (port != 1 || index != 0)
		return EINVAL;
	memset(gid, 0, sizeof *gid);
	gid->raw[10] = gid->raw[11] = 0xff; /* ::ffff:10.0.0.1 */
	gid->raw[12] = 10;
	gid->raw[15] = 1;
	return 0;
}

static void gid_entry(struct ibv_gid_entry *entry)
{
	memset(entry, 0, sizeof *entry);
	ibv_query_gid(NULL, 1, 0, &entry->gid);
	entry->port_num = 1;
	entry->gid_type = IBV_GID_TYPE_ROCE_V2;
}

int _ibv_query_gid_ex(struct ibv_context *context, uint32_t port, uint32_t index, struct ibv_gid_entry *entry, uint32_t flags,
		      size_t size)
{
	(void)context;
	if (port != 1 || index != 0 || flags || size != sizeof *entry)
		return EINVAL;
	gid_entry(entry);
	return 0;
}

ssize_t _ibv_query_gid_table(struct ibv_context *context, struct ibv_gid_entry *entries, size_t room, uint32_t flags, size_t size)
{
	(void)context;
	if (!room || flags || size != sizeof *entries)
		return -EINVAL;
	gid_entry(entries);
	return 1;
}

int ibv_query_pkey(struct ibv_context *context, uint8_t port, int index, __be16 *pkey)
{
	(void)context;
	if (port != 1 || index != 0)
		return EINVAL;
	*pkey = 0xffff;
	return 0;
}

struct ibv_pd *ibv_alloc_pd(struct ibv_context *context)
{
	struct ibv_pd *pd = calloc(1, sizeof *pd);
	pd->context = context;
	return pd;
}

int ibv_dealloc_pd(struct ibv_pd *pd)
{
	free(pd);
	return 0;
}

#undef ibv_reg_mr
struct ibv_mr *ibv_reg_mr(struct ibv_pd *pd, void *addr, size_t length, int access)
{
	static uint32_t key;
	struct ibv_mr *mr = calloc(1, sizeof *mr);
	(void)access;
	mr->context = pd->context;
	mr->pd = pd;
	mr->addr = addr;
	mr->length = length;
	mr->lkey = mr->rkey = __atomic_add_fetch(&key, 1, __ATOMIC_RELAXED);
	return mr;
}

#undef ibv_reg_mr_iova
struct ibv_mr *ibv_reg_mr_iova(struct ibv_pd *pd, void *addr, size_t length, uint64_t iova, int access)
{
	(void)iova;
	return ibv_reg_mr(pd, addr, length, access);
}

struct ibv_mr *ibv_reg_mr_iova2(struct ibv_pd *pd, void *addr, size_t length, uint64_t iova, unsigned int access)
{
	(void)iova;
	return ibv_reg_mr(pd, addr, length, (int)access);
}

int ibv_dereg_mr(struct ibv_mr *mr)
{
	free(mr);
	return 0;
}

struct ibv_cq *ibv_create_cq(struct ibv_context *context, int cqe, void *cq_context, struct ibv_comp_channel *channel, int vector)
{
	struct fake_cq *cq = calloc(1, sizeof *cq);
	(void)vector;
	cq->mask = power_of_two((uint32_t)cqe) - 1;
	cq->entries = calloc(cq->mask + 1, sizeof *cq->entries);
	cq->cq.context = context;
	cq->cq.channel = channel;
	cq->cq.cq_context = cq_context;
	cq->cq.cqe = cqe;
	fabric_add_cq(cq);
	return &cq->cq;
}

int ibv_destroy_cq(struct ibv_cq *ibcq)
{
	struct fake_cq *cq = (struct fake_cq *)ibcq;
	free(cq->entries);
	free(cq->moved);
	free(cq);
	return 0;
}

static void ring_init(struct ring *ring, uint32_t depth)
{
	ring->mask = power_of_two(depth) - 1;
	ring->entries = calloc(ring->mask + 1, sizeof *ring->entries);
}

struct ibv_qp *ibv_create_qp(struct ibv_pd *pd, struct ibv_qp_init_attr *attr)
{
	static uint32_t number;
	struct fake_qp *qp = calloc(1, sizeof *qp);
	attr->cap.max_inline_data = INLINE_MAX;
	ring_init(&qp->send, attr->cap.max_send_wr);
	ring_init(&qp->recv, attr->cap.max_recv_wr);
	qp->qp.context = pd->context;
	qp->qp.qp_context = attr->qp_context;
	qp->qp.pd = pd;
	qp->qp.send_cq = attr->send_cq;
	qp->qp.recv_cq = attr->recv_cq;
	qp->qp.srq = attr->srq;
	qp->qp.qp_num = __atomic_add_fetch(&number, 1, __ATOMIC_RELAXED);
	qp->qp.qp_type = attr->qp_type;
	fabric_add_qp(qp);
	return &qp->qp;
}

int ibv_modify_qp(struct ibv_qp *qp, struct ibv_qp_attr *attr, int mask)
{
	fabric_modify((struct fake_qp *)qp, attr, mask);
	return 0;
}

int ibv_query_qp(struct ibv_qp *qp, struct ibv_qp_attr *attr, int mask, struct ibv_qp_init_attr *init)
{
	(void)mask;
	memset(attr, 0, sizeof *attr);
	memset(init, 0, sizeof *init);
	attr->qp_state = attr->cur_qp_state = qp->state;
	attr->max_rd_atomic = attr->max_dest_rd_atomic = 1;
	return 0;
}

int ibv_destroy_qp(struct ibv_qp *ibqp)
{
	struct fake_qp *qp = (struct fake_qp *)ibqp;
	fabric_remove_qp(qp);
	free(qp->send.entries);
	free(qp->recv.entries);
	free(qp);
	return 0;
}

enum ibv_fork_status ibv_is_fork_initialized(void)
{
	return IBV_FORK_UNNEEDED;
}

int ibv_fork_init(void)
{
	return 0;
}
