//! The list of MCA parameters: names, types, defaults, ranges and help texts.
//!
//! A name that openib has means what it means there; `PARAMETERS.md` maps all of openib's. The help text of a number
//! names its range, which a test checks.

/// A numeric parameter.
pub(crate) struct Number {
    /// Name without the prefix `btl_verbs_`, ending in NUL for C.
    pub(crate) name: &'static str,
    /// What `ompi_info` prints, ending in NUL for C.
    pub(crate) help: &'static str,
    /// Value when the user says nothing.
    pub(crate) default: i32,
    /// Smallest value allowed.
    pub(crate) min: i32,
    /// Largest value allowed.
    pub(crate) max: i32,
    /// `ompi_info --level`, 1 to 9.
    pub(crate) level: u32,
}

/// A parameter that is yes or no.
pub(crate) struct Switch {
    /// As of a number.
    pub(crate) name: &'static str,
    /// As of a number.
    pub(crate) help: &'static str,
    /// Value when the user says nothing.
    pub(crate) default: bool,
    /// As of a number.
    pub(crate) level: u32,
}

/// A text parameter.
pub(crate) struct Text {
    /// As of a number.
    pub(crate) name: &'static str,
    /// As of a number.
    pub(crate) help: &'static str,
    /// Value when the user says nothing, ending in NUL for C.
    pub(crate) default: &'static str,
    /// As of a number.
    pub(crate) level: u32,
}

/// Indices into [`NUMBERS`].
#[derive(Clone, Copy)]
#[repr(usize)]
pub(crate) enum N {
    /// Number of modules at most.
    MaxBtls,
    /// Sends under way per lane.
    SendDepth,
    /// Send buffers per lane.
    FreeListMax,
    /// Completions of a queue.
    CqSize,
    /// Longest inline send.
    MaxInlineData,
    /// Reads outstanding towards a peer.
    QpOusRdAtom,
    /// Retransmissions.
    RetryCount,
    /// Retransmissions to a receiver that is not ready.
    RnrRetry,
    /// The pause before such a one.
    MinRnrTimer,
    /// How long an acknowledgement may take.
    Timeout,
    /// Where to listen.
    ConnectPort,
    /// Time for one attempt to connect.
    ConnectTimeout,
    /// Time for all attempts.
    GiveUpTimeout,
    /// Time for the first message.
    FirstTimeout,
    /// Time for closing.
    CloseTimeout,
    /// How much is told.
    Verbose,
    /// Whether a summary is printed.
    Report,
}

/// Indices into [`SWITCHES`].
#[derive(Clone, Copy)]
#[repr(usize)]
pub(crate) enum B {
    /// A device in no file is worth a line.
    WarnNoDeviceParams,
    /// A name in a list that fits nothing is worth a line.
    WarnNonexistentIf,
    /// Peers in other networks are reached over routers.
    AllowDifferentSubnets,
    /// Credits go where a device may lose messages for it.
    CreditRouteForce,
}

/// Indices into [`TEXTS`].
#[derive(Clone, Copy)]
#[repr(usize)]
pub(crate) enum T {
    /// Ports to use.
    IfInclude,
    /// Ports not to use.
    IfExclude,
    /// Networks to use.
    IpaddrInclude,
    /// Networks not to use.
    IpaddrExclude,
    /// Transports to use.
    DeviceType,
    /// Ini files.
    DeviceParamFiles,
    /// Lanes.
    ReceiveQueues,
    /// The lane of credits.
    CreditRoute,
    /// Which devices can connect to themselves.
    Loopback,
}

/// The lanes of every peer unless something else is said: [`btl_core::Config::new`]'s.
pub(crate) const QUEUES: &str = "P,12288,16:P,65536,4\0";

/// All numeric parameters, in the order of [`N`].
pub(crate) const NUMBERS: [Number; 17] = [
    Number {
        name: "max_btls\0",
        help: "Device ports to use at most (-1: all)\0",
        default: -1,
        min: -1,
        max: 255,
        level: 5,
    },
    Number {
        name: "send_depth\0",
        help: "Sends that can be under way on a lane to a peer (0..4096; 0: as many as it has receive buffers, at \
               least 8)\0",
        default: 0,
        min: 0,
        max: 4096,
        level: 7,
    },
    Number {
        name: "free_list_max\0",
        help: "Send buffers of each lane, shared by all peers; registered at the start (0..65536; 0: 6 MiB of them, 16 \
               to 512)\0",
        default: 0,
        min: 0,
        max: 65_536,
        level: 7,
    },
    Number {
        name: "cq_size\0",
        help: "Completions of one completion queue at most; more queues are made as peers come (256..4194304)\0",
        default: 16_384,
        min: 256,
        max: 4_194_304,
        level: 7,
    },
    Number {
        name: "max_inline_data\0",
        help: "Bytes up to which a send travels with its request, where the device can (-1..1024; -1: what the \
               device's section of device_param_files says, else 64)\0",
        default: -1,
        min: -1,
        max: 1024,
        level: 7,
    },
    Number {
        name: "ib_qp_ous_rd_atom\0",
        help: "RDMA reads and atomics outstanding towards each peer, and allowed to it, at most; cut to what both \
               devices can (1..255)\0",
        default: 16,
        min: 1,
        max: 255,
        level: 7,
    },
    Number {
        name: "ib_retry_count\0",
        help: "How often a send that is not acknowledged is repeated before the peer has failed; not on iWARP, where \
               TCP decides (0..7)\0",
        default: 7,
        min: 0,
        max: 7,
        level: 9,
    },
    Number {
        name: "ib_rnr_retry\0",
        help: "How often the peer's send is repeated when no receive is posted; 7: for ever. With credits that does not \
               happen; not on iWARP (0..7)\0",
        default: 7,
        min: 0,
        max: 7,
        level: 9,
    },
    Number {
        name: "ib_min_rnr_timer\0",
        help: "How long the peer waits after a send for which no receive was posted, as InfiniBand encodes it; not on \
               iWARP (0..31; 12: 0.64 ms)\0",
        default: 12,
        min: 0,
        max: 31,
        level: 9,
    },
    Number {
        name: "ib_timeout\0",
        help: "How long an acknowledgement may take before a send is repeated: 4.096 us times two to the power of this; \
               not on iWARP (0..31; 0: as the connection manager finds)\0",
        default: 0,
        min: 0,
        max: 31,
        level: 9,
    },
    Number {
        name: "connect_rdmacm_port\0",
        help: "Port number to listen on, for firewalls; the next ones are tried where it is taken, as by another \
               process of this node; 0: any (0..65535)\0",
        default: 0,
        min: 0,
        max: 65_535,
        level: 7,
    },
    Number {
        name: "connect_timeout\0",
        help: "Milliseconds one attempt to connect may take before the next address is tried (100..600000)\0",
        default: 60_000,
        min: 100,
        max: 600_000,
        level: 5,
    },
    Number {
        name: "give_up_timeout\0",
        help: "Milliseconds after which a peer that could not be connected has failed (100..86400000)\0",
        default: 300_000,
        min: 100,
        max: 86_400_000,
        level: 5,
    },
    Number {
        name: "first_timeout\0",
        help: "Milliseconds a peer that connected without being announced may take for its first message \
               (100..600000)\0",
        default: 30_000,
        min: 100,
        max: 600_000,
        level: 7,
    },
    Number {
        name: "close_timeout\0",
        help: "Milliseconds MPI_Finalize waits at most for connections to close in order (1..60000)\0",
        default: 5_000,
        min: 1,
        max: 60_000,
        level: 5,
    },
    Number {
        name: "verbose\0",
        help: "How much the component tells on stderr: 0 errors, 1 why a device or peer is not used, \
               10 life of the component, 20 connections; btl_base_verbose counts too (0..100)\0",
        default: 0,
        min: 0,
        max: 100,
        level: 2,
    },
    Number {
        name: "report\0",
        help: "1: every process prints at MPI_Finalize which device carried its messages, to whom and how (0..1)\0",
        default: 0,
        min: 0,
        max: 1,
        level: 2,
    },
];

/// All switches, in the order of [`B`].
pub(crate) const SWITCHES: [Switch; 4] = [
    Switch {
        name: "warn_no_device_params_found\0",
        help: "Whether a device that no file of device_param_files names is worth a line (it works without)\0",
        default: false,
        level: 9,
    },
    Switch {
        name: "warn_nonexistent_if\0",
        help: "Whether a device or port in if_include or if_exclude that does not exist is worth a line\0",
        default: true,
        level: 9,
    },
    Switch {
        name: "allow_different_subnets\0",
        help: "Whether a peer that shares no network with a port is reached over routers all the same\0",
        default: false,
        level: 5,
    },
    Switch {
        name: "credit_route_force\0",
        help: "Whether credit_route = first is used on iWARP and on devices that work off receives behind sends, where \
               it can end connections\0",
        default: false,
        level: 9,
    },
];

/// All text parameters, in the order of [`T`].
pub(crate) const TEXTS: [Text; 9] = [
    Text {
        name: "if_include\0",
        help: "Comma-separated devices or device ports to use, e.g. \"siw0,mlx5_0:1\"; empty means all. \
               Excludes if_exclude\0",
        default: "\0",
        level: 1,
    },
    Text {
        name: "if_exclude\0",
        help: "Comma-separated devices or device ports not to use, e.g. \"rxe0,mlx5_0:2\". Excludes if_include\0",
        default: "\0",
        level: 1,
    },
    Text {
        name: "ipaddr_include\0",
        help: "Comma-separated networks whose addresses to use, e.g. \"10.1.0.0/16,fd00::/8\"; empty means all. A port \
               without any of them is not used. Excludes ipaddr_exclude\0",
        default: "\0",
        level: 1,
    },
    Text {
        name: "ipaddr_exclude\0",
        help: "Comma-separated networks whose addresses not to use, e.g. \"172.17.0.0/16\". Excludes ipaddr_include\0",
        default: "\0",
        level: 1,
    },
    Text {
        name: "device_type\0",
        help: "Comma-separated transports to use: all, iwarp (or iw), roce, and ib (or infiniband), which means RoCE \
               too\0",
        default: "all\0",
        level: 3,
    },
    Text {
        name: "device_param_files\0",
        help: "Colon-separated ini files with sections about devices, in the syntax of openib's; what a later one says \
               counts more\0",
        default: "\0",
        level: 3,
    },
    Text {
        name: "receive_queues\0",
        help: "The lanes to every peer, in openib's syntax: colon-separated \"P,SIZE,COUNT\" (bytes of a buffer; \
               receives per peer) from small to large, e.g. \"P,12288,16:P,65536,4\". Goes before what \
               device_param_files say\0",
        default: QUEUES,
        level: 4,
    },
    Text {
        name: "credit_route\0",
        help: "The lane on which credits for a lane travel: own, or first as openib had it; empty: what the device's \
               section of device_param_files says, else own\0",
        default: "\0",
        level: 4,
    },
    Text {
        name: "loopback\0",
        help: "Comma-separated answers to whether a device can connect to its own address, e.g. \"siw0=no,mlx5_0=yes\"; \
               goes before device_param_files, the table of devices and trials\0",
        default: "\0",
        level: 4,
    },
];
