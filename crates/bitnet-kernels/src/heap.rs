//! The heap of the whole program.

/// Returns freed memory to the system, which takes a few milliseconds. Without this call glibc keeps what lies between
/// blocks in use, and the resident memory of a busy server creeps up for hours. Does nothing with other C libraries.
pub fn trim_heap() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    {
        // SAFETY: the signature is glibc's, and glibc allows the call from any thread at any time.
        unsafe extern "C" {
            safe fn malloc_trim(pad: usize) -> std::ffi::c_int;
        }
        malloc_trim(0);
    }
}

#[cfg(all(test, target_os = "linux", target_env = "gnu"))]
mod tests {
    use super::*;

    fn resident() -> usize {
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let kib = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
        kib.trim().trim_end_matches(" kB").parse::<usize>().unwrap() << 10
    }

    #[test]
    fn freed_memory_between_blocks_in_use_goes_back_to_the_system() {
        const BLOCK: usize = 1 << 10;
        const FREED: usize = 32 << 20;
        let trimmed = || {
            let all: Vec<Vec<u8>> = (0..FREED / BLOCK).map(|_| vec![1; BLOCK]).collect();
            let in_use: Vec<Vec<u8>> = all.into_iter().step_by(64).collect();
            let before = resident();
            trim_heap();
            let after = resident();
            assert!(in_use.iter().all(|block| block.iter().all(|&byte| byte == 1)));
            [before, after]
        };
        // Other tests of the process may take memory meanwhile.
        let all = [(); 5].map(|()| trimmed());
        assert!(all.iter().any(|[before, after]| after + FREED / 2 < *before), "{all:?}");
    }
}
