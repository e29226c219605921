//! Metrics of what is kept of the cache below a model's memory: in host memory and in a folder.

use bitnet::inference::{Engine, ShelfCounts, TierCounts};

/// Reads a number that an engine keeps.
pub(crate) type Read = fn(&Engine) -> u64;
/// A name, a description, and the number itself.
pub(crate) type Kept = (&'static str, &'static str, Read);

fn tier(engine: &Engine) -> TierCounts {
    engine.status().tier.unwrap_or_default()
}

fn host(engine: &Engine) -> ShelfCounts {
    tier(engine).host.unwrap_or_default()
}

/// Only of an engine that keeps its cache in host memory or in a folder. Tokens that were read are then found in memory,
/// so they are also among `bitnet_prefix_cache_hits_tokens_total`.
const TIER_COUNTERS: [Kept; 6] = [
    ("bitnet_cache_tier_hits_total", "Prompts whose beginning was read instead of computed.", |e| {
        tier(e).hits
    }),
    ("bitnet_cache_tier_misses_total", "Prompts of which nothing was kept.", |e| tier(e).misses),
    ("bitnet_cache_tier_given_up_total", "Prompts computed because reading took too long.", |e| {
        tier(e).given_up
    }),
    ("bitnet_cache_tier_dropped_total", "Parts that left memory before they could be kept.", |e| {
        tier(e).dropped
    }),
    ("bitnet_cache_tier_in_microseconds_total", "Time spent copying parts into the model's memory.", |e| {
        tier(e).in_micros
    }),
    ("bitnet_cache_tier_out_microseconds_total", "Time spent copying parts out of it.", |e| {
        tier(e).out_micros
    }),
];

const HOST_GAUGES: [Kept; 1] =
    [("bitnet_cache_host_bytes", "Bytes of host memory that hold parts.", |e| host(e).bytes)];

/// Only of an engine that keeps its cache in host memory.
const HOST_COUNTERS: [Kept; 6] = [
    ("bitnet_cache_host_hits_tokens_total", "Tokens read from host memory.", |e| tier(e).host_tokens),
    ("bitnet_cache_host_read_parts_total", "Parts read from host memory.", |e| host(e).read_parts),
    ("bitnet_cache_host_read_bytes_total", "Bytes read from host memory.", |e| host(e).read_bytes),
    ("bitnet_cache_host_written_parts_total", "Parts copied to host memory.", |e| host(e).written_parts),
    ("bitnet_cache_host_written_bytes_total", "Bytes copied to host memory.", |e| host(e).written_bytes),
    ("bitnet_cache_host_evictions_total", "Parts that left host memory.", |e| host(e).evicted),
];

const FOLDER_GAUGES: [Kept; 1] =
    [("bitnet_cache_folder_bytes", "Bytes in the folder, as far as this server knows.", |e| {
        tier(e).shelf.bytes
    })];

/// Only of an engine with a folder for its cache.
const FOLDER_COUNTERS: [Kept; 10] = [
    ("bitnet_cache_folder_hits_tokens_total", "Tokens read from the folder.", |e| {
        tier(e).hit_tokens - tier(e).host_tokens
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

/// The gauges of the tiers that an engine has.
pub(crate) fn gauges(tier: Option<TierCounts>) -> impl Iterator<Item = Kept> {
    let host = HOST_GAUGES.into_iter().filter(move |_| tier.is_some_and(|tier| tier.host.is_some()));
    host.chain(FOLDER_GAUGES.into_iter().filter(move |_| tier.is_some_and(|tier| tier.has_folder)))
}

/// Their counters.
pub(crate) fn counters(tier: Option<TierCounts>) -> impl Iterator<Item = Kept> {
    let any = TIER_COUNTERS.into_iter().filter(move |_| tier.is_some());
    let host = HOST_COUNTERS.into_iter().filter(move |_| tier.is_some_and(|tier| tier.host.is_some()));
    let folder = FOLDER_COUNTERS.into_iter().filter(move |_| tier.is_some_and(|tier| tier.has_folder));
    any.chain(host).chain(folder)
}
