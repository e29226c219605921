//! Random schedules of submissions, cancels, pauses, deadlines and faults under tiny limits, each reproduced by its
//! seed. After every step the scheduler's rules are checked, and every token is compared with what the request gets
//! alone. `BITNET_SIM_SEEDS` sets the number of schedules.

mod faults;

use std::cell::Cell;
use std::collections::{BTreeMap, HashMap};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Once};
use std::time::Duration;

use bitnet_model::{Batch, Logits};

use super::*;
use crate::sim::{HashModel, Oracle, mix};
use crate::step::Stepper;
use crate::{
    Draw, ForwardError, GenerationConfig, Limits, Output, Priority, SampleError, Sampler, Scan, TokenText,
};
use faults::Planted;

const VOCAB: usize = 50;
const EOS: u32 = 7;
/// A prompt that begins with this makes every forward pass fail that starts with it.
const FAILS: u32 = 49;
/// A prompt that begins with this makes its logits NaN, if it is computed in one run.
const NAN: u32 = 48;

struct Rng(u64);

impl Rng {
    fn below(&mut self, n: usize) -> usize {
        self.0 += 1;
        (mix(self.0, 99) % n as u64) as usize
    }

    fn one_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }
}

/// Token `t` spells `t` as two letters.
struct Letters;

impl TokenText for Letters {
    fn append_bytes(&self, token: u32, out: &mut Vec<u8>) {
        out.extend([b'a' + (token / 10) as u8, b'a' + (token % 10) as u8]);
    }
}

/// What a sequence has told so far.
#[derive(Default)]
struct Told {
    tokens: Vec<u32>,
    end: Option<Result<End, RequestError>>,
}

/// How many schedules met what.
#[derive(Debug, Default, Clone, Copy, PartialEq)]
struct Met {
    preemption: usize,
    prefix: usize,
    copy: usize,
    cancel: usize,
    split: usize,
    pause: usize,
    timeout: usize,
    fault: usize,
    accepted: usize,
    /// Choices that were cancelled or ran out of time, not schedules.
    cut_short: usize,
}

struct World {
    rng: Rng,
    now: u64,
    scheduler: Scheduler,
    stepper: Stepper<'static>,
    requests: BTreeMap<u64, (Arc<Request>, u64)>,
    told: HashMap<SeqId, Told>,
    cancelled: Vec<u64>,
    context: usize,
    planted: Option<Planted>,
    /// Prompts of earlier requests, to begin new ones with.
    prompts: Vec<Vec<u32>>,
    paused: bool,
    plan: Plan,
    outcome: StepOutcome,
}

impl World {
    fn new(seed: u64, planted: Option<Planted>) -> World {
        let mut rng = Rng(mix(seed, 1) >> 1);
        let limits = Limits {
            max_tokens: 4 + rng.below(80),
            max_logit_rows: 4 + rng.below(12),
            kv_blocks: 4 + rng.below(12),
        };
        let max_running = 1 + rng.below(limits.max_tokens.min(limits.max_logit_rows));
        let context = 256.min(limits.kv_blocks * Batch::BLOCK_TOKENS);
        let sizing = match rng.below(3) {
            0 => BatchSizing::Auto { ttft: Duration::from_millis(50), itl: Duration::from_millis(5) },
            _ => BatchSizing::Fixed(max_running),
        };
        let config = SchedulerConfig {
            max_running,
            max_tokens: limits.max_tokens,
            max_rows: limits.max_logit_rows,
            kv_blocks: limits.kv_blocks,
            context,
            max_draft: rng.below(3) * 2,
            sizing,
            slow_reader: 200_000,
            eos: vec![EOS],
            text: Some(Arc::new(Letters)),
        };
        let mut chance = Rng(mix(seed, 2) >> 1);
        let mut failed = false; // what fails by chance does not fail twice in a row
        let hook = Box::new(move |batch: &Batch, logits: Option<&mut Logits>| {
            let starts = |with| {
                let at = move |run: &&bitnet_model::Run| {
                    run.start == 0 && batch.tokens()[run.tokens.start] == with
                };
                batch.runs().iter().filter(at)
            };
            let failure = || ForwardError::StepTooLarge { what: "planted", actual: 1, limit: 0 };
            match logits {
                None => {
                    failed = !failed && chance.one_in(80);
                    assert!(!failed || !chance.one_in(5), "planted");
                    if failed || starts(FAILS).next().is_some() { Err(failure()) } else { Ok(()) }
                }
                Some(logits) => {
                    for run in starts(NAN) {
                        let row = batch.logit_rows().iter().position(|&r| run.tokens.contains(&r));
                        row.into_iter().for_each(|row| logits.row_mut(row)[3] = f32::NAN);
                    }
                    Ok(())
                }
            }
        });
        World {
            rng,
            now: 0,
            scheduler: Scheduler::new(config),
            stepper: Stepper::new(Box::new(HashModel::new(VOCAB, context, limits).with_hook(hook))),
            requests: BTreeMap::new(),
            told: HashMap::new(),
            cancelled: Vec::new(),
            context,
            planted,
            prompts: vec![vec![1]],
            paused: false,
            plan: Plan::default(),
            outcome: StepOutcome::default(),
        }
    }

    fn random_request(&mut self) -> Request {
        let rng = &mut self.rng;
        let mut prompt = match rng.below(3) {
            0 => Vec::new(),
            _ => self.prompts[rng.below(self.prompts.len())].clone(),
        };
        let more = if rng.one_in(4) { rng.below(150) } else { rng.below(20) };
        let repeats = rng.one_in(3);
        prompt.extend((0..=more).map(|i| if repeats { i as u32 % 4 } else { rng.below(48) as u32 }));
        if rng.one_in(4) && prompt.len() >= Batch::BLOCK_TOKENS {
            prompt.truncate(prompt.len() / Batch::BLOCK_TOKENS * Batch::BLOCK_TOKENS);
        }
        prompt.truncate(self.context - 1);
        match rng.below(25) {
            0 => prompt = vec![FAILS, 1, 2],
            1 => prompt = vec![NAN, 1, 2],
            _ => self.prompts.push(prompt.clone()),
        }
        let max_new_tokens = rng.below(40);
        let text = |rng: &mut Rng| [b'a' + rng.below(5) as u8, b'a' + rng.below(10) as u8].map(char::from);
        let config = GenerationConfig {
            max_new_tokens,
            min_new_tokens: rng.below(max_new_tokens / 2 + 1),
            temperature: rng.below(3) as f32 * 0.7,
            top_k: [0, 0, 1, 5][rng.below(4)],
            top_p: [1.0, 0.9][rng.below(2)],
            repetition_penalty: [1.0, 1.3][rng.below(2)],
            frequency_penalty: [0.0, 0.0, 0.2, -3.0][rng.below(4)],
            stop_tokens: if rng.one_in(3) { vec![rng.below(48) as u32] } else { vec![] },
            stop_strings: if rng.one_in(3) { vec![text(rng).iter().collect(), "aab".into()] } else { vec![] },
            // An index out of range: a panic in the sampler.
            logit_bias: if rng.one_in(40) { vec![(1 << 30, 1.0)] } else { vec![] },
            ignore_eos: rng.one_in(2),
            n: if rng.one_in(6) { 3 } else { 1 },
            ..GenerationConfig::default()
        };
        Request {
            prompt,
            config,
            output: if rng.one_in(15) { Output::Logits } else { Output::Tokens },
            priority: [Priority::Interactive, Priority::Normal, Priority::Background][rng.below(3)],
            timeout: rng.one_in(10).then(|| Duration::from_millis(rng.below(60) as u64)),
            salt: rng.below(8) as u64 / 7,
            ..Request::default()
        }
    }

    /// One random thing, then the rules.
    fn act(&mut self) -> Result<(), String> {
        self.now += self.rng.below(3000) as u64;
        match self.rng.below(12) {
            0..=2 if self.requests.len() < 30 => {
                let (id, request) = (self.requests.len() as u64, Arc::new(self.random_request()));
                let seed = mix(self.rng.0, 5);
                self.requests.insert(id, (Arc::clone(&request), seed));
                self.scheduler.submit(self.now, id, request, seed);
            }
            3 if !self.requests.is_empty() && self.rng.one_in(4) => {
                let id = self.rng.below(self.requests.len()) as u64;
                self.cancelled.push(id);
                if self.planted != Some(Planted::SwallowedCancel) {
                    self.scheduler.cancel(id);
                }
                self.listen()?;
                let left = self.told.iter().any(|(seq, told)| seq.request == id && told.end.is_none());
                if left || self.scheduler.slots.iter().flatten().any(|s| s.id.request == id) {
                    return Err(format!("request {id} lives on after its cancel"));
                }
            }
            4 if !self.requests.is_empty() => {
                self.paused = true;
                self.scheduler.pause(self.now, self.rng.below(self.requests.len()) as u64);
            }
            5 | 6 => (0..self.requests.len() as u64).for_each(|id| self.scheduler.resume(id)),
            _ => self.step()?,
        }
        self.scheduler.tick(self.now);
        self.listen()?;
        self.scheduler.check()
    }

    fn step(&mut self) -> Result<(), String> {
        let mut plan = std::mem::take(&mut self.plan);
        if self.scheduler.plan(self.now, &mut plan) {
            self.scheduler.check_plan(&plan)?;
            let real = plan.clone();
            self.sabotage_plan(&mut plan);
            self.stepper.run(&self.scheduler, &plan, &mut self.outcome);
            self.outcome.micros = 500 + 300 * plan.load.decodes as u64 + 20 * plan.load.prefill as u64;
            self.now += self.outcome.micros;
            self.sabotage_outcome();
            self.scheduler.commit(self.now, &real, &mut self.outcome);
            self.sabotage_state();
        }
        self.plan = plan;
        Ok(())
    }

    /// Takes the events, each compared with what the request gets alone once it has ended.
    fn listen(&mut self) -> Result<(), String> {
        self.sabotage_events();
        while let Some(event) = self.scheduler.next_event() {
            let (Event::Admitted(id, _) | Event::Token(id, ..) | Event::Ended(id, _)) = event;
            let told = self.told.entry(id).or_default();
            if told.end.is_some() {
                return Err(format!("{id:?} tells {event:?} after its end"));
            }
            match event {
                Event::Admitted(..) => {}
                Event::Token(_, token, _) => told.tokens.push(token),
                Event::Ended(_, end) => {
                    told.end = Some(end);
                    self.compare(id)?;
                }
            }
        }
        Ok(())
    }

    fn compare(&self, id: SeqId) -> Result<(), String> {
        let (request, seed) = &self.requests[&id.request];
        let Told { tokens, end } = &self.told[&id];
        let end = end.as_ref().expect("it has ended");
        let wrong = |what: &str| Err(format!("{id:?} {what}: {tokens:?} {end:?}"));
        let (alone, alone_end) = self.alone(request, *seed, id.choice);
        match end {
            Ok(end) if end.finish != FinishReason::Cancelled => {
                if *tokens != alone || *end != alone_end {
                    return wrong(&format!("differs from {alone:?} {alone_end:?} alone"));
                }
            }
            Err(RequestError::Sample(SampleError::NotANumber { token: 3 })) if request.prompt[0] == NAN => {}
            Err(RequestError::Panic { .. }) if !request.config.logit_bias.is_empty() => {}
            Err(RequestError::Forward(_) | RequestError::Panic { .. }) if request.prompt[0] == FAILS => {}
            Err(RequestError::Timeout) if request.timeout.is_some() => {}
            Err(RequestError::SlowReader) if self.paused => {}
            Ok(_) if self.cancelled.contains(&id.request) => {}
            _ => return wrong("ended without cause"),
        }
        if alone.starts_with(tokens) { Ok(()) } else { wrong(&format!("is not the beginning of {alone:?}")) }
    }

    /// What a request gets from a model that has nothing else to do and no memory.
    fn alone(&self, request: &Request, seed: u64, choice: u32) -> (Vec<u32>, End) {
        let config = &GenerationConfig { logit_bias: vec![], ..request.config.clone() };
        let (mut oracle, mut row, mut sampler) = (Oracle::default(), vec![0.0; VOCAB], Sampler::new(VOCAB));
        let (mut matcher, mut out) = (StopMatcher::new(&config.stop_strings), Vec::new());
        let mut tokens = request.prompt.clone();
        tokens.iter().for_each(|&t| oracle.push(t));
        let mut ends = config.stop_tokens.clone();
        ends.extend((!config.ignore_eos).then_some(EOS));
        let end = |finish, tail: &[u8]| End { finish, tail: tail.to_vec() };
        loop {
            let generated = tokens.len() - request.prompt.len();
            if generated == config.max_new_tokens || !request.output.draws() {
                matcher.flush(&mut out);
                return (out, end(FinishReason::Length, b""));
            }
            if tokens.len() == self.context {
                matcher.flush(&mut out);
                return (out, end(FinishReason::Context, b""));
            }
            oracle.logits(&mut row);
            let banned = if generated < config.min_new_tokens { &ends[..] } else { &[] };
            let at = Draw {
                config,
                tokens: &tokens,
                prompt_len: request.prompt.len(),
                banned,
                allowed: None,
                seed,
                choice,
            };
            let token = sampler.draw(&row, &at).expect("plain numbers");
            if ends.contains(&token) {
                matcher.flush(&mut out);
                let eos = token == EOS && !config.ignore_eos;
                return (out, end(if eos { FinishReason::Eos } else { FinishReason::StopToken(token) }, b""));
            }
            tokens.push(token);
            oracle.push(token);
            if generated < config.min_new_tokens {
                out.push(token);
            } else if let Scan::Stop(index) = matcher.push(token, &Letters, &mut out) {
                return (out, end(FinishReason::StopString(index), matcher.tail()));
            }
        }
    }

    /// Lets everything end, within a bound, and looks for what is left over.
    fn settle(&mut self) -> Result<(), String> {
        (0..self.requests.len() as u64).for_each(|id| self.scheduler.resume(id));
        let mut steps = 0;
        while !self.scheduler.is_empty() {
            steps += 1;
            if steps > 30_000 {
                return Err(format!("{} sequences are stuck", self.scheduler.slots.iter().flatten().count()));
            }
            self.step()?;
            self.listen()?;
            self.scheduler.check()?;
        }
        let ended = self.told.values().filter(|t| t.end.is_some()).count();
        let submitted: usize = self.requests.values().map(|(r, _)| r.config.n).sum();
        if ended != submitted {
            return Err(format!("{submitted} sequences were submitted and {ended} have ended"));
        }
        let pool = self.scheduler.pool();
        if pool.available() != pool.total() { Err("blocks are lost".into()) } else { Ok(()) }
    }

    fn run(seed: u64, planted: Option<Planted>) -> Result<Met, String> {
        let mut world = World::new(seed, planted);
        for _ in 0..120 {
            world.act()?;
        }
        world.settle()?;
        let counts = world.scheduler.counts();
        let ended = |matches: fn(&Result<End, RequestError>) -> bool| {
            world.told.values().filter_map(|t| t.end.as_ref()).filter(|e| matches(e)).count()
        };
        let cancelled = ended(|e| matches!(e, Ok(End { finish: FinishReason::Cancelled, .. })));
        let timed_out = ended(|e| matches!(e, Err(RequestError::Timeout)));
        Ok(Met {
            preemption: usize::from(counts.preemptions > 0),
            prefix: usize::from(counts.prefix_hits > 0),
            copy: usize::from(counts.copied_blocks > 0),
            cancel: usize::from(cancelled > 0),
            split: usize::from(counts.split_prompts > 0),
            pause: usize::from(world.paused),
            timeout: usize::from(timed_out > 0),
            fault: usize::from(world.stepper.faults().failed_forwards > 0),
            accepted: usize::from(counts.accepted > 0),
            cut_short: cancelled + timed_out,
        })
    }
}

fn seeds() -> u64 {
    std::env::var("BITNET_SIM_SEEDS").ok().and_then(|s| s.parse().ok()).unwrap_or(2000)
}

/// Runs without the messages of panics, which are planted and caught; they would bury everything else.
fn quietly<T>(run: impl FnOnce() -> T) -> T {
    thread_local!(static QUIET: Cell<bool> = const { Cell::new(false) });
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let usual = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            if !QUIET.get() {
                usual(info);
            }
        }));
    });
    QUIET.set(true);
    let result = run();
    QUIET.set(false);
    result
}

#[test]
fn random_schedules_give_every_request_what_it_gets_alone() {
    let (seeds, mut met, mut cut) = (seeds(), [0; 9], 0);
    for seed in 0..seeds {
        let Met { preemption, prefix, copy, cancel, split, pause, timeout, fault, accepted, cut_short } =
            quietly(|| catch_unwind(|| World::run(seed, None)))
                .unwrap_or_else(|panic| Err(crate::step::panic_message(panic.as_ref())))
                .unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        let this = [preemption, prefix, copy, cancel, split, pause, timeout, fault, accepted];
        met.iter_mut().zip(this).for_each(|(met, this)| *met += this);
        cut += cut_short;
    }
    println!("of {seeds}: preemption, prefix, copy, cancel, split, pause, timeout, fault, accepted: {met:?}");
    println!("{cut} choices were cancelled or ran out of time");
    assert!(met.iter().all(|&m| m * 20 >= seeds as usize), "some are met by fewer than 5 %: {met:?}");
    assert!(cut as u64 >= seeds, "{cut} cancels and time-outs: fewer than schedules");
}

#[test]
fn a_seed_gives_the_same_schedule_again() {
    for seed in 0..20 {
        let run = || quietly(|| World::run(seed, None));
        assert_eq!(run(), run());
    }
}

/// Whether some seed notices the fault.
fn caught(planted: Planted) -> Option<(u64, String)> {
    (0..2000).find_map(|seed| {
        let run = || catch_unwind(AssertUnwindSafe(|| World::run(seed, Some(planted))));
        let result = quietly(run).unwrap_or_else(|panic| Err(crate::step::panic_message(panic.as_ref())));
        result.err().map(|error| (seed, error))
    })
}

#[test]
fn every_planted_fault_is_caught() {
    for planted in Planted::ALL {
        let (seed, error) = caught(planted).unwrap_or_else(|| panic!("{planted:?} goes unnoticed"));
        println!("{planted:?}: seed {seed}: {error:.100}");
    }
}

#[test]
fn a_guess_after_a_rejected_one_fits_into_the_blocks_that_it_left() {
    let mut scheduler = Scheduler::new(SchedulerConfig {
        max_running: 1,
        max_tokens: 128,
        max_rows: 16,
        kv_blocks: 4,
        context: 256,
        max_draft: 4,
        sizing: BatchSizing::Fixed(1),
        slow_reader: u64::MAX,
        eos: vec![],
        text: None,
    });
    // Three tokens short of a block after the first is drawn; 9 follows on 3 and 4 once.
    let prompt = [&[3, 4, 9, 5, 6, 7, 8, 0][..], &[4, 1, 2, 3].repeat(13)].concat();
    assert_eq!(prompt.len(), Batch::BLOCK_TOKENS - 4);
    scheduler.submit(0, 0, Arc::new(Request::new(prompt, GenerationConfig::default())), 0);
    let mut plan = Plan::default();
    let mut drafts = |scheduler: &mut Scheduler, token| {
        assert!(scheduler.plan(0, &mut plan));
        let runs = vec![RunOutcome::Done(0..1)];
        let drawn = vec![Drawn { token, logprobs: None }];
        scheduler.commit(0, &plan, &mut StepOutcome { runs, drawn, micros: 0 });
        plan.runs[0].drafts
    };
    assert_eq!(drafts(&mut scheduler, 4), 0);
    let s = seq_mut(&mut scheduler.slots, 0);
    (s.drafts_tried, s.drafts_accepted) = (2.0, 2.0);
    assert_eq!(drafts(&mut scheduler, 9), 4, "into the next block");
    assert_eq!(seq(&scheduler.slots, 0).table.len(), 2);
    assert_eq!(drafts(&mut scheduler, 5), 2, "within the first block");
}
