//! Random numbers that are not a draw's: words that depend on a seed and two numbers, and new seeds.

use bitnet_kernels::draw::philox4x32;

/// 64 random bits that depend on `seed`, `choice` and `position` alone.
///
/// Key = seed (low word first), counter = (position low, position high, choice, 0), result = words 0 and 1 (word 0
/// low).
pub fn random_u64(seed: u64, choice: u32, position: u64) -> u64 {
    let words =
        philox4x32([position as u32, (position >> 32) as u32, choice, 0], [seed as u32, (seed >> 32) as u32]);
    u64::from(words[1]) << 32 | u64::from(words[0])
}

/// A seed that differs from call to call, from the entropy of the standard library's hash maps.
pub(crate) fn fresh_seed() -> u64 {
    use std::hash::{BuildHasher, RandomState};
    RandomState::new().hash_one(0u8)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_come_from_seed_position_and_choice() {
        assert_eq!(random_u64(0, 0, 0), 0xe169_c58d_6627_e8d5);
        let words = philox4x32([7, 1, 3, 0], [5, 2]);
        let want = u64::from(words[1]) << 32 | u64::from(words[0]);
        assert_eq!(random_u64(5 | 2 << 32, 3, 7 | 1 << 32), want);
    }
}
