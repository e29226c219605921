//! As many integer products as a level can make, out of registers: the ceiling of every kernel that multiplies codes.
//!
//! A group of codes stays in registers; a product costs what [`Lanes::dot`] costs with activations of its own, for a
//! compiler would make equal ones once.

use std::hint::black_box;

use crate::cpu::lanes::Lanes;

/// Makes `rounds` rounds of products, and says how many these are.
#[inline(always)]
pub(crate) unsafe fn products<L: Lanes>(rounds: usize) -> u64 {
    // So many running sums that no product waits for the one before, and that all stay in registers.
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
            // Whoever holds this pointer might have written there.
            let quads = black_box(&quads);
            for (part, quad) in parts.iter_mut().zip(quads) {
                *part = L::dot(*part, codes, quad.as_ptr());
            }
        }
        black_box(parts);
    }
    // A dot product of a group multiplies 16 rows by 4 columns.
    (rounds * steps * SUMS * 64) as u64
}
