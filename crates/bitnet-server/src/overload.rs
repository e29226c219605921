//! Who is refused before waiting in vain. Predictions come from the pace at which requests have left the queue.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use bitnet_inference::{Engine, Priority};
use parking_lot::Mutex;

use crate::http::error::ApiError;

/// Watches the queue, and says how long a new request would wait.
pub(crate) struct Overload {
    goal: Option<Duration>,
    pace: Mutex<Pace>,
    /// Requests of each priority that have no token yet.
    waiting: Mutex<[usize; 3]>,
}

/// What has been seen, old things counting less and less. Times in seconds.
#[derive(Debug, Default)]
struct Pace {
    /// When a sequence last left the queue.
    last: Option<Instant>,
    /// Sequences that left it while others waited, and the time that took.
    left: f64,
    busy: f64,
    /// Mean times from submission to the place in a batch, to the first token, and to the end.
    queued: Mean,
    first: Mean,
    whole: Mean,
    error: Spread,
}

#[derive(Debug, Default, Clone, Copy)]
struct Mean {
    weight: f64,
    sum: f64,
}

/// By how much requests waited longer than predicted, and how much that varies: mean and mean deviation, as TCP
/// estimates round trips (RFC 6298).
#[derive(Debug, Default, Clone, Copy)]
struct Spread {
    mean: f64,
    deviation: f64,
}

impl Spread {
    fn add(&mut self, value: f64) {
        let off = value - self.mean;
        self.mean += off / 16.0;
        self.deviation += (off.abs() - self.deviation) / 16.0;
    }

    /// What few are above.
    fn high(self) -> f64 {
        (self.mean + 3.0 * self.deviation).max(0.0)
    }
}

/// About the last 50 count.
const KEEP: f64 = 0.98;

impl Mean {
    fn add(&mut self, value: f64) {
        self.weight = self.weight * KEEP + 1.0;
        self.sum = self.sum * KEEP + value;
    }

    fn value(self) -> Option<f64> {
        (self.weight > 0.0).then(|| self.sum / self.weight)
    }
}

impl Pace {
    /// A sequence has left the queue after `waited` seconds.
    fn admitted(&mut self, now: Instant, waited: f64) {
        // Somebody waited all the time since the last one left, so the time between is what a place takes.
        let since = self.last.replace(now).map(|last| (now - last).as_secs_f64());
        if let Some(since) = since.filter(|&since| waited >= since) {
            self.left = self.left * KEEP + 1.0;
            self.busy = self.busy * KEEP + since;
        }
        self.queued.add(waited);
    }

    /// Seconds between two that leave a queue which is never empty. Before there was such a queue, what follows
    /// from the time that a request keeps one of `places` busy.
    fn gap(&self, places: usize) -> Option<f64> {
        if self.left > 0.0 {
            return Some(self.busy / self.left);
        }
        let (whole, queued) = self.whole.value().zip(self.queued.value())?;
        Some((whole - queued).max(0.0) / places.max(1) as f64)
    }

    /// Seconds from the place in a batch to the first token.
    fn start(&self) -> f64 {
        self.first.value().zip(self.queued.value()).map_or(0.0, |(first, queued)| (first - queued).max(0.0))
    }
}

impl Overload {
    pub fn new(goal: Option<Duration>) -> Self {
        Overload { goal, pace: Mutex::default(), waiting: Mutex::default() }
    }

    /// A sequence has left the queue.
    pub fn admitted(&self, waited: f64) {
        self.pace.lock().admitted(Instant::now(), waited);
    }

    /// A sequence has its first token.
    pub fn first_token(&self, seconds: f64) {
        self.pace.lock().first.add(seconds);
    }

    /// A request has ended.
    pub fn ended(&self, seconds: f64) {
        self.pace.lock().whole.add(seconds);
    }

    /// Seconds that a request with `ahead` before it waits for its first token; `None` before anything is known.
    fn predict(&self, ahead: usize, places: usize) -> Option<f64> {
        let pace = self.pace.lock();
        Some(pace.gap(places)? * (ahead + 1) as f64 + pace.start())
    }

    /// Refuses a request that would probably come too late, for the server's goal or for its own deadline. Gives the
    /// seconds that it is expected to wait, if it has to.
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
        let ahead: usize = self.waiting.lock()[..=priority as usize].iter().sum();
        let Some(expected) = self.predict(ahead, status.batch_size) else { return Ok(None) };
        let wait = Duration::from_secs_f64(expected + self.pace.lock().error.high());
        // What runs in the background has no goal to miss.
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

    /// Puts the time until what waits now has left the queue into a refusal.
    pub fn honest(&self, engine: &Engine, mut error: ApiError) -> ApiError {
        let wait =
            self.predict(engine.queue().sequences, engine.status().batch_size).map(Duration::from_secs_f64);
        error.retry_after = error.retry_after.map(|least| wait.map_or(least, |wait| wait.max(least)));
        error
    }

    /// Counts a request until its first token, or its end.
    pub fn wait(self: &Arc<Self>, priority: Priority, expected: Option<f64>) -> Waiting {
        self.waiting.lock()[priority as usize] += 1;
        Waiting { overload: Arc::clone(self), priority, expected, since: Instant::now() }
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
        if let Some(expected) = self.expected {
            let error = self.since.elapsed().as_secs_f64() - expected;
            self.overload.pace.lock().error.add(error);
        }
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.overload.waiting.lock()[self.priority as usize] -= 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_times_in_which_somebody_waited_count_as_the_pace_of_the_queue() {
        let (mut pace, start) = (Pace::default(), Instant::now());
        let at = |ms: u64| start + Duration::from_millis(ms);
        pace.admitted(at(0), 0.0);
        pace.admitted(at(60_000), 0.0);
        assert_eq!(pace.gap(4), None);
        pace.whole.add(2.0);
        assert_eq!(pace.gap(4), Some(0.5), "two seconds in each of four places");
        pace.admitted(at(60_200), 0.3);
        assert_eq!(pace.gap(4), Some(0.2));
        for i in 1..500 {
            pace.admitted(at(60_200 + 100 * i), 0.5);
        }
        assert!((pace.gap(4).unwrap() - 0.1).abs() < 0.001, "{pace:?}");
    }

    #[test]
    fn the_wait_grows_with_those_ahead_and_ends_with_the_first_token() {
        let overload = Overload::new(None);
        assert_eq!(overload.predict(5, 8), None);
        let start = Instant::now();
        for i in 0..100 {
            let mut pace = overload.pace.lock();
            pace.admitted(start + Duration::from_millis(100 * i), 1.0);
            pace.first.add(1.25);
        }
        for (ahead, seconds) in [(0, 0.35), (9, 1.25)] {
            assert!((overload.predict(ahead, 8).unwrap() - seconds).abs() < 0.001);
        }
    }

    #[test]
    fn the_margin_follows_what_predictions_miss() {
        let mut spread = Spread::default();
        assert_eq!(spread.high(), 0.0);
        (0..200).for_each(|i| spread.add(f64::from(i % 11) / 10.0));
        assert!((1.1..1.6).contains(&spread.high()), "{spread:?}");
        (0..200).for_each(|_| spread.add(-1.0));
        assert_eq!(spread.high(), 0.0, "who comes too early needs no margin");
    }

    #[test]
    fn a_request_is_counted_until_it_is_let_go() {
        let overload = Arc::new(Overload::new(None));
        let (a, b) = (overload.wait(Priority::Normal, None), overload.wait(Priority::Background, None));
        assert_eq!(*overload.waiting.lock(), [0, 1, 1]);
        drop(a);
        assert_eq!(*overload.waiting.lock(), [0, 0, 1]);
        drop(b);
        assert_eq!(*overload.waiting.lock(), [0, 0, 0]);
    }
}
