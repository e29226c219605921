use std::hash::{BuildHasher, RandomState};

/// Returns 64 bits that differ from call to call, from the random keys that the standard library gives its hash maps.
pub(crate) fn fresh() -> u64 {
    RandomState::new().hash_one(0u8)
}
