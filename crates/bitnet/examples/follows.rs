//! Says which texts follow a JSON schema. Each line of standard input is `{"schema": ..., "texts": [...]}`; each line of
//! the output is a list of `true` and `false`, or why the schema is refused. `tools/check-schema/check.py` runs the
//! JSON-Schema-Test-Suite through it.
#![allow(clippy::print_stdout, reason = "it is what the program is for")]

use std::io::{BufRead, stdin};

use bitnet::Model;
use serde_json::{Value, json};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let model = Model::builder().threads(1).open("demo")?;
    for line in stdin().lock().lines() {
        let line: Value = serde_json::from_str(&line?)?;
        let texts = line["texts"].as_array().cloned().unwrap_or_default();
        let answer = match model.schemas().json(line["schema"].clone()) {
            Ok(schema) => {
                let texts = texts.iter().filter_map(Value::as_str);
                json!(texts.map(|text| schema.is_followed_by(text)).collect::<Vec<_>>())
            }
            Err(refused) => json!({"refused": refused.to_string()}),
        };
        println!("{answer}");
    }
    Ok(())
}
