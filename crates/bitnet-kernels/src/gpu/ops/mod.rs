//! The launch code, one operation per file: which kernel, how many blocks, which arguments.

use super::Arg;

mod attention;
mod bit_linear;
mod copy_block;
mod dense;
mod edit;
mod embed;
mod experts;
mod gated_delta;
mod head;
mod logits;
mod norm_quantize;
mod norm_rope_store;
mod norm_rows;
mod plan;
mod race;
mod sample;
mod shortlist;
mod sigmoid_gate;
mod tile;

pub(super) use attention::parts_bytes;
pub(super) use bit_linear::split_bytes;
pub(super) use logits::DRAWN;
pub(super) use plan::Plans;
pub(super) use race::RACE_WORDS;

fn addresses<const N: usize>(all: [u64; N]) -> Vec<Arg> {
    all.map(Arg::u64).to_vec()
}

fn words<const N: usize>(all: [usize; N]) -> Vec<Arg> {
    all.map(|word| Arg::u32(word as u32)).to_vec()
}
