//! Prints a text while an engine generates it.
#![allow(clippy::print_stdout, reason = "it is what the program is for")]

use std::{
    error::Error,
    io::{Write, stdout},
    sync::Arc,
};

use bitnet_inference::{Engine, EngineConfig, GenerationConfig, Request, Update};
use bitnet_kernels::{Cpu, Isa};
use bitnet_model::{Checkpoint, Limits, Transformer};

fn main() -> Result<(), Box<dyn Error>> {
    let checkpoint = Checkpoint::demo()?;
    let tokenizer = checkpoint.tokenizer.clone().ok_or("the model has no tokenizer")?;
    let limits = Limits { max_tokens: 128, max_logit_rows: 4, kv_blocks: 32 };
    let cpu = Cpu::new(Isa::best(), 2)?;
    let model = Transformer::load(&checkpoint.spec, &*checkpoint.tensors, cpu, limits, &mut |_, _| {})?;

    // The engine owns the model, on a thread of its own. The tokenizer lets it find stop strings.
    let engine = Engine::start(
        model,
        EngineConfig { text: Some(Arc::new(tokenizer.clone())), ..Default::default() },
    )?;

    let config = GenerationConfig {
        max_new_tokens: 60,
        temperature: 0.8,
        seed: Some(1),
        stop_strings: vec!["\n\n".into()],
        ..Default::default()
    };
    // Dropping the handle would cancel the request.
    let handle = engine.submit(Request::new(tokenizer.encode("First Citizen:", true)?, config))?;
    let mut text = tokenizer.stream();
    for update in handle {
        match update {
            Update::Token { token, .. } => {
                // Empty while a character is incomplete.
                print!("{}", text.push(token));
                stdout().flush()?;
            }
            Update::Ended { end, .. } => {
                let end = end?;
                println!("{}{}", text.finish(), String::from_utf8_lossy(&end.tail));
                println!("[{}]", end.finish);
            }
        }
    }
    Ok(())
}
