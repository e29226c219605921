//! Opens a damaged file and judges what came of it: a model or one clear error, in bounded time and memory.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    time::{Duration, Instant},
};

use fastrand::Rng;

use crate::{MEMORY, Seed, mutate::mutate};

const MAX_TIME: Duration = Duration::from_secs(2);
/// Maximum memory in addition to four times the files, in bytes.
const MAX_MEMORY: usize = 64 << 20;
const MAX_MESSAGE: usize = 2000;

/// A mutation with a wrong outcome.
#[derive(Debug)]
pub struct Finding {
    /// The seed that reproduces it.
    pub seed: u64,
    /// What happened.
    pub problem: String,
    /// The damaged file.
    pub bytes: Vec<u8>,
}

/// Counts of mutations and their outcomes.
#[derive(Debug, Clone, Copy, Default)]
pub struct Tally {
    /// Mutations that were judged.
    pub judged: u64,
    /// Mutations that gave an error.
    pub refused: u64,
    /// Maximum time of a mutation.
    pub slowest: Duration,
    /// Maximum memory of a mutation in addition to four times its files, in bytes.
    pub most: usize,
}

impl Tally {
    /// Adds another tally to this one.
    pub fn add(&mut self, other: Tally) {
        self.judged += other.judged;
        self.refused += other.refused;
        self.slowest = self.slowest.max(other.slowest);
        self.most = self.most.max(other.most);
    }
}

/// Opens the model with `bytes` as its file, and counts whether it was refused. Nothing else may allocate in this
/// process meanwhile.
///
/// # Errors
/// A sentence about a panic, too much time or memory, or a message that is not one line with what, where and cure.
pub fn judge(seed: &Seed, bytes: Vec<u8>, tally: &mut Tally) -> Result<(), String> {
    let allowed = 4 * seed.size(bytes.len());
    let before = MEMORY.current_usage();
    MEMORY.reset_peak_usage();
    let start = Instant::now();
    let answer = catch_unwind(AssertUnwindSafe(|| seed.open(bytes)));
    let time = start.elapsed();
    let used = MEMORY.peak_usage().saturating_sub(before);
    tally.judged += 1;
    tally.slowest = tally.slowest.max(time);
    tally.most = tally.most.max(used.saturating_sub(allowed));
    if time > MAX_TIME {
        return Err(format!("took {time:?}"));
    }
    if used > allowed + MAX_MEMORY {
        return Err(format!("took {used} bytes of memory for files of {} bytes", allowed / 4));
    }
    match answer {
        Ok(Ok(())) => Ok(()),
        Ok(Err(error)) => {
            tally.refused += 1;
            let text = error.to_string();
            let well_formed = text.lines().count() == 1 && text.contains("): ") && text.len() < MAX_MESSAGE;
            if well_formed { Ok(()) } else { Err(format!("the message is not one line with a cure: {text}")) }
        }
        Err(panic) => {
            let text = panic.downcast_ref::<String>().map(String::as_str);
            let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("of unknown kind");
            Err(format!("panicked: {text}"))
        }
    }
}

/// Judges `count` mutations of a file, from the seed `first` on.
///
/// # Errors
/// The first one with a wrong outcome.
pub fn run(seed: &Seed, first: u64, count: u64, tally: &mut Tally) -> Result<(), Box<Finding>> {
    for number in first..first + count {
        let mut bytes = seed.bytes.clone();
        let head = seed.kind.head.min(bytes.len());
        mutate(&mut Rng::with_seed(number), &mut bytes, head, seed.kind.is_text());
        // A copy of the file for the report, made before the judge starts to count memory.
        let copy = bytes.clone();
        // A stalled machine is not a finding: a mutation that really takes too long does so again.
        let mut one = Tally::default();
        let verdict = judge(seed, bytes, &mut one).or_else(|_| {
            one = Tally::default();
            judge(seed, copy.clone(), &mut one)
        });
        verdict.map_err(|problem| Box::new(Finding { seed: number, problem, bytes: copy }))?;
        tally.add(one);
    }
    Ok(())
}
