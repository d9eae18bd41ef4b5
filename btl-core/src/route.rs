//! On which lane credits travel when they have no message of their lane to ride on: what was asked for, what the device
//! allows, and what both ends of a connection agreed on.
//!
//! [`CreditRoute::OwnLane`] is right on every device: the credit follows the receive on the receive's own queue pair.
//! [`CreditRoute::FirstLane`] is what Open MPI's openib does: the credits of all lanes go on one. A device that works off
//! a posted receive behind the sends of the same queue pair can then take the peer's message before it has the receive,
//! and ends the connection. So it is to be asked for on both sides, and is refused on such devices, and on iWARP, where
//! that is fatal and nobody knows all devices.
use crate::port::PortInfo;

pub use crate::params::CreditRoute;

/// Proof that both ends of a connection asked for [`CreditRoute::FirstLane`]: without it no credit can be put into a
/// message of another lane.
///
/// Made by [`agree`] only:
/// ```compile_fail,E0423
/// # use btl_core::route::FirstLane;
/// fn forge() -> FirstLane { FirstLane(()) }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(test, derive(Hash))]
pub struct FirstLane(());

/// What two ends make of their wishes: if either says own, it is own (`None`).
///
/// ```
/// use btl_core::route::{CreditRoute::{FirstLane, OwnLane}, agree};
/// assert!(agree(FirstLane, FirstLane).is_some());
/// assert!(agree(FirstLane, OwnLane).is_none() && agree(OwnLane, FirstLane).is_none());
/// ```
pub fn agree(ours: CreditRoute, theirs: CreditRoute) -> Option<FirstLane> {
    let both = ours == CreditRoute::FirstLane && theirs == CreditRoute::FirstLane;
    both.then_some(FirstLane(()))
}

/// Why [`CreditRoute::FirstLane`] is refused on a device.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RouteRefused {
    /// The device is known to race.
    #[error(
        "{device} works off receives behind the sends of their queue pair: a credit on another lane overtakes its \
         receive, and the peer's next message ends the connection; use credit_route own, or force it"
    )]
    SharedWorkQueue {
        /// The device.
        device: String,
    },
    /// iWARP has no way to send again what found no receive.
    #[error(
        "{device} is iWARP, where a message that finds no receive ends the connection (RFC 5041 7.1), and some iWARP \
         devices lose that race; use credit_route own, or force it"
    )]
    Iwarp {
        /// The device.
        device: String,
    },
}

impl CreditRoute {
    /// Whether a device can be trusted with this route.
    ///
    /// # Errors
    /// [`RouteRefused`]: why not. [`Config::force_credit_route`](crate::Config) overrules it.
    pub fn check(self, port: &PortInfo) -> Result<(), RouteRefused> {
        let device = || port.device.clone();
        match self {
            CreditRoute::OwnLane => Ok(()),
            CreditRoute::FirstLane if port.shared_work_queue => {
                Err(RouteRefused::SharedWorkQueue { device: device() })
            }
            CreditRoute::FirstLane if port.iwarp => Err(RouteRefused::Iwarp { device: device() }),
            CreditRoute::FirstLane => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_is_allowed_everywhere_and_first_only_where_nothing_is_lost_by_a_race() {
        let port = |shared_work_queue, iwarp| PortInfo {
            device: "x0".to_owned(),
            shared_work_queue,
            iwarp,
            ..PortInfo::default()
        };
        for port in [port(false, false), port(false, true), port(true, true)] {
            assert_eq!(CreditRoute::OwnLane.check(&port), Ok(()));
        }
        assert_eq!(CreditRoute::FirstLane.check(&port(false, false)), Ok(()));
        let refused = CreditRoute::FirstLane.check(&port(false, true)).unwrap_err();
        assert!(refused.to_string().contains("x0 is iWARP"), "{refused}");
        for iwarp in [false, true] {
            let refused = CreditRoute::FirstLane.check(&port(true, iwarp)).unwrap_err();
            assert!(refused.to_string().contains("x0 works off receives behind"), "{refused}");
        }
    }
}
