/*
 * The loops of `cargo xtask bench instructions` in C, as a programmer who knows the interface writes them: a request is filled field by
 * field when it is posted and is not zeroed. `plain` keeps no books. `table` keeps those that a layer which owns buffers needs: which
 * buffer belongs to which request, and whether the queue has room.
 *
 * Usage: loops plain|table send|recv|window16|qps1000|empty COUNT
 */
#include <infiniband/verbs.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { DEPTH = 64, WINDOW = 16, QPS = 1000, SIZE = 64, SLOTS = 1024 };

#define NOINLINE __attribute__((noinline))

static void require(int good, const char *what)
{
	if (!good) {
		fprintf(stderr, "loops: %s failed\n", what);
		exit(1);
	}
}

static struct ibv_pd *pd;
static struct ibv_cq *cq;
static struct ibv_qp *qps[QPS];
static struct ibv_mr *mr;
static char *memory;

static struct ibv_qp *connected(void)
{
	struct ibv_qp_init_attr init = {
		.send_cq = cq,
		.recv_cq = cq,
		.cap = {.max_send_wr = DEPTH, .max_recv_wr = DEPTH, .max_send_sge = 1, .max_recv_sge = 1, .max_inline_data = 32},
		.qp_type = IBV_QPT_RC,
	};
	struct ibv_qp *qp = ibv_create_qp(pd, &init);
	require(qp != NULL, "ibv_create_qp");
	for (int state = IBV_QPS_INIT; state <= IBV_QPS_RTS; state++) {
		struct ibv_qp_attr attr = {.qp_state = state};
		require(ibv_modify_qp(qp, &attr, IBV_QP_STATE) == 0, "ibv_modify_qp");
	}
	return qp;
}

static void set_up(int count)
{
	int n;
	struct ibv_device **devices = ibv_get_device_list(&n);
	struct ibv_context *context;
	require(devices != NULL && n > 0, "ibv_get_device_list");
	context = ibv_open_device(devices[0]);
	require(context != NULL, "ibv_open_device");
	pd = ibv_alloc_pd(context);
	cq = ibv_create_cq(context, count * 2 * DEPTH, NULL, NULL, 0);
	memory = calloc(SLOTS, SIZE);
	require(pd && cq && memory, "set-up");
	mr = ibv_reg_mr(pd, memory, SLOTS * SIZE, IBV_ACCESS_LOCAL_WRITE);
	require(mr != NULL, "ibv_reg_mr");
	for (int i = 0; i < count; i++)
		qps[i] = connected();
}

static inline void post_send(struct ibv_qp *qp, uint64_t id, void *buffer)
{
	struct ibv_sge sge;
	struct ibv_send_wr wr, *bad;
	sge.addr = (uintptr_t)buffer;
	sge.length = 8;
	sge.lkey = mr->lkey;
	wr.wr_id = id;
	wr.next = NULL;
	wr.sg_list = &sge;
	wr.num_sge = 1;
	wr.opcode = IBV_WR_SEND;
	wr.send_flags = IBV_SEND_SIGNALED | IBV_SEND_INLINE;
	if (ibv_post_send(qp, &wr, &bad))
		abort();
}

static inline void post_recv(struct ibv_qp *qp, uint64_t id, void *buffer)
{
	struct ibv_sge sge;
	struct ibv_recv_wr wr, *bad;
	sge.addr = (uintptr_t)buffer;
	sge.length = SIZE;
	sge.lkey = mr->lkey;
	wr.wr_id = id;
	wr.next = NULL;
	wr.sg_list = &sge;
	wr.num_sge = 1;
	if (ibv_post_recv(qp, &wr, &bad))
		abort();
}

/* One completion, however long it takes. */
static inline void poll_one(struct ibv_wc *wc)
{
	int n;
	while ((n = ibv_poll_cq(cq, 1, wc)) == 0)
		;
	if (n < 0 || wc->status)
		abort();
}

/* ---- without books ---- */

static NOINLINE void plain_send(long count)
{
	struct ibv_qp *qp = qps[0];
	struct ibv_wc wc;
	for (long i = 0; i < count; i++) {
		post_send(qp, i, memory);
		poll_one(&wc);
	}
}

static NOINLINE void plain_recv(long count)
{
	struct ibv_qp *qp = qps[0];
	struct ibv_wc wc;
	for (long i = 0; i < count; i++) {
		post_recv(qp, i, memory);
		poll_one(&wc);
	}
}

static NOINLINE void plain_window16(long count)
{
	struct ibv_qp *qp = qps[0];
	struct ibv_wc wc[WINDOW];
	for (long i = 0; i < count; i += WINDOW) {
		for (int j = 0; j < WINDOW; j++)
			post_send(qp, i + j, memory + j * SIZE);
		for (int got = 0; got < WINDOW;) {
			int n = ibv_poll_cq(cq, WINDOW, wc);
			if (n < 0)
				abort();
			for (int j = 0; j < n; j++)
				if (wc[j].status)
					abort();
			got += n;
		}
	}
}

/* What a completion is for is in its wr_id: the place of the queue pair. */
static NOINLINE void plain_qps1000(long count)
{
	static long done[QPS];
	struct ibv_wc wc;
	for (long i = 0, q = 0; i < count; i++) {
		post_send(qps[q], q, memory);
		poll_one(&wc);
		if (wc.wr_id >= QPS)
			abort();
		done[wc.wr_id]++;
		q = q + 1 == QPS ? 0 : q + 1;
	}
}

static NOINLINE void plain_empty(long count)
{
	struct ibv_wc wc[WINDOW];
	for (long i = 0; i < count; i++)
		if (ibv_poll_cq(cq, WINDOW, wc) != 0)
			abort();
}

/* ---- with a table of what is in flight ---- */

struct table {
	void *buffer[DEPTH];
	uint32_t posted, done;
};

static struct table tables[QPS];

static inline uint64_t enter(struct table *t, uint64_t owner, void *buffer)
{
	uint32_t place = t->posted & (DEPTH - 1);
	if (t->posted - t->done >= DEPTH)
		abort();
	t->buffer[place] = buffer;
	t->posted++;
	return owner << 32 | place;
}

static inline void *leave(struct table *t, uint64_t id)
{
	uint32_t place = (uint32_t)id & (DEPTH - 1);
	void *buffer = t->buffer[place];
	t->buffer[place] = NULL;
	t->done++;
	return buffer;
}

static NOINLINE void table_send(long count)
{
	struct ibv_qp *qp = qps[0];
	void *buffer = memory;
	struct ibv_wc wc;
	for (long i = 0; i < count; i++) {
		post_send(qp, enter(&tables[0], 0, buffer), buffer);
		poll_one(&wc);
		buffer = leave(&tables[0], wc.wr_id);
	}
}

static NOINLINE void table_recv(long count)
{
	struct ibv_qp *qp = qps[0];
	void *buffer = memory;
	struct ibv_wc wc;
	for (long i = 0; i < count; i++) {
		post_recv(qp, enter(&tables[0], 0, buffer), buffer);
		poll_one(&wc);
		buffer = leave(&tables[0], wc.wr_id);
	}
}

static NOINLINE void table_window16(long count)
{
	struct ibv_qp *qp = qps[0];
	void *pool[WINDOW];
	struct ibv_wc wc[WINDOW];
	int free_buffers = 0;
	while (free_buffers < WINDOW) {
		pool[free_buffers] = memory + free_buffers * SIZE;
		free_buffers++;
	}
	for (long i = 0; i < count; i += WINDOW) {
		while (free_buffers) {
			void *buffer = pool[--free_buffers];
			post_send(qp, enter(&tables[0], 0, buffer), buffer);
		}
		while (free_buffers < WINDOW) {
			int n = ibv_poll_cq(cq, WINDOW, wc);
			if (n < 0)
				abort();
			for (int j = 0; j < n; j++) {
				if (wc[j].status)
					abort();
				pool[free_buffers++] = leave(&tables[0], wc[j].wr_id);
			}
		}
	}
}

static NOINLINE void table_qps1000(long count)
{
	void *buffer = memory;
	struct ibv_wc wc;
	for (long i = 0, q = 0; i < count; i++) {
		uint64_t owner;
		post_send(qps[q], enter(&tables[q], q, buffer), buffer);
		poll_one(&wc);
		owner = wc.wr_id >> 32;
		if (owner >= QPS)
			abort();
		buffer = leave(&tables[owner], wc.wr_id);
		q = q + 1 == QPS ? 0 : q + 1;
	}
}

static const struct loop {
	const char *variant, *scenario;
	void (*run)(long count);
} loops[] = {
	{"plain", "send", plain_send},
	{"plain", "recv", plain_recv},
	{"plain", "window16", plain_window16},
	{"plain", "qps1000", plain_qps1000},
	{"plain", "empty", plain_empty},
	{"table", "send", table_send},
	{"table", "recv", table_recv},
	{"table", "window16", table_window16},
	{"table", "qps1000", table_qps1000},
	{"table", "empty", plain_empty},
};

int main(int argc, char **argv)
{
	require(argc == 4, "usage: loops VARIANT SCENARIO COUNT: this");
	for (size_t i = 0; i < sizeof loops / sizeof *loops; i++) {
		if (strcmp(argv[1], loops[i].variant) || strcmp(argv[2], loops[i].scenario))
			continue;
		set_up(strcmp(argv[2], "qps1000") ? 1 : QPS);
		loops[i].run(atol(argv[3]));
		return 0;
	}
	fprintf(stderr, "loops: there is no %s %s\n", argv[1], argv[2]);
	return 2;
}
