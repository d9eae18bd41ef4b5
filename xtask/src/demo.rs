//! Stub.
#[derive(clap::Args)]
pub(crate) struct Args {}
pub(crate) fn run(_: &Args) -> anyhow::Result<std::process::ExitCode> {
    anyhow::bail!("not there yet")
}
