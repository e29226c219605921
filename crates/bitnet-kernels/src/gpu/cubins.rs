//! Machine code of the kernels in a file beside the program, so that the driver need not compile their texts.
//!
//! The file holds `{u32 architecture, u64 key, u64 check, u32 length, code}` for each text and architecture, all
//! little-endian. The key is the hash of the text that the code was made from, so code of other texts is never used; the
//! check is the hash of the code.

use std::ops::Range;

use super::table::{KERNELS, Kernel, overlapped, waits};

/// Name of the file.
pub const FILE: &str = "bitnet.cubins";
/// Architectures to make code for. Code for 8.0 also runs on 8.6 and 8.9, that for 10.0 on 10.3, and so on.
const ARCHITECTURES: [u32; 4] = [80, 90, 100, 120];

/// Every architecture with every kernel and the text to make its code from. From compute capability 9.0 on, these are the
/// texts that overlap; a driver that is too old to overlap launches compiles the others.
pub fn texts() -> Vec<(u32, &'static Kernel, String)> {
    let all = KERNELS.iter().flat_map(|kernel| ARCHITECTURES.map(|architecture| (architecture, *kernel)));
    all.map(|(architecture, kernel)| {
        let overlaps = architecture >= 90 && waits(kernel.text);
        let text = if overlaps { overlapped(kernel.text) } else { kernel.text.to_owned() };
        (architecture, kernel, text)
    })
    .collect()
}

const MAGIC: &[u8] = b"bitnet cubins 1\n";

/// FNV-1a over whole words of 8 bytes, which is as good against chance and faster than over single bytes.
fn hash(bytes: &[u8]) -> u64 {
    let (words, rest) = bytes.as_chunks();
    let mut last = [0; 8];
    last[..rest.len()].copy_from_slice(rest);
    let words = words.iter().chain([&last]).map(|&word| u64::from_le_bytes(word));
    words.chain([bytes.len() as u64]).fold(0xCBF2_9CE4_8422_2325, |hash: u64, word| {
        (hash ^ word).wrapping_mul(0x0100_0000_01B3).rotate_left(29)
    })
}

/// Puts code into the form of the file: architectures, texts and the code made from each.
pub fn pack<'a>(all: impl IntoIterator<Item = (u32, &'a str, &'a [u8])>) -> Vec<u8> {
    let mut file = MAGIC.to_vec();
    for (architecture, text, code) in all {
        file.extend(architecture.to_le_bytes());
        file.extend(hash(text.as_bytes()).to_le_bytes());
        file.extend(hash(code).to_le_bytes());
        file.extend((code.len() as u32).to_le_bytes());
        file.extend(code);
    }
    file
}

/// The contents of the file.
pub(super) struct Cubins {
    bytes: Vec<u8>,
    entries: Vec<Entry>,
}

struct Entry {
    architecture: u32,
    key: u64,
    check: u64,
    code: Range<usize>,
}

/// Takes the first bytes from the rest of a file.
fn take<const N: usize>(rest: &mut &[u8]) -> Option<[u8; N]> {
    let (first, after) = rest.split_first_chunk()?;
    *rest = after;
    Some(*first)
}

impl Cubins {
    /// Reads a file; returns `None` if it is of another form or not whole.
    pub(super) fn parse(bytes: Vec<u8>) -> Option<Self> {
        let mut entries = Vec::new();
        let mut rest = bytes.strip_prefix(MAGIC)?;
        while !rest.is_empty() {
            let architecture = u32::from_le_bytes(take(&mut rest)?);
            let [key, check] = [take(&mut rest)?, take(&mut rest)?].map(u64::from_le_bytes);
            let length = u32::from_le_bytes(take(&mut rest)?) as usize;
            let start = bytes.len() - rest.len();
            rest = rest.get(length..)?;
            entries.push(Entry { architecture, key, check, code: start..start + length });
        }
        Some(Cubins { bytes, entries })
    }

    /// Returns the code of a text that runs on this compute capability, or says why there is none.
    pub(super) fn find(&self, (major, minor): (u32, u32), text: &str) -> Result<&[u8], &'static str> {
        let runs = |entry: &&Entry| entry.architecture / 10 == major && entry.architecture % 10 <= minor;
        if !self.entries.iter().any(|entry| runs(&entry)) {
            return Err("has no code for this compute capability");
        }
        let key = hash(text.as_bytes());
        let fitting = self.entries.iter().filter(runs).filter(|entry| entry.key == key);
        let entry = fitting.max_by_key(|entry| entry.architecture);
        let entry = entry.ok_or("is of another version of the program")?;
        let code = &self.bytes[entry.code.clone()];
        if hash(code) == entry.check { Ok(code) } else { Err("is damaged") }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn code_is_found_by_its_text_for_capabilities_that_run_it() {
        let file = pack([(80, "a", &b"A80"[..]), (80, "b", b"B80"), (86, "b", b"B86"), (120, "b", b"B120")]);
        let cubins = Cubins::parse(file).unwrap();
        assert_eq!(cubins.find((8, 9), "a"), Ok(&b"A80"[..]));
        assert_eq!(cubins.find((8, 0), "b"), Ok(&b"B80"[..]));
        assert_eq!(cubins.find((8, 9), "b"), Ok(&b"B86"[..]), "the newest that runs");
        assert_eq!(cubins.find((12, 1), "b"), Ok(&b"B120"[..]));
        assert_eq!(cubins.find((9, 0), "b"), Err("has no code for this compute capability"));
        assert_eq!(cubins.find((8, 0), "b "), Err("is of another version of the program"));
        assert_ne!(hash(b"12345678"), hash(b"12345678\0"), "a longer text is another one");
    }

    #[test]
    fn damaged_code_is_not_found_and_a_file_that_is_not_whole_is_not_read() {
        let file = pack([(80, "a", &b"first"[..]), (80, "b", b"second")]);
        let mut damaged = file.clone();
        *damaged.last_mut().unwrap() ^= 1;
        let cubins = Cubins::parse(damaged).unwrap();
        assert_eq!(cubins.find((8, 0), "a"), Ok(&b"first"[..]));
        assert_eq!(cubins.find((8, 0), "b"), Err("is damaged"));
        let ends = [MAGIC.len(), MAGIC.len() + 24 + 5];
        for length in (0..file.len()).filter(|length| !ends.contains(length)) {
            assert!(Cubins::parse(file[..length].to_vec()).is_none(), "{length} bytes");
        }
    }
}
