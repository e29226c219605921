//! Answers several prompts together; each answer is exactly what the prompt would get alone.
#![allow(clippy::print_stdout, reason = "it is what the program is for")]

use bitnet::{Error, Model, Request};

fn main() -> Result<(), Error> {
    // Up to 4 requests share a step; others wait in the queue.
    let model = Model::builder().batch_size(4).open("demo")?;
    let prompts = ["First Citizen:", "What say you, my lord", "The king is", "O, "];
    let requests = prompts.iter().zip(1..).map(|(prompt, seed)| {
        // Each request has its own settings.
        Request::new(*prompt).max_tokens(10 * seed as usize).temperature(0.8).seed(seed)
    });
    for (prompt, answer) in prompts.iter().zip(model.batch(requests)) {
        // A failed request does not affect the others.
        println!("{prompt}|{}", answer?.text.replace('\n', "/"));
    }
    Ok(())
}
