//! What the device tests and the stress program share: an engine on a device with its clock, a
//! second process to talk to, patterns to check, and a watchdog.
#![allow(dead_code, unreachable_pub)] // each program uses its part
use btl_core::verbs::{self, Published, Selection, VerbsCm, VerbsPort};
use btl_core::{Config, Engine, Event, Nanos, PeerId, ProcName, SECOND, SendBuf};
use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Write};
use std::net::{IpAddr, SocketAddr};
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, TryRecvError, channel};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

pub type Slot = <VerbsPort as btl_core::port::Port>::Slot;
pub type Events = Event<Slot, btl_core::verbs::VerbsMemory>;

pub const JOB: u64 = 0x6a6f_6221;

pub fn name(rank: u32) -> ProcName {
    ProcName { job: 7, rank }
}

/// Fails the program with a message on stderr.
pub fn die(message: &str) -> ! {
    let note = NOTE.lock().unwrap_or_else(PoisonError::into_inner);
    eprintln!("FAIL: {message}\n  a second before: {note}");
    std::process::exit(1)
}

/// The device the tests run on: `RDMA_TEST_DEVICE`, `RDMA_TEST_ADDR`.
pub fn selection() -> Selection {
    let var = |name| std::env::var(name).ok().filter(|value: &String| !value.is_empty());
    let Some(device) = var("RDMA_TEST_DEVICE") else {
        die("RDMA_TEST_DEVICE must name an RDMA device, and RDMA_TEST_ADDR its address");
    };
    let addr = var("RDMA_TEST_ADDR").map(|addr| {
        addr.parse::<IpAddr>().unwrap_or_else(|e| die(&format!("RDMA_TEST_ADDR {addr}: {e}")))
    });
    Selection { device: Some(device), addr, ..Selection::default() }
}

/// An engine on a device.
pub struct Node {
    pub engine: Engine<VerbsPort, VerbsCm>,
    pub published: Published,
    pub rank: u32,
    /// For reports.
    pub peers: Vec<PeerId>,
    start: Instant,
    now: Nanos,
    polls: u32,
    next_note: Nanos,
    kept: VecDeque<Events>,
    idle: verbs::Idle,
}

impl Node {
    pub fn open(selection: &Selection, config: &Config) -> Node {
        let (port, cm, published) =
            verbs::open(selection, config).unwrap_or_else(|e| die(&format!("opening: {e}")));
        let engine = Engine::new(config.clone(), port, cm)
            .unwrap_or_else(|e| die(&format!("making the engine: {e}")));
        Node {
            engine,
            published,
            rank: config.me.rank,
            peers: Vec::new(),
            start: Instant::now(),
            now: 0,
            polls: 0,
            next_note: 0,
            kept: VecDeque::new(),
            idle: verbs::Idle::default(),
        }
    }

    pub fn addr(&self) -> SocketAddr {
        *self.published.addrs.first().unwrap_or_else(|| die("no address was published"))
    }

    /// Waits for a line of the process that started this one. Meanwhile connections come and go,
    /// and messages may come that belong to what the line starts: they are kept.
    pub fn wait_line(&mut self, lines: &Receiver<String>) -> String {
        let mut kept = VecDeque::new();
        let line = loop {
            match lines.try_recv() {
                Ok(line) => break line,
                Err(TryRecvError::Disconnected) => die("the first process is gone"),
                Err(TryRecvError::Empty) => kept.extend(self.poll()),
            }
        };
        self.kept = kept;
        line
    }

    /// One event, or a moment for the others.
    pub fn poll(&mut self) -> Option<Events> {
        if let Some(event) = self.kept.pop_front() {
            return Some(event);
        }
        if self.polls.is_multiple_of(32) {
            self.now = self.start.elapsed().as_nanos() as Nanos;
        }
        self.polls = self.polls.wrapping_add(1);
        let event = self.engine.poll(self.now);
        if event.is_none() {
            self.polls = 0;
            if self.now >= self.next_note {
                self.next_note = self.now + SECOND;
                let report = self.report();
                report.clone_into(&mut NOTE.lock().unwrap_or_else(PoisonError::into_inner));
            }
        }
        // A test waits for the other process most of the time, so it yields in any case.
        self.idle.polled(event.is_some(), true);
        event
    }

    /// Polls until `wanted` makes something of an event.
    pub fn wait<T>(
        &mut self,
        what: &str,
        limit: Duration,
        mut wanted: impl FnMut(&mut Self, Events) -> Option<T>,
    ) -> T {
        let end = Instant::now() + limit;
        loop {
            if let Some(event) = self.poll() {
                if let Some(found) = wanted(self, event) {
                    return found;
                }
            } else if Instant::now() >= end {
                die(&format!("{what}: not within {limit:?}; {}", self.report()));
            }
        }
    }

    /// Polls until `done`, handing every event to `handle`.
    pub fn run(
        &mut self,
        what: &str,
        limit: Duration,
        mut done: impl FnMut(&mut Self) -> bool,
        mut handle: impl FnMut(&mut Self, Events),
    ) {
        let end = Instant::now() + limit;
        loop {
            while let Some(event) = self.poll() {
                handle(self, event);
            }
            if done(self) {
                return;
            }
            if Instant::now() >= end {
                die(&format!("{what}: not within {limit:?}; {}", self.report()));
            }
        }
    }

    pub fn report(&mut self) -> String {
        let stats = self.engine.stats();
        let cm = self.engine.cm_mut().stats();
        let credits: Vec<_> =
            self.peers.iter().map(|p| [0, 1].map(|c| self.engine.credits(*p, c))).collect();
        format!(
            "{stats:?} {cm:?} credits {credits:?} busy {} stale {} parked {}",
            self.engine.busy(),
            self.engine.port().stale_completions(),
            self.engine.port().parked()
        )
    }

    /// A buffer with the pattern of message `seq`.
    pub fn message(&mut self, stream: u8, seq: u64, len: usize) -> Option<SendBuf<Slot>> {
        let mut buf = self.engine.alloc(len).ok()?;
        fill(&mut buf, stream, seq);
        Some(buf)
    }

    pub fn send(&mut self, peer: PeerId, tag: u8, buf: SendBuf<Slot>, cookie: u64) {
        if let Err(e) = self.engine.send(peer, tag, buf, cookie) {
            die(&format!("sending message {cookie}: {e}"));
        }
    }

    /// Closes in an orderly way.
    pub fn close(&mut self) {
        let now = self.start.elapsed().as_nanos() as Nanos;
        self.engine.close(now);
        self.wait("closing", Duration::from_secs(20), |node, event| match event {
            Event::Closed => Some(()),
            Event::Message { buf, .. } => {
                node.engine.release(buf);
                None
            }
            Event::Sent { buf: Some(buf), .. } => {
                node.engine.free(buf);
                None
            }
            Event::PeerFailed { fault, .. } => die(&format!("while closing: {fault}")),
            _ => None,
        });
    }
}

/// Writes sequence number and pattern; shorter than 8 bytes: only the pattern.
pub fn fill(buf: &mut [u8], stream: u8, seq: u64) {
    let mut x = seed(stream, seq);
    for chunk in buf.chunks_mut(8) {
        x = x.wrapping_mul(0x2545_f491_4f6c_dd1d).rotate_left(23) ^ seq;
        let n = chunk.len();
        chunk.copy_from_slice(&x.to_le_bytes()[..n]);
    }
}

/// Whether this is exactly message `seq` of the stream.
pub fn check(buf: &[u8], stream: u8, seq: u64) -> bool {
    let mut x = seed(stream, seq);
    buf.chunks(8).all(|chunk| {
        x = x.wrapping_mul(0x2545_f491_4f6c_dd1d).rotate_left(23) ^ seq;
        chunk == &x.to_le_bytes()[..chunk.len()]
    })
}

fn seed(stream: u8, seq: u64) -> u64 {
    seq.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ (u64::from(stream) << 56) | 1
}

/// A second process, driven by lines of text.
pub struct Other {
    child: Child,
    stdin: Option<ChildStdin>,
    lines: Receiver<String>,
}

impl Other {
    /// `command` speaks lines on stdin and stdout.
    pub fn start(mut command: Command) -> Other {
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap_or_else(|e| die(&format!("starting {command:?}: {e}")));
        let stdout = child.stdout.take().unwrap_or_else(|| die("no stdout"));
        let stdin = child.stdin.take();
        Other { child, stdin, lines: lines_of(stdout) }
    }

    /// This program again, as a peer.
    pub fn peer(args: &[&str]) -> Other {
        let exe = std::env::current_exe().unwrap_or_else(|e| die(&format!("current_exe: {e}")));
        let mut command = Command::new(exe);
        command.arg("--peer").args(args);
        Other::start(command)
    }

    pub fn say(&mut self, line: &str) {
        let stdin = self.stdin.as_mut().unwrap_or_else(|| die("the peer's stdin is closed"));
        if let Err(e) = writeln!(stdin, "{line}").and_then(|()| stdin.flush()) {
            die(&format!("telling the peer {line:?}: {e}; did it die?"));
        }
    }

    /// The next line if it is there.
    pub fn heard(&mut self) -> Option<String> {
        match self.lines.try_recv() {
            Ok(line) => Some(line),
            Err(TryRecvError::Empty) => None,
            Err(TryRecvError::Disconnected) => {
                die(&format!("the peer ended: {:?}", self.child.wait()))
            }
        }
    }

    /// Waits for the next line.
    pub fn hear(&mut self, limit: Duration) -> String {
        match self.lines.recv_timeout(limit) {
            Ok(line) => line,
            Err(RecvTimeoutError::Timeout) => die(&format!("the peer said nothing for {limit:?}")),
            Err(RecvTimeoutError::Disconnected) => {
                die(&format!("the peer ended: {:?}", self.child.wait()))
            }
        }
    }

    /// Waits for "ADDR:PORT", the peer's first line.
    pub fn hear_addr(&mut self) -> SocketAddr {
        let line = self.hear(Duration::from_secs(20));
        line.parse().unwrap_or_else(|e| die(&format!("the peer's address {line:?}: {e}")))
    }

    /// SIGKILL.
    pub fn kill(&mut self) {
        if let Err(e) = self.child.kill() {
            die(&format!("killing the peer: {e}"));
        }
        let _ = self.child.wait();
    }

    /// Waits for its end, which must be a good one. Poll the node meanwhile in another way.
    pub fn finish(mut self, limit: Duration) {
        drop(self.stdin.take());
        let end = Instant::now() + limit;
        loop {
            match self.child.try_wait() {
                Ok(Some(status)) => return check_status(status),
                Ok(None) if Instant::now() < end => std::thread::sleep(Duration::from_millis(5)),
                other => {
                    let _ = self.child.kill();
                    die(&format!("the peer did not end within {limit:?}: {other:?}"));
                }
            }
        }
    }
}

fn check_status(status: ExitStatus) {
    if !status.success() {
        die(&format!("the peer failed: {status}"));
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The lines of a pipe; the channel closes at its end.
pub fn lines_of(pipe: impl std::io::Read + Send + 'static) -> Receiver<String> {
    let (send, receive) = channel();
    std::thread::spawn(move || {
        for line in BufReader::new(pipe).lines().map_while(Result::ok) {
            if send.send(line).is_err() {
                break;
            }
        }
    });
    receive
}

/// What a peer process says to the one that started it.
pub fn tell(line: &str) {
    let mut out = std::io::stdout().lock();
    if writeln!(out, "{line}").and_then(|()| out.flush()).is_err() {
        std::process::exit(2);
    }
}

/// What the node had done a second before, for the watchdog.
static NOTE: Mutex<String> = Mutex::new(String::new());
static PROGRESS: AtomicU64 = AtomicU64::new(0);

/// Something happened.
pub fn progress() {
    PROGRESS.fetch_add(1, Ordering::Relaxed);
}

/// Ends the process when nothing has happened for `limit`.
pub fn watchdog(limit: Duration, who: &'static str) {
    std::thread::spawn(move || {
        let mut last = (PROGRESS.load(Ordering::Relaxed), Instant::now());
        loop {
            std::thread::sleep(Duration::from_millis(500));
            let now = PROGRESS.load(Ordering::Relaxed);
            if now != last.0 {
                last = (now, Instant::now());
            } else if last.1.elapsed() > limit {
                let note = NOTE.lock().unwrap_or_else(PoisonError::into_inner);
                eprintln!("FAIL: {who}: no progress for {limit:?}; {note}");
                std::process::exit(3);
            }
        }
    });
}

/// Receiver-not-ready errors the device has counted; `None` where it does not count them (iWARP
/// has no such thing).
pub fn rnr_errors(device: &str) -> Option<u64> {
    let read = |counter: &str| -> Option<u64> {
        let path = format!("/sys/class/infiniband/{device}/ports/1/hw_counters/{counter}");
        std::fs::read_to_string(path).ok()?.trim().parse().ok()
    };
    Some(read("send_rnr_err")? + read("rcvd_rnr_err")?)
}
