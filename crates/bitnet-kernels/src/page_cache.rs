//! The system's cache of files.

use std::fs::File;

/// Whether the system holds the first `bytes` bytes of a file in memory, so that reading them does not wait for a disk;
/// `false` if the file is shorter or the system does not tell. Unlike reading without waiting, asking starts no reading.
#[cfg_attr(not(target_os = "linux"), expect(unused_variables, reason = "only Linux tells"))]
pub fn in_page_cache(file: &File, bytes: usize) -> bool {
    #[cfg(target_os = "linux")]
    {
        // No page is smaller. Where pages are larger, fewer of these are written, and the others count as held.
        const PAGE: usize = 4 << 10;
        let mut pages = vec![1_u8; bytes.div_ceil(PAGE)];
        let Ok(map) = memmap2::MmapOptions::new().len(bytes).map_raw_read_only(file) else { return false };
        // SAFETY: no byte of the map is read. The call writes one byte for each page of the map, and `pages` has as many.
        let told = unsafe { libc::mincore(map.as_mut_ptr().cast(), bytes, pages.as_mut_ptr()) } == 0;
        told && pages.iter().all(|page| page & 1 == 1)
    }
    #[cfg(not(target_os = "linux"))]
    false
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn what_was_just_written_is_held_and_what_is_not_there_is_not() {
        let mut file = tempfile::tempfile().unwrap();
        assert!(!in_page_cache(&file, 1));
        file.write_all(&[1; 100_001]).unwrap();
        for bytes in [1, 4096, 4097, 100_001] {
            assert!(in_page_cache(&file, bytes), "{bytes} bytes");
        }
        assert!(!in_page_cache(&file, 1 << 20));
    }
}
