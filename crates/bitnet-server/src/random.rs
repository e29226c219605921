use std::hash::{BuildHasher, RandomState};

/// 64 bits that differ from call to call, from the entropy that the standard library keys its hash maps with.
pub(crate) fn fresh() -> u64 {
    RandomState::new().hash_one(0u8)
}
