//! What every entry point does first: no panic crosses into C, and a module is only used if it is
//! one of ours.

use crate::abi;
use crate::opal::say;
use crate::rail::Rail;
use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Runs a module's entry point. After a panic the rail is broken: its lock is poisoned or its state
/// doubtful, so the job is ended through Open MPI.
pub(crate) fn guard<T>(
    module: *mut abi::Module,
    failure: T,
    body: impl FnOnce(&'static Rail) -> T,
) -> T {
    let Some(rail) = Rail::of(module) else { return failure };
    match catch_unwind(AssertUnwindSafe(|| body(rail))) {
        Ok(value) => value,
        Err(panic) => {
            rail.broke(&text(&*panic));
            failure
        }
    }
}

/// Runs an entry point of the component.
pub(crate) fn guard_component<T>(failure: T, body: impl FnOnce() -> T) -> T {
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(value) => value,
        Err(panic) => {
            say(format_args!("internal error: {}; please report it", text(&*panic)));
            failure
        }
    }
}

/// What a panic said.
pub(crate) fn text(panic: &(dyn Any + Send)) -> String {
    panic
        .downcast_ref::<&str>()
        .map(|text| (*text).to_owned())
        .or_else(|| panic.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "panic".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_is_caught_and_told() {
        assert_eq!(guard_component(7, || 3), 3);
        // What libtest prints of it is this test's own output.
        assert_eq!(guard_component(7, || panic!("on purpose")), 7);
        // No rail of ours: nothing is run.
        assert_eq!(guard(std::ptr::null_mut(), 7, |_| 3), 7);
        let said = |panic: Box<dyn Any + Send>| text(&*panic);
        assert_eq!(said(Box::new("a literal")), "a literal");
        assert_eq!(said(Box::new("a string".to_owned())), "a string");
        assert_eq!(said(Box::new(5)), "panic");
    }
}
