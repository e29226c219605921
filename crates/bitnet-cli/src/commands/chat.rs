//! `bitnet chat`: a conversation with history, whose answers are printed as they come.

use std::{
    fmt::Display,
    io,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
    time::Duration,
};

use bitnet::{
    Message, Model, Prompted, Request, Thinking,
    inference::{
        self, EngineConfig, GenerationConfig, RequestHandle, Update,
        metrics::{Measure, Snapshot},
    },
    thought::Split,
};
use rustyline::{DefaultEditor, error::ReadlineError};

use super::run::config;
use crate::{
    args::{ChatArgs, Common},
    error::CliError,
    load, model_arg, output, output_file,
    printer::{AnswerReader, Printer},
    session::{self, Session},
};

/// How often to check for Ctrl-C while waiting for an answer.
const POLL_INTERVAL: Duration = Duration::from_millis(20);
const HELP: &str = "/undo removes the last turn, /reset starts over, /save FILE writes the conversation as JSON, /sessions \
                    lists those that were kept, /help shows this; Ctrl-C stops an answer, Ctrl-D ends the chat";

pub fn run(common: &Common, args: &ChatArgs) -> Result<(), CliError> {
    let opened = model_arg::open_files(&args.model)?;
    model_arg::tokenizer(&opened.checkpoint)?;
    let thinking = args.thinking.of(&opened.checkpoint)?;
    let config = config(&args.sampling, &opened.checkpoint.defaults);
    config.validate(opened.checkpoint.spec.vocab)?;
    let engine = EngineConfig { max_batch_size: 1, ..EngineConfig::default() };
    let model = load::start(common, opened, &args.speculation, engine, &args.cache)?;
    let stop = Arc::new(AtomicBool::new(false));
    let stopped = Arc::clone(&stop);
    let no_signals = |e: ctrlc::Error| CliError::refused(e, "Ctrl-C", "use `bitnet run` instead");
    ctrlc::set_handler(move || stopped.store(true, SeqCst)).map_err(no_signals)?;

    let shows_thoughts = args.thinking.shows();
    let mut chat = Chat { model, config, thinking, shows_thoughts, stop, messages: Vec::new() };
    chat.reset(args.system.as_deref());
    let session = match (&args.cache.folder.cache_dir, &args.session) {
        (Some(folder), Some(name)) => Some(Session::of(folder, name)?),
        _ => None,
    };
    if let Some(session) = &session {
        chat.resume(session)?;
    }
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
        // If the editor does not remember a line, it can be typed again.
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
            "/undo" => {
                chat.undo();
                Ok(())
            }
            "/save" => chat.save(rest.trim()),
            "/sessions" => {
                list_sessions(args);
                Ok(())
            }
            _ if command.starts_with('/') => {
                output::note(format_args!("there is no {command}; {HELP}"));
                Ok(())
            }
            _ => chat.turn(&line),
        };
        let done =
            done.and_then(|()| session.as_ref().map_or(Ok(()), |session| session.save(&chat.messages)));
        match done {
            // The output is closed.
            Err(e @ CliError::Stdout(_)) => return Err(e),
            Err(e) => output::error(&e),
            Ok(()) => {}
        }
    }
}

/// Prints the names of the sessions in the folder of the cache.
fn list_sessions(args: &ChatArgs) {
    let names = args.cache.folder.cache_dir.as_deref().map(session::names).unwrap_or_default();
    match names.as_slice() {
        [] => output::note("no session was kept; --cache-dir DIR --session NAME keeps one"),
        names => output::note(names.join("\n")),
    }
}

/// A conversation and the engine that answers.
struct Chat {
    model: Model,
    config: GenerationConfig,
    thinking: Thinking,
    shows_thoughts: bool,
    stop: Arc<AtomicBool>,
    messages: Vec<Message>,
}

impl Chat {
    fn reset(&mut self, system: Option<&str>) {
        self.messages = system.map(|text| Message::new("system", text)).into_iter().collect();
    }

    /// Goes on with a session, unless it is new.
    fn resume(&mut self, session: &Session) -> Result<(), CliError> {
        let messages = session.messages()?;
        if messages.iter().any(|message| message.role == "user") {
            self.messages = messages;
            output::note(format_args!("{} goes on after {} messages", session.name(), self.messages.len()));
        }
        Ok(())
    }

    /// Removes the last message of the user and its answer.
    fn undo(&mut self) {
        match self.messages.iter().rposition(|message| message.role == "user") {
            Some(last) => {
                self.messages.truncate(last);
                output::note(format_args!("{} messages are left", self.messages.len()));
            }
            None => output::note("there is no turn to remove"),
        }
    }

    /// Sends a message and prints the answer as it comes. A turn that fails is removed from the conversation.
    fn turn(&mut self, message: &str) -> Result<(), CliError> {
        self.messages.push(Message::new("user", message));
        let answered = self.fitting_prompt().and_then(|prompt| self.answer(prompt));
        match answered {
            Ok(Split { thought, answer }) => {
                // The template decides what of earlier thoughts the model sees again.
                let reasoning = Some(thought).filter(|thought| !thought.is_empty());
                self.messages.push(Message { reasoning, ..Message::new("assistant", answer) });
            }
            Err(e) => {
                self.messages.pop();
                return Err(e);
            }
        }
        Ok(())
    }

    /// Returns the conversation as a prompt, without its oldest turns if all of them leave no room for an answer.
    fn fitting_prompt(&mut self) -> Result<Prompted, CliError> {
        let context = self.model.engine().context();
        let room = self.config.max_new_tokens.min(context / 4);
        let mut dropped = 0;
        loop {
            let request = Request::chat(self.messages.clone()).thinking(self.thinking.clone());
            let prompt = request.prompted(self.model.checkpoint())?;
            let length = prompt.tokens.len();
            let oldest = self.messages.iter().position(|message| message.role == "user");
            let second = oldest.and_then(|first| {
                let later = self.messages[first + 1..].iter().position(|message| message.role == "user")?;
                Some(first..first + 1 + later)
            });
            match second {
                Some(turn) if length + room > context => {
                    self.messages.drain(turn);
                    dropped += 1;
                }
                _ if length >= context => {
                    let what = format!("the message has {length} tokens, and there is room for {context}");
                    return Err(CliError::refused(what, "chat", "give a shorter one"));
                }
                _ => {
                    match dropped {
                        0 => {}
                        1 => output::note("the oldest turn was dropped to make room"),
                        n => output::note(format_args!("the oldest {n} turns were dropped to make room")),
                    }
                    return Ok(prompt);
                }
            }
        }
    }

    /// Generates and prints the answer until it ends or is stopped. The cache still holds the previous turns.
    fn answer(&self, prompt: Prompted) -> Result<Split, CliError> {
        let Prompted { tokens, thought, .. } = prompt;
        let reader = AnswerReader::new(self.model.tokenizer(), thought.as_ref());
        let mut printer = Printer::new(reader, self.shows_thoughts);
        let request = inference::Request { thought, ..inference::Request::new(tokens, self.config.clone()) };
        let metrics = self.model.engine().metrics();
        metrics.reset();
        let handle = self.model.engine().submit(request).map_err(failed)?;
        self.stop.store(false, SeqCst);
        let (ids, tail) = read(handle, &self.stop, |token| printer.token(token))?;
        let answer = printer.end(&tail)?;
        if let Some(speed) = speed(&metrics.snapshot()) {
            output::note(format_args!("[{} tokens {speed}]", ids.len()));
        }
        Ok(answer)
    }

    /// Writes the conversation as messages of OpenAI's API.
    fn save(&self, path: &str) -> Result<(), CliError> {
        if path.is_empty() {
            return Err(CliError::refused("there is no file name", "/save", "give one after the command"));
        }
        let message = |m: &Message| match &m.reasoning {
            None => serde_json::json!({"role": m.role, "content": m.content}),
            Some(thought) => {
                serde_json::json!({"role": m.role, "reasoning_content": thought, "content": m.content})
            }
        };
        let messages: Vec<_> = self.messages.iter().map(message).collect();
        let text = serde_json::to_vec_pretty(&messages).map_err(|e| CliError::Stdout(e.into()))?;
        output_file::save(Path::new(path), &text)?;
        output::note(format_args!("{} messages in {path}", messages.len()));
        Ok(())
    }
}

/// The speed at which the engine made the tokens of a single request. The times at which its reader took them would tell
/// how fast the terminal is.
fn speed(made: &Snapshot) -> Option<String> {
    let between = made.measure(Measure::InterToken).mean().filter(|&mean| mean > 0.0)?;
    let wait = made.measure(Measure::FirstToken).mean()?;
    Some(format!("at {:.1} tok/s, first after {wait:.2} s", 1.0 / between))
}

fn failed(error: impl Display) -> CliError {
    CliError::refused(error, "generation", "report this")
}

/// Returns the tokens of an answer and the text after them, until it ends or `stop` is set. It does not wait for the
/// current step, which may take seconds for a long prompt.
fn read(
    mut handle: RequestHandle,
    stop: &AtomicBool,
    mut print: impl FnMut(u32) -> io::Result<()>,
) -> Result<(Vec<u32>, Vec<u8>), CliError> {
    let (mut tokens, mut tail) = (Vec::new(), Vec::new());
    while !stop.load(SeqCst) {
        match handle.recv_timeout(POLL_INTERVAL) {
            Ok(Some(Update::Token { token, .. })) => {
                tokens.push(token);
                print(token).map_err(CliError::Stdout)?;
            }
            Ok(Some(Update::Ended { end, .. })) => tail = end.map_err(failed)?.tail,
            Ok(None) => break,
            Err(_) => {}
        }
    }
    Ok((tokens, tail))
}

#[cfg(test)]
mod tests {
    use std::{sync::mpsc::channel, thread};

    use bitnet::inference::{
        Engine,
        names::{PaddedBatch, StatelessForward},
    };

    use super::*;

    #[test]
    fn the_speed_of_an_answer_is_that_of_the_engine_not_of_its_reader() {
        let forward = |_: &PaddedBatch| {
            thread::sleep(Duration::from_millis(20));
            Ok(vec![vec![0.0; 4]])
        };
        let engine =
            Engine::start(StatelessForward::new(4, 64, 1, forward), EngineConfig::default()).unwrap();
        assert_eq!(speed(&engine.metrics().snapshot()), None);
        let config = GenerationConfig { max_new_tokens: 4, ignore_eos: true, ..GenerationConfig::default() };
        let handle = engine.submit(inference::Request::new(vec![1; 10], config)).unwrap();
        // All tokens are made before the first is read.
        while engine.metrics().snapshot().measure(Measure::EndToEnd).count == 0 {
            thread::sleep(Duration::from_millis(5));
        }
        read(handle, &AtomicBool::new(false), |_| Ok(())).unwrap();
        let told = speed(&engine.metrics().snapshot()).unwrap();
        let speed: f64 = told.split_whitespace().nth(1).unwrap().parse().unwrap();
        assert!(speed <= 50.0, "{told}");
    }

    #[test]
    fn an_answer_is_stopped_while_its_prompt_is_computed() {
        let (begun, has_begun) = channel();
        let (end, may_end) = channel::<()>();
        let forward = move |_: &PaddedBatch| {
            begun.send(()).unwrap();
            // Longer than the test, unless told to end.
            let _ = may_end.recv_timeout(Duration::from_secs(600));
            Ok(vec![vec![0.0; 4]])
        };
        let engine =
            Engine::start(StatelessForward::new(4, 64, 1, forward), EngineConfig::default()).unwrap();
        let request = inference::Request::new(vec![1; 10], GenerationConfig::default());
        let handle = engine.submit(request).unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let stopping = Arc::clone(&stop);
        let (done, answered) = channel();
        let reader = thread::spawn(move || {
            let read = read(handle, &stopping, |_| Ok(()));
            done.send(()).unwrap();
            read
        });
        has_begun.recv().unwrap();
        stop.store(true, SeqCst);
        let answered = answered.recv_timeout(Duration::from_secs(30));
        end.send(()).unwrap();
        drop(end);
        assert!(answered.is_ok(), "the answer went on with its prompt");
        assert_eq!(reader.join().unwrap().unwrap(), (vec![], vec![]));
    }
}
