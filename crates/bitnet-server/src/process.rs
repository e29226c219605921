//! What the system knows of this process, under the names that every Prometheus client uses. Linux only: elsewhere
//! there are no such metrics.

use std::fs;

/// Clock ticks in a second, in which `/proc` counts processor time; the same on every architecture of Linux that this
/// program runs on.
const TICKS: f64 = 100.0;

/// The metrics of this process: name, help, and value.
pub(crate) fn metrics() -> Option<[(&'static str, &'static str, f64); 7]> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let stat = fs::read_to_string("/proc/self/stat").ok()?;
    let kernel = fs::read_to_string("/proc/stat").ok()?;
    let limits = fs::read_to_string("/proc/self/limits").ok()?;
    let (cpu, start) = times(&stat)?;
    let max_files = number(&limits, "Max open files").unwrap_or(f64::INFINITY);
    let open_files = fs::read_dir("/proc/self/fd").ok()?.count();
    Some([
        ("process_cpu_seconds_total", "Processor time of all threads.", cpu),
        ("process_open_fds", "Open files and connections.", open_files as f64),
        ("process_max_fds", "Maximum number of open files and connections.", max_files),
        ("process_virtual_memory_bytes", "Virtual memory.", number(&status, "VmSize:")? * 1024.0),
        ("process_resident_memory_bytes", "Resident memory.", number(&status, "VmRSS:")? * 1024.0),
        ("process_start_time_seconds", "Start, in seconds since 1970.", number(&kernel, "btime")? + start),
        ("process_threads", "Threads.", number(&status, "Threads:")?),
    ])
}

/// The number after a word at the beginning of a line.
fn number(text: &str, name: &str) -> Option<f64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    line.split_whitespace().next()?.parse().ok()
}

/// Processor time, and the time from the start of the system to that of the process, in seconds.
fn times(stat: &str) -> Option<(f64, f64)> {
    // The second field is the name of the program, in brackets; it may hold anything.
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    let ticks = |field: usize| fields.get(field - 3)?.parse::<f64>().ok();
    Some(((ticks(14)? + ticks(15)?) / TICKS, ticks(22)? / TICKS))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_found_after_any_name() {
        let stat = "7 (a b) (c) S 1 2 3 4 5 6 7 8 9 10 150 25 13 14 15 16 17 18 4200 20";
        assert_eq!(times(stat), Some((1.75, 42.0)));
        assert_eq!(times("7 (cut) S 1 2"), None);
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn this_process_has_plausible_numbers() {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs_f64();
        let [_, (_, _, open), (_, _, max), (_, _, virt), (_, _, rss), (_, _, start), (_, _, threads)] =
            metrics().unwrap();
        assert!(open >= 3.0 && open <= max && rss > 1e5 && rss <= virt && threads >= 1.0);
        assert!((now - start).abs() < 24.0 * 3600.0, "{start} is the start of a process that lives at {now}");
    }
}
