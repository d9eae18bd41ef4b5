//! Carries the parameters of `params.rs` to Open MPI's parameter system and back.

use crate::abi;
use crate::component;
use crate::params::{Limits, NUMBERS, Raw, SWITCHES, TEXTS};
use btl_core::Config;
use core::ffi::{CStr, c_char, c_int};
use std::cell::UnsafeCell;
use std::ptr;

/// Where Open MPI stores the values. It must stay in place until the component closes.
struct Storage {
    numbers: UnsafeCell<[c_int; NUMBERS.len()]>,
    /// C's `bool`: any byte but 0 is true.
    switches: UnsafeCell<[u8; SWITCHES.len()]>,
    /// Each becomes memory that the parameter system owns.
    texts: UnsafeCell<[*mut c_char; TEXTS.len()]>,
    /// A module whose limits the parameters common to all BTLs change.
    template: UnsafeCell<abi::Module>,
}

// SAFETY: written by Open MPI's parameter system and by `register_all`, both only in the thread
// that opens components; read afterwards.
unsafe impl Sync for Storage {}

static STORAGE: Storage = Storage {
    numbers: UnsafeCell::new([0; NUMBERS.len()]),
    switches: UnsafeCell::new([0; SWITCHES.len()]),
    texts: UnsafeCell::new([ptr::null_mut(); TEXTS.len()]),
    // SAFETY: numbers, NULL pointers and absent functions: all-zero bytes are a valid module.
    template: UnsafeCell::new(unsafe { core::mem::zeroed() }),
};

/// Registers everything, with defaults as if for the first time: a component can be opened again.
///
/// # Errors
/// The parameter, and Open MPI's error code.
pub(crate) fn register_all() -> Result<(), (&'static str, c_int)> {
    for (i, number) in NUMBERS.iter().enumerate() {
        // SAFETY: `i` is within the array, and nobody else uses the storage now.
        let place = unsafe {
            let place = STORAGE.numbers.get().cast::<c_int>().add(i);
            place.write(number.default);
            place
        };
        register_one(number.name, number.help, abi::VAR_INT, number.level, place.cast())?;
    }
    for (i, switch) in SWITCHES.iter().enumerate() {
        // SAFETY: as above.
        let place = unsafe {
            let place = STORAGE.switches.get().cast::<u8>().add(i);
            place.write(u8::from(switch.default));
            place
        };
        register_one(switch.name, switch.help, abi::VAR_BOOL, switch.level, place.cast())?;
    }
    for (i, text) in TEXTS.iter().enumerate() {
        // SAFETY: as above. An old value belongs to the parameter system, which has freed it; the default is copied by
        // it and never written.
        let place = unsafe {
            let place = STORAGE.texts.get().cast::<*mut c_char>().add(i);
            place.write(text.default.as_ptr().cast_mut().cast());
            place
        };
        register_one(text.name, text.help, abi::VAR_STRING, text.level, place.cast())?;
    }
    let template = STORAGE.template.get();
    // SAFETY: nobody else uses the template now; it is at its place for good.
    unsafe {
        template.write(default_module());
        match abi::mca_btl_base_param_register(component::base().cast_mut(), template) {
            code if code < 0 => Err(("those of every BTL", code)),
            _ => Ok(()),
        }
    }
}

fn register_one(
    name: &'static str,
    help: &str,
    kind: u32,
    level: u32,
    place: *mut core::ffi::c_void,
) -> Result<(), (&'static str, c_int)> {
    let plain = name.trim_end_matches('\0');
    let (Ok(name), Ok(help)) =
        (CStr::from_bytes_with_nul(name.as_bytes()), CStr::from_bytes_with_nul(help.as_bytes()))
    else {
        return Err((plain, abi::ERR_BAD_PARAM));
    };
    // SAFETY: the strings are copied; `place` has the type that `kind` says and stays in place for
    // good.
    let code = unsafe {
        abi::mca_base_component_var_register(
            component::base(),
            name.as_ptr(),
            help.as_ptr(),
            kind,
            ptr::null_mut(),
            0,
            0,
            abi::INFO_LVL_1 + level.saturating_sub(1),
            abi::VAR_SCOPE_READONLY,
            place,
        )
    };
    if code < 0 { Err((plain, code)) } else { Ok(()) }
}

/// A module with the values that hold when the user says nothing.
fn default_module() -> abi::Module {
    let config = Config::new(btl_core::ProcName { job: 0, rank: 0 }, 0);
    let (eager, max) = (config.max_payload(0), config.max_payload(1));
    // SAFETY: as for the static above.
    let mut module: abi::Module = unsafe { core::mem::zeroed() };
    module.eager_limit = eager;
    module.rndv_eager_limit = eager;
    module.max_send_size = max;
    crate::offer::defaults(&mut module);
    module.exclusivity = abi::EXCLUSIVITY_DEFAULT;
    module.latency = 4;
    module.bandwidth = 0;
    module
}

/// The values after Open MPI read files, environment and command line.
pub(crate) fn read() -> Raw {
    // SAFETY: nobody writes the storage after registration; texts are NULL or NUL-terminated and
    // copied at once.
    unsafe {
        let texts = (*STORAGE.texts.get()).map(|text| {
            if text.is_null() {
                String::new()
            } else {
                CStr::from_ptr(text).to_string_lossy().into_owned()
            }
        });
        let switches = (*STORAGE.switches.get()).map(|byte| byte != 0);
        Raw { numbers: *STORAGE.numbers.get(), switches, texts }
    }
}

/// The limits among the parameters common to all BTLs.
pub(crate) fn limits() -> Limits {
    // SAFETY: as in `read`.
    let template = unsafe { &*STORAGE.template.get() };
    Limits {
        eager: template.eager_limit,
        rndv_eager: template.rndv_eager_limit,
        max_send: template.max_send_size,
    }
}

/// The limits when the user says nothing.
pub(crate) fn default_limits() -> Limits {
    let module = default_module();
    Limits {
        eager: module.eager_limit,
        rndv_eager: module.rndv_eager_limit,
        max_send: module.max_send_size,
    }
}

/// Gives a module the values of the template and the limits that fit; function pointers are the
/// caller's.
///
/// # Safety
/// `module` points to a module nobody else uses now.
pub(crate) unsafe fn apply(module: *mut abi::Module, limits: Limits) {
    // SAFETY: by the contract, and as in `read`.
    unsafe {
        module.write(ptr::read(STORAGE.template.get()));
        (*module).eager_limit = limits.eager;
        (*module).rndv_eager_limit = limits.rndv_eager;
        (*module).max_send_size = limits.max_send;
        (*module).component = component::get();
    }
}

/// Whether the user, or a file of parameters, has set the parameter `name` of this component.
pub(crate) fn is_set(name: &CStr) -> bool {
    let mut source = abi::VAR_SOURCE_DEFAULT;
    // SAFETY: NUL-terminated names; places that are NULL are left alone, `source` lives until the call returns.
    let code = unsafe {
        let index = abi::mca_base_var_find(
            c"opal".as_ptr(),
            c"btl".as_ptr(),
            c"verbs".as_ptr(),
            name.as_ptr(),
        );
        if index < 0 {
            return false;
        }
        abi::mca_base_var_get_value(index, ptr::null_mut(), &raw mut source, ptr::null_mut())
    };
    code == abi::SUCCESS && source != abi::VAR_SOURCE_DEFAULT
}
