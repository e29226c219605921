//! Runs sequences directly on a model, without an engine.

use std::{
    ops::ControlFlow,
    sync::Arc,
    time::{Duration, Instant},
};

use bitnet::inference::{
    Constraint, EngineConfig, Generated, GenerationConfig, Request, generate,
    sampling::{Draw, Sampler},
};
use bitnet::kernels::{Drawn, HeadCounts, SamplingParams, Wanted};
use bitnet::load::WeightBytes;
use bitnet::model::{Batch, Checkpoint, Logits, Model};

use super::{
    cpu_time::timed,
    drafts, json,
    report::{Decode, HeadRows, Sampling, Speculation},
    runs::{REPEATS, repeated},
    speed::Speed,
};
use crate::{args::DEFAULT_DEPTH, error::CliError, progress::Progress};

/// Prompts are up to this many tokens longer than the shortest.
pub const RAGGED: usize = 5;

/// A model, and the buffers of its steps.
pub struct Sequences<'a> {
    name: &'a str,
    model: &'a mut dyn Model,
    /// Blocks of each sequence in a batch.
    blocks: usize,
    batch: Batch,
    logits: Logits,
}

/// A way to decode a sequence.
#[derive(Clone, Default)]
struct Way {
    config: GenerationConfig,
    /// Maximum number of draft tokens in a step.
    drafts: usize,
    /// Restricts which tokens may be drawn.
    constraint: Option<Arc<dyn Constraint>>,
}

/// A text that was decoded several times.
struct Decoded {
    text: Generated,
    speed: Speed,
    runs: usize,
    /// Work of the output head in all runs, if known.
    head: Option<HeadCounts>,
}

/// Sequences whose prompts are in the cache.
pub struct Prefilled {
    lens: Vec<usize>,
    next: Vec<u32>,
}

impl<'a> Sequences<'a> {
    /// Each sequence gets room for `tokens` tokens.
    pub fn new(name: &'a str, model: &'a mut dyn Model, tokens: usize) -> Self {
        let blocks = tokens.div_ceil(Batch::BLOCK_TOKENS);
        Sequences { name, model, blocks, batch: Batch::new(), logits: Logits::default() }
    }

    /// Makes reproducible token ids that differ by `member`.
    fn prompt(&self, member: usize, tokens: usize) -> Vec<u32> {
        let vocab = self.model.spec().vocab;
        (0..tokens).map(|i| ((i + 1) * (2 * member + 7) * 2_654_435_761 % vocab) as u32).collect()
    }

    fn table(&self, seat: usize) -> Vec<u32> {
        ((seat * self.blocks) as u32..((seat + 1) * self.blocks) as u32).collect()
    }

    /// Measures the time to compute one prompt and draw the next token.
    pub fn prefill(&mut self, tokens: usize) -> Result<Duration, CliError> {
        let prompt = self.prompt(0, tokens);
        let table: Vec<u32> = (0..tokens.div_ceil(Batch::BLOCK_TOKENS) as u32).collect();
        let start = Instant::now();
        self.read(0, &prompt, &table)?;
        Ok(start.elapsed())
    }

    /// Computes a prompt in the largest steps that the model takes, and draws the next token.
    fn read(&mut self, seat: u32, prompt: &[u32], table: &[u32]) -> Result<u32, CliError> {
        let (mut done, mut drawn) = (0, Vec::new());
        for chunk in prompt.chunks(self.model.limits().max_tokens) {
            let last = done + chunk.len() == prompt.len();
            self.batch.clear();
            self.batch.push(chunk, done, table, if last { chunk.len() - 1..chunk.len() } else { 0..0 });
            self.batch.set_state(seat);
            self.batch.want(|_| Wanted::Token(SamplingParams::GREEDY));
            drawn = self.most_likely()?;
            done += chunk.len();
        }
        drawn
            .pop()
            .ok_or_else(|| CliError::usage("an empty prompt has no next token", "-p", "give at least 1"))
    }

    /// Computes the prompts of these members, which differ in length, so that neighbours are at different positions.
    pub fn begin(&mut self, members: &[usize], prompt: usize) -> Result<Prefilled, CliError> {
        let mut begun = Prefilled { lens: Vec::new(), next: Vec::new() };
        for (seat, &member) in members.iter().enumerate() {
            let prompt = self.prompt(member, prompt + member % (RAGGED + 1));
            let table = self.table(seat);
            begun.next.push(self.read(seat as u32, &prompt, &table)?);
            begun.lens.push(prompt.len());
        }
        Ok(begun)
    }

    /// Decodes all sequences together from where they began; returns the time of the steps and the tokens of each
    /// sequence.
    pub fn decode(
        &mut self,
        begun: &Prefilled,
        tokens: usize,
    ) -> Result<(Duration, Vec<Vec<u32>>), CliError> {
        let tables: Vec<Vec<u32>> = (0..begun.lens.len()).map(|seat| self.table(seat)).collect();
        let mut next = begun.next.clone();
        let mut out = vec![Vec::with_capacity(tokens); tables.len()];
        let start = Instant::now();
        for step in 0..tokens {
            self.batch.clear();
            for (seat, ((table, len), token)) in (0..).zip(tables.iter().zip(&begun.lens).zip(&next)) {
                self.batch.push(&[*token], len + step, table, 0..1);
                self.batch.set_state(seat);
                self.batch.want(|_| Wanted::Token(SamplingParams::GREEDY));
                out[seat as usize].push(*token);
            }
            next = self.most_likely()?;
        }
        Ok((start.elapsed(), out))
    }

    /// Measures the speed of decoding `tokens` tokens of each sequence, which began after `depth` tokens, up to `runs`
    /// times.
    pub fn decode_speed(
        &mut self,
        begun: &Prefilled,
        depth: usize,
        (tokens, runs): (usize, u8),
        weights: &WeightBytes,
    ) -> Result<Decode, CliError> {
        let batch = begun.lens.len();
        let decode = || self.decode(begun, tokens).map(|(time, _)| time);
        let (times, cpu_ms) = timed(|| repeated(runs.into(), decode));
        let times = times?;
        let cpu_ms = cpu_ms.map(|ms| ms / (times.len() * batch * tokens) as f64);
        let speed = Speed::of(batch * tokens, times);
        let steps = speed.tok_s / batch as f64;
        let gb_s = weights.step as f64 * steps / 1e9;
        // On average, half of the decoded tokens are before a token.
        let before = begun.lens.iter().sum::<usize>() as f64 + (batch * tokens) as f64 / 2.0;
        let all = self.model.spec().sliding_window().is_none();
        let cache = self.model.cache_bytes().filter(|_| all);
        let a_token = cache.map(|bytes| bytes.block as f64 / Batch::BLOCK_TOKENS as f64);
        let cache_gb_s = a_token.map(|bytes| bytes * before * steps / 1e9);
        Ok(Decode { batch, depth, speed, gb_s, cache_gb_s, cpu_ms })
    }

    /// Decodes one sequence with and without up to `drafts` draft tokens per step, for a text that repeats itself and
    /// for one whose repetitions continue differently.
    pub fn speculation(&mut self, drafts: usize, tokens: usize) -> Result<Vec<Speculation>, CliError> {
        let prompt = self.prompt(0, DEFAULT_DEPTH);
        let repeating = GenerationConfig { logit_bias: vec![(1, 100.0)], ..GenerationConfig::default() };
        let varying = GenerationConfig {
            temperature: 1.0,
            seed: Some(1),
            logit_bias: (1..4).map(|token| (token, 100.0)).collect(),
            ..GenerationConfig::default()
        };
        let mut rows = Vec::new();
        for (text, config) in [("repeats itself", repeating), ("varies", varying)] {
            let plain = Way { config, ..Way::default() };
            let drafting = Way { drafts, ..plain.clone() };
            let [plain, last] = self.in_turns(&prompt, tokens, [&plain, &drafting])?;
            let Generated { drafted, accepted, .. } = last.text;
            rows.push(Speculation { text, drafts, speed: last.speed, plain: plain.speed, drafted, accepted });
        }
        Ok(rows)
    }

    /// What drafts of a known quality are measured with: one sequence that decodes `tokens` tokens, with up to `most`
    /// drafts in a step.
    pub fn drafts(&mut self, most: usize, tokens: usize) -> drafts::Bench<'_> {
        let prompt = self.prompt(0, DEFAULT_DEPTH);
        drafts::Bench { model: self.model, prompt, tokens, most }
    }

    /// Decodes one sequence as common requests draw their tokens, and greedily.
    pub fn sampling(&mut self, tokens: usize, checkpoint: &Checkpoint) -> Result<Vec<Sampling>, CliError> {
        let prompt = self.prompt(0, DEFAULT_DEPTH);
        let greedy = GenerationConfig::default();
        let warm = GenerationConfig { temperature: 1.0, seed: Some(1), ..greedy.clone() };
        let ways = [
            ("temperature 1", warm.clone()),
            ("temperature 0.7, top-p 0.9", GenerationConfig { temperature: 0.7, top_p: 0.9, ..warm.clone() }),
            ("temperature 1, top-k 40", GenerationConfig { top_k: 40, ..warm.clone() }),
            ("temperature 1, min-p 0.05", GenerationConfig { min_p: 0.05, ..warm.clone() }),
            (
                "temperature 1, frequency penalty 0.5",
                GenerationConfig { frequency_penalty: 0.5, ..warm.clone() },
            ),
            (
                "repetition penalty 1.1",
                GenerationConfig { repetition_penalty: 1.1, temperature: 0.0, ..warm.clone() },
            ),
        ];
        let constraint = Some(json::constraint(checkpoint)?);
        let schema =
            [("JSON by schema, most likely", greedy.clone()), ("JSON by schema, temperature 1", warm)]
                .map(|(how, config)| (how, Way { config, constraint: constraint.clone(), ..Way::default() }));
        let ways = ways.map(|(how, config)| (how, Way { config, ..Way::default() }));
        let greedy = Way { config: greedy, ..Way::default() };
        let (mut rows, vocab) = (Vec::new(), self.model.spec().vocab);
        for (how, way) in ways.into_iter().chain(schema) {
            let [greedy, last] = self.in_turns(&prompt, tokens, [&greedy, &way])?;
            let of_greedy = last.speed.tok_s / greedy.speed.tok_s;
            let head = last.head.map(|head| HeadRows::of(&head, last.runs * last.text.drawn, vocab));
            rows.push(Sampling { how, speed: last.speed, greedy: greedy.speed, of_greedy, head });
        }
        Ok(rows)
    }

    /// Decodes a sequence in two ways, in turns, so that a disturbance affects both.
    fn in_turns(&mut self, prompt: &[u32], tokens: usize, ways: [&Way; 2]) -> Result<[Decoded; 2], CliError> {
        let mut done = [const { (None, Vec::new(), None) }; 2];
        for _ in 0..REPEATS {
            for (way, (last, times, head)) in ways.into_iter().zip(&mut done) {
                let Way { config, drafts, constraint } = way.clone();
                let config = GenerationConfig { max_new_tokens: tokens, ignore_eos: true, ..config };
                let request = Request { constraint, ..Request::new(prompt, config) };
                let engine = EngineConfig { max_draft: drafts, ..EngineConfig::default() };
                let before = self.model.head_work();
                let text = generate(self.model, request, &engine, |_| ControlFlow::Continue(()));
                let text = text.map_err(CliError::Generate)?;
                let now = self.model.head_work().zip(before).map(|(now, before)| now - before);
                *head = now.map(|now| now + head.unwrap_or_default());
                times.extend(text.decode.map(|time: Duration| time.as_secs_f64()));
                *last = Some(text);
            }
        }
        let [first, second] = done.map(|(text, times, head): (Option<Generated>, Vec<f64>, _)| {
            let text = text.filter(|_| !times.is_empty())?;
            let (speed, runs) = (Speed::of(text.drawn - 1, times), REPEATS);
            Some(Decoded { text, speed, runs, head })
        });
        let both = first.zip(second).map(|(first, second)| [first, second]);
        both.ok_or_else(|| CliError::usage("one token is not decoded", "-n", "give at least 2"))
    }

    /// Runs the batch and returns the most likely token of each wanted row, drawn on the device if the model can.
    fn most_likely(&mut self) -> Result<Vec<u32>, CliError> {
        self.model.forward(&self.batch, &mut self.logits)?;
        let token = |row| match self.logits.drawn(row) {
            Some(Drawn::Token(token)) => Some(token),
            Some(_) => None,
            None => most_likely(self.logits.row(row)),
        };
        let tokens = (0..self.logits.rows()).map(token).collect::<Option<_>>();
        tokens.ok_or_else(|| CliError::NotFinite { model: self.name.into() })
    }

    /// Fails if any of `members` sequences has different tokens in a batch than alone.
    pub fn compare(&mut self, members: usize, tokens: usize, bar: &Progress) -> Result<(), CliError> {
        let all: Vec<usize> = (0..members).collect();
        let begun = self.begin(&all, DEFAULT_DEPTH)?;
        let (_, together) = self.decode(&begun, tokens)?;
        bar.step();
        for (member, in_batch) in together.iter().enumerate() {
            let begun = self.begin(&[member], DEFAULT_DEPTH)?;
            let (_, alone) = self.decode(&begun, tokens)?;
            bar.step();
            if let Some(at) = (0..tokens).find(|&i| alone[0][i] != in_batch[i]) {
                return Err(CliError::Wrong {
                    what: format!(
                        "token {at} of sequence {member} in a batch of {members} differs from that alone"
                    ),
                    place: "bench".into(),
                });
            }
        }
        Ok(())
    }
}

/// Returns the most likely token, the lowest of equal ones, or `None` if any logit is NaN or the highest is infinite.
/// Logits that cannot be the highest may be negative infinity. It is drawn as the engine draws it, because a loop here
/// would not be optimised, and would take a tenth of the step of a small model.
fn most_likely(row: &[f32]) -> Option<u32> {
    let config = GenerationConfig::default();
    let (tokens, allowed) = (&[], None);
    let at = Draw { config: &config, tokens, prompt_len: 0, banned: &[], allowed, seed: 0, choice: 0 };
    let token = Sampler::default().draw(row, &at).ok()?;
    row[token as usize].is_finite().then_some(token)
}

#[cfg(test)]
mod tests {
    use bitnet::model::Limits;
    use bitnet_hash_model::HashModel;

    use super::*;

    #[test]
    fn a_batch_that_differs_from_its_members_alone_is_refused_with_its_first_token() {
        let limits = Limits { max_tokens: 64, max_logit_rows: 8, kv_blocks: 8, state_slots: 0 };
        let compared = |model: HashModel| {
            let (mut model, bar) = (model, Progress::new("comparing", 1));
            let mut sequences = Sequences::new("m", &mut model, 64);
            let begun = sequences.begin(&[0, 1, 2], DEFAULT_DEPTH).unwrap();
            assert_eq!(begun.lens, [16, 17, 18], "no two are at the same position");
            sequences.compare(3, 4, &bar)
        };
        compared(HashModel::new(50, 256, limits)).unwrap();
        // The second of three gets wrong logits from its second step on.
        let mut steps = 0;
        let leaks = HashModel::new(50, 256, limits).with_hook(Box::new(move |batch, logits| {
            if let (3, Some(logits)) = (batch.runs().len(), logits) {
                steps += 1;
                if steps > 1 {
                    logits.resize(3, 50)[50..100].reverse();
                }
            }
            Ok(())
        }));
        let error = compared(leaks).unwrap_err().to_string();
        assert!(error.contains("token 2 of sequence 1 in a batch of 3"), "{error}");
    }

    #[test]
    fn a_row_that_is_not_finite_has_no_most_likely_token() {
        assert_eq!(most_likely(&[1.0, 3.0, 3.0, 2.0]), Some(1));
        assert_eq!(most_likely(&[f32::NEG_INFINITY, 1.0, f32::NEG_INFINITY]), Some(1));
        for broken in [f32::NAN, f32::INFINITY] {
            assert_eq!(most_likely(&[1.0, broken, 0.5]), None);
        }
        assert_eq!(most_likely(&[f32::NEG_INFINITY; 3]), None);
    }
}
