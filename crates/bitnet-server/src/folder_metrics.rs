//! Metrics of a cache that is kept in a folder.

use bitnet::inference::{Engine, TierCounts};

/// Reads a number that an engine keeps.
pub(crate) type Read = fn(&Engine) -> u64;
/// A name, a description, and the number itself.
pub(crate) type Kept = (&'static str, &'static str, Read);

fn tier(engine: &Engine) -> TierCounts {
    engine.status().tier.unwrap_or_default()
}

/// Only of an engine with a folder for its cache.
pub(crate) const FOLDER_GAUGES: [Kept; 1] =
    [("bitnet_cache_folder_bytes", "Bytes in the folder, as far as this server knows.", |e| {
        tier(e).shelf.bytes
    })];

/// Only of an engine with a folder for its cache. Tokens that were read from it are then found in memory, so they are
/// also among `bitnet_prefix_cache_hits_tokens_total`.
pub(crate) const FOLDER_COUNTERS: [Kept; 14] = [
    ("bitnet_cache_folder_hits_total", "Prompts whose beginning was read from the folder.", |e| tier(e).hits),
    ("bitnet_cache_folder_misses_total", "Prompts for which the folder had nothing.", |e| tier(e).misses),
    ("bitnet_cache_folder_hits_tokens_total", "Tokens read from the folder.", |e| tier(e).hit_tokens),
    ("bitnet_cache_folder_given_up_total", "Prompts computed because reading took too long.", |e| {
        tier(e).given_up
    }),
    ("bitnet_cache_folder_dropped_total", "Parts that left memory before they could be written.", |e| {
        tier(e).dropped
    }),
    ("bitnet_cache_folder_read_parts_total", "Parts read.", |e| tier(e).shelf.read_parts),
    ("bitnet_cache_folder_read_bytes_total", "Bytes read.", |e| tier(e).shelf.read_bytes),
    ("bitnet_cache_folder_read_microseconds_total", "Time spent reading.", |e| tier(e).shelf.read_micros),
    ("bitnet_cache_folder_written_parts_total", "Parts written.", |e| tier(e).shelf.written_parts),
    ("bitnet_cache_folder_written_bytes_total", "Bytes written.", |e| tier(e).shelf.written_bytes),
    ("bitnet_cache_folder_write_microseconds_total", "Time spent writing.", |e| tier(e).shelf.write_micros),
    ("bitnet_cache_folder_failed_writes_total", "Parts that could not be written.", |e| {
        tier(e).shelf.failed_writes
    }),
    ("bitnet_cache_folder_damaged_total", "Files that were damaged, and removed.", |e| tier(e).shelf.damaged),
    ("bitnet_cache_folder_evictions_total", "Parts removed to stay within the limit.", |e| {
        tier(e).shelf.evicted
    }),
];
