//! Completes a prompt.
#![allow(clippy::print_stdout, reason = "it is what the program is for")]

use bitnet::{Error, Model, Request};

fn main() -> Result<(), Error> {
    // Or a .gguf file, a folder with safetensors, or a model's name on Hugging Face.
    let model = Model::open("demo")?;
    let verse = Request::new("First Citizen:").max_tokens(60).temperature(0.8).seed(2);
    println!("{}", model.complete(verse)?);
    Ok(())
}
