//! Stateless random numbers: each is a function of (seed, choice, position), so no draw depends on the rest of the
//! batch, and a recomputed sequence draws the same numbers again.

/// Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011): ten rounds of two 32-bit
/// multiplications, with two Weyl constants to advance the key.
pub fn philox4x32(mut counter: [u32; 4], mut key: [u32; 2]) -> [u32; 4] {
    for _ in 0..10 {
        let a = u64::from(counter[0]) * 0xD251_1F53;
        let b = u64::from(counter[2]) * 0xCD9E_8D57;
        counter = [
            (b >> 32) as u32 ^ counter[1] ^ key[0],
            b as u32,
            (a >> 32) as u32 ^ counter[3] ^ key[1],
            a as u32,
        ];
        key = [key[0].wrapping_add(0x9E37_79B9), key[1].wrapping_add(0xBB67_AE85)];
    }
    counter
}

/// 64 random bits for the token at `position` of choice number `choice` of a request with `seed`.
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

/// Maps 64 random bits to `0..total`: the high half of `random * total`.
pub(crate) fn below(random: u64, total: u64) -> u64 {
    ((u128::from(random) * u128::from(total)) >> 64) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn philox_agrees_with_the_published_known_answers() {
        assert_eq!(philox4x32([0; 4], [0; 2]), [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]);
        assert_eq!(
            philox4x32([u32::MAX; 4], [u32::MAX; 2]),
            [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]
        );
        assert_eq!(
            philox4x32([0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344], [0xa409_3822, 0x299f_31d0]),
            [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1]
        );
    }

    #[test]
    fn a_draw_takes_its_words_from_seed_position_and_choice() {
        assert_eq!(random_u64(0, 0, 0), 0xe169_c58d_6627_e8d5);
        let words = philox4x32([7, 1, 3, 0], [5, 2]);
        let want = u64::from(words[1]) << 32 | u64::from(words[0]);
        assert_eq!(random_u64(5 | 2 << 32, 3, 7 | 1 << 32), want);
    }

    #[test]
    fn below_is_even_over_its_range() {
        let mut hits = [0u32; 5];
        for position in 0..50_000 {
            hits[below(random_u64(1, 0, position), 5) as usize] += 1;
        }
        assert!(hits.iter().all(|&h| (9_600..10_400).contains(&h)), "{hits:?}");
        assert_eq!(below(u64::MAX, 5), 4);
        assert_eq!(below(0, 5), 0);
    }
}
