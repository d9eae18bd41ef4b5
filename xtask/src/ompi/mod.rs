//! The release series of Open MPI that the component is built for, and what differs between them
//! from outside.

mod root;

use std::path::Path;

use clap::ValueEnum;

pub(crate) use root::Root;

/// A release series.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum Series {
    /// Debian 12
    #[value(name = "4.1")]
    V41,
    /// Debian 13
    #[value(name = "5.0")]
    V50,
    /// Debian sid
    #[value(name = "6.0")]
    V60,
}

impl Series {
    /// All of them, oldest first.
    pub(crate) const ALL: [Self; 3] = [Self::V41, Self::V50, Self::V60];

    /// `5.0`.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::V41 => "4.1",
            Self::V50 => "5.0",
            Self::V60 => "6.0",
        }
    }

    /// The series of a version, `5.0.7` or `6.0.0rc2`.
    pub(crate) fn of(version: &str) -> Option<Self> {
        let begins = |series: &Self| {
            version.strip_prefix(series.name()).is_some_and(|rest| rest.starts_with('.'))
        };
        Self::ALL.into_iter().find(begins)
    }

    /// For messages: all that there are.
    pub(crate) fn names() -> String {
        Self::ALL.map(Self::name).join(", ")
    }

    /// The feature of btl-ompi that builds for it.
    pub(crate) fn feature(self) -> Option<&'static str> {
        match self {
            Self::V41 => None,
            Self::V50 => Some("ompi50"),
            Self::V60 => Some("ompi60"),
        }
    }

    /// What the component's file says of itself.
    pub(crate) fn mark(self) -> String {
        format!("built for Open MPI {}.x", self.name())
    }

    /// Debian's suite with this series, if that is not the one that is supported as a machine to
    /// work on.
    fn suite(self) -> Option<&'static str> {
        match self {
            Self::V41 => None,
            Self::V50 => Some("trixie"),
            Self::V60 => Some("sid"),
        }
    }

    /// Whether what `mpirun` starts looks for components only where it is told: the launcher of 5.0
    /// sets `mca_base_component_path` to the folder of PMIx's own.
    pub(crate) fn launcher_hides_folders(self) -> bool {
        self == Self::V50
    }

    /// The shared-memory BTL.
    pub(crate) fn shared_memory(self) -> &'static str {
        match self {
            Self::V41 => "vader",
            Self::V50 | Self::V60 => "sm",
        }
    }

    /// The value of `mca_base_component_path` that adds `dir`. It comes first, so that the component
    /// in it is taken before an installed one; and a folder that cannot be opened ends Open MPI's
    /// search, which the user's own (it may not exist) would do to what stands behind it. Since 5.0
    /// PMIx reads the parameter too, and knows no words for folders; Open MPI's own components are in
    /// its libraries there.
    pub(crate) fn search_path(self, dir: &Path) -> String {
        match self {
            Self::V41 => format!("{}:SYSTEM_DEFAULT:USER_DEFAULT", dir.display()),
            Self::V50 | Self::V60 => dir.display().to_string(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_belongs_to_its_series_only() {
        assert_eq!(Series::of("4.1.4"), Some(Series::V41));
        assert_eq!(Series::of("5.0.7"), Some(Series::V50));
        assert_eq!(Series::of("6.0.0rc2"), Some(Series::V60));
        for other in ["4.10.1", "4.0.7", "5.1.0", "6.1.0", "", "5.0"] {
            assert_eq!(Series::of(other), None, "{other}");
        }
    }
}
