//! What a random program consists of.

use proptest::prelude::*;

/// One step. Numbers choose among what exists at that moment, by remainder; a step that finds nothing does nothing.
#[derive(Debug, Clone)]
pub(crate) enum Step {
    AllocPd,
    /// Gives up a handle of a protection domain.
    DropPd(u8),
    CreateCq {
        depth: u16,
        with_channel: bool,
    },
    DropCq(u8),
    /// Puts a queue into a poll group.
    Group(u8),
    DropGroup(u8),
    CreateQp {
        pd: u8,
        send_cq: u8,
        recv_cq: u8,
        send_depth: u8,
        recv_depth: u8,
    },
    Connect(u8, u8),
    Adopt {
        group: u8,
        qp: u8,
    },
    Release(u8),
    Remove(u8),
    Close(u8),
    DropQp(u8),
    ForgetQp(u8),
    ToError(u8),
    /// The peer, the network or the device fails it.
    Break(u8),
    Slots {
        pd: u8,
        size: u16,
        count: u8,
    },
    DropSlot(u8),
    ForgetSlot(u8),
    PostRecv {
        qp: u8,
        slot: u8,
    },
    PostSend {
        qp: u8,
        slot: u8,
        len: u16,
        flags: u8,
    },
    PostInline {
        qp: u8,
        len: u8,
        flags: u8,
    },
    PostEmptyWrite(u8),
    /// Slots that peers may use.
    RemoteSlots {
        pd: u8,
        count: u8,
    },
    /// A request of another kind, with other memory.
    PostOther {
        qp: u8,
        what: u8,
        slot: u8,
        flags: u8,
    },
    Progress,
    Poll {
        cq: u8,
        at_most: u8,
    },
    /// Hands a completion to a queue pair, its own or another.
    Redeem {
        wc: u8,
        qp: u8,
    },
    /// Hands every completion to the queue pair it belongs to.
    RedeemAll,
    DropWc(u8),
    PollGroup {
        group: u8,
        times: u8,
    },
    Reclaim(u8),
    /// Arms a queue and looks whether its channel has something.
    Notify(u8),
    Inject(Fault),
    /// Takes all faults away.
    Heal,
    /// What a real one also does: the device says the last thing again, or what nobody asked for.
    Repeat(u8),
    Garbage(u64),
    AsyncEvent(u8),
    ReadAsync,
    /// Does the step on another thread.
    Elsewhere(Box<Step>),
    /// Panics with these things owned by what unwinds.
    PanicWith {
        qp: Option<u8>,
        cq: Option<u8>,
        group: Option<u8>,
        slots: u8,
    },
}

/// Faults of the fake provider that a program may switch on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    PostSend,
    PostRecv,
    DestroyQp,
    Dereg,
    DestroyCq,
    DeallocPd,
    CreateQp,
    RegMr,
    Poll,
    FlushOnDestroy,
    Duplicate,
    Status,
    Length,
    Gone,
}

const FAULTS: [Fault; 14] = [
    Fault::PostSend,
    Fault::PostRecv,
    Fault::DestroyQp,
    Fault::Dereg,
    Fault::DestroyCq,
    Fault::DeallocPd,
    Fault::CreateQp,
    Fault::RegMr,
    Fault::Poll,
    Fault::FlushOnDestroy,
    Fault::Duplicate,
    Fault::Status,
    Fault::Length,
    Fault::Gone,
];

/// Small numbers, so that steps meet.
fn few() -> std::ops::Range<u8> {
    0..8
}

fn making() -> impl Strategy<Value = Step> {
    prop_oneof![
        1 => Just(Step::AllocPd),
        2 => (1..80u16, any::<bool>()).prop_map(|(depth, with_channel)| Step::CreateCq { depth, with_channel }),
        1 => few().prop_map(Step::Group),
        6 => (few(), few(), few(), 1..5u8, 1..5u8).prop_map(|(pd, send_cq, recv_cq, send_depth, recv_depth)| {
            Step::CreateQp { pd, send_cq, recv_cq, send_depth, recv_depth }
        }),
        6 => (few(), few()).prop_map(|(a, b)| Step::Connect(a, b)),
        4 => (few(), few()).prop_map(|(group, qp)| Step::Adopt { group, qp }),
        3 => (few(), 1..300u16, 1..6u8).prop_map(|(pd, size, count)| Step::Slots { pd, size, count }),
    ]
}

fn talking() -> impl Strategy<Value = Step> {
    prop_oneof![
        10 => (few(), few()).prop_map(|(qp, slot)| Step::PostRecv { qp, slot }),
        8 => (few(), few(), 0..300u16, any::<u8>())
            .prop_map(|(qp, slot, len, flags)| Step::PostSend { qp, slot, len, flags }),
        4 => (few(), 0..70u8, any::<u8>()).prop_map(|(qp, len, flags)| Step::PostInline { qp, len, flags }),
        2 => few().prop_map(Step::PostEmptyWrite),
        1 => (few(), 1..4u8).prop_map(|(pd, count)| Step::RemoteSlots { pd, count }),
        6 => (few(), any::<u8>(), few(), any::<u8>())
            .prop_map(|(qp, what, slot, flags)| Step::PostOther { qp, what, slot, flags }),
        8 => Just(Step::Progress),
        6 => (few(), 0..9u8).prop_map(|(cq, at_most)| Step::Poll { cq, at_most }),
        6 => (any::<u8>(), few()).prop_map(|(wc, qp)| Step::Redeem { wc, qp }),
        6 => Just(Step::RedeemAll),
        6 => (few(), 1..20u8).prop_map(|(group, times)| Step::PollGroup { group, times }),
        3 => few().prop_map(Step::Reclaim),
        1 => few().prop_map(Step::Notify),
    ]
}

fn forgetting() -> impl Strategy<Value = Step> {
    prop_oneof![
        1 => few().prop_map(Step::ForgetQp),
        1 => few().prop_map(Step::ForgetSlot),
    ]
}

fn ending() -> impl Strategy<Value = Step> {
    prop_oneof![
        1 => few().prop_map(Step::DropPd),
        1 => few().prop_map(Step::DropCq),
        1 => few().prop_map(Step::DropGroup),
        2 => few().prop_map(Step::Release),
        2 => few().prop_map(Step::Remove),
        3 => few().prop_map(Step::Close),
        2 => few().prop_map(Step::DropQp),
        2 => few().prop_map(Step::ToError),
        2 => few().prop_map(Step::Break),
        2 => few().prop_map(Step::DropSlot),
        1 => any::<u8>().prop_map(Step::DropWc),
        2 => (
            proptest::option::of(few()),
            proptest::option::weighted(0.2, few()),
            proptest::option::weighted(0.2, few()),
            0..4u8
        )
            .prop_map(|(qp, cq, group, slots)| Step::PanicWith { qp, cq, group, slots }),
    ]
}

fn trouble() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => proptest::sample::select(&FAULTS[..]).prop_map(Step::Inject),
        12 => Just(Step::Heal),
        1 => (1..4u8).prop_map(Step::Repeat),
        1 => any::<u64>().prop_map(Step::Garbage),
        1 => any::<u8>().prop_map(Step::AsyncEvent),
        1 => Just(Step::ReadAsync),
    ]
}

/// What may happen in a program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mood {
    /// Nothing that leaks.
    Clean,
    /// Things are forgotten.
    Forgetful,
    /// Things are forgotten, and the device has faults.
    Faulty,
}

fn step(mood: Mood) -> impl Strategy<Value = Step> {
    let plain = prop_oneof![6 => making(), 50 => talking(), 2 => ending()];
    let any = match mood {
        Mood::Clean => plain.boxed(),
        Mood::Forgetful => prop_oneof![60 => plain, 1 => forgetting()].boxed(),
        Mood::Faulty => prop_oneof![90 => plain, 1 => forgetting(), 4 => trouble()].boxed(),
    };
    (any, 0..12u8).prop_map(|(step, thread)| match thread {
        0 => Step::Elsewhere(Box::new(step)),
        _ => step,
    })
}

/// A program of up to `longest` steps. It begins with what most steps need, so that few are without effect.
pub(crate) fn program(longest: usize, mood: Mood) -> impl Strategy<Value = Vec<Step>> {
    let start = vec![
        Step::AllocPd,
        Step::CreateCq { depth: 64, with_channel: true },
        Step::CreateQp { pd: 0, send_cq: 0, recv_cq: 0, send_depth: 4, recv_depth: 4 },
        Step::CreateQp { pd: 0, send_cq: 0, recv_cq: 0, send_depth: 4, recv_depth: 4 },
        Step::Slots { pd: 0, size: 200, count: 8 },
        Step::Connect(0, 1),
        Step::CreateCq { depth: 64, with_channel: false },
        Step::Group(1),
        Step::CreateQp { pd: 0, send_cq: 1, recv_cq: 1, send_depth: 4, recv_depth: 4 },
        Step::CreateQp { pd: 0, send_cq: 1, recv_cq: 1, send_depth: 4, recv_depth: 4 },
        Step::Connect(0, 1),
        Step::Adopt { group: 0, qp: 3 },
        Step::Adopt { group: 0, qp: 2 },
    ];
    proptest::collection::vec(step(mood), 1..longest).prop_map(move |rest| {
        let mut all = start.clone();
        all.extend(rest);
        all
    })
}
