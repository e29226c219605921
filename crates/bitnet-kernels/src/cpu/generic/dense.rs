//! Logits: dot products of activations with the rows of a dense matrix, in the float type in which it is stored.
//!
//! Tiles of rows and tokens hide the latency of additions. Each dot product keeps its own 16 partial sums, so no result
//! depends on the shape of the tile. Block-quantised rows are decoded into scratch first.
//!
//! Layout: as stored, row by row. 16 values of 4 rows and 4 tokens take 4 widening loads, 4 loads of activations and 16
//! fused multiply-adds. A few tokens are bound by memory (657 MB of bf16 for 2B-4T), more by the multiply-adds.

use std::{
    array,
    ops::Range,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
};

use bitnet_tensor::{BitNetTensor, DType};

use crate::cpu::{
    generic::{
        element::{Bf16, Element, F16, F32},
        store_partial,
    },
    lanes::Lanes,
    memory::Shared,
    pool::share,
};

/// Rows decoded to scratch at a time.
const DECODED_ROWS: usize = 8;

/// Rows that stay in cache while tokens pass over them.
const CACHED_ROWS: usize = 32;

/// Rows of the largest tile.
pub(crate) const TILE_ROWS: usize = 8;

/// Tokens whose activations stay in cache while the rows of a small matrix pass over them.
pub(crate) const CACHED_TOKENS: usize = 64;

/// Bytes of a matrix that stays in cache.
pub(crate) const CACHED_MATRIX: usize = 2 << 20;

pub(crate) struct DenseLogits<'a> {
    pub(crate) table: &'a BitNetTensor,
    /// `[n][stride]`, zeros after the last column.
    pub(crate) x: &'a [f32],
    pub(crate) stride: usize,
    /// Rows of `x` whose logits are needed.
    pub(crate) tokens: &'a [usize],
    /// `[n][out_stride]`, with the logits from `column` on.
    pub(crate) out: Shared<'a, f32>,
    pub(crate) out_stride: usize,
    pub(crate) column: usize,
}

/// Whether rows of this type are decoded to scratch before they are used.
fn is_decoded(dtype: DType) -> bool {
    !matches!(dtype, DType::F32 | DType::F16 | DType::BF16)
}

/// Floats of scratch that one thread needs.
pub(crate) fn scratch(dtype: DType, cols: usize) -> usize {
    if is_decoded(dtype) { DECODED_ROWS * cols } else { 0 }
}

/// [`BitNetTensor::decode_row`], vectorised for 16-bit types.
#[inline(always)]
pub(crate) unsafe fn decode_row<L: Lanes>(table: &BitNetTensor, row: usize, out: &mut [f32]) {
    match table.dtype() {
        DType::F16 => load_row::<L, F16>(table, row, out),
        DType::BF16 => load_row::<L, Bf16>(table, row, out),
        _ => table.decode_row(row, out),
    }
}

#[inline(always)]
unsafe fn load_row<L: Lanes, S: Element>(table: &BitNetTensor, row: usize, out: &mut [f32]) {
    let bytes = out.len() * size_of::<S::Number>();
    let from = table.bytes()[row * table.row_bytes()..][..bytes].as_ptr().cast::<S::Number>();
    let (vectors, rest) = out.as_chunks_mut::<16>();
    for (i, to) in vectors.iter_mut().enumerate() {
        L::store(to.as_mut_ptr(), S::load::<L>(from.add(16 * i)));
    }
    if !rest.is_empty() {
        let last = load_rest::<L, S>(from.add(16 * vectors.len()), rest.len());
        store_partial::<L>(rest.as_mut_ptr(), last, rest.len());
    }
}

/// Loads `n < 16` stored values and fills the other lanes with zeros.
#[inline(always)]
unsafe fn load_rest<L: Lanes, S: Element>(from: *const S::Number, n: usize) -> L::F {
    let mut lanes = [S::Number::default(); 16];
    // As bytes, because a mapped file need not be aligned.
    std::ptr::copy_nonoverlapping(from.cast::<u8>(), lanes.as_mut_ptr().cast(), n * size_of::<S::Number>());
    S::load::<L>(lanes.as_ptr())
}

/// Computes the logits of the rows `rows` of the matrix; `scratch` holds [`DECODED_ROWS`] decoded rows.
#[inline(always)]
pub(crate) unsafe fn logits<L: Lanes>(a: &DenseLogits<'_>, rows: Range<usize>, scratch: &mut [f32]) {
    debug_assert!(rows.end <= a.table.rows(), "the rows must exist");
    debug_assert!(
        scratch.len() >= self::scratch(a.table.dtype(), a.table.cols()),
        "scratch must hold decoded rows"
    );
    // A few rows at a time stay in cache while all tokens pass over them.
    let step = if is_decoded(a.table.dtype()) { DECODED_ROWS } else { CACHED_ROWS };
    for first in rows.clone().step_by(step) {
        some_rows::<L>(a, first..rows.end.min(first + step), scratch);
    }
}

/// Computes the logits of some rows; if rows of this type are decoded, of at most [`DECODED_ROWS`].
#[inline(always)]
unsafe fn some_rows<L: Lanes>(a: &DenseLogits<'_>, rows: Range<usize>, scratch: &mut [f32]) {
    let n = a.table.row_bytes();
    let bytes = a.table.bytes()[rows.start * n..rows.end * n].as_ptr();
    match a.table.dtype() {
        DType::F32 => rows_of::<L, F32>(a, bytes.cast(), rows),
        DType::F16 => rows_of::<L, F16>(a, bytes.cast(), rows),
        DType::BF16 => rows_of::<L, Bf16>(a, bytes.cast(), rows),
        _ => {
            for (row, out) in rows.clone().zip(scratch.chunks_exact_mut(a.table.cols())) {
                a.table.decode_row(row, out);
            }
            rows_of::<L, F32>(a, scratch.as_ptr(), rows);
        }
    }
}

pub(crate) struct Rescore<'a> {
    /// Its `out` holds upper bounds.
    pub(crate) dense: DenseLogits<'a>,
    /// One per token: logits below it are not needed.
    pub(crate) thresholds: &'a [f32],
    /// Counts the logits that were computed.
    pub(crate) computed: &'a AtomicU64,
}

/// Replaces the upper bounds of the rows `rows` by logits, or by negative infinity if they are below the threshold.
#[inline(always)]
pub(crate) unsafe fn rescore<L: Lanes>(a: &Rescore<'_>, rows: Range<usize>, scratch: &mut [f32]) {
    let mut computed = 0;
    for (token, &threshold) in a.dense.tokens.iter().zip(a.thresholds) {
        let one = DenseLogits { tokens: &[*token], ..a.dense };
        for first in rows.clone().step_by(16) {
            let some = first..rows.end.min(first + 16);
            let bounds = one.out.slice(token * one.out_stride + one.column + some.start, some.len());
            // A NaN bound rules out nothing.
            let counts: [bool; 16] =
                array::from_fn(|i| bounds.get(i).is_some_and(|b| *b >= threshold || b.is_nan()));
            bounds.fill(f32::NEG_INFINITY);
            if counts != [false; 16] {
                for row in some.filter(|row| counts[row - first]) {
                    some_rows::<L>(&one, row..row + 1, scratch);
                    computed += 1;
                }
            }
        }
    }
    a.computed.fetch_add(computed, Relaxed);
}

/// Computes the logits of the rows `rows`, which are contiguous at `weights`.
#[inline(always)]
unsafe fn rows_of<L: Lanes, S: Element>(a: &DenseLogits<'_>, weights: *const S::Number, rows: Range<usize>) {
    // Registers determine the tile: 32 wide ones hold 16 sums, 16 narrow ones hold 4.
    let wide = L::WIDE_REGISTERS;
    let n = a.tokens.len();
    let tiles = n.div_ceil(if wide { 4 } else { 2 });
    for i in 0..tiles {
        let tokens = share(n, tiles, i);
        let (rows, t) = (rows.clone(), tokens.start);
        match (wide, tokens.len()) {
            (true, 1) => sweep::<L, S, 8, 1>(a, weights, rows, t),
            (true, 2) => sweep::<L, S, 8, 2>(a, weights, rows, t),
            (true, 3) => sweep::<L, S, 4, 3>(a, weights, rows, t),
            (true, _) => sweep::<L, S, 4, 4>(a, weights, rows, t),
            (false, 1) => sweep::<L, S, 4, 1>(a, weights, rows, t),
            (false, _) => sweep::<L, S, 2, 2>(a, weights, rows, t),
        }
    }
}

#[inline(always)]
unsafe fn sweep<L: Lanes, S: Element, const R: usize, const T: usize>(
    a: &DenseLogits<'_>,
    weights: *const S::Number,
    rows: Range<usize>,
    t: usize,
) {
    let (cols, n, mut row) = (a.table.cols(), rows.len(), 0);
    while row + R <= n {
        tile::<L, S, R, T>(a, weights.add(row * cols), rows.start + row, t);
        row += R;
    }
    while row < n {
        tile::<L, S, 1, T>(a, weights.add(row * cols), rows.start + row, t);
        row += 1;
    }
}

#[inline(always)]
unsafe fn tile<L: Lanes, S: Element, const R: usize, const T: usize>(
    a: &DenseLogits<'_>,
    weights: *const S::Number,
    row: usize,
    t: usize,
) {
    let cols = a.table.cols();
    let tokens: [usize; T] = array::from_fn(|i| a.tokens[t + i]);
    let x = tokens.map(|token| a.x[token * a.stride..][..a.stride].as_ptr());
    let mut sums = [[L::splat(0.0); T]; R];
    let whole = cols / 16 * 16;
    for i in (0..whole).step_by(16) {
        for (r, sums) in sums.iter_mut().enumerate() {
            let w = S::load::<L>(weights.add(r * cols + i));
            for (t, sum) in sums.iter_mut().enumerate() {
                *sum = L::fma(w, L::load(x[t].add(i)), *sum);
            }
        }
    }
    if whole < cols {
        for (r, sums) in sums.iter_mut().enumerate() {
            let w = load_rest::<L, S>(weights.add(r * cols + whole), cols - whole);
            for (t, sum) in sums.iter_mut().enumerate() {
                *sum = L::fma(w, L::load(x[t].add(whole)), *sum);
            }
        }
    }
    for (r, sums) in sums.into_iter().enumerate() {
        for (i, sum) in sums.into_iter().enumerate() {
            a.out.slice(tokens[i] * a.out_stride + a.column + row + r, 1)[0] = L::reduce_add(sum);
        }
    }
}
