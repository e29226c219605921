//! Causal attention over a paged cache. Every (token, key-value head) is one item of work; its query heads are taken up
//! to four at a time, so that keys and values are read once for all of them.
//!
//! Every type of cache is converted to f32 as it is loaded (see [`super::cache`]). The order of operations is that of
//! [`crate::order`].

use std::ops::Range;

use crate::{
    BLOCK_TOKENS, KvShape, KvType, Run,
    cpu::{
        generic::{
            cache::{Cached, Kv, panel},
            element::{Bf16, F16, F32, Int8},
            exp,
            rows::{store_row, sum_by_lane},
        },
        lanes::Lanes,
        memory::Shared,
    },
    order::{self, SEGMENT},
};

/// A segment has whole blocks, and a block has whole pairs of vectors.
const _: () = assert!(SEGMENT.is_multiple_of(BLOCK_TOKENS) && BLOCK_TOKENS.is_multiple_of(32));

/// Query heads that share one pass over keys and values.
const HEADS: usize = 4;

pub(crate) struct Attention<'a> {
    /// Number of keys that a token attends to; all if `None`.
    pub(crate) window: Option<usize>,
    pub(crate) runs: &'a [Run],
    pub(crate) blocks: &'a [u32],
    /// `[n][stride]`, queries first.
    pub(crate) qkv: &'a [f32],
    pub(crate) stride: usize,
    pub(crate) heads: usize,
    pub(crate) kv: &'a Kv,
    /// `[n][out_stride]`
    pub(crate) out: Shared<'a, f32>,
    pub(crate) out_stride: usize,
}

/// Floats of scratch that one thread needs.
pub(crate) fn scratch(shape: &KvShape) -> usize {
    HEADS * (SEGMENT + 2 * shape.value_stride())
}

/// Computes the items `part, part + parts, ...`: later tokens of a chunk have more keys, and this spreads them evenly.
#[inline(always)]
pub(crate) unsafe fn attention<L: Lanes>(a: &Attention<'_>, part: usize, parts: usize, scratch: &mut [f32]) {
    let kv_heads = a.kv.shape.kv_heads;
    let group = a.heads / kv_heads;
    debug_assert!(a.heads.is_multiple_of(kv_heads), "key heads must have equally many query heads");
    debug_assert!(scratch.len() >= self::scratch(&a.kv.shape), "scratch must hold scores and sums");
    let mut item = 0;
    for run in a.runs {
        let table = &a.blocks[run.blocks.clone()];
        for (i, token) in run.tokens.clone().enumerate() {
            for kv_head in 0..kv_heads {
                item += 1;
                if (item - 1) % parts != part {
                    continue;
                }
                let keys = run.start + i + 1;
                let end = (kv_head + 1) * group;
                for head in (kv_head * group..end).step_by(HEADS) {
                    let heads = Heads { token, kv_head, first: head, count: (end - head).min(HEADS) };
                    let from = keys - a.window.unwrap_or(keys).min(keys);
                    some_heads::<L>(a, table, from..keys, &heads, scratch);
                }
            }
        }
    }
}

/// Up to [`HEADS`] query heads of one token that share a key-value head.
struct Heads {
    token: usize,
    kv_head: usize,
    first: usize,
    count: usize,
}

/// Calls the copy of a function for the cache's type and the number of heads. Only the two loops over the cache have
/// copies.
macro_rules! copy_for {
    ($kv:expr, $heads:expr, $function:ident $args:tt) => {
        match $kv {
            KvType::F32 => copy_for!(@ $heads, $function, F32, $args),
            KvType::F16 => copy_for!(@ $heads, $function, F16, $args),
            KvType::Bf16 => copy_for!(@ $heads, $function, Bf16, $args),
            KvType::Int8 => copy_for!(@ $heads, $function, Int8, $args),
        }
    };
    (@ $heads:expr, $function:ident, $type:ty, ($($arg:expr),*)) => {
        match $heads {
            1 => $function::<L, $type, 1>($($arg),*),
            2 => $function::<L, $type, 2>($($arg),*),
            3 => $function::<L, $type, 3>($($arg),*),
            _ => $function::<L, $type, HEADS>($($arg),*),
        }
    };
}

/// Computes the attention of some heads of one token over `keys`, whose segments begin at whole multiples of
/// [`SEGMENT`].
#[inline(always)]
unsafe fn some_heads<L: Lanes>(
    a: &Attention<'_>,
    table: &[u32],
    keys: Range<usize>,
    heads: &Heads,
    scratch: &mut [f32],
) {
    let (dim, wide) = (a.kv.shape.head_dim, a.kv.shape.value_stride());
    let &Heads { token, kv_head, first: head, count: h_count } = heads;
    let q = a.qkv[token * a.stride + head * dim..][..h_count * dim].as_ptr();
    let (weights, rest) = scratch.split_at_mut(HEADS * SEGMENT); // [HEADS][SEGMENT]
    let (running, rest) = rest.split_at_mut(HEADS * wide); // [HEADS][wide]
    let part = &mut rest[..HEADS * wide]; // [HEADS][wide]
    let (mut max, mut sum) = ([0.0f32; HEADS], [0.0f32; HEADS]);
    let begin = keys.start / SEGMENT * SEGMENT;
    for first in (begin..keys.end).step_by(SEGMENT) {
        let count = (keys.end - first).min(SEGMENT);
        // Keys of the segment that are before the window, and those of them for which nothing is computed.
        let before = keys.start.saturating_sub(first);
        let some = Within { skipped: before / 32 * 32, before, count, padded: count.next_multiple_of(16) };
        let blocks = &table[first / BLOCK_TOKENS..(first + count).div_ceil(BLOCK_TOKENS)];
        copy_for!(a.kv.kv, h_count, scores(a, blocks, kv_head, q, some, weights));
        let values = if first == begin { running.as_mut_ptr() } else { part.as_mut_ptr() };
        let mut segment = [(0.0f32, 0.0f32); HEADS];
        for h in 0..h_count {
            segment[h] = softmax::<L>(&mut weights[h * SEGMENT..][..SEGMENT], some);
        }
        copy_for!(a.kv.kv, h_count, weigh(a, blocks, kv_head, some, weights, values));
        for h in 0..h_count {
            let (m, l) = segment[h];
            if first == begin {
                (max[h], sum[h]) = (m, l);
                continue;
            }
            let (joint, old, new) = order::merge(max[h], m);
            (max[h], sum[h]) = (joint, L::fused(sum[h], old, l * new));
            let (old, new) = (L::splat(old), L::splat(new));
            for d in (0..wide).step_by(16) {
                let r = running.as_mut_ptr().add(h * wide + d);
                let v = L::load(part.as_ptr().add(h * wide + d));
                L::store(r, L::fma(L::load(r), old, L::mul(v, new)));
            }
        }
    }
    for (h, &sum) in sum[..h_count].iter().enumerate() {
        let out = a.out.slice(token * a.out_stride + (head + h) * dim, dim);
        store_row::<L>(running.as_ptr().add(h * wide), out.as_mut_ptr(), dim, sum);
    }
}

/// The keys of a segment that a token attends to: `before..count`.
#[derive(Clone, Copy)]
struct Within {
    /// Keys at the beginning for which nothing is computed: whole pairs of vectors.
    skipped: usize,
    before: usize,
    count: usize,
    /// `count`, rounded up to whole vectors.
    padded: usize,
}

/// Computes the scores of groups of 16 keys, by pairs; lanes of other keys hold garbage.
#[inline(always)]
unsafe fn scores<L: Lanes, S: Cached, const H: usize>(
    a: &Attention<'_>,
    blocks: &[u32],
    kv_head: usize,
    q: *const f32,
    some: Within,
    weights: &mut [f32],
) {
    let (dim, kv_heads) = (a.kv.shape.head_dim, a.kv.shape.kv_heads);
    let key = |group: usize| {
        let block = blocks[group / (BLOCK_TOKENS / 16)] as usize;
        let index = block * kv_heads + kv_head;
        let (keys, scales) = panel::<S>(&a.kv.keys, index, dim);
        let (values, _) = panel::<S>(&a.kv.values, index, a.kv.shape.value_stride());
        let first = 16 * (group % (BLOCK_TOKENS / 16));
        Keys::<S> {
            numbers: keys.add(first * dim),
            scales: scales.wrapping_add(first),
            values: values.add(first * dim).cast(),
        }
    };
    for group in (some.skipped / 16..some.padded / 16).step_by(2) {
        score::<L, S, H>(dim, q, [key(group), key(group + 1)], group, weights);
    }
}

/// A group of 16 keys.
struct Keys<S: Cached> {
    numbers: *const S::Number,
    /// Valid only if the type has scales.
    scales: *const f32,
    /// As many bytes of values of the same block. They are prefetched here, because they are read in narrow columns,
    /// which no hardware prefetcher recognises.
    values: *const u8,
}

#[inline(always)]
unsafe fn score<L: Lanes, S: Cached, const H: usize>(
    dim: usize,
    q: *const f32,
    keys: [Keys<S>; 2],
    group: usize,
    weights: &mut [f32],
) {
    let mut scales = [L::splat(1.0); 2];
    if S::KV.scaled() {
        for (scales, keys) in scales.iter_mut().zip(&keys) {
            *scales = L::load(keys.scales);
        }
    }
    let mut sums = [[L::splat(0.0); 2]; H];
    let bytes = 16 * size_of::<S::Number>();
    for d in 0..dim {
        for (g, keys) in keys.iter().enumerate() {
            if (d * bytes).is_multiple_of(64) {
                L::prefetch(keys.values.wrapping_add(d * bytes));
            }
            let mut k = S::load::<L>(keys.numbers.add(16 * d));
            if S::KV.scaled() {
                k = L::mul(k, scales[g]);
            }
            for (h, sums) in sums.iter_mut().enumerate() {
                sums[g] = L::fma(L::splat(*q.add(h * dim + d)), k, sums[g]);
            }
        }
    }
    let scale = L::splat(1.0 / (dim as f32).sqrt());
    for (h, sums) in sums.into_iter().enumerate() {
        for (g, sum) in sums.into_iter().enumerate() {
            let at = h * SEGMENT + 16 * (group + g);
            L::store(weights[at..][..16].as_mut_ptr(), L::mul(sum, scale));
        }
    }
}

/// Turns scores into weights, with zeros for other keys; returns the maximum score and the sum of the weights.
#[inline(always)]
unsafe fn softmax<L: Lanes>(weights: &mut [f32], some: Within) -> (f32, f32) {
    let Within { skipped, before, count, padded } = some;
    weights[skipped..before].fill(f32::NEG_INFINITY);
    weights[count..padded].fill(f32::NEG_INFINITY);
    let w = weights.as_mut_ptr();
    let mut max = L::splat(f32::NEG_INFINITY);
    for i in (skipped..padded).step_by(16) {
        max = L::max(max, L::load(w.add(i)));
    }
    let max = L::reduce_max(max);
    for i in (skipped..padded).step_by(16) {
        let x = w.add(i);
        L::store(x, exp::<L>(L::sub(L::load(x), L::splat(max))));
    }
    weights[skipped..before].fill(0.0);
    weights[count..padded].fill(0.0);
    (max, sum_by_lane::<L>(weights[skipped..].as_ptr(), padded - skipped))
}

/// Computes `out[h] = sum_j weights[h][j] * value[j]`, in the order of `j`.
#[inline(always)]
unsafe fn weigh<L: Lanes, S: Cached, const H: usize>(
    a: &Attention<'_>,
    blocks: &[u32],
    kv_head: usize,
    some: Within,
    weights: &[f32],
    out: *mut f32,
) {
    let wide = a.kv.shape.value_stride();
    let mut d = 0;
    while d + 32 <= wide {
        weigh_columns::<L, S, H, 2>(a, blocks, kv_head, some, weights, out, d);
        d += 32;
    }
    if d < wide {
        weigh_columns::<L, S, H, 1>(a, blocks, kv_head, some, weights, out, d);
    }
}

#[inline(always)]
unsafe fn weigh_columns<L: Lanes, S: Cached, const H: usize, const C: usize>(
    a: &Attention<'_>,
    blocks: &[u32],
    kv_head: usize,
    some: Within,
    weights: &[f32],
    out: *mut f32,
    d: usize,
) {
    let wide = a.kv.shape.value_stride();
    let mut sums = [[L::splat(0.0); C]; H];
    for (b, &block) in blocks.iter().enumerate().skip(some.before / BLOCK_TOKENS) {
        let tokens = (some.count - b * BLOCK_TOKENS).min(BLOCK_TOKENS);
        let index = block as usize * a.kv.shape.kv_heads + kv_head;
        let (values, scales) = panel::<S>(&a.kv.values, index, wide);
        let weights = weights[..(H - 1) * SEGMENT + b * BLOCK_TOKENS + tokens].as_ptr().add(b * BLOCK_TOKENS);
        for j in some.before.saturating_sub(b * BLOCK_TOKENS)..tokens {
            for c in 0..C {
                let mut v = S::load::<L>(values.add(j * wide + d + 16 * c));
                if S::KV.scaled() {
                    v = L::mul(v, L::splat(*scales.add(j)));
                }
                for (h, sums) in sums.iter_mut().enumerate() {
                    sums[c] = L::fma(L::splat(*weights.add(h * SEGMENT + j)), v, sums[c]);
                }
            }
        }
    }
    for (h, sums) in sums.into_iter().enumerate() {
        for (c, sum) in sums.into_iter().enumerate() {
            L::store(out.add(h * wide + d + 16 * c), sum);
        }
    }
}
