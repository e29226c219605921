//! Runs every kernel on cases with known answers when a GPU is opened, so that a miscompiled kernel is found before it
//! corrupts a text.

use std::sync::{Mutex, PoisonError};

use bitnet_tensor::DType;

use super::{
    Driver, Gpu, GpuError, LoadedCode, Rows, cubins,
    layout::CopySize,
    table::{
        ARGMAX, ATTENTION_MERGE_D128, ATTENTION_MERGE_D256, ATTENTION_R16_D128, ATTENTION_R16_D128_INT8,
        ATTENTION_R16_D256, ATTENTION_R16_D256_INT8, ATTENTION_R32_D256, ATTENTION_R32_D256_INT8,
        ATTENTION_R64_D128, ATTENTION_R64_D128_INT8, BITLINEAR_T1, BITLINEAR_T8, BITLINEAR_T16,
        BITLINEAR_T32, BITLINEAR_T64, BITLINEAR_T128, BOUNDS_T4, BOUNDS_T16, BOUNDS_T32, BOUNDS_T64, CHOOSE,
        CONTEND, COPY_BLOCK, DELTA_INPUTS, DELTA_OUTPUTS, DELTA_RULE, DELTA_RULE_D128, DENSE, EDIT, EMBED,
        EMBED_TERNARY, EXPERTS_T8, EXPERTS_T32, EXPERTS_T64, GROUP_TOKENS, GROUPED_NORMED_ROWS_T1,
        GROUPED_NORMED_T1, GROUPED_T1, GROUPED_T8, GROUPED_T16, GROUPED_T32, GROUPED_T64, GROUPED_T128,
        HADAMARD, HEAD_T8, HEAD_T32, HEAD_T64, INT8_T8, INT8_T32, INT8_T64, Kernel, LEADERS, MIX, NORM_ADD,
        NORM_HIDDEN, NORM_QUANTIZE, NORM_ROPE_STORE, NORM_ROPE_STORE_INT8, NORM_ROWS, NORMED_ROWS_T1,
        NORMED_T1, PLANES, RESCORE, ROUTER, SAMPLE, SIGMOID_GATE,
    },
    upload::Uploads,
};
use crate::{
    Change, Drawn, Edits, Gate, Grouping, HeadCounts, KernelError, KvType, RowsKind, SamplingParams, Wanted,
    conformance::{Case, Failure, check_rounded},
    draw,
};

/// What determines the machine code of the kernels: GPU, compute capability, CUDA version of the driver, which set of texts is loaded,
/// and who compiled it. The texts are part of the program.
type MachineCode = (String, (u32, u32), i32, bool, LoadedCode);

/// Machine code that has passed all cases in this process. Nothing is stored on disk: the compiler of a driver can be
/// replaced without a change of version, and the cases take little time compared with the compilation.
static TRUSTED: Mutex<Vec<MachineCode>> = Mutex::new(Vec::new());

/// A case, and the kernels that it checks; earlier cases have checked the others that it needs.
type Check = (&'static [&'static Kernel], Case);

const fn product(n: usize) -> Case {
    // Enough features for splits, and rows for two tiles.
    Case::BitLinear { n, k: 1100, rows: &[130], group: None, column: 3, add: n.is_multiple_of(2) }
}

/// Several groups of activations; for one token, more tiles than one round adds.
const fn grouped(n: usize, group: usize) -> Case {
    let k = if n == 1 { 4300 } else { 500 };
    Case::BitLinear { n, k, rows: &[130], group: Some(group), column: 3, add: n.is_multiple_of(2) }
}

/// A block that ends within a group.
const fn int8(n: usize) -> Case {
    Case::Int8 { n, k: 480, rows: 130, column: 3, add: n.is_multiple_of(2) }
}

const fn head(n: usize) -> Case {
    Case::Head { n, width: 136, vocab: 150, dtype: DType::BF16 }
}

/// A row, and enough columns that bounds find the five highest logits.
const fn highest(n: usize) -> Case {
    Case::Top { n, width: 136, vocab: 2600, dtype: DType::BF16, all: false }
}

const fn attention(head_dim: usize, runs: &'static [(usize, usize)]) -> Case {
    Case::Attention { heads: 4, kv_heads: 2, head_dim, runs, odd: false }
}

/// Windows of which some begin in a later tile of keys than that of the run's first token.
const fn window(window: usize, head_dim: usize, runs: &'static [(usize, usize)]) -> Case {
    Case::Window { window, heads: 4, kv_heads: 2, head_dim, runs, odd: false }
}

/// Heads that have norms if groups of columns have scales.
const fn qkv(start: usize, n: usize, [heads, kv_heads, head_dim]: [usize; 3], group: Option<usize>) -> Case {
    Case::Qkv { start, n, k: 100, heads, kv_heads, head_dim, group, norms: group.is_some() }
}

const fn partial_rope() -> Case {
    Case::PartialRope { start: 63, n: 3, heads: 4, kv_heads: 2, head_dim: 72, rotary: 20, more: 128 }
}

const fn delta(key_heads: usize, value_heads: usize, head_dim: usize) -> Case {
    let runs = &[(5, 1), (0, 6)];
    Case::Delta { key_heads, value_heads, head_dim, taps: 4, runs, odd: false }
}

/// Drafts of which some, all and none are accepted.
const fn drafts(key_heads: usize, value_heads: usize, head_dim: usize) -> Case {
    let runs = &[[4, 3, 1], [5, 4, 4], [2, 1, 0], [2, 0, 0]];
    Case::DeltaDrafts { key_heads, value_heads, head_dim, taps: 4, sequences: 2, runs }
}

/// Columns of value heads in other places, where they are `grouped`, and levels of every kind.
const fn rotated(grouped: Option<(usize, usize)>, grouping: Grouping) -> Case {
    Case::Rotated { n: 3, width: 1536, block: 512, signs: true, grouped, norms: 1, grouping }
}

const CLAMPED: Gate = Gate::ClampedSilu { limit: 0.5 };

/// More experts than a turn takes, and more tokens at one than a tile.
const fn experts(n: usize, count: usize) -> Case {
    let (group, gate, dtype) = (if n == 1 { 128 } else { 64 }, CLAMPED, DType::F32);
    Case::Experts { n, hidden: 136, ffn: 72, count, used: 3, group, gate, dtype }
}

static CHECKS: [Check; 69] = [
    (&[&NORM_QUANTIZE], Case::NormQuantize { n: 9, width: 641, norms: 2, grouping: Grouping::Row }),
    (&[&NORM_QUANTIZE], Case::GateNormQuantize { n: 7, ffn: 300, gate: Gate::SquaredRelu, norms: 1 }),
    (&[&NORM_QUANTIZE], Case::GateNormQuantize { n: 2, ffn: 300, gate: Gate::Silu, norms: 1 }),
    (&[&NORM_QUANTIZE], Case::GateNormQuantize { n: 2, ffn: 300, gate: CLAMPED, norms: 0 }),
    (&[&NORM_QUANTIZE], Case::GateNormQuantize { n: 2, ffn: 300, gate: Gate::Gelu, norms: 1 }),
    (&[&NORM_ADD], Case::NormAdd { n: 2, width: 3200 }),
    (&[&BITLINEAR_T1], product(1)),
    (&[&NORMED_T1], Case::NormedProduct { k: 1100, rows: 100, group: None }),
    (&[&NORMED_ROWS_T1], Case::NormedProduct { k: 1100, rows: 300, group: None }),
    (&[&BITLINEAR_T8], product(7)),
    (&[&BITLINEAR_T8], product(8)),
    (&[&BITLINEAR_T16], product(13)),
    (&[&BITLINEAR_T32], product(29)),
    (&[&BITLINEAR_T64], product(60)),
    (&[&BITLINEAR_T128], product(70)),
    (&[&BITLINEAR_T1], Case::GateUp { n: 1, k: 200, ffn: 70, group: None, gate: Gate::SquaredRelu }),
    (&[&BITLINEAR_T8], Case::GateUp { n: 6, k: 200, ffn: 70, group: None, gate: Gate::Silu }),
    (&[&BITLINEAR_T1], Case::GateUp { n: 1, k: 200, ffn: 70, group: None, gate: Gate::Gelu }),
    (&[&BITLINEAR_T8], Case::GateUp { n: 6, k: 200, ffn: 70, group: None, gate: CLAMPED }),
    (&[&NORM_QUANTIZE], Case::NormQuantize { n: 9, width: 641, norms: 1, grouping: Grouping::Groups }),
    (&[&GROUPED_T1], grouped(1, 64)),
    (&[&GROUPED_T1], grouped(1, 128)),
    (&[&GROUPED_NORMED_T1], Case::NormedProduct { k: 1100, rows: 100, group: Some(64) }),
    (&[&GROUPED_NORMED_ROWS_T1], Case::NormedProduct { k: 1100, rows: 300, group: Some(64) }),
    (&[&GROUPED_NORMED_ROWS_T1], Case::NormedProduct { k: 1100, rows: 300, group: Some(128) }),
    (&[&GROUPED_T8], grouped(7, 64)),
    (&[&GROUPED_T8], grouped(8, 128)),
    (&[&GROUPED_T16], grouped(13, 128)),
    (&[&GROUPED_T32], grouped(29, 64)),
    (&[&GROUPED_T64], grouped(60, 128)),
    (&[&GROUPED_T128], grouped(70, 64)),
    (&[&INT8_T8], int8(1)),
    (&[&INT8_T8], int8(8)),
    (&[&INT8_T32], int8(29)),
    (&[&INT8_T64], int8(70)),
    (&[&EMBED, &NORM_ROWS, &HEAD_T8], head(3)),
    (&[&NORM_ROWS, &NORM_HIDDEN], Case::NormRows { n: 3, width: 300 }),
    (&[&HEAD_T32], head(21)),
    (&[&HEAD_T64], head(100)),
    (&[&PLANES, &BOUNDS_T4, &RESCORE], highest(3)),
    (&[&BOUNDS_T16], highest(9)),
    (&[&LEADERS, &CONTEND], Case::Race { n: 8, width: 136, vocab: 2600 }),
    (&[&BOUNDS_T32, &BOUNDS_T64], highest(20)),
    (
        &[&NORM_ROPE_STORE, &COPY_BLOCK, &ATTENTION_R16_D128, &ATTENTION_MERGE_D128],
        attention(128, &[(300, 1)]),
    ),
    (&[&ATTENTION_R64_D128], attention(128, &[(30, 70)])),
    (&[&ATTENTION_R16_D256, &ATTENTION_MERGE_D256], attention(256, &[(300, 1)])),
    (&[&ATTENTION_R32_D256], attention(256, &[(30, 40)])),
    (&[&ATTENTION_R16_D128, &ATTENTION_MERGE_D128], window(200, 128, &[(326, 3)])),
    (&[&ATTENTION_R64_D128], window(20, 128, &[(30, 70)])),
    (&[&ATTENTION_R16_D256, &ATTENTION_MERGE_D256], window(200, 256, &[(326, 3)])),
    (&[&ATTENTION_R32_D256], window(20, 256, &[(70, 40)])),
    (&[&BITLINEAR_T1], qkv(63, 1, [3, 1, 36], None)),
    (&[&BITLINEAR_T16], qkv(63, 9, [3, 1, 36], None)),
    (&[&EMBED_TERNARY], Case::TernaryHead { n: 3, width: 136, vocab: 150, group: 64 }),
    (&[&NORM_ROPE_STORE], qkv(63, 9, [3, 1, 36], Some(128))),
    (&[&BITLINEAR_T128], qkv(0, 70, [2, 2, 48], None)),
    (&[&NORM_ROPE_STORE], partial_rope()),
    (&[&SIGMOID_GATE], Case::SigmoidGate { n: 5, width: 300, column: 3 }),
    (&[&NORM_QUANTIZE], rotated(Some((4, 3)), Grouping::Groups)),
    (&[&NORM_QUANTIZE], rotated(None, Grouping::Row)),
    (&[&HADAMARD], Case::RotatedHead { n: 3, width: 1024, vocab: 40, group: 128, block: 1024 }),
    (&[&DELTA_INPUTS, &DELTA_RULE, &DELTA_OUTPUTS], delta(2, 4, 20)),
    (&[&DELTA_INPUTS, &DELTA_RULE, &DELTA_OUTPUTS], drafts(2, 4, 20)),
    (&[&DELTA_RULE_D128], delta(1, 2, 128)),
    (&[&DELTA_RULE_D128], drafts(1, 2, 128)),
    (&[&ROUTER, &CHOOSE, &GROUP_TOKENS, &EXPERTS_T8, &MIX], experts(1, 40)),
    (&[&EXPERTS_T32], experts(30, 8)),
    (&[&EXPERTS_T64], experts(50, 5)),
    (&[&DENSE], Case::Dense { n: 3, width: 300, rows: 33, column: 3, dtype: DType::BF16 }),
];

/// Cases with a cache of int8.
static INT8_CHECKS: [Check; 10] = [
    (&[&NORM_ROPE_STORE_INT8, &ATTENTION_R16_D128_INT8], attention(128, &[(300, 1)])),
    (&[&ATTENTION_R64_D128_INT8], attention(128, &[(30, 70)])),
    (&[&ATTENTION_R16_D256_INT8], attention(256, &[(300, 1)])),
    (&[&ATTENTION_R32_D256_INT8], attention(256, &[(30, 40)])),
    (&[&ATTENTION_R16_D128_INT8], window(200, 128, &[(326, 3)])),
    (&[&ATTENTION_R64_D128_INT8], window(20, 128, &[(30, 70)])),
    (&[&ATTENTION_R16_D256_INT8], window(200, 256, &[(326, 3)])),
    (&[&ATTENTION_R32_D256_INT8], window(20, 256, &[(70, 40)])),
    (&[&NORM_ROPE_STORE_INT8], qkv(63, 9, [3, 1, 36], Some(128))),
    (&[&NORM_ROPE_STORE_INT8], partial_rope()),
];

impl<D: Driver> Gpu<D> {
    /// Checks every kernel, once per process for the same GPU and driver.
    ///
    /// # Errors
    /// The name of the first kernel whose results differ from the reference.
    pub(super) fn self_test(&mut self) -> Result<(), GpuError> {
        let info = self.driver.info();
        let code = (info.name.clone(), info.capability, info.driver, info.overlap, info.code.clone());
        let trusted = || TRUSTED.lock().unwrap_or_else(PoisonError::into_inner);
        if !info.known_answers || !self.driver.compiles() || trusted().contains(&code) {
            return Ok(());
        }
        for (kv, checks) in [(KvType::Int8, &INT8_CHECKS[..]), (KvType::Bf16, &CHECKS)] {
            self.kv = kv;
            for &(kernels, case) in checks {
                match check_rounded(self, case) {
                    Ok(()) => {}
                    Err(Failure::Backend { source: KernelError::Gpu(error), .. }) => return Err(error),
                    Err(failure) => return Err(self.wrong(kernels, failure.to_string())),
                }
            }
        }
        self.try_draws()?;
        self.finish()?;
        // The model starts without what the cases left.
        (self.uploads, self.logits, self.drawn) = (Uploads::default(), None, None);
        (self.head_input, self.head_width) = (None, 0);
        (self.shortlist, self.largest_copy, self.head) = (None, CopySize::default(), HeadCounts::default());
        self.send(self.computed.address(), &[0; 8])?;
        (self.mixed, self.mixed_len, self.mixture, self.mixes) = (None, 0, None, None);
        trusted().push(code);
        Ok(())
    }

    /// Checks rows with a token so likely that every rule draws it, and rows where the arrival times decide.
    fn try_draws(&mut self) -> Result<(), GpuError> {
        let vocab = 5000;
        let open =
            SamplingParams { temperature: 3.0, seed: 0x1234_5678_9ABC, choice: 7, ..SamplingParams::GREEDY };
        let params = [
            SamplingParams { position: 70_000, ..open },
            SamplingParams { top_p: 0.8, position: 5, ..open },
            SamplingParams { top_k: 300, min_p: 0.01, position: 6, ..open },
            SamplingParams { temperature: 0.05, top_k: 50, ..SamplingParams::GREEDY },
            SamplingParams { temperature: 0.05, top_p: 0.9, ..SamplingParams::GREEDY },
            SamplingParams { temperature: 1.0, min_p: 1.0, ..SamplingParams::GREEDY },
            SamplingParams { temperature: 0.05, ..SamplingParams::GREEDY },
        ];
        let top = |row: usize| 4999 - 611 * row;
        let values = (0..params.len() * vocab).map(|i| {
            let (row, token) = (i / vocab, i % vocab);
            if token == top(row) { 9.0 } else { ((token * 37 + row) % 101) as f32 / 20.0 }
        });
        let values: Vec<f32> = values.collect();
        let mut logits = self.rows(params.len(), vocab, RowsKind::Residual)?;
        self.write_rows(&mut logits, &values)?;
        self.compare_draws(&ARGMAX, &values, &[SamplingParams::GREEDY; 7], &logits)?;
        self.compare_draws(&SAMPLE, &values, &params, &logits)?;
        // The likely tokens of some rows forbidden, those of others less likely, and a mask of three quarters.
        let change = |row| Change { repetition: 1.5, less: 1.0, ..Change::none(top(row) as u32) };
        let mut changes: [Change; 7] = std::array::from_fn(change);
        changes[1].more = f32::NEG_INFINITY;
        let masks = vec![!0x1111_1111; vocab.div_ceil(32)];
        let wanted: [Wanted; 7] = std::array::from_fn(|row| {
            let (from, to) = (row as u32, row as u32 + 1);
            let mask = (row % 2 == 0 && top(row) % 4 > 0).then_some(0);
            Wanted::Changed { params: params[row], from, to, mask }
        });
        let edits = Edits { changes: &changes, masks: &masks };
        self.edit(&wanted, edits, &logits)?;
        let rows = wanted.iter().zip(values.chunks(vocab));
        let edited: Vec<f32> = rows.flat_map(|(wanted, row)| draw::edited(row, wanted, edits)).collect();
        self.compare_draws(&EDIT, &edited, &params, &logits)
    }

    /// Compares what is drawn from `logits`, which are `values`, with the rule.
    fn compare_draws(
        &mut self,
        kernel: &'static Kernel,
        values: &[f32],
        params: &[SamplingParams],
        logits: &Rows,
    ) -> Result<(), GpuError> {
        let drawn = self.draw_rows(params, logits)?;
        for (row, (&bytes, params)) in drawn.as_chunks().0.iter().zip(params).enumerate() {
            let expected = draw::drawn(&values[row * logits.width..][..logits.width], params);
            let drawn = Drawn::read(bytes);
            if drawn != expected {
                return Err(self.wrong(&[kernel], format!("row {row}: {drawn:?}, not {expected:?}")));
            }
        }
        Ok(())
    }

    fn wrong(&self, kernels: &[&Kernel], problem: String) -> GpuError {
        let info = self.driver.info();
        let names: Vec<&str> = kernels.iter().map(|kernel| kernel.name).collect();
        let (major, minor) = (info.driver / 1000, info.driver % 1000 / 10);
        let (name, texts) = (&info.name, info.texts());
        let code = match info.code.shipped {
            0 => String::new(),
            _ => format!(" from {}, which BITNET_GPU=compile ignores", cubins::FILE),
        };
        let seen =
            format!("on {name} with the driver for CUDA {major}.{minor} and {texts}{code} ({problem})");
        GpuError::WrongResult { kernel: names.join(" or "), seen }
    }
}
