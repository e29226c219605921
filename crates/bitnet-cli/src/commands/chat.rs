use std::{
    fs,
    io::Write,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
};

use bitnet_inference::{Engine, EngineConfig, GenerationConfig, Request, Update};
use bitnet_model::{Checkpoint, Message};
use rustyline::{DefaultEditor, error::ReadlineError};

use super::run::{Printer, config, engine_config};
use crate::{
    args::{ChatArgs, Common},
    error::CliError,
    load::{Want, load},
    model_arg, output,
    output_file::OutputFile,
};

/// Most tokens of a conversation in one step.
const STEP: usize = 512;
/// Tokens that a conversation must have room for.
const LEAST: usize = 64;
const HELP: &str = "/reset begins anew, /save FILE writes the conversation as JSON, /help says this; Ctrl-C stops an \
                    answer, Ctrl-D ends";

/// `bitnet chat`.
pub fn run(common: &Common, args: &ChatArgs) -> Result<(), CliError> {
    let checkpoint = model_arg::open(&args.model)?;
    model_arg::tokenizer(&checkpoint)?;
    let config = config(&args.sampling, &checkpoint.defaults);
    config.validate(checkpoint.spec.vocab)?;
    let context = checkpoint.spec.context;
    let least = LEAST.min(context);
    let drafts = usize::from(args.speculation.speculate);
    let step = STEP.min(context).max(1 + drafts);
    let want = Want { step, all_logits: false, sequences: 1, drafts, tokens: context, least };
    let model = load(common, &checkpoint, want)?.model;
    let engine = EngineConfig { max_batch_size: 1, ..engine_config(&checkpoint, drafts) };
    let engine =
        Engine::start_boxed(model, engine).map_err(|e| CliError::refused(e, "engine", "report this"))?;
    let stop = Arc::new(AtomicBool::new(false));
    let stopped = Arc::clone(&stop);
    let no_signals = |e: ctrlc::Error| CliError::refused(e, "Ctrl-C", "use `bitnet run` instead");
    ctrlc::set_handler(move || stopped.store(true, SeqCst)).map_err(no_signals)?;

    let mut chat = Chat { checkpoint: &checkpoint, engine, config, stop, messages: Vec::new() };
    chat.reset(args.system.as_deref());
    let no_terminal = |e: ReadlineError| CliError::refused(e, "terminal", "use `bitnet run` instead");
    let mut editor = DefaultEditor::new().map_err(no_terminal)?;
    output::note(HELP);
    loop {
        let line = match editor.readline("> ") {
            Ok(line) => line,
            Err(ReadlineError::Interrupted) => continue,
            Err(ReadlineError::Eof) => return Ok(()),
            Err(e) => return Err(no_terminal(e)),
        };
        // A line that the editor does not remember can be typed again.
        let _ = editor.add_history_entry(&line);
        let (command, rest) = line.trim().split_once(' ').unwrap_or((line.trim(), ""));
        let done = match command {
            "" => Ok(()),
            "/help" => {
                output::note(HELP);
                Ok(())
            }
            "/reset" => {
                chat.reset(args.system.as_deref());
                Ok(())
            }
            "/save" => chat.save(rest.trim()),
            _ if command.starts_with('/') => {
                output::note(format_args!("there is no {command}; {HELP}"));
                Ok(())
            }
            _ => chat.turn(&line),
        };
        match done {
            // Nobody reads any more.
            Err(e @ CliError::Stdout(_)) => return Err(e),
            Err(e) => output::error(&e),
            Ok(()) => {}
        }
    }
}

/// A conversation, and what answers.
struct Chat<'a> {
    checkpoint: &'a Checkpoint,
    engine: Engine,
    config: GenerationConfig,
    stop: Arc<AtomicBool>,
    messages: Vec<Message>,
}

impl Chat<'_> {
    fn reset(&mut self, system: Option<&str>) {
        self.messages = system.map(|text| Message::new("system", text)).into_iter().collect();
    }

    /// Asks, and prints the answer as it comes. A turn that fails is not part of the conversation.
    fn turn(&mut self, said: &str) -> Result<(), CliError> {
        self.messages.push(Message::new("user", said));
        let answered = self.prompt().and_then(|prompt| self.answer(prompt));
        match answered {
            Ok(answer) => self.messages.push(Message::new("assistant", answer)),
            Err(e) => {
                self.messages.pop();
                return Err(e);
            }
        }
        Ok(())
    }

    /// The conversation as the model wants it.
    fn prompt(&self) -> Result<Vec<u32>, CliError> {
        let tokenizer = model_arg::tokenizer(self.checkpoint)?;
        let ids = match &self.checkpoint.chat {
            Some(template) => tokenizer.encode(&template.render(&self.messages, true)?, false)?,
            None => {
                let contents: Vec<&str> = self.messages.iter().map(|m| m.content.as_str()).collect();
                tokenizer.encode(&contents.join("\n\n"), true)?
            }
        };
        let context = self.engine.context();
        if ids.len() >= context {
            let what = format!("the conversation has {} tokens, and there is room for {context}", ids.len());
            return Err(CliError::refused(what, "chat", "begin anew with /reset"));
        }
        Ok(ids)
    }

    /// The text that follows, as far as nobody stopped it. What was computed for the turns before is in the cache.
    fn answer(&self, prompt: Vec<u32>) -> Result<String, CliError> {
        let failed = |e: &dyn std::fmt::Display| CliError::refused(e, "generation", "report this");
        let mut handle =
            self.engine.submit(Request::new(prompt, self.config.clone())).map_err(|e| failed(&e))?;
        let tokenizer = self.checkpoint.tokenizer.as_ref();
        let (mut printer, mut ids) = (Printer::new(tokenizer), Vec::new());
        let mut tail = Vec::new();
        self.stop.store(false, SeqCst);
        while let Some(update) = handle.recv() {
            match update {
                Update::Token { token, .. } => {
                    ids.push(token);
                    printer.token(token).map_err(CliError::Stdout)?;
                }
                Update::Ended { end, .. } => tail = end.map_err(|e| failed(&e))?.tail,
            }
            if self.stop.load(SeqCst) {
                handle.cancel();
            }
        }
        printer.end(&tail)?;
        let mut text = model_arg::tokenizer(self.checkpoint)?.decode(&ids, true)?;
        text.push_str(&String::from_utf8_lossy(&tail));
        Ok(text)
    }

    /// Writes the conversation as messages of OpenAI's API.
    fn save(&self, path: &str) -> Result<(), CliError> {
        if path.is_empty() {
            return Err(CliError::refused("there is no name to save under", "/save", "give a file"));
        }
        let messages: Vec<_> = (self.messages.iter())
            .map(|m| serde_json::json!({"role": m.role, "content": m.content}))
            .collect();
        let file = OutputFile::create(Path::new(path))?;
        let text = serde_json::to_vec_pretty(&messages).map_err(|e| CliError::Stdout(e.into()))?;
        let write = || fs::File::create(file.path())?.write_all(&text);
        write().map_err(CliError::file("write", path))?;
        file.commit()?;
        output::note(format_args!("{} messages in {path}", messages.len()));
        Ok(())
    }
}
