//! The proof that a job's bytes went over the RDMA device and over nothing else.
//!
//! Open MPI was allowed the BTLs self and verbs only. Besides that, what the probe saw must fit:
//! - On both: queue pairs of the job's processes were ready to send on the device.
//! - rxe counts its packets and, from Linux 7 on, its bytes. A packet carries at most the device's
//!   MTU, so there must be at least bytes / MTU of them. (Between processes of one address rxe turns
//!   packets round inside the device: no network device sees them.)
//! - siw has no counters, but each of its queue pairs is a TCP connection of the kernel's own. Between
//!   processes of one address these go through lo, which must have carried at least the job's bytes.
//!   The connections are looked at a few times a second, so what they sent last before they closed is
//!   not seen: at least a tenth of the bytes must be.

use anyhow::{Context, Result, bail};

use crate::guest::Device;

/// Checks what `ring` and the probe printed; returns what was shown, in words.
///
/// # Errors
/// The figures do not show that the bytes went over the device.
pub(super) fn check(device: Device, output: &str) -> Result<String> {
    let bytes = ring_bytes(output).context("the program does not tell how many bytes it sent")?;
    let value = |key: &str| -> Result<u64> {
        let line = output
            .lines()
            .find_map(|line| line.strip_prefix('@')?.strip_prefix(key)?.strip_prefix(' '));
        line.and_then(|value| value.trim().parse().ok())
            .with_context(|| format!("the probe does not tell {key}"))
    };
    let qps = value("qps")?;
    if qps == 0 {
        bail!("no queue pair of the job was seen on the device");
    }
    if device == Device::Rxe {
        let (packets, mtu) = (value("packets")?, rdma_mtu(value("mtu")?));
        let need = bytes.div_ceil(mtu);
        if packets < need {
            bail!("{bytes} bytes need {need} packets of {mtu} bytes, and rxe0 counted {packets}");
        }
        let counted = value("bytes").ok();
        if let Some(counted) = counted.filter(|counted| *counted < bytes) {
            bail!("the ranks sent {bytes} bytes, and rxe0 counted {counted}");
        }
        let counted = counted.map(|counted| format!(" with {counted} bytes")).unwrap_or_default();
        return Ok(format!(
            "proof: {bytes} bytes sent by the ranks; rxe0 counted {packets} packets{counted} ({need} of {mtu} bytes needed); \
             {qps} queue pairs"
        ));
    }
    let (lo, conns, tcp) = (value("lo_bytes")?, value("tcp_conns")?, value("tcp_bytes")?);
    if conns == 0 {
        bail!("no TCP connection of the iWARP device was seen");
    }
    if tcp < bytes / 10 {
        bail!(
            "the ranks sent {bytes} bytes, and only {tcp} were seen on the TCP connections of the iWARP device"
        );
    }
    if lo < bytes {
        bail!("the ranks sent {bytes} bytes, and lo carried {lo}");
    }
    Ok(format!(
        "proof: {bytes} bytes sent by the ranks; {tcp} bytes seen on {conns} TCP connections of siw0; {qps} queue pairs; \
         lo carried {lo} bytes"
    ))
}

/// The number in `bytes=N` of the line `OK ring …`.
fn ring_bytes(output: &str) -> Option<u64> {
    let line = output.lines().find(|line| line.starts_with("OK ring"))?;
    line.split_whitespace().find_map(|word| word.strip_prefix("bytes="))?.parse().ok()
}

/// What a RoCE packet carries on a network device with this MTU: a power of two, beside its headers.
fn rdma_mtu(net: u64) -> u64 {
    /// Ethernet's payload less IPv6, UDP and the largest InfiniBand headers.
    const HEADERS: u64 = 80;
    [4096, 2048, 1024, 512].into_iter().find(|mtu| mtu + HEADERS <= net).unwrap_or(256)
}

#[cfg(test)]
mod tests {
    use super::*;

    const RING: &str = "OK ring ranks=4 messages=8 bytes=10240 verified\n@qps 8\n@mtu 1500\n";

    #[test]
    fn enough_packets_are_a_proof_and_too_few_are_not() {
        assert!(check(Device::Rxe, &format!("{RING}@packets 10\n")).is_ok());
        assert!(check(Device::Rxe, &format!("{RING}@packets 9\n")).is_err());
        assert!(
            check(Device::Rxe, &format!("{RING}@packets 10\n").replace("@qps 8", "@qps 0"))
                .is_err()
        );
    }

    #[test]
    fn bytes_that_went_elsewhere_are_no_proof() {
        let tcp = "@tcp_conns 4\n@tcp_bytes 9000\n";
        assert!(check(Device::Siw, &format!("{RING}{tcp}@lo_bytes 10240\n")).is_ok());
        assert!(check(Device::Siw, &format!("{RING}{tcp}@lo_bytes 10239\n")).is_err());
        assert!(
            check(Device::Siw, &format!("{RING}@tcp_conns 4\n@tcp_bytes 1000\n@lo_bytes 10240\n"))
                .is_err()
        );
        assert!(
            check(Device::Siw, &format!("{RING}@tcp_conns 0\n@tcp_bytes 0\n@lo_bytes 99999\n"))
                .is_err()
        );
    }
}
