//! Continues a text.
#![allow(clippy::print_stdout, reason = "it is what the program is for")]

use bitnet::{Error, Model, Request};

fn main() -> Result<(), Error> {
    // Or a .gguf file, a folder of Hugging Face, or the name of a model there.
    let model = Model::open("demo")?;
    let verse = Request::new("First Citizen:").max_tokens(60).temperature(0.8).seed(1);
    println!("{}", model.complete(verse)?);
    Ok(())
}
