//! Processor time of this process. Linux only: elsewhere it is unknown.

use std::{fs, time::Duration};

/// Processor time of all living threads so far, in user code and in the kernel.
pub fn cpu_time() -> Option<Duration> {
    let threads = fs::read_dir("/proc/self/task").ok()?;
    let of_thread = |thread: fs::DirEntry| -> Option<u64> {
        let times = fs::read_to_string(thread.path().join("schedstat")).ok()?;
        times.split_whitespace().next()?.parse().ok()
    };
    // A thread that has just ended has no file.
    let times: Vec<u64> = threads.flatten().filter_map(of_thread).collect();
    (!times.is_empty()).then(|| Duration::from_nanos(times.iter().sum()))
}

/// What `work` returns, with the milliseconds of processor time that it took.
pub fn timed<T>(work: impl FnOnce() -> T) -> (T, Option<f64>) {
    let before = cpu_time();
    let done = work();
    let spent = cpu_time().zip(before).map(|(after, before)| after.saturating_sub(before));
    (done, spent.map(|spent| 1e3 * spent.as_secs_f64()))
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use std::{hint, thread, time::Instant};

    use super::*;

    /// The thread keeps running, because the time of one that has ended is not counted.
    #[test]
    fn the_time_of_other_threads_counts_and_that_of_sleep_does_not() {
        let spin = || {
            let start = Instant::now();
            while start.elapsed() < Duration::from_millis(60) {
                hint::spin_loop();
            }
        };
        let measured = || {
            let (_, idle) = timed(|| thread::sleep(Duration::from_millis(90)));
            let (worker, busy) = timed(|| {
                let worker = thread::spawn(move || {
                    spin();
                    thread::park();
                });
                thread::sleep(Duration::from_millis(90));
                worker
            });
            worker.thread().unpark();
            worker.join().unwrap();
            [busy.unwrap(), idle.unwrap()]
        };
        // Other tests of the process compute, and their time is lost when they end.
        let mut seen: Vec<[f64; 2]> = Vec::new();
        while !seen.last().is_some_and(|[busy, idle]| *busy > idle + 5.0) {
            assert!(seen.len() < 10, "busy and idle: {seen:?}");
            seen.push(measured());
        }
    }
}
