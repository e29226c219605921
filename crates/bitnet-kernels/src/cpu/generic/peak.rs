//! Measures the integer products that an instruction set can compute from registers, the upper bound for every kernel
//! that multiplies codes.
//!
//! One group of codes stays in registers. Every call of [`Lanes::dot`] has its own activations, because a compiler
//! would compute equal products only once.

use std::hint::black_box;

use crate::cpu::lanes::Lanes;

/// Computes `rounds` rounds of products and returns the number of products.
#[inline(always)]
pub(crate) unsafe fn products<L: Lanes>(rounds: usize) -> u64 {
    // Enough running sums that no product waits for the previous one, few enough that all stay in registers.
    match (L::WIDE_REGISTERS, size_of::<L::Part>()) {
        (true, _) => side_by_side::<L, 12>(rounds),
        (_, 128) => side_by_side::<L, 3>(rounds),
        _ => side_by_side::<L, 6>(rounds),
    }
}

#[inline(always)]
unsafe fn side_by_side<L: Lanes, const SUMS: usize>(rounds: usize) -> u64 {
    let (codes, quads) = (black_box([1u8; 64]), black_box([[1i8; 4]; SUMS]));
    let codes = L::load_codes(codes.as_ptr());
    let steps = L::STEPS.min(64);
    for _ in 0..rounds {
        let mut parts = [L::zero_part(); SUMS];
        for _ in 0..steps {
            // The compiler must assume that the activations have changed.
            let quads = black_box(&quads);
            for (part, quad) in parts.iter_mut().zip(quads) {
                *part = L::dot(*part, codes, quad.as_ptr());
            }
        }
        black_box(parts);
    }
    // Each dot product of a group multiplies 16 rows by 4 columns.
    (rounds * steps * SUMS * 64) as u64
}
