//! Answers many prompts together; each gets exactly what it would get alone.
#![allow(clippy::print_stdout, reason = "it is what the program is for")]

use std::error::Error;

use bitnet_inference::{Engine, EngineConfig, GenerationConfig, process_batch};
use bitnet_kernels::{Cpu, Isa};
use bitnet_model::{Checkpoint, Limits, Transformer};

fn main() -> Result<(), Box<dyn Error>> {
    let checkpoint = Checkpoint::demo()?;
    let tokenizer = checkpoint.tokenizer.as_ref().ok_or("the model has no tokenizer")?;
    // Up to 8 sequences in a step; more prompts than that wait for their turn.
    let limits = Limits { max_tokens: 256, max_logit_rows: 8, kv_blocks: 64 };
    let cpu = Cpu::new(Isa::best(), 2)?;
    let model = Transformer::load(&checkpoint.spec, &*checkpoint.tensors, cpu, limits, &mut |_, _| {})?;
    let engine = Engine::start(model, EngineConfig::default())?;

    let prompts = ["First Citizen:", "What say you, my lord", "The king is", "O, "];
    let requests = prompts.iter().zip(1..).map(|(prompt, seed)| {
        // Each prompt has its own configuration.
        let config = GenerationConfig {
            max_new_tokens: 10 * seed as usize,
            temperature: 0.8,
            seed: Some(seed),
            ..Default::default()
        };
        Ok((tokenizer.encode(prompt, true)?, config))
    });
    let requests: Vec<_> = requests.collect::<Result<_, Box<dyn Error>>>()?;
    for (prompt, tokens) in prompts.iter().zip(process_batch(&engine, &requests)) {
        // One that fails takes no other with it.
        println!("{prompt}|{}", tokenizer.decode(&tokens?, true)?.replace('\n', "/"));
    }
    Ok(())
}
