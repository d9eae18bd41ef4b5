/*
 * Messages between the queue pairs of this process, for what needs a peer that answers: the transport with both its ends, its connection
 * manager's thread and its dialers, all of one program. Connecting is librdmacm's business, of which cm.c is a fake.
 *
 * A message moves when it is posted, into the oldest receive of the peer, and completes at both ends at once. A message that finds no
 * receive ends the program: no correct user of this library sends one. One lock guards everything, as the doorbell and the wire of a
 * device would; what it costs is in this library, where it is not counted.
 */
#include "fake.h"
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct moved {
	uint64_t wr_id;
	uint32_t qp_num, length;
	enum ibv_wc_opcode opcode;
	enum ibv_wc_status status;
};

struct receive {
	uint64_t wr_id, addr;
	uint32_t length;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct fake_qp *all;
static unsigned long doorbells, requests;

static void wrong(const char *what)
{
	fprintf(stderr, "fake fabric: %s\n", what);
	abort();
}

/* What was asked of the device, for who counts doorbells. */
__attribute__((destructor)) static void report(void)
{
	const char *asked = getenv("FAKE_FABRIC");
	if (asked && strcmp(asked, "report") == 0)
		dprintf(STDOUT_FILENO, "doorbells %lu requests %lu\n", doorbells, requests);
}

static struct fake_qp *find(uint32_t number)
{
	struct fake_qp *qp = all;
	while (qp && qp->qp.qp_num != number)
		qp = qp->next;
	return qp;
}

static void done(struct ibv_cq *ibcq, struct moved it)
{
	struct fake_cq *cq = (struct fake_cq *)ibcq;
	if (cq->tail - cq->head > cq->mask)
		wrong("a completion queue is full");
	cq->moved[cq->tail++ & cq->mask] = it;
}

/* Everything posted to a queue pair that fails completes. */
static void fail(struct fake_qp *qp)
{
	qp->qp.state = IBV_QPS_ERR;
	while (qp->first != qp->last) {
		const struct receive *r = &qp->receives[qp->first++ & qp->recv.mask];
		done(qp->qp.recv_cq, (struct moved){r->wr_id, qp->qp.qp_num, 0, IBV_WC_RECV, IBV_WC_WR_FLUSH_ERR});
	}
}

static enum ibv_wc_status deliver(struct fake_qp *qp, const struct ibv_send_wr *wr)
{
	struct fake_qp *peer = find(qp->peer);
	const struct receive *r;
	uint32_t length = wr->num_sge ? wr->sg_list->length : 0;
	const void *from = wr->num_sge ? (const void *)(uintptr_t)wr->sg_list->addr : "";

	if (!peer || peer->qp.state < IBV_QPS_RTR || peer->qp.state == IBV_QPS_ERR || peer->peer != qp->qp.qp_num)
		return IBV_WC_RETRY_EXC_ERR;
	switch (wr->opcode) {
	case IBV_WR_RDMA_WRITE:
		memcpy((void *)(uintptr_t)wr->wr.rdma.remote_addr, from, length);
		return IBV_WC_SUCCESS;
	case IBV_WR_RDMA_READ:
		memcpy((void *)(uintptr_t)wr->sg_list->addr, (const void *)(uintptr_t)wr->wr.rdma.remote_addr, length);
		return IBV_WC_SUCCESS;
	default:
		break;
	}
	if (peer->first == peer->last)
		wrong("a message finds no receive");
	r = &peer->receives[peer->first++ & peer->recv.mask];
	if (length > r->length)
		wrong("a message is longer than the receive it finds");
	memcpy((void *)(uintptr_t)r->addr, from, length);
	done(peer->qp.recv_cq, (struct moved){r->wr_id, peer->qp.qp_num, length, IBV_WC_RECV, IBV_WC_SUCCESS});
	return IBV_WC_SUCCESS;
}

static int post_send(struct ibv_qp *ibqp, struct ibv_send_wr *wr, struct ibv_send_wr **bad)
{
	struct fake_qp *qp = (struct fake_qp *)ibqp;

	pthread_mutex_lock(&lock);
	doorbells++;
	for (; wr; wr = wr->next) {
		enum ibv_wc_opcode opcode = wr->opcode == IBV_WR_RDMA_WRITE  ? IBV_WC_RDMA_WRITE
					    : wr->opcode == IBV_WR_RDMA_READ ? IBV_WC_RDMA_READ
									     : IBV_WC_SEND;
		enum ibv_wc_status status = IBV_WC_WR_FLUSH_ERR;
		requests++;
		if (ibqp->state != IBV_QPS_RTS && ibqp->state != IBV_QPS_ERR) {
			*bad = wr;
			pthread_mutex_unlock(&lock);
			return EINVAL;
		}
		if (ibqp->state == IBV_QPS_RTS)
			status = deliver(qp, wr);
		if (status || wr->send_flags & IBV_SEND_SIGNALED)
			done(ibqp->send_cq, (struct moved){wr->wr_id, ibqp->qp_num, 0, opcode, status});
		if (status == IBV_WC_RETRY_EXC_ERR)
			fail(qp);
	}
	pthread_mutex_unlock(&lock);
	return 0;
}

static int post_recv(struct ibv_qp *ibqp, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad)
{
	struct fake_qp *qp = (struct fake_qp *)ibqp;
	int rc = 0;

	pthread_mutex_lock(&lock);
	for (; wr; wr = wr->next) {
		struct receive r = {wr->wr_id, wr->sg_list->addr, wr->sg_list->length};
		if (qp->last - qp->first > qp->recv.mask) {
			*bad = wr;
			rc = ENOMEM;
			break;
		}
		if (ibqp->state == IBV_QPS_ERR)
			done(ibqp->recv_cq, (struct moved){r.wr_id, ibqp->qp_num, 0, IBV_WC_RECV, IBV_WC_WR_FLUSH_ERR});
		else
			qp->receives[qp->last++ & qp->recv.mask] = r;
	}
	pthread_mutex_unlock(&lock);
	return rc;
}

static int poll_cq(struct ibv_cq *ibcq, int room, struct ibv_wc *wc)
{
	struct fake_cq *cq = (struct fake_cq *)ibcq;
	int n = 0;

	pthread_mutex_lock(&lock);
	for (; n < room && cq->head != cq->tail; n++) {
		const struct moved *it = &cq->moved[cq->head++ & cq->mask];
		memset(&wc[n], 0, sizeof wc[n]);
		wc[n].wr_id = it->wr_id;
		wc[n].status = it->status;
		wc[n].opcode = it->opcode;
		wc[n].byte_len = it->length;
		wc[n].qp_num = it->qp_num;
	}
	pthread_mutex_unlock(&lock);
	return n;
}

void fabric_open(struct ibv_context *context)
{
	context->ops.post_send = post_send;
	context->ops.post_recv = post_recv;
	context->ops.poll_cq = poll_cq;
}

void fabric_add_cq(struct fake_cq *cq)
{
	cq->moved = calloc(cq->mask + 1, sizeof *cq->moved);
}

void fabric_add_qp(struct fake_qp *qp)
{
	qp->receives = calloc(qp->recv.mask + 1, sizeof *qp->receives);
	pthread_mutex_lock(&lock);
	qp->next = all;
	all = qp;
	pthread_mutex_unlock(&lock);
}

void fabric_modify(struct fake_qp *qp, const struct ibv_qp_attr *attr, int mask)
{
	pthread_mutex_lock(&lock);
	if (mask & IBV_QP_DEST_QPN)
		qp->peer = attr->dest_qp_num;
	if (mask & IBV_QP_STATE && attr->qp_state == IBV_QPS_ERR)
		fail(qp);
	else if (mask & IBV_QP_STATE)
		qp->qp.state = attr->qp_state;
	pthread_mutex_unlock(&lock);
}

void fabric_remove_qp(struct fake_qp *qp)
{
	struct fake_qp **at = &all;
	pthread_mutex_lock(&lock);
	while (*at != qp)
		at = &(*at)->next;
	*at = qp->next;
	pthread_mutex_unlock(&lock);
	free(qp->receives);
}
