//! How fast something was over several runs.

use serde::Serialize;

/// Tokens per second over several runs: the median, and the extremes.
#[derive(Serialize, Clone, Copy)]
pub struct Speed {
    pub tok_s: f64,
    tok_s_min: f64,
    tok_s_max: f64,
    runs: usize,
}

impl Speed {
    /// Speed of runs that each computed `tokens` tokens in these seconds.
    pub fn of(tokens: usize, mut seconds: Vec<f64>) -> Self {
        seconds.sort_by(f64::total_cmp);
        let (runs, speed) = (seconds.len(), |at: usize| tokens as f64 / seconds[at]);
        Speed { tok_s: speed(runs / 2), tok_s_min: speed(runs - 1), tok_s_max: speed(0), runs }
    }

    /// For people.
    pub fn text(&self) -> String {
        let Speed { tok_s, tok_s_min, tok_s_max, .. } = self;
        format!("{tok_s:9.2} tok/s ({tok_s_min:.2} to {tok_s_max:.2})")
    }
}

#[cfg(test)]
mod tests {
    use super::Speed;

    #[test]
    fn a_speed_is_the_median_of_its_runs_and_shows_their_extremes() {
        let Speed { tok_s, tok_s_min, tok_s_max, runs } = Speed::of(60, vec![3.0, 1.0, 2.0, 6.0, 5.0]);
        assert_eq!((tok_s, tok_s_min, tok_s_max, runs), (20.0, 10.0, 60.0, 5));
    }
}
