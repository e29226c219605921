//! Refuses requests that would get their first token too late. The prediction is based on the pace at which earlier
//! requests got their first tokens. Older requests count less, and much less after a time without a queue. Without
//! recent evidence, no request is refused. The request that would be served next is never refused, because its wait is
//! the evidence for the others.
//!
//! A request waits for those before it and for those that overtake it: more urgent ones, and less urgent ones that have
//! waited long. The pace of its own priority shows how often that happens. A gap without first tokens counts in that
//! pace even before the gap ends.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use bitnet::inference::{Engine, Priority};
use parking_lot::Mutex;

use crate::http::error::ApiError;

/// Watches the queue, and predicts how long a new request would wait.
pub(crate) struct Overload {
    goal: Option<Duration>,
    state: Mutex<State>,
}

/// Times in seconds.
#[derive(Debug, Default)]
struct State {
    /// Requests of each priority that have no token yet.
    waiting: [usize; 3],
    /// When the last such request got its first token or ended, if there is none now.
    quiet: Option<Instant>,
    /// For each priority, the pace of all requests that are at least as urgent.
    pace: [FirstTokenRate; 3],
    /// The pace of each priority alone.
    own: [FirstTokenRate; 3],
    /// For each priority, when its first request became the next to get a token.
    head: [Option<Instant>; 3],
    /// Times from submission to the place in a batch, and to the first token.
    queued: Mean,
    first: Mean,
    /// How much too low the predictions for each priority were.
    error: [Spread; 3],
}

/// How fast requests get their first tokens.
#[derive(Debug, Default, Clone, Copy)]
struct FirstTokenRate {
    /// Time of the last first token.
    last: Option<Instant>,
    /// Seconds between one first token and the next.
    gap: Mean,
}

/// A mean in which values count less the more new values there are, and the older they are.
#[derive(Debug, Default, Clone, Copy)]
struct Mean {
    weight: f64,
    sum: f64,
    at: Option<Instant>,
}

/// How much longer than predicted requests waited, and how much that varies: mean and mean deviation, as in TCP's
/// estimate of round trips (RFC 6298).
#[derive(Debug, Default, Clone, Copy)]
struct Spread {
    mean: f64,
    deviation: f64,
}

impl Spread {
    fn add(&mut self, value: f64) {
        let off = value - self.mean;
        self.mean += off / 64.0;
        self.deviation += (off.abs() - self.deviation) / 64.0;
    }

    /// A value that few exceed.
    fn high(self) -> f64 {
        (self.mean + 5.0 * self.deviation).max(0.0)
    }
}

/// Factor by which each new value reduces the weight of the older ones, so that about ten count.
const DECAY: f64 = 0.9;
/// Minimum time in seconds in which values lose two thirds of their weight. It is ten times the mean if that is longer.
const TIME_CONSTANT: f64 = 5.0;
/// Time in seconds in which values lose two thirds of their weight while no request waits.
const IDLE_TIME_CONSTANT: f64 = 1.0;
/// Weight below which a mean is no evidence.
const MIN_WEIGHT: f64 = 0.5;

impl Mean {
    fn add(&mut self, now: Instant, value: f64) {
        let (kept, mean) = (self.faded(now) * DECAY, self.value().unwrap_or(0.0));
        *self = Mean { weight: kept + 1.0, sum: kept * mean + value, at: Some(now) };
    }

    /// The remaining weight at this time.
    fn faded(&self, now: Instant) -> f64 {
        let age = self.at.map_or(0.0, |at| now.saturating_duration_since(at).as_secs_f64());
        let memory = TIME_CONSTANT.max(10.0 * self.value().unwrap_or(0.0));
        self.weight * (-age / memory).exp()
    }

    fn value(&self) -> Option<f64> {
        (self.weight > 0.0).then(|| self.sum / self.weight)
    }

    /// The mean with one more value that is still growing: the best estimate of the mean time between independent
    /// events.
    fn with(&self, now: Instant, so_far: f64) -> f64 {
        let weight = self.faded(now);
        (weight * self.value().unwrap_or(0.0) + so_far) / weight.max(1.0)
    }

    /// The mean, if there is recent evidence for it.
    fn recent(&self, now: Instant) -> Option<f64> {
        self.value().filter(|_| self.faded(now) >= MIN_WEIGHT)
    }

    fn rest(&mut self, seconds: f64) {
        let kept = (-seconds / IDLE_TIME_CONSTANT).exp();
        (self.weight, self.sum) = (self.weight * kept, self.sum * kept);
    }
}

impl FirstTokenRate {
    /// A request has its first token after `waited` seconds.
    fn record(&mut self, now: Instant, waited: f64) {
        // If the request arrived after the last first token, the gap counts only from its arrival.
        let since = self.last.replace(now).map(|last| now.saturating_duration_since(last).as_secs_f64());
        self.gap.add(now, since.map_or(waited, |since| since.min(waited)));
    }
}

impl State {
    /// A request has its first token after `waited` seconds, of which `expected` were predicted.
    fn record(&mut self, now: Instant, priority: Priority, waited: f64, expected: Option<f64>) {
        let class = priority as usize;
        self.pace[class..].iter_mut().for_each(|pace| pace.record(now, waited));
        self.own[class].record(now, waited);
        self.head[class] = Some(now);
        if let Some(expected) = expected {
            // A request that is served early needs no margin.
            self.error[class].add((waited - expected).max(0.0));
        }
    }

    /// Reduces the weight of what was learned, because no request has waited for this many seconds.
    fn rest(&mut self, seconds: f64) {
        self.pace.iter_mut().chain(&mut self.own).for_each(|pace| pace.gap.rest(seconds));
        [&mut self.queued, &mut self.first].into_iter().for_each(|mean| mean.rest(seconds));
        if self.pace.iter().all(|pace| pace.gap.weight < MIN_WEIGHT) {
            self.error = Default::default();
        }
    }

    /// Seconds that a request with `ahead` before it waits for its first token; `None` without recent evidence.
    fn predict(&self, now: Instant, priority: Priority, ahead: usize) -> Option<f64> {
        let gap = self.pace[priority as usize].gap.recent(now)?;
        // From the place in a batch to the first token.
        let start = self.first.recent(now).zip(self.queued.recent(now));
        Some(gap * (ahead + 1) as f64 + start.map_or(0.0, |(first, queued)| (first - queued).max(0.0)))
    }

    /// Seconds that a request waits for its turn in its own priority, between others that overtake it.
    fn turn(&self, now: Instant, priority: Priority) -> f64 {
        let class = priority as usize;
        let so_far = self.head[class].filter(|_| self.waiting[class] > 0);
        let so_far = so_far.map_or(0.0, |since| now.saturating_duration_since(since).as_secs_f64());
        self.own[class].gap.with(now, so_far) * (self.waiting[class] + 1) as f64
    }

    fn enter(&mut self, now: Instant, priority: Priority) {
        if let Some(quiet) = self.quiet.take() {
            self.rest(now.saturating_duration_since(quiet).as_secs_f64());
        }
        let class = priority as usize;
        if self.waiting[class] == 0 {
            self.head[class] = Some(now);
        }
        self.waiting[class] += 1;
    }

    fn leave(&mut self, now: Instant, priority: Priority) {
        self.waiting[priority as usize] -= 1;
        if self.waiting == [0; 3] {
            self.quiet = Some(now);
        }
    }

    /// Predicts how many seconds a new request would wait, and adds a margin for errors of the prediction; `None` if
    /// there is no evidence or no request before it.
    fn judge(&self, now: Instant, priority: Priority) -> Option<(f64, Duration)> {
        let ahead: usize = self.waiting[..=priority as usize].iter().sum();
        let expected = self.predict(now, priority, ahead).filter(|_| ahead > 0)?;
        let expected = expected.max(self.turn(now, priority));
        Some((expected, Duration::from_secs_f64(expected + self.error[priority as usize].high())))
    }
}

impl Overload {
    pub fn new(goal: Option<Duration>) -> Self {
        Overload { goal, state: Mutex::default() }
    }

    /// A sequence has left the queue.
    pub fn admitted(&self, waited: f64) {
        self.state.lock().queued.add(Instant::now(), waited);
    }

    /// A sequence has its first token.
    pub fn first_token(&self, seconds: f64) {
        self.state.lock().first.add(Instant::now(), seconds);
    }

    /// Refuses a request whose first token would probably come too late for the server's goal or for the request's own
    /// deadline. Returns the predicted wait in seconds, or `None` if there is none.
    pub fn check(
        &self,
        engine: &Engine,
        priority: Priority,
        deadline: Option<Duration>,
    ) -> Result<Option<f64>, ApiError> {
        let status = engine.status();
        if engine.queue().sequences == 0 && status.running < status.batch_size {
            return Ok(None);
        }
        let Some((expected, wait)) = self.state.lock().judge(Instant::now(), priority) else {
            return Ok(None);
        };
        // The goal does not apply to background requests.
        let goal = self.goal.filter(|_| priority != Priority::Background);
        for (limit, code, what) in
            [(deadline, "deadline", "the deadline of the request"), (goal, "overloaded", "the server's goal")]
        {
            if let Some(limit) = limit.filter(|&limit| wait > limit) {
                let message = format!("the first token would take {wait:.1?}, over {what} of {limit:.1?}");
                return Err(ApiError::busy(code, message, wait - limit));
            }
        }
        Ok(Some(expected))
    }

    /// Raises the retry time of a refusal to the predicted time until the current queue has been served.
    pub fn with_retry_time(&self, engine: &Engine, mut error: ApiError) -> ApiError {
        let waiting = engine.queue().sequences;
        let wait = self.state.lock().predict(Instant::now(), Priority::Background, waiting);
        let wait = wait.map(Duration::from_secs_f64);
        error.retry_after = error.retry_after.map(|least| wait.map_or(least, |wait| wait.max(least)));
        error
    }

    /// Counts a request until its first token, or its end.
    pub fn wait(self: &Arc<Self>, priority: Priority, expected: Option<f64>) -> Waiting {
        let since = Instant::now();
        self.state.lock().enter(since, priority);
        Waiting { overload: Arc::clone(self), priority, expected, since }
    }
}

/// A request without a token.
pub(crate) struct Waiting {
    overload: Arc<Overload>,
    priority: Priority,
    expected: Option<f64>,
    since: Instant,
}

impl Waiting {
    /// The first token is there.
    pub fn over(self) {
        let now = Instant::now();
        let waited = now.saturating_duration_since(self.since).as_secs_f64();
        self.overload.state.lock().record(now, self.priority, waited, self.expected);
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.overload.state.lock().leave(Instant::now(), self.priority);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Simulates requests to a server with this many places, on a simulated clock.
    struct Replay {
        state: State,
        start: Instant,
        /// Milliseconds since the start.
        now: u64,
    }

    impl Replay {
        fn new() -> Replay {
            Replay { state: State::default(), start: Instant::now(), now: 0 }
        }

        fn at(&self) -> Instant {
            self.start + Duration::from_millis(self.now)
        }

        /// Sends `count` requests at once, which get their first tokens one after the other; returns the number of
        /// refusals.
        fn round(&mut self, count: usize, places: usize, each: u64, priority: Priority, goal: u64) -> usize {
            let mut taken = 0;
            for i in 0..count {
                // While places are free, no request is judged.
                let judged = if i < places { None } else { self.state.judge(self.at(), priority) };
                if judged.is_none_or(|(_, wait)| wait <= Duration::from_millis(goal)) {
                    self.state.enter(self.at(), priority);
                    taken += 1;
                }
            }
            let begun = self.now;
            for _ in 0..taken {
                self.now += each;
                let waited = (self.now - begun) as f64 / 1e3;
                self.state.record(self.at(), priority, waited, None);
                self.state.leave(self.at(), priority);
            }
            count - taken
        }
    }

    #[test]
    fn short_requests_after_a_burst_of_long_work_are_not_refused() {
        for priority in [Priority::Background, Priority::Normal] {
            let mut replay = Replay::new();
            // A hundred requests that take a second each; the last ones run for a while longer.
            assert_eq!(replay.round(100, 8, 1000, priority, u64::MAX), 0);
            replay.now += 8000;
            for round in 0..5 {
                assert_eq!(replay.round(200, 8, 1, Priority::Normal, 1000), 0, "round {round}");
                replay.now += 100;
            }
        }
    }

    #[test]
    fn a_stale_pace_is_unlearned_from_the_requests_that_are_let_through() {
        let mut replay = Replay::new();
        replay.round(100, 8, 1000, Priority::Normal, u64::MAX);
        // Without a pause, the first round would be judged by the pace of the burst.
        let refused: Vec<usize> = (0..6).map(|_| replay.round(200, 8, 1, Priority::Normal, 1000)).collect();
        assert!(refused[0] > 100, "{refused:?}");
        assert_eq!(refused[4..], [0, 0], "{refused:?}");
    }

    #[test]
    fn a_lasting_overload_is_refused_in_every_round() {
        let mut replay = Replay::new();
        replay.round(50, 8, 100, Priority::Normal, u64::MAX);
        for _ in 0..20 {
            let refused = replay.round(100, 8, 100, Priority::Normal, 2000);
            // About twenty have their token within two seconds.
            assert!((70..=88).contains(&refused), "{refused}");
        }
    }

    struct Simulated {
        priority: Priority,
        at: f64,
        expected: Option<f64>,
        /// Steps of each sequence that has had no place yet.
        sequences: Vec<u64>,
        waits: bool,
    }

    /// Numbers below a limit, the same in every run.
    struct Random(u64);

    impl Random {
        fn below(&mut self, limit: u64) -> u64 {
            self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (self.0 >> 33) % limit
        }

        /// Seconds to the next of `rate` requests a second.
        fn gap(&mut self, rate: f64) -> f64 {
            -((1 + self.below(1 << 24)) as f64 / f64::from(1 << 24)).ln() / rate
        }

        /// Every tenth request has several choices, and every fiftieth is long.
        fn sequences(&mut self) -> Vec<u64> {
            match self.below(50) {
                0 => vec![50 + self.below(200)],
                1..6 => (0..2 + self.below(5)).map(|_| 1 + self.below(20)).collect(),
                _ => vec![1 + self.below(40)],
            }
        }
    }

    /// Runs eight places under eight times the load that they can carry, for a minute. A quarter of the requests are
    /// interactive; the others are normal and move up after half of the goal of 1 s. Returns the seconds to the first
    /// token of each accepted request, and the fraction of the places in use.
    fn crowd(seed: u64) -> (Vec<f64>, f64) {
        let start = Instant::now();
        let mut random = Random(seed);
        let mut state = State::default();
        let (mut requests, mut queue, mut running) =
            (Vec::<Simulated>::new(), Vec::new(), Vec::<(usize, u64)>::new());
        let mut now = 0.0;
        let mut next = 0.0;
        let mut waits = Vec::new();
        let mut used = 0;
        let mut steps = 0;
        while now < 60.0 {
            let at = start + Duration::from_secs_f64(now);
            while next <= now {
                next += random.gap(443.0);
                let priority = if random.below(4) == 0 { Priority::Interactive } else { Priority::Normal };
                let sequences = random.sequences();
                let judged =
                    if queue.is_empty() && running.len() < 8 { None } else { state.judge(at, priority) };
                if judged.is_none_or(|(_, wait)| wait <= Duration::from_secs(1)) {
                    state.enter(at, priority);
                    let expected = judged.map(|(expected, _)| expected);
                    queue.push(requests.len());
                    requests.push(Simulated { priority, at: now, expected, sequences, waits: true });
                }
            }
            while running.len() < 8 && !queue.is_empty() {
                let place =
                    |&i: &usize| (now - requests[queue[i]].at < 0.5, requests[queue[i]].priority, queue[i]);
                let first = (0..queue.len()).min_by_key(|i| match place(i) {
                    (false, _, rank) => (false, Priority::Interactive, rank),
                    patient => patient,
                });
                let first = first.expect("there is one");
                let request = queue[first];
                running.extend(requests[request].sequences.pop().map(|steps| (request, steps)));
                if requests[request].sequences.is_empty() {
                    queue.remove(first);
                }
            }
            (used, steps) = (used + running.len(), steps + 1);
            now += 0.002 + 0.003 * running.len() as f64 / 8.0;
            let at = start + Duration::from_secs_f64(now);
            for (request, left) in &mut running {
                let Simulated { priority, at: since, expected, waits: waiting, .. } = &mut requests[*request];
                if std::mem::take(waiting) {
                    waits.push(now - *since);
                    state.record(at, *priority, now - *since, *expected);
                    state.leave(at, *priority);
                }
                *left -= 1;
            }
            running.retain(|&(_, left)| left > 0);
        }
        (waits, used as f64 / f64::from(8 * steps))
    }

    #[test]
    fn requests_accepted_under_overload_are_in_time_and_keep_all_places_busy() {
        for seed in 1..5 {
            let (mut waits, used) = crowd(seed);
            waits.sort_by(f64::total_cmp);
            let p99 = waits[waits.len() * 99 / 100];
            assert!(p99 <= 1.25 && used > 0.98, "seed {seed}: {p99} s, {used} of the places");
        }
    }

    #[test]
    fn the_first_in_the_queue_is_let_through_whatever_happened_before() {
        let mut replay = Replay::new();
        replay.round(20, 1, 60_000, Priority::Normal, u64::MAX);
        assert_eq!(replay.state.judge(replay.at(), Priority::Normal), None);
        replay.state.enter(replay.at(), Priority::Normal);
        let (expected, _) = replay.state.judge(replay.at(), Priority::Normal).unwrap();
        assert!((110.0..=130.0).contains(&expected), "{expected}");
        // A more urgent request does not wait for it.
        assert_eq!(replay.state.judge(replay.at(), Priority::Interactive), None);
    }

    #[test]
    fn the_margin_follows_what_predictions_miss() {
        let mut spread = Spread::default();
        assert_eq!(spread.high(), 0.0);
        (0..200).for_each(|i| spread.add(f64::from(i % 11) / 10.0));
        assert!((1.5..2.2).contains(&spread.high()), "{spread:?}");
        (0..800).for_each(|_| spread.add(0.0));
        assert!(spread.high() < 0.001, "{spread:?}");
    }

    #[test]
    fn a_request_is_counted_until_it_is_dropped() {
        let overload = Arc::new(Overload::new(None));
        let waiting = || overload.state.lock().waiting;
        let a = overload.wait(Priority::Normal, None);
        let b = overload.wait(Priority::Background, None);
        assert_eq!(waiting(), [0, 1, 1]);
        drop(a);
        assert_eq!(waiting(), [0, 0, 1]);
        b.over();
        assert_eq!(waiting(), [0, 0, 0]);
    }
}
