//! How likely it is that another request comes soon, so that an idle engine waits for it.
//! A lone client never waits.

use std::time::Duration;

/// Statistics of arrivals, to decide whether an idle engine should wait for another request before it starts a step.
///
/// Only a request that arrives while another is active counts as company. A lone client that sends its next request
/// after each answer is always alone, however fast it is, and never waits.
#[derive(Debug, Clone, Default)]
pub struct Arrivals {
    last: Option<u64>,
    /// Fraction of recent arrivals that had company, from 0 to 1.
    company: f64,
    /// Mean gap before such arrivals, in microseconds.
    gap: f64,
}

impl Arrivals {
    /// Records an arrival; `alone` if nothing else is waiting or running.
    pub fn note(&mut self, now: u64, alone: bool) {
        let gap = self.last.replace(now).map_or(0, |last| now.saturating_sub(last)) as f64;
        self.company += (f64::from(u8::from(!alone)) - self.company) * 0.2;
        if !alone {
            self.gap += (gap - self.gap) * 0.2;
        }
    }

    /// How long to wait for the next request, in microseconds, at most `max_wait`; 0 unless one is likely within that
    /// time.
    pub fn linger(&self, max_wait: Duration) -> u64 {
        let max = max_wait.as_micros() as f64;
        let wanted = 2.0 * self.gap;
        if self.company > 0.4 && self.gap <= max { wanted.min(max) as u64 } else { 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAX: Duration = Duration::from_millis(10);

    #[test]
    fn a_lone_client_never_waits_however_fast_it_asks() {
        let mut arrivals = Arrivals::default();
        for i in 0..1000 {
            arrivals.note(i * 100, true);
            assert_eq!(arrivals.linger(MAX), 0);
        }
    }

    #[test]
    fn a_clock_that_goes_back_does_not_change_the_gap_beyond_recognition() {
        let mut arrivals = Arrivals::default();
        for i in 0..100 {
            arrivals.note(if i == 90 { 0 } else { i * 1000 }, false);
        }
        assert!(arrivals.linger(MAX) > 0);
    }

    #[test]
    fn an_idle_engine_waits_a_little_longer_than_requests_take_to_arrive() {
        let mut arrivals = Arrivals::default();
        for i in 0..100 {
            arrivals.note(i * 1000, i % 8 == 0);
        }
        let linger = arrivals.linger(MAX);
        assert!((1500..=2500).contains(&linger), "{linger}");
        assert_eq!(arrivals.linger(Duration::from_micros(300)), 0, "it would not come in time");
        assert_eq!(arrivals.linger(Duration::ZERO), 0);
    }
}
