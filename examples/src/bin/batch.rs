//! Answers many prompts together; each gets exactly what it would get alone.
#![allow(clippy::print_stdout, reason = "it is what the program is for")]

use bitnet::{Error, Model, Request};

fn main() -> Result<(), Error> {
    // Up to 4 requests in a step; more than that wait for their turn.
    let model = Model::builder().batch_size(4).open("demo")?;
    let prompts = ["First Citizen:", "What say you, my lord", "The king is", "O, "];
    let requests = prompts.iter().zip(1..).map(|(prompt, seed)| {
        // Each prompt has its own configuration.
        Request::new(*prompt).max_tokens(10 * seed as usize).temperature(0.8).seed(seed)
    });
    for (prompt, answer) in prompts.iter().zip(model.batch(requests)) {
        // One that fails takes no other with it.
        println!("{prompt}|{}", answer?.text.replace('\n', "/"));
    }
    Ok(())
}
