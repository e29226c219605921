//! Numbers as the device reads them.

/// Converts floats to little-endian bytes.
pub(in crate::gpu) fn f32_bytes(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|v| v.to_le_bytes()).collect()
}

/// Replaces what is in `bytes` by integers as little-endian bytes.
pub(in crate::gpu) fn u32_bytes(words: &[u32], bytes: &mut Vec<u8>) {
    bytes.resize(4 * words.len(), 0);
    bytes.as_chunks_mut().0.iter_mut().zip(words).for_each(|(bytes, word)| *bytes = word.to_le_bytes());
}
