//! Draws tokens from the model's logits by a custom rule: the most likely token that begins with the next letter of the
//! alphabet.
#![allow(clippy::print_stdout, reason = "it is what the program is for")]

use std::error::Error;

use bitnet::{
    kernels::{Cpu, Isa},
    model::{Batch, Checkpoint, Limits, Logits, Model, Transformer},
};

fn main() -> Result<(), Box<dyn Error>> {
    let checkpoint = Checkpoint::demo()?;
    let tokenizer = checkpoint.tokenizer.as_ref().ok_or("the model has no tokenizer")?;
    let limits = Limits { max_tokens: 64, max_logit_rows: 1, kv_blocks: 8, state_slots: 0 };
    let cpu = Cpu::new(Isa::best(), 2)?;
    let mut model = Transformer::load(&checkpoint.spec, &*checkpoint.tensors, cpu, limits, &mut |_, _| {})?;

    let mut batch = Batch::with_capacity(limits.max_tokens, limits.max_logit_rows, limits.kv_blocks);
    let mut logits = Logits::with_capacity(limits.max_logit_rows, checkpoint.spec.vocab);
    // The block table: the sequence's keys and values are in the first blocks of the cache.
    let blocks: Vec<u32> = (0..limits.kv_blocks as u32).collect();

    let (mut new, mut done) = (tokenizer.encode("An alphabet:", true)?, 0);
    let mut text = String::new();
    for letter in 'a'..='h' {
        // All tokens that are not in the cache yet; only the logits of the last one are needed.
        batch.clear();
        batch.push(&new, done, &blocks, new.len() - 1..new.len());
        model.forward(&batch, &mut logits)?;
        done += new.len();

        let begins = |token: u32| {
            let bytes = tokenizer.token_bytes(token).unwrap_or_default();
            bytes.starts_with(format!(" {letter}").as_bytes())
        };
        let candidates = (0..checkpoint.spec.vocab as u32).filter(|&token| begins(token));
        let row = logits.row(0);
        let best = candidates.max_by(|&a, &b| row[a as usize].total_cmp(&row[b as usize]));
        new = vec![best.ok_or("no token begins with this letter")?];
        text += &tokenizer.decode(&new, true)?;
    }
    println!("{text}");
    Ok(())
}
