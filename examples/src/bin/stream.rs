//! Prints a text as it is generated.
#![allow(clippy::print_stdout, reason = "it is what the program is for")]

use std::{
    error::Error,
    io::{Write, stdout},
};

use bitnet::{Model, Request};

fn main() -> Result<(), Box<dyn Error>> {
    let model = Model::open("demo")?;
    let verse = Request::new("First Citizen:").max_tokens(60).temperature(0.8).seed(2).stop("\n\n");
    // Dropping the stream would cancel the request.
    let mut pieces = model.stream(verse)?;
    for piece in pieces.by_ref() {
        print!("{}", piece?);
        stdout().flush()?;
    }
    println!("\n[{}]", pieces.answer()?.finish);
    Ok(())
}
