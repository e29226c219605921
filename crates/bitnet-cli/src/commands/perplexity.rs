//! Measures how well a model predicts a text; the command's help ([`PerplexityArgs`]) has the definition.

use bitnet::inference::sampling::loss_in_nats;
use bitnet::model::{Checkpoint, Tokenizer};
use serde::Serialize;

use crate::{
    args::{Common, PerplexityArgs},
    commands::logits::prefill,
    error::CliError,
    input_text,
    load::{Want, load},
    model_arg, output,
    progress::Progress,
};

const DEFAULT_WINDOW: usize = 512;
/// Tokens in a step. Each has a row of logits, which may take half a megabyte.
const STEP: usize = 128;

#[derive(Serialize)]
struct Report {
    model: String,
    file: String,
    kv: &'static str,
    file_tokens: usize,
    context: usize,
    windows: usize,
    scored_tokens: usize,
    scored_characters: usize,
    nats_per_token: f64,
    perplexity: f64,
    /// Standard error of the perplexity, from that of the mean loss; `None` for a single token.
    standard_error: Option<f64>,
    bits_per_character: f64,
}

pub fn run(common: &Common, args: &PerplexityArgs) -> Result<(), CliError> {
    let checkpoint = model_arg::open(&args.model)?;
    let tokenizer = model_arg::tokenizer(&checkpoint)?;
    let window = window(args, &checkpoint)?;
    let ids = tokenizer.encode(&input_text::read_file(&args.file)?, true)?;
    if ids.len() < window {
        let what = format!("the text has {} tokens, fewer than a window of {window}", ids.len());
        return Err(CliError::refused(
            what,
            args.file.display(),
            "give a longer text or a smaller --context",
        ));
    }
    model_arg::check_ids(&checkpoint, &ids, "FILE")?;
    let want = Want { step: window.min(STEP), all_logits: true, ..Want::sequences(1, window) };
    let mut model = load(common, &checkpoint, want)?.model;

    let mut loss = Loss::default();
    let mut characters = 0;
    let bar = Progress::new("windows", ids.len() / window);
    for ids in ids.chunks_exact(window) {
        prefill(&mut *model, ids, |i, row| {
            if let Some(&next) = ids.get(i + 1) {
                loss.add(loss_in_nats(row, next));
            }
        })?;
        if !loss.mean().exp().is_finite() {
            return Err(CliError::NotFinite { model: checkpoint.name });
        }
        characters += count_characters(tokenizer, &ids[1..])?;
        bar.step();
    }
    drop(bar);

    let (mean, error) = (loss.mean(), loss.standard_error());
    let report = Report {
        model: checkpoint.name.clone(),
        file: args.file.display().to_string(),
        kv: model.backend().kv,
        file_tokens: ids.len(),
        context: window,
        windows: ids.len() / window,
        scored_tokens: loss.count,
        scored_characters: characters,
        nats_per_token: mean,
        perplexity: mean.exp(),
        standard_error: error.map(|error| mean.exp() * error),
        bits_per_character: loss.sum / std::f64::consts::LN_2 / characters.max(1) as f64,
    };
    if args.json {
        return output::json(&report);
    }
    let Report { perplexity, standard_error, bits_per_character, scored_tokens, windows, .. } = report;
    let error = standard_error.map_or("unknown".into(), |error| format!("{error:.4}"));
    output::line(format_args!("perplexity {perplexity:.4} +/- {error}"))?;
    output::line(format_args!("{bits_per_character:.4} bits per character, {mean:.4} nats per token"))?;
    output::line(format_args!("{scored_tokens} tokens scored in {windows} windows of {window}"))
}

fn window(args: &PerplexityArgs, checkpoint: &Checkpoint) -> Result<usize, CliError> {
    let context = checkpoint.spec.context;
    let window = args.context.unwrap_or(DEFAULT_WINDOW.min(context));
    if window < 2 {
        return Err(CliError::usage(
            format!("a window of {window} tokens predicts nothing"),
            "--context",
            "give 2 or more",
        ));
    }
    if window > context {
        let what = format!("a window of {window} tokens is longer than the model's context");
        return Err(CliError::refused(what, "--context", format!("give at most {context}")));
    }
    Ok(window)
}

fn count_characters(tokenizer: &Tokenizer, ids: &[u32]) -> Result<usize, CliError> {
    // A padded vocabulary may have ids without text, but tokenised text contains none of them.
    Ok(tokenizer.decode(ids, true)?.chars().count())
}

/// Mean and spread of the losses (Welford's algorithm).
#[derive(Default)]
struct Loss {
    count: usize,
    sum: f64,
    mean: f64,
    squares: f64,
}

impl Loss {
    fn add(&mut self, nats: f64) {
        self.count += 1;
        self.sum += nats;
        let delta = nats - self.mean;
        self.mean += delta / self.count as f64;
        self.squares += delta * (nats - self.mean);
    }

    fn mean(&self) -> f64 {
        self.sum / self.count as f64
    }

    fn standard_error(&self) -> Option<f64> {
        let (count, others) = (self.count as f64, self.count.saturating_sub(1) as f64);
        (self.count > 1).then(|| (self.squares / others / count).sqrt())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_standard_error_is_that_of_the_mean() {
        let mut loss = Loss::default();
        [1.0, 2.0, 3.0, 4.0].into_iter().for_each(|x| loss.add(x));
        assert!((loss.mean() - 2.5).abs() < 1e-12);
        // Variance 5/3 of four values.
        assert!((loss.standard_error().unwrap() - (5.0f64 / 12.0).sqrt()).abs() < 1e-12);
    }
}
