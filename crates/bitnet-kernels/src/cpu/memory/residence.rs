//! Decides where weights of a mapped file are read from: the page cache, or memory of the process.
//!
//! Decoding reads all weights for every token. That is slower from pages of 4 KiB than from huge pages, especially in a
//! virtual machine, where a TLB miss costs two page walks. Linux keeps a file in huge pages if it was written or first
//! read in large pieces; otherwise memory of the process is faster.

use std::{ops::Range, thread};

use bitnet_tensor::SharedBytes;

use super::{
    buffer::{Buffer, HUGE},
    nodes::memory_nodes,
};
use crate::cpu::pool::share;

/// Smaller files are not worth a check.
const SMALL: usize = 16 * HUGE;
/// Maximum number of threads that copy; more do not make it faster.
const COPIERS: usize = 8;

/// Returns the same bytes on huge pages: in place if the system reports that they are on huge pages, otherwise as a
/// copy. They also stay in place if the system reports nothing or has no memory for a copy, and if there are several
/// memory nodes: then the backend copies each matrix to the nodes that read it.
pub fn on_huge_pages(bytes: &SharedBytes) -> SharedBytes {
    if bytes.len() < SMALL || memory_nodes().len() > 1 {
        return bytes.clone();
    }
    // The system counts only pages that have been used. Reading one byte maps a whole huge page, but only a few small
    // ones.
    let touched = bytes.iter().step_by(HUGE).fold(0, |seen, &byte| seen | byte);
    std::hint::black_box(touched);
    let start = bytes.as_ptr().addr();
    let smaps = std::fs::read_to_string("/proc/self/smaps").unwrap_or_default();
    match huge_bytes(&smaps, start..start + bytes.len()) {
        Some(huge) if huge < bytes.len() / 8 * 7 => copied(bytes).unwrap_or_else(|| bytes.clone()),
        _ => bytes.clone(),
    }
}

/// Counts the bytes on huge pages in the mappings that overlap `range`, from the text of `/proc/self/smaps`; `None` if
/// it does not report them.
fn huge_bytes(smaps: &str, range: Range<usize>) -> Option<usize> {
    let (mut inside, mut huge) = (false, None);
    for line in smaps.lines() {
        let mut words = line.split_ascii_whitespace();
        let Some(first) = words.next() else { continue };
        if let Some(field) = first.strip_suffix(':') {
            if inside && ["AnonHugePages", "ShmemPmdMapped", "FilePmdMapped"].contains(&field) {
                let kib: usize = words.next()?.parse().ok()?;
                huge = Some(huge.unwrap_or(0) + 1024 * kib);
            }
        } else if let Some((start, end)) = first.split_once('-') {
            let address = |text| usize::from_str_radix(text, 16).ok();
            inside = address(start)? < range.end && range.start < address(end)?;
        }
    }
    huge
}

/// Copies the bytes with several threads, because the system spends most of the time on allocating pages.
fn copied(bytes: &[u8]) -> Option<SharedBytes> {
    let mut copy = Buffer::<u8>::zeroed(bytes.len(), "weights").ok()?;
    let threads = thread::available_parallelism().map_or(1, usize::from).min(COPIERS);
    thread::scope(|scope| {
        let mut rest = &mut copy[..];
        for part in 0..threads {
            let pages = share(bytes.len().div_ceil(HUGE), threads, part);
            let from = &bytes[pages.start * HUGE..bytes.len().min(pages.end * HUGE)];
            let (to, others) = rest.split_at_mut(from.len());
            rest = others;
            scope.spawn(move || to.copy_from_slice(from));
        }
    });
    Some(SharedBytes::new(copy))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMAPS: &str = "\
5581a0000000-5581a0100000 r--p 00000000 fe:00 1 /usr/bin/true
Rss:                1024 kB
FilePmdMapped:         0 kB
VmFlags: rd mr mw me
7f0000000000-7f0008000000 r--s 00100000 fe:00 2 /a model.gguf
Rss:              131072 kB
AnonHugePages:         0 kB
ShmemPmdMapped:        0 kB
FilePmdMapped:    126976 kB
VmFlags: rd mr
7f0008000000-7f0009000000 rw-p 00000000 00:00 0
AnonHugePages:      2048 kB
";

    #[test]
    fn huge_pages_are_those_of_the_mappings_under_the_bytes() {
        let file = 0x7f00_0000_0000;
        assert_eq!(huge_bytes(SMAPS, file + 1..file + 100), Some(126_976 << 10));
        assert_eq!(huge_bytes(SMAPS, file..file + 0x0800_0001), Some((126_976 + 2048) << 10));
        assert_eq!(huge_bytes(SMAPS, 0x5581_a000_0000..0x5581_a000_0001), Some(0));
        assert_eq!(huge_bytes(SMAPS, 0..100), None);
        assert_eq!(huge_bytes("", file..file + 1), None);
    }

    #[test]
    fn a_copy_is_the_same_bytes() {
        for len in [0, 1, HUGE, 3 * HUGE + 5] {
            let bytes: Vec<u8> = (0..len).map(|i| ((i * 31) >> 8) as u8).collect();
            assert!(*copied(&bytes).unwrap() == bytes[..], "{len}");
        }
    }

    #[test]
    fn few_bytes_stay_in_place() {
        let bytes = SharedBytes::new(vec![1; HUGE]);
        assert_eq!(on_huge_pages(&bytes).as_ptr(), bytes.as_ptr());
    }
}
