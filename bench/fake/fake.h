/* What the parts of the fake libibverbs share. */
#ifndef FAKE_H
#define FAKE_H
#include <infiniband/verbs.h>
#include <stdint.h>

enum { INLINE_MAX = 32, ENTRY = 64, MESSAGE = 8 };

struct entry {
	uint64_t wr_id;
	uint64_t addr;
	uint32_t flags, length, lkey, reserved;
	uint8_t data[INLINE_MAX];
};
_Static_assert(sizeof(struct entry) == ENTRY, "an entry is a cache line");

struct ring {
	struct entry *entries;
	uint32_t mask, tail;
	volatile uint32_t doorbell;
};

struct completion {
	uint64_t wr_id;
	uint32_t qp_num;
	uint16_t opcode, length;
};

struct fake_cq {
	struct ibv_cq cq;
	struct completion *entries;
	uint32_t mask, tail, head;
	/* Instead of `entries`, where messages move. */
	struct moved *moved;
};

struct fake_qp {
	struct ibv_qp qp;
	struct ring send, recv;
	/* Where messages move: the receives, and whom it is connected to. */
	struct receive *receives;
	uint32_t first, last, peer;
	struct fake_qp *next;
};

/* Of fabric.c; off the message path. */
void fabric_open(struct ibv_context *context);
void fabric_add_cq(struct fake_cq *cq);
void fabric_add_qp(struct fake_qp *qp);
void fabric_modify(struct fake_qp *qp, const struct ibv_qp_attr *attr, int mask);
void fabric_remove_qp(struct fake_qp *qp);

#endif
