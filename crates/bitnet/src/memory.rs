//! Limits on memory, and how much the system has.

use std::str::FromStr;

use crate::Error;

/// A limit on a model's memory. Parses texts like `4000000000`, `4G`, `4GiB` and `50%`.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub enum Memory {
    /// Number of bytes.
    Bytes(u64),
    /// Percentage of the available memory, above 0 and at most 100.
    Percent(f64),
}

impl FromStr for Memory {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let cure = || "give bytes like 4000000000, 4G or 4GiB, or a percentage like 50%".to_string();
        let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
        let (number, unit) = text.split_at(digits);
        let number: f64 = number.parse().map_err(|_| cure())?;
        let factor = match unit {
            "%" if number > 0.0 && number <= 100.0 => return Ok(Memory::Percent(number)),
            "" | "B" => 1.0,
            "K" | "KB" => 1e3,
            "M" | "MB" => 1e6,
            "G" | "GB" => 1e9,
            "KiB" => 1024.0,
            "MiB" => 1024.0 * 1024.0,
            "GiB" => 1024.0 * 1024.0 * 1024.0,
            _ => return Err(cure()),
        };
        Ok(Memory::Bytes((number * factor) as u64))
    }
}

/// The machine's memory, as far as the system reports it.
#[derive(Debug, Clone, Copy, Default, serde::Serialize)]
#[non_exhaustive]
pub struct SystemMemory {
    /// Total memory of the machine or the control group, whichever is smaller.
    pub total_bytes: Option<u64>,
    /// Memory that this process can still allocate, in the machine and in its control group.
    pub available_bytes: Option<u64>,
}

impl SystemMemory {
    /// Asks the system. Both values are unknown on systems other than Linux and Windows.
    pub fn now() -> Self {
        system::memory()
    }
}

/// Peak memory of this process so far, in bytes, if the system reports it.
pub fn peak_memory_bytes() -> Option<u64> {
    system::peak()
}

#[cfg(windows)]
mod system {
    use bitnet_kernels::windows_memory;
    pub use bitnet_kernels::windows_peak_memory as peak;

    use super::SystemMemory;

    pub fn memory() -> SystemMemory {
        let (total_bytes, available_bytes) = windows_memory().unzip();
        SystemMemory { total_bytes, available_bytes }
    }
}

/// Reads Linux's files, which no other system has.
#[cfg(not(windows))]
mod system {
    use std::fs::read_to_string;

    use super::SystemMemory;

    pub fn memory() -> SystemMemory {
        let meminfo = read_to_string("/proc/meminfo").unwrap_or_default();
        let number = |file| read_to_string(file).ok()?.trim().parse::<u64>().ok();
        let limit = number("/sys/fs/cgroup/memory.max");
        let used = number("/sys/fs/cgroup/memory.current").unwrap_or(0);
        let within = |all: Option<u64>, group: Option<u64>| match (all, group) {
            (Some(a), Some(g)) => Some(a.min(g)),
            (a, g) => a.or(g),
        };
        SystemMemory {
            total_bytes: within(field(&meminfo, "MemTotal:"), limit),
            available_bytes: within(field(&meminfo, "MemAvailable:"), limit.map(|l| l.saturating_sub(used))),
        }
    }

    pub fn peak() -> Option<u64> {
        field(&read_to_string("/proc/self/status").ok()?, "VmHWM:")
    }

    /// Bytes of a field that is given in units of 1024 bytes.
    fn field(text: &str, name: &str) -> Option<u64> {
        let value = text.lines().find_map(|line| line.strip_prefix(name))?;
        value.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok().map(|kib| kib * 1024)
    }
}

/// Bytes reserved for the program itself: code, stacks, tables. At most a twelfth of the limit.
const PROGRAM: u64 = 12_000_000;

/// Amounts of memory, in bytes, from which a model's share is chosen.
pub(crate) struct Budget {
    /// Minimum that the model needs to run at all.
    pub needed: u64,
    /// Enough for prompt chunks of a useful size and one request of the maximum length.
    pub useful: u64,
    /// Maximum that the model can use.
    pub everything: u64,
}

impl Budget {
    /// The bytes that the model gets. Without a limit, this is half of those `available`, or more if the model needs
    /// more to be useful.
    pub fn within(&self, limit: Option<Memory>, available: Option<u64>) -> Result<u64, Error> {
        let given = match (limit, available) {
            (Some(Memory::Bytes(bytes)), _) => bytes,
            (Some(Memory::Percent(percent)), Some(bytes)) => (bytes as f64 * percent / 100.0) as u64,
            (Some(Memory::Percent(_)), None) => return Err(Error::MemoryUnknown),
            // Take half of the memory by default, but more for a model that needs it: the user asked for that model.
            (None, Some(bytes)) => (bytes / 2).max(self.useful).min(bytes),
            (None, None) => self.everything,
        };
        let left = given - PROGRAM.min(given / 12);
        // The smallest value of `given` that leaves what is needed.
        let needed = self.needed + PROGRAM.min(self.needed.saturating_sub(1) / 11);
        match limit {
            _ if left >= self.needed => Ok(left.min(self.everything)),
            Some(_) => Err(Error::MemoryLimit { given, needed }),
            None => Err(Error::Memory { available: given, needed }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_with_their_units() {
        let cases = [
            ("1000", Memory::Bytes(1000)),
            ("4K", Memory::Bytes(4000)),
            ("2MiB", Memory::Bytes(2 << 20)),
            ("1.5G", Memory::Bytes(1_500_000_000)),
            ("3GiB", Memory::Bytes(3 << 30)),
            ("12.5%", Memory::Percent(12.5)),
        ];
        for (text, limit) in cases {
            assert_eq!(text.parse(), Ok(limit), "{text}");
        }
        for text in ["", "-1", "G", "4X", "0%", "101%", "1e9", "4 G", "1..2G"] {
            assert!(text.parse::<Memory>().is_err(), "{text:?}");
        }
    }

    #[test]
    #[cfg(any(target_os = "linux", windows))]
    fn the_system_knows_its_memory_and_what_this_process_has_used() {
        let SystemMemory { total_bytes, available_bytes } = SystemMemory::now();
        let (total, available) = (total_bytes.unwrap(), available_bytes.unwrap());
        let peak = peak_memory_bytes().unwrap();
        assert!(available <= total && peak > 100_000 && peak < total, "{total} {available} {peak}");
    }

    #[test]
    fn a_machine_that_is_too_small_is_not_blamed_on_a_limit() {
        let budget = Budget { needed: u64::MAX, useful: u64::MAX, everything: u64::MAX };
        assert!(matches!(budget.within(None, Some(1 << 30)), Err(Error::Memory { .. })));
    }

    const BUDGET: Budget = Budget { needed: 1000, useful: 1500, everything: 4000 };

    #[test]
    fn a_limit_below_what_is_needed_names_what_is_needed() {
        let within = |bytes| BUDGET.within(Some(Memory::Bytes(bytes)), None);
        assert!(within(10).unwrap_err().cure().contains("1090"));
        assert_eq!([1089, 1090, 1200].map(|bytes| within(bytes).ok()), [None, Some(1000), Some(1100)]);
        assert_eq!(within(9000).ok(), Some(4000));
        assert!(matches!(BUDGET.within(Some(Memory::Percent(50.0)), None), Err(Error::MemoryUnknown)));
    }

    #[test]
    fn without_a_limit_half_is_taken_and_more_only_where_it_makes_the_model_useful() {
        let taken = |available| BUDGET.within(None, Some(available)).ok();
        let cases = [(1089, None), (1090, Some(1000)), (1440, Some(1320)), (2000, Some(1375))];
        for (available, expected) in cases.into_iter().chain([(6000, Some(2750)), (20_000, Some(4000))]) {
            assert_eq!(taken(available), expected, "{available}");
        }
    }
}
