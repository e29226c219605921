//! Jinja templates, as transformers renders them: jinja2 3.1 in an immutable sandbox, on Python's values.
//!
//! Data flows one way: `lexer` -> `parser`, `statements`, `expressions` -> `ast` -> `machine`, `evaluate` -> text.
//! `value`, `repr`, `number` and `json` are Python's values; `filters`, `sequences`, `tests`, `strings`, `methods`,
//! `functions` what a template can call. `meter` limits work and memory.

mod access;
mod args;
mod ast;
mod error;
mod evaluate;
mod expressions;
mod filters;
mod float;
mod functions;
mod json;
mod lexer;
mod literals;
mod machine;
mod meter;
mod methods;
mod number;
mod parser;
mod percent;
mod repr;
mod sequences;
mod statements;
mod strings;
mod template;
mod tests;
mod text;
mod token;
mod value;

use ast::Program;
pub(super) use error::Error;
use error::{Kind, Result};
use indexmap::IndexMap;
pub(super) use json::read as read_json;
use machine::Machine;
pub(super) use meter::Limits;
use meter::Meter;
use parser::Word;
pub(super) use value::Value;
use value::key::Key;

/// A dictionary with these fields.
pub(super) fn object<'f>(fields: impl IntoIterator<Item = (&'f str, Value)>) -> Result<Value> {
    let fields = fields.into_iter().map(|(name, value)| (Key::text(name), value));
    Value::dict(fields.collect::<IndexMap<_, _>>())
}

/// A parsed template.
pub(super) struct Template(Program);

impl Template {
    /// Parses a template, and checks that its filters, tests and methods are known.
    pub fn parse(source: &str) -> Result<Template> {
        parser::parse(source, known).map(Template)
    }

    /// Renders the template with these variables. `now` writes the current time for `strftime_now`.
    pub fn render(
        &self,
        variables: impl IntoIterator<Item = (String, Value)>,
        limits: Limits,
        now: fn(&str) -> String,
    ) -> Result<String> {
        let meter = Meter::new(limits);
        let mut machine = Machine::new(&self.0, &meter, now);
        for (name, value) in variables {
            machine.define(&name, value);
        }
        machine.run()
    }
}

fn known(word: Word<'_>) -> Result<bool> {
    let unsupported = |what: String| Err(Error::new(Kind::Syntax, what));
    match word {
        Word::Filter(name) => filters::is_known(name).or_else(|error| unsupported(error.to_string())),
        Word::Test(name) => Ok(tests::is_known(name)),
        Word::Method(name) if access::UNSUPPORTED.contains(&name) => {
            unsupported(format!("the method '{name}' of a text is not supported"))
        }
        // Any value may have a method of this name.
        Word::Method(_) => Ok(true),
    }
}

#[cfg(test)]
mod differential {
    use std::collections::BTreeMap;

    use serde_json::value::RawValue;

    use super::*;

    const LIMITS: Limits = Limits { bytes: 16 << 20, steps: 500_000, nesting: 3_000 };

    /// `tools/make-templates/make.py` made the texts with jinja2.
    #[test]
    fn every_fragment_renders_as_jinja2_renders_it() {
        let wrong = std::thread::Builder::new().stack_size(128 << 20).spawn(|| {
            let mut lines = include_str!("../../../tests/templates.jsonl").lines();
            let variables: BTreeMap<String, Box<RawValue>> =
                serde_json::from_str(lines.next().unwrap()).unwrap();
            let mut wrong = Vec::new();
            for (number, line) in (2..).zip(lines) {
                let (fragment, expected): (String, Option<String>) = serde_json::from_str(line).unwrap();
                let variables =
                    variables.iter().map(|(name, json)| (name.clone(), read_json(json.get()).unwrap()));
                let rendered = Template::parse(&fragment)
                    .and_then(|template| template.render(variables, LIMITS, |format| format.into()));
                if rendered.as_ref().ok() != expected.as_ref() {
                    wrong.push(format!("{number}: {fragment:?}\n  wants {expected:?}\n  gives {rendered:?}"));
                }
            }
            wrong
        });
        let wrong = wrong.unwrap().join().unwrap();
        assert!(wrong.is_empty(), "{} differ:\n{}", wrong.len(), wrong[..wrong.len().min(20)].join("\n"));
    }
}
