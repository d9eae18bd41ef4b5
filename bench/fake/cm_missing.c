/*
 * What else librdmacm exports and programs on rdma-cm bind to when they are loaded. Nothing that runs on the fake calls them, so a call is
 * a mistake: it ends the program with the name. No header here: the prototypes would not fit.
 */
#include <stdio.h>
#include <stdlib.h>

static void missing(const char *name)
{
	fprintf(stderr, "the fake librdmacm has no %s\n", name);
	abort();
}

#define MISSING(name)            \
	void name(void);         \
	void name(void)          \
	{                        \
		missing(#name);  \
	}

MISSING(rdma_create_ep)
MISSING(rdma_create_qp)
MISSING(rdma_create_qp_ex)
MISSING(rdma_create_srq)
MISSING(rdma_create_srq_ex)
MISSING(rdma_destroy_ep)
MISSING(rdma_destroy_qp)
MISSING(rdma_destroy_srq)
MISSING(rdma_event_str)
MISSING(rdma_free_devices)
MISSING(rdma_freeaddrinfo)
MISSING(rdma_get_devices)
MISSING(rdma_get_dst_port)
MISSING(rdma_get_remote_ece)
MISSING(rdma_get_request)
MISSING(rdma_get_src_port)
MISSING(rdma_getaddrinfo)
MISSING(rdma_join_multicast)
MISSING(rdma_join_multicast_ex)
MISSING(rdma_leave_multicast)
MISSING(rdma_notify)
MISSING(rdma_reject_ece)
MISSING(rdma_set_local_ece)
