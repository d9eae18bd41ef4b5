//! Connects two queue pairs of this process through librdmacm, by number: librdmacm never sees them.
//! Deliberately independent of the rdma-cm crate, so that these tests stand on the C library alone.

use rdma_safe::{QpAttr, QueuePair, Transport};
use rdma_sys::*;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::ptr::{null, null_mut};

const LIMIT_MS: i32 = 10_000;

struct Channel(*mut rdma_event_channel);

impl Channel {
    fn new() -> Channel {
        // SAFETY: no preconditions.
        let ch = unsafe { rdma_create_event_channel() };
        assert!(!ch.is_null(), "rdma_create_event_channel: {}", std::io::Error::last_os_error());
        Channel(ch)
    }

    fn id(&self) -> *mut rdma_cm_id {
        let mut id = null_mut();
        // SAFETY: live channel, writable pointer.
        let rc =
            unsafe { rdma_create_id(self.0, &mut id, null_mut(), rdma_port_space::RDMA_PS_TCP) };
        ok("rdma_create_id", rc);
        id
    }

    /// Takes one event: its kind, its id, and the peer's queue pair number.
    fn event(&self) -> (rdma_cm_event_type, *mut rdma_cm_id) {
        // SAFETY: live channel; the event is acknowledged once and only copied values are used after.
        unsafe {
            let mut p = libc::pollfd { fd: (*self.0).fd, events: libc::POLLIN, revents: 0 };
            assert_eq!(libc::poll(&mut p, 1, LIMIT_MS), 1, "no connection manager event in time");
            let mut ev = null_mut();
            ok("rdma_get_cm_event", rdma_get_cm_event(self.0, &mut ev));
            let (kind, id, status) = ((*ev).event, (*ev).id, (*ev).status);
            rdma_ack_cm_event(ev);
            assert!(status == 0, "event {kind:?} with status {status}");
            (kind, id)
        }
    }

    fn expect(&self, want: rdma_cm_event_type) -> *mut rdma_cm_id {
        let (kind, id) = self.event();
        assert_eq!(kind, want);
        id
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        // SAFETY: the ids on it are destroyed before it, by field order and `Link`'s lifetime in the tests.
        unsafe { rdma_destroy_event_channel(self.0) }
    }
}

fn ok(what: &str, rc: i32) {
    assert_eq!(rc, 0, "{what}: {}", std::io::Error::last_os_error());
}

struct Id(*mut rdma_cm_id);

impl Drop for Id {
    fn drop(&mut self) {
        // SAFETY: owned id, destroyed once, all its events acknowledged.
        unsafe { rdma_destroy_id(self.0) };
    }
}

/// A listener on the address under test, and a channel for dialling it.
pub(crate) struct Cm {
    listener: Id,
    address: SocketAddrV4,
    dial: Channel,
    serve: Channel,
}

/// The two ids of one connection. Dropping it disconnects.
pub(crate) struct Link {
    client: Id,
    server: Id,
}

impl Link {
    /// Closes the connection from the client's side.
    pub(crate) fn disconnect(&self) {
        // SAFETY: live ids.
        unsafe {
            rdma_disconnect(self.client.0);
            rdma_disconnect(self.server.0);
        }
    }
}

/// Which end a queue pair is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    Client,
    Server,
}

impl Cm {
    pub(crate) fn new(address: Ipv4Addr) -> Cm {
        let (dial, serve) = (Channel::new(), Channel::new());
        let listener = Id(serve.id());
        let mut sa = sockaddr(SocketAddrV4::new(address, 0));
        // SAFETY: live id, complete address.
        unsafe {
            ok("rdma_bind_addr", rdma_bind_addr(listener.0, (&raw mut sa).cast()));
            ok("rdma_listen", rdma_listen(listener.0, 8));
        }
        // SAFETY: a bound id.
        let port = u16::from_be(unsafe { rdma_get_src_port(listener.0) });
        Cm { listener, address: SocketAddrV4::new(address, port), dial, serve }
    }

    /// Connects `client` to `server`. `post` is called for each end in state INIT, before its connect or accept.
    pub(crate) fn connect(
        &self,
        client: &mut QueuePair,
        server: &mut QueuePair,
        mut post: impl FnMut(End, &mut QueuePair),
    ) -> Link {
        let c = Id(self.dial.id());
        let mut sa = sockaddr(self.address);
        // SAFETY: live id, complete address.
        unsafe {
            ok(
                "rdma_resolve_addr",
                rdma_resolve_addr(c.0, null_mut(), (&raw mut sa).cast(), LIMIT_MS),
            );
            self.dial.expect(rdma_cm_event_type::RDMA_CM_EVENT_ADDR_RESOLVED);
            ok("rdma_resolve_route", rdma_resolve_route(c.0, LIMIT_MS));
            self.dial.expect(rdma_cm_event_type::RDMA_CM_EVENT_ROUTE_RESOLVED);
        }
        step(&c, client, ibv_qp_state::IBV_QPS_INIT);
        post(End::Client, client);
        let mut param = param(client);
        // SAFETY: resolved id, complete parameters.
        ok("rdma_connect", unsafe { rdma_connect(c.0, &mut param) });
        let s = Id(self.serve.expect(rdma_cm_event_type::RDMA_CM_EVENT_CONNECT_REQUEST));
        assert_ne!(s.0, self.listener.0);
        step(&s, server, ibv_qp_state::IBV_QPS_INIT);
        post(End::Server, server);
        self.accept(&s, server);
        self.finish(&c, client);
        assert_eq!(self.serve.expect(rdma_cm_event_type::RDMA_CM_EVENT_ESTABLISHED), s.0);
        Link { client: c, server: s }
    }

    fn accept(&self, id: &Id, qp: &mut QueuePair) {
        let iwarp = qp.context().transport() == Transport::Iwarp;
        if !iwarp {
            step(id, qp, ibv_qp_state::IBV_QPS_RTR);
            step(id, qp, ibv_qp_state::IBV_QPS_RTS);
        }
        let mut param = param(qp);
        // SAFETY: an id with a connect request, complete parameters.
        ok("rdma_accept", unsafe { rdma_accept(id.0, &mut param) });
        if iwarp {
            qp.mark_connected().unwrap();
        }
    }

    fn finish(&self, id: &Id, qp: &mut QueuePair) {
        match self.dial.event().0 {
            rdma_cm_event_type::RDMA_CM_EVENT_CONNECT_RESPONSE => {
                // Once more: only now the kernel says what the peer may do (before the connect it says nothing).
                step(id, qp, ibv_qp_state::IBV_QPS_INIT);
                step(id, qp, ibv_qp_state::IBV_QPS_RTR);
                step(id, qp, ibv_qp_state::IBV_QPS_RTS);
                // SAFETY: a live id that got its response.
                ok("rdma_establish", unsafe { rdma_establish(id.0) });
            }
            rdma_cm_event_type::RDMA_CM_EVENT_ESTABLISHED => qp.mark_connected().unwrap(),
            other => panic!("unexpected event {other:?}"),
        }
    }
}

/// Moves a queue pair with what librdmacm says.
fn step(id: &Id, qp: &mut QueuePair, state: ibv_qp_state) {
    let mut attr = ibv_qp_attr { qp_state: state, ..ibv_qp_attr::default() };
    let mut mask = 0;
    // SAFETY: live id, writable attributes.
    ok("rdma_init_qp_attr", unsafe { rdma_init_qp_attr(id.0, &mut attr, &mut mask) });
    qp.modify(&QpAttr::from_raw(attr, mask)).unwrap();
}

fn param(qp: &QueuePair) -> rdma_conn_param {
    rdma_conn_param {
        private_data: null(),
        responder_resources: 1,
        initiator_depth: 1,
        retry_count: 7,
        rnr_retry_count: 7,
        qp_num: qp.qp_num(),
        ..rdma_conn_param::default()
    }
}

fn sockaddr(a: SocketAddrV4) -> libc::sockaddr_in {
    libc::sockaddr_in {
        sin_family: libc::AF_INET as u16,
        sin_port: a.port().to_be(),
        sin_addr: libc::in_addr { s_addr: u32::from(*a.ip()).to_be() },
        sin_zero: [0; 8],
    }
}
