//! The rules that can be broken on purpose.

macro_rules! sabotages {
    ($($(#[$doc:meta])* $name:ident = $text:literal, $row:literal $(, $switch:ident)?;)*) => {
        /// A rule to break.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, clap::ValueEnum)]
        pub enum Sabotage {
            $($(#[$doc])* #[value(name = $text)] $name,)*
        }

        impl Sabotage {
            /// All of them.
            pub const ALL: &[Sabotage] = &[$(Sabotage::$name),*];

            /// As on the command line.
            pub fn name(self) -> &'static str {
                match self { $(Sabotage::$name => $text),* }
            }

            /// Its row in the plan's table of mutants.
            pub fn row(self) -> &'static str {
                match self { $(Sabotage::$name => $row),* }
            }

            /// As the switch of the engine; none where it is a setting.
            pub fn switch(self) -> btl_core::config::Sabotage {
                let mut it = btl_core::config::Sabotage::default();
                match self { $(Sabotage::$name => { $(it.$switch = true;)? })* }
                it
            }
        }
    };
}

sabotages! {
    /// The acceptor does not wait for the Hello.
    AcceptorSends = "acceptor-sends", "M1", acceptor_sends_at_once;
    /// Only lane 0 says Hello.
    HelloLane0 = "hello-lane0", "M2", hello_on_lane_0_only;
    /// Credits of all lanes are told on lane 0.
    CreditsLane0 = "credits-lane0", "M3", credits_on_lane_0;
    /// Receives are told before they are posted.
    AdvertiseFirst = "advertise-first", "M4", advertise_before_post;
    /// The private data of connect and accept counts as credits, and receives are posted late.
    PrivateCredits = "private-credits", "M5", credits_in_private_data;
    /// A message that had to wait costs nothing.
    CreditTwice = "credit-twice", "M6", credit_twice;
    /// A message that had to wait costs two credits.
    CreditLost = "credit-lost", "M6", credit_lost;
    /// Any message may use the last credit.
    NoReserve = "no-reserve", "M7", no_reserve;
    /// What waits is not sent when credits arrive.
    DeafToGrants = "deaf-to-grants", "M8", deaf_to_grants;
    /// What waits is not sent when Hello arrives.
    DeafToHello = "deaf-to-hello", "M8", deaf_to_hello;
    /// Completions of dead lanes count for their successors.
    OldGenerations = "old-generations", "M9", old_generations;
    /// Both of two crossing connects are accepted.
    BothKeep = "both-keep", "M10", both_keep;
    /// Both of two crossing connects are rejected.
    BothDrop = "both-drop", "M10", both_drop;
    /// One more message than the send queue holds.
    SendQueueOff = "send-queue-off", "M11", send_queue_off_by_one;
    /// Flushed sends do not give their buffers back.
    FlushLost = "flush-lost", "M12", flush_lost;
    /// No grant is too large.
    CreditsUnchecked = "credits-unchecked", "M13", credits_unchecked;
    /// The length in a header is believed.
    LengthUnchecked = "length-unchecked", "M14", length_unchecked;
    /// Receives are told on delivery, not on release.
    ReleaseEarly = "release-early", "M15", release_early;
    /// Puts travel on the last lane, beside the messages that tell of them.
    PutsAside = "puts-aside", "M16", puts_on_last_lane;
    /// The credit route FirstLane, forced. A setting: where receives can be used at once nothing comes of it.
    FirstLane = "first-lane", "M17";
    /// What the peer has delivered and not acknowledged is sent again.
    ForgetDelivered = "forget-delivered", "M18", forget_delivered;
    /// Sends are over when the device is done with them.
    AckedTooEarly = "acked-too-early", "M19", acked_too_early;
    /// Nothing is sent again.
    ResendNothing = "resend-nothing", "M20", resend_nothing;
    /// Puts are made again though the peer was told of them.
    RepeatPuts = "repeat-puts", "M21", repeat_puts;
    /// Nobody acknowledges what was not followed by more traffic.
    NoTailAcks = "no-tail-acks", "M22", no_tail_acks;
}

impl Sabotage {
    /// Whether it shows only where lanes are made anew.
    pub fn is_about_recovery(self) -> bool {
        use Sabotage::*;
        matches!(self, ForgetDelivered | AckedTooEarly | ResendNothing | RepeatPuts | NoTailAcks)
    }

    /// Whether it is about one-sided operations.
    pub fn has_rma(self) -> bool {
        matches!(self, Sabotage::PutsAside | Sabotage::RepeatPuts)
    }
}
