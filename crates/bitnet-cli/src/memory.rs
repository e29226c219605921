//! How much memory may be used: `--memory`, and what the system has.

use std::str::FromStr;

use crate::error::CliError;

/// `--memory`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum MemoryLimit {
    /// This many bytes.
    Bytes(u64),
    /// This part of what is available, over 0 and at most 100.
    Percent(f64),
}

impl FromStr for MemoryLimit {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let cure = || "give bytes like 4000000000, 4G or 4GiB, or a part like 50%".to_string();
        let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
        let (number, unit) = text.split_at(digits);
        let number: f64 = number.parse().map_err(|_| cure())?;
        let factor = match unit {
            "%" if number > 0.0 && number <= 100.0 => return Ok(MemoryLimit::Percent(number)),
            "" | "B" => 1.0,
            "K" | "KB" => 1e3,
            "M" | "MB" => 1e6,
            "G" | "GB" => 1e9,
            "KiB" => 1024.0,
            "MiB" => 1024.0 * 1024.0,
            "GiB" => 1024.0 * 1024.0 * 1024.0,
            _ => return Err(cure()),
        };
        Ok(MemoryLimit::Bytes((number * factor) as u64))
    }
}

/// Memory of the machine, as far as the system tells.
#[derive(Debug, Clone, Copy, Default, serde::Serialize)]
pub struct SystemMemory {
    /// All of it.
    pub total_bytes: Option<u64>,
    /// What this process can still take: of the machine, and of its control group.
    pub available_bytes: Option<u64>,
}

impl SystemMemory {
    /// Asks the system; only Linux answers without foreign code.
    pub fn now() -> Self {
        let meminfo = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
        let field = |name: &str| {
            let line = meminfo.lines().find_map(|l| l.strip_prefix(name))?;
            line.trim().trim_end_matches(" kB").trim().parse::<u64>().ok().map(|kib| kib * 1024)
        };
        let number = |file| std::fs::read_to_string(file).ok()?.trim().parse::<u64>().ok();
        let limit = number("/sys/fs/cgroup/memory.max");
        let used = number("/sys/fs/cgroup/memory.current").unwrap_or(0);
        let within = |all: Option<u64>, group: Option<u64>| match (all, group) {
            (Some(a), Some(g)) => Some(a.min(g)),
            (a, g) => a.or(g),
        };
        SystemMemory {
            total_bytes: within(field("MemTotal:"), limit),
            available_bytes: within(field("MemAvailable:"), limit.map(|l| l.saturating_sub(used))),
        }
    }
}

/// The most memory that this process has taken so far, if the system tells.
pub fn peak_bytes() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|l| l.strip_prefix("VmHWM:"))?;
    line.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok().map(|kib| kib * 1024)
}

/// How fast `threads` threads read memory, in gigabytes a second, if there is enough of it to tell.
pub fn bandwidth(threads: usize) -> Option<f64> {
    bitnet_kernels::memory_bandwidth(threads, SystemMemory::now().available_bytes)
}

/// What a person is told of it.
pub fn bandwidth_told(gb_s: Option<f64>) -> String {
    gb_s.map_or("unknown".into(), |gb_s| format!("{gb_s:.1} GB/s"))
}

/// The bytes that a command may take of those `available`, when it needs `needed`. Without a limit it takes the most of
/// what it `wanted` that fits into half of them, or into all of them where half does not even hold the first part.
pub fn budget(
    limit: Option<MemoryLimit>,
    available: Option<u64>,
    needed: u64,
    wanted: [u64; 2],
) -> Result<u64, CliError> {
    let [useful, everything] = wanted;
    let given = match (limit, available) {
        (Some(MemoryLimit::Bytes(bytes)), _) => bytes,
        (Some(MemoryLimit::Percent(percent)), Some(bytes)) => (bytes as f64 * percent / 100.0) as u64,
        (Some(MemoryLimit::Percent(_)), None) => {
            let what = "this system does not tell how much memory is available";
            return Err(CliError::refused(what, "--memory", "give bytes instead of a percentage"));
        }
        // Half of the memory is what nobody asked about; a model that needs more is what somebody asked for.
        (None, Some(bytes)) => (bytes / 2).max(useful).min(bytes),
        (None, None) => everything,
    };
    match limit {
        _ if given >= needed => Ok(given.min(everything)),
        Some(_) => Err(CliError::MemoryTooSmall { given, least: needed }),
        None => {
            let what = format!("the model needs at least {needed} bytes, and {given} are available");
            Err(CliError::refused(what, "memory", "free memory, or use a smaller model or a shorter text"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bandwidth_that_could_not_be_measured_is_unknown() {
        assert_eq!(
            (bandwidth_told(None), bandwidth_told(Some(12.34))),
            ("unknown".into(), "12.3 GB/s".into())
        );
    }

    #[test]
    fn sizes_are_read_with_their_units() {
        let cases = [
            ("1000", MemoryLimit::Bytes(1000)),
            ("4K", MemoryLimit::Bytes(4000)),
            ("2MiB", MemoryLimit::Bytes(2 << 20)),
            ("1.5G", MemoryLimit::Bytes(1_500_000_000)),
            ("3GiB", MemoryLimit::Bytes(3 << 30)),
            ("12.5%", MemoryLimit::Percent(12.5)),
        ];
        for (text, limit) in cases {
            assert_eq!(text.parse(), Ok(limit), "{text}");
        }
        for text in ["", "-1", "G", "4X", "0%", "101%", "1e9", "4 G", "1..2G"] {
            assert!(text.parse::<MemoryLimit>().is_err(), "{text:?}");
        }
    }

    #[test]
    fn a_machine_that_is_too_small_is_not_blamed_on_a_flag() {
        let error = budget(None, Some(1 << 30), u64::MAX, [u64::MAX; 2]).unwrap_err().to_string();
        assert!(error.contains("available (memory)") && !error.contains("--memory"), "{error}");
    }

    #[test]
    fn a_limit_below_the_least_names_the_least() {
        let error = budget(Some(MemoryLimit::Bytes(10)), None, 1000, [1500, 2000]).unwrap_err().to_string();
        assert!(error.contains("1000") && error.contains("--memory"), "{error}");
        assert_eq!(budget(Some(MemoryLimit::Bytes(1500)), None, 1000, [1500, 2000]).ok(), Some(1500));
        assert_eq!(budget(Some(MemoryLimit::Bytes(9000)), None, 1000, [1500, 2000]).ok(), Some(2000));
    }

    #[test]
    fn without_a_limit_half_is_taken_and_more_only_where_it_makes_the_model_useful() {
        let taken = |available| budget(None, Some(available), 1000, [1500, 4000]).ok();
        let cases = [(999, None), (1000, Some(1000)), (1400, Some(1400)), (2000, Some(1500)), (5000, Some(2500))];
        for (available, expected) in cases.into_iter().chain([(20_000, Some(4000))]) {
            assert_eq!(taken(available), expected, "{available}");
        }
    }
}
