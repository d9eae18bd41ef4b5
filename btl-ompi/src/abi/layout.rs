//! The macro that pins sizes and offsets.

/// One fact about the C interface: what it is in C's words, and the value this build assumes.
#[cfg(test)]
pub(crate) struct Fact {
    /// A C expression of integer type, e.g. `sizeof(opal_proc_t)`.
    pub(crate) expr: &'static str,
    /// Its value.
    pub(crate) value: u64,
}

/// Asserts size, alignment and field offsets of bound structs, and collects the same facts for the
/// header test.
///
/// Each entry reads `Rust type = "C type", size, align { rust field = "C field" @ offset, … }`.
macro_rules! layout {
    ($($ty:ty = $c:literal, $size:literal, $align:literal { $($field:ident = $cfield:literal @ $off:literal),* $(,)? })*) => {
        $(
            const _: () = assert!(core::mem::size_of::<$ty>() == $size, concat!("size of ", $c));
            const _: () = assert!(core::mem::align_of::<$ty>() == $align, concat!("alignment of ", $c));
            $(const _: () = assert!(core::mem::offset_of!($ty, $field) == $off, concat!($c, ".", $cfield));)*
        )*
        /// Every size, alignment and offset above, as C expressions.
        #[cfg(test)]
        pub(crate) const LAYOUT: &[crate::abi::layout::Fact] = &[
            $(
                crate::abi::layout::Fact { expr: concat!("sizeof(", $c, ")"), value: $size },
                crate::abi::layout::Fact { expr: concat!("_Alignof(", $c, ")"), value: $align },
                $(crate::abi::layout::Fact { expr: concat!("offsetof(", $c, ", ", $cfield, ")"), value: $off },)*
            )*
        ];
    };
}

/// Defines constants of the C interface and collects them for the header test.
macro_rules! constants {
    ($($(#[$doc:meta])* $name:ident: $ty:ty = $value:literal = $c:literal;)*) => {
        $($(#[$doc])* pub(crate) const $name: $ty = $value;)*
        /// Every constant above, as C expressions.
        #[cfg(test)]
        pub(crate) const CONSTANTS: &[crate::abi::layout::Fact] = &[
            $(crate::abi::layout::Fact { expr: $c, value: $value as i64 as u64 },)*
        ];
    };
}
