//! Repeats measurements.

use std::time::{Duration, Instant};

use crate::error::CliError;

/// Number of runs for everything other than prefill and decode speed.
pub const REPEATS: usize = 5;
/// Maximum time for the runs of one measurement; those that begin within it count.
const TIME_LIMIT: Duration = Duration::from_secs(20);

/// Runs up to `runs` times and returns the times in seconds.
pub fn repeated(
    runs: usize,
    mut run: impl FnMut() -> Result<Duration, CliError>,
) -> Result<Vec<f64>, CliError> {
    let (start, mut times) = (Instant::now(), Vec::with_capacity(runs));
    while times.is_empty() || (times.len() < runs && start.elapsed() <= TIME_LIMIT) {
        times.push(run()?.as_secs_f64());
    }
    Ok(times)
}

/// The median of values in ascending order.
pub fn median(values: &[f64]) -> f64 {
    values[values.len() / 2]
}
