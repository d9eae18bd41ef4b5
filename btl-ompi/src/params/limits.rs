//! The limits of a module: what Open MPI's own parameters ask for, fitted to what the lanes carry.

use super::{ParamError, within};

/// The limits that Open MPI's own parameters set on a module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Limits {
    /// `btl_verbs_eager_limit`.
    pub(crate) eager: usize,
    /// `btl_verbs_rndv_eager_limit`.
    pub(crate) rndv_eager: usize,
    /// `btl_verbs_max_send_size`.
    pub(crate) max_send: usize,
}

/// Smallest eager limit: ob1 refuses to start when its largest header does not fit.
const MIN_EAGER: usize = 256;

impl Limits {
    /// The most that lane 0 must carry.
    pub(crate) fn matched(&self) -> usize {
        self.eager.max(self.rndv_eager)
    }

    /// Fits the limits to what one frame of the first and of the last lane carries. Matching traffic must stay on lane
    /// 0, whose frames arrive in order, so the eager limits cannot exceed its payload. A limit that still has its
    /// default is lowered.
    ///
    /// # Errors
    /// [`ParamError::Range`] for the first limit the user set that does not fit.
    pub(crate) fn fit(
        self,
        default: Self,
        lane0_payload: usize,
        last_payload: usize,
    ) -> Result<Self, ParamError> {
        let lane0 = " (a frame of lane 0 carries so much: see btl_verbs_receive_queues)";
        let last = " (a frame of the last lane carries so much: see btl_verbs_receive_queues)";
        let (eager, rndv) = (self.eager, self.rndv_eager);
        Ok(Self {
            eager: fit("eager_limit", eager, default.eager, lane0_payload, lane0)?,
            rndv_eager: fit("rndv_eager_limit", rndv, default.rndv_eager, lane0_payload, lane0)?,
            max_send: fit("max_send_size", self.max_send, default.max_send, last_payload, last)?,
        })
    }
}

fn fit(
    name: &'static str,
    value: usize,
    default: usize,
    payload: usize,
    why: &'static str,
) -> Result<usize, ParamError> {
    let value = if value == default { value.min(payload) } else { value };
    let wide = |x: usize| i64::try_from(x).unwrap_or(i64::MAX);
    within(name, wide(value), wide(MIN_EAGER), wide(payload), why)?;
    Ok(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_fit_the_lanes() {
        let default = Limits { eager: 12280, rndv_eager: 12280, max_send: 65528 };
        let fit = |limits: Limits, lane0, last| limits.fit(default, lane0, last);
        assert_eq!(fit(default, 12280, 65528), Ok(default));
        let lowered = Limits { eager: 4088, rndv_eager: 4088, max_send: 8184 };
        assert_eq!(fit(default, 4088, 8184), Ok(lowered), "defaults follow smaller lanes");
        let why = fit(Limits { eager: 12281, ..default }, 12280, 65528).expect_err("does not fit");
        assert_eq!(
            why.to_string(),
            "btl_verbs_eager_limit = 12281 is out of range: 256..12280 is allowed \
             (a frame of lane 0 carries so much: see btl_verbs_receive_queues)"
        );
        assert!(fit(Limits { max_send: 65529, ..default }, 12280, 65528).is_err());
        assert!(fit(Limits { rndv_eager: 255, ..default }, 12280, 65528).is_err());
        assert!(fit(Limits { rndv_eager: 256, ..default }, 12280, 65528).is_ok());
        assert_eq!(Limits { rndv_eager: 300, ..default }.matched(), 12280);
    }
}
