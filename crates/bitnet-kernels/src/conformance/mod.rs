//! One table of cases that compares every backend with the [`Reference`].
//!
//! Tests run it for every instruction set and several thread counts, and `bitnet doctor` runs it on the user's machine.
//! The CPU passes a case if integers, scales and floats equal the reference bit for bit (any NaN equals any NaN). A GPU
//! is compared with the reference that rounds where it does ([`Reference::bf16`]); attention and logits, which its
//! matrix units add in their own order, may differ within a bound.

mod experts;
mod race;
mod recurrent;

use bitnet_tensor::{BitNetTensor, DType, SharedBytes, TernaryTensor};
use half::f16;

use crate::{
    BLOCK_TOKENS, CopyForm, Cpu, Edits, Gate, Grouping, HeadCopy, HeadNorms, Inspect, Int8Matrix, Isa,
    KernelError, KvShape, KvType, Norm, Norms, Panels, Reference, RowOrder, RowsKind, Run, Step, Wanted,
    Weights,
};

/// One operation at one shape: `n` tokens of `k` or `width` input features. `rows` are the output features of each range
/// with a scale, or of each part of a stack; `group` is the number of columns that share a scale, 64 or 128 (in every second
/// part of a stack 128), or `None` if whole rows do; `column` is the first output column; `norms` is the number of norms before
/// or after the operation. `add` adds the result, times a factor, to the output. `start` is the position of the first token.
#[derive(Debug, Clone, Copy, PartialEq)]
#[allow(missing_docs, reason = "the enum describes its fields")]
pub enum Case {
    /// [`Backend::bit_linear`](crate::Backend::bit_linear) into columns `column..`.
    BitLinear { n: usize, k: usize, rows: &'static [usize], group: Option<usize>, column: usize, add: bool },
    /// [`Backend::bit_linear`](crate::Backend::bit_linear) with an int8 matrix.
    Int8 { n: usize, k: usize, rows: usize, column: usize, add: bool },
    /// [`Backend::bit_linear_gate_norm_quantize`](crate::Backend::bit_linear_gate_norm_quantize) with an int8 matrix.
    Int8GateUp { n: usize, k: usize, ffn: usize },
    /// [`Backend::norm_rows`](crate::Backend::norm_rows) of rows of each kind: the first ones, and some of them twice.
    NormRows { n: usize, width: usize },
    /// [`Backend::norm_quantize`](crate::Backend::norm_quantize) with 0, 1 or 2 norms.
    NormQuantize { n: usize, width: usize, norms: usize, grouping: Grouping },
    /// [`Backend::norm_quantize`](crate::Backend::norm_quantize) of one row with one norm, then two products of it, of which the second is added: a GPU may
    /// compute the norm in the first. In groups, only the residual has a norm.
    NormedProduct { k: usize, rows: usize, group: Option<usize> },
    /// [`Backend::gate_norm_quantize`](crate::Backend::gate_norm_quantize) with 0 or 1 norm.
    GateNormQuantize { n: usize, ffn: usize, gate: Gate, norms: usize },
    /// [`Backend::bit_linear_gate_norm_quantize`](crate::Backend::bit_linear_gate_norm_quantize).
    GateUp { n: usize, k: usize, ffn: usize, group: Option<usize>, gate: Gate },
    /// [`Backend::bit_linear_norm_rope_store`](crate::Backend::bit_linear_norm_rope_store) of one sequence, with or without norms of query and key heads, then
    /// [`Backend::attention`](crate::Backend::attention) over it.
    Qkv {
        start: usize,
        n: usize,
        k: usize,
        heads: usize,
        kv_heads: usize,
        head_dim: usize,
        group: Option<usize>,
        norms: bool,
    },
    /// [`Backend::norm_rope_store`](crate::Backend::norm_rope_store), [`Backend::copy_block`](crate::Backend::copy_block) and [`Backend::attention`](crate::Backend::attention) of several sequences in one step.
    /// `runs` are `(start, tokens)` of each, with earlier positions in the cache. `odd` adds rows that are zero, tiny,
    /// huge, infinite or NaN.
    Attention { heads: usize, kv_heads: usize, head_dim: usize, runs: &'static [(usize, usize)], odd: bool },
    /// [`Backend::embed`](crate::Backend::embed), [`Backend::norm_rows`](crate::Backend::norm_rows) and [`Backend::logits`](crate::Backend::logits) with one table.
    Head { n: usize, width: usize, vocab: usize, dtype: DType },
    /// The highest logits, by [`Backend::logits`](crate::Backend::logits), of ordinary and extreme rows; the table has rows of every kind, each
    /// of them twice. With `all`, every fourth row needs all logits.
    Top { n: usize, width: usize, vocab: usize, dtype: DType, all: bool },
    /// Tokens drawn by [`Backend::logits`](crate::Backend::logits) from the same table and rows, with changes and masks.
    Race { n: usize, width: usize, vocab: usize },
    /// [`Backend::embed`](crate::Backend::embed), [`Backend::norm_rows`](crate::Backend::norm_rows), and [`Backend::logits`](crate::Backend::logits) with a ternary table.
    TernaryHead { n: usize, width: usize, vocab: usize, group: usize },
    /// [`Backend::bit_linear`](crate::Backend::bit_linear) and [`Backend::embed`](crate::Backend::embed) with factors other than 1.
    Factors { n: usize, width: usize, rows: usize },
    /// [`Backend::gated_delta`](crate::Backend::gated_delta) of several sequences in one step, after [`Backend::copy_state`](crate::Backend::copy_state), and a token more of each.
    /// `runs` are `(start, tokens)` of each; earlier tokens come in previous steps, of which the last has as many tokens as
    /// taps less two, so that a run reads inputs from its state and from itself. Slots hold other sequences before. `odd`
    /// adds rows that are zero, tiny, huge, infinite or NaN.
    Delta {
        key_heads: usize,
        value_heads: usize,
        head_dim: usize,
        taps: usize,
        runs: &'static [(usize, usize)],
        odd: bool,
    },
    /// [`Backend::gated_delta`](crate::Backend::gated_delta) of several sequences with drafts, of which some are rejected. `runs` are
    /// `[tokens, drafts among them, accepted drafts]` of one sequence after the other in each of its steps; each
    /// sequence begins at the entry after that of the one before.
    DeltaDrafts {
        key_heads: usize,
        value_heads: usize,
        head_dim: usize,
        taps: usize,
        sequences: usize,
        runs: &'static [[usize; 3]],
    },
    /// [`Backend::norm_quantize`](crate::Backend::norm_quantize), with 0 or 1 norm, and [`Backend::gate_norm_quantize`](crate::Backend::gate_norm_quantize) with a [`Rotate`](crate::Rotate) of
    /// `width` columns in blocks; `grouped` are key heads, and value heads per key head.
    Rotated {
        n: usize,
        width: usize,
        block: usize,
        signs: bool,
        grouped: Option<(usize, usize)>,
        norms: usize,
        grouping: Grouping,
    },
    /// [`Case::TernaryHead`] with a table that contains a transform.
    RotatedHead { n: usize, width: usize, vocab: usize, group: usize, block: usize },
    /// [`Backend::sigmoid_gate`](crate::Backend::sigmoid_gate) with gates from `column` on.
    SigmoidGate { n: usize, width: usize, column: usize },
    /// [`Backend::dense`](crate::Backend::dense) into columns `column..`.
    Dense { n: usize, width: usize, rows: usize, column: usize, dtype: DType },
    /// [`Backend::norm_rope_store`](crate::Backend::norm_rope_store), with norms, and [`Backend::attention`](crate::Backend::attention) of one sequence whose heads are rotated in their
    /// first `rotary` dimensions, and whose rows end with `more` other columns.
    PartialRope {
        start: usize,
        n: usize,
        heads: usize,
        kv_heads: usize,
        head_dim: usize,
        rotary: usize,
        more: usize,
    },
    /// [`Case::Attention`] of tokens that attend to the last `window` keys.
    Window {
        window: usize,
        heads: usize,
        kv_heads: usize,
        head_dim: usize,
        runs: &'static [(usize, usize)],
        odd: bool,
    },
    /// [`mix_experts`](crate::Backend::mix_experts) of ordinary and extreme rows; `used` of `count` experts of width `ffn`, of which two have
    /// the same row in the router, of type `dtype`.
    Experts {
        n: usize,
        hidden: usize,
        ffn: usize,
        count: usize,
        used: usize,
        group: usize,
        gate: Gate,
        dtype: DType,
    },
    /// [`norm_add`](crate::Backend::norm_add).
    NormAdd { n: usize, width: usize },
}

impl Case {
    /// Whether the case depends on the type of the cache.
    pub fn caches(&self) -> bool {
        matches!(
            self,
            Case::Qkv { .. } | Case::Attention { .. } | Case::PartialRope { .. } | Case::Window { .. }
        )
    }
}

/// All of [`cases`], and longer texts with drafts, which would take a simulator too long.
pub fn cpu_cases() -> Vec<Case> {
    let mut cases = cases();
    recurrent::add_cpu_cases(&mut cases);
    cases
}

/// All cases of operations that every backend has: truncated real shapes, every tail, full and partial tiles, and values
/// that overflow or are NaN.
pub fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    let shapes: &[(usize, &'static [usize])] = &[
        (1, &[1]),
        (16, &[64]),
        (17, &[3, 1]),
        (48, &[48, 16, 16]),
        (100, &[130]),
        (192, &[352, 352]),
        (256, &[256, 128, 128]),
        (2560, &[129]),
        (3200, &[100]),
        (6912, &[65]),
        (8640, &[64, 1]),
    ];
    for &(k, rows) in shapes {
        for n in [1, 2, 3, 4, 5, 6, 7, 8, 9, 13, 33] {
            let column = if n % 3 == 0 { 5 } else { 0 };
            cases.push(Case::BitLinear { n, k, rows, group: None, column, add: n % 2 == 0 });
        }
    }
    for (k, rows) in
        [(1, 1), (17, 4), (300, 130), (1025, 40), (1100, 300), (2560, 65), (6912, 20), (8640, 16)]
    {
        cases.push(Case::NormedProduct { k, rows, group: None });
    }
    for (k, rows) in
        [(4, 1), (128, 17), (300, 130), (1028, 40), (1100, 300), (4096, 20), (6144, 16), (8644, 33)]
    {
        for group in [64, 128] {
            cases.push(Case::NormedProduct { k, rows, group: Some(group) });
        }
    }
    for width in [1, 15, 16, 17, 192, 256, 2560, 6912, 8640] {
        for norms in 0..3 {
            cases.push(Case::NormQuantize { n: 9, width, norms, grouping: Grouping::Row });
        }
    }
    for ffn in [1, 16, 100, 352, 6912, 8640] {
        for gate in [Gate::SquaredRelu, Gate::Silu] {
            cases.push(Case::GateNormQuantize { n: 7, ffn, gate, norms: ffn % 2 });
            cases.push(Case::GateNormQuantize { n: 2, ffn, gate, norms: 1 });
        }
    }
    for (n, k, ffn) in [(1, 17, 1), (2, 100, 24), (9, 256, 352), (33, 192, 100)] {
        let gates = [Gate::SquaredRelu, Gate::Silu];
        cases.extend(gates.map(|gate| Case::GateUp { n, k, ffn, group: None, gate }));
    }
    for (start, n, k, heads, kv_heads, head_dim) in
        [(0, 1, 16, 1, 1, 2), (63, 2, 100, 3, 1, 36), (200, 9, 256, 4, 2, 64), (0, 70, 192, 4, 4, 48)]
    {
        let (group, norms) = (None, false);
        cases.push(Case::Qkv { start, n, k, heads, kv_heads, head_dim, group, norms });
    }
    attention_cases(&mut cases);
    head_cases(&mut cases);
    grouped_cases(&mut cases);
    int8_cases(&mut cases);
    recurrent::add_cases(&mut cases);
    experts::add_cases(&mut cases);
    cases
}

/// Adds sequences that begin, continue and end within blocks and segments, with heads of several widths.
fn attention_cases(cases: &mut Vec<Case>) {
    let heads =
        [(1, 1, 2), (4, 1, 48), (4, 2, 64), (5, 5, 32), (4, 2, 80), (7, 1, 100), (12, 4, 256), (20, 5, 128)];
    for (heads, kv_heads, head_dim) in heads {
        // The last have few tokens after many keys, so that threads share the segments of each.
        let runs: &[&[(usize, usize)]] = &[
            &[(0, 1)],
            &[(0, 17), (15, 1), (63, 2)],
            &[(255, 1), (256, 1), (257, 3), (600, 2), (0, 70)],
            &[(767, 1), (40, 1)],
        ];
        let attention = |&runs| Case::Attention { heads, kv_heads, head_dim, runs, odd: false };
        cases.extend(runs.iter().map(attention));
    }
    for runs in [&[(0, 1); 7][..], &[(0, 2), (0, 2), (0, 2), (0, 1)]] {
        cases.push(Case::Attention { heads: 2, kv_heads: 1, head_dim: 36, runs, odd: true });
    }
}

/// Adds output heads of every type, with all logits and with the highest.
fn head_cases(cases: &mut Vec<Case>) {
    for dtype in [DType::F32, DType::F16, DType::BF16] {
        for (n, width, vocab) in [(1, 17, 5), (3, 192, 509), (8, 256, 67), (13, 100, 40)] {
            cases.push(Case::Head { n, width, vocab, dtype });
        }
    }
    // Several threads embed as many tokens.
    cases.push(Case::Head { n: 70, width: 512, vocab: 40, dtype: DType::BF16 });
    for dtype in [DType::Q8_0, DType::Q6K, DType::Q5K, DType::Q4K, DType::Q4_0, DType::Q4_1, DType::Q5_1] {
        cases.push(Case::Head { n: 5, width: 512, vocab: 43, dtype });
    }
    for (n, width, vocab, dtype) in [
        (1, 192, 3000, DType::BF16),
        (2, 100, 1999, DType::F16),
        (9, 192, 4100, DType::F32),
        (14, 17, 700, DType::BF16),
        (33, 64, 2048, DType::BF16),
        (3, 512, 1030, DType::Q8_0),
        (1, 256, 1030, DType::Q4K),
        (4, 512, 90, DType::Q4K),
        (1, 96, 1030, DType::Q4_1),
        (4, 320, 90, DType::Q4_1),
        (1, 256, 1030, DType::Q6K),
        (5, 512, 90, DType::Q6K),
    ] {
        cases.push(Case::Top { n, width, vocab, dtype, all: true });
    }
    // All logits of many ids in order would show where a GPU rounds two that nearly tie the other way.
    for (n, width, vocab, dtype) in [
        (4, 200, 2700, DType::BF16),
        (9, 264, 5200, DType::BF16),
        (33, 130, 5121, DType::BF16),
        (14, 512, 700, DType::Q4K),
        (14, 192, 700, DType::Q4_1),
        (14, 512, 700, DType::Q6K),
    ] {
        cases.push(Case::Top { n, width, vocab, dtype, all: false });
    }
    race::add_cases(cases);
}

/// Adds the cases for a scale per group of columns: whole and partial groups, of both sizes and mixed.
fn grouped_cases(cases: &mut Vec<Case>) {
    let shapes: &[(usize, &'static [usize], usize)] = &[
        (1, &[1], 128),
        (16, &[64], 64),
        (65, &[17], 64),
        (100, &[130], 128),
        (128, &[64], 128),
        (192, &[3, 1], 128),
        (192, &[65], 64),
        (256, &[256, 128, 128], 64),
        (320, &[129], 64),
        (320, &[65], 128),
        (1000, &[40, 40], 64),
        (2560, &[129], 128),
        (4096, &[65], 128),
        (12_288, &[64, 1], 128),
    ];
    for &(k, rows, group) in shapes {
        for n in [1, 2, 3, 4, 5, 6, 7, 8, 9, 13, 33] {
            let column = if n % 3 == 0 { 5 } else { 0 };
            cases.push(Case::BitLinear { n, k, rows, group: Some(group), column, add: n % 2 == 0 });
        }
    }
    for width in [1, 16, 64, 65, 100, 128, 192, 320, 2560, 12_288] {
        for norms in 0..3 {
            cases.push(Case::NormQuantize { n: 9, width, norms, grouping: Grouping::Groups });
        }
    }
    for (n, k, ffn, group) in [(1, 17, 1, 128), (2, 192, 24, 64), (9, 256, 352, 128), (33, 320, 100, 64)] {
        let gates = [Gate::SquaredRelu, Gate::Silu];
        cases.extend(gates.map(|gate| Case::GateUp { n, k, ffn, group: Some(group), gate }));
    }
    for (start, n, k, heads, kv_heads, head_dim) in
        [(0, 1, 16, 1, 1, 2), (63, 2, 192, 3, 1, 36), (200, 9, 256, 4, 2, 96), (0, 70, 320, 4, 4, 128)]
    {
        let (group, norms) = (Some(128), true);
        cases.push(Case::Qkv { start, n, k, heads, kv_heads, head_dim, group, norms });
    }
    for (n, width, vocab, group) in [(1, 17, 5, 128), (3, 192, 509, 64), (8, 256, 67, 128), (13, 320, 40, 64)]
    {
        cases.push(Case::TernaryHead { n, width, vocab, group });
    }
    cases.extend([(1, 100, 20), (6, 256, 130)].map(|(n, width, rows)| Case::Factors { n, width, rows }));
}

/// Adds int8 matrices that end within a group or a tile, and norms of gathered rows.
fn int8_cases(cases: &mut Vec<Case>) {
    for (k, rows) in [(32, 1), (64, 17), (128, 64), (160, 130), (480, 65), (2560, 129), (10_240, 20)] {
        for n in [1, 2, 7, 8, 9, 33, 65] {
            let column = if n % 3 == 0 { 5 } else { 0 };
            cases.push(Case::Int8 { n, k, rows, column, add: n % 2 == 0 });
        }
    }
    for (n, k, ffn) in [(1, 32, 1), (2, 192, 24), (9, 256, 352), (33, 320, 100)] {
        cases.push(Case::Int8GateUp { n, k, ffn });
    }
    for (n, width) in [(1, 1), (2, 17), (9, 192), (7, 2560), (3, 5120), (2, 6913)] {
        cases.push(Case::NormRows { n, width });
    }
}

/// A disagreement between a backend and the reference.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[allow(missing_docs, reason = "every message names its fields")]
pub enum Failure {
    /// A value differs from the reference.
    #[error("{case:?}: {what} {index} is {actual}, the reference says {expected}")]
    Value { case: Box<Case>, what: &'static str, index: usize, actual: f64, expected: f64 },
    /// The backend could not run the case.
    #[error("{case:?}: {source}")]
    Backend { case: Box<Case>, source: KernelError },
}

/// All outputs of a case: name, values, and their bits.
type Results = Vec<(&'static str, Vec<f64>, Vec<u32>)>;

/// What the reference gives in one case. The reference is slower than a CPU, and gives the same for every instruction set
/// and number of threads.
#[derive(Debug)]
pub struct Expected {
    case: Case,
    kv: KvType,
    results: Result<Results, KernelError>,
}

impl Expected {
    /// Runs the case on the reference with this type of cache.
    pub fn of(case: Case, kv: KvType) -> Self {
        Expected { case, kv, results: expected(&mut Reference::default().keeping(kv), case) }
    }

    /// Runs the case on a CPU with the same type of cache. All bits must agree.
    ///
    /// # Errors
    /// The first value that differs.
    ///
    /// # Panics
    /// If the CPU has another type of cache.
    pub fn check(&self, cpu: &mut Cpu) -> Result<(), Failure> {
        assert_eq!(cpu.kv_type(), self.kv, "the type of the cache decides the values");
        compare(cpu, &self.results, self.case, |_| None)
    }
}

/// Runs one case on the CPU and on the reference with the same type of cache. All bits must agree.
///
/// # Errors
/// The first value that differs.
pub fn check(cpu: &mut Cpu, case: Case) -> Result<(), Failure> {
    Expected::of(case, cpu.kv_type()).check(cpu)
}

/// Runs one case on a backend that stores bf16 between operations, and on [`Reference::bf16`] with the same type of cache.
///
/// Attention may differ by 2^-7 of the largest value of the case (a value may round to bf16 the other way) and logits
/// by 2^-16 of it (products are added in another order). Everything else must agree in all bits.
///
/// # Errors
/// The first value that differs by more than that.
pub fn check_rounded(backend: &mut impl Inspect, case: Case) -> Result<(), Failure> {
    let bound = |what: &str| match what {
        "attention" => Some(1.0 / 128.0),
        "logit" => Some(1.0 / 65536.0),
        _ => None,
    };
    let kv = backend.info().kv.parse();
    let kv = kv.map_err(|source| Failure::Backend { case: Box::new(case), source })?;
    compare(backend, &expected(&mut Reference::bf16().keeping(kv), case), case, bound)
}

/// Compares a backend with what the reference gave. `bound` returns how much the values of an output may differ, as a
/// fraction of the largest of them, or `None` if all bits must agree.
fn compare(
    backend: &mut impl Inspect,
    expected: &Result<Results, KernelError>,
    case: Case,
    bound: impl Fn(&str) -> Option<f64>,
) -> Result<(), Failure> {
    let run = |source| Failure::Backend { case: Box::new(case), source };
    let actual = outputs(backend, case).map_err(run)?;
    let expected = expected.as_ref().map_err(|source| run(source.clone()))?;
    assert_eq!(actual.len(), expected.len(), "{case:?}: both backends must have the same outputs");
    for ((what, a, a_bits), (name, e, e_bits)) in actual.into_iter().zip(expected) {
        assert_eq!(
            (what, a.len()),
            (*name, e.len()),
            "{case:?}: both backends must have outputs of the same shape"
        );
        let finite = e.iter().filter(|e| e.is_finite());
        let allowed = bound(what).map(|part| part * finite.fold(0.0, |m: f64, e| m.max(e.abs())));
        let differs = |&i: &usize| {
            let near = allowed.is_some_and(|allowed| (a[i] - e[i]).abs() <= allowed);
            a_bits[i] != e_bits[i] && !(a[i].is_nan() && e[i].is_nan()) && !near
        };
        if let Some(index) = (0..a.len()).find(differs) {
            return Err(Failure::Value {
                case: Box::new(case),
                what,
                index,
                actual: a[index],
                expected: e[index],
            });
        }
    }
    Ok(())
}

/// What the reference gives. Not generic, so that other crates do not compile the reference again.
fn expected(reference: &mut Reference, case: Case) -> Result<Results, KernelError> {
    outputs(reference, case)
}

/// A small generator of reproducible values (SplitMix64).
struct Values(u64);

impl Values {
    fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    fn unit(&mut self) -> f32 {
        (self.bits() >> 40) as f32 / (1 << 23) as f32 - 1.0
    }

    fn many(&mut self, n: usize) -> Vec<f32> {
        (0..n).map(|_| self.unit()).collect()
    }

    /// Rows of different magnitudes and kinds: ordinary, all zero, tiny, huge, all equal, one with an infinity, one
    /// with a NaN.
    fn rows(&mut self, n: usize, width: usize) -> Vec<f32> {
        let mut values = self.many(n * width);
        for (i, row) in values.chunks_exact_mut(width).enumerate() {
            match i {
                1 => row.fill(0.0),
                2 => row.iter_mut().for_each(|x| *x *= 1e-7),
                3 => row.iter_mut().for_each(|x| *x *= 1e18),
                4 => row.fill(-3.0),
                5 => row[width / 2] = f32::INFINITY,
                6 => row[width - 1] = f32::NAN,
                _ => row.iter_mut().for_each(|x| *x *= 4.0),
            }
        }
        values
    }

    /// A stack of parts of these rows.
    fn ternary(&mut self, rows: &[usize], k: usize, group: Option<usize>) -> TernaryTensor {
        let parts = rows.iter().enumerate().map(|(part, &rows)| match group {
            None => self.with_row_scale(rows, k),
            Some(group) => self.with_groups(rows, k, if part % 2 == 0 { group } else { TernaryTensor::WIDE }),
        });
        TernaryTensor::stack(&parts.collect::<Vec<_>>()).expect("one width")
    }

    fn with_row_scale(&mut self, rows: usize, k: usize) -> TernaryTensor {
        let trits: Vec<i8> = (0..rows * k).map(|_| (self.bits() % 3) as i8 - 1).collect();
        TernaryTensor::from_trits(rows, k, &trits, 0.25 + self.unit().abs()).expect("trits")
    }

    /// Random codes after a first row of only code 3, and scales of every kind: ordinary, zero, negative, subnormal,
    /// large.
    fn with_groups(&mut self, rows: usize, k: usize, group: usize) -> TernaryTensor {
        let mut codes: Vec<u8> = (0..rows * k.div_ceil(4)).map(|_| self.bits() as u8).collect();
        codes[..k.div_ceil(4)].fill(0xFF);
        let scales = (0..rows * TernaryTensor::groups(k, group)).map(|_| self.scale()).collect();
        TernaryTensor::from_groups(rows, k, group, codes, scales).expect("codes and scales of the shape")
    }

    /// Random codes after a first row of only -128, and scales of every kind.
    fn int8(&mut self, rows: usize, k: usize) -> Int8Matrix {
        let mut bytes = Vec::with_capacity(rows * k / 32 * 34);
        for block in 0..rows * k / 32 {
            bytes.extend(self.scale().to_le_bytes());
            bytes.extend((0..32).map(|_| if block < k / 32 { 0x80 } else { self.bits() as u8 }));
        }
        let stored = BitNetTensor::new(DType::Q8_0, [rows, k], SharedBytes::new(bytes)).expect("blocks");
        let mut matrix = Int8Matrix::with_capacity(rows, k).expect("memory");
        matrix.append(&stored, 0..k);
        matrix
    }

    fn scale(&mut self) -> f16 {
        let ordinary = f16::from_f32(0.01 + 0.03 * self.unit().abs());
        match self.bits() % 16 {
            0 => f16::ZERO,
            1 | 2 => -ordinary,
            3 => f16::from_bits(1 + self.bits() as u16 % 0x3FF),
            4 => f16::MAX,
            _ => ordinary,
        }
    }

    fn table(&mut self, rows: usize, cols: usize, dtype: DType) -> BitNetTensor {
        let values = self.many(rows * cols);
        let bytes: Vec<u8> = match dtype {
            DType::F32 => values.iter().flat_map(|v| v.to_le_bytes()).collect(),
            DType::F16 => values.iter().flat_map(|&v| f16::from_f32(v).to_le_bytes()).collect(),
            DType::BF16 => values.iter().flat_map(|&v| half::bf16::from_f32(v).to_le_bytes()).collect(),
            // Any bytes are valid blocks, as long as the scales are finite.
            _ => {
                let block = dtype.block_bytes();
                let mut bytes: Vec<u8> =
                    (0..rows * cols / dtype.block_elements() * block).map(|_| self.bits() as u8).collect();
                for b in bytes.chunks_exact_mut(block) {
                    for at in match dtype {
                        DType::Q6K => &[209][..],
                        DType::Q4K | DType::Q5K | DType::Q4_1 | DType::Q5_1 => &[1, 3][..],
                        _ => &[1][..],
                    } {
                        b[*at] &= 0b1011_1111;
                    }
                }
                bytes
            }
        };
        BitNetTensor::new(dtype, [rows, cols], SharedBytes::new(bytes)).expect("bytes of the shape")
    }
}

fn floats(what: &'static str, values: Vec<f32>) -> (&'static str, Vec<f64>, Vec<u32>) {
    let bits = values.iter().map(|v| v.to_bits()).collect();
    (what, values.into_iter().map(f64::from).collect(), bits)
}

fn integers(what: &'static str, values: Vec<i32>) -> (&'static str, Vec<f64>, Vec<u32>) {
    let bits = values.iter().map(|&v| v as u32).collect();
    (what, values.into_iter().map(f64::from).collect(), bits)
}

fn quantised<B: Inspect>(b: &mut B, x: &B::Int8Rows, n: usize) -> Result<Results, KernelError> {
    let (values, multipliers, sums) = b.read_int8_rows(x, n)?;
    let values = values.into_iter().map(i32::from).collect();
    Ok(vec![integers("int8 value", values), floats("multiplier", multipliers), integers("sum", sums)])
}

fn norms<B: Inspect>(
    b: &mut B,
    v: &mut Values,
    n: usize,
    width: usize,
) -> Result<Vec<Norm<B::Gain>>, KernelError> {
    (0..n).map(|i| Ok(Norm { gain: b.gain(&v.many(width))?, eps: [1e-5, 1e-6][i] })).collect()
}

fn in_order<G>(norms: &[Norm<G>]) -> Norms<'_, G> {
    [norms.first(), norms.get(1)]
}

fn outputs<B: Inspect>(b: &mut B, case: Case) -> Result<Results, KernelError> {
    let v = &mut Values(7);
    match case {
        Case::BitLinear { n, k, rows, group, column, add } => {
            let w = b.linear(v.ternary(rows, k, group), RowOrder::Plain)?;
            product(b, v, &w, [n, k, rows.iter().sum()], Grouping::of(group), column, add.then_some(0.7))
        }
        Case::Int8 { n, k, rows, column, add } => {
            let w = b.linear(v.int8(rows, k), RowOrder::Plain)?;
            product(b, v, &w, [n, k, rows], Grouping::Groups, column, add.then_some(0.7))
        }
        Case::Int8GateUp { n, k, ffn } => {
            let w = b.linear(v.int8(2 * ffn, k), RowOrder::GateUp)?;
            gate_up(b, v, &w, [n, k, ffn], Grouping::Groups, Gate::Silu)
        }
        Case::NormRows { n, width } => norm_rows(b, v, n, width),
        Case::NormQuantize { n, width, norms, grouping } => quantize(b, v, [n, width, norms], grouping),
        Case::NormedProduct { k, rows, group } => {
            let w = b.linear(v.ternary(&[rows], k, group), RowOrder::Plain)?;
            normed_product(b, v, &w, [k, rows], Grouping::of(group))
        }
        Case::GateNormQuantize { n, ffn, gate, norms: count } => {
            let norms = norms(b, v, count, ffn)?;
            let mut x = b.rows(n, 2 * ffn, RowsKind::Intermediate)?;
            b.write(&mut x, &v.rows(n, 2 * ffn))?;
            let mut q = b.int8_rows(n, ffn, Grouping::Row)?;
            b.gate_norm_quantize(n, &x, gate, in_order(&norms), None, &mut q)?;
            quantised(b, &q, n)
        }
        Case::GateUp { n, k, ffn, group, gate } => {
            let w = b.linear(from_file(&v.ternary(&[ffn, ffn], k, group))?, RowOrder::GateUp)?;
            gate_up(b, v, &w, [n, k, ffn], Grouping::of(group), gate)
        }
        Case::Qkv { start, n, k, heads, kv_heads, head_dim, group, norms: normed } => {
            let parts = [heads * head_dim, kv_heads * head_dim, kv_heads * head_dim];
            let w = b.linear(v.ternary(&parts, k, group), RowOrder::Rope { head_dim })?;
            let norms = if normed { norms(b, v, 2, head_dim)? } else { Vec::new() };
            let norms = norms.first_chunk().map(|[queries, keys]| [queries, keys]);
            let shape = KvShape { blocks: 0, kv_heads, head_dim };
            qkv(b, v, &w, [start, n, k, heads], shape, Grouping::of(group), norms)
        }
        Case::TernaryHead { n, width, vocab, group } => ternary_head(b, v, [n, width, vocab], group),
        Case::Factors { n, width, rows } => factors(b, v, [n, width, rows]),
        Case::Attention { heads, kv_heads, head_dim, runs, odd } => {
            attention(b, v, heads, KvShape { blocks: 0, kv_heads, head_dim }, runs, (None, odd))
        }
        Case::Top { n, width, vocab, dtype, all } => top(b, v, [n, width, vocab], dtype, all),
        Case::Race { n, width, vocab } => race::outputs(b, v, [n, width, vocab]),
        Case::Head { n, width, vocab, dtype } => {
            let table = b.table(&v.table(vocab, width, dtype))?;
            head(b, v, &table, [n, width, vocab], 1.0)
        }
        Case::Window { .. } | Case::Experts { .. } | Case::NormAdd { .. } => experts::outputs(b, v, case),
        _ => recurrent::outputs(b, v, case),
    }
}

/// Applies norms to ordinary and extreme rows of each kind, and quantises them.
fn quantize<B: Inspect>(
    b: &mut B,
    v: &mut Values,
    [n, width, count]: [usize; 3],
    grouping: Grouping,
) -> Result<Results, KernelError> {
    let norms = norms(b, v, count, width)?;
    let values = v.rows(n, width);
    let mut results = Vec::new();
    for kind in [RowsKind::Residual, RowsKind::Intermediate] {
        let mut x = b.rows(n, width, kind)?;
        b.write(&mut x, &values)?;
        let mut q = b.int8_rows(n, width, grouping)?;
        b.norm_quantize(n, &x, in_order(&norms), None, &mut q)?;
        results.append(&mut quantised(b, &q, n)?);
    }
    Ok(results)
}

/// Multiplies ordinary and extreme rows of each kind by a matrix, one at a time and twice, after a norm; in groups, rows that
/// are not the residual have none.
fn normed_product<B: Inspect>(
    b: &mut B,
    v: &mut Values,
    w: &B::Linear,
    [k, rows]: [usize; 2],
    grouping: Grouping,
) -> Result<Results, KernelError> {
    let norm = norms(b, v, 1, k)?.remove(0);
    let values = v.rows(8, k);
    let mut results = Vec::new();
    for kind in [RowsKind::Residual, RowsKind::Intermediate] {
        let mut x = b.rows(1, k, kind)?;
        let mut q = b.int8_rows(1, k, grouping)?;
        let mut out = b.rows(1, rows, RowsKind::Residual)?;
        let norm = (kind == RowsKind::Residual || grouping == Grouping::Row).then_some(&norm);
        for row in values.chunks_exact(k) {
            b.write(&mut x, row)?;
            b.norm_quantize(1, &x, [norm, None], None, &mut q)?;
            b.bit_linear(1, &q, w, &mut out, 0, None)?;
            b.bit_linear(1, &q, w, &mut out, 0, Some(0.7))?;
            results.push(floats("output", b.read(&out, 1)?));
            results.append(&mut quantised(b, &q, 1)?);
        }
    }
    Ok(results)
}

/// Adds products and embeds tokens with factors other than 1.
fn factors<B: Inspect>(
    b: &mut B,
    v: &mut Values,
    [n, width, rows]: [usize; 3],
) -> Result<Results, KernelError> {
    let w = b.linear(v.ternary(&[rows], width, None), RowOrder::Plain)?;
    let mut results = product(b, v, &w, [n, width, rows], Grouping::Row, 1, Some(-1.3))?;
    let table = b.table(&v.table(rows, width, DType::F16))?;
    let mut x = b.rows(n, width, RowsKind::Residual)?;
    let tokens: Vec<u32> = (0..n as u32).map(|i| i * 7 % rows as u32).collect();
    b.embed(&table, &tokens, 12.0, &mut x)?;
    results.push(floats("embedding", b.read(&x, n)?));
    Ok(results)
}

/// Multiplies ordinary and extreme rows by a matrix, into columns `column..`.
fn product<B: Inspect>(
    b: &mut B,
    v: &mut Values,
    w: &B::Linear,
    [n, k, rows]: [usize; 3],
    grouping: Grouping,
    column: usize,
    add: Option<f32>,
) -> Result<Results, KernelError> {
    let mut x = b.rows(n, k, RowsKind::Residual)?;
    b.write(&mut x, &v.rows(n, k))?;
    let mut q = b.int8_rows(n, k, grouping)?;
    b.norm_quantize(n, &x, [None, None], None, &mut q)?;
    // Sums are added to the residual; plain products are passed between operations.
    let kind = if add.is_some() { RowsKind::Residual } else { RowsKind::Intermediate };
    let mut out = b.rows(n, column + rows + 3, kind)?;
    b.write(&mut out, &v.many(n * (column + rows + 3)))?;
    b.bit_linear(n, &q, w, &mut out, column, add)?;
    Ok(vec![floats("output", b.read(&out, n)?)])
}

fn norm_rows<B: Inspect>(b: &mut B, v: &mut Values, n: usize, width: usize) -> Result<Results, KernelError> {
    let norm = norms(b, v, 1, width)?.remove(0);
    let values = v.rows(n, width);
    let mut results = Vec::new();
    for kind in [RowsKind::Residual, RowsKind::Intermediate] {
        let mut x = b.rows(n, width, kind)?;
        b.write(&mut x, &values)?;
        for rows in [(0..n).collect(), (0..2 * n).map(|i| (3 * i + 1) % n).collect::<Vec<_>>()] {
            let mut out = b.rows(rows.len(), width, RowsKind::Intermediate)?;
            b.norm_rows(&rows, &x, &norm, &mut out)?;
            results.push(floats("normed", b.read(&out, rows.len())?));
        }
    }
    Ok(results)
}

fn gate_up<B: Inspect>(
    b: &mut B,
    v: &mut Values,
    w: &B::Linear,
    [n, k, ffn]: [usize; 3],
    grouping: Grouping,
    gate: Gate,
) -> Result<Results, KernelError> {
    let norm = norms(b, v, 1, ffn)?.remove(0);
    let q = input(b, v, (n, k), grouping)?;
    let mut gate_up = b.rows(n, 2 * ffn, RowsKind::Intermediate)?;
    let mut out = b.int8_rows(n, ffn, grouping)?;
    b.bit_linear_gate_norm_quantize(n, &q, w, gate, [Some(&norm), None], None, &mut gate_up, &mut out)?;
    quantised(b, &out, n)
}

/// Computes queries, keys and values of one sequence, whose first `start` tokens come in a previous step, and its
/// attention.
fn qkv<B: Inspect>(
    b: &mut B,
    v: &mut Values,
    w: &B::Linear,
    [start, n, k, heads]: [usize; 4],
    shape: KvShape,
    grouping: Grouping,
    norms: HeadNorms<'_, B::Gain>,
) -> Result<Results, KernelError> {
    let queries = heads * shape.head_dim;
    let width = queries + 2 * shape.kv_heads * shape.head_dim;
    let rope = rope(b, v, start + n, shape.head_dim)?;
    let blocks: Vec<u32> = (0..(start + n).div_ceil(BLOCK_TOKENS) as u32).rev().collect();
    let mut kv = b.kv(KvShape { blocks: blocks.len(), ..shape })?;
    let mut project = |b: &mut B, first: usize, len: usize| {
        let q = input(b, v, (len, k), grouping)?;
        let mut qkv = b.rows(len, width, RowsKind::Intermediate)?;
        let runs = [Run { tokens: 0..len, start: first, blocks: 0..blocks.len(), ..Run::default() }];
        let step = Step::new(&runs, &blocks);
        b.bit_linear_norm_rope_store(step, &q, w, heads, &rope, norms, &mut qkv, &mut kv)?;
        Ok::<_, KernelError>((runs, qkv))
    };
    if start > 0 {
        project(b, 0, start)?;
    }
    let (runs, qkv) = project(b, start, n)?;
    let mut out = b.rows(n, queries, RowsKind::Intermediate)?;
    b.attention(Step::new(&runs, &blocks), &qkv, &kv, &mut out)?;
    let rotated = b.read(&qkv, n)?;
    let rotated = rotated.chunks_exact(width).flat_map(|row| &row[..queries]);
    Ok(vec![floats("query", rotated.copied().collect()), floats("attention", b.read(&out, n)?)])
}

/// The logits of the first rows, one for each of `wanted`.
fn logits<B: Inspect>(
    b: &mut B,
    x: &B::Rows,
    table: &B::Table,
    wanted: &[Wanted],
    vocab: usize,
) -> Result<Vec<f32>, KernelError> {
    let mut logits = vec![0.0; wanted.len() * vocab];
    b.logits(x, table, wanted, Edits::default(), &mut logits, &mut vec![None; wanted.len()])?;
    Ok(logits)
}

/// Embeds tokens with a factor, normalises some of the rows, and computes their logits.
fn head<B: Inspect>(
    b: &mut B,
    v: &mut Values,
    table: &B::Table,
    [n, width, vocab]: [usize; 3],
    factor: f32,
) -> Result<Results, KernelError> {
    let norm = norms(b, v, 1, width)?.remove(0);
    let tokens: Vec<u32> = (0..n).map(|_| (v.bits() % vocab as u64) as u32).collect();
    let mut x = b.rows(n, width, RowsKind::Residual)?;
    let mut y = b.rows(n, width, RowsKind::Intermediate)?;
    b.embed(table, &tokens, factor, &mut x)?;
    let embedded = b.read(&x, n)?;
    let rows: Vec<usize> = (0..n).rev().step_by(2).collect();
    b.norm_rows(&rows, &x, &norm, &mut y)?;
    let logits = logits(b, &y, table, &vec![Wanted::All; rows.len()], vocab)?;
    let normed = b.read(&y, rows.len())?;
    Ok(vec![floats("embedding", embedded), floats("norm", normed), floats("logit", logits)])
}

/// Runs [`head`], and finds the highest logits, with a ternary table: first packed by the backend, then read as from
/// a file.
fn ternary_head<B: Inspect>(
    b: &mut B,
    v: &mut Values,
    shape: [usize; 3],
    group: usize,
) -> Result<Results, KernelError> {
    let [n, width, vocab] = shape;
    let weights = v.ternary(&[vocab], width, Some(group));
    let mut table = b.table(&weights)?;
    let mut results = head(b, v, &table, shape, 12.0)?;
    table = b.table(Weights::from(from_file(&weights)?))?;
    b.prepare_shortlist(&mut table, None)?;
    let mut x = b.rows(n, width, RowsKind::Intermediate)?;
    b.write(&mut x, &v.rows(n, width))?;
    let logits = logits(b, &x, &table, &vec![Wanted::Top(1); n], vocab)?;
    results.push(floats("logit", logits));
    Ok(results)
}

/// A table that has a copy for bounds and rows of every kind, each of them twice; and rows to multiply it with.
fn doubled<B: Inspect>(
    b: &mut B,
    v: &mut Values,
    [n, width, vocab]: [usize; 3],
    dtype: DType,
) -> Result<(B::Table, B::Rows), KernelError> {
    let mut weights = v.table(vocab.div_ceil(2), width, dtype);
    let row_bytes = weights.row_bytes();
    if dtype == DType::F32 {
        let mut rows = v.rows(vocab.div_ceil(2), width);
        // Row 6 has a NaN, which would be the highest logit of all: replace it.
        rows[6 * width..7 * width].fill(1e-30);
        weights = BitNetTensor::from_f32([vocab.div_ceil(2), width], &rows).expect("values of the shape");
    }
    let bytes = [weights.bytes(), weights.bytes()].concat()[..vocab * row_bytes].to_vec();
    let weights = BitNetTensor::new(dtype, [vocab, width], SharedBytes::new(bytes)).expect("two halves");
    let mut table = b.table(&weights)?;
    let stored = match dtype {
        DType::F16 | DType::Q4K | DType::Q4_1 | DType::Q6K => head_copy_from_file(&weights)?,
        _ => None,
    };
    b.prepare_shortlist(&mut table, stored)?;
    let mut x = b.rows(n, width, RowsKind::Intermediate)?;
    b.write(&mut x, &v.rows(n, width))?;
    Ok((table, x))
}

/// Returns the 1, 2, 5 or all highest logits of each row, highest first and equal ones by id.
fn top<B: Inspect>(
    b: &mut B,
    v: &mut Values,
    [n, width, vocab]: [usize; 3],
    dtype: DType,
    all: bool,
) -> Result<Results, KernelError> {
    let (table, x) = doubled(b, v, [n, width, vocab], dtype)?;
    let kinds = [Wanted::Top(1), Wanted::Top(2), Wanted::Top(5), Wanted::All];
    let kinds = if all { &kinds[..] } else { &kinds[..3] };
    let wanted: Vec<Wanted> = kinds.iter().copied().cycle().take(n).collect();
    let logits = logits(b, &x, &table, &wanted, vocab)?;
    let (mut ids, mut values) = (Vec::new(), Vec::new());
    for (row, wanted) in logits.chunks_exact(vocab).zip(&wanted) {
        let mut order: Vec<usize> = (0..vocab).collect();
        let finite = row.iter().all(|x| !x.is_nan());
        order.sort_by(|&a, &b| if finite { row[b].total_cmp(&row[a]) } else { a.cmp(&b) });
        order.truncate(wanted.highest());
        ids.extend(order.iter().map(|&id| id as i32));
        values.extend(order.iter().map(|&id| row[id]));
    }
    Ok(vec![integers("token", ids), floats("logit", values)])
}

/// The panels of a matrix, as read from a file.
fn from_file(weights: &TernaryTensor) -> Result<Panels, KernelError> {
    let packed = Cpu::new(Isa::named("scalar")?, 1)?.panels(weights)?;
    let bytes = SharedBytes::new(packed.stored().collect::<Vec<_>>().concat());
    Panels::from_stored(weights.rows(), weights.cols(), weights.group(), &bytes)
}

/// The int8 copy of a table, as stored in a file.
fn head_copy_from_file(weights: &BitNetTensor) -> Result<Option<HeadCopy>, KernelError> {
    let Some(copy) = Cpu::new(Isa::named("scalar")?, 1)?.copy_head(weights)? else { return Ok(None) };
    let bytes = SharedBytes::new(copy.stored().collect::<Vec<_>>().concat());
    Ok(Some(HeadCopy::from_stored(CopyForm::of(weights.dtype()), weights.rows(), weights.cols(), &bytes)?))
}

/// Quantised ordinary rows.
fn input<B: Inspect>(
    b: &mut B,
    v: &mut Values,
    (n, k): (usize, usize),
    grouping: Grouping,
) -> Result<B::Int8Rows, KernelError> {
    let mut x = b.rows(n, k, RowsKind::Residual)?;
    b.write(&mut x, &v.many(n * k))?;
    let mut q = b.int8_rows(n, k, grouping)?;
    b.norm_quantize(n, &x, [None, None], None, &mut q)?;
    Ok(q)
}

fn rope<B: Inspect>(
    b: &mut B,
    v: &mut Values,
    positions: usize,
    head_dim: usize,
) -> Result<B::Rope, KernelError> {
    let angles = v.many(positions * head_dim / 2);
    let cos: Vec<f32> = angles.iter().map(|a| 1.0 - a * a / 2.0).collect();
    b.rope(&cos, &angles, head_dim)
}

fn attention<B: Inspect>(
    b: &mut B,
    v: &mut Values,
    heads: usize,
    shape: KvShape,
    sequences: &[(usize, usize)],
    (window, odd): (Option<usize>, bool),
) -> Result<Results, KernelError> {
    let (kv_heads, dim) = (shape.kv_heads, shape.head_dim);
    let width = (heads + 2 * kv_heads) * dim;
    let longest = sequences.iter().map(|(start, len)| start + len).max().unwrap_or(0);
    let rope = rope(b, v, longest, dim)?;
    // Blocks are assigned from the end, so that neighbours in a sequence are not neighbours in memory.
    let needed = |&(start, len): &(usize, usize)| (start + len).div_ceil(BLOCK_TOKENS);
    let count: usize = sequences.iter().map(needed).sum();
    let mut blocks: Vec<u32> = (0..count as u32).rev().collect();
    let mut kv = b.kv(KvShape { blocks: count + 2, ..shape })?;
    let (mut past, mut step) = (Vec::new(), Vec::new());
    let (mut past_rows, mut step_rows, mut first) = (0, 0, 0);
    for s @ &(start, len) in sequences {
        let table = first..first + needed(s);
        first = table.end;
        if start > 0 {
            past.push(Run {
                tokens: past_rows..past_rows + start,
                start: 0,
                blocks: table.clone(),
                ..Run::default()
            });
            past_rows += start;
        }
        step.push(Run { tokens: step_rows..step_rows + len, start, blocks: table, ..Run::default() });
        step_rows += len;
    }
    let mut before = b.rows(past_rows.max(1), width, RowsKind::Intermediate)?;
    b.write(&mut before, &v.many(past_rows * width))?;
    b.norm_rope_store(Step::new(&past, &blocks), heads, &rope, None, &mut before, &mut kv)?;
    // Moves the first block: attention must find its keys and values in the copy.
    b.copy_block(&mut kv, blocks[0], count as u32)?;
    blocks[0] = count as u32;
    // Moves the last block through memory of the host.
    let mut bytes = vec![0; B::block_bytes(&kv)];
    b.read_block(&mut kv, blocks[count - 1], &mut bytes)?;
    b.write_block(&mut kv, count as u32 + 1, &bytes)?;
    blocks[count - 1] = count as u32 + 1;
    let mut qkv = b.rows(step_rows, width, RowsKind::Intermediate)?;
    let values = if odd {
        v.rows(step_rows, width)
    } else {
        v.many(step_rows * width).iter().map(|x| 3.0 * x).collect()
    };
    b.write(&mut qkv, &values)?;
    let step = Step::new(&step, &blocks);
    b.norm_rope_store(step, heads, &rope, None, &mut qkv, &mut kv)?;
    let mut out = b.rows(step_rows, heads * dim, RowsKind::Intermediate)?;
    b.attention(step.within(window), &qkv, &kv, &mut out)?;
    Ok(vec![floats("query", b.read(&qkv, step_rows)?), floats("attention", b.read(&out, step_rows)?)])
}
