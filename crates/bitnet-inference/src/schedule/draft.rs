//! Decides how many tokens to draft for each sequence of a step, and finds drafts in its own text.
//! A draft is computed as an ordinary row and kept only if the sampler draws the same token there, so drafting changes
//! only the speed.

use super::pace::{StepLoad, StepModel};

/// Minimum relative gain in speed for which drafts are made.
const MIN_GAIN: f64 = 0.02;
/// Number of recent tokens that are searched, so that long texts cost no more than short ones.
const WINDOW: usize = 2048;
/// Number of places of a run whose rates are learned one by one; deeper ones count as the last.
const PLACES: usize = 4;

/// Where drafts come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    /// The constraint of the request allows no other tokens, so they cannot be rejected.
    Forced,
    /// The request predicts its text.
    Prediction,
    /// The text itself, where its last tokens occurred before.
    Text,
    /// A drafter: a head of the model, or a smaller model.
    Drafter,
}

impl Source {
    /// All sources.
    pub const ALL: [Source; 4] = [Source::Forced, Source::Prediction, Source::Text, Source::Drafter];

    /// Its name in metrics.
    pub fn name(self) -> &'static str {
        match self {
            Source::Forced => "forced",
            Source::Prediction => "prediction",
            Source::Text => "text",
            Source::Drafter => "drafter",
        }
    }
}

/// How often the drafts of one source were right at each place of a run, if those before them were; recent ones count
/// more.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Rates {
    tried: [f32; PLACES],
    accepted: [f32; PLACES],
}

impl Rates {
    /// Learns that the first `accepted` of `drafts` drafts of a sequence were right.
    pub fn learn(&mut self, drafts: usize, accepted: usize) {
        self.learn_slowly(drafts, accepted, 0.9);
    }

    /// Learns that the first `accepted` of `drafts` drafts of any sequence were right.
    pub fn learn_of_any(&mut self, drafts: usize, accepted: usize) {
        self.learn_slowly(drafts, accepted, 0.99);
    }

    fn learn_slowly(&mut self, drafts: usize, accepted: usize, keep: f32) {
        for at in 0..drafts.min(accepted + 1) {
            let place = at.min(PLACES - 1);
            self.tried[place] = self.tried[place] * keep + 1.0;
            self.accepted[place] = self.accepted[place] * keep + f32::from(u8::from(at < accepted));
        }
    }

    /// The rates at each place, beside `weight` drafts at the rates of `prior`.
    fn beside(&self, prior: [f64; PLACES], weight: f64) -> [f64; PLACES] {
        std::array::from_fn(|at| {
            (f64::from(self.accepted[at]) + weight * prior[at]) / (f64::from(self.tried[at]) + weight)
        })
    }

    /// The rates of a sequence that belongs to a scheduler with these rates. One success in two is assumed at first.
    pub fn of_sequence(&self, all: &Rates) -> [f64; PLACES] {
        self.beside(all.beside([0.5; PLACES], 8.0), 2.0)
    }
}

/// A decoding sequence that may get drafts in a step.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Candidate {
    /// Index of its run.
    pub run: usize,
    pub source: Source,
    /// Maximum number of drafts.
    pub most: usize,
    /// Where the drafts begin in what they are copied from; meaningless for [`Source::Drafter`].
    pub from: usize,
    /// Chance of each draft to be right, if those before it are.
    pub rates: [f64; PLACES],
    /// Whether to draft a token even if it does not pay, to notice when it begins to.
    pub probe: bool,
    /// Number of drafts to make.
    pub given: usize,
}

impl Candidate {
    /// The chance that the first `n` drafts are all right.
    fn survival(&self, n: usize) -> f64 {
        (0..n).map(|at| self.rates[at.min(PLACES - 1)]).product()
    }

    fn passes(&self) -> usize {
        if self.source == Source::Drafter { self.given } else { 0 }
    }
}

/// Sets how many drafts each candidate gets, `room` in total: those that maximise tokens per time for the step as a
/// whole, whose load without drafts is `step`. All its sequences wait for the drafts of one, and for the drafter's
/// deepest draft.
pub(crate) fn allot(all: &mut [Candidate], step: StepLoad, room: usize, times: &StepModel) {
    match times.predict(step) {
        Some(time) => best(all, step, time, room, times),
        None => likely(all, room),
    }
    let mut left = room - all.iter().map(|c| c.given).sum::<usize>();
    for candidate in all.iter_mut().filter(|c| c.given == 0 && c.probe && c.most > 0) {
        candidate.given = left.min(1);
        left -= candidate.given;
    }
}

/// Sets as many drafts as there are, for tests whose plans must not depend on times.
pub(crate) fn allot_all(all: &mut [Candidate], room: usize) {
    let mut left = room;
    for candidate in all {
        candidate.given = candidate.most.min(left);
        left -= candidate.given;
    }
}

/// As many as are likely to be right, while the times of steps are not known.
fn likely(all: &mut [Candidate], room: usize) {
    let mut left = room;
    for candidate in all {
        let rate = candidate.rates[0];
        let likely = if rate > 0.2 { (2.0 * rate / (1.0 - rate).max(0.05)).ceil() as usize } else { 0 };
        candidate.given = likely.min(candidate.most).min(left);
        left -= candidate.given;
    }
}

fn best(all: &mut [Candidate], step: StepLoad, time: f64, room: usize, times: &StepModel) {
    let sequences = step.decodes.max(1) as f64;
    let late = all.iter().filter(|c| c.source == Source::Drafter).map(|c| c.most);
    let (mut most, mut passes) = ((sequences + MIN_GAIN) / time, None);
    for deepest in 0..=late.max().unwrap_or(0) {
        let speed = give(all, step, deepest, room, times);
        // A pass that no draft comes from would be paid for nothing.
        if speed > most && all.iter().map(Candidate::passes).max().unwrap_or(0) == deepest {
            (most, passes) = (speed, Some(deepest));
        }
    }
    match passes {
        Some(passes) => drop(give(all, step, passes, room, times)),
        None => all.iter_mut().for_each(|c| c.given = 0),
    }
}

/// Gives drafts, those at the first place first, as long as each raises the tokens per time of a step in which the
/// drafter makes `passes` passes; returns tokens per time.
fn give(all: &mut [Candidate], step: StepLoad, passes: usize, room: usize, times: &StepModel) -> f64 {
    let [row, drafted] = times.draft_costs();
    let mut tokens = step.decodes.max(1) as f64;
    let mut time = times.predict_among_others(StepLoad { passes, ..step }).unwrap_or(f64::MAX);
    let mut left = room;
    all.iter_mut().for_each(|c| c.given = 0);
    let deepest = all.iter().map(|c| c.most).max().unwrap_or(0);
    for place in 1..=deepest {
        for candidate in all.iter_mut() {
            let late = candidate.source == Source::Drafter;
            let most = if late { candidate.most.min(passes) } else { candidate.most };
            let cost = if late { row + drafted } else { row };
            let chance = candidate.survival(place);
            let pays = chance * time > cost * tokens;
            if candidate.given + 1 == place && place <= most && left > 0 && pays {
                candidate.given = place;
                (tokens, time, left) = (tokens + chance, time + cost, left - 1);
            }
        }
    }
    tokens / time
}

/// The position after the previous occurrence of the text's last `pattern` tokens.
pub(crate) fn find(tokens: &[u32], pattern: usize) -> Option<usize> {
    if tokens.len() <= pattern {
        return None;
    }
    let past = &tokens[..tokens.len() - 1];
    let wanted = &tokens[tokens.len() - pattern..];
    let first = past.len().saturating_sub(WINDOW);
    let at = past[first..].windows(pattern).rposition(|w| w == wanted)?;
    Some(first + at + pattern)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn candidate(source: Source, rate: f64) -> Candidate {
        Candidate { run: 0, source, most: 4, from: 0, rates: [rate; PLACES], probe: false, given: 0 }
    }

    /// The drafts of each of `sequences` equal sequences.
    fn given(source: Source, rate: f64, sequences: usize, times: &StepModel) -> usize {
        let mut all = vec![candidate(source, rate); sequences];
        let step = StepLoad { decodes: sequences, ..StepLoad::default() };
        allot(&mut all, step, usize::MAX / 2, times);
        assert!(all.iter().all(|c| c.given == all[0].given), "{all:?}");
        all[0].given
    }

    /// Ten milliseconds plus one for each row; a pass of the drafter takes `pass` microseconds.
    fn times(pass: usize) -> StepModel {
        let mut times = StepModel::default();
        for i in 0..400 {
            let (decodes, passes) = (1 + i % 40, i / 3 % 4);
            let drafts = passes * (1 + i % 5);
            let load = StepLoad { decodes, passes, drafts, drafted: drafts, ..StepLoad::default() };
            times.observe(load, (10_000 + 1000 * (decodes + drafts) + pass * passes) as u64);
        }
        times
    }

    #[test]
    fn drafts_that_pay_for_one_sequence_are_not_made_where_rows_take_all_the_time() {
        let times = times(0);
        let text = |rate, sequences| given(Source::Text, rate, sequences, &times);
        assert_eq!((text(0.5, 1), text(0.5, 32)), (2, 0));
        assert_eq!((text(0.95, 1), text(0.95, 32)), (4, 2));
        assert_eq!(text(0.05, 1), 0, "nearly never right");
        assert_eq!(given(Source::Text, 0.5, 1, &StepModel::default()), 2, "times are unknown");
    }

    #[test]
    fn a_pass_of_the_drafter_is_paid_by_all_sequences_together() {
        let times = times(3000);
        let step = StepLoad { decodes: 4, ..StepLoad::default() };
        let mut all = [candidate(Source::Drafter, 0.8); 4];
        allot(&mut all[..1], step, 100, &times);
        assert_eq!(all[0].given, 0, "four sequences would wait for the drafts of one");
        allot(&mut all, step, 100, &times);
        assert!(all.iter().all(|c| c.given > 0), "{all:?}");
        let mut text = [candidate(Source::Text, 0.8)];
        allot(&mut text, step, 100, &times);
        assert!(text[0].given > 0, "drafts from the text need no pass");
    }

    /// A GPU: two rows take a third longer than one, and more take no longer than two.
    fn gpu(rows: usize) -> f64 {
        if rows == 1 { 5000.0 } else { 6700.0 }
    }

    fn model_of(time: fn(usize) -> f64) -> StepModel {
        let mut times = StepModel::default();
        for decodes in [1, 2, 4, 1, 2, 4, 1, 2, 4] {
            times.observe(StepLoad { decodes, ..StepLoad::default() }, time(decodes) as u64);
        }
        times
    }

    #[test]
    fn where_only_the_second_row_is_dear_a_sequence_gets_many_drafts_or_none() {
        let times = model_of(gpu);
        let drafts = |rate| given(Source::Text, rate, 1, &times);
        assert_eq!([0.9, 0.7, 0.4, 0.2].map(drafts), [4, 4, 4, 0]);
    }

    /// How many times as fast a text of 1,000 tokens is with drafts that are right with this chance.
    fn gain(time: fn(usize) -> f64, chance: f64, seed: u64) -> f64 {
        let mut times = model_of(time);
        let (mut own, mut all) = (Rates::default(), Rates::default());
        let (mut tokens, mut took, mut state) = (0, 0.0, seed);
        while tokens < 1000 {
            let rates = own.of_sequence(&all);
            let probe = tokens % 64 == 0;
            let mut one = [Candidate { rates, probe, ..candidate(Source::Text, 0.0) }];
            allot(&mut one, StepLoad { decodes: 1, ..StepLoad::default() }, 100, &times);
            let drafts = one[0].given;
            let right = (0..drafts).take_while(|_| {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                ((state >> 40) as f64) < chance * (1u64 << 24) as f64
            });
            let right = right.count();
            if drafts > 0 {
                own.learn(drafts, right);
                all.learn_of_any(drafts, right);
            }
            let step = time(1 + drafts);
            times.observe(StepLoad { decodes: 1, drafts, ..StepLoad::default() }, step as u64);
            (tokens, took) = (tokens + 1 + right, took + step);
        }
        tokens as f64 * time(1) / took
    }

    #[test]
    fn drafts_gain_where_steps_leave_room_for_them_and_cost_next_to_nothing_elsewhere() {
        let two_cores = |rows: usize| 73_000.0 + 63_000.0 * rows as f64;
        for seed in 0..20 {
            for chance in [0.0, 0.1, 0.3, 0.5, 0.7, 0.85, 1.0] {
                for (machine, time) in [("gpu", gpu as fn(usize) -> f64), ("two cores", two_cores)] {
                    let gain = gain(time, chance, seed);
                    assert!(gain > 0.98, "{machine}: {gain:.3} with chance {chance}, seed {seed}");
                }
            }
            let least = [(0.5, 1.2), (0.7, 1.7), (0.85, 2.4), (1.0, 3.4)];
            for (chance, least) in least {
                let gain = gain(gpu, chance, seed);
                assert!(gain > least, "{gain:.3} with chance {chance}, seed {seed}");
            }
        }
    }

    #[test]
    fn a_sequence_without_luck_gets_no_drafts_but_a_probe() {
        let mut all = [candidate(Source::Text, 0.9), candidate(Source::Text, 0.01)];
        all[1].probe = true;
        allot(&mut all, StepLoad { decodes: 2, ..StepLoad::default() }, 8, &times(0));
        assert_eq!(all.map(|c| c.given), [4, 1]);
        allot(&mut all, StepLoad { decodes: 2, ..StepLoad::default() }, 3, &times(0));
        assert_eq!(all.map(|c| c.given), [3, 0], "the room is limited");
    }

    #[test]
    fn rates_are_learned_for_each_place_and_begin_at_those_of_all_sequences() {
        let (mut all, mut own) = (Rates::default(), Rates::default());
        assert_eq!(own.of_sequence(&all), [0.5; PLACES]);
        (0..50).for_each(|_| all.learn_of_any(2, 1));
        let [first, second, third, _] = own.of_sequence(&all);
        assert!(first > 0.9 && second < 0.1 && third == 0.5, "{first} {second} {third}");
        (0..50).for_each(|_| own.learn(1, 0));
        assert!(own.of_sequence(&all)[0] < 0.2);
    }

    #[test]
    fn the_last_occurrence_is_followed() {
        assert_eq!(find(&[1, 2, 3, 4, 1, 2, 3, 5, 9, 1, 2, 3], 3), Some(7));
        assert_eq!(find(&[1, 2, 3, 4, 5], 3), None);
        assert_eq!(find(&[7, 7, 7, 7], 3), Some(3));
        assert_eq!(find(&[7, 7, 7], 3), None);
        assert_eq!(find(&[1, 2, 3, 9, 2, 3], 2), Some(3));
    }
}
