//! The CPU algorithms, written once, generic over [`Lanes`].
//!
//! Every function here is `unsafe` for the reason that [`Lanes`] gives, and is inlined into an entry point that has the
//! `target_feature` of its instruction set; [`kernel_set`] makes these entry points. Pointers come from slices whose
//! lengths the callers in [`super`] have checked against the shapes.
#![allow(unsafe_op_in_unsafe_fn, reason = "one argument covers all: see the module's first lines")]

pub(crate) mod ahead;
pub(crate) mod arrivals;
pub(crate) mod attention;
pub(crate) mod cache;
pub(crate) mod delta;
pub(crate) mod dense;
pub(crate) mod element;
pub(crate) mod grouped;
pub(crate) mod int8;
pub(crate) mod mass;
pub(crate) mod nibbles;
pub(crate) mod operands;
pub(crate) mod peak;
pub(crate) mod rotate;
pub(crate) mod rows;
pub(crate) mod shortlist;
pub(crate) mod sixes;
pub(crate) mod ternary;

use std::ops::Range;

use crate::{
    cpu::lanes::Lanes,
    draw::{Arrivals, First},
    order,
};

/// The type of [`shortlist::make_planes`]: row, planes, scratch.
pub(crate) type MakePlanes = unsafe fn(&[f32], &mut [i8], &mut [f32]) -> Option<shortlist::Limits>;

/// The entry points of one instruction set. Each may be called only on a CPU that has the instruction set.
pub(crate) struct KernelSet {
    pub(crate) floats: FloatKernels,
    pub(crate) bit_linear: unsafe fn(&ternary::BitLinear<'_>, Range<usize>),
    pub(crate) grouped: unsafe fn(&grouped::Grouped<'_>, Range<usize>),
    pub(crate) int8: unsafe fn(&int8::Int8<'_>, Range<usize>),
    pub(crate) copy_rows: unsafe fn(&shortlist::CopyRows<'_>, usize, &mut [f32]),
    pub(crate) make_planes: MakePlanes,
    pub(crate) bounds: unsafe fn(&shortlist::Bounds<'_>, Range<usize>),
    pub(crate) products: unsafe fn(usize) -> u64,
}

/// The entry points that take no integer products.
#[derive(Clone, Copy)]
pub(crate) struct FloatKernels {
    pub(crate) norm_quantize: unsafe fn(&rows::NormQuantize<'_>, Range<usize>, &mut [f32]),
    pub(crate) gate_norm_quantize: unsafe fn(&rows::GateNormQuantize<'_>, Range<usize>, &mut [f32]),
    pub(crate) norm_rows: unsafe fn(&rows::NormRows<'_>),
    pub(crate) norm_rope_store: unsafe fn(&rows::NormRopeStore<'_>, Range<usize>, &mut [f32]),
    pub(crate) attention: unsafe fn(&attention::Attention<'_>, usize, usize, &mut [f32]),
    pub(crate) logits: unsafe fn(&dense::DenseLogits<'_>, Range<usize>, &mut [f32]),
    pub(crate) rescore: unsafe fn(&dense::Rescore<'_>, Range<usize>, &mut [f32]),
    pub(crate) shares: unsafe fn(&mass::Rows<'_>, Range<usize>) -> mass::Shares,
    pub(crate) most: unsafe fn(&mass::Rows<'_>, f64) -> f64,
    pub(crate) least: unsafe fn(&mass::Rows<'_>) -> f64,
    pub(crate) first_arrivals: unsafe fn(&Arrivals, &mut [First]),
    pub(crate) delays: unsafe fn(&Arrivals, &[u32], &mut [f32]),
    pub(crate) undo: unsafe fn(&rotate::Rotation, &mut [f32]),
    pub(crate) sigmoid_gate: unsafe fn(&rows::SigmoidGate<'_>, Range<usize>),
    pub(crate) norm_add: unsafe fn(&rows::NormAdd<'_>, Range<usize>, &mut [f32]),
    pub(crate) gate_quantize: unsafe fn(&rows::GateQuantize<'_>, Range<usize>, usize),
    pub(crate) expert_sums: unsafe fn(&rows::ExpertSums<'_>, Range<usize>),
    pub(crate) fetch: unsafe fn(&[u8]),
    pub(crate) delta_inputs: unsafe fn(&delta::Inputs<'_>, Range<usize>),
    pub(crate) delta_rule: unsafe fn(&delta::Rule<'_>, Range<usize>, &mut [f32]),
    pub(crate) delta_outputs: unsafe fn(&delta::Outputs<'_>, Range<usize>, &mut [f32]),
}

#[cfg(target_arch = "aarch64")]
pub(crate) use std::arch::is_aarch64_feature_detected as detected;
#[cfg(target_arch = "x86_64")]
pub(crate) use std::arch::is_x86_feature_detected as detected;

/// One entry point: a generic algorithm compiled for the features of an instruction set.
macro_rules! entry {
    ($lanes:ty, [$($feature:tt),*], $module:ident::$name:ident($($arg:ident: $type:ty),*) $(-> $result:ty)?) => {
        $(#[target_feature(enable = $feature)])*
        unsafe fn $name($($arg: $type),*) $(-> $result)? {
            // SAFETY: callers hold an `Isa`, which exists only if the CPU has these features.
            unsafe { $crate::cpu::generic::$module::$name::<$lanes>($($arg),*) }
        }
    };
}
pub(crate) use entry;

/// Defines the check for an instruction set and its entry points from one list of features:
/// `kernel_set!(Type, ["feature", ...])`. A set that differs from another only in its integer products shares the other's
/// float kernels, which shortens the build: `kernel_set!(Type, ["feature", ...], floats of other)`.
macro_rules! kernel_set {
    ($lanes:ty, $features:tt) => {
        $crate::cpu::generic::kernel_set!(@level $lanes, $features, {
            use $crate::{cpu::generic::{FloatKernels, attention, delta, dense, mass, rotate, rows}, draw::{Arrivals, First}};
            entry!($lanes, $features, rows::norm_quantize(a: &rows::NormQuantize<'_>, rows: Range<usize>, scratch: &mut [f32]));
            entry!($lanes, $features, rows::gate_norm_quantize(a: &rows::GateNormQuantize<'_>, rows: Range<usize>, scratch: &mut [f32]));
            entry!($lanes, $features, rows::norm_rows(a: &rows::NormRows<'_>));
            entry!($lanes, $features, rows::norm_rope_store(a: &rows::NormRopeStore<'_>, heads: Range<usize>, scratch: &mut [f32]));
            entry!($lanes, $features, attention::attention(a: &attention::Attention<'_>, part: usize, parts: usize, scratch: &mut [f32]));
            entry!($lanes, $features, dense::logits(a: &dense::DenseLogits<'_>, rows: Range<usize>, scratch: &mut [f32]));
            entry!($lanes, $features, dense::rescore(a: &dense::Rescore<'_>, rows: Range<usize>, scratch: &mut [f32]));
            entry!($lanes, $features, mass::shares(a: &mass::Rows<'_>, panels: Range<usize>) -> mass::Shares);
            entry!($lanes, $features, mass::most(a: &mass::Rows<'_>, enough: f64) -> f64);
            entry!($lanes, $features, mass::least(a: &mass::Rows<'_>) -> f64);
            entry!($lanes, $features, arrivals::first_arrivals(arrivals: &Arrivals, firsts: &mut [First]));
            entry!($lanes, $features, arrivals::delays(arrivals: &Arrivals, tokens: &[u32], delays: &mut [f32]));
            entry!($lanes, $features, rotate::undo(rotation: &rotate::Rotation, row: &mut [f32]));
            entry!($lanes, $features, rows::sigmoid_gate(a: &rows::SigmoidGate<'_>, rows: Range<usize>));
            entry!($lanes, $features, rows::norm_add(a: &rows::NormAdd<'_>, rows: Range<usize>, scratch: &mut [f32]));
            entry!($lanes, $features, rows::gate_quantize(a: &rows::GateQuantize<'_>, rows: Range<usize>, group: usize));
            entry!($lanes, $features, ahead::fetch(bytes: &[u8]));
            entry!($lanes, $features, rows::expert_sums(a: &rows::ExpertSums<'_>, columns: Range<usize>));
            entry!($lanes, $features, delta::delta_inputs(a: &delta::Inputs<'_>, units: Range<usize>));
            entry!($lanes, $features, delta::delta_rule(a: &delta::Rule<'_>, units: Range<usize>, scratch: &mut [f32]));
            entry!($lanes, $features, delta::delta_outputs(a: &delta::Outputs<'_>, units: Range<usize>, scratch: &mut [f32]));
            FloatKernels {
                norm_quantize, gate_norm_quantize, norm_rows, norm_rope_store, attention, logits, rescore, shares, most, least,
                first_arrivals, delays, undo, sigmoid_gate, norm_add, gate_quantize, expert_sums, fetch, delta_inputs, delta_rule, delta_outputs,
            }
        });
    };
    ($lanes:ty, $features:tt, floats of $other:ident) => {
        $crate::cpu::generic::kernel_set!(@level $lanes, $features, { super::$other::KERNELS.floats });
    };
    (@level $lanes:ty, [$($feature:tt),*], $floats:block) => {
        /// Reports whether this CPU has the instruction set.
        pub(crate) fn present() -> bool {
            true $(&& $crate::cpu::generic::detected!($feature))*
        }

        /// The entry points of this instruction set.
        pub(crate) static KERNELS: $crate::cpu::generic::KernelSet = {
            use std::ops::Range;
            use $crate::cpu::generic::{KernelSet, entry, grouped, int8, shortlist, ternary};

            entry!($lanes, [$($feature),*], ternary::bit_linear(a: &ternary::BitLinear<'_>, panels: Range<usize>));
            entry!($lanes, [$($feature),*], grouped::grouped(a: &grouped::Grouped<'_>, panels: Range<usize>));
            entry!($lanes, [$($feature),*], int8::int8(a: &int8::Int8<'_>, rows: Range<usize>));
            entry!($lanes, [$($feature),*], shortlist::copy_rows(a: &shortlist::CopyRows<'_>, panel: usize, scratch: &mut [f32]));
            entry!($lanes, [$($feature),*], shortlist::make_planes(x: &[f32], planes: &mut [i8], scratch: &mut [f32]) -> Option<shortlist::Limits>);
            entry!($lanes, [$($feature),*], shortlist::bounds(a: &shortlist::Bounds<'_>, panels: Range<usize>));
            entry!($lanes, [$($feature),*], peak::products(rounds: usize) -> u64);
            KernelSet { floats: $floats, bit_linear, grouped, int8, copy_rows, make_planes, bounds, products }
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

/// `x / (1 + exp(-x))`
#[inline(always)]
pub(crate) unsafe fn silu<L: Lanes>(x: L::F) -> L::F {
    L::div(x, L::add(L::splat(1.0), exp::<L>(negated::<L>(x))))
}

/// [`order::sigmoid`] on 16 lanes.
#[inline(always)]
pub(crate) unsafe fn sigmoid<L: Lanes>(x: L::F) -> L::F {
    let one = L::splat(1.0);
    L::div(one, L::add(one, exp::<L>(negated::<L>(x))))
}

/// [`order::softplus`] on 16 lanes.
#[inline(always)]
pub(crate) unsafe fn softplus<L: Lanes>(x: L::F) -> L::F {
    let positive = L::max(L::splat(0.0), x);
    let u = exp::<L>(L::min(x, negated::<L>(x)));
    let s = L::div(u, L::add(L::splat(2.0), u));
    let z = L::mul(s, s);
    let mut p = L::splat(order::LN_POLY[0]);
    for c in &order::LN_POLY[1..] {
        p = L::fma(p, z, L::splat(*c));
    }
    L::add(positive, L::fma(L::mul(s, z), p, L::add(s, s)))
}

#[inline(always)]
pub(crate) unsafe fn negated<L: Lanes>(x: L::F) -> L::F {
    L::sub(L::splat(-0.0), x)
}

/// Loads `n` values, at most 16, and fills the other lanes with zeros.
#[inline(always)]
pub(crate) unsafe fn load_up_to<L: Lanes>(p: *const f32, n: usize) -> L::F {
    if n == 16 { L::load(p) } else { load_partial::<L>(p, n) }
}

/// Stores the first `n` values, at most 16.
#[inline(always)]
pub(crate) unsafe fn store_up_to<L: Lanes>(p: *mut f32, x: L::F, n: usize) {
    if n == 16 { L::store(p, x) } else { store_partial::<L>(p, x, n) }
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
