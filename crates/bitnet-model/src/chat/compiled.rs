//! A parsed template, and where it is rendered: on the caller's thread where that takes little of its stack, else on a
//! thread with a deep one.

use std::panic::{AssertUnwindSafe, catch_unwind};

use super::{
    date,
    jinja::{self, Error, Limits, Value},
    probe::Probe,
};
use crate::{ModelError, error::one_line};

/// The deep stack. Only what a template really needs of it is ever touched.
const STACK: usize = 128 << 20;
/// Depth of what a template runs on a deep stack.
const DEEPEST: u32 = 3_000;
/// Depth of what a template runs on the caller's thread, where it takes less than a quarter of a megabyte.
const SHALLOW: u32 = 100;
/// Budget of a probe.
const PROBE: Limits = Limits { bytes: 1 << 20, steps: 40_000, nesting: DEEPEST };

/// A template with the tokens that it may insert.
pub(super) struct Compiled {
    pub source: String,
    program: jinja::Template,
    bos_token: String,
    eos_token: String,
}

/// What a template gets.
pub(super) struct Given {
    pub messages: Vec<Value>,
    pub tools: Vec<Value>,
    pub variables: Vec<(String, Value)>,
    /// Whether the assistant's turn is opened.
    pub add_generation_prompt: bool,
}

impl Compiled {
    /// Parses a template; `check` then looks at what it does, on a deep stack.
    pub fn new<T: Send>(
        source: &str,
        [bos_token, eos_token]: [&str; 2],
        check: impl FnOnce(&Compiled) -> T + Send,
    ) -> Result<(Compiled, T), ModelError> {
        on_deep_stack("give a template that Jinja accepts, or run with --raw", || {
            let program = jinja::Template::parse(source)?;
            let source = source.to_owned();
            let bos_token = bos_token.to_owned();
            let eos_token = eos_token.to_owned();
            let compiled = Compiled { source, program, bos_token, eos_token };
            let checked = check(&compiled);
            Ok((compiled, checked))
        })
    }

    /// Renders a conversation within `limits` on bytes and steps. `given` is made anew for each attempt.
    pub fn render(
        &self,
        bytes: usize,
        steps: usize,
        given: impl Fn() -> Result<Given, Error> + Sync,
    ) -> Result<String, ModelError> {
        let cure = "check the roles and their order, or run with --raw";
        let render = |nesting| self.evaluate(given()?, Limits { bytes, steps, nesting });
        match catch_unwind(AssertUnwindSafe(|| render(SHALLOW))) {
            Ok(Err(error)) if error.is_of_depth() => on_deep_stack(cure, || render(DEEPEST)),
            Ok(done) => done.map_err(|error| ModelError::Template { problem: one_line(error), cure }),
            Err(_) => Err(panicked(cure)),
        }
    }

    /// Renders a probe; `None` if the template refuses it.
    pub fn probed(&self, probe: Probe) -> Option<String> {
        let read = |value: &serde_json::Value| jinja::read_json(&value.to_string()).ok();
        let all = |values: &[serde_json::Value]| values.iter().map(read).collect::<Option<_>>();
        let variable = |(name, value): &(&'static str, _)| Some(((*name).to_owned(), read(value)?));
        let given = Given {
            messages: all(&probe.messages)?,
            tools: all(&probe.tools)?,
            variables: probe.variables.iter().map(variable).collect::<Option<_>>()?,
            add_generation_prompt: probe.prompt,
        };
        self.evaluate(given, PROBE).ok()
    }

    /// Renders on this thread.
    fn evaluate(&self, given: Given, limits: Limits) -> Result<String, Error> {
        let Given { messages, tools, variables, add_generation_prompt } = given;
        let tokens = [("bos_token", &self.bos_token), ("eos_token", &self.eos_token)];
        let tokens = tokens.into_iter().filter(|(_, text)| !text.is_empty());
        let tools = if tools.is_empty() { Value::None } else { Value::list(tools)? };
        let standard = [
            ("messages", Value::list(messages)?),
            ("add_generation_prompt", add_generation_prompt.into()),
            ("tools", tools),
            ("documents", Value::None),
        ];
        let standard = standard.into_iter().chain(tokens.map(|(name, text)| (name, text.as_str().into())));
        // The template's standard variables come last: no other can replace them.
        let all = variables.into_iter().chain(standard.map(|(name, value)| (name.to_owned(), value)));
        self.program.render(all, limits, date::now)
    }
}

/// Runs `work` on a new thread with a deep stack.
fn on_deep_stack<T: Send>(
    cure: &'static str,
    work: impl FnOnce() -> Result<T, Error> + Send,
) -> Result<T, ModelError> {
    std::thread::scope(|scope| {
        let work = || work().map_err(one_line);
        let thread = std::thread::Builder::new().stack_size(STACK).spawn_scoped(scope, work);
        let memory = |_| ModelError::Memory { what: "the stack of chat templates", bytes: STACK };
        let done = thread.map_err(memory)?.join().map_err(|_| panicked(cure))?;
        done.map_err(|problem| ModelError::Template { problem, cure })
    })
}

fn panicked(cure: &'static str) -> ModelError {
    ModelError::Template { problem: "its engine panicked".into(), cure }
}

bitnet_tensor::opaque_debug!(Compiled { source });
