//! The launch code, one operation per file: which kernel, how many blocks, which arguments.

mod attention;
mod bit_linear;
mod copy_block;
mod dense;
mod embed;
mod experts;
mod gated_delta;
mod head;
mod logits;
mod norm_quantize;
mod norm_rope_store;
mod norm_rows;
mod plan;
mod sample;
mod shortlist;
mod sigmoid_gate;
mod tile;

pub(super) use attention::parts_bytes;
pub(super) use bit_linear::split_bytes;
pub(super) use logits::DRAWN;
pub(super) use plan::Plans;
