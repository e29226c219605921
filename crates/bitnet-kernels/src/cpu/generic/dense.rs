//! Logits: dot products of activations with the rows of a dense matrix in whatever float type it is stored.
//!
//! A tile of rows and tokens hides the latency of the additions; each product keeps its own 16 partial sums, so
//! the tile's shape shows in no result. Block-quantised rows are decoded into scratch first.

use std::ops::Range;

use bitnet_tensor::{BitNetTensor, DType};

use crate::cpu::{buffer::Shared, lanes::Lanes};

/// Rows that are decoded to scratch at a time.
const DECODED_ROWS: usize = 8;

/// Rows that stay in cache while tokens pass over them.
const CACHED_ROWS: usize = 32;

/// Arguments of [`logits`].
pub(crate) struct DenseLogits<'a> {
    pub(crate) table: &'a BitNetTensor,
    /// `[n][stride]`, zeros after the last column.
    pub(crate) x: &'a [f32],
    pub(crate) stride: usize,
    pub(crate) n: usize,
    /// `[n][table.rows()]`
    pub(crate) out: Shared<'a, f32>,
}

/// Whether rows of this type are decoded to scratch before they are used.
fn is_decoded(dtype: DType) -> bool {
    !matches!(dtype, DType::F32 | DType::F16 | DType::BF16)
}

/// Floats of scratch that one thread needs.
pub(crate) fn scratch(table: &BitNetTensor) -> usize {
    if is_decoded(table.dtype()) { DECODED_ROWS * table.cols() } else { 0 }
}

/// How 16 stored values become f32.
trait Stored {
    const BYTES: usize;
    unsafe fn load<L: Lanes>(p: *const u8) -> L::F;
}

struct F32;
struct F16;
struct Bf16;

impl Stored for F32 {
    const BYTES: usize = 4;
    #[inline(always)]
    unsafe fn load<L: Lanes>(p: *const u8) -> L::F {
        L::load(p.cast())
    }
}

impl Stored for F16 {
    const BYTES: usize = 2;
    #[inline(always)]
    unsafe fn load<L: Lanes>(p: *const u8) -> L::F {
        L::load_f16(p.cast())
    }
}

impl Stored for Bf16 {
    const BYTES: usize = 2;
    #[inline(always)]
    unsafe fn load<L: Lanes>(p: *const u8) -> L::F {
        L::load_bf16(p.cast())
    }
}

/// The rows `rows` of the matrix; `scratch` holds [`DECODED_ROWS`] decoded rows.
#[inline(always)]
pub(crate) unsafe fn logits<L: Lanes>(a: &DenseLogits<'_>, rows: Range<usize>, scratch: &mut [f32]) {
    let bytes = |rows: &Range<usize>| {
        let n = a.table.row_bytes();
        a.table.bytes()[rows.start * n..rows.end * n].as_ptr()
    };
    let dtype = a.table.dtype();
    let decoded = is_decoded(dtype);
    // Few rows at a time stay in cache while all tokens pass over them.
    let step = if decoded { DECODED_ROWS } else { CACHED_ROWS };
    for first in rows.clone().step_by(step) {
        let some = first..rows.end.min(first + step);
        match dtype {
            DType::F32 => stored::<L, F32>(a, bytes(&some), some),
            DType::F16 => stored::<L, F16>(a, bytes(&some), some),
            DType::BF16 => stored::<L, Bf16>(a, bytes(&some), some),
            _ => {
                for (row, out) in some.clone().zip(scratch.chunks_exact_mut(a.table.cols())) {
                    a.table.decode_row(row, out);
                }
                stored::<L, F32>(a, scratch.as_ptr().cast(), some);
            }
        }
    }
}

/// Rows `rows` that lie one after another at `weights`.
#[inline(always)]
unsafe fn stored<L: Lanes, S: Stored>(a: &DenseLogits<'_>, weights: *const u8, rows: Range<usize>) {
    // Registers decide the tile: 32 wide ones hold 4 x 4 sums, 16 narrow ones 2 x 2.
    let wide = L::TILE.0 == 4;
    let tokens = if wide { 4 } else { 2 };
    let mut t = 0;
    while t + tokens <= a.n {
        if wide {
            sweep::<L, S, 4, 4>(a, weights, rows.clone(), t);
        } else {
            sweep::<L, S, 2, 2>(a, weights, rows.clone(), t);
        }
        t += tokens;
    }
    while t < a.n {
        if wide {
            sweep::<L, S, 8, 1>(a, weights, rows.clone(), t);
        } else {
            sweep::<L, S, 4, 1>(a, weights, rows.clone(), t);
        }
        t += 1;
    }
}

#[inline(always)]
unsafe fn sweep<L: Lanes, S: Stored, const R: usize, const T: usize>(
    a: &DenseLogits<'_>,
    weights: *const u8,
    rows: Range<usize>,
    t: usize,
) {
    let row_bytes = a.table.cols() * S::BYTES;
    let (n, mut row) = (rows.len(), 0);
    while row + R <= n {
        tile::<L, S, R, T>(a, weights.add(row * row_bytes), rows.start + row, t);
        row += R;
    }
    while row < n {
        tile::<L, S, 1, T>(a, weights.add(row * row_bytes), rows.start + row, t);
        row += 1;
    }
}

#[inline(always)]
unsafe fn tile<L: Lanes, S: Stored, const R: usize, const T: usize>(
    a: &DenseLogits<'_>,
    weights: *const u8,
    row: usize,
    t: usize,
) {
    let cols = a.table.cols();
    let x = a.x[t * a.stride..][..T * a.stride].as_ptr();
    let mut sums = [[L::splat(0.0); T]; R];
    let whole = cols / 16 * 16;
    for i in (0..whole).step_by(16) {
        for (r, sums) in sums.iter_mut().enumerate() {
            let w = S::load::<L>(weights.add((r * cols + i) * S::BYTES));
            for (t, sum) in sums.iter_mut().enumerate() {
                *sum = L::fma(w, L::load(x.add(t * a.stride + i)), *sum);
            }
        }
    }
    if whole < cols {
        for (r, sums) in sums.iter_mut().enumerate() {
            let mut rest = [0u8; 64];
            let from = weights.add((r * cols + whole) * S::BYTES);
            std::ptr::copy_nonoverlapping(from, rest.as_mut_ptr(), (cols - whole) * S::BYTES);
            let w = S::load::<L>(rest.as_ptr());
            for (t, sum) in sums.iter_mut().enumerate() {
                *sum = L::fma(w, L::load(x.add(t * a.stride + whole)), *sum);
            }
        }
    }
    for (r, sums) in sums.into_iter().enumerate() {
        for (i, sum) in sums.into_iter().enumerate() {
            a.out.slice((t + i) * a.table.rows() + row + r, 1)[0] = L::reduce_add(sum);
        }
    }
}
