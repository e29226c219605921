//! Damages a file: truncation, flipped bits, misplaced parts, lengths and offsets out of range, invalid numbers,
//! endless nesting.

use fastrand::Rng;

/// Draws a number below `n`, or 0 if `n` is 0.
fn below(random: &mut Rng, n: usize) -> usize {
    random.usize(..n.max(1))
}

fn pick<T: Copy>(random: &mut Rng, from: &[T]) -> T {
    from[random.usize(..from.len())]
}

/// Changes `bytes` in one to three places, usually within the first `head` bytes.
pub(crate) fn mutate(random: &mut Rng, bytes: &mut Vec<u8>, head: usize, text: bool) {
    for _ in 0..=below(random, 3) {
        let reach = if below(random, 8) > 0 { head.min(bytes.len()) } else { bytes.len() };
        let at = below(random, reach);
        match below(random, if text { 9 } else { 6 }) {
            kind @ 0..6 => damage_bytes(random, bytes, kind, at, reach),
            kind => damage_text(random, bytes, kind, at),
        }
    }
}

/// Damages any file at `at`, with a kind from 0 to 5; other places are below `reach`.
fn damage_bytes(random: &mut Rng, bytes: &mut Vec<u8>, kind: usize, at: usize, reach: usize) {
    match kind {
        0 => bytes.truncate(at),
        1 => {
            if let Some(b) = bytes.get_mut(at) {
                *b ^= 1 << below(random, 8);
            }
        }
        // Copies a part of the file over another, so that lengths, names and offsets replace each other.
        2 => {
            let from = below(random, reach);
            let n = below(random, 64).min(bytes.len() - at.max(from).min(bytes.len()));
            bytes.copy_within(from..from + n, at);
        }
        3 | 4 => {
            let value: u64 = match below(random, 6) {
                0 => 0,
                1 => u64::MAX,
                2 => 1 << 62,
                3 => bytes.len() as u64,
                4 => random.u64(..) >> below(random, 64),
                _ => u64::from(u32::MAX),
            };
            let n = pick(random, &[1, 4, 8]);
            if let Some(to) = bytes.get_mut(at..at + n) {
                to.copy_from_slice(&value.to_le_bytes()[..n]);
            }
        }
        _ => {
            let n = below(random, 32).min(bytes.len() - at.min(bytes.len()));
            bytes.drain(at..at + n);
        }
    }
}

/// What replaces a part of a text.
const PIECES: [&str; 17] = [
    "0",
    "-1",
    "4611686018427387904",
    "1e999",
    "-0.0",
    "null",
    "\"\"",
    "true",
    "[]",
    "{}",
    ",",
    "\"\\u0000\"",
    "{{",
    "}}",
    "{%",
    "%}",
    "16777217",
];

/// Damages a text at `at`, with a kind from 6 to 8.
fn damage_text(random: &mut Rng, bytes: &mut Vec<u8>, kind: usize, at: usize) {
    match kind {
        6 => {
            let deep = pick(random, &["[", "{\"a\":", "(", "{{", "{% for x in range(99999) %}"]);
            let deep = deep.repeat(pick(random, &[1, 100, 20_000]));
            bytes.splice(at..at, deep.bytes());
        }
        7 => {
            let other = pick(random, &PIECES);
            let n = below(random, 8).min(bytes.len() - at.min(bytes.len()));
            bytes.splice(at..at + n, other.bytes());
        }
        // Replaces a number.
        _ => {
            let digit = (at..bytes.len()).find(|&i| bytes[i].is_ascii_digit());
            if let Some(start) = digit {
                let end = (start..bytes.len()).find(|&i| !bytes[i].is_ascii_digit()).unwrap_or(bytes.len());
                let other = pick(random, &["0", "1", "-1", "3", "4294967296", "9223372036854775807"]);
                bytes.splice(start..end, other.bytes());
            }
        }
    }
}
