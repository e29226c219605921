//! Draws a token from a row by the rule of [`crate::draw`], and computes only the logits that can change the outcome.
//!
//! If few tokens are allowed, their logits are computed and decide; a single one needs none. Otherwise the logits have bounds;
//! where a logit is changed, so are its bounds. First come the logits that may be the highest; with top-k, these decide.
//! Otherwise the tokens come with them that may arrive before all others, given their arrival times; with min-p, or where
//! bounds are far apart, these come after them. Then, with top-p, what all tokens add to the weight before and after the
//! first to arrive says between two bounds whether it is kept. If it is not kept, neither are the tokens after it in the
//! order, and the race is run again without them. If bounds leave it open, those logits are computed that make the bounds
//! narrow enough, as the middle of the bounds predicts, widest first; if these are most of the row, all are.

use std::sync::Mutex;

use super::{
    ask::{Ask, group, most, most_changes},
    bounded::{Bounded, add, drop_from, has, highest, tokens_of},
};
use crate::{
    SamplingParams,
    cpu::generic::mass::Rows,
    draw::{Arrivals, First, GROUP, ONE, kept_below, key, least_kept, ln, units, weight},
};

/// More than the roundings of a score: scores are compared without the order of operations of the rule, and those of
/// tokens that can win are below 60.
const MARGIN: f64 = 1e-3;

/// Races until all logits are computed; one is rarely not enough.
const MAX_RACES: usize = 16;

/// Candidates whose numbers are made at once; those of the last group may be more.
const CANDIDATES: usize = 64;

/// Times that bounds are made narrower until all logits are computed; a second time is rare.
const MAX_NARROWED: usize = 4;

/// What [`Race::advance`] needs next.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Next {
    /// The logits of [`Race::ids`].
    Some,
    /// The logits of the tokens in [`Race::asked`], which are this many.
    Asked(usize),
    /// All logits.
    All,
    /// Nothing: this token is drawn.
    Nothing(u32),
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Step {
    /// Choose the logits of all allowed tokens.
    Allowed,
    /// Choose the logits that may be the highest, and with them the tokens that may arrive first, if bounds can tell which.
    Highest,
    /// Decide among the highest logits.
    List,
    /// Choose the tokens that may arrive first, without those that are cut.
    Contenders,
    /// Decide.
    Judge,
}

/// Groups of tokens whose first arrivals are made: whole quads.
fn padded_groups(vocab: usize) -> usize {
    vocab.div_ceil(4 * GROUP) * 4
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
    /// Sets of tokens, a bit a token and a word a group: those with changes whose logits have not been computed, those whose
    /// logits are needed next, of `ids` only those with changes, and those whose upper bounds are logits.
    pending: Vec<u64>,
    pub(super) asked: Vec<u64>,
    known: Vec<u64>,
    /// A lower bound of each changed logit.
    lows: Vec<f32>,
    arrivals: Arrivals,
    step: Step,
    /// What has been computed.
    logits: Vec<(u32, f32)>,
    /// Upper bounds of the scores of the last of `ids`, or other numbers to choose by.
    scores: Vec<f64>,
    /// The first arrival of each group, and of groups after the last; empty until it is needed.
    firsts: Vec<First>,
    /// Tokens that may arrive first if they are not late.
    candidates: Vec<u32>,
    /// The highest logit; until the first logits are computed, one that it reaches.
    max: f32,
    /// One divided by the temperature.
    inverse: f64,
    /// Tokens with this key and lower ones are cut.
    cut: u64,
    /// The logit of the last token that was cut.
    cut_logit: f32,
    /// How often bounds were made narrower.
    narrowed: usize,
    races: usize,
}

impl Race {
    /// Memory for a race between `vocab` tokens.
    pub(super) fn with_room(vocab: usize) -> Self {
        let room = most(vocab) + 1;
        let set = || Vec::with_capacity(vocab.div_ceil(GROUP));
        Race {
            token: 0,
            place: None,
            ask: Ask::plain(SamplingParams::GREEDY),
            ids: Vec::with_capacity(room),
            next: Next::All,
            pending: set(),
            asked: set(),
            known: set(),
            lows: Vec::with_capacity(most_changes(vocab)),
            arrivals: Arrivals::new(0, 0, 0),
            step: Step::Highest,
            logits: Vec::with_capacity(2 * room),
            scores: Vec::with_capacity(room + vocab.div_ceil(2 * GROUP)),
            firsts: Vec::with_capacity(padded_groups(vocab)),
            candidates: Vec::with_capacity(CANDIDATES + GROUP),
            max: f32::NEG_INFINITY,
            inverse: 1.0,
            cut: 0,
            cut_logit: f32::NEG_INFINITY,
            narrowed: 0,
            races: 0,
        }
    }

    /// Bytes of [`Race::with_room`], behind its lock.
    pub(super) fn bytes(vocab: usize) -> usize {
        let room = most(vocab) + 1;
        size_of::<Mutex<Self>>()
            + room * (size_of::<u32>() + 2 * size_of::<(u32, f32)>())
            + (room + vocab.div_ceil(2 * GROUP)) * size_of::<f64>()
            + 3 * vocab.div_ceil(GROUP) * size_of::<u64>()
            + most_changes(vocab) * size_of::<f32>()
            + padded_groups(vocab) * size_of::<First>()
            + (CANDIDATES + GROUP) * size_of::<u32>()
    }

    /// Begins a draw from row `token`, whose index among the rows with bounds is `place`, or which has few allowed tokens.
    pub(super) fn begin(&mut self, token: usize, place: Option<usize>, ask: Ask) {
        self.ids.clear();
        self.logits.clear();
        self.scores.clear();
        self.firsts.clear();
        self.lows.clear();
        self.candidates.clear();
        for set in [&mut self.pending, &mut self.asked, &mut self.known] {
            set.clear();
        }
        let SamplingParams { seed, choice, position, .. } = ask.params;
        self.token = token;
        self.step = if place.is_some() { Step::Highest } else { Step::Allowed };
        self.place = place;
        self.ask = ask;
        self.arrivals = Arrivals::new(seed, choice, position);
        self.next = Next::Some;
        self.inverse = 1.0 / f64::from(self.ask.params.temperature);
        self.max = f32::NEG_INFINITY;
        self.cut = 0;
        self.cut_logit = f32::NEG_INFINITY;
        self.narrowed = 0;
        self.races = 0;
    }

    /// Whether logits are needed.
    pub(super) fn is_open(&self) -> bool {
        matches!(self.next, Next::Some | Next::Asked(_))
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
                    self.make_sets(b);
                    for change in b.changes {
                        add(&mut self.pending, change.token);
                    }
                    self.ids.extend(tokens_of(b.mask.unwrap_or_default()));
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
                    self.make_sets(b);
                    let chosen = self.choose_highest(b);
                    if chosen && !few && self.can_rank(b) {
                        continue;
                    }
                    chosen
                }
                Step::List => return self.decide(),
                Step::Contenders => {
                    self.step = Step::Judge;
                    self.choose_contenders(b)
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
                let pending = self.ids.iter().filter(|&&id| has(&self.pending, id));
                pending.for_each(|&id| add(&mut self.asked, id));
                return Next::Some;
            }
        }
    }

    /// Empties the sets of tokens.
    fn make_sets(&mut self, b: &Bounded<'_>) {
        for set in [&mut self.pending, &mut self.asked, &mut self.known] {
            set.resize(b.upper.len().div_ceil(GROUP), 0);
        }
    }

    /// Takes the logits that were needed; false if one of `ids` is not a number, or the highest is infinite.
    fn take(&mut self, b: &mut Bounded<'_>) -> bool {
        if let Next::Asked(_) = self.next {
            for (known, asked) in self.known.iter_mut().zip(&mut self.asked) {
                *known |= std::mem::take(asked);
            }
        }
        if self.logits.len() + self.ids.len() > self.logits.capacity() {
            return false;
        }
        let mut changed = self.ids.iter().filter(|&&id| has(&self.asked, id)).count();
        for change in b.changes {
            if changed == 0 {
                break;
            }
            if has(&self.asked, change.token) {
                changed -= 1;
                let logit = &mut b.upper[change.token as usize];
                *logit = change.apply(*logit);
                drop_from(&mut self.pending, change.token);
                drop_from(&mut self.asked, change.token);
            }
        }
        for id in self.ids.drain(..) {
            let logit = std::mem::replace(&mut b.upper[id as usize], f32::NEG_INFINITY);
            if logit.is_nan() {
                return false;
            }
            self.max = self.max.max(logit);
            self.logits.push((id, logit));
        }
        matches!(self.step, Step::Allowed | Step::Highest) || self.max.is_finite()
    }

    /// Chooses all tokens whose logits may be among the highest; false if they are too many.
    fn choose_highest(&mut self, b: &mut Bounded<'_>) -> bool {
        if let Some(mask) = b.mask {
            b.forbid_others(mask);
        }
        b.change(&mut self.pending, &mut self.lows);
        let vocab = b.upper.len();
        let least = match self.ask.params.keep() {
            1 => b.least_of_highest(highest(&self.lows), &self.pending),
            keep => b.least_of(keep, group(vocab), &self.pending, &mut self.scores),
        };
        if least == f32::NEG_INFINITY {
            return false;
        }
        self.max = least;
        let room = most(vocab);
        for ((from, uppers), &high) in (0..).step_by(GROUP).zip(b.upper.chunks(GROUP)).zip(&*b.high) {
            // A NaN bound rules out nothing.
            let may = |upper: f32| upper >= least || upper.is_nan();
            if may(high) {
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
        let SamplingParams { top_k, top_p, temperature, .. } = self.ask.params;
        if self.ask.params.is_greedy() {
            return self
                .logits
                .iter()
                .min_by_key(|logit| place(logit))
                .map_or(Next::All, |&(id, _)| Next::Nothing(id));
        }
        let keep = top_k as usize;
        if keep > 0 && keep < self.logits.len() {
            self.logits.select_nth_unstable_by_key(keep - 1, place);
            self.logits.truncate(keep);
        }
        if top_p < 1.0 {
            self.logits.sort_unstable_by_key(place);
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

    /// Whether bounds are close enough to choose contenders before the highest logit is known: whether what is certain to
    /// be kept has a lower bound.
    fn can_rank(&self, b: &Bounded<'_>) -> bool {
        // Where min-p cuts near the highest logit, contenders would be many.
        self.ask.params.min_p == 0.0 && self.kept(b).0 < self.max
    }

    /// Adds the tokens to `ids` that may arrive before those that are in it and those whose logits are known; false if they
    /// are too many, or after too many races.
    ///
    /// The score of a token is `(logit - max) / temperature - ln(time)`, the logarithm of what the rule compares.
    fn choose_contenders(&mut self, b: &Bounded<'_>) -> bool {
        self.races += 1;
        if self.races > MAX_RACES {
            return false;
        }
        if self.races == 1 {
            self.firsts.resize(padded_groups(b.upper.len()), First::default());
            b.make_firsts(&self.arrivals, &mut self.firsts);
        }
        let mut bar = self.first_to_arrive().map_or(f64::NEG_INFINITY, |(_, _, score)| score);
        let kept = self.kept(b);
        let count = self.ids.len();
        for &id in &self.ids {
            let lower = self.lower(id, b);
            if lower > kept.0 {
                bar = bar.max(self.scaled(lower) - f64::from(ln(self.time(id))));
            }
        }
        // The group that promises most sets a high bar for all others.
        let promise = |group: usize| self.scaled(b.high[group]) + f64::from(self.firsts[group].score);
        let groups = 0..b.high.len();
        let most_promising =
            groups.clone().map(|group| (promise(group), group)).max_by(|x, y| x.0.total_cmp(&y.0));
        let Some((_, likely)) = most_promising else { return false };
        self.scores.clear();
        for group in std::iter::once(likely).chain(groups.filter(|&group| group != likely)) {
            // Also skips nothing where a bound is NaN.
            if self.scaled(b.high[group]) + f64::from(self.firsts[group].score) < bar - MARGIN {
                continue;
            }
            self.find_candidates(group, b, kept.1, bar);
            if (group == likely || self.candidates.len() >= CANDIDATES)
                && !self.choose_candidates(b, kept, &mut bar)
            {
                return false;
            }
        }
        if !self.choose_candidates(b, kept, &mut bar) {
            return false;
        }
        let mut scores = std::iter::repeat_n(&f64::INFINITY, count).chain(&self.scores);
        self.ids.retain(|_| scores.next().is_none_or(|score| *score >= bar - MARGIN));
        true
    }

    /// A lower bound of a logit, changed if it is.
    fn lower(&self, id: u32, b: &Bounded<'_>) -> f32 {
        if !has(&self.pending, id) {
            return b.rows(self.max, self.ask.params.temperature).lower(id as usize);
        }
        let mut changed = b.changes.iter().zip(&self.lows);
        changed.find(|(change, _)| change.token == id).map_or(f32::NEG_INFINITY, |(_, &low)| low)
    }

    /// Makes candidates of the tokens of one group that would score `bar` if they arrived first in it.
    fn find_candidates(&mut self, group: usize, b: &Bounded<'_>, floor: f32, bar: f64) {
        let latest = f64::from(self.firsts[group].score) + MARGIN;
        let least = floor.max(self.logit_of(bar - latest));
        // Those that may be the highest have been chosen.
        let max = self.max;
        let may = |upper: f32| (upper >= least) & (upper < max);
        let ids = group * GROUP..b.upper.len().min((group + 1) * GROUP);
        let (eights, rest) = b.upper[ids.clone()].as_chunks::<8>();
        let mut find = |place: usize, uppers: &[f32]| {
            let found = uppers.iter().enumerate().filter(|(_, upper)| may(**upper));
            self.candidates.extend(found.map(|(i, _)| (ids.start + place + i) as u32));
        };
        for (i, uppers) in eights.iter().enumerate() {
            // Most have none, which takes fewer steps to see without branches.
            if uppers.iter().fold(false, |any, &upper| any | may(upper)) {
                find(8 * i, uppers);
            }
        }
        find(8 * eights.len(), rest);
    }

    /// Chooses those of the candidates that may score `bar`, and raises it; false if they are too many.
    fn choose_candidates(&mut self, b: &Bounded<'_>, (kept_for_sure, _): (f32, f32), bar: &mut f64) -> bool {
        let mut delays = [0.0; CANDIDATES + GROUP];
        b.delays(&self.arrivals, &self.candidates, &mut delays);
        for (i, delay) in (0..self.candidates.len()).zip(delays) {
            let id = self.candidates[i];
            let First { time, member, .. } = self.firsts[id as usize / GROUP];
            let late = f64::from(ln(if id % GROUP as u32 == member { time } else { time + delay }));
            let scaled = self.scaled(b.upper[id as usize]);
            if scaled - late < *bar - MARGIN {
                continue;
            }
            if self.ids.len() >= most(b.upper.len()) {
                return false;
            }
            self.ids.push(id);
            self.scores.push(scaled - late);
            let lower = self.lower(id, b);
            if lower > kept_for_sure {
                *bar = bar.max(self.scaled(lower) - late);
            }
        }
        self.candidates.clear();
        true
    }

    /// When a token's group begins to arrive, and with which member.
    fn first(&self, id: u32) -> (f32, usize) {
        let group = id as usize / GROUP;
        match self.firsts.get(group) {
            Some(first) => (first.time, first.member as usize),
            None => (self.arrivals.firsts(group / 4)[group % 4], self.arrivals.member(group)),
        }
    }

    /// When a token arrives.
    fn time(&self, id: u32) -> f32 {
        let (first, member) = self.first(id);
        self.arrivals.of(id as usize, first, member)
    }

    /// `(logit - max) / temperature`
    fn scaled(&self, logit: f32) -> f64 {
        (f64::from(logit) - f64::from(self.max)) * self.inverse
    }

    /// A bit less than the logit for which [`Self::scaled`] is `score`.
    fn logit_of(&self, score: f64) -> f32 {
        let logit = f64::from(self.max) + score * f64::from(self.ask.params.temperature);
        (logit - 1e-6 * logit.abs()) as f32
    }

    /// The logit above which a token is certainly kept, as far as is known, and the one below which it is certainly not.
    fn kept(&self, b: &Bounded<'_>) -> (f32, f32) {
        let SamplingParams { temperature, min_p, .. } = self.ask.params;
        let temperature = f64::from(temperature);
        // Before the highest logit is known, it is between two bounds. A NaN bound rules out nothing.
        let most = |most: f32, &high: &f32| if high.is_nan() { f32::INFINITY } else { most.max(high) };
        let most = if self.logits.is_empty() { b.high.iter().fold(self.max, most) } else { self.max };
        let [sure, floor] = kept_below(min_p).map(|below| temperature * below);
        let slack = |max: f32| 1e-4 * temperature + 1e-5 * f64::from(max.abs());
        let sure = (f64::from(most) - sure + slack(most)) as f32;
        let floor = (f64::from(self.max) - floor - slack(self.max)) as f32;
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
            let (begins, member) = self.first(id);
            // No member arrives before the first.
            if first.is_some_and(|(_, _, best)| begins / weight > best) {
                continue;
            }
            let time = self.arrivals.of(id as usize, begins, member) / weight;
            if first.is_none_or(|(other, _, best)| time < best || time == best && id < other) {
                first = Some((id, logit, time));
            }
        }
        first.map(|(id, logit, time)| (id, logit, -(f64::from(time) * ONE as f64).ln()))
    }

    /// Decides whether the first to arrive is drawn; `None` if changed logits are needed before, or if it is cut and there is
    /// another race.
    fn judge(&mut self, b: &Bounded<'_>) -> Option<Next> {
        let Some((id, logit, _)) = self.first_to_arrive() else { return Some(Next::All) };
        let SamplingParams { top_p, temperature, .. } = self.ask.params;
        if top_p >= 1.0 {
            return Some(Next::Nothing(id));
        }
        let at = key(logit, id as usize);
        let mut before = 0;
        let mut after = 0;
        for &(id, logit) in &self.logits {
            let units = units(weight(logit, self.max, temperature));
            *(if key(logit, id as usize) > at { &mut before } else { &mut after }) += units;
        }
        if before == 0 && logit == self.max {
            return Some(Next::Nothing(id));
        }
        // A token is kept if the weight before it is below that part of the whole. The sampler rounds once.
        let (before, after) = (before as f64, after as f64);
        let known = before * (1.0 - f64::from(top_p)) - f64::from(top_p) * after;
        let slack = 1e-9 * (before + after);
        // If all tokens before it are known, those known after it often suffice.
        if known < -slack && !b.may_reach(logit) {
            return Some(Next::Nothing(id));
        }
        self.ids.extend(
            b.changes
                .iter()
                .map(|change| change.token)
                .filter(|&token| has(&self.pending, token) && b.upper[token as usize] > f32::NEG_INFINITY)
                .take(most(b.upper.len()) + 1),
        );
        if !self.ids.is_empty() {
            return (self.ids.len() > most(b.upper.len())).then_some(Next::All);
        }
        let rows = Rows { at: logit, top_p, known: &self.known, ..b.rows(self.max, temperature) };
        if b.most(&rows, -slack - known) < -slack - known {
            return Some(Next::Nothing(id));
        }
        if known + b.least(&rows) > slack {
            self.cut = at;
            self.cut_logit = logit;
            self.step = Step::Contenders;
            return None;
        }
        let middle = b.shares(&rows, 0..self.known.len()).middle;
        Some(self.narrow(known + middle, logit, b))
    }

    /// Chooses the logits without which it is open whether the token with logit `at` is kept. With all logits in the middle
    /// of their bounds, the sum that decides is `middle`. The widest bounds are chosen until the others together cannot
    /// turn its sign.
    fn narrow(&mut self, middle: f64, at: f32, b: &Bounded<'_>) -> Next {
        self.narrowed += 1;
        if self.narrowed > MAX_NARROWED {
            return Next::All;
        }
        let SamplingParams { top_p, temperature, .. } = self.ask.params;
        let (vocab, panels) = (b.upper.len(), self.known.len());
        let rows = Rows { at, top_p, known: &self.known, ..b.rows(self.max, temperature) };
        let widths = |panel: usize| {
            let [least, between, most] = b.shares(&rows, panel..panel + 1).rows;
            let width = |i: usize| if middle < 0.0 { most[i] - between[i] } else { between[i] - least[i] };
            std::array::from_fn::<f32, GROUP, _>(width)
        };
        // A part of the panels says about how wide bounds may stay.
        let enough = 0.9 * middle.abs() / ONE as f64;
        let step = panels.div_ceil((most(vocab) / GROUP).max(1));
        self.scores.clear();
        self.scores
            .extend((0..panels).step_by(step).flat_map(&widths).map(f64::from).take(self.scores.capacity()));
        self.scores.sort_unstable_by(f64::total_cmp);
        let mut left = 0.9 * enough / step as f64;
        let first = self.scores.iter().find(|&&width| {
            left -= width;
            left < 0.0
        });
        let Some(mut widest) = first.or(self.scores.last()).map(|&width| width as f32) else {
            return Next::All;
        };
        let mut count = 0;
        for _ in 0..4 {
            let mut rest = 0.0;
            for (panel, (asked, known)) in self.asked.iter_mut().zip(&self.known).enumerate() {
                let widths = widths(panel);
                let is_wide = |row: usize| widths[row] >= widest;
                *asked = (0..GROUP).fold(0, |set, row| set | u64::from(is_wide(row)) << row) & !known;
                rest += widths.iter().map(|&width| if width < widest { width } else { 0.0 }).sum::<f32>();
            }
            count = self.asked.iter().map(|asked| asked.count_ones() as usize).sum();
            if f64::from(rest) < enough {
                break;
            }
            widest *= 0.7;
        }
        if count == 0 || count > vocab / 4 * 3 {
            return Next::All;
        }
        Next::Asked(count)
    }
}
