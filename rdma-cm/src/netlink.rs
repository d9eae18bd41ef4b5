//! Asks the kernel over netlink which network interface a port of a device sits on, and whether an address is this host's.
//!
//! For the first, RDMA netlink is the only way that works for every device on every kernel: before Linux 6.6 soft iWARP
//! has no interface in its GID table. Both need no privilege and see only the caller's network namespace. Numbers are those
//! of `rdma/rdma_netlink.h` and `linux/rtnetlink.h`, which are ABI.
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

const NETLINK_ROUTE: i32 = 0;
const NETLINK_RDMA: i32 = 20;
/// `RDMA_NL_GET_TYPE(RDMA_NL_NLDEV, op)`.
const fn nldev(op: u16) -> u16 {
    (5 << 10) + op
}
const CMD_GET: u16 = nldev(1);
const CMD_PORT_GET: u16 = nldev(5);
const ATTR_DEV_INDEX: u16 = 1;
const ATTR_DEV_NAME: u16 = 2;
const ATTR_PORT_INDEX: u16 = 3;
const ATTR_NDEV_NAME: u16 = 51;
const RTM_NEWROUTE: u16 = 24;
const RTM_GETROUTE: u16 = 26;
const RTA_DST: u16 = 1;
const RTA_OIF: u16 = 4;
/// `rtmsg.rtm_type`: its place, and its value for an address of this host.
const RTM_TYPE: usize = 7;
const RTN_LOCAL: u8 = 2;
const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
const NLM_F_REQUEST: u16 = 1;
const NLM_F_DUMP: u16 = 0x300;
const HEADER: usize = 16;

/// The name of the network interface under port `port` of `device`, if it has one in this namespace.
pub(crate) fn netdev_of(device: &str, port: u32) -> io::Result<Option<String>> {
    let socket = Socket::open(NETLINK_RDMA)?;
    let mut index = None;
    socket.ask(CMD_GET, NLM_F_DUMP, &[], |_, body| {
        let attrs = Attrs(body);
        if attrs.text(ATTR_DEV_NAME).as_deref() == Some(device) {
            index = attrs.number(ATTR_DEV_INDEX);
        }
    })?;
    let Some(index) = index else { return Ok(None) };
    let mut netdev = None;
    let port =
        [attr(ATTR_DEV_INDEX, &index.to_ne_bytes()), attr(ATTR_PORT_INDEX, &port.to_ne_bytes())];
    socket.ask(CMD_PORT_GET, 0, &port.concat(), |_, body| {
        netdev = Attrs(body).text(ATTR_NDEV_NAME);
    })?;
    Ok(netdev)
}

/// Whether the kernel would take packets to `addr` for this host's own; `scope` is the index of an interface, or 0.
pub(crate) fn is_routed_here(addr: IpAddr, scope: u32) -> io::Result<bool> {
    let (family, octets) = match addr {
        IpAddr::V4(v4) => (libc::AF_INET, v4.octets().to_vec()),
        IpAddr::V6(v6) => (libc::AF_INET6, v6.octets().to_vec()),
    };
    // struct rtmsg: family and the length of the destination in bits, then what only answers have.
    let mut body = vec![family as u8, (octets.len() * 8) as u8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    body.extend(attr(RTA_DST, &octets));
    if scope != 0 {
        body.extend(attr(RTA_OIF, &scope.to_ne_bytes()));
    }
    let mut local = false;
    let socket = Socket::open(NETLINK_ROUTE)?;
    socket.ask(RTM_GETROUTE, 0, &body, |kind, route| {
        local = kind == RTM_NEWROUTE && route.get(RTM_TYPE) == Some(&RTN_LOCAL);
    })?;
    Ok(local)
}

/// One attribute, padded.
fn attr(kind: u16, value: &[u8]) -> Vec<u8> {
    let mut bytes = ((4 + value.len()) as u16).to_ne_bytes().to_vec();
    bytes.extend(kind.to_ne_bytes());
    bytes.extend(value);
    bytes.resize(align(bytes.len()), 0);
    bytes
}

struct Socket(OwnedFd);

impl Socket {
    fn open(protocol: i32) -> io::Result<Self> {
        // SAFETY: no pointers.
        let fd = unsafe {
            libc::socket(libc::AF_NETLINK, libc::SOCK_RAW | libc::SOCK_CLOEXEC, protocol)
        };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: a new descriptor that nobody else owns.
        let socket = Self(unsafe { OwnedFd::from_raw_fd(fd) });
        // The kernel answers at once; the limit is for a kernel that does not.
        let limit = libc::timeval { tv_sec: 2, tv_usec: 0 };
        // SAFETY: a timeval that is readable during the call.
        let rc = unsafe {
            libc::setsockopt(
                fd,
                libc::SOL_SOCKET,
                libc::SO_RCVTIMEO,
                (&raw const limit).cast(),
                size_of_val(&limit) as libc::socklen_t,
            )
        };
        if rc == 0 { Ok(socket) } else { Err(io::Error::last_os_error()) }
    }

    /// Sends one request and hands out the kind and the body of every answer.
    fn ask(
        &self,
        command: u16,
        flags: u16,
        body: &[u8],
        mut answer: impl FnMut(u16, &[u8]),
    ) -> io::Result<()> {
        let request = request(command, flags, body);
        // SAFETY: readable for its length.
        let sent =
            unsafe { libc::send(self.0.as_raw_fd(), request.as_ptr().cast(), request.len(), 0) };
        if sent < 0 {
            return Err(io::Error::last_os_error());
        }
        let mut buffer = vec![0_u8; 64 << 10];
        loop {
            // SAFETY: writable for its length.
            let got = unsafe {
                libc::recv(self.0.as_raw_fd(), buffer.as_mut_ptr().cast(), buffer.len(), 0)
            };
            let got = match usize::try_from(got) {
                // The kernel closes no such socket, but nothing must make this loop endless.
                Ok(0) => return Err(malformed()),
                Ok(got) => got,
                Err(_) => match io::Error::last_os_error() {
                    error if error.kind() == io::ErrorKind::Interrupted => continue,
                    error => return Err(error),
                },
            };
            let more = messages(&buffer[..got.min(buffer.len())], &mut answer)?;
            // A single answer is not followed by DONE.
            if !more || flags & NLM_F_DUMP == 0 {
                return Ok(());
            }
        }
    }
}

fn request(command: u16, flags: u16, body: &[u8]) -> Vec<u8> {
    let len = HEADER + body.len();
    let mut bytes = Vec::with_capacity(len);
    bytes.extend((len as u32).to_ne_bytes());
    bytes.extend(command.to_ne_bytes());
    bytes.extend((NLM_F_REQUEST | flags).to_ne_bytes());
    bytes.extend([0; 8]); // sequence, port
    bytes.extend(body);
    bytes
}

/// Walks the messages of one datagram; false when the last one has come.
fn messages(mut bytes: &[u8], answer: &mut impl FnMut(u16, &[u8])) -> io::Result<bool> {
    while let (Some(len), Some(kind)) = (u32_at(bytes, 0), u16_at(bytes, 4)) {
        let len = len as usize;
        let Some(body) = bytes.get(HEADER..len) else { return Err(malformed()) };
        match kind {
            NLMSG_DONE => return Ok(false),
            NLMSG_ERROR => {
                let errno = u32_at(body, 0).ok_or_else(malformed)? as i32;
                if errno != 0 {
                    return Err(io::Error::from_raw_os_error(errno.saturating_abs()));
                }
            }
            kind => answer(kind, body),
        }
        bytes = bytes.get(align(len)..).unwrap_or_default();
    }
    Ok(true)
}

struct Attrs<'a>(&'a [u8]);

impl<'a> Attrs<'a> {
    fn get(&self, wanted: u16) -> Option<&'a [u8]> {
        let mut bytes = self.0;
        loop {
            let (len, kind) = (usize::from(u16_at(bytes, 0)?), u16_at(bytes, 2)?);
            let value = bytes.get(4..len)?;
            // The two top bits are flags.
            if kind & 0x3fff == wanted {
                return Some(value);
            }
            bytes = bytes.get(align(len)..)?;
        }
    }

    fn number(&self, wanted: u16) -> Option<u32> {
        u32_at(self.get(wanted)?, 0)
    }

    fn text(&self, wanted: u16) -> Option<String> {
        let bytes = self.get(wanted)?;
        let end = bytes.iter().position(|b| *b == 0).unwrap_or(bytes.len());
        Some(String::from_utf8_lossy(&bytes[..end]).into_owned())
    }
}

fn align(len: usize) -> usize {
    len.next_multiple_of(4)
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    bytes.get(at..at + 2)?.try_into().ok().map(u16::from_ne_bytes)
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..at + 4)?.try_into().ok().map(u32::from_ne_bytes)
}

fn malformed() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "malformed netlink answer")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(kind: u16, body: &[u8]) -> Vec<u8> {
        let mut bytes = ((HEADER + body.len()) as u32).to_ne_bytes().to_vec();
        bytes.extend(kind.to_ne_bytes());
        bytes.extend([0; 10]);
        bytes.extend(body);
        bytes.resize(align(bytes.len()), 0);
        bytes
    }

    #[test]
    fn attributes_are_found_among_others() {
        let body = [attr(9, &[1]), attr(2, b"siw0\0"), attr(1, &7_u32.to_ne_bytes())].concat();
        let mut seen = Vec::new();
        let datagram = [message(CMD_GET, &body), message(NLMSG_DONE, &[0; 4])].concat();
        let more = messages(&datagram, &mut |_, body| {
            let a = Attrs(body);
            seen.push((a.text(ATTR_DEV_NAME), a.number(ATTR_DEV_INDEX), a.number(ATTR_PORT_INDEX)));
        });
        assert!(!more.unwrap());
        assert_eq!(seen, [(Some("siw0".into()), Some(7), None)]);
    }

    #[test]
    fn an_error_is_an_errno() {
        let datagram = message(NLMSG_ERROR, &(-libc::ENODEV).to_ne_bytes());
        let error = messages(&datagram, &mut |_, _| {}).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::ENODEV));
    }

    #[test]
    fn nonsense_is_an_error_or_nothing_and_ends() {
        for len in 0_u32..40 {
            for fill in [0, 1, 3, 4, 255_u8] {
                let mut bytes = vec![fill; 33];
                bytes[..4].copy_from_slice(&len.to_ne_bytes());
                let _ = messages(&bytes, &mut |_, body| {
                    let a = Attrs(body);
                    let _ = (a.text(1), a.number(2));
                });
            }
        }
    }

    #[test]
    fn the_route_tells_what_is_this_host() {
        for (text, local) in
            [("127.0.0.1", true), ("127.9.9.9", true), ("::1", true), ("192.0.2.77", false)]
        {
            // Without a route to it the kernel answers with an error, which is no yes.
            let said = is_routed_here(text.parse().unwrap(), 0).unwrap_or(false);
            assert_eq!(said, local, "{text}");
        }
    }
}
