//! What Windows reports about memory. It can only be asked through foreign functions, and those belong to this crate.

use windows_sys::Win32::System::{
    ProcessStatus::{K32GetProcessMemoryInfo, PROCESS_MEMORY_COUNTERS},
    SystemInformation::{GlobalMemoryStatusEx, MEMORYSTATUSEX},
    Threading::GetCurrentProcess,
};

/// Total memory of the machine, and the memory that this process can still allocate, in bytes; `None` if Windows does not
/// say.
pub fn windows_memory() -> Option<(u64, u64)> {
    let mut status = MEMORYSTATUSEX { dwLength: size_of::<MEMORYSTATUSEX>() as u32, ..Default::default() };
    // SAFETY: the function writes a structure whose size is in its first field, and keeps no pointer to it.
    let asked = unsafe { GlobalMemoryStatusEx(&raw mut status) };
    // Memory is charged against the page file when it is allocated, so what is left there is a limit too.
    let available = status.ullAvailPhys.min(status.ullAvailPageFile);
    (asked != 0).then_some((status.ullTotalPhys, available))
}

/// Peak memory of this process so far, in bytes; `None` if Windows does not say.
pub fn windows_peak_memory() -> Option<u64> {
    let size = size_of::<PROCESS_MEMORY_COUNTERS>() as u32;
    let mut counters = PROCESS_MEMORY_COUNTERS { cb: size, ..Default::default() };
    // SAFETY: the handle stands for this process and needs no closing; the function writes at most `size` bytes and keeps
    // no pointer to them.
    let asked = unsafe { K32GetProcessMemoryInfo(GetCurrentProcess(), &raw mut counters, size) };
    (asked != 0).then_some(counters.PeakWorkingSetSize as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_knows_its_memory_and_the_peak_grows_with_what_is_touched() {
        let (total, available) = windows_memory().unwrap();
        assert!(available <= total && total > 64 << 20, "{total} {available}");
        let before = windows_peak_memory().unwrap();
        // Other tests have had more than this one uses now.
        let touched = std::hint::black_box(vec![1u8; before as usize + (64 << 20)]);
        let after = windows_peak_memory().unwrap();
        assert!(after > before + (32 << 20) && after < total, "{before} {after}");
        drop(touched);
    }
}
