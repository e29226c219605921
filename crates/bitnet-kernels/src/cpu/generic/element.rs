//! Stored types that kernels load as f32.

use half::{bf16, f16};

use crate::cpu::lanes::Lanes;

/// A stored type that is loaded as f32.
pub(crate) trait Element {
    /// A stored number.
    type Number: Copy + Default;

    /// Loads 16 numbers, which need no alignment.
    ///
    /// # Safety
    /// The same as for [`Lanes::load`].
    unsafe fn load<L: Lanes>(p: *const Self::Number) -> L::F;
}

pub(crate) struct F32;

impl Element for F32 {
    type Number = f32;
    #[inline(always)]
    unsafe fn load<L: Lanes>(p: *const f32) -> L::F {
        L::load(p)
    }
}

pub(crate) struct F16;

impl Element for F16 {
    type Number = f16;
    #[inline(always)]
    unsafe fn load<L: Lanes>(p: *const f16) -> L::F {
        L::load_f16(p.cast())
    }
}

pub(crate) struct Bf16;

impl Element for Bf16 {
    type Number = bf16;
    #[inline(always)]
    unsafe fn load<L: Lanes>(p: *const bf16) -> L::F {
        L::load_bf16(p.cast())
    }
}
