//! Draws a token from a row of logits.
//!
//! The order is: repetition, presence and frequency penalties, bias, banned and allowed tokens, temperature, top-k,
//! top-p, min-p, draw. The result is a function of the row, the earlier tokens, the configuration and (seed, choice,
//! position). The sampler keeps scratch memory between calls, but no state.
//!
//! Tokens are ordered by logit, highest first; equal logits by id, lowest first. Every filter keeps a prefix of this
//! order, so all filters together are a single cut. Top-p adds weights as integers, whose sums are exact in any order, so
//! it needs no sorted row. [`bitnet_kernels::draw`] has the rule of the draw, which every backend follows.

use bitnet_kernels::draw::{Arrivals, GROUP, below_max, exp, key, least_kept, token_of, units, weight};

use super::changes::Changes;
use crate::request::{GenerationConfig, SampleError, TokenLogprobs, TokenSet};

/// Everything that a draw depends on, except the logits.
#[derive(Debug, Clone, Copy)]
pub struct Draw<'a> {
    /// The request's configuration, which must have passed [`GenerationConfig::validate`].
    pub config: &'a GenerationConfig,
    /// Prompt and generated tokens.
    pub tokens: &'a [u32],
    /// How many of `tokens` are the prompt.
    pub prompt_len: usize,
    /// Tokens that must not be drawn.
    pub banned: &'a [u32],
    /// The only tokens that may be drawn; `None` allows all.
    pub allowed: Option<&'a TokenSet>,
    /// The request's seed.
    pub seed: u64,
    /// Index of the request's choice.
    pub choice: u32,
}

/// Draws tokens, for any number of requests.
#[derive(Debug, Default)]
pub struct Sampler {
    /// The row after penalties and bias.
    row: Vec<f32>,
    weights: Vec<f32>,
    /// Order keys of the tokens that a filter keeps.
    keys: Vec<u64>,
    changes: Changes,
}

impl Sampler {
    /// Creates a sampler with scratch memory for a vocabulary of `vocab` tokens.
    pub fn new(vocab: usize) -> Self {
        Sampler {
            row: Vec::with_capacity(vocab),
            weights: Vec::with_capacity(vocab),
            keys: Vec::with_capacity(2 * vocab + KEEP_SLACK),
            changes: Changes::new(vocab),
        }
    }

    /// Draws the token that follows `at.tokens`.
    pub fn draw(&mut self, logits: &[f32], at: &Draw<'_>) -> Result<u32, SampleError> {
        let max = highest(logits)?;
        let config = at.config;
        let as_it_is = !config.changes_logits();
        if as_it_is && at.banned.is_empty() && at.allowed.is_none() {
            return if config.is_greedy() { first_of(logits, max) } else { self.pick(logits, max, at) };
        }
        let mut row = std::mem::take(&mut self.row);
        row.clear();
        row.extend_from_slice(logits);
        for change in self.changes.of(config, at.tokens, at.prompt_len, at.banned) {
            let logit = &mut row[change.token as usize];
            *logit = change.apply(*logit);
        }
        if let Some(allowed) = at.allowed {
            allowed.forbid_others(&mut row);
        }
        let token = highest(&row)
            .and_then(|max| if config.is_greedy() { first_of(&row, max) } else { self.pick(&row, max, at) });
        self.row = row;
        token
    }

    /// Log-probabilities of `token` and of the `top` most likely tokens, under the model's own distribution, before
    /// penalties, bias and temperature.
    pub fn logprobs(&mut self, logits: &[f32], token: u32, top: usize) -> Result<TokenLogprobs, SampleError> {
        let max = highest(logits)?;
        let sum: f64 = logits.iter().map(|&l| f64::from(exp(below_max(l, max)))).sum();
        let of = |l: f32| (f64::from(below_max(l, max)) - sum.ln()) as f32;
        keep_best(logits, top, &mut self.keys);
        self.keys.sort_unstable_by(|a, b| b.cmp(a));
        let top = self.keys.iter().map(|&key| (token_of(key), of(logits[token_of(key) as usize])));
        Ok(TokenLogprobs { logprob: of(logits[token as usize]), top: top.collect() })
    }

    /// Applies temperature and filters, and draws; `max` is the row's highest logit.
    fn pick(&mut self, row: &[f32], max: f32, at: &Draw<'_>) -> Result<u32, SampleError> {
        let &GenerationConfig { temperature, top_k, top_p, min_p, .. } = at.config;
        if max == f32::NEG_INFINITY {
            return Err(SampleError::NothingAllowed);
        }
        let Sampler { weights, keys, .. } = self;
        weights.clear();
        let mut cut = 0; // the lowest key to keep
        let limited = top_k > 0 && top_k < row.len();
        if limited {
            keep_best(row, top_k, keys);
            weights.resize(row.len(), 0.0);
            for token in keys.iter().map(|&key| token_of(key) as usize) {
                weights[token] = weight(row[token], max, temperature);
            }
        } else {
            weights.extend(row.iter().map(|&l| weight(l, max, temperature)));
        }
        if top_p < 1.0 {
            let total: u64 = if limited {
                keys.iter().map(|&k| units(weights[token_of(k) as usize])).sum()
            } else {
                let total = weights.iter().map(|&w| units(w)).sum::<u64>();
                // Tokens with at most this weight have a total probability below 1 - top_p, so the cut is above them.
                let floor = ((1.0 - f64::from(top_p)) * total as f64 * 0.999 / row.len() as f64) as u64;
                let heavy = weights.iter().zip(row).enumerate().filter(|(_, (w, _))| units(**w) > floor);
                keys.clear();
                keys.extend(heavy.map(|(id, (_, &l))| key(l, id)));
                total
            };
            let target = (f64::from(top_p) * total as f64).ceil() as u64;
            cut = lowest(prefix_of_mass(keys, weights, target));
        }
        let floor = least_kept(min_p);
        if cut > 0 || floor > 0 {
            for (id, (w, &l)) in weights.iter_mut().zip(row).enumerate() {
                if units(*w) < floor || key(l, id) < cut {
                    *w = 0.0;
                }
            }
        }
        let arrivals = Arrivals::new(at.seed, at.choice, at.tokens.len() as u32);
        Ok(first_to_arrive(weights, &arrivals))
    }
}

/// The token with the smallest arrival time divided by its weight; tokens without weight never arrive.
fn first_to_arrive(weights: &[f32], arrivals: &Arrivals) -> u32 {
    let mut token = 0;
    let mut best = f32::INFINITY;
    for (quad, weights) in weights.chunks(4 * GROUP).enumerate() {
        let firsts = arrivals.firsts(quad);
        for ((group, weights), first) in (4 * quad..).zip(weights.chunks(GROUP)).zip(firsts) {
            // No member arrives before `first`, nor has more weight than the heaviest.
            let heaviest = weights.iter().fold(0.0, |most, &w| if w > most { w } else { most });
            if first / heaviest >= best {
                continue;
            }
            let member = arrivals.member(group);
            for (id, &w) in (group * GROUP..).zip(weights) {
                if first / w < best {
                    let time = arrivals.of(id, first, member) / w;
                    if time < best {
                        (token, best) = (id as u32, time);
                    }
                }
            }
        }
    }
    token
}

fn lowest(keys: &[u64]) -> u64 {
    keys.iter().copied().min().unwrap_or(0)
}

/// The highest logit of a row; an error if it holds a NaN.
fn highest(row: &[f32]) -> Result<f32, SampleError> {
    const LANES: usize = 16;
    let (chunks, rest) = row.as_chunks::<LANES>();
    let mut max = [f32::NEG_INFINITY; LANES];
    let mut nan = [false; LANES];
    for chunk in chunks {
        for i in 0..LANES {
            max[i] = if chunk[i] > max[i] { chunk[i] } else { max[i] };
            nan[i] |= chunk[i].is_nan();
        }
    }
    if nan.contains(&true) || rest.iter().any(|l| l.is_nan()) {
        let token = row.iter().position(|l| l.is_nan()).unwrap_or(0) as u32;
        return Err(SampleError::NotANumber { token });
    }
    Ok(max.iter().chain(rest).copied().fold(f32::NEG_INFINITY, f32::max))
}

fn first_of(row: &[f32], max: f32) -> Result<u32, SampleError> {
    if max == f32::NEG_INFINITY {
        return Err(SampleError::NothingAllowed);
    }
    Ok(row.iter().position(|&l| l == max).unwrap_or(0) as u32)
}

/// Room for keys beyond `2 k`, so that each cut serves many new keys.
const KEEP_SLACK: usize = 1024;

/// Leaves the keys of the first `k` tokens of the order in `keys`, unsorted.
fn keep_best(row: &[f32], k: usize, keys: &mut Vec<u64>) {
    keys.clear();
    if k == 0 {
        return;
    }
    let full = 2 * k + KEEP_SLACK;
    let mut threshold = 0;
    for (id, &l) in row.iter().enumerate() {
        let key = key(l, id);
        if key > threshold {
            keys.push(key);
            if keys.len() == full {
                threshold = cut_to(keys, k);
            }
        }
    }
    if keys.len() > k {
        cut_to(keys, k);
    }
}

/// Cuts `keys` to the `k` highest and returns the lowest of these.
fn cut_to(keys: &mut Vec<u64>, k: usize) -> u64 {
    let (_, &mut lowest, _) = keys.select_nth_unstable_by(k - 1, |a, b| b.cmp(a));
    keys.truncate(k);
    lowest
}

/// The shortest prefix of the order whose weights reach `target`, found by bisection: the part above the middle either
/// suffices or is entirely included.
fn prefix_of_mass<'k>(keys: &'k mut [u64], weights: &[f32], target: u64) -> &'k [u64] {
    let (mut low, mut high, mut mass) = (0, keys.len(), 0);
    while high - low > 1 {
        let part = &mut keys[low..high];
        let middle = part.len() / 2;
        part.select_nth_unstable_by(middle, |a, b| b.cmp(a));
        let upper: u64 = part[..middle].iter().map(|&k| units(weights[token_of(k) as usize])).sum();
        if mass + upper >= target {
            high = low + middle;
        } else {
            mass += upper;
            low += middle;
        }
    }
    &keys[..high]
}
