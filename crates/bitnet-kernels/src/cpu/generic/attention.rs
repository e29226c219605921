//! Causal attention over a paged cache. Every (token, key-value head) is one item of work; its query heads are taken up
//! to four at a time, so that keys and values are read once for all of them. If there are too few items for all threads,
//! every segment of an item is one, and the thread that ends an item's last segment merges them all, in order.
//!
//! While numbers of one side of the cache are multiplied, the same bytes of the other side are prefetched: with keys, the
//! values of the same segment, and with values, the keys of the next. So memory is never idle. [`super::operands`] says how
//! each type of number is multiplied; the order of operations is that of [`crate::order`].

use std::{
    ops::Range,
    sync::atomic::{
        AtomicU32,
        Ordering::{AcqRel, Relaxed},
    },
};

use crate::{
    BLOCK_TOKENS, KvShape, KvType, Run,
    cpu::{
        generic::{
            ahead::Ahead,
            cache::{Int8, Kv, panel},
            element::{Bf16, F16, F32},
            exp,
            operands::Operand,
            rows::{store_row, sum_by_lane},
        },
        lanes::Lanes,
        memory::Shared,
        pool::share,
    },
    order::{self, SEGMENT},
};

/// A segment has whole blocks, and a block has whole pairs of vectors.
const _: () = assert!(SEGMENT.is_multiple_of(BLOCK_TOKENS) && BLOCK_TOKENS.is_multiple_of(32));

/// Query heads that share one pass over keys and values.
const HEADS: usize = 4;

/// Values that are added to all columns before the next ones are read. So values are nearly read in one stream, which
/// gains 7 % over whole segments in f32 and nothing in int8 (AVX2, Zen 4).
const ROWS: usize = 16;

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
    /// Where segments leave their results, if they are items of their own.
    pub(crate) apart: Option<Apart<'a>>,
}

/// Results of segments that are computed apart.
pub(crate) struct Apart<'a> {
    /// For each segment of each item, and each of its query heads, [`result`] floats.
    pub(crate) results: Shared<'a, f32>,
    /// For each (token, key-value head), the number of segments that have ended; zeros before and after.
    pub(crate) ended: &'a [AtomicU32],
}

/// Floats of the result of one segment and head: the sums of the values, the maximum score and the sum of the weights.
pub(crate) fn result(shape: &KvShape) -> usize {
    shape.value_stride() + 16
}

/// Floats of scratch that one thread needs.
pub(crate) fn scratch(shape: &KvShape) -> usize {
    HEADS * (SEGMENT + factors(shape) + 2 * result(shape))
}

/// Floats of scratch for the factors of one head, i16 each: queries, then weights.
fn factors(shape: &KvShape) -> usize {
    SEGMENT.max(shape.value_stride()) / 2
}

impl Attention<'_> {
    /// All items: a token and one of its key-value heads.
    fn items(&self) -> impl Iterator<Item = Item<'_>> {
        let kv_heads = self.kv.shape.kv_heads;
        let all = self.window.unwrap_or(usize::MAX);
        self.runs.iter().flat_map(move |run| {
            let table = &self.blocks[run.blocks.clone()];
            run.tokens.clone().zip(run.start + 1..).flat_map(move |(token, keys)| {
                let keys = keys - keys.min(all)..keys;
                (0..kv_heads).map(move |kv_head| Item { token, kv_head, table, keys: keys.clone() })
            })
        })
    }

    /// Number of segments of all items.
    pub(crate) fn segments(&self) -> usize {
        self.items().map(|item| item.segments()).sum()
    }
}

/// A token and one of its key-value heads.
struct Item<'a> {
    token: usize,
    kv_head: usize,
    table: &'a [u32],
    /// The keys that it attends to. Its segments begin at whole multiples of [`SEGMENT`].
    keys: Range<usize>,
}

impl Item<'_> {
    fn segments(&self) -> usize {
        self.keys.end.div_ceil(SEGMENT) - self.keys.start / SEGMENT
    }

    /// Its query heads, up to [`HEADS`] at a time.
    fn heads(&self, a: &Attention<'_>) -> impl Iterator<Item = Heads> + use<> {
        let group = a.heads / a.kv.shape.kv_heads;
        let end = (self.kv_head + 1) * group;
        let chunks = (self.kv_head * group..end).step_by(HEADS);
        chunks.map(move |first| Heads { first, count: (end - first).min(HEADS) })
    }
}

/// Up to [`HEADS`] query heads of an item.
#[derive(Clone, Copy)]
struct Heads {
    first: usize,
    count: usize,
}

/// Computes one part of the work. Of whole items, these are `part, part + parts, ...`: later tokens of a chunk have more
/// keys, and this spreads them evenly. Segments are taken in a row, so that each thread reads few tokens' keys and values.
#[inline(always)]
pub(crate) unsafe fn attention<L: Lanes>(a: &Attention<'_>, part: usize, parts: usize, scratch: &mut [f32]) {
    debug_assert!(
        a.heads.is_multiple_of(a.kv.shape.kv_heads),
        "key heads must have equally many query heads"
    );
    debug_assert!(scratch.len() >= self::scratch(&a.kv.shape), "scratch must hold scores and sums");
    let wanted = a.apart.as_ref().map(|_| share(a.segments(), parts, part));
    let mut first = 0;
    for (index, item) in a.items().enumerate() {
        let all = first..first + item.segments();
        first = all.end;
        let (own, at_once) = match &wanted {
            Some(wanted) => (wanted.start.max(all.start)..wanted.end.min(all.end), 1),
            None if index % parts == part => (all.clone(), all.len()),
            None => continue,
        };
        for from in own.step_by(at_once) {
            some_segments::<L>(a, &item, all.start, from..from + at_once, scratch);
            if let Some(apart) = &a.apart {
                end_segment::<L>(a, apart, &item, all.clone(), &apart.ended[index]);
            }
        }
    }
}

/// Computes all segments of an item, or one that leaves its results to the thread that ends the item. `first` is the
/// number of the item's first segment among all.
#[inline(always)]
unsafe fn some_segments<L: Lanes>(
    a: &Attention<'_>,
    item: &Item<'_>,
    first: usize,
    own: Range<usize>,
    scratch: &mut [f32],
) {
    let (group, len) = (a.heads / a.kv.shape.kv_heads, result(&a.kv.shape));
    let (weights, rest) = scratch.split_at_mut(HEADS * (SEGMENT + factors(&a.kv.shape)));
    let (total, next) = rest.split_at_mut(HEADS * len);
    for heads in item.heads(a) {
        for at in own.clone() {
            let out = match &a.apart {
                // This thread alone computes the segment, and nobody reads its results before it has ended.
                Some(apart) => {
                    let before = at * group + heads.first - item.kv_head * group;
                    apart.results.slice(before * len, heads.count * len)
                }
                None if at == first => &mut *total,
                None => &mut *next,
            };
            segment::<L>(a, item, heads, at - first, weights, out);
            if a.apart.is_none() && at > first {
                merge::<L>(&a.kv.shape, heads.count, total, next);
            }
        }
        if a.apart.is_none() {
            store::<L>(a, item, heads, total);
        }
    }
}

/// Counts a segment that was computed apart. If it is the last of its item to end, merges them all.
#[inline(always)]
unsafe fn end_segment<L: Lanes>(
    a: &Attention<'_>,
    apart: &Apart<'_>,
    item: &Item<'_>,
    all: Range<usize>,
    ended: &AtomicU32,
) {
    // Whoever counts last sees what all others have written.
    if ended.fetch_add(1, AcqRel) as usize + 1 < all.len() {
        return;
    }
    ended.store(0, Relaxed);
    let (group, len) = (a.heads / a.kv.shape.kv_heads, result(&a.kv.shape));
    let mut results = all.map(|segment| apart.results.slice(segment * group * len, group * len));
    let total = results.next().expect("an item has a segment");
    for next in results {
        merge::<L>(&a.kv.shape, group, total, next);
    }
    for (heads, total) in item.heads(a).zip(total.chunks(HEADS * len)) {
        store::<L>(a, item, heads, total);
    }
}

/// Merges the results of the next segment of `count` heads into those of the segments before it.
#[inline(always)]
unsafe fn merge<L: Lanes>(shape: &KvShape, count: usize, total: &mut [f32], next: &[f32]) {
    let (wide, len) = (shape.value_stride(), result(shape));
    for (total, next) in total.chunks_exact_mut(len).zip(next.chunks_exact(len)).take(count) {
        let (max, old, new) = order::merge(total[wide], next[wide]);
        total[wide] = max;
        total[wide + 1] = L::fused(total[wide + 1], old, next[wide + 1] * new);
        let (old, new) = (L::splat(old), L::splat(new));
        for d in (0..wide).step_by(16) {
            let sum = total.as_mut_ptr().add(d);
            let value = L::load(next.as_ptr().add(d));
            L::store(sum, L::fma(L::load(sum), old, L::mul(value, new)));
        }
    }
}

/// Divides the sums of the values by those of the weights.
#[inline(always)]
unsafe fn store<L: Lanes>(a: &Attention<'_>, item: &Item<'_>, heads: Heads, total: &[f32]) {
    let shape = &a.kv.shape;
    for (h, total) in total.chunks_exact(result(shape)).take(heads.count).enumerate() {
        let at = item.token * a.out_stride + (heads.first + h) * shape.head_dim;
        let out = a.out.slice(at, shape.head_dim);
        store_row::<L>(total.as_ptr(), out.as_mut_ptr(), shape.head_dim, total[shape.value_stride() + 1]);
    }
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

/// Computes the attention of some heads over one segment of an item, and leaves it in `out`: [`result`] floats a head.
#[inline(always)]
unsafe fn segment<L: Lanes>(
    a: &Attention<'_>,
    item: &Item<'_>,
    heads: Heads,
    index: usize,
    scratch: &mut [f32],
    out: &mut [f32],
) {
    let (shape, kv_head) = (&a.kv.shape, item.kv_head);
    let (dim, len) = (shape.head_dim, result(shape));
    let q = a.qkv[item.token * a.stride + heads.first * dim..][..heads.count * dim].as_ptr();
    let out = &mut out[..heads.count * len];
    let first = (item.keys.start / SEGMENT + index) * SEGMENT;
    let count = (item.keys.end - first).min(SEGMENT);
    // Keys of the segment that are before the window, and those of them for which nothing is computed.
    let before = item.keys.start.saturating_sub(first);
    let some = Within { skipped: before / 32 * 32, before, count, padded: count.next_multiple_of(16) };
    let blocks = &item.table[first / BLOCK_TOKENS..item.keys.end.div_ceil(BLOCK_TOKENS)];
    copy_for!(a.kv.kv, heads.count, scores(a, blocks, kv_head, q, some, scratch));
    for (weights, out) in scratch.chunks_exact_mut(SEGMENT).zip(out.chunks_exact_mut(len)) {
        (out[len - 16], out[len - 15]) = softmax::<L>(weights, some);
    }
    let out = out.as_mut_ptr();
    copy_for!(a.kv.kv, heads.count, weigh(a, blocks, kv_head, some, scratch, out));
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

/// Divides scratch into the weights of [`HEADS`] heads and room for their factors.
fn with_room(scratch: &mut [f32]) -> (&mut [f32], *mut i16) {
    let (weights, room) = scratch.split_at_mut(HEADS * SEGMENT);
    (weights, room.as_mut_ptr().cast())
}

/// Computes the scores of groups of 16 keys, by pairs, as the first of `scratch`; lanes of other keys hold garbage.
#[inline(always)]
unsafe fn scores<L: Lanes, S: Operand, const H: usize>(
    a: &Attention<'_>,
    blocks: &[u32],
    kv_head: usize,
    q: *const f32,
    some: Within,
    scratch: &mut [f32],
) {
    let (dim, kv_heads) = (a.kv.shape.head_dim, a.kv.shape.kv_heads);
    let (weights, room) = with_room(scratch);
    let mut query = [Factors::NONE; H];
    for (h, query) in query.iter_mut().enumerate() {
        let room = room.add(h * 2 * factors(&a.kv.shape));
        let (factors, scale) = S::factors::<L>(q.add(h * dim), dim, order::query(dim), room);
        *query = Factors { factors, scale: scale * (1.0 / (dim as f32).sqrt()) };
    }
    let key = |group: usize| {
        let block = blocks[group / (BLOCK_TOKENS / 16)] as usize;
        let index = block * kv_heads + kv_head;
        let (keys, scales) = panel::<S>(&a.kv.keys, index, dim);
        let (values, _) = panel::<S>(&a.kv.values, index, a.kv.shape.value_stride());
        let first = 16 * (group % (BLOCK_TOKENS / 16));
        Keys::<S> {
            numbers: keys.add(first * dim),
            scales: scales.wrapping_add(first),
            values: values.cast::<u8>().wrapping_add(first * dim * size_of::<S::Number>()),
        }
    };
    let groups = some.skipped / 16..some.padded / 16;
    if pairs::<L>(H) {
        for group in groups.step_by(2) {
            score::<L, S, H, 2>(dim, query, [key(group), key(group + 1)], group, weights);
        }
    } else {
        for group in groups {
            score::<L, S, H, 1>(dim, query, [key(group)], group, weights);
        }
    }
}

/// Whether two sums for each of `heads` fit the registers.
#[inline(always)]
fn pairs<L: Lanes>(heads: usize) -> bool {
    L::WIDE_REGISTERS || heads <= 2
}

/// What a query head multiplies numbers by, and what its sums are multiplied by then.
#[derive(Clone, Copy)]
struct Factors<F> {
    factors: *const F,
    scale: f32,
}

impl<F> Factors<F> {
    const NONE: Self = Factors { factors: std::ptr::null(), scale: 0.0 };
}

/// A group of 16 keys.
struct Keys<S: Operand> {
    numbers: *const S::Number,
    /// Valid only if the type has scales.
    scales: *const f32,
    /// As many bytes of values of the same block, to be prefetched.
    values: *const u8,
}

#[inline(always)]
unsafe fn score<L: Lanes, S: Operand, const H: usize, const G: usize>(
    dim: usize,
    query: [Factors<S::Factor>; H],
    keys: [Keys<S>; G],
    group: usize,
    weights: &mut [f32],
) {
    let mut sums = [[S::zero::<L>(); G]; H];
    let bytes = 16 * size_of::<S::Number>();
    for d in (0..dim).step_by(S::ROWS) {
        for (g, keys) in keys.iter().enumerate() {
            if (d * bytes).is_multiple_of(64) {
                L::prefetch(keys.values.wrapping_add(d * bytes));
            }
            let k = S::load::<L>(keys.numbers.add(16 * d), 16);
            for (sums, query) in sums.iter_mut().zip(query) {
                sums[g] = S::add::<L>(sums[g], k, query.factors.add(d));
            }
        }
    }
    for (h, sums) in sums.into_iter().enumerate() {
        for (g, sums) in sums.into_iter().enumerate() {
            let at = h * SEGMENT + 16 * (group + g);
            let mut score = S::to_f32::<L>(sums);
            if S::KV.scaled() {
                score = L::mul(score, L::load(keys[g].scales));
            }
            L::store(weights[at..][..16].as_mut_ptr(), L::mul(score, L::splat(query[h].scale)));
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

/// Computes `out[h] = sum_j weights[h][j] * value[j]`, in the order of `j`; if values have scales, they are first
/// multiplied into the weights. The blocks after those of the segment are prefetched.
#[inline(always)]
unsafe fn weigh<L: Lanes, S: Operand, const H: usize>(
    a: &Attention<'_>,
    blocks: &[u32],
    kv_head: usize,
    some: Within,
    scratch: &mut [f32],
    out: *mut f32,
) {
    let (blocks, next) = blocks.split_at(blocks.len().min(SEGMENT / BLOCK_TOKENS));
    let (weights, room) = with_room(scratch);
    let (shape, bytes) = (&a.kv.shape, size_of::<S::Number>());
    let (dim, wide, len) = (shape.head_dim, shape.value_stride(), result(shape));
    let index = |block: u32| block as usize * shape.kv_heads + kv_head;
    let mut factors = [Factors::NONE; H];
    for (h, weights) in weights.chunks_exact_mut(SEGMENT).take(H).enumerate() {
        if S::KV.scaled() {
            for at in (some.skipped..some.padded).step_by(16) {
                let (_, scales) = panel::<S>(&a.kv.values, index(blocks[at / BLOCK_TOKENS]), wide);
                let weights = weights[at..][..16].as_mut_ptr();
                L::store(weights, L::mul(L::load(weights), L::load(scales.add(at % BLOCK_TOKENS))));
            }
            // Scales of other keys may be anything.
            weights[some.skipped..some.before].fill(0.0);
            weights[some.count..some.padded].fill(0.0);
        }
        let weights = weights[some.skipped..some.padded].as_ptr();
        let room = room.add(h * SEGMENT);
        let (first, scale) = S::factors::<L>(weights, some.padded - some.skipped, order::WEIGHT, room);
        factors[h] = Factors { factors: first.wrapping_sub(some.skipped), scale };
    }
    for h in 0..H {
        for d in (0..wide).step_by(16) {
            S::store::<L>(out.add(h * len + d), S::zero::<L>());
        }
    }
    // With 512-bit vectors, prefetches of f32 lose 6 % (Zen 5).
    let prefetched = !(L::WIDE_REGISTERS && bytes == 4);
    for (b, &block) in blocks.iter().enumerate().skip(some.before / BLOCK_TOKENS) {
        let (values, _) = panel::<S>(&a.kv.values, index(block), wide);
        let own = some.before.max(b * BLOCK_TOKENS)..some.count.min((b + 1) * BLOCK_TOKENS);
        // Rows that are multiplied together are in one block, and those of other keys have weights of zero.
        let own = own.start / S::ROWS * S::ROWS..own.end.next_multiple_of(S::ROWS);
        for first in own.clone().step_by(ROWS) {
            let rows = first..own.end.min(first + ROWS);
            let first = first - b * BLOCK_TOKENS;
            let columns = if pairs::<L>(H) { 32 } else { 16 };
            let mut ahead = next.get(b).filter(|_| prefetched).map_or(Ahead::NOTHING, |&next| {
                let (keys, _) = panel::<S>(&a.kv.keys, index(next), dim);
                Ahead::of(keys.cast::<u8>().wrapping_add(first * dim * bytes), columns * ROWS * bytes)
            });
            let values = values.add(first * wide);
            let mut d = 0;
            while pairs::<L>(H) && d + 32 <= wide {
                ahead.prefetch::<L>();
                weigh_columns::<L, S, H, 2>(shape, values.add(d), rows.clone(), factors, out.add(d));
                d += 32;
            }
            while d < wide {
                ahead.prefetch::<L>();
                weigh_columns::<L, S, H, 1>(shape, values.add(d), rows.clone(), factors, out.add(d));
                d += 16;
            }
        }
    }
    if S::KV.scaled() {
        for (h, factors) in factors.iter().enumerate() {
            for d in (0..wide).step_by(16) {
                let out = out.add(h * len + d);
                L::store(out, L::mul(S::to_f32::<L>(S::resume::<L>(out)), L::splat(factors.scale)));
            }
        }
    }
}

/// Adds some columns of the values of `rows`, which begin at `values`.
#[inline(always)]
unsafe fn weigh_columns<L: Lanes, S: Operand, const H: usize, const C: usize>(
    shape: &KvShape,
    values: *const S::Number,
    rows: Range<usize>,
    factors: [Factors<S::Factor>; H],
    out: *mut f32,
) {
    let (wide, len) = (shape.value_stride(), result(shape));
    let mut sums = [[S::zero::<L>(); C]; H];
    for (h, sums) in sums.iter_mut().enumerate() {
        for (c, sums) in sums.iter_mut().enumerate() {
            *sums = S::resume::<L>(out.add(h * len + 16 * c));
        }
    }
    for j in (0..rows.len()).step_by(S::ROWS) {
        for c in 0..C {
            let v = S::load::<L>(values.add(j * wide + 16 * c), wide);
            for (sums, factors) in sums.iter_mut().zip(factors) {
                sums[c] = S::add::<L>(sums[c], v, factors.factors.add(rows.start + j));
            }
        }
    }
    for (h, sums) in sums.into_iter().enumerate() {
        for (c, sums) in sums.into_iter().enumerate() {
            S::store::<L>(out.add(h * len + 16 * c), sums);
        }
    }
}
