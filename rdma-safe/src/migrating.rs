//! Coming from C, or from the crates `ibverbs` and `sideway`: what is called what here.
//!
//! Three things have no counterpart, and most lines of a program that moves here go away with them:
//! * **`wr_id`.** A completion brings back what was posted: [`Done::slot`], [`Done::payload`]. What belongs to a request is
//!   kept beside its buffer, not looked up by a number.
//! * **Keys and addresses of local memory** (`lkey`, `ibv_sge`). A [`Slot`], or a [`Piece`] of an [`SgList`], knows its own.
//! * **The order in which things are destroyed.** Objects hold what they stand on; drop them in any order.
//!
//! And one is to be learnt: a buffer that was posted is gone until its completion has been redeemed. Whoever wants to write
//! into it before that has a bug in C and a compiler error here.
//!
//! # From C
//! The `rdma-cm` crate has such a table of librdmacm's calls on its first page.
//!
//! | libibverbs | here |
//! |---|---|
//! | `ibv_get_device_list`, `ibv_free_device_list` | [`devices`], [`Device::by_name`] |
//! | `ibv_get_device_name`, `ibv_get_device_guid` | [`Device::name`], [`Device::guid`] |
//! | `ibv_open_device`, `ibv_close_device` | [`Device::open`]; closed with the last object on it |
//! | `ibv_query_device`, `ibv_query_device_ex` | [`Context::attr`], [`Context::caps`], [`Context::attr_ex`] |
//! | `ibv_query_port`, `ibv_query_pkey` | [`Context::port`], [`Context::pkey`] |
//! | `ibv_query_gid`, `ibv_query_gid_ex` | [`Context::gid`], [`Context::roce_v2_gid`] |
//! | `ibv_query_gid_table` | [`Context::gid_table`] |
//! | `ibv_get_async_event`, `ibv_ack_async_event` | [`AsyncEvents::next`], as an [`AsyncEvent`]; acknowledged inside |
//! | `ibv_fork_init`, `ibv_is_fork_initialized` | [`fork_support`] |
//! | `ibv_alloc_pd`, `ibv_dealloc_pd` | [`Context::alloc_pd`]; drop |
//! | `ibv_alloc_td`, `ibv_dealloc_td` | [`Context::alloc_thread_domain`]; drop |
//! | `ibv_alloc_parent_domain` | [`ProtectionDomain::parent_domain`] |
//! | `ibv_reg_mr` for sends and receives | [`ProtectionDomain::slots`]; [`ProtectionDomain::register`] |
//! | `ibv_reg_mr` with remote access | [`ProtectionDomain::register_remote`] with a [`RemoteAccess`] |
//! | `ibv_reg_mr` of memory that others own | [`ProtectionDomain::register_foreign`], `unsafe` |
//! | `ibv_reg_mr_iova`, `ibv_reg_mr_iova2`, other access flags | [`Registration`] |
//! | `ibv_reg_dmabuf_mr` | [`ProtectionDomain::register_dmabuf`] |
//! | `ibv_rereg_mr` | [`MemoryRegion::exchange_memory`], [`MemoryRegion::move_to`], [`MemoryRegion::into_remote`] |
//! | `ibv_advise_mr` | [`MemoryRegion::advise`] |
//! | `ibv_dereg_mr` | [`MemoryRegion::deregister`], which gives the memory back; drop |
//! | `mr->addr`, `mr->rkey` for a peer | [`MemoryRegion::remote`], [`RemoteSlot::remote`]: a [`RemoteRange`] |
//! | `ibv_alloc_mw`, `ibv_dealloc_mw`, `ibv_bind_mw`, `ibv_inc_rkey` | [`ProtectionDomain::alloc_window`], [`Request::bind`]; drop |
//! | `ibv_alloc_dm`, `ibv_free_dm`, `ibv_reg_dm_mr` | [`Context::alloc_device_memory`], [`ProtectionDomain::register_device_memory`] |
//! | `ibv_memcpy_to_dm`, `ibv_memcpy_from_dm` | [`DeviceMemory::copy_in`], [`DeviceMemory::copy_out`] |
//! | `ibv_create_comp_channel`, `ibv_destroy_comp_channel` | [`Context::completion_channel`]; drop |
//! | `ibv_create_cq`, `ibv_destroy_cq` | [`Context::create_cq`], [`Context::create_cq_with`] a channel; drop |
//! | `ibv_create_cq_ex` | [`Context::create_cq_ex`] |
//! | `ibv_start_poll`, `ibv_next_poll`, `ibv_end_poll`, `ibv_wc_read_*` | [`ExtendedCq::poll`] |
//! | `ibv_resize_cq`, `ibv_modify_cq` | [`CompletionQueue::resize`], [`CompletionQueue::moderate`] |
//! | `ibv_poll_cq` | [`CompletionQueue::poll`], then [`QueuePair::complete`]; or [`PollGroup::poll`] |
//! | the three below in the right order | [`PollGroup::poll_wait`], [`CompletionQueue::poll_wait`] |
//! | `ibv_req_notify_cq` | [`PollGroup::req_notify`], [`CompletionQueue::req_notify`] |
//! | `ibv_get_cq_event`, `ibv_ack_cq_events` | [`CompletionChannel::wait`]; acknowledged inside |
//! | `ibv_wc_status_str` | [`WcStatus`] prints itself |
//! | `ibv_create_qp`, `ibv_create_qp_ex`, `ibv_destroy_qp` | [`ProtectionDomain::create_qp`], [`QueuePair::close`]; drop |
//! | `ibv_modify_qp` | by the `rdma-cm` crate; by hand [`ManualQp`], [`QueuePair::modify`] |
//! | `ibv_query_qp` | [`QueuePair::query`] |
//! | `ibv_post_recv` | [`QueuePair::post_recv`], [`QueuePair::post_recv_list`], [`QueuePair::post_recv_batch`] |
//! | `ibv_post_send`, `ibv_wr_*` | [`QueuePair::post_send`], [`QueuePair::post_inline`]; anything: [`QueuePair::post`] |
//! | `IBV_WR_SEND`, `IBV_WR_SEND_WITH_IMM` | [`Request::send`], [`imm`](Request::imm) |
//! | `IBV_WR_SEND_WITH_INV` | [`Request::send`], [`invalidate`](Request::invalidate) |
//! | `IBV_WR_RDMA_WRITE`, `IBV_WR_RDMA_WRITE_WITH_IMM` | [`Request::write`], [`imm`](Request::imm) |
//! | `IBV_WR_RDMA_READ` | [`Request::read`] |
//! | `IBV_WR_ATOMIC_CMP_AND_SWP`, `IBV_WR_ATOMIC_FETCH_AND_ADD` | [`Request::compare_swap`], [`Request::fetch_add`] |
//! | `IBV_WR_BIND_MW`, `IBV_WR_LOCAL_INV` | [`Request::bind`], [`Request::local_invalidate`] |
//! | `wr.next`, one doorbell for several | [`QueuePair::post_batch`] |
//! | `IBV_SEND_SIGNALED`, `IBV_SEND_INLINE`, … | [`SendFlags`]: signalled unless [`UNSIGNALLED`](SendFlags::UNSIGNALLED) |
//! | `wr.wr.ud` | [`Request::to`] |
//! | requests over foreign memory | [`QueuePair::post_raw`], [`QueuePair::post_recv_raw`], `unsafe` |
//! | `ibv_create_ah`, `ibv_destroy_ah` | [`ProtectionDomain::create_ah`]; drop |
//! | `ibv_init_ah_from_wc`, `ibv_create_ah_from_wc` | [`ProtectionDomain::reply_vector`], [`ProtectionDomain::create_reply_ah`] |
//! | `ibv_attach_mcast`, `ibv_detach_mcast` | [`QueuePair::attach_multicast`], [`QueuePair::detach_multicast`] |
//! | `ibv_create_srq`, `ibv_destroy_srq`, `ibv_post_srq_recv` | [`ProtectionDomain::create_srq`], [`SharedReceiveQueue::post_recv`] |
//! | `ibv_modify_srq`, `ibv_query_srq` | [`SharedReceiveQueue::arm_limit`], [`SharedReceiveQueue::room`] |
//! | `ibv_open_xrcd`, `ibv_close_xrcd`, `ibv_create_srq_ex` | [`XrcDomain`]; drop |
//! | `ibv_get_srq_num` | [`SharedReceiveQueue::xrc_number`] |
//!
//! Not here: flow steering, work queues and receive side scaling, tag matching, counters, importing the objects of other
//! processes, the device's clock, `ibv_query_ece` and `ibv_set_ece` (`rdma-cm` has vendor options).
//!
//! # From the crate `ibverbs` 0.9
//! | `ibverbs` | here |
//! |---|---|
//! | `devices()`, `Device::open` | [`devices`], [`Device::open`] |
//! | `Context::create_cq(entries, id)` | [`Context::create_cq`] |
//! | `CompletionQueue::poll` | [`CompletionQueue::poll`] or [`PollGroup::poll`] |
//! | `Context::gid_table()` | [`Context::gid_table`] |
//! | `pd.allocate::<T>(n)`, `MemoryRegion<T>` | [`ProtectionDomain::slots`], [`ProtectionDomain::register`]: bytes |
//! | `MemoryRegion::rkey`, which every region has | [`MemoryRegion::remote`], only of a region registered for peers |
//! | `pd.create_qp(…)`, `QueuePairBuilder` | [`ProtectionDomain::create_manual_qp`]; [`InitAttr`], [`RtrAttr`], [`RtsAttr`] |
//! | `PreparedQueuePair::endpoint`, `handshake` | number, first PSN and GID; the steps of [`ManualQp`] |
//! | `set_max_send_wr`, `set_max_recv_wr` | [`QpConfig::send_depth`], [`QpConfig::recv_depth`] |
//! | `unsafe post_send(&mut mr, range, id)` | [`QueuePair::post_send`]: safe, moves the slot |
//! | `unsafe post_receive(&mut mr, range, id)` | [`QueuePair::post_recv`]: safe, moves the slot |
//! | `wc.wr_id()`, `wc.is_valid()` | [`Done::slot`], [`Done::status`] |
//! | an iWARP device | the `rdma-cm` crate: no hand can connect there |
//!
//! Its example, a queue pair connected to itself, is here:
//! ```no_run
//! use rdma_safe::*;
//! # fn main() -> std::result::Result<(), Box<dyn std::error::Error>> {
//! let device = devices()?.into_iter().next().ok_or("no RDMA device")?;
//! let ctx = device.open()?;
//! let pd = ctx.alloc_pd()?;
//! let mut group = PollGroup::new(ctx.create_cq(64)?);
//! let config = QpConfig { send_depth: 8, recv_depth: 8, ..QpConfig::default() };
//! let qp = pd.create_manual_qp(&group.cq_ref(), &group.cq_ref(), &config)?;
//! // A peer would tell these two by a socket.
//! let (peer, gid) = (qp.qp_num(), ctx.roce_v2_gid(1, None)?);
//! let path = AddressVector::roce(1, u8::try_from(gid.index)?, gid.gid);
//! let qp = qp
//!     .init(&InitAttr::default())?
//!     .ready_to_receive(&RtrAttr { path: Some(path), dest_qp_num: peer, ..RtrAttr::default() })?
//!     .ready_to_send(&RtsAttr::default())?;
//! let key = group.adopt(qp).map_err(|(_, error)| error)?;
//!
//! let mut slots = pd.slots(8, 2)?;
//! if let (Some(recv), Some(mut send)) = (slots.pop(), slots.pop()) {
//!     group.post_recv(key, recv)?;
//!     send.copy_from_slice(&0x42_u64.to_ne_bytes());
//!     group.post_send(key, send, 8, SendFlags::empty())?;
//! }
//! let (mut sent, mut received) = (false, false);
//! while !(sent && received) {
//!     let Some(done) = group.poll()? else { continue };
//!     if !done.status.is_ok() {
//!         return Err(done.status.to_string().into());
//!     }
//!     match done.op {
//!         Op::Send => sent = true,
//!         _ => received = done.message() == 0x42_u64.to_ne_bytes(),
//!     }
//! }
//! # Ok(()) }
//! ```
//!
//! # From the crate `sideway` 0.4
//! | `sideway` | here |
//! |---|---|
//! | `DeviceList::new()`, `Device::open` | [`devices`], [`Device::open`] |
//! | `DeviceContext::query_device` | [`Context::attr`], [`Context::attr_ex`] |
//! | `query_port`, `query_gid_table` | [`Context::port`], [`Context::gid_table`] |
//! | `create_comp_channel`, `create_cq_builder().setup_cqe(n)` | [`Context::completion_channel`], [`Context::create_cq_with`] |
//! | `build()`, `build_ex()` of a completion queue | [`Context::create_cq`], [`Context::create_cq_ex`] |
//! | `cq.start_poll()` and its iterator | [`PollGroup::poll`], [`CompletionQueue::poll`], [`ExtendedCq::poll`] |
//! | `unsafe pd.reg_mr(ptr, len, access)` | [`ProtectionDomain::slots`], [`ProtectionDomain::register_remote`]: they own it |
//! | `unsafe pd.reg_dmabuf_mr` | [`ProtectionDomain::register_dmabuf`] |
//! | `pd.create_qp_builder()`, `setup_*`, `build()` | [`QpConfig`], [`ProtectionDomain::create_qp`] |
//! | `QueuePairAttribute`, `setup_*`, `modify` | the steps of [`ManualQp`]; [`QpAttr`], [`QueuePair::modify`] |
//! | `AddressHandleAttribute` | [`AddressVector`]; a handle from it by [`ProtectionDomain::create_ah`] |
//! | `start_post_send()`, `construct_wr(id, flags)`, …, `post()` | [`QueuePair::post`], [`QueuePair::post_batch`] |
//! | `setup_send`, `setup_send_imm`, `setup_inline_data` | [`Request::send`], [`imm`](Request::imm), [`Request::send_inline`] |
//! | `setup_write(rkey, addr)`, `setup_write_imm`, `setup_read` | [`Request::write`], [`imm`](Request::imm), [`Request::read`] |
//! | `setup_atomic_compare_swap`, `setup_atomic_fetch_add` | [`Request::compare_swap`], [`Request::fetch_add`] |
//! | `unsafe setup_sge(lkey, addr, len)`, `setup_sge_list` | the slot itself; [`SgList::push`] |
//! | `start_post_recv()`, `construct_wr(id)`, …, `post()` | [`QueuePair::post_recv`], [`QueuePair::post_recv_batch`] |
//! | `WorkRequestFlags::Signaled` | the default; else [`SendFlags::UNSIGNALLED`] |
//! | `wc.status() == WorkCompletionStatus::Success as u32` | [`WcStatus::is_ok`] of [`Done::status`] |
//! | `rdmacm::EventChannel`, `Identifier`, `get_qp_attr` | the `rdma-cm` crate: `EventChannel`, `Connector`, `Listener`, `init_qp` |
//!
//! A write with immediate data, there four calls and an `unsafe` one:
//! ```no_run
//! # use rdma_safe::*;
//! # fn f(qp: &mut QueuePair, slot: Slot, theirs: RemoteRange) -> std::result::Result<(), PostError> {
//! let len = slot.capacity();
//! qp.post(Request::write(slot, len, theirs).imm(7))?; // RemoteRange: the peer's address, length and rkey
//! # Ok(()) }
//! ```
//! and all completions that are there:
//! ```no_run
//! # use rdma_safe::*;
//! # fn f(cq: &mut CompletionQueue, qp: &mut QueuePair, free: &mut Vec<Slot>) -> Result<()> {
//! let mut wcs: [Wc; 16] = std::array::from_fn(|_| Wc::empty());
//! let n = cq.poll(&mut wcs)?;
//! for wc in &mut wcs[..n] {
//!     if let Some(done) = qp.complete(wc) {
//!         println!("{:?}: {}, {:?} bytes", done.op, done.status, done.message());
//!         free.extend(done.slot);
//!     }
//! }
//! # Ok(()) }
//! ```

#![forbid(unsafe_code)]

// So that the links above find their names.
#[allow(unused_imports, reason = "rustdoc uses them")]
use crate::*;
