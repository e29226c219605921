//! How fast memory is read.

use bitnet::{SystemMemory, kernels};

/// How fast `threads` threads read memory, in gigabytes a second, if there is enough of it to tell.
pub fn bandwidth(threads: usize) -> Option<f64> {
    kernels::memory_bandwidth(threads, SystemMemory::now().available_bytes)
}

/// What a person is told of it.
pub fn bandwidth_told(gb_s: Option<f64>) -> String {
    gb_s.map_or("unknown".into(), |gb_s| format!("{gb_s:.1} GB/s"))
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
}
