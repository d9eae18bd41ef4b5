//! The list of RDMA devices, and opening one.

use crate::context::Context;
use crate::error::{Error, ErrorKind, Result};
use crate::seam::LIBIBVERBS;
use rdma_sys::*;
use std::ffi::CStr;
use std::fmt;
use std::ptr::NonNull;
use std::sync::Arc;

const NO_DEVICE_HINT: &str = "no RDMA device here; load a driver, e.g. `modprobe siw` or `modprobe rdma_rxe` and then \
     `rdma link add siw0 type siw netdev eth0`; user space needs the module ib_uverbs";

/// An `ibv_get_device_list` array; freed with its last [`Device`].
struct DeviceList(NonNull<*mut ibv_device>);

// SAFETY: the array and the devices it names are not modified after ibv_get_device_list returned, and libibverbs guards
// their reference counts with its own lock.
unsafe impl Send for DeviceList {}
// SAFETY: as above.
unsafe impl Sync for DeviceList {}

impl Drop for DeviceList {
    fn drop(&mut self) {
        // SAFETY: the array came from ibv_get_device_list and is freed once. Opened contexts hold their own references.
        unsafe { ibv_free_device_list(self.0.as_ptr()) }
    }
}

/// One RDMA device of this machine. Cheap to clone; keeps the list it came from alive.
///
/// From [`devices`](crate::devices) and [`Device::by_name`](crate::Device::by_name).
#[derive(Clone)]
pub struct Device {
    raw: NonNull<ibv_device>,
    _list: Arc<DeviceList>,
}

// SAFETY: an ibv_device is read-only for its users, see DeviceList.
unsafe impl Send for Device {}
// SAFETY: as above.
unsafe impl Sync for Device {}

/// The RDMA devices of this machine; empty when there are none (ibv_get_device_list(3)).
///
/// # Errors
/// [`ErrorKind::NoDevice`] when the kernel has no verbs at all (ENOSYS, ENOENT: ib_uverbs is not loaded).
pub fn devices() -> Result<Vec<Device>> {
    let mut n = 0;
    // SAFETY: `n` is writable; the array returned is ours to free.
    let raw = unsafe { ibv_get_device_list(&mut n) };
    let Some(raw) = NonNull::new(raw) else {
        let e = Error::last("ibv_get_device_list");
        return Err(match e.errno() {
            libc::ENOSYS | libc::ENOENT | libc::ENODEV => {
                e.with_kind(ErrorKind::NoDevice).with_hint(NO_DEVICE_HINT)
            }
            _ => e,
        });
    };
    let list = Arc::new(DeviceList(raw));
    let n = usize::try_from(n).unwrap_or(0);
    let mut found = Vec::with_capacity(n);
    for i in 0..n {
        // SAFETY: the array has `n` entries and a NULL after them.
        let dev = unsafe { *raw.as_ptr().add(i) };
        let Some(raw) = NonNull::new(dev) else { break };
        found.push(Device { raw, _list: Arc::clone(&list) });
    }
    Ok(found)
}

impl Device {
    /// The device of that name.
    ///
    /// # Errors
    /// [`ErrorKind::NoDevice`] with the names that do exist.
    pub fn by_name(name: &str) -> Result<Device> {
        let all = devices()?;
        if let Some(d) = all.iter().find(|d| d.name() == name) {
            return Ok(d.clone());
        }
        let names: Vec<_> = all.iter().map(Device::name).collect();
        let hint = match names.is_empty() {
            true => NO_DEVICE_HINT.to_owned(),
            false => format!("no device {name:?}; there are: {}", names.join(", ")),
        };
        Err(Error::refused("opening an RDMA device", ErrorKind::NoDevice, hint))
    }

    /// The kernel's name, e.g. `siw0`.
    pub fn name(&self) -> String {
        // SAFETY: the device is alive (the list is), its name a NUL-terminated array inside it.
        unsafe { CStr::from_ptr(ibv_get_device_name(self.raw.as_ptr())) }
            .to_string_lossy()
            .into_owned()
    }

    /// The node GUID in host byte order.
    pub fn guid(&self) -> u64 {
        // SAFETY: the device is alive.
        u64::from_be(unsafe { ibv_get_device_guid(self.raw.as_ptr()) })
    }

    /// Whether the device speaks iWARP, where the initiator of a connection has to send first.
    pub fn is_iwarp(&self) -> bool {
        // SAFETY: the device is alive.
        unsafe { self.raw.as_ref().transport_type == ibv_transport_type::IBV_TRANSPORT_IWARP }
    }

    /// Opens the device (ibv_open_device(3)).
    ///
    /// # Errors
    /// [`ErrorKind::PermissionDenied`] when /dev/infiniband/uverbsN is not ours to open; [`ErrorKind::NoDevice`] when it
    /// is not there: the device was removed since it was listed, or the container lacks the file; EMFILE or ENFILE without
    /// a descriptor left, with RLIMIT_NOFILE in the hint; [`ErrorKind::Unsupported`] when a provider was told
    /// by the environment to run without locks, which this crate's `Send` types rely on.
    pub fn open(&self) -> Result<Context> {
        // SAFETY: the device is alive.
        let raw = unsafe { ibv_open_device(self.raw.as_ptr()) };
        let Some(raw) = NonNull::new(raw) else {
            return Err(self.explain_open(Error::last("ibv_open_device")));
        };
        // SAFETY: a fresh context of libibverbs, owned by nobody else.
        let ctx = unsafe { Context::from_raw(raw.as_ptr(), &LIBIBVERBS) }?;
        // Asked only now: udev renames devices, so their names do not tell the provider.
        let provider = ctx.quirk().map_or("", |q| q.name);
        match unlocked_by(provider, |var| std::env::var_os(var)) {
            None => {
                if provider == "siw" {
                    ctx.hold_siw_key();
                }
                Ok(ctx)
            }
            Some(var) => Err(Error::refused(
                "opening an RDMA device",
                ErrorKind::Unsupported,
                format!("{var}=1 removes the provider's locks; unset it"),
            )),
        }
    }

    fn explain_open(&self, e: Error) -> Error {
        // SAFETY: the device is alive, the name a NUL-terminated array inside it.
        let node = unsafe { CStr::from_ptr(self.raw.as_ref().dev_name.as_ptr()) };
        explain_file(e, &format!("/dev/infiniband/{}", node.to_string_lossy()))
    }
}

/// libibverbs says ENOSYS when it cannot open the device's file, so its file is asked.
fn explain_file(e: Error, path: &str) -> Error {
    let Err(why) = std::fs::OpenOptions::new().read(true).write(true).open(path) else { return e };
    match why.raw_os_error() {
        Some(libc::EACCES | libc::EPERM) => Error::os(e.op(), libc::EACCES).with_hint(format!(
            "no right to open {path}; join the group that owns it (often `rdma`) or add a udev rule"
        )),
        // ENXIO: the file of a device that is gone.
        Some(errno @ (libc::ENOENT | libc::ENXIO | libc::ENODEV)) => {
            Error::os(e.op(), errno).with_kind(ErrorKind::NoDevice).with_hint(format!(
                "{path} cannot be opened: the device was removed (ask `devices` again), or this container was given \
                 no device files"
            ))
        }
        // No descriptor left, in this process or on this machine.
        Some(errno @ (libc::EMFILE | libc::ENFILE)) => Error::os(e.op(), errno),
        _ => e,
    }
}

/// MLX4/MLX5_SINGLE_THREADED make those providers drop their locks. The variable that does, if it is set.
fn unlocked_by(
    provider: &str,
    get: impl Fn(&str) -> Option<std::ffi::OsString>,
) -> Option<&'static str> {
    if !matches!(provider, "mlx4" | "mlx5") {
        return None;
    }
    // A part that the table does not know is taken for mlx5, so both count for both.
    ["MLX4_SINGLE_THREADED", "MLX5_SINGLE_THREADED"]
        .into_iter()
        .find(|var| get(var).is_some_and(|v| v == "1"))
}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Device")
            .field("name", &self.name())
            .field("guid", &format_args!("{:#018x}", self.guid()))
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// libibverbs' own answer is ENOSYS, which helps nobody.
    #[test]
    fn a_device_file_that_cannot_be_opened_says_why() {
        let said = |path| explain_file(Error::os("ibv_open_device", libc::ENOSYS), path);
        let e = said("/dev/infiniband-of-nobody/uverbs0");
        assert_eq!((e.kind(), e.errno()), (ErrorKind::NoDevice, libc::ENOENT));
        assert!(e.to_string().contains("device was removed"), "{e}");
        assert_eq!(said("/dev/null").errno(), libc::ENOSYS, "the file is not the reason");
    }

    #[test]
    fn providers_without_locks_are_refused() {
        let set = |value: &'static str| {
            move |var: &str| (var == "MLX5_SINGLE_THREADED").then(|| value.into())
        };
        let row = crate::quirks::find(0x15b3, 4123).map(|q| q.name).unwrap();
        assert_eq!(unlocked_by(row, set("1")), Some("MLX5_SINGLE_THREADED"));
        assert_eq!(unlocked_by(row, set("0")), None);
        assert_eq!(unlocked_by(row, |_| None), None);
        assert_eq!(unlocked_by("siw", set("1")), None);
    }
}
