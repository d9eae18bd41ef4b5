//! A plain TCP socket as the peer: soft iWARP speaks MPA (RFC 5044) over the kernel's TCP, so a script can be a peer that
//! does exactly what the test wants. Needs an iWARP device; run as `tests/device.rs`.
mod common;

use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::thread;
use std::time::Duration;

use common::*;
use rdma_cm::*;
use rdma_safe::Op;

/// For as long a peer that must be silent is listened to.
const SILENCE: Duration = Duration::from_millis(300);

/// An MPA Request or Reply of revision 1, without markers and CRC (RFC 5044 7.1.1).
fn mpa_frame(key: &[u8; 16], private_data: &[u8]) -> Vec<u8> {
    let mut frame = key.to_vec();
    frame.extend([0, 1]); // flags, revision
    frame.extend((private_data.len() as u16).to_be_bytes());
    frame.extend(private_data);
    frame
}

const REQUEST: &[u8; 16] = b"MPA ID Req Frame";
const REPLY: &[u8; 16] = b"MPA ID Rep Frame";

/// Reads an MPA frame; its key, flags and private data.
fn read_mpa(stream: &mut TcpStream) -> (Vec<u8>, u8, Vec<u8>) {
    let mut head = [0; 20];
    stream.read_exact(&mut head).unwrap();
    let mut data = vec![0; usize::from(u16::from_be_bytes([head[18], head[19]]))];
    stream.read_exact(&mut data).unwrap();
    (head[..16].to_vec(), head[16], data)
}

/// An RDMAP Send with message number `msn` in one FPDU (RFC 5040 4.3, RFC 5041 4.3, RFC 5044 4.1), CRC not used.
fn send_fpdu(msn: u32, payload: &[u8]) -> Vec<u8> {
    let mut ulpdu = vec![0x41, 0x43]; // DDP: last, version 1; RDMAP: version 1, Send
    ulpdu.extend([0; 4]); // no STag to invalidate
    ulpdu.extend([0; 4]); // queue 0
    ulpdu.extend(msn.to_be_bytes());
    ulpdu.extend([0; 4]); // offset
    ulpdu.extend(payload);
    let mut fpdu = (ulpdu.len() as u16).to_be_bytes().to_vec();
    fpdu.extend(ulpdu);
    fpdu.resize(fpdu.len().next_multiple_of(4), 0);
    fpdu.extend([0; 4]); // CRC
    fpdu
}

/// Reads one FPDU and returns the payload of its Send.
fn read_send(stream: &mut TcpStream) -> Vec<u8> {
    let mut len = [0; 2];
    stream.read_exact(&mut len).unwrap();
    let len = usize::from(u16::from_be_bytes(len));
    let mut rest = vec![0; (2 + len).next_multiple_of(4) - 2 + 4];
    stream.read_exact(&mut rest).unwrap();
    assert_eq!(rest[1] & 0x0f, 3, "a Send");
    rest[18..len].to_vec()
}

fn assert_silent(stream: &mut TcpStream) {
    stream.set_read_timeout(Some(SILENCE)).unwrap();
    let mut byte = [0];
    match stream.read(&mut byte) {
        Err(error) if error.kind() == ErrorKind::WouldBlock => {}
        other => panic!("the peer was to be silent: {other:?} {byte:x?}"),
    }
    stream.set_read_timeout(Some(LIMIT)).unwrap();
}

fn iwarp() {
    assert!(open().transport().is_iwarp(), "these tests need an iWARP device");
}

#[test]
fn an_acceptor_says_nothing_before_the_initiators_first_message() {
    iwarp();
    let mut channel = EventChannel::new().unwrap();
    let listener = channel.listen(addr(0), 8).unwrap();
    let mut peer = TcpStream::connect(listener.local_addr()).unwrap();
    peer.write_all(&mpa_frame(REQUEST, b"a script")).unwrap();
    let request = next_request(&mut channel, &listener);
    assert_eq!(request.private_data().as_bytes(), b"a script");
    assert!(request.is_iwarp());
    // Nor before the accept.
    assert_silent(&mut peer);
    let mut side = Side::new();
    channel.init_qp(&request, &mut side.qp).unwrap();
    side.post_recv();
    let params = ConnParams::with_private_data(PrivateData::raw(b"an answer").unwrap());
    let accepting = channel.accept(request, &mut side.qp, &params).unwrap();
    let (key, flags, data) = read_mpa(&mut peer);
    assert_eq!((&key[..], flags & 0x20, &data[..]), (&REPLY[..], 0, &b"an answer"[..]));
    let connection = channel.wait_established(accepting, LIMIT).unwrap();
    // Established, and still it is the initiator's turn.
    assert_silent(&mut peer);
    peer.write_all(&send_fpdu(1, b"first")).unwrap();
    side.expect_message(b"first");
    side.send(b"second");
    assert_eq!(read_send(&mut peer), b"second");
    side.expect(Op::Send);
    drop(peer);
    let gone = channel.next_event(Some(LIMIT)).unwrap();
    assert!(matches!(gone, Some(Event::Disconnected { id }) if id == connection.key()), "{gone:?}");
}

#[test]
fn a_rejection_reaches_the_script() {
    iwarp();
    let mut channel = EventChannel::new().unwrap();
    let listener = channel.listen(addr(0), 8).unwrap();
    let mut peer = TcpStream::connect(listener.local_addr()).unwrap();
    peer.write_all(&mpa_frame(REQUEST, b"")).unwrap();
    let request = next_request(&mut channel, &listener);
    channel.reject(request, &PrivateData::framed(b"busy").unwrap()).unwrap();
    let (key, flags, data) = read_mpa(&mut peer);
    assert_eq!((&key[..], flags & 0x20), (&REPLY[..], 0x20), "the reject bit");
    assert_eq!(data, b"\x04busy");
    assert_eq!(peer.read(&mut [0]).unwrap(), 0, "closed");
}

/// Connects to a script that answers the MPA Request with `answer`, and keeps the connection for `LIMIT` or until the
/// initiator has closed it.
fn dial_script(answer: Option<Vec<u8>>, limit: Duration) -> ConnectError {
    let script = TcpListener::bind(addr(0)).unwrap();
    let to = script.local_addr().unwrap();
    let peer = thread::spawn(move || {
        let (mut stream, _) = script.accept().unwrap();
        stream.set_read_timeout(Some(LIMIT)).unwrap();
        let (key, ..) = read_mpa(&mut stream);
        assert_eq!(key, REQUEST);
        if let Some(answer) = answer {
            stream.write_all(&answer).unwrap();
        }
        // Ends when the initiator closes, by whatever means.
        let _ = stream.read(&mut [0]);
    });
    let mut channel = EventChannel::new().unwrap();
    let mut side = Side::new();
    let connector = channel.resolve(None, to, LIMIT).unwrap();
    let result = channel.connect(connector, &mut side.qp, &ConnParams::default(), limit);
    assert_eq!(channel.id_count(), 0);
    drop(channel);
    peer.join().unwrap();
    result.map(drop).expect_err("the script lets no connection come about")
}

#[test]
fn a_peer_that_sends_first_is_named() {
    iwarp();
    for _ in 0..5 {
        let answer = [mpa_frame(REPLY, b""), send_fpdu(1, b"too early")].concat();
        let error = dial_script(Some(answer), LIMIT);
        assert!(matches!(error, ConnectError::Failed { .. }), "{error:?}");
        assert!(error.to_string().contains("RFC 5044 7.1.2"), "{error}");
    }
}

#[test]
fn a_peer_that_answers_garbage_is_an_error() {
    iwarp();
    // The last two bytes are where the length of the private data would be. With any other value than 0 there soft iWARP
    // copies private data that never came and crashes the kernel (seen on Linux 7.2).
    for answer in [
        b"HTTP/1.1 400 Bad R\0\0",
        b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\0\0",
    ] {
        let error = dial_script(Some(answer.to_vec()), LIMIT);
        assert!(
            matches!(error, ConnectError::Failed { .. } | ConnectError::Rejected { .. }),
            "{error:?}"
        );
    }
}

#[test]
fn a_tcp_listener_that_never_answers_takes_no_longer_than_the_limit() {
    iwarp();
    let error = dial_script(None, SILENCE);
    assert!(matches!(error, ConnectError::Timeout { limit: SILENCE }), "{error:?}");
}
