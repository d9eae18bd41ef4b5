//! Stub.
pub(crate) fn run() -> anyhow::Result<std::process::ExitCode> { anyhow::bail!("not there yet") }
pub(crate) fn check() -> anyhow::Result<Vec<(&'static str, Vec<String>)>> { anyhow::bail!("not there yet") }
