//! How many threads compute unless a number is given: one for each physical core that this process may use.
//!
//! Kernels keep a core's vector units or the memory busy, so a second thread on the same core adds little and makes
//! threads wait for each other.

use std::{collections::BTreeSet, thread};

/// Number of threads to compute with: physical cores within the affinity mask, at most what the system lets this process
/// run at once, which includes the quota of its control group. Where physical cores are unknown (outside Linux), as many
/// threads as can run at once.
pub fn default_threads() -> usize {
    let at_once = thread::available_parallelism().map_or(1, usize::from);
    physical_cores().map_or(at_once, |cores| cores.clamp(1, at_once))
}

/// Number of physical cores within the affinity mask of this process; `None` if the system does not tell.
pub fn physical_cores() -> Option<usize> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let allowed = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"))?;
    let siblings = |cpu| {
        let file = format!("/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list");
        std::fs::read_to_string(file).ok()
    };
    count_cores(allowed, siblings)
}

/// Counts the cores of the hardware threads in a list like `0-3,8`. Threads of one core have the same list of siblings.
fn count_cores(allowed: &str, siblings: impl Fn(usize) -> Option<String>) -> Option<usize> {
    let mut cores = BTreeSet::new();
    for range in allowed.trim().split(',') {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        for cpu in first.parse().ok()?..=last.parse().ok()? {
            cores.insert(siblings(cpu)?.trim().to_owned());
        }
    }
    Some(cores.len()).filter(|&cores| cores > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Eight cores with two threads each, `n` and `n + 8`.
    fn paired(cpu: usize) -> Option<String> {
        (cpu < 16).then(|| format!("{},{}\n", cpu % 8, cpu % 8 + 8))
    }

    #[test]
    fn threads_of_one_core_count_once_and_only_within_the_mask() {
        assert_eq!(count_cores("\t0-15\n", paired), Some(8));
        assert_eq!(count_cores("0-3,8-9", paired), Some(4));
        assert_eq!(count_cores("5", paired), Some(1));
        assert_eq!(count_cores("0-3", |cpu| Some(cpu.to_string())), Some(4));
    }

    #[test]
    fn what_the_system_does_not_tell_is_unknown() {
        assert_eq!(count_cores("0-16", paired), None);
        assert_eq!(count_cores("", paired), None);
        assert_eq!(count_cores("0-x", paired), None);
    }

    #[test]
    fn the_default_is_no_more_than_can_run_at_once() {
        let at_once = thread::available_parallelism().map_or(1, usize::from);
        assert!((1..=at_once).contains(&default_threads()));
    }
}
