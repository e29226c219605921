//! The CPU algorithms, written once, generic over [`Lanes`].
//!
//! Every function here is `unsafe` for the reason that [`Lanes`] gives, and is inlined into an entry point that has the
//! `target_feature` of its instruction set; [`kernel_set`] makes these entry points. Pointers come from slices whose
//! lengths the callers in [`super`] have checked against the shapes.
#![allow(unsafe_op_in_unsafe_fn, reason = "one argument covers all: see the module's first lines")]

pub(crate) mod attention;
pub(crate) mod cache;
pub(crate) mod dense;
pub(crate) mod element;
pub(crate) mod grouped;
pub(crate) mod peak;
pub(crate) mod rows;
pub(crate) mod screen;
pub(crate) mod ternary;

use std::ops::Range;

use crate::{cpu::lanes::Lanes, order};

/// The type of [`screen::split`]: row, planes, scratch.
pub(crate) type SplitRow = unsafe fn(&[f32], &mut [i8], &mut [f32]) -> Option<screen::Split>;

/// The entry points of one instruction set. Each may be called only on a CPU that has the instruction set.
pub(crate) struct KernelSet {
    pub(crate) bit_linear: unsafe fn(&ternary::BitLinear<'_>, Range<usize>),
    pub(crate) grouped: unsafe fn(&grouped::Grouped<'_>, Range<usize>),
    pub(crate) norm_quantize: unsafe fn(&rows::NormQuantize<'_>, Range<usize>, &mut [f32]),
    pub(crate) gate_quantize: unsafe fn(&rows::GateQuantize<'_>, Range<usize>, &mut [f32]),
    pub(crate) norm_rows: unsafe fn(&rows::NormRows<'_>),
    pub(crate) rope_store: unsafe fn(&rows::RopeStore<'_>, &mut [f32]),
    pub(crate) attention: unsafe fn(&attention::Attention<'_>, usize, usize, &mut [f32]),
    pub(crate) logits: unsafe fn(&dense::DenseLogits<'_>, Range<usize>, &mut [f32]),
    pub(crate) settle: unsafe fn(&dense::Settle<'_>, Range<usize>, &mut [f32]),
    pub(crate) copy_rows: unsafe fn(&screen::CopyRows<'_>, usize, &mut [f32]),
    pub(crate) split: SplitRow,
    pub(crate) bounds: unsafe fn(&screen::Bounds<'_>, Range<usize>),
    pub(crate) products: unsafe fn(usize) -> u64,
}

#[cfg(target_arch = "aarch64")]
pub(crate) use std::arch::is_aarch64_feature_detected as detected;
#[cfg(target_arch = "x86_64")]
pub(crate) use std::arch::is_x86_feature_detected as detected;

/// Makes the entry points of an instruction set and the check for it from one list of features:
/// `kernel_set!(Type, "feature", ...)`.
macro_rules! kernel_set {
    ($lanes:ty $(, $feature:tt)*) => {
        /// Whether this CPU has the instruction set.
        pub(crate) fn present() -> bool {
            true $(&& $crate::cpu::generic::detected!($feature))*
        }

        /// The entry points of this instruction set.
        pub(crate) static KERNELS: $crate::cpu::generic::KernelSet = {
            use std::ops::Range;
            use $crate::cpu::generic::{KernelSet, attention, dense, grouped, peak, rows, screen, ternary};

            // SAFETY (all entries): callers hold an `Isa`, which exists only if the CPU has these features.
            $(#[target_feature(enable = $feature)])*
            unsafe fn bit_linear(a: &ternary::BitLinear<'_>, panels: Range<usize>) {
                // SAFETY: as above.
                unsafe { ternary::bit_linear::<$lanes>(a, panels) }
            }
            $(#[target_feature(enable = $feature)])*
            unsafe fn grouped(a: &grouped::Grouped<'_>, panels: Range<usize>) {
                // SAFETY: as above.
                unsafe { grouped::grouped::<$lanes>(a, panels) }
            }
            $(#[target_feature(enable = $feature)])*
            unsafe fn norm_quantize(a: &rows::NormQuantize<'_>, rows: Range<usize>, scratch: &mut [f32]) {
                // SAFETY: as above.
                unsafe { rows::norm_quantize::<$lanes>(a, rows, scratch) }
            }
            $(#[target_feature(enable = $feature)])*
            unsafe fn gate_quantize(a: &rows::GateQuantize<'_>, rows: Range<usize>, scratch: &mut [f32]) {
                // SAFETY: as above.
                unsafe { rows::gate_quantize::<$lanes>(a, rows, scratch) }
            }
            $(#[target_feature(enable = $feature)])*
            unsafe fn norm_rows(a: &rows::NormRows<'_>) {
                // SAFETY: as above.
                unsafe { rows::norm_rows::<$lanes>(a) }
            }
            $(#[target_feature(enable = $feature)])*
            unsafe fn rope_store(a: &rows::RopeStore<'_>, scratch: &mut [f32]) {
                // SAFETY: as above.
                unsafe { rows::rope_store::<$lanes>(a, scratch) }
            }
            $(#[target_feature(enable = $feature)])*
            unsafe fn attention(a: &attention::Attention<'_>, part: usize, parts: usize, scratch: &mut [f32]) {
                // SAFETY: as above.
                unsafe { attention::attention::<$lanes>(a, part, parts, scratch) }
            }
            $(#[target_feature(enable = $feature)])*
            unsafe fn logits(a: &dense::DenseLogits<'_>, rows: Range<usize>, scratch: &mut [f32]) {
                // SAFETY: as above.
                unsafe { dense::logits::<$lanes>(a, rows, scratch) }
            }
            $(#[target_feature(enable = $feature)])*
            unsafe fn settle(a: &dense::Settle<'_>, rows: Range<usize>, scratch: &mut [f32]) {
                // SAFETY: as above.
                unsafe { dense::settle::<$lanes>(a, rows, scratch) }
            }
            $(#[target_feature(enable = $feature)])*
            unsafe fn copy_rows(a: &screen::CopyRows<'_>, panel: usize, scratch: &mut [f32]) {
                // SAFETY: as above.
                unsafe { screen::copy_rows::<$lanes>(a, panel, scratch) }
            }
            $(#[target_feature(enable = $feature)])*
            unsafe fn split(x: &[f32], planes: &mut [i8], scratch: &mut [f32]) -> Option<screen::Split> {
                // SAFETY: as above.
                unsafe { screen::split::<$lanes>(x, planes, scratch) }
            }
            $(#[target_feature(enable = $feature)])*
            unsafe fn bounds(a: &screen::Bounds<'_>, panels: Range<usize>) {
                // SAFETY: as above.
                unsafe { screen::bounds::<$lanes>(a, panels) }
            }
            $(#[target_feature(enable = $feature)])*
            unsafe fn products(rounds: usize) -> u64 {
                // SAFETY: as above.
                unsafe { peak::products::<$lanes>(rounds) }
            }
            KernelSet {
                bit_linear,
                grouped,
                norm_quantize,
                gate_quantize,
                norm_rows,
                rope_store,
                attention,
                logits,
                settle,
                copy_rows,
                split,
                bounds,
                products,
            }
        };
    };
}
pub(crate) use kernel_set;

/// [`order::exp`] on 16 lanes, with the same steps.
#[inline(always)]
pub(crate) unsafe fn exp<L: Lanes>(x: L::F) -> L::F {
    let x = L::max(L::splat(order::EXP_MIN), x);
    let x = L::min(L::splat(order::EXP_MAX), x);
    let n = L::round(L::mul(x, L::splat(order::LOG2_E)));
    let r = L::fma(n, L::splat(-order::LN2_HIGH), x);
    let r = L::fma(n, L::splat(-order::LN2_LOW), r);
    let mut p = L::splat(order::EXP_POLY[0]);
    for c in &order::EXP_POLY[1..] {
        p = L::fma(p, r, L::splat(*c));
    }
    let y = L::add(L::fma(p, L::mul(r, r), r), L::splat(1.0));
    L::mul(y, L::pow2(n))
}

/// Loads `n < 16` values and fills the other lanes with zeros.
#[inline(always)]
pub(crate) unsafe fn load_partial<L: Lanes>(p: *const f32, n: usize) -> L::F {
    let mut lanes = [0.0f32; 16];
    std::ptr::copy_nonoverlapping(p, lanes.as_mut_ptr(), n);
    L::load(lanes.as_ptr())
}

/// Stores the first `n < 16` values.
#[inline(always)]
pub(crate) unsafe fn store_partial<L: Lanes>(p: *mut f32, x: L::F, n: usize) {
    let mut lanes = [0.0f32; 16];
    L::store(lanes.as_mut_ptr(), x);
    std::ptr::copy_nonoverlapping(lanes.as_ptr(), p, n);
}
