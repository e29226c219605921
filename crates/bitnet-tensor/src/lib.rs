//! Defines the data: dtypes, shapes, tensors, the canonical layout of ternary weights (scales per row range or per
//! group of columns), and int8 quantisation of activations.
//!
//! This crate has no I/O, no threads and no `unsafe`. All other crates build on these definitions, and every kernel is
//! tested against them.
//!
//! ```
//! use bitnet_tensor::{TernaryTensor, quant::quantize_row};
//!
//! let weights = TernaryTensor::from_trits(1, 5, &[1, 0, -1, 1, -1], 0.25)?;
//! assert_eq!(weights.codes().len(), 2, "four trits per byte");
//!
//! // The largest magnitude is 2, so each value becomes round(x * 127 / 2).
//! let mut x_i8 = [0; 5];
//! let row = quantize_row(&[2.0, 1.0, -2.0, 0.0, 1.0], &mut x_i8);
//! assert_eq!((x_i8, row.multiplier), ([127, 64, -127, 0, 64], 63.5));
//!
//! let sum: i32 = weights.row_trits(0).zip(x_i8).map(|(t, x)| i32::from(t) * i32::from(x)).sum();
//! assert_eq!(sum, 127 + 127 - 64);
//! # Ok::<(), bitnet_tensor::TensorError>(())
//! ```

#![forbid(unsafe_code)]

/// Implements `Debug` with the named fields alone, for types whose other contents are too large to show or have no form
/// to show.
#[doc(hidden)]
#[macro_export]
macro_rules! opaque_debug {
    ($($type:ident $(<$parameter:ident: $bound:path>)? $({ $($field:ident),* })?),* $(,)?) => {$(
        impl $(<$parameter: $bound>)? ::std::fmt::Debug for $type $(<$parameter>)? {
            fn fmt(&self, f: &mut ::std::fmt::Formatter<'_>) -> ::std::fmt::Result {
                let mut shown = f.debug_struct(stringify!($type));
                $($(shown.field(stringify!($field), &self.$field);)*)?
                shown.finish_non_exhaustive()
            }
        }
    )*};
}

mod blocks;
mod codes;
mod dtype;
mod error;
pub mod quant;
mod shape;
mod tensor;
mod ternary;

pub use blocks::k_scales;
pub use codes::find_code_three;
pub use dtype::DType;
pub use error::TensorError;
/// The type of the scales of groups.
pub use half::f16;
pub use shape::Shape;
pub use tensor::{BitNetTensor, SharedBytes};
pub use ternary::{RowScale, TernaryScales, TernaryTensor, transpose_codes};
