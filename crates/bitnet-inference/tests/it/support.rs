//! Engines, requests and constraints that many tests share.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;
use std::time::{Duration, Instant};

use bitnet_hash_model::{Counts, HashModel, Oracle, mix};
use bitnet_inference::{
    BatchSizing, Constraint, Engine, EngineConfig, GenerationConfig, Request, TokenSet, TokenText,
    sampling::{Draw, Sampler},
    scheduling::{Scheduler, SchedulerConfig},
};
use bitnet_model::{Batch, Limits, Logits};

pub const VOCAB: usize = 50;
pub const CONTEXT: usize = 512;
pub const EOS: u32 = 7;

pub fn limits() -> Limits {
    Limits { max_tokens: 64, max_logit_rows: 16, kv_blocks: 64, state_slots: 0 }
}

/// A scheduler of eight places without text, end tokens or drafts.
pub fn scheduler(sizing: BatchSizing) -> Scheduler {
    let Limits { max_tokens, max_logit_rows, kv_blocks, .. } = limits();
    Scheduler::new(SchedulerConfig {
        max_running: 8,
        max_tokens,
        max_rows: max_logit_rows,
        kv_blocks,
        state_slots: 0,
        context: CONTEXT,
        max_draft: 0,
        sizing,
        slow_reader: u64::MAX,
        eos: vec![],
        text: None,
    })
}

pub fn config() -> EngineConfig {
    EngineConfig {
        max_batch_size: 8,
        eos: Some(vec![EOS]),
        text: Some(Arc::new(Letters)),
        ..EngineConfig::default()
    }
}

pub fn engine(config: EngineConfig) -> (Engine, Arc<Counts>) {
    engine_with(limits(), config)
}

/// An engine whose forward passes take at least this long.
pub fn slow_engine(config: EngineConfig, each: Duration) -> (Engine, Arc<Counts>) {
    let hook = move |_: &Batch, logits: Option<&mut Logits>| {
        if logits.is_none() {
            std::thread::sleep(each);
        }
        Ok(())
    };
    let model = HashModel::new(VOCAB, CONTEXT, limits()).with_hook(Box::new(hook));
    let counts = model.counts();
    (Engine::start(model, config).unwrap(), counts)
}

pub fn engine_with(limits: Limits, config: EngineConfig) -> (Engine, Arc<Counts>) {
    let model = HashModel::new(VOCAB, CONTEXT, limits);
    let model = if config.host_cache > 0 { model.on_gpu() } else { model };
    let counts = model.counts();
    (Engine::start(model, config).unwrap(), counts)
}

/// Token `t` spells `t` as two letters.
pub struct Letters;

impl TokenText for Letters {
    fn append_bytes(&self, token: u32, out: &mut Vec<u8>) {
        out.extend([b'a' + (token / 10) as u8, b'a' + (token % 10) as u8]);
    }
}

/// The result of a request alone, without an engine, a cache or a scheduler.
pub fn alone(prompt: &[u32], config: &GenerationConfig) -> Vec<u32> {
    alone_under(None, prompt, config)
}

/// As [`alone`], from a model with this many state slots.
pub fn alone_with(state_slots: usize, prompt: &[u32], config: &GenerationConfig) -> Vec<u32> {
    let oracle = if state_slots > 0 { Oracle::recurrent() } else { Oracle::default() };
    alone_by(oracle, None, prompt, config)
}

/// As [`alone`], from a model with a window of `width` keys.
pub fn alone_within(width: usize, prompt: &[u32], config: &GenerationConfig) -> Vec<u32> {
    alone_by(Oracle::default().within(width), None, prompt, config)
}

/// As [`alone`], under a constraint.
pub fn alone_under(
    constraint: Option<&dyn Constraint>,
    prompt: &[u32],
    config: &GenerationConfig,
) -> Vec<u32> {
    alone_by(Oracle::default(), constraint, prompt, config)
}

fn alone_by(
    mut oracle: Oracle,
    constraint: Option<&dyn Constraint>,
    prompt: &[u32],
    config: &GenerationConfig,
) -> Vec<u32> {
    let (mut row, mut sampler) = (vec![0.0; VOCAB], Sampler::new(VOCAB));
    let mut tokens = prompt.to_vec();
    tokens.iter().for_each(|&t| oracle.push(t));
    let mut ends = config.stop_tokens.clone();
    ends.extend((!config.ignore_eos).then_some(EOS));
    while tokens.len() < (prompt.len() + config.max_new_tokens).min(CONTEXT) {
        oracle.logits(&mut row);
        let banned = if tokens.len() - prompt.len() < config.min_new_tokens { &ends[..] } else { &[] };
        let allowed = constraint.map(|constraint| {
            let mut set = TokenSet::new(VOCAB);
            constraint.allow(0, &tokens[prompt.len()..], &mut set).unwrap();
            set
        });
        let at = Draw {
            config,
            tokens: &tokens,
            prompt_len: prompt.len(),
            banned,
            allowed: allowed.as_ref(),
            seed: config.seed.unwrap_or(0),
            choice: 0,
        };
        let token = sampler.draw(&row, &at).unwrap();
        if ends.contains(&token) {
            break;
        }
        tokens.push(token);
        oracle.push(token);
    }
    tokens.split_off(prompt.len())
}

/// A mix of prompts and configurations.
pub fn mixed(count: usize, seed: u64) -> Vec<(Vec<u32>, GenerationConfig)> {
    let pick = |i: usize, what: u64, n: u64| mix(mix(seed, i as u64), what) % n;
    let one = |i: usize| {
        let length = if pick(i, 0, 4) == 0 { 100 + pick(i, 1, 200) } else { 1 + pick(i, 1, 20) };
        // Half of the prompts have the same prefix.
        let tokens =
            (0..length).map(|p| if pick(i, 2, 2) == 0 { p as u32 % 48 } else { pick(i, 10 + p, 48) as u32 });
        let config = GenerationConfig {
            max_new_tokens: pick(i, 3, 30) as usize,
            temperature: pick(i, 4, 3) as f32 * 0.6,
            top_k: [0, 1, 7][pick(i, 5, 3) as usize],
            top_p: [1.0, 0.8][pick(i, 6, 2) as usize],
            repetition_penalty: [1.0, 1.2][pick(i, 7, 2) as usize],
            ignore_eos: pick(i, 8, 2) == 0,
            seed: Some(pick(i, 9, 1000)),
            ..GenerationConfig::default()
        };
        (tokens.collect(), config)
    };
    (0..count).map(one).collect()
}

/// Runs `count` requests of [`mixed`] together, some with three choices, with prompts that fit half of `kv_blocks` and answers
/// up to `more` tokens longer. Each must get the tokens that `alone` says.
pub fn mixed_as_alone(
    engine: &Engine,
    (count, seed): (usize, u64),
    kv_blocks: usize,
    more: usize,
    what: &str,
    alone: impl Fn(&[u32], &GenerationConfig) -> Vec<u32>,
) {
    let mut load = mixed(count, seed);
    for (i, (prompt, config)) in load.iter_mut().enumerate() {
        prompt.truncate(kv_blocks * 32);
        config.max_new_tokens += more;
        config.n = if i % 5 == 4 { 3 } else { 1 };
    }
    let requests = load.iter().map(|(p, c)| Request::new(p.clone(), c.clone())).collect();
    for (handle, (prompt, config)) in engine.submit_all(requests).unwrap().into_iter().zip(&load) {
        let got = handle.wait().unwrap().choices.remove(0).tokens;
        assert_eq!(got, alone(prompt, config), "{what}");
    }
}

/// Waits for a condition that must soon become true.
pub fn until(happened: impl Fn() -> bool) {
    let start = Instant::now();
    while !happened() {
        assert!(start.elapsed() < Duration::from_secs(20), "it does not happen");
        std::thread::yield_now();
    }
}

pub fn greedy(max_new_tokens: usize) -> GenerationConfig {
    GenerationConfig { max_new_tokens, ignore_eos: true, ..GenerationConfig::default() }
}

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// A minimal executor.
pub fn block_on<F: Future>(future: F) -> F::Output {
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let (mut future, mut cx) = (pin!(future), Context::from_waker(&waker));
    loop {
        match future.as_mut().poll(&mut cx) {
            Poll::Ready(output) => return output,
            Poll::Pending => std::thread::park(),
        }
    }
}
