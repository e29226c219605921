//! Random schedules of submissions, cancellations, pauses, deadlines, drains, aborts and faults under tiny limits, each
//! reproducible by its seed. After every step the scheduler's rules, including those of its order, are checked, and
//! every token is compared with the request's result alone. Odd seeds have a model with a recurrent state, a quarter of all seeds one whose sliding layers have blocks of their own. Half of the seeds have a
//! tier below memory, whose shelf they share with a second scheduler that runs at the same time, as another process
//! would; most of these have host memory above the shelf.
//! `BITNET_SIM_SEEDS` sets the number of schedules,
//! `BITNET_SIM_FIRST` the first seed; a failure reports its own.

mod alone;
mod fairness;
mod faults;
mod shelf;

use std::cell::Cell;
use std::collections::{BTreeMap, HashMap};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Once};
use std::time::Duration;

use bitnet_kernels::KernelError;
use bitnet_model::{Batch, ForwardError, Limits};

use super::*;
use crate::engine::{Stepper, panic_message};
use crate::request::{FinishReason, GenerationConfig, Output, Priority, Request, RequestError, SampleError};
use crate::sample::{Draw, Sampler, Scan, StopMatcher, TokenText};
use crate::tier::{HostMemory, Shelf, Tier};
use bitnet_hash_model::{HashModel, Hook, Oracle, mix};
use faults::Planted;
use shelf::{SimShelf, Store};

const VOCAB: usize = 50;
const EOS: u32 = 7;
/// A prompt that begins with this token makes the forward pass of its start fail.
const FAILS: u32 = 49;
/// A prompt that begins with this token gets NaN logits, if it is computed in one run.
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

/// The events of a sequence so far.
#[derive(Default)]
struct Received {
    tokens: Vec<u32>,
    end: Option<Result<End, RequestError>>,
}

/// Number of schedules that covered each situation; cancellations and timeouts are counted individually.
type Coverage = BTreeMap<&'static str, usize>;

const CUT_SHORT: &str = "cancels and time-outs";

struct World {
    rng: Rng,
    now: u64,
    scheduler: Scheduler,
    stepper: Stepper<'static>,
    requests: BTreeMap<u64, (Arc<Request>, u64)>,
    received: HashMap<SeqId, Received>,
    cancelled: Vec<u64>,
    /// Requests ended by an abort.
    aborted: Vec<u64>,
    /// During a drain nothing is submitted; it ends at this time at the latest.
    draining: Option<u64>,
    /// Whether a drain ended because all sequences had ended.
    drained: bool,
    /// How often a later sequence has gone before each waiting one.
    overtaken: HashMap<SeqId, u32>,
    aged: bool,
    /// Whether a reader resumed while no place was free.
    waited_to_go_on: bool,
    /// Whether a step both had drafts and admitted a sequence.
    drafted_beside_admission: bool,
    context: usize,
    /// Number of keys in the model's window; 0 if it has none.
    window: usize,
    /// Whether a sequence gave blocks of its window back.
    passed: bool,
    planted: Option<Planted>,
    /// Prompts of earlier requests, used as prefixes of new ones.
    prompts: Vec<Vec<u32>>,
    paused: bool,
    plan: Plan,
    outcome: StepOutcome,
    tier: Option<Tier>,
}

/// Fails steps at random, and those of requests that begin with a planted token. Where that leaves a recurrent state
/// undefined, it happens at random only once, because a sequence that loses its state too often counts as the cause.
fn failures(seed: u64, recurrent: bool) -> Hook {
    let mut chance = Rng(mix(seed, 2) >> 1);
    let mut failed = false; // random failures never happen twice in a row
    let mut panicked = false;
    let midway = recurrent && seed % 4 == 1;
    Box::new(move |batch, logits| {
        let starts = |with| {
            let at =
                move |run: &&bitnet_model::Run| run.start == 0 && batch.tokens()[run.tokens.start] == with;
            batch.runs().iter().filter(at)
        };
        let refusal = || ForwardError::StepTooLarge { what: "planted", actual: 1, limit: 0 };
        let failure = || ForwardError::Kernel(KernelError::OutOfMemory { what: "planted", bytes: 1 });
        match logits {
            None => {
                failed = !failed && chance.one_in(80);
                let panics = failed && chance.one_in(5);
                assert!(!panics || recurrent && std::mem::replace(&mut panicked, true), "planted");
                match starts(FAILS).next() {
                    Some(_) if midway => Err(failure()),
                    None if !failed => Ok(()),
                    _ => Err(refusal()),
                }
            }
            Some(logits) => {
                for run in starts(NAN) {
                    let row = batch.logit_rows().iter().position(|&r| run.tokens.contains(&r));
                    row.into_iter().for_each(|row| logits.row_mut(row)[3] = f32::NAN);
                }
                Ok(())
            }
        }
    })
}

/// Lets some requests have texts of few tokens, which often recur but continue differently, so that drafts are rejected.
fn few_tokens(rng: &mut Rng, config: GenerationConfig) -> GenerationConfig {
    if rng.one_in(4) {
        let logit_bias = (1..4).map(|token| (token, 100.0)).collect();
        return GenerationConfig { logit_bias, temperature: 1.0, ..config };
    }
    config
}

impl World {
    fn new(seed: u64, planted: Option<Planted>) -> World {
        let mut rng = Rng(mix(seed, 1) >> 1);
        let limits = Limits {
            max_tokens: 4 + rng.below(80),
            max_logit_rows: 4 + rng.below(12),
            kv_blocks: 4 + rng.below(12),
            state_slots: 0,
        };
        let max_running = 1 + rng.below(limits.max_tokens.min(limits.max_logit_rows));
        let recurrent = seed % 2 == 1;
        let state_slots = if recurrent { max_running + Rng(mix(seed, 3) >> 1).below(6) } else { 0 };
        let limits = Limits { state_slots, ..limits };
        let context = 256.min(limits.kv_blocks * Batch::BLOCK_TOKENS);
        let sizing = match rng.below(3) {
            0 => BatchSizing::Auto { ttft: Duration::from_millis(50), itl: Duration::from_millis(5) },
            1 => BatchSizing::Paced { sequences: max_running, itl: Duration::from_millis(5) },
            _ => BatchSizing::Fixed(max_running),
        };
        let config = SchedulerConfig {
            max_running,
            max_tokens: limits.max_tokens,
            max_rows: limits.max_logit_rows,
            kv_blocks: limits.kv_blocks,
            state_slots: limits.state_slots,
            context,
            max_draft: rng.below(3) * 2,
            sizing,
            slow_reader: 200_000,
            eos: vec![EOS],
            text: Some(Arc::new(Letters)),
        };
        // Worlds that share a shelf have the same window.
        let window = if seed % 16 / 4 == 1 { [1, 30, 64, 100][(seed / 16 % 4) as usize] } else { 0 };
        let mut model = HashModel::new(VOCAB, context, limits).with_hook(failures(seed, recurrent));
        if window > 0 {
            let blocks = Batch::blocks_of_window(window, 1) + Rng(mix(seed, 4) >> 1).below(8);
            model = model.with_window(window, blocks);
        }
        let known = WindowCache::of(&model).map(|known| match planted {
            Some(Planted::NarrowWindow) => WindowCache { width: window.div_ceil(2), ..known },
            _ => known,
        });
        let mut stepper = Stepper::new(Box::new(model));
        let room = stepper.reserve_log(config.max_draft).expect("a hash model has room");
        World {
            rng,
            now: 0,
            scheduler: Scheduler::new(config).with_windows(known).with_logs_of(room),
            stepper,
            requests: BTreeMap::new(),
            received: HashMap::new(),
            cancelled: Vec::new(),
            aborted: Vec::new(),
            draining: None,
            drained: false,
            overtaken: HashMap::new(),
            aged: false,
            waited_to_go_on: false,
            drafted_beside_admission: false,
            context,
            window,
            passed: false,
            planted,
            prompts: vec![vec![1]],
            paused: false,
            plan: Plan::default(),
            outcome: StepOutcome::default(),
            tier: None,
        }
    }

    /// Gives this world a tier with a shelf.
    fn sharing(mut self, store: &Store, seed: u64) -> World {
        let mut shelf: Box<dyn Shelf> = Box::new(SimShelf::new(Arc::clone(store), seed, self.planted));
        let bytes = self.stepper.model().cache_bytes().expect("a hash model's cache can be copied out");
        let bytes = WindowCache::of(self.stepper.model()).map_or(bytes, |window| window.parts(bytes));
        if seed % 16 >= 6 {
            let limit = (bytes.block + bytes.state) * (2 + Rng(mix(seed, 11) >> 1).below(24));
            shelf = Box::new(HostMemory::new(limit as u64, Some(shelf), Arc::new(|| {})));
        }
        self.tier = Some(Tier::new(shelf, bytes).preparing(u64::MAX));
        self.scheduler.keep_outside([0; 32]);
        // What all worlds begin texts with.
        let mut rng = Rng(5);
        self.prompts.extend((1..4).map(|n| (0..n * 70).map(|_| rng.below(48) as u32).collect::<Vec<_>>()));
        self.prompts.iter_mut().for_each(|prompt| prompt.truncate(self.context - 1));
        self
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
            // An index out of range, so that the sampler panics.
            logit_bias: if rng.one_in(40) { vec![(1 << 30, 1.0)] } else { vec![] },
            ignore_eos: rng.one_in(2),
            n: if rng.one_in(6) { 3 } else { 1 },
            ..GenerationConfig::default()
        };
        let config = if self.scheduler.config.state_slots > 0 { few_tokens(rng, config) } else { config };
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

    /// Performs a random action, then checks the rules.
    fn act(&mut self) -> Result<(), String> {
        self.now += self.rng.below(3000) as u64;
        if self.rng.one_in(60) {
            // As long as the patience of one of the priorities.
            self.now += [2_000_000, 10_000_000, 120_000_000][self.rng.below(3)];
        }
        match self.rng.below(12) {
            0..=2 if self.requests.len() < 30 && self.draining.is_none() => {
                let id = self.requests.len() as u64;
                let request = Arc::new(self.random_request());
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
                let left =
                    self.received.iter().any(|(seq, received)| seq.request == id && received.end.is_none());
                if left || self.scheduler.slots.iter().flatten().any(|s| s.id.request == id) {
                    return Err(format!("request {id} lives on after its cancel"));
                }
            }
            4 if !self.requests.is_empty() => {
                self.paused = true;
                self.scheduler.pause(self.now, self.rng.below(self.requests.len()) as u64);
                self.sabotage_pause();
            }
            7 if self.rng.one_in(10) => {
                let patience = [0, 20_000, 1 << 40][self.rng.below(3)];
                self.draining.get_or_insert(self.now + patience);
            }
            5 | 6 => {
                (0..self.requests.len() as u64).for_each(|id| self.scheduler.resume(self.now, id));
                self.sabotage_resume();
            }
            _ => self.step()?,
        }
        self.scheduler.tick(self.now);
        self.sabotage_queue();
        self.check_aging()?;
        self.listen()?;
        self.end_drain()?;
        self.scheduler.check()
    }

    /// Ends a drain as the engine does: when all sequences have ended, or when it has taken too long.
    fn end_drain(&mut self) -> Result<(), String> {
        let Some(until) = self.draining else { return Ok(()) };
        let complete = self.scheduler.is_empty();
        if !complete && self.now < until {
            return Ok(());
        }
        self.draining = None;
        self.drained |= complete;
        self.aborted.extend(self.scheduler.slots.iter().flatten().map(|s| s.id.request));
        if self.planted != Some(Planted::SwallowedAbort) {
            self.scheduler.abort(RequestError::Stopped);
        }
        self.listen()?;
        self.check_end("a drain")
    }

    /// Checks that nothing is left over.
    fn check_end(&self, of: &str) -> Result<(), String> {
        let live = self.scheduler.slots.iter().flatten().count();
        let ended = self.received.values().filter(|t| t.end.is_some()).count();
        let submitted: usize = self.requests.values().map(|(r, _)| r.config.n).sum();
        if live > 0 || ended != submitted {
            return Err(format!("{submitted} were submitted, {ended} have ended, {live} live after {of}"));
        }
        let lost = |pool: &BlockPool| pool.available() != pool.total();
        if lost(self.scheduler.pool()) || lost(self.scheduler.windows()) || self.scheduler.states_used() > 0 {
            return Err(format!("blocks or states are lost after {of}"));
        }
        Ok(())
    }

    fn step(&mut self) -> Result<(), String> {
        let mut plan = std::mem::take(&mut self.plan);
        self.poll_tier();
        self.scheduler.check()?;
        if self.plan_fairly(&mut plan)? {
            let late = self.planted == Some(Planted::LateCopyOut);
            if !late {
                self.save_urgent();
            }
            self.scheduler.check_plan(&plan)?;
            let real = plan.clone();
            self.sabotage_plan(&mut plan);
            self.stepper.run(&self.scheduler, &plan, &mut self.outcome);
            if self.repeats_pass(&plan) {
                self.stepper.run(&self.scheduler, &plan, &mut self.outcome);
            }
            if late {
                self.save_urgent();
            }
            self.outcome.micros =
                500 + 300 * (plan.load.decodes + plan.load.drafts) as u64 + 20 * plan.load.prefill as u64;
            self.now += self.outcome.micros;
            self.sabotage_outcome(&real);
            self.scheduler.commit(self.now, &real, &mut self.outcome);
            self.passed |= self.scheduler.slots.iter().flatten().any(|s| s.passed > 0);
            self.sabotage_state();
            self.tier.iter_mut().for_each(|tier| tier.after_step(1000));
        } else if self.tier.is_some() {
            self.now += 50_000;
        }
        self.plan = plan;
        Ok(())
    }

    /// Takes the events, and compares each ended sequence with the request's result alone.
    fn listen(&mut self) -> Result<(), String> {
        self.sabotage_events();
        while let Some(event) = self.scheduler.next_event() {
            let (Event::Admitted(id, _) | Event::Token(id, ..) | Event::Ended(id, _)) = event;
            let received = self.received.entry(id).or_default();
            if received.end.is_some() {
                return Err(format!("{id:?} tells {event:?} after its end"));
            }
            match event {
                Event::Admitted(..) => {}
                Event::Token(_, token, _) => received.tokens.push(token),
                Event::Ended(_, end) => {
                    received.end = Some(end);
                    self.compare(id)?;
                }
            }
        }
        Ok(())
    }

    /// Lets all sequences end. Each is the oldest at some time, and then a step computes at least one of its tokens,
    /// which bounds the number of steps.
    fn settle(&mut self) -> Result<(), String> {
        (0..self.requests.len() as u64).for_each(|id| self.scheduler.resume(self.now, id));
        let live = self.scheduler.slots.iter().flatten().count();
        let waits = if self.tier.is_some() { 1000 + 100 * live } else { 0 };
        for _ in 0..live * self.context + waits {
            if self.scheduler.is_empty() {
                break;
            }
            self.step()?;
            self.listen()?;
            self.scheduler.check()?;
        }
        self.check_end("the last step")
    }

    fn run(seed: u64, planted: Option<Planted>) -> Result<Coverage, String> {
        let mut world = World::new(seed, planted);
        if seed % 4 >= 2 {
            let store = Store::default();
            world = world.sharing(&store, seed);
            // An even number, so that both have the same kind of model.
            let mut other = World::new(seed + (1 << 40), None).sharing(&store, seed + (1 << 40));
            for _ in 0..80 {
                other.act()?;
                world.act()?;
            }
            other.settle()?;
        }
        for _ in 0..120 {
            world.act()?;
        }
        world.settle()?;
        let tier = world.tier.as_ref().map(Tier::counts).unwrap_or_default();
        let counts = world.scheduler.counts();
        let recurrent = world.scheduler.config.state_slots > 0;
        let rejected = recurrent && counts.drafted > counts.accepted;
        let ended = |matches: fn(&Result<End, RequestError>) -> bool| {
            world.received.values().filter_map(|t| t.end.as_ref()).filter(|e| matches(e)).count()
        };
        let cancelled = ended(|e| matches!(e, Ok(End { finish: FinishReason::Cancelled, .. })));
        let timed_out = ended(|e| matches!(e, Err(RequestError::Timeout)));
        let covered = [
            ("preemption", counts.preemptions > 0),
            ("prefix", counts.prefix_hits > 0),
            ("copy", counts.copied_blocks > 0),
            ("cancel", cancelled > 0),
            ("split", counts.split_prompts > 0),
            ("pause", world.paused),
            ("timeout", timed_out > 0),
            ("fault", world.stepper.faults().failed_forwards > 0),
            ("accepted", counts.accepted > 0),
            ("overtaking", !world.overtaken.is_empty()),
            ("aging", world.aged),
            ("waiting to go on", world.waited_to_go_on),
            ("drafts beside admission", world.drafted_beside_admission),
            ("drain", world.drained),
            ("abort", !world.aborted.is_empty()),
            ("snapshot", recurrent && counts.prefix_hits > 0),
            ("given back", world.passed),
            ("hit with a window", world.window > 1 && counts.prefix_hits > 0),
            ("drafts dropped from a log", rejected),
            ("lost state", world.stepper.faults().rolled_back > 0),
            ("read from a shelf", tier.hit_tokens > 0),
            ("read from host memory", tier.host.is_some_and(|host| host.read_parts > 0)),
            ("left host memory", tier.host.is_some_and(|host| host.evicted > 0)),
            ("copied out", tier.shelf.written_parts > 0),
            ("damaged part", tier.shelf.damaged > 0),
            ("given up", tier.given_up > 0),
        ];
        let covered = covered.map(|(what, covered)| (what, usize::from(covered)));
        Ok(covered.into_iter().chain([(CUT_SHORT, cancelled + timed_out)]).collect())
    }
}

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok().map(|n| n.parse().expect(variable))
}

/// Runs without panic messages: the panics are deliberate, and their messages would bury everything else.
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
    let seeds = number("BITNET_SIM_SEEDS").unwrap_or(2000);
    let first = number("BITNET_SIM_FIRST").unwrap_or(0);
    let mut all = Coverage::new();
    for seed in first..first + seeds {
        let covered = quietly(|| catch_unwind(|| World::run(seed, None)))
            .unwrap_or_else(|panic| Err(panic_message(panic.as_ref())))
            .unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        covered.into_iter().for_each(|(what, times)| *all.entry(what).or_default() += times);
    }
    println!("of {seeds}: {all:?}");
    // A few schedules need not cover everything.
    if seeds >= 200 {
        let often =
            |(&what, &times): (&&str, &usize)| times as u64 * if what == CUT_SHORT { 1 } else { 20 } >= seeds;
        assert!(
            all.iter().all(often),
            "covered by fewer than 5 %, or fewer cut short than schedules: {all:?}"
        );
    }
}

#[test]
fn a_seed_gives_the_same_schedule_again() {
    for seed in 0..20 {
        let run = || quietly(|| World::run(seed, None));
        assert_eq!(run(), run());
    }
}

/// The first seed that detects the fault, and its error.
fn caught(planted: Planted) -> Option<(u64, String)> {
    (0..2000).find_map(|seed| {
        let run = || catch_unwind(AssertUnwindSafe(|| World::run(seed, Some(planted))));
        let result = quietly(run).unwrap_or_else(|panic| Err(panic_message(panic.as_ref())));
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
fn a_draft_after_a_rejected_one_fits_into_the_blocks_that_it_left() {
    let mut scheduler = Scheduler::new(SchedulerConfig {
        max_running: 1,
        max_tokens: 128,
        max_rows: 16,
        kv_blocks: 2,
        state_slots: 0,
        context: 256,
        max_draft: 4,
        sizing: BatchSizing::Fixed(1),
        slow_reader: u64::MAX,
        eos: vec![],
        text: None,
    });
    // Three tokens short of a block after the first is drawn; 9 follows 3 and 4 once.
    let prompt = [&[3, 4, 9, 5, 6, 7, 8, 0][..], &[4, 1, 2, 3].repeat(13)].concat();
    assert_eq!(prompt.len(), Batch::BLOCK_TOKENS - 4);
    scheduler.submit(0, 0, Arc::new(Request::new(prompt, GenerationConfig::default())), 0);
    let mut plan = Plan::default();
    let mut drafts = |scheduler: &mut Scheduler, token| {
        assert!(scheduler.plan(0, &mut plan));
        let runs = vec![RunOutcome::Done(0..1)];
        let drawn = vec![SampledToken::from(token)];
        scheduler.commit(0, &plan, &mut StepOutcome { runs, drawn, ..StepOutcome::default() });
        plan.runs[0].drafts
    };
    assert_eq!(drafts(&mut scheduler, 4), 0);
    let s = seq_mut(&mut scheduler.slots, 0);
    (0..2).for_each(|_| s.rates[Source::Text as usize].learn(1, 1));
    assert_eq!(drafts(&mut scheduler, 9), 4, "into the next block");
    assert_eq!(seq(&scheduler.slots, 0).table.len(), 2);
    assert_eq!(drafts(&mut scheduler, 5), 3, "within the first block");
    assert_eq!(scheduler.counts().drafted, 7);
}
