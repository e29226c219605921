//! Random numbers of draws, in loops that become vectors. They are the bits of [`Arrivals`] on every instruction set: integers,
//! and floats that are never fused.

use crate::{
    cpu::lanes::Lanes,
    draw::{Arrivals, First},
};

/// Makes the first arrivals of all groups, four a quad.
#[inline(always)]
pub(crate) unsafe fn first_arrivals<L: Lanes>(arrivals: &Arrivals, firsts: &mut [First]) {
    for (quad, firsts) in firsts.as_chunks_mut().0.iter_mut().enumerate() {
        *firsts = arrivals.firsts_and_members(quad);
    }
}

/// Says how much later than its group's first each token arrives, if it is not the first.
#[inline(always)]
pub(crate) unsafe fn delays<L: Lanes>(arrivals: &Arrivals, tokens: &[u32], delays: &mut [f32]) {
    for (&token, delay) in tokens.iter().zip(delays) {
        *delay = arrivals.delay(token);
    }
}
