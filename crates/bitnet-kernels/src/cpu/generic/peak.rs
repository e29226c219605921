//! As many integer products as a level can make, out of registers: the ceiling of every kernel that multiplies codes.

use std::hint::black_box;

use crate::cpu::lanes::Lanes;

/// Running sums side by side, so that no product waits for the one before.
const SUMS: usize = 12;

/// Makes `rounds` rounds of products, and says how many these are.
#[inline(always)]
pub(crate) unsafe fn products<L: Lanes>(rounds: usize) -> u64 {
    let (codes, quad) = (black_box([1u8; 64]), black_box([1i8; 4]));
    let codes = L::load_codes(codes.as_ptr());
    let steps = L::STEPS.min(64);
    for _ in 0..rounds {
        let mut parts = [L::zero_part(); SUMS];
        for _ in 0..steps {
            for part in &mut parts {
                *part = L::dot(*part, codes, quad.as_ptr());
            }
        }
        black_box(parts);
    }
    // A dot product of a group multiplies 16 rows by 4 columns.
    (rounds * steps * SUMS * 64) as u64
}
