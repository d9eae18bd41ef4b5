//! One peer.
