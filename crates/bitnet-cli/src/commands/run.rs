//! `bitnet run`: completes a prompt, or answers a message, and streams the text.

use std::{
    io::{self, IsTerminal},
    ops::ControlFlow,
    path::Path,
    sync::Arc,
    time::Duration,
};

use bitnet::inference::{
    self, Drafter, EngineConfig, Generated, GenerationConfig, GenerationError, TokenText, generate_drafting,
};
use bitnet::model::{Checkpoint, GenerationDefaults, Message, Model};
use bitnet::{Prompted, Request, thought::Split};
use serde_json::json;

use crate::{
    args::{Common, RunArgs, Sampling},
    commands::tokenize::stdin,
    error::CliError,
    input_text,
    load::{self, Loaded, Want, load_drafting},
    model_arg, output,
    printer::{AnswerReader, Printer},
};

/// Maximum number of prompt tokens in one step.
const STEP: usize = 512;
/// Number of snapshots of recurrent states beside the text's own state, to write and to read.
const SNAPSHOTS: usize = 4;

pub fn run(common: &Common, args: &RunArgs) -> Result<(), CliError> {
    let opened = model_arg::open_files(&args.model)?;
    let checkpoint = &opened.checkpoint;
    let config = config(&args.sampling, &checkpoint.defaults);
    config.validate(checkpoint.spec.vocab)?;
    let Prompted { tokens: prompt, thought, .. } = prompt(args, checkpoint)?;
    let context = checkpoint.spec.context;
    if prompt.len() >= context {
        let what = format!("the prompt has {} tokens, and the model's context is {context}", prompt.len());
        return Err(CliError::refused(what, "PROMPT", "give a shorter one"));
    }
    if checkpoint.tokenizer.is_none() && !config.stop_strings.is_empty() {
        return Err(CliError::refused(
            "a model without a tokenizer has no text to stop at",
            "--stop",
            "leave it out",
        ));
    }
    // The prompt is shorter than the context, and needs room for one more token even if none is requested.
    let least = prompt.len() + 1;
    let tokens = prompt.len().saturating_add(config.max_new_tokens).clamp(least, context);
    let draft = args.speculation.open(checkpoint)?;
    let drafts = draft.most(args.speculation.speculate.into());
    let step = prompt.len().min(STEP).max(1 + drafts);
    let want = Want { step, least, windows: true, ..Want::sequences(1, tokens).drafting(drafts) };
    // What a folder can keep of recurrent layers are snapshots.
    let snapshots = if args.cache.cache_dir.is_some() { SNAPSHOTS } else { 0 };
    let want = Want { states: want.states + snapshots, ..want };
    let Loaded { mut model, drafter, .. } = load_drafting(common, checkpoint, &draft, want)?;
    if model.spec().context < tokens {
        let held = model.spec().context;
        output::note(format_args!(
            "note: the memory allows {held} tokens of the {tokens} wanted; --memory can give more"
        ));
    }

    let folder = load::folder(&args.cache, &opened, &*model)?;
    let engine = EngineConfig { folder, ..engine_config(checkpoint, drafts) };
    let length = prompt.len();
    let request = inference::Request { thought, ..inference::Request::new(prompt, config.clone()) };
    let mut reader = AnswerReader::new(checkpoint.tokenizer.as_ref(), request.thought.as_ref());
    if args.json {
        let read = |token| {
            reader.token(token);
            Ok(())
        };
        let generated = complete(&mut *model, drafter, request.clone(), &engine, read)?;
        reader.end(&generated.tail);
        return output::json(&report(checkpoint, &*model, &request, reader.answer, &generated));
    }
    let mut printer = Printer::new(reader, args.thinking.shows());
    let generated = complete(&mut *model, drafter, request, &engine, |token| printer.token(token))?;
    printer.end(&generated.tail)?;

    let info = model.backend();
    output::note(pace(length, &generated));
    output::note(format_args!(
        "seed {}, temperature {}, kv {}, on {}, isa {}, {} threads",
        generated.seed, config.temperature, info.kv, info.device, info.isa, info.threads
    ));
    Ok(())
}

/// Describes a generation as a JSON object; what was not measured is null, and so is a thought if there was none.
fn report(
    checkpoint: &Checkpoint,
    model: &dyn Model,
    request: &inference::Request,
    Split { thought, answer }: Split,
    generated: &Generated,
) -> serde_json::Value {
    let info = model.backend();
    json!({
        "model": checkpoint.name,
        "text": checkpoint.tokenizer.as_ref().map(|_| answer),
        "thought": Some(thought).filter(|thought| !thought.is_empty()),
        "token_ids": generated.tokens,
        "finish_reason": generated.finish.to_string(),
        "prompt_tokens": request.prompt.len(),
        "cached_tokens": generated.cached_tokens,
        "thought_tokens": generated.thought_tokens,
        "seed": generated.seed,
        "temperature": request.config.temperature,
        "first_token_seconds": generated.first_token.map(|time| time.as_secs_f64()),
        "decode_seconds": generated.decode.map(|time| time.as_secs_f64()),
        "drafted": generated.drafted,
        "accepted": generated.accepted,
        "device": info.device,
        "isa": info.isa,
        "threads": info.threads,
        "kv": info.kv,
    })
}

/// Reports the number of prompt and generated tokens, with speeds where they were measured.
fn pace(prompt: usize, generated: &Generated) -> String {
    let Generated { tokens, finish, first_token, drawn, decode, drafted, accepted, .. } = generated;
    let thought = match generated.thought_tokens {
        0 => String::new(),
        n => format!(", {n} of them for thoughts"),
    };
    let cached = match generated.cached_tokens {
        0 => String::new(),
        n => format!(", {n} of them from the cache, the others"),
    };
    let computed = prompt - generated.cached_tokens;
    let prefill = first_token.map_or(String::new(), |time| {
        format!("{cached} at {}, first token after {:.3} s", rate(computed, time), time.as_secs_f64())
    });
    // The first token comes from the step of the prompt.
    let decode = decode.map_or(String::new(), |time| format!(" at {}", rate(drawn.saturating_sub(1), time)));
    let accepted_drafts = match drafted {
        0 => String::new(),
        _ => format!(", {accepted} of {drafted} draft tokens accepted"),
    };
    format!(
        "{prompt} prompt tokens{prefill}; {} tokens generated{thought}{decode}{accepted_drafts}, ended by {finish}",
        tokens.len()
    )
}

/// Configures an engine that knows the model's text and drafts up to `max_draft` tokens per step.
pub(super) fn engine_config(checkpoint: &Checkpoint, max_draft: usize) -> EngineConfig {
    EngineConfig {
        max_draft,
        text: checkpoint.tokenizer.clone().map(|t| Arc::new(t) as Arc<dyn TokenText>),
        ..EngineConfig::default()
    }
}

/// Runs a request and passes each token to `print` as it comes.
fn complete(
    model: &mut dyn Model,
    drafter: Option<Box<dyn Drafter>>,
    request: inference::Request,
    engine: &EngineConfig,
    mut print: impl FnMut(u32) -> io::Result<()>,
) -> Result<Generated, CliError> {
    let mut failed = None;
    let each = |token| match print(token) {
        Ok(()) => ControlFlow::Continue(()),
        Err(e) => {
            failed = Some(e);
            ControlFlow::Break(())
        }
    };
    let generated =
        generate_drafting(model, drafter, request, engine, each).map_err(|error| match error {
            GenerationError::Start(error) => bitnet::Error::from(error).into(),
            error => CliError::Generate(error),
        })?;
    match failed {
        None => Ok(generated),
        Some(e) => Err(CliError::Stdout(e)),
    }
}

/// Takes the user's settings, or the model's where the user gave none.
pub(super) fn config(args: &Sampling, defaults: &GenerationDefaults) -> GenerationConfig {
    let own = bitnet::sampling(defaults);
    GenerationConfig {
        max_new_tokens: args.max_tokens,
        temperature: args.temperature.unwrap_or(own.temperature),
        top_k: args.top_k.unwrap_or(own.top_k),
        top_p: args.top_p.unwrap_or(own.top_p),
        min_p: args.min_p.unwrap_or(own.min_p),
        repetition_penalty: args.repetition_penalty.unwrap_or(own.repetition_penalty),
        seed: args.seed,
        stop_strings: args.stop.clone(),
        ..own
    }
}

fn prompt(args: &RunArgs, checkpoint: &Checkpoint) -> Result<Prompted, CliError> {
    let request = match &args.ids {
        Some(ids) => {
            model_arg::check_ids(checkpoint, &ids.0, "--ids")?;
            Request::tokens(&ids.0[..])
        }
        None => {
            model_arg::tokenizer(checkpoint)?;
            let templated = checkpoint.chat.is_some() && !args.raw;
            if args.system.is_some() && !templated {
                let cure = "leave it out, or put it into the prompt";
                return Err(CliError::refused("the model has no chat template for it", "--system", cure));
            }
            let thinking = args.thinking.of(checkpoint)?;
            let text = text(args)?;
            let system = args.system.as_ref().map(|text| Message::new("system", text));
            if templated {
                Request::chat(system.into_iter().chain([Message::new("user", text)])).thinking(thinking)
            } else {
                Request::new(text)
            }
        }
    };
    let prompted = request.prompted(checkpoint)?;
    if prompted.tokens.is_empty() {
        return Err(CliError::usage("the prompt is empty", "PROMPT", "give at least one character"));
    }
    Ok(prompted)
}

/// Returns the text of the prompt: the argument, a file without its last line end, or stdin likewise.
fn text(args: &RunArgs) -> Result<String, CliError> {
    let mut text = match (args.prompt.as_deref(), args.file.as_deref()) {
        (Some(text), _) if text != "-" => return Ok(text.to_owned()),
        (None, Some(file)) if file != Path::new("-") => input_text::read_file(file)?,
        (None, None) if io::stdin().is_terminal() => {
            let cure = "give it after the model, with --file, or through a pipe";
            return Err(CliError::usage("there is no prompt", "PROMPT", cure));
        }
        _ => stdin()?,
    };
    // Programs on Windows end lines with two characters.
    let line_end = ["\r\n", "\n"].into_iter().find(|end| text.ends_with(end)).unwrap_or_default();
    text.truncate(text.len() - line_end.len());
    Ok(text)
}

fn rate(tokens: usize, time: Duration) -> String {
    format!("{:.1} tok/s", tokens as f64 / time.as_secs_f64())
}
