//! Draws a token from a row by the rule of [`crate::draw`], and computes only the logits that can change the outcome.
//!
//! If few tokens are allowed, their logits are computed and decide; a single one needs none. Otherwise the logits have bounds.
//! First come the logits that may be the highest, and those that are changed; with top-k, these decide. Otherwise those of
//! tokens follow that may arrive before all others, given their arrival times; then, with top-p, the weight before and
//! after the first to arrive says between two bounds whether it is kept. If it is not kept, neither are the tokens after it
//! in the order, and the race is run again without them. If bounds leave it open, the logits before it are computed; if it
//! is still open, all logits are.

use std::sync::Mutex;

use super::{
    ask::{Ask, most},
    bounded::{Bounded, tokens_of},
};
use crate::{
    SamplingParams,
    cpu::generic::mass::Rows,
    draw::{Arrivals, GROUP, ONE, kept_below, key, least_kept, units, weight},
};

/// More than the roundings of a score: scores are compared without the order of operations of the rule, and those of
/// tokens that can win are below 60.
const MARGIN: f64 = 1e-3;

/// Races until all logits are computed; one is rarely not enough.
const MAX_RACES: usize = 16;

/// What [`Race::advance`] needs next.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Next {
    /// The logits of [`Race::ids`].
    Some,
    /// The logits of all tokens whose upper bound is at least this.
    From(f32),
    /// All logits.
    All,
    /// Nothing: this token is drawn.
    Nothing(u32),
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Step {
    /// Choose the logits of all allowed tokens.
    Allowed,
    /// Choose the logits that may be the highest.
    Highest,
    /// Decide among the highest logits.
    List,
    /// Choose the tokens that may arrive first.
    Contenders,
    /// Decide.
    Judge,
}

/// The draw from one row.
#[derive(Debug)]
pub(super) struct Race {
    /// The row.
    pub(super) token: usize,
    /// Its index among the rows with bounds, if it has any.
    pub(super) place: Option<usize>,
    pub(super) ask: Ask,
    /// Rows of the table whose logits are needed next.
    pub(super) ids: Vec<u32>,
    pub(super) next: Next,
    /// Number of `ids`, from the first, that have changes.
    changed: usize,
    arrivals: Arrivals,
    step: Step,
    /// What has been computed.
    logits: Vec<(u32, f32)>,
    /// Upper bounds of the scores of `ids`.
    scores: Vec<f64>,
    /// `-ln` of the first arrival of each group.
    firsts: Vec<f32>,
    max: f32,
    /// Tokens with this key and lower ones are cut.
    cut: u64,
    /// The logit of the last token that was cut.
    cut_logit: f32,
    /// Whether all upper bounds from the first to arrive on are logits.
    extended: bool,
    races: usize,
}

impl Race {
    /// Memory for a race between `vocab` tokens.
    pub(super) fn with_room(vocab: usize) -> Self {
        let room = most(vocab) + 1;
        Race {
            token: 0,
            place: None,
            ask: Ask::plain(SamplingParams::GREEDY),
            ids: Vec::with_capacity(room),
            next: Next::All,
            changed: 0,
            arrivals: Arrivals::new(0, 0, 0),
            step: Step::Highest,
            logits: Vec::with_capacity(2 * room),
            scores: Vec::with_capacity(room),
            firsts: Vec::with_capacity(vocab.div_ceil(4 * GROUP) * 4),
            max: f32::NEG_INFINITY,
            cut: 0,
            cut_logit: f32::NEG_INFINITY,
            extended: false,
            races: 0,
        }
    }

    /// Bytes of [`Race::with_room`], behind its lock.
    pub(super) fn bytes(vocab: usize) -> usize {
        let chosen = size_of::<u32>() + size_of::<f64>() + 2 * size_of::<(u32, f32)>();
        size_of::<Mutex<Self>>()
            + (most(vocab) + 1) * chosen
            + vocab.div_ceil(4 * GROUP) * 4 * size_of::<f32>()
    }

    /// Begins a draw from row `token`, whose index among the rows with bounds is `place`, or which has few allowed tokens.
    pub(super) fn begin(&mut self, token: usize, place: Option<usize>, ask: Ask) {
        self.ids.clear();
        self.logits.clear();
        self.scores.clear();
        let SamplingParams { seed, choice, position, .. } = ask.params;
        self.token = token;
        self.step = if place.is_some() { Step::Highest } else { Step::Allowed };
        self.place = place;
        self.ask = ask;
        self.changed = 0;
        self.arrivals = Arrivals::new(seed, choice, position);
        self.next = Next::Some;
        self.max = f32::NEG_INFINITY;
        self.cut = 0;
        self.cut_logit = f32::NEG_INFINITY;
        self.extended = false;
        self.races = 0;
    }

    /// Whether logits are needed.
    pub(super) fn is_open(&self) -> bool {
        matches!(self.next, Next::Some | Next::From(_))
    }

    /// Takes the logits that were needed, and goes on until others are, or until a token is drawn.
    pub(super) fn advance(&mut self, b: &mut Bounded<'_>) {
        self.next = if self.take(b) { self.go_on(b) } else { Next::All };
    }

    fn go_on(&mut self, b: &mut Bounded<'_>) -> Next {
        loop {
            let chosen = match self.step {
                Step::Allowed => {
                    self.step = Step::List;
                    self.choose_allowed(b);
                    if let [only] = self.ids[..]
                        && b.changes.iter().all(|change| change.more > f32::NEG_INFINITY)
                    {
                        return Next::Nothing(only);
                    }
                    !self.ids.is_empty()
                }
                Step::Highest => {
                    let few = self.ask.params.is_greedy() || self.ask.params.top_k > 0;
                    self.step = if few { Step::List } else { Step::Contenders };
                    self.choose_highest(b)
                }
                Step::List => return self.decide(),
                Step::Contenders => {
                    self.step = Step::Judge;
                    self.races += 1;
                    self.races <= MAX_RACES && self.choose_contenders(b)
                }
                Step::Judge => match self.judge(b) {
                    Some(next) => return next,
                    None => true,
                },
            };
            if !chosen {
                return Next::All;
            }
            if !self.ids.is_empty() {
                return Next::Some;
            }
        }
    }

    /// Takes the logits of `ids`; false if one is not a number, or the highest is infinite.
    fn take(&mut self, b: &mut Bounded<'_>) -> bool {
        if self.logits.len() + self.ids.len() > self.logits.capacity() {
            return false;
        }
        let changes = &b.changes[..std::mem::take(&mut self.changed)];
        for (i, id) in self.ids.drain(..).enumerate() {
            let logit = std::mem::replace(&mut b.upper[id as usize], f32::NEG_INFINITY);
            let logit = changes.get(i).map_or(logit, |change| change.apply(logit));
            if logit.is_nan() {
                return false;
            }
            self.max = self.max.max(logit);
            self.logits.push((id, logit));
        }
        matches!(self.step, Step::Allowed | Step::Highest) || self.max.is_finite()
    }

    /// Chooses all allowed tokens, those whose logits are changed first.
    fn choose_allowed(&mut self, b: &mut Bounded<'_>) {
        self.changed = b.changes.len();
        self.ids.extend(b.changes.iter().map(|change| change.token));
        let allowed = tokens_of(b.mask.unwrap_or_default());
        // The logits have not been computed, so their places can say which tokens are chosen.
        allowed.clone().for_each(|token| b.upper[token as usize] = 0.0);
        b.changes.iter().for_each(|change| b.upper[change.token as usize] = 1.0);
        self.ids.extend(allowed.filter(|&token| b.upper[token as usize] == 0.0));
    }

    /// Chooses all tokens whose logits are changed, and of the others those whose logits may be among the highest; false
    /// if they are too many.
    fn choose_highest(&mut self, b: &mut Bounded<'_>) -> bool {
        if let Some(mask) = b.mask {
            b.forbid_others(mask);
        }
        let room = most(b.upper.len());
        self.changed = b.changes.len();
        for change in b.changes {
            b.upper[change.token as usize] = f32::NEG_INFINITY;
            self.ids.push(change.token);
        }
        for change in b.changes {
            b.bound_panel(change.token as usize / GROUP);
        }
        let least = match self.ask.params.keep() {
            1 => b.best.iter().copied().fold(f32::NEG_INFINITY, f32::max),
            keep => *b.best.select_nth_unstable_by(keep - 1, |a, b| b.total_cmp(a)).1,
        };
        if least == f32::NEG_INFINITY {
            return false;
        }
        for (from, uppers) in (0..).step_by(GROUP).zip(b.upper.chunks(GROUP)) {
            // A NaN bound rules out nothing.
            let may = |upper: f32| upper >= least || upper.is_nan();
            if uppers.iter().fold(false, |any, &upper| any | may(upper)) {
                let ids = uppers.iter().enumerate().filter(|(_, upper)| may(**upper));
                self.ids.extend(ids.map(|(i, _)| from + i as u32).take(room + 1 - self.ids.len()));
                if self.ids.len() > room {
                    return false;
                }
            }
        }
        true
    }

    /// Draws from the logits that are known: the highest, or those of all allowed tokens.
    fn decide(&mut self) -> Next {
        let place = |&(id, logit): &(u32, f32)| std::cmp::Reverse(key(logit, id as usize));
        self.logits.sort_unstable_by_key(place);
        let SamplingParams { top_k, top_p, temperature, .. } = self.ask.params;
        if self.ask.params.is_greedy() {
            return Next::Nothing(self.logits[0].0);
        }
        if top_k > 0 {
            self.logits.truncate(top_k as usize);
        }
        if top_p < 1.0 {
            let max = self.max;
            let weights = self.logits.iter().map(|&(_, logit)| units(weight(logit, max, temperature)));
            let target = (f64::from(top_p) * weights.clone().sum::<u64>() as f64).ceil() as u64;
            let mut mass = 0;
            let kept = weights.take_while(|weight| {
                let before = mass;
                mass += weight;
                before < target
            });
            let kept = kept.count();
            self.logits.truncate(kept.max(1));
        }
        self.first_to_arrive().map_or(Next::All, |(id, ..)| Next::Nothing(id))
    }

    /// Chooses all tokens that may arrive before those whose logits are known; false if they are too many.
    ///
    /// The score of a token is `(logit - max) / temperature - ln(time)`, the logarithm of what the rule compares.
    fn choose_contenders(&mut self, b: &Bounded<'_>) -> bool {
        self.find_firsts(b.high.len());
        let mut bar = self.first_to_arrive().map_or(f64::NEG_INFINITY, |(_, _, score)| score);
        let (kept_for_sure, floor) = self.kept();
        // The group that promises most sets a high bar for all others.
        let promise = |group: usize| self.scaled(b.high[group]) + f64::from(self.firsts[group]);
        let groups = 0..b.high.len();
        let Some(likely) = groups.clone().max_by(|&x, &y| promise(x).total_cmp(&promise(y))) else {
            return false;
        };
        self.scores.clear();
        for group in std::iter::once(likely).chain(groups.filter(|&group| group != likely)) {
            // Also skips nothing where a bound is NaN.
            if self.scaled(b.high[group]) + f64::from(self.firsts[group]) < bar - MARGIN {
                continue;
            }
            if !self.choose_from(group, b, (kept_for_sure, floor), &mut bar) {
                return false;
            }
        }
        let mut scores = self.scores.iter();
        self.ids.retain(|_| scores.next().is_none_or(|score| *score >= bar - MARGIN));
        true
    }

    /// Chooses tokens of one group that may score `bar`, and raises it.
    fn choose_from(
        &mut self,
        group: usize,
        b: &Bounded<'_>,
        (kept_for_sure, floor): (f32, f32),
        bar: &mut f64,
    ) -> bool {
        let rows = b.rows(self.max, self.ask.params.temperature);
        let first = self.arrivals.firsts(group / 4)[group % 4];
        let member = self.arrivals.member(group);
        let ids = group * GROUP..b.upper.len().min((group + 1) * GROUP);
        for id in ids {
            let upper = b.upper[id];
            let scaled = self.scaled(upper);
            if upper < floor || scaled + f64::from(self.firsts[group]) < *bar - MARGIN {
                continue;
            }
            let late = f64::from(self.arrivals.of(id, first, member)).ln();
            if scaled - late < *bar - MARGIN {
                continue;
            }
            if self.ids.len() >= most(b.upper.len()) {
                return false;
            }
            self.ids.push(id as u32);
            self.scores.push(scaled - late);
            let lower = rows.lower(id);
            if lower > kept_for_sure {
                *bar = bar.max(self.scaled(lower) - late);
            }
        }
        true
    }

    /// `-ln` of the first arrivals of all groups.
    fn find_firsts(&mut self, groups: usize) {
        if self.races > 1 {
            return;
        }
        self.firsts.clear();
        for quad in 0..groups.div_ceil(4) {
            self.firsts.extend(self.arrivals.firsts(quad).map(|first| -(f64::from(first).ln() as f32)));
        }
    }

    /// `(logit - max) / temperature`
    fn scaled(&self, logit: f32) -> f64 {
        (f64::from(logit) - f64::from(self.max)) / f64::from(self.ask.params.temperature)
    }

    /// The logit above which a token is certainly kept, as far as is known, and the one below which it is certainly not.
    fn kept(&self) -> (f32, f32) {
        let SamplingParams { temperature, min_p, .. } = self.ask.params;
        let temperature = f64::from(temperature);
        let max = f64::from(self.max);
        let slack = 1e-4 * temperature + 1e-5 * max.abs();
        let [sure, floor] = kept_below(min_p).map(|below| max - temperature * below);
        let (sure, floor) = ((sure + slack) as f32, (floor - slack) as f32);
        (sure.max(self.cut_logit), floor.max(self.cut_logit))
    }

    /// Of the tokens whose logits are known and that are not cut, the first to arrive by the rule, with its logit and score.
    fn first_to_arrive(&self) -> Option<(u32, f32, f64)> {
        let least = least_kept(self.ask.params.min_p).max(1);
        let mut first: Option<(u32, f32, f32)> = None;
        for &(id, logit) in &self.logits {
            let weight = weight(logit, self.max, self.ask.params.temperature);
            if units(weight) < least || key(logit, id as usize) <= self.cut {
                continue;
            }
            let group = id as usize / GROUP;
            let begins = self.arrivals.firsts(group / 4)[group % 4];
            let time = self.arrivals.of(id as usize, begins, self.arrivals.member(group)) / weight;
            if first.is_none_or(|(other, _, best)| time < best || time == best && id < other) {
                first = Some((id, logit, time));
            }
        }
        first.map(|(id, logit, time)| (id, logit, -(f64::from(time) * ONE as f64).ln()))
    }

    /// Decides whether the first to arrive is drawn; `None` if it is cut and there is another race.
    fn judge(&mut self, b: &Bounded<'_>) -> Option<Next> {
        let Some((id, logit, _)) = self.first_to_arrive() else { return Some(Next::All) };
        if self.ask.params.top_p >= 1.0 {
            return Some(Next::Nothing(id));
        }
        let at = key(logit, id as usize);
        let mut before = 0;
        let mut after = 0;
        for &(id, logit) in &self.logits {
            let units = units(weight(logit, self.max, self.ask.params.temperature));
            *(if key(logit, id as usize) > at { &mut before } else { &mut after }) += units;
        }
        if before == 0 && logit == self.max {
            return Some(Next::Nothing(id));
        }
        // A token is kept if the weight before it is below that part of the whole. The sampler rounds once.
        let top_p = f64::from(self.ask.params.top_p);
        let cuts = |before: f64, after: f64| before * (1.0 - top_p) - top_p * after;
        // If all tokens before it are known, those known after it often suffice.
        let others_before = |any, &upper: &f32| any | (upper >= logit) | upper.is_nan();
        let kept = cuts(before as f64, after as f64) < -1e-9 * (before + after) as f64;
        if kept && !b.upper.iter().fold(false, others_before) {
            return Some(Next::Nothing(id));
        }
        let others = (b.mass)(&Rows {
            at: logit,
            exact: self.extended,
            ..b.rows(self.max, self.ask.params.temperature)
        });
        let [before, after] = [(before, others.before), (after, others.after)]
            .map(|(sum, others)| others.map(|x| x + sum as f64));
        let slack = 1e-9 * (before[1] + after[1]);
        if cuts(before[1], after[0]) < -slack {
            return Some(Next::Nothing(id));
        }
        if cuts(before[0], after[1]) > slack {
            self.cut = at;
            self.cut_logit = logit;
            self.step = Step::Contenders;
            return None;
        }
        let many = b.upper.len() / 4;
        if self.extended || b.upper.iter().filter(|&&upper| upper >= logit).count() > many {
            return Some(Next::All);
        }
        self.extended = true;
        Some(Next::From(logit))
    }
}
