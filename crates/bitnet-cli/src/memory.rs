//! Measures memory bandwidth.

use bitnet::{SystemMemory, kernels};

/// Measures the gigabytes per second that `threads` threads read together; `None` if there is too little memory.
pub fn bandwidth(threads: usize) -> Option<f64> {
    kernels::memory_bandwidth(threads, SystemMemory::now().available_bytes)
}

pub fn bandwidth_text(gb_s: Option<f64>) -> String {
    gb_s.map_or("unknown".into(), |gb_s| format!("{gb_s:.1} GB/s"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bandwidth_that_could_not_be_measured_is_unknown() {
        assert_eq!(
            (bandwidth_text(None), bandwidth_text(Some(12.34))),
            ("unknown".into(), "12.3 GB/s".into())
        );
    }
}
