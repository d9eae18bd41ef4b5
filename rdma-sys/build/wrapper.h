/* The public API of libibverbs and librdmacm. */
#include <infiniband/verbs.h>
#include <infiniband/ib.h>
#include <infiniband/opcode.h>
#include <infiniband/sa.h>
#include <infiniband/tm_types.h>
#include <rdma/rdma_cma.h>
#include <rdma/rdma_verbs.h>
#include <rdma/rsocket.h>
