//! Stub.
pub(crate) fn run() -> anyhow::Result<std::process::ExitCode> {
    anyhow::bail!("not there yet")
}
