//! The component: the one symbol that Open MPI looks up, and the life it drives: register, open,
//! init, progress, close.

use crate::abi;
use crate::guard::{guard_component, text};
use crate::opal::{self, LIFE, WHY, say, verbose};
use crate::open::{self, Declined};
use crate::params::N;
use crate::progress;
use crate::pvars;
use crate::rail;
use crate::register;
use core::cell::UnsafeCell;
use core::ffi::{c_char, c_int};
use core::mem;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;

/// The component's name, as in `--mca btl self,verbs`.
pub(crate) const NAME: &str = "verbs";
/// The same in every release: it is part of the modex key, and who does not find a key cannot tell a peer of another
/// release from one without the component. What changes has a version of its own, in the blob.
const VERSION: [c_int; 3] = [0, 1, 0];

/// The exported record. Open MPI writes into it (the project version of old components), so it is
/// mutable memory.
#[repr(transparent)]
pub struct ComponentRecord(UnsafeCell<abi::Component>);

// SAFETY: constant for us; Open MPI writes only while it opens components, in one thread.
unsafe impl Sync for ComponentRecord {}

/// What Open MPI's loader looks up in `mca_btl_verbs.so`.
#[allow(non_upper_case_globals, reason = "the name is Open MPI's")]
#[unsafe(no_mangle)]
pub static mca_btl_verbs_component: ComponentRecord =
    ComponentRecord(UnsafeCell::new(abi::Component {
        base: abi::BaseComponent {
            mca_version: [abi::MCA_MAJOR, abi::MCA_MINOR, 0],
            project_name: chars("opal"),
            project_version: abi::PROJECT_VERSION,
            type_name: chars("btl"),
            type_version: abi::BTL_VERSION,
            name: chars(NAME),
            version: VERSION,
            open: Some(component_open),
            close: Some(component_close),
            query: None,
            register: Some(component_register),
            flags: 0,
            reserved: [0; 28],
        },
        data: abi::ComponentData { param_field: 0, reserved: [0; 32] },
        init: Some(component_init),
        progress: Some(component_progress),
    }));

/// A C string in an array, filled with NULs.
const fn chars<const N: usize>(text: &str) -> [c_char; N] {
    assert!(text.len() < N);
    let mut chars = [0; N];
    let mut i = 0;
    while i < text.len() {
        chars[i] = text.as_bytes()[i] as c_char;
        i += 1;
    }
    chars
}

/// The record, for Open MPI's functions.
pub(crate) fn get() -> *mut abi::Component {
    mca_btl_verbs_component.0.get()
}

/// Its first part, which is what the functions common to all frameworks take.
pub(crate) fn base() -> *const abi::BaseComponent {
    get().cast::<abi::BaseComponent>()
}

/// Whether this Open MPI can be served; says so if not. Open MPI itself checks no version: with
/// another layout every later call would corrupt memory.
fn gate() -> bool {
    let version = opal::version();
    if !version.starts_with(abi::SERIES) {
        say(format_args!(
            "this component is {}, but this is Open MPI {version}: the component is not used; \
             install the one built for {version}",
            abi::BUILT_FOR
        ));
        return false;
    }
    if opal::has_cuda() {
        say(format_args!(
            "this Open MPI {version} is built with CUDA, whose modules have another layout: the component is not used"
        ));
        return false;
    }
    true
}

unsafe extern "C" fn component_register() -> c_int {
    guard_component(abi::ERR_NOT_AVAILABLE, || {
        if !gate() {
            return abi::ERR_NOT_AVAILABLE;
        }
        match register::register_all() {
            Ok(()) => {
                opal::set_verbose(register::read().number(N::Verbose));
                pvars::register_all();
                abi::SUCCESS
            }
            Err((name, code)) => {
                say(format_args!(
                    "Open MPI did not take btl_verbs_{name} (code {code}; a value of the wrong type?): the component is \
                     not used"
                ));
                abi::ERR_NOT_AVAILABLE
            }
        }
    })
}

unsafe extern "C" fn component_open() -> c_int {
    guard_component(abi::ERR_NOT_AVAILABLE, || {
        verbose!(LIFE, "open");
        abi::SUCCESS
    })
}

unsafe extern "C" fn component_close() -> c_int {
    guard_component(abi::ERROR, || {
        close_all();
        verbose!(LIFE, "close");
        abi::SUCCESS
    })
}

/// Closes what is still open. Open MPI finalizes modules before it closes the component, unless
/// init failed.
fn close_all() {
    for rail in rail::open_rails() {
        crate::close::close(rail);
    }
    rail::reset();
}

unsafe extern "C" fn component_init(
    num_btls: *mut c_int,
    _progress_threads: bool,
    _mpi_threads: bool,
) -> *mut *mut abi::Module {
    guard_component(ptr::null_mut(), || {
        // SAFETY: Open MPI passes a valid pointer.
        unsafe { *num_btls = 0 };
        close_all();
        let opened = catch_unwind(AssertUnwindSafe(open::rails)).unwrap_or_else(|panic| {
            Err(Declined::loud(format!("internal error: {}; please report it", text(&*panic))))
        });
        let rails = match opened {
            Ok(rails) => rails,
            Err(declined) => {
                close_all();
                if declined.loud || opal::asked_for_by_name() || opal::is_verbose(WHY) {
                    say(format_args!("{}: the component is not used", declined.why));
                }
                return ptr::null_mut();
            }
        };
        // SAFETY: the caller frees the array with free(), so it must come from malloc; at most
        // MAX_RAILS pointers.
        unsafe {
            let array = libc::malloc(rails.len() * mem::size_of::<*mut abi::Module>())
                .cast::<*mut abi::Module>();
            if array.is_null() {
                close_all();
                return ptr::null_mut();
            }
            for (i, rail) in rails.iter().enumerate() {
                array.add(i).write(rail.module());
            }
            *num_btls = c_int::try_from(rails.len()).unwrap_or(0);
            array
        }
    })
}

unsafe extern "C" fn component_progress() -> c_int {
    let mut events: c_int = 0;
    for rail in rail::open_rails() {
        let upcalls =
            catch_unwind(AssertUnwindSafe(|| progress::round(rail))).unwrap_or_else(|panic| {
                rail.broke(&text(&*panic));
                0
            });
        events = events.saturating_add(upcalls);
    }
    events
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::abi::stub::Stub;

    fn register() -> c_int {
        let record = get();
        // SAFETY: the record is constant in tests, and the stub's lock keeps other tests out.
        unsafe { (*record).base.register.map_or(abi::ERROR, |register| register()) }
    }

    #[test]
    fn the_record_says_what_the_loader_checks() {
        // SAFETY: constant in tests.
        let component = unsafe { &*get() };
        let text = |chars: &[c_char]| -> String {
            chars.iter().take_while(|c| **c != 0).map(|c| char::from(*c as u8)).collect()
        };
        assert_eq!(component.base.mca_version[..2], [2, 1]);
        assert_eq!(text(&component.base.type_name), "btl");
        assert_eq!(text(&component.base.name), NAME);
        assert_eq!(component.base.type_version, abi::BTL_VERSION);
        assert!(component.base.query.is_none());
        // Releases that name it differently could not tell each other apart.
        assert_eq!(component.base.version[..2], [0, 1]);
    }

    #[test]
    fn another_open_mpi_is_refused_with_one_line() {
        let stub = Stub::new();
        let others = ["4.1.4", "5.0.7", "6.0.0rc2", "4.0.7", "4.10.0", "5.1.0", "6.1.0", ""];
        for version in others.into_iter().filter(|version| !version.starts_with(abi::SERIES)) {
            stub.set_version(version);
            assert_eq!(register(), abi::ERR_NOT_AVAILABLE, "{version}");
            let lines = stub.lines();
            assert_eq!(lines.len(), 1, "{version}: {lines:?}");
            let expected = format!(
                "btl:verbs: this component is {}, but this is Open MPI {version}:",
                abi::BUILT_FOR
            );
            assert!(lines[0].starts_with(&expected), "{}", lines[0]);
            assert_eq!(
                stub.registered(),
                Vec::<String>::new(),
                "{version}: parameters were registered all the same"
            );
        }
    }

    #[test]
    fn a_cuda_build_is_refused() {
        let stub = Stub::new();
        stub.set_cuda(true);
        assert_eq!(register(), abi::ERR_NOT_AVAILABLE);
        let lines = stub.lines();
        assert!(lines.len() == 1 && lines[0].contains("built with CUDA"), "{lines:?}");
    }

    #[test]
    fn the_right_version_registers_everything_and_again() {
        let stub = Stub::new();
        for round in 0..2 {
            assert_eq!(register(), abi::SUCCESS, "round {round}");
            let names = stub.registered();
            for name in ["if_include", "receive_queues", "cq_size", "connect_timeout", "(base)"] {
                assert!(names.iter().any(|n| n == name), "{name} is missing in {names:?}");
            }
        }
        assert_eq!(stub.lines(), Vec::<String>::new());
        assert_eq!(register::read(), crate::params::Raw::default());
    }
}
