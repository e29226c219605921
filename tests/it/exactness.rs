//! Random mixes of requests, run together under random limits: every request gets the same result as alone, bit for
//! bit.
//!
//! Each model has a pool of requests, whose results alone are computed once. A case draws its requests from the pool,
//! and everything else from its seed. `BITNET_EXACT_SEEDS` sets the number of cases, `BITNET_EXACT_FIRST` the first
//! seed; a failure reports its own.

#![allow(clippy::print_stdout, reason = "tests report what they covered")]

use std::{
    ops::AddAssign,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use bitnet_inference::{
    Completion, Engine, EngineConfig, GenerationConfig, Output, Priority, Request, TokenText,
    metrics::Counter, sampling::random_u64,
};
use bitnet_kernels::{Cpu, Isa, KvType};
use bitnet_model::{Activation, Batch, Checkpoint, Limits, ModelSpec, Synthetic, TensorSource, Transformer};
use bitnet_tests::fixture;

const POOL: u64 = 80;
/// Maximum number of tokens of any request in the pool.
const LONGEST: usize = 480;

/// Numbers that depend only on a seed and a purpose.
#[derive(Clone, Copy)]
struct Dice(u64);

impl Dice {
    fn below(self, purpose: u64, n: u64) -> u64 {
        random_u64(self.0, 0, purpose) % n
    }

    fn one_in(self, purpose: u64, n: u64) -> bool {
        self.below(purpose, n) == 0
    }

    fn from<T: Clone>(self, purpose: u64, choices: &[T]) -> T {
        choices[self.below(purpose, choices.len() as u64) as usize].clone()
    }
}

/// Token `t` spells `t` in two letters.
struct Letters;

impl TokenText for Letters {
    fn append_bytes(&self, token: u32, out: &mut Vec<u8>) {
        out.extend([b'a' + (token / 26 % 26) as u8, b'a' + (token % 26) as u8]);
    }
}

struct Subject {
    name: String,
    spec: ModelSpec,
    tensors: Box<dyn TensorSource>,
    /// The type of its cache.
    kv: KvType,
    pool: Vec<Request>,
    alone: Vec<Completion>,
}

impl Subject {
    fn new(name: &str, (spec, tensors): (ModelSpec, Box<dyn TensorSource>), kv: KvType) -> Self {
        let pool = (0..POOL).map(|i| request(Dice(i + 1), spec.vocab as u64)).collect();
        let mut subject = Subject { name: name.into(), spec, tensors, kv, pool, alone: Vec::new() };
        let state_slots = subject.state_slots(1);
        let limits = Limits { max_tokens: 512, max_logit_rows: 8, kv_blocks: 32, state_slots };
        let config = EngineConfig { max_batch_size: 1, ..subject.engine_config() };
        // Sliding layers keep all tokens here, and their window only in `model`.
        let cpu = Cpu::new(Isa::best(), 1).unwrap().keeping(kv);
        let model = Transformer::load(&subject.spec, &*subject.tensors, cpu, limits, &mut |_, _| {}).unwrap();
        let single = Engine::start(model, config).unwrap();
        let alone = |(salt, request): (usize, &Request)| {
            // A unique salt, so that nothing comes from the prefix cache.
            let request = Request { salt: 1 + salt as u64, ..request.clone() };
            single.submit(request).unwrap().wait().unwrap()
        };
        subject.alone = subject.pool.iter().enumerate().map(alone).collect();
        subject
    }

    fn model(&self, isa: Isa, threads: usize, limits: Limits) -> Transformer<Cpu> {
        let cpu = Cpu::new(isa, threads).unwrap().keeping(self.kv);
        Transformer::load_with_windows(&self.spec, &*self.tensors, cpu, limits, &mut |_, _| {}).unwrap()
    }

    /// `wanted`, if its model has recurrent layers.
    fn state_slots(&self, wanted: usize) -> usize {
        if self.spec.hybrid.is_some() { wanted } else { 0 }
    }

    fn engine_config(&self) -> EngineConfig {
        EngineConfig { eos: Some(vec![3]), text: Some(Arc::new(Letters)), ..EngineConfig::default() }
    }
}

/// The models: the demo, fixtures of most families, models with recurrent layers or with windows, and random shapes with tails in every
/// dimension. Each runs with an f32 cache and with one of the other types.
fn subjects() -> Vec<Subject> {
    let mut all = Vec::new();
    let mut add = |name: &str, source: &dyn Fn() -> (ModelSpec, Box<dyn TensorSource>)| {
        for kv in [KvType::F32, KvType::ALL[1 + all.len() / 2 % 3]] {
            all.push(Subject::new(name, source(), kv));
        }
    };
    let of = |checkpoint: Checkpoint| (checkpoint.spec, checkpoint.tensors);
    add("demo", &|| of(Checkpoint::demo().unwrap()));
    for name in [
        "bitnet-packed",
        "bitnet-odd",
        "bitnet-master",
        "llama-bitlinear",
        "llama-explicit",
        "llama-rmsnorm",
        "onebitllm",
        "qwen3-unpacked/model-PQ2_0.gguf",
        "qwen3-g64/model-Q2_0.gguf",
        "minicpm-mup/model-TQ2_0.gguf",
        "minicpm-blocks/model-TQ2_0.gguf",
    ] {
        add(name, &|| of(Checkpoint::open(&fixture(name)).unwrap()));
    }
    for name in ["embedding-tiny", "hybrid-tiny", "hybrid-tiny-rotated", "maple-tiny"] {
        let hybrid = || Synthetic::named(name).unwrap();
        add(name, &|| (hybrid().spec().clone(), Box::new(hybrid())));
    }
    let (tiny, bonsai) = (Synthetic::named("tiny").unwrap(), Synthetic::named("bonsai-tiny").unwrap());
    let random = |i: u64| {
        let (dice, base) = (Dice(1000 + i), if i < 4 { tiny.spec() } else { bonsai.spec() });
        let kv_heads = 1 + dice.below(0, 3) as usize;
        ModelSpec {
            hidden: 50 + dice.below(1, 150) as usize,
            ffn: 70 + dice.below(2, 300) as usize,
            layers: 1 + dice.below(3, 3) as usize,
            heads: kv_heads * (1 + dice.below(4, 3) as usize),
            kv_heads,
            head_dim: 2 * (8 + dice.below(5, 24) as usize),
            vocab: 60 + dice.below(6, 400) as usize,
            activation: dice.from(7, &[Activation::Silu, Activation::SquaredRelu]),
            sub_norms: dice.one_in(8, 2) && i < 4,
            tied_head: dice.one_in(9, 2),
            ..base.clone()
        }
    };
    let specs = [tiny.spec().clone(), random(0), random(1), random(2), random(3), random(4), random(5)];
    for spec in specs {
        add("random", &|| (spec.clone(), Box::new(Synthetic::of(spec.clone()))));
    }
    all
}

/// A request of a pool.
fn request(dice: Dice, vocab: u64) -> Request {
    let length = match dice.below(0, 20) {
        0 => 257 + dice.below(1, 120),
        1..=5 => 64 + dice.below(1, 120),
        _ => 1 + dice.below(1, 40),
    };
    // Half of the prompts begin with the same text; some repeat themselves.
    let shared = dice.one_in(2, 2);
    let period = dice.from(3, &[u64::MAX, u64::MAX, 7]);
    let token = |p: u64| match p {
        p if shared && p < 150 => (p * p % 89 + 4) % vocab,
        p => Dice(dice.0 ^ 1 << 40).below(p % period, vocab),
    };
    // Long texts outgrow the blocks that were free when they started.
    let max_new_tokens = dice.below(4, dice.from(22, &[24, 24, 90])) as usize;
    let config = GenerationConfig {
        max_new_tokens,
        min_new_tokens: dice.from(5, &[0, 0, 3]).min(max_new_tokens),
        temperature: dice.from(6, &[0.0, 0.0, 0.7, 1.3]),
        top_k: dice.from(7, &[0, 0, 1, 9]),
        top_p: dice.from(8, &[1.0, 1.0, 0.9]),
        min_p: dice.from(9, &[0.0, 0.0, 0.05]),
        repetition_penalty: dice.from(10, &[1.0, 1.0, 1.2]),
        presence_penalty: dice.from(11, &[0.0, 0.0, 0.5]),
        frequency_penalty: dice.from(12, &[0.0, 0.0, 0.3]),
        logit_bias: dice.from(13, &[vec![], vec![], vec![(5, 3.0), (6, -100.0)]]),
        seed: Some(dice.below(14, 1 << 40)),
        stop_tokens: dice.from(15, &[vec![], vec![], vec![9, 10]]),
        stop_strings: dice.from(16, &[vec![], vec![], vec!["ba".into(), "cadb".into()]]),
        ignore_eos: dice.one_in(17, 2),
        logprobs: dice.from(18, &[None, None, Some(0), Some(4)]),
        n: dice.from(19, &[1, 1, 1, 1, 1, 3]),
        echo: dice.one_in(20, 8),
    };
    let prompt: Vec<u32> = (0..length).map(|p| token(p) as u32).collect();
    match dice.below(21, 12) {
        // Requests for logits or hidden states have no configuration.
        0 => Request { output: Output::Logits, ..Request::new(prompt, GenerationConfig::default()) },
        6 => Request::hidden(prompt),
        _ => Request::new(prompt, config),
    }
}

/// Number of cases that covered each situation.
#[derive(Debug, Default, Clone, Copy)]
struct Met {
    cases: usize,
    sixteen_or_more: usize,
    prompt_over_256: usize,
    preemption: usize,
    prefix_reuse: usize,
    cancel: usize,
    split_prefill: usize,
    speculation: usize,
    copied_block: usize,
}

impl AddAssign for Met {
    fn add_assign(&mut self, other: Met) {
        self.cases += other.cases;
        self.sixteen_or_more += other.sixteen_or_more;
        self.prompt_over_256 += other.prompt_over_256;
        self.preemption += other.preemption;
        self.prefix_reuse += other.prefix_reuse;
        self.cancel += other.cancel;
        self.split_prefill += other.split_prefill;
        self.speculation += other.speculation;
        self.copied_block += other.copied_block;
    }
}

/// Runs a case; every request must get the same result as alone.
fn run(subjects: &[Subject], seed: u64) -> Met {
    let dice = Dice(seed);
    let subject = &subjects[dice.below(0, subjects.len() as u64) as usize];
    // The scalar kernels are slow, so they get fewer cases with fewer requests.
    let (scalar, vector): (Vec<Isa>, Vec<Isa>) = Isa::available().partition(|isa| isa.name() == "scalar");
    let plain = vector.is_empty() || dice.one_in(1, 16);
    let isa = dice.from(23, if plain { &scalar } else { &vector });
    let most = if plain { 12 } else { 64 };
    let count = if dice.one_in(2, 2) { 16 + dice.below(3, 49) } else { 1 + dice.below(3, 15) }.min(most);
    let members: Vec<usize> = (0..count).map(|i| dice.below(100 + i, POOL) as usize).collect();
    let chunk = match dice.below(4, 10) {
        0 => 1 + dice.below(5, 8),
        1..=4 => 9 + dice.below(5, 56),
        _ => 65 + dice.below(5, 448),
    } as usize;
    // Other requests that are cancelled before their end.
    let doomed = if dice.one_in(12, 3) { 1 + dice.below(13, 4) } else { 0 };
    let doomed = (0..doomed).map(|i| {
        let config = GenerationConfig { max_new_tokens: 40, ignore_eos: true, ..GenerationConfig::default() };
        Request::new(subject.pool[dice.below(14 + i, POOL) as usize].prompt.clone(), config)
    });
    let doomed: Vec<Request> = doomed.collect();
    // A small cache forces preemption, but it always holds the longest request.
    let blocks =
        |r: &Request| (r.prompt.len() + r.config.max_new_tokens + 1).div_ceil(Batch::BLOCK_TOKENS) + 1;
    let least = members.iter().map(|&i| &subject.pool[i]).chain(&doomed).map(blocks).max().unwrap_or(1);
    let plenty = 70 * LONGEST.div_ceil(Batch::BLOCK_TOKENS);
    let kv_blocks = if dice.one_in(6, 2) { least + dice.below(7, 4) as usize } else { plenty };
    let max_batch_size = (1 + dice.from(8, &[3, 8, 16, 64])).min(chunk);
    let threads = 1 + dice.below(9, 2) as usize;
    let limits = Limits {
        max_tokens: chunk,
        max_logit_rows: chunk.min(72).max(max_batch_size),
        kv_blocks,
        state_slots: subject.state_slots(1 + max_batch_size + dice.below(15, 6) as usize),
    };
    let max_draft = dice.from(10, &[0, 2, 5]);
    let what = || {
        format!(
            "seed {seed}: {}, cache of {}, on {} with {threads} threads, {count} requests, {max_batch_size} at once, \
             steps of {chunk}, {kv_blocks} blocks, {} states, drafts of {max_draft}",
            subject.name,
            subject.kv,
            isa.name(),
            limits.state_slots
        )
    };
    let config = EngineConfig { max_batch_size, max_draft, ..subject.engine_config() };
    let engine = Engine::start(subject.model(isa, threads, limits), config).unwrap_or_else(|e| {
        panic!("{}: {e}", what());
    });
    let requests = members.iter().map(|&i| {
        let priority =
            dice.from(300 + i as u64, &[Priority::Interactive, Priority::Normal, Priority::Background]);
        Request { priority, ..subject.pool[i].clone() }
    });
    let requests: Vec<Request> = requests.collect();
    // Some are submitted later, while the others run.
    let late = if dice.one_in(11, 2) { requests.len() / 2 } else { requests.len() };
    let mut neighbours = engine.submit_all(doomed).unwrap();
    let mut handles = engine.submit_all(requests[..late].to_vec()).unwrap();
    if let Some(first) = neighbours.first_mut() {
        let _ = first.recv();
        neighbours.clear();
    }
    handles.extend(engine.submit_all(requests[late..].to_vec()).unwrap());
    for (&member, handle) in members.iter().zip(handles) {
        let got = handle.wait().unwrap_or_else(|e| panic!("{}: request {member}: {e}", what()));
        assert_same(&got, &subject.alone[member], &|| format!("{}, request {member}", what()));
    }
    assert!(engine.shutdown(Duration::MAX).complete, "{}", what());
    let counts = engine.status().scheduler;
    let over_256 = members.iter().any(|&i| subject.pool[i].prompt.len() > 256);
    let met = |yes: bool| usize::from(yes);
    Met {
        cases: 1,
        sixteen_or_more: met(count >= 16),
        prompt_over_256: met(over_256),
        preemption: met(counts.preemptions > 0),
        prefix_reuse: met(counts.prefix_hits > 0),
        cancel: met(engine.metrics().snapshot().get(Counter::Cancelled) > 0),
        split_prefill: met(counts.split_prompts > 0),
        speculation: met(counts.accepted > 0),
        copied_block: met(counts.copied_blocks > 0),
    }
}

fn assert_same(got: &Completion, want: &Completion, what: &dyn Fn() -> String) {
    let bits = |x: &f32| x.to_bits();
    for (choice, (got, want)) in got.choices.iter().zip(&want.choices).enumerate() {
        assert_eq!(got.tokens, want.tokens, "tokens of choice {choice}, {}", what());
        assert_eq!((got.finish, &got.tail), (want.finish, &want.tail), "end of choice {choice}, {}", what());
        let of = |logprobs: &[bitnet_inference::TokenLogprobs]| -> Vec<(u32, Vec<(u32, u32)>)> {
            let top =
                |l: &bitnet_inference::TokenLogprobs| l.top.iter().map(|(t, p)| (*t, bits(p))).collect();
            logprobs.iter().map(|l| (bits(&l.logprob), top(l))).collect()
        };
        assert_eq!(of(&got.logprobs), of(&want.logprobs), "log-probabilities of choice {choice}, {}", what());
    }
    let of = |c: &Completion| c.logits.iter().flatten().map(bits).collect::<Vec<_>>();
    assert!(of(got) == of(want), "logits, {}", what());
}

#[test]
fn random_mixes_give_every_request_what_it_gets_alone() {
    let number = |name: &str| std::env::var(name).ok().map(|n| n.parse::<u64>().expect(name));
    let cases = number("BITNET_EXACT_SEEDS").unwrap_or(500);
    let first = number("BITNET_EXACT_FIRST").unwrap_or(0);
    let subjects = subjects();
    let next = AtomicU64::new(first);
    let work = || {
        let mut met = Met::default();
        loop {
            let seed = next.fetch_add(1, Relaxed);
            if seed >= first + cases {
                return met;
            }
            met += run(&subjects, seed);
        }
    };
    let met = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..2).map(|_| scope.spawn(work)).collect();
        let mut all = Met::default();
        workers.into_iter().for_each(|w| all += w.join().unwrap());
        all
    });
    println!("{met:?}");
    assert_eq!(met.cases as u64, cases);
    // A few cases need not cover everything.
    if cases >= 200 {
        assert!(
            met.sixteen_or_more * 3 >= met.cases,
            "a third of the cases have 16 requests or more: {met:?}"
        );
        assert!(met.prompt_over_256 * 10 >= met.cases, "a tenth have prompts over 256 tokens: {met:?}");
        let rare = [
            met.preemption,
            met.prefix_reuse,
            met.cancel,
            met.split_prefill,
            met.speculation,
            met.copied_block,
        ];
        assert!(rare.iter().all(|n| n * 20 >= met.cases), "each is met by 5 %: {met:?}");
    }
}
