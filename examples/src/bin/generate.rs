//! Continues a text, on this thread.
#![allow(clippy::print_stdout, reason = "it is what the program is for")]

use std::{error::Error, ops::ControlFlow};

use bitnet_inference::{EngineConfig, GenerationConfig, generate};
use bitnet_kernels::{Cpu, Isa};
use bitnet_model::{Checkpoint, Limits, Transformer};

fn main() -> Result<(), Box<dyn Error>> {
    // `Checkpoint::open` takes a .gguf file or a Hugging Face folder.
    let checkpoint = Checkpoint::demo()?;
    let tokenizer = checkpoint.tokenizer.as_ref().ok_or("the model has no tokenizer")?;

    // All memory is taken here: the largest step, and a cache of 8 blocks of 64 tokens.
    let limits = Limits { max_tokens: 128, max_logit_rows: 1, kv_blocks: 8 };
    let cpu = Cpu::new(Isa::best(), 2)?;
    let mut model = Transformer::load(&checkpoint.spec, &*checkpoint.tensors, cpu, limits, &mut |_, _| {})?;

    let prompt = tokenizer.encode("First Citizen:", true)?;
    let config =
        GenerationConfig { max_new_tokens: 60, temperature: 0.8, seed: Some(1), ..Default::default() };
    let each = |_| ControlFlow::Continue(());
    let done = generate(&mut model, &prompt, &config, &EngineConfig::default(), each)?;
    println!("{}", tokenizer.decode(&done.tokens, true)?);
    Ok(())
}
