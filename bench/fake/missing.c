/*
 * What else libibverbs exports. Programs bind to these names when they are loaded, but nothing that is measured calls them, so a call is
 * a mistake in a benchmark: it ends the program with the name. No header here: the prototypes would not fit.
 */
#include <stdio.h>
#include <stdlib.h>

static void missing(const char *name)
{
	fprintf(stderr, "the fake libibverbs has no %s\n", name);
	abort();
}

#define MISSING(name)            \
	void name(void);         \
	void name(void)          \
	{                        \
		missing(#name);  \
	}

MISSING(ibv_ack_async_event)
MISSING(ibv_ack_cq_events)
MISSING(ibv_attach_mcast)
MISSING(ibv_copy_ah_attr_from_kern)
MISSING(ibv_copy_path_rec_from_kern)
MISSING(ibv_copy_path_rec_to_kern)
MISSING(ibv_copy_qp_attr_from_kern)
MISSING(ibv_create_ah)
MISSING(ibv_create_ah_from_wc)
MISSING(ibv_create_comp_channel)
MISSING(ibv_create_srq)
MISSING(ibv_destroy_ah)
MISSING(ibv_destroy_comp_channel)
MISSING(ibv_destroy_srq)
MISSING(ibv_detach_mcast)
MISSING(ibv_dofork_range)
MISSING(ibv_dontfork_range)
MISSING(ibv_event_type_str)
MISSING(ibv_get_async_event)
MISSING(ibv_get_cq_event)
MISSING(ibv_get_pkey_index)
MISSING(ibv_get_sysfs_path)
MISSING(ibv_import_device)
MISSING(ibv_import_dm)
MISSING(ibv_import_mr)
MISSING(ibv_import_pd)
MISSING(ibv_init_ah_from_wc)
MISSING(ibv_modify_srq)
MISSING(ibv_node_type_str)
MISSING(ibv_port_state_str)
MISSING(ibv_qp_to_qp_ex)
MISSING(ibv_query_ece)
MISSING(ibv_query_gid_type)
MISSING(ibv_query_qp_data_in_order)
MISSING(ibv_query_srq)
MISSING(ibv_rate_to_mbps)
MISSING(ibv_rate_to_mult)
MISSING(ibv_read_ibdev_sysfs_file)
MISSING(ibv_read_sysfs_file)
MISSING(ibv_reg_dmabuf_mr)
MISSING(ibv_rereg_mr)
MISSING(ibv_resize_cq)
MISSING(ibv_resolve_eth_l2_from_gid)
MISSING(ibv_set_ece)
MISSING(ibv_unimport_dm)
MISSING(ibv_unimport_mr)
MISSING(ibv_unimport_pd)
MISSING(ibv_wc_status_str)
MISSING(mbps_to_ibv_rate)
MISSING(mult_to_ibv_rate)
