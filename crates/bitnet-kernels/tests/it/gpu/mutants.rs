//! Kernels with one defect each, which must fault or give other values: a defect that no test notices is not tested.

use std::collections::{BTreeMap, BTreeSet};

use bitnet_kernels::{
    Gate,
    gpu::{
        GpuError,
        table::{
            ARGMAX, ATTENTION_MERGE_D128, ATTENTION_R16_D128, ATTENTION_R64_D128, BITLINEAR_T1, BITLINEAR_T8,
            BITLINEAR_T16, BITLINEAR_T32, BITLINEAR_T64, BITLINEAR_T128, BOUNDS_T4, BOUNDS_T16, BOUNDS_T32,
            BOUNDS_T64, COPY_BLOCK, DELTA_INPUTS, DELTA_OUTPUTS, DELTA_RULE, DELTA_RULE_D128, DENSE, EMBED,
            EMBED_TERNARY, GROUPED_NORMED_ROWS_T1, GROUPED_NORMED_T1, GROUPED_T1, GROUPED_T8, GROUPED_T16,
            GROUPED_T32, GROUPED_T64, GROUPED_T128, HADAMARD, HEAD_T8, HEAD_T32, HEAD_T64, KERNELS, Kernel,
            NORM_QUANTIZE, NORM_ROWS, NORMED_ROWS_T1, NORMED_T1, ROPE_STORE, SAMPLE, SETTLE, SIGMOID_GATE,
            SPLIT,
        },
    },
};
use bitnet_tests::Simulator;

use super::{
    attention::{HIDDEN, Heads, attend, bits, sequence},
    bit_linear::Product,
    logits::{logits, values},
    small,
};

/// Runs the operation of a kernel and returns all values that it computed.
type Run = fn(Simulator) -> Result<Vec<u32>, GpuError>;

/// A kernel, the defect, the original text and its replacement, and the operation that must notice it.
type Mutant = (&'static Kernel, &'static str, &'static str, &'static str, Run);

/// Enough features for several splits on the simulator's four processors; twice on one backend, added to the output.
fn split_product<const N: usize>(simulator: Simulator) -> Result<Vec<u32>, GpuError> {
    let values = Product::new(N, 2048, &[128, 39]).stored(simulator, true)?;
    Ok(values.iter().map(|x| x.to_bits()).collect())
}

/// Fewer features than the minimum of a split, stored.
fn whole_product<const N: usize>(simulator: Simulator) -> Result<Vec<u32>, GpuError> {
    let values = Product::new(N, 800, &[128, 39]).stored(simulator, false)?;
    Ok(values.iter().map(|x| x.to_bits()).collect())
}

/// As many tiles of features as the kernel for one token has warps.
fn one_token(simulator: Simulator) -> Result<Vec<u32>, GpuError> {
    let values = Product::new(1, 1024, &[40]).stored(simulator, false)?;
    Ok(values.iter().map(|x| x.to_bits()).collect())
}

fn gates(simulator: Simulator) -> Result<Vec<u32>, GpuError> {
    let product = Product::new(6, 200, &[70, 70]);
    Ok(product.gated(simulator, Gate::SquaredRelu)?.iter().map(|x| x.to_bits()).collect())
}

fn head<const N: usize, const WIDTH: usize>(simulator: Simulator) -> Result<Vec<u32>, GpuError> {
    let logits = logits(simulator, WIDTH, 150, &values(N * WIDTH, 0.7), &values(150 * WIDTH, 0.3))?;
    Ok(logits.iter().map(|x| x.to_bits()).collect())
}

const HEADS: Heads = Heads { queries: 3, keys: 1, dim: 100 };

/// Three tiles of keys, the last one partial. The second step begins within a tile, so that blocks of rows do too.
fn prompt(simulator: Simulator) -> Result<Vec<u32>, GpuError> {
    Ok(bits(&attend(simulator, HEADS, &[sequence(150, 1)], &[&[(0, 0, 10)], &[(0, 10, 150)]])?.0))
}

fn short_prompt(simulator: Simulator) -> Result<Vec<u32>, GpuError> {
    Ok(bits(&attend(simulator, HEADS, &[sequence(6, 1)], &[&[(0, 0, 6)]])?.0))
}

/// The same, with one NaN token.
fn poisoned_prompt(simulator: Simulator) -> Result<Vec<u32>, GpuError> {
    let mut tokens = sequence(90, 1);
    tokens[40 * HIDDEN] = f32::NAN;
    Ok(bits(&attend(simulator, HEADS, &[tokens], &[&[(0, 0, 90)]])?.0))
}

/// Single tokens after a prompt of seven tiles of keys; with several processors, they are split.
fn decode(simulator: Simulator) -> Result<Vec<u32>, GpuError> {
    let steps: &[&[_]] = &[&[(0, 0, 390), (1, 0, 20)], &[(0, 390, 391), (1, 20, 21)], &[(0, 391, 392)]];
    Ok(bits(&attend(simulator, HEADS, &[sequence(392, 1), sequence(21, 2)], steps)?.0))
}

const MUTANTS: &[Mutant] = &[
    (
        &BITLINEAR_T64,
        "a wait that lets one copy more be under way",
        "wait_group 2;",
        "wait_group 3;",
        split_product::<60>,
    ),
    (
        &BITLINEAR_T8,
        "a wait that lets one copy more be under way",
        "wait_group 4;",
        "wait_group 5;",
        split_product::<5>,
    ),
    (
        &BITLINEAR_T64,
        "no barrier between a stage's copies and its use",
        "  cp.async.wait_group 2;\n  bar.sync 0;\n",
        "  cp.async.wait_group 2;\n",
        split_product::<60>,
    ),
    (
        &BITLINEAR_T128,
        "no barrier between the last stage and the sums",
        "  cp.async.wait_all;\n  bar.sync 0;\n",
        "  cp.async.wait_all;\n",
        whole_product::<70>,
    ),
    (
        &BITLINEAR_T32,
        "sums read before all are there",
        "STAGED:\n  bar.sync 0;\n",
        "STAGED:\n",
        whole_product::<20>,
    ),
    (&BITLINEAR_T16, "a wrong shift", "shr.u32 a2, w1, 4;", "shr.u32 a2, w1, 6;", whole_product::<11>),
    (&BITLINEAR_T16, "no swizzle", "  xor.b32 t3, t3, t2;\n", "", whole_product::<11>),
    (
        &BITLINEAR_T32,
        "the wrong half of an atom",
        "xor.b32 t3, t3, 64;",
        "xor.b32 t3, t3, 32;",
        whole_product::<20>,
    ),
    (
        &BITLINEAR_T64,
        "rows of another warp",
        "shr.u32 t2, warp, 1;",
        "shr.u32 t2, warp, 2;",
        whole_product::<60>,
    ),
    (
        &BITLINEAR_T8,
        "the sum of the activations left in",
        "  sub.s32 s1, s1, sum_x0;\n",
        "",
        whole_product::<5>,
    ),
    (
        &BITLINEAR_T8,
        "the scale before the division",
        "  cvt.rn.f32.s32 y0, s0;\n",
        "  cvt.rn.f32.s32 y0, s0;\n  mul.rn.f32 y0, y0, scale0;\n  mov.f32 scale0, 0f3F800000;\n",
        whole_product::<5>,
    ),
    (
        &BITLINEAR_T128,
        "a quotient without its corrections",
        "  fma.rn.f32 y0, r0, reciprocal0, p;\n",
        "  mul.rn.f32 y0, y0, reciprocal0;\n",
        whole_product::<70>,
    ),
    (
        &BITLINEAR_T8,
        "one row too many",
        "setp.lt.u32 has0, t1, t3;",
        "setp.le.u32 has0, t1, t3;",
        whole_product::<5>,
    ),
    (
        &BITLINEAR_T32,
        "the last token taken for the one before",
        "sub.u32 last, n, 1;",
        "sub.u32 last, n, 2;",
        whole_product::<20>,
    ),
    (
        &BITLINEAR_T32,
        "a token in flight taken for another",
        "min.u32 tok1, t0, last;",
        "mov.u32 tok1, tok0;",
        whole_product::<20>,
    ),
    (&BITLINEAR_T64, "parts not released", "  membar.gl;\n  atom", "  atom", split_product::<60>),
    (&BITLINEAR_T64, "parts not acquired", "t1;\n  membar.gl;\n", "t1;\n", split_product::<60>),
    (
        &BITLINEAR_T8,
        "a ticket before all parts are written",
        "  @p0 bra PART;\n  bar.sync 0;\n",
        "  @p0 bra PART;\n",
        split_product::<5>,
    ),
    (
        &BITLINEAR_T8,
        "the second of two parts left out",
        "add.s32 s0, s0, more0;",
        "add.s32 s0, s0, 0;",
        split_product::<5>,
    ),
    (
        &BITLINEAR_T8,
        "the multiplier of the warp's first token for its second",
        "mov.b32 multiplier1, part1;",
        "mov.b32 multiplier1, part0;",
        whole_product::<5>,
    ),
    (
        &BITLINEAR_T8,
        "a counter that does not return to zero",
        "sub.u32 t1, splits, 1;",
        "mov.u32 t1, splits;",
        split_product::<5>,
    ),
    (
        &BITLINEAR_T16,
        "a part of another split",
        "mad.lo.u32 t0, split, 16, t;",
        "mad.lo.u32 t0, split, 8, t;",
        split_product::<11>,
    ),
    (
        &BITLINEAR_T1,
        "a product with the wrong activations",
        "{a0, a1, a2, a3}, {x0, x2}",
        "{a0, a1, a2, a3}, {x2, x0}",
        whole_product::<1>,
    ),
    (
        &BITLINEAR_T1,
        "nothing in the place of the tile beyond an odd number",
        "  @p1 st.shared.v4.b32 [x_end], {zero, zero, zero, zero};\n",
        "",
        whole_product::<1>,
    ),
    (
        &BITLINEAR_T1,
        "one turn fewer",
        "  setp.gt.s32 p0, left, 8;\n  @!p0 bra",
        "  setp.gt.s32 p0, left, 16;\n  @!p0 bra",
        split_product::<1>,
    ),
    (
        &BITLINEAR_T1,
        "one tile of features too many",
        "  setp.gt.s32 p0, left, 8;\n  @!p0 bra",
        "  setp.ge.s32 p0, left, 8;\n  @!p0 bra",
        one_token,
    ),
    (
        &BITLINEAR_T1,
        "activations used before they are there",
        "  cp.async.wait_all;\n  bar.sync 0;\n",
        "  bar.sync 0;\n",
        whole_product::<1>,
    ),
    (
        &BITLINEAR_T1,
        "no barrier before warps are added",
        "  bar.sync 0;\n  setp.gt.u32 p0, lane, 7;\n",
        "  setp.gt.u32 p0, lane, 7;\n",
        whole_product::<1>,
    ),
    (
        &BITLINEAR_T1,
        "rows that stay four times as large",
        "shr.s32 c2, c2, 6;",
        "shr.s32 c2, c2, 4;",
        whole_product::<1>,
    ),
    (
        &BITLINEAR_T8,
        "a gate open the wrong way",
        "setp.gt.f32 p0, 0f00000000, y0;",
        "setp.lt.f32 p0, 0f00000000, y0;",
        gates,
    ),
    (
        &BITLINEAR_T8,
        "up taken for the gate",
        "  mul.rn.f32 y0, y0, y0;\n",
        "  mul.rn.f32 y0, y1, y1;\n",
        gates,
    ),
    (
        &BITLINEAR_T128,
        "queries turned the wrong way",
        "  neg.f32 q0, q0;\n  mul.rn.f32 q1",
        "  mul.rn.f32 q1",
        prompt,
    ),
    (
        &BITLINEAR_T128,
        "values put into the wrong slot",
        "and.b32 t2, slot0, 63;",
        "and.b32 t2, slot0, 31;",
        prompt,
    ),
    (
        &BITLINEAR_T128,
        "values that are not finite",
        "  min.f32 y9, y9, 0f7F7F0000;\n  max.f32 y9, y9, 0fFF7F0000;\n",
        "",
        poisoned_prompt,
    ),
    (
        &GROUPED_T8,
        "a wait that lets one copy more be under way",
        "wait_group 4;",
        "wait_group 5;",
        small::grouped::<5, 1500, 128>,
    ),
    (
        &GROUPED_T64,
        "no barrier between a stage's copies and its use",
        "  cp.async.wait_group 2;\n  bar.sync 0;\n",
        "  cp.async.wait_group 2;\n",
        small::grouped::<60, 900, 128>,
    ),
    (
        &GROUPED_T128,
        "no barrier between the last stage and the sums",
        "  cp.async.wait_all;\n  bar.sync 0;\n",
        "  cp.async.wait_all;\n",
        small::grouped::<70, 300, 128>,
    ),
    (
        &GROUPED_T8,
        "scales of one tile fewer",
        "@feeds cp.async.cg.shared.global [t0+3072], [address+512], 16;",
        "@feeds cp.async.cg.shared.global [t0+3072], [address], 16;",
        small::grouped::<5, 300, 128>,
    ),
    (&GROUPED_T32, "wide groups cut in two", "  @!narrow bra WHOLE;\n", "", small::grouped::<20, 300, 128>),
    (
        &GROUPED_T32,
        "narrow groups not cut",
        "@!narrow bra WHOLE;",
        "bra WHOLE;",
        small::grouped::<20, 300, 64>,
    ),
    (
        &GROUPED_T16,
        "wide groups cut in two",
        "@narrow bra NARROW;",
        "bra NARROW;",
        small::grouped::<11, 300, 128>,
    ),
    (&GROUPED_T16, "narrow groups not cut", "  @narrow bra NARROW;\n", "", small::grouped::<11, 300, 64>),
    (
        &GROUPED_T8,
        "the stages beyond the last four left out",
        "  @p0 bra SUMS;\n",
        "  bra SUMS;\n",
        small::grouped::<5, 1400, 128>,
    ),
    (
        &GROUPED_T32,
        "the sum of the other half",
        "selp.b32 t3, 12, 4, narrow;",
        "selp.b32 t3, 8, 4, narrow;",
        small::grouped::<20, 300, 64>,
    ),
    (
        &GROUPED_T32,
        "the scale of the other half",
        "selp.b32 t3, 32, 0, narrow;",
        "selp.b32 t3, 0, 0, narrow;",
        small::grouped::<20, 300, 64>,
    ),
    (
        &GROUPED_T32,
        "a group that does not begin anew",
        "  mov.b32 c3, origin;\n",
        "",
        small::grouped::<20, 300, 64>,
    ),
    (
        &GROUPED_T64,
        "the scale of another row",
        "cvt.f32.f16 ws3, h1;",
        "cvt.f32.f16 ws3, h0;",
        small::grouped::<60, 300, 64>,
    ),
    (
        &GROUPED_T128,
        "groups rounded before they are added",
        "fma.rn.f32 sum0, e, p, sum0;",
        "mul.rn.f32 e, e, p;\n  add.rn.f32 sum0, e, sum0;",
        small::grouped::<70, 300, 64>,
    ),
    (
        &GROUPED_T1,
        "groups added before all are there",
        "  bar.sync 0;\n  mov.f32 total",
        "  mov.f32 total",
        small::grouped::<1, 1100, 128>,
    ),
    (
        &GROUPED_T1,
        "activations used before all warps have copied theirs",
        "  cp.async.wait_all;\n  bar.sync 0;\n",
        "  cp.async.wait_all;\n",
        small::grouped::<1, 1100, 128>,
    ),
    (
        &GROUPED_T1,
        "turns in one place",
        "add.u32 keep_at, keep_at, 3840;",
        "add.u32 keep_at, keep_at, 0;",
        small::grouped::<1, 8300, 128>,
    ),
    (&GROUPED_T1, "narrow groups not cut", "  @narrow bra NARROW;\n", "", small::grouped::<1, 300, 64>),
    (
        &GROUPED_T1,
        "the last groups left out",
        "add.u32 t1, t1, 7;",
        "add.u32 t1, t1, 0;",
        small::grouped::<1, 1100, 64>,
    ),
    (
        &GROUPED_T1,
        "groups beyond the last that are not zero",
        "  @p0 st.shared.v4.b32 [fill], {zero, zero, zero, zero};\n",
        "",
        small::grouped::<1, 1100, 64>,
    ),
    (
        &GROUPED_T1,
        "groups of the other row",
        "selp.b32 s1, c10, c8, second;",
        "selp.b32 s1, c8, c10, second;",
        small::grouped::<1, 300, 128>,
    ),
    (
        &GROUPED_T1,
        "the last group added twice",
        "@!p0 sub.u32 sum_at, sum_at, 1280;\n",
        "@!p0 sub.u32 sum_at, sum_at, 1280;\n  fma.rn.f32 total, f0, g0, total;\n",
        small::grouped::<1, 300, 128>,
    ),
    (
        &EMBED_TERNARY,
        "scales of wide groups",
        "selp.b32 j, j, 0, narrow;",
        "selp.b32 j, 0, 0, narrow;",
        small::embedded_ternary,
    ),
    (
        &EMBED_TERNARY,
        "rows of the other half",
        "mad.lo.u32 k, second, 2, k;",
        "mad.lo.u32 k, second, 0, k;",
        small::embedded_ternary,
    ),
    (
        &NORM_QUANTIZE,
        "groups used before all of the row is normed",
        "  bar.sync 0;\n  bra int8;\n",
        "  bra int8;\n",
        small::groups,
    ),
    (
        &NORM_QUANTIZE,
        "a maximum of four columns",
        "max.u32 most, w0, w2;\n  redux.sync.max.u32 most, most, 0xffffffff;\n",
        "max.u32 most, w0, w2;\n",
        small::groups,
    ),
    (
        &NORM_QUANTIZE,
        "a scale for a group of zeros",
        "  selp.f32 s, 0f00000000, s, none;\n",
        "",
        small::groups,
    ),
    (
        &NORM_QUANTIZE,
        "the upper half's sum for the lower",
        "setp.gt.u32 p, lane, 15;",
        "setp.lt.u32 p, lane, 16;",
        small::grouped::<3, 300, 64>,
    ),
    (
        &ROPE_STORE,
        "keys normed as queries",
        "  @cached ld.param.u64 gain, [p_key_gain];\n",
        "",
        small::normed_heads,
    ),
    (
        &ROPE_STORE,
        "squares of half a head",
        "add.rn.f64 sum0, sum0, sum1;\n  mov.b64 {lo, hi}, sum0;",
        "mov.b64 {lo, hi}, sum0;",
        small::normed_heads,
    ),
    (
        &HEAD_T8,
        "a wait that lets one copy more be under way",
        "wait_group 4;",
        "wait_group 5;",
        head::<5, 580>,
    ),
    (
        &HEAD_T64,
        "no barrier between a stage's copies and its use",
        "wait_group 2;\n  bar.sync 0;",
        "wait_group 2;",
        head::<40, 580>,
    ),
    (
        &HEAD_T32,
        "rows read beyond the table's end",
        "selp.b32 table_size5, 16, 0, p0;",
        "mov.u32 table_size5, 16;",
        head::<12, 580>,
    ),
    (
        &HEAD_T32,
        "chunks of the table taken for others",
        "xor.b32 a_at1, t0, 32;",
        "xor.b32 a_at1, t0, 64;",
        head::<12, 580>,
    ),
    (
        &HEAD_T8,
        "a token read beyond its end",
        "setp.lt.u32 p1, chunk, x_chunks;",
        "setp.le.u32 p1, chunk, x_chunks;",
        head::<5, 20>,
    ),
    (
        &SPLIT,
        "columns of a plane twice",
        "packed1, q5, q4, packed1;",
        "packed1, q5, q4, packed0;",
        small::bounded::<3, 580>,
    ),
    (
        &BOUNDS_T4,
        "a wait that lets one copy more be under way",
        "wait_group 4;",
        "wait_group 5;",
        small::bounded::<3, 580>,
    ),
    (
        &BOUNDS_T16,
        "panels that mix lower bounds of others",
        "mad.lo.u32 fill, row, 192, fill;",
        "mad.lo.u32 fill, row, 96, fill;",
        small::bounded::<9, 580>,
    ),
    (
        &BOUNDS_T32,
        "no barrier between a stage's copies and its use",
        "wait_group 2;\n  bar.sync 0;",
        "wait_group 2;",
        small::bounded_in_little::<20, 580>,
    ),
    (
        &BOUNDS_T64,
        "no barrier between the last stage and the lower bounds",
        "  bar.sync 0;\n  mov.u32 fill, smem;\n",
        "  mov.u32 fill, smem;\n",
        small::bounded::<20, 500>,
    ),
    (
        &BOUNDS_T64,
        "the bound of one row for another",
        "[row_at+128];",
        "[row_at+256];",
        small::bounded::<20, 580>,
    ),
    (
        &SETTLE,
        "a wait that lets one copy more be under way",
        "wait_group 1;",
        "wait_group 2;",
        small::bounded::<3, 580>,
    ),
    (
        &SETTLE,
        "counts of a bit where some warp still reads those before",
        "  xor.b32 others, others, 48;\n",
        "",
        small::bounded::<3, 580>,
    ),
    (
        &SETTLE,
        "the highest logit for every row",
        "setp.le.u32 p0, keep, 1;",
        "setp.le.u32 p0, keep, 2;",
        small::bounded::<4, 580>,
    ),
    (
        &SETTLE,
        "a list used before it is whole",
        "  bar.sync 0;\n  ld.shared.u32 count, [found];\n",
        "  ld.shared.u32 count, [found];\n",
        small::bounded::<3, 580>,
    ),
    (
        &SETTLE,
        "upper bounds left in place of logits",
        "  @p0 st.global.v4.f32 [row+0], {none, none, none, none};\n",
        "",
        small::bounded::<3, 580>,
    ),
    (
        &ATTENTION_R64_D128,
        "keys overwritten while they are read",
        "  bar.sync 0;\n  add.u32 t0, tile, 1;",
        "  add.u32 t0, tile, 1;",
        prompt,
    ),
    (
        &ATTENTION_R64_D128,
        "keys not waited for",
        "TILE:\n  // P2\n  cp.async.wait_group 1;",
        "TILE:\n  // P2\n  cp.async.wait_group 2;",
        prompt,
    ),
    (
        &ATTENTION_R64_D128,
        "a key of the future",
        "setp.lt.s32 p0, rel0, 0;",
        "setp.lt.s32 p0, rel0, -1;",
        prompt,
    ),
    (
        &ATTENTION_R64_D128,
        "a token that does not see itself",
        "setp.le.u32 p0, t0, last;",
        "setp.lt.u32 p0, t0, last;",
        short_prompt,
    ),
    (
        &ATTENTION_R64_D128,
        "weights of masked keys",
        "selp.f32 s0, 0f00000000, s0, p0;",
        "mov.f32 s0, s0;",
        prompt,
    ),
    (
        &ATTENTION_R64_D128,
        "weights side by side in the wrong order",
        "cvt.rn.bf16x2.f32 a0, s1, s0;",
        "cvt.rn.bf16x2.f32 a0, s0, s1;",
        prompt,
    ),
    (
        &ATTENTION_R64_D128,
        "tiles merged with each other's factors",
        "sub.rn.f32 keep0, max0, e;\n  sub.rn.f32 add0, tile_max0, e;",
        "sub.rn.f32 add0, max0, e;\n  sub.rn.f32 keep0, tile_max0, e;",
        prompt,
    ),
    (
        &ATTENTION_R64_D128,
        "totals without the tile's factor",
        "mul.rn.f32 e, tile_total0, add0;",
        "mov.f32 e, tile_total0;",
        prompt,
    ),
    (
        &ATTENTION_R16_D128,
        "weights read before all are there",
        "{s6, s7};\n  bar.sync 0;\n",
        "{s6, s7};\n",
        decode,
    ),
    (
        &ATTENTION_R16_D128,
        "the maximum of three warps of four",
        "max.f32 tile_max0, tile_max0, u3;\n",
        "",
        decode,
    ),
    (
        &ATTENTION_R16_D128,
        "weights of another warp's keys masked",
        "mad.lo.u32 t1, part, 16, t1;",
        "mad.lo.u32 t1, part, 8, t1;",
        decode,
    ),
    (
        &ATTENTION_R16_D128,
        "a row of the run taken for one beyond it",
        "setp.lt.u32 p0, row0, t0;",
        "setp.lt.u32 p0, row1, t0;",
        decode,
    ),
    (
        &ATTENTION_R16_D128,
        "maxima read before all are there",
        "  bar.sync 0;\n  add.u32 t0, tile, 1;",
        "  add.u32 t0, tile, 1;",
        decode,
    ),
    (
        &ATTENTION_R16_D128,
        "scores of another warp's keys",
        "mad.lo.u32 own_at, part, 64, score_at;",
        "mad.lo.u32 own_at, part, 32, score_at;",
        decode,
    ),
    (
        &ATTENTION_R16_D128,
        "a part in the wrong place",
        "mad.lo.u32 t0, t1, t0, tile;",
        "mad.lo.u32 t0, t1, t0, 0;",
        decode,
    ),
    (
        &ATTENTION_MERGE_D128,
        "tiles merged in another order",
        "sub.rn.f32 keep, before, after;\n  sub.rn.f32 add, tile_max, after;",
        "sub.rn.f32 add, before, after;\n  sub.rn.f32 keep, tile_max, after;",
        decode,
    ),
    (&ATTENTION_MERGE_D128, "the last tile left out", "  add.u32 tiles, tiles, 1;\n", "", decode),
    (
        &GROUPED_NORMED_T1,
        "sums in the place of other rows",
        "  mad.lo.u32 sums, fill, groups_end, sums;\n",
        "",
        small::grouped_normed_product::<20, 128>,
    ),
    (
        &GROUPED_NORMED_T1,
        "groups beyond the last that are not zero",
        "  @p0 st.shared.v4.b32 [fill], {zero, zero, zero, zero};\n",
        "",
        small::grouped_normed_product::<20, 128>,
    ),
    (
        &GROUPED_NORMED_T1,
        "squares added before all are there",
        "  bar.sync 0;\n  ld.param.f64 reciprocal",
        "  ld.param.f64 reciprocal",
        small::grouped_normed_product::<20, 128>,
    ),
    (
        &GROUPED_NORMED_T1,
        "activations used before they are there",
        "  bar.sync 0;\n  // the first block stores x",
        "  // the first block stores x",
        small::grouped_normed_product::<20, 128>,
    ),
    (
        &GROUPED_NORMED_T1,
        "the squares of some columns left out",
        "  cvt.f64.f32 other, v2;\n  fma.rn.f64 sum, other, other, sum;\n",
        "",
        small::grouped_normed_product::<20, 128>,
    ),
    (
        &GROUPED_NORMED_T1,
        "the last columns left out",
        "setp.gt.s32 p0, columns, 0;\n  @p0 ld.global.v4.f32",
        "setp.gt.s32 p0, columns, 4;\n  @p0 ld.global.v4.f32",
        small::grouped_normed_product::<20, 128>,
    ),
    (
        &GROUPED_NORMED_T1,
        "gains of other columns",
        "{gain4, gain5, gain6, gain7}, [d0+512]",
        "{gain4, gain5, gain6, gain7}, [d0+0]",
        small::grouped_normed_product::<20, 128>,
    ),
    (
        &GROUPED_NORMED_T1,
        "the upper of two halves taken for the lower",
        "and.b32 t0, pair1, 0xffff0000;",
        "shl.b32 t0, pair1, 16;",
        small::grouped_normed_product::<20, 128>,
    ),
    (
        &GROUPED_NORMED_T1,
        "the scale of another group",
        "shfl.sync.idx.b32 t0, t1, 1, 31, 0xffffffff;",
        "shfl.sync.idx.b32 t0, t1, 0, 31, 0xffffffff;",
        small::grouped_normed_product::<20, 128>,
    ),
    (
        &GROUPED_NORMED_T1,
        "a group with an infinity not seen",
        "  selp.f32 s_x, 0f7FC00000, s_x, bad;\n",
        "",
        small::grouped_normed_product::<20, 128>,
    ),
    (
        &GROUPED_NORMED_T1,
        "a group too small for a scale not seen",
        "  selp.f32 s_x, 0f00000000, s_x, none;\n",
        "",
        small::grouped_normed_product::<20, 128>,
    ),
    (
        &GROUPED_NORMED_T1,
        "both halves of a group added to the lower",
        "  selp.b32 t0, t1, t0, upper;\n",
        "",
        small::grouped_normed_product::<20, 64>,
    ),
    (
        &GROUPED_NORMED_T1,
        "the groups after the first six of a warp left out",
        "  @p0 bra MORE;\n",
        "",
        small::grouped_normed_product::<20, 128>,
    ),
    (
        &GROUPED_NORMED_T1,
        "only the first tiles of the row stored",
        "  mad.lo.u32 x_end, k_tiles, 128, fill;\n  mad.lo.u32 token_fill",
        "  mad.lo.u32 x_end, k_tiles, 64, fill;\n  mad.lo.u32 token_fill",
        small::grouped_normed_product::<20, 128>,
    ),
    (
        &GROUPED_NORMED_T1,
        "scales that are not stored",
        "[token_fill];\n  @p0 st.global.v4.b32 [x_ptr], {x0, x1, x2, x3};\n",
        "[token_fill];\n",
        small::grouped_normed_product::<20, 128>,
    ),
    (
        &GROUPED_NORMED_ROWS_T1,
        "sums in the place of other rows",
        "  mad.lo.u32 sums, fill, groups_end, sums;\n",
        "",
        small::grouped_normed_product::<300, 128>,
    ),
    (
        &GROUPED_NORMED_ROWS_T1,
        "groups beyond the first 512 bytes that are not zero",
        "  add.u32 fill, fill, 512;\n",
        "",
        small::grouped_normed_product::<300, 128>,
    ),
    (
        &GROUPED_NORMED_ROWS_T1,
        "groups added before all lanes have stored theirs",
        "  bar.warp.sync 0xffffffff;\n",
        "",
        small::grouped_normed_product::<300, 64>,
    ),
    (
        &GROUPED_NORMED_ROWS_T1,
        "rows of another warp",
        "mad.lo.u32 block_rows, block_rows, 8, t0;",
        "mad.lo.u32 block_rows, block_rows, 4, t0;",
        small::grouped_normed_product::<300, 128>,
    ),
    (
        &GROUPED_NORMED_ROWS_T1,
        "the row stored by no block",
        "  setp.ne.u32 p0, t0, 0;\n  @p0 bra KEPT;\n",
        "  bra KEPT;\n",
        small::grouped_normed_product::<300, 128>,
    ),
    (
        &NORMED_ROWS_T1,
        "activations used before they are there",
        "  bar.sync 0;\n  ld.shared.v4.b32 {word0, word1, word2, word3}, [total_of];\n",
        "  ld.shared.v4.b32 {word0, word1, word2, word3}, [total_of];\n",
        small::normed_product::<300>,
    ),
    (
        &NORMED_ROWS_T1,
        "rows of another warp",
        "mad.lo.u32 block_rows, block_rows, 8, t0;",
        "mad.lo.u32 block_rows, block_rows, 4, t0;",
        small::normed_product::<300>,
    ),
    (
        &NORMED_ROWS_T1,
        "sums of other rows",
        "  shl.b32 t0, t0, 2;\n  shfl",
        "  shl.b32 t0, t0, 1;\n  shfl",
        small::normed_product::<300>,
    ),
    (
        &NORMED_ROWS_T1,
        "the row stored by no block",
        "  setp.ne.u32 p0, t0, 0;\n  @p0 bra KEPT;\n",
        "  bra KEPT;\n",
        small::normed_product::<300>,
    ),
    (
        &NORMED_T1,
        "rows of the other warps",
        "  and.b32 first, first, 6;\n",
        "  and.b32 first, first, 14;\n",
        small::normed_product::<20>,
    ),
    (
        &NORMED_T1,
        "squares added before all are there",
        "  st.shared.f64 [t0], sum;\n  bar.sync 0;\n",
        "  st.shared.f64 [t0], sum;\n",
        small::normed_product::<20>,
    ),
    (
        &NORMED_T1,
        "the maximum read before all warps gave theirs",
        "@p1 st.shared.b32 [t0], most;\n  bar.sync 0;\n",
        "@p1 st.shared.b32 [t0], most;\n",
        small::normed_product::<20>,
    ),
    (
        &NORMED_T1,
        "activations used before they are there",
        "  bar.sync 0;\n  ld.shared.v4.b32 {word0, word1, word2, word3}, [total_of];\n",
        "  ld.shared.v4.b32 {word0, word1, word2, word3}, [total_of];\n",
        small::normed_product::<20>,
    ),
    (
        &NORMED_T1,
        "the last column left out",
        "setp.gt.s32 p0, columns, 1024;\n  @p0 ld.global.f32",
        "setp.gt.s32 p0, columns, 1025;\n  @p0 ld.global.f32",
        small::normed_product::<20>,
    ),
    (
        &NORMED_T1,
        "gains of other columns",
        "ld.global.nc.f32 gain3, [d0+3072]",
        "ld.global.nc.f32 gain3, [d0+2048]",
        small::normed_product::<20>,
    ),
    (
        &NORMED_T1,
        "the squares of some columns left out",
        "  cvt.f64.f32 other, v2;\n  fma.rn.f64 sum, other, other, sum;\n",
        "",
        small::normed_product::<20>,
    ),
    (
        &NORMED_T1,
        "only the first tiles of the row stored",
        "  mad.lo.u32 x_end, k_tiles, 128, fill;\n",
        "  mad.lo.u32 x_end, k_tiles, 64, fill;\n",
        small::normed_product::<20>,
    ),
    (
        &NORMED_T1,
        "a multiplier that is not stored",
        "  @p0 st.global.v2.b32 [d0], {t2, sum_x0};\n",
        "",
        small::normed_product::<20>,
    ),
    (
        &NORMED_T1,
        "a row with a NaN not seen",
        "selp.f32 multiplier0, 0f7FC00000, m, bad;",
        "mov.f32 multiplier0, m;",
        small::normed_product::<20>,
    ),
    (
        &NORM_QUANTIZE,
        "gains used before all are there",
        "  cp.async.wait_all;\n  bar.sync 0;\n",
        "  bar.sync 0;\n",
        small::norms,
    ),
    (
        &NORM_QUANTIZE,
        "squares added before all are there",
        "  cp.async.wait_all;\n  bar.sync 0;\n",
        "  cp.async.wait_all;\n",
        small::norms,
    ),
    (
        &NORM_QUANTIZE,
        "the maximum read before all warps gave theirs",
        "@p st.shared.b32 [at], most;\n  bar.sync 0;\n",
        "@p st.shared.b32 [at], most;\n",
        small::norms,
    ),
    (
        &NORM_QUANTIZE,
        "the sum read before all warps gave theirs",
        "@p st.shared.b32 [at], total;\n  bar.sync 0;\n",
        "@p st.shared.b32 [at], total;\n",
        small::norms,
    ),
    (
        &NORM_QUANTIZE,
        "partial sums of both norms in one place",
        "add.u32 parts, parts, 2048;",
        "add.u32 parts, parts, 0;",
        small::norms,
    ),
    (&NORM_QUANTIZE, "half of the lanes left out", "o_lo, lo, 16,", "o_lo, lo, 8,", small::norms),
    (&NORM_QUANTIZE, "no swizzle", "xor.b32 j, j, k;\n", "", small::norms),
    (&NORM_QUANTIZE, "atoms of four tokens", "shr.u32 j, t, 3;", "shr.u32 j, t, 2;", small::norms),
    (
        &NORM_QUANTIZE,
        "the last columns left out",
        "add.u32 padded, width, 127;",
        "add.u32 padded, width, 126;",
        small::norms,
    ),
    (
        &NORM_QUANTIZE,
        "rounded towards zero",
        "cvt.rni.s32.f32 q1, v1;",
        "cvt.rzi.s32.f32 q1, v1;",
        small::norms,
    ),
    (
        &NORM_QUANTIZE,
        "the gain before the factor",
        "mul.rn.f32 v0, v0, r;\n  mul.rn.f32 v0, v0, x0;",
        "mul.rn.f32 v0, v0, x0;\n  mul.rn.f32 v0, v0, r;",
        small::norms,
    ),
    (
        &NORM_QUANTIZE,
        "the gains of the first norm for both",
        "add.u32 gains, gains, span;",
        "add.u32 gains, gains, 0;",
        small::norms,
    ),
    (
        &NORM_QUANTIZE,
        "a negative gate let through",
        "selp.f32 g, 0f00000000, g, p;",
        "mov.f32 g, g;",
        small::squared_relu,
    ),
    (&NORM_QUANTIZE, "exp of the gate itself", "neg.f32 e, g;", "mov.f32 e, g;", small::silu),
    (
        &NORM_ROWS,
        "squares added before all are there",
        "st.shared.f64 [at], sum;\n  bar.sync 0;\n",
        "st.shared.f64 [at], sum;\n",
        small::wanted,
    ),
    (&NORM_ROWS, "a column left out", "@p ld.global.f32 v1, [x+1024];", "", small::wanted),
    (
        &EMBED,
        "the halves of a pair exchanged",
        "shl.b32 x2, w1, 16;\n  and.b32 x3, w1, 0xffff0000;",
        "shl.b32 x3, w1, 16;\n  and.b32 x2, w1, 0xffff0000;",
        small::embedded,
    ),
    (&ROPE_STORE, "turned the other way", "neg.f32 u, u;\n", "", small::turned_and_copied),
    (
        &ROPE_STORE,
        "slots of half a block",
        "and.b32 d, slot, 63;",
        "and.b32 d, slot, 31;",
        small::turned_and_copied,
    ),
    (
        &ROPE_STORE,
        "an infinite value in the cache",
        "selp.b16 e1, l1, e1, p;",
        "selp.b16 e1, e1, e1, p;",
        small::turned_and_copied,
    ),
    (
        &ROPE_STORE,
        "keys of the wrong head",
        "sub.u32 c, h, heads;\n",
        "sub.u32 c, h, 1;\n",
        small::turned_and_copied,
    ),
    (
        &ROPE_STORE,
        "dimensions that are not turned left out of the cache",
        "  @p st.global.b16 [place_rest+64], l1;\n",
        "",
        small::partly_turned,
    ),
    (
        &ROPE_STORE,
        "dimensions that are not turned left as they came",
        "  mul.rn.f32 x, x, k0;\n",
        "",
        small::partly_turned,
    ),
    (
        &ROPE_STORE,
        "every other turn left out",
        "mad.lo.u32 h, c, 4, h;",
        "mad.lo.u32 h, c, 8, h;",
        small::normed_heads_in_turns,
    ),
    (&NORM_QUANTIZE, "signs of other columns", "shr.u32 j, i, 5;", "shr.u32 j, i, 6;", small::transformed),
    (
        &NORM_QUANTIZE,
        "columns that change places read before all are there",
        "  @p bra whole;\n  bar.sync 0;\n",
        "  @p bra whole;\n",
        small::transformed,
    ),
    (
        &NORM_QUANTIZE,
        "columns transformed before all are in their places",
        "  mov.u32 base, k;\n  bar.sync 0;\n",
        "  mov.u32 base, k;\n",
        small::transformed,
    ),
    (
        &NORM_QUANTIZE,
        "heads in the order in which they came",
        "mad.lo.u32 w1, w1, limit, w0;",
        "mov.u32 w1, block;",
        small::transformed,
    ),
    (
        &NORM_QUANTIZE,
        "a level before the last is done",
        "levels:\n  bar.sync 0;\n",
        "levels:\n",
        small::transformed,
    ),
    (
        &NORM_QUANTIZE,
        "a level too few",
        "setp.gt.u32 p, j, limit;",
        "setp.ge.u32 p, j, limit;",
        small::transformed,
    ),
    (
        &HADAMARD,
        "a level before the last is done",
        "levels:\n  bar.sync 0;\n",
        "levels:\n",
        small::embedded_rotated,
    ),
    (
        &HADAMARD,
        "a difference the other way",
        "@upper neg.f32 v2, v2;\n  add.rn.f32 v2, e, v2;",
        "@upper neg.f32 e, e;\n  add.rn.f32 v2, e, v2;",
        small::embedded_rotated,
    ),
    (
        &HADAMARD,
        "scaled after every level",
        "selp.f32 factor, 0f3F800000, root, p;",
        "mov.f32 factor, root;",
        small::embedded_rotated,
    ),
    (&HADAMARD, "no signs", "  xor.b32 w2, w2, w4;\n", "", small::embedded_rotated),
    (
        &DELTA_INPUTS,
        "an input too early taken from the state",
        "add.u32 next, index, 1;",
        "mov.u32 next, index;",
        small::delta::<20>,
    ),
    (
        &DELTA_INPUTS,
        "a ring with a row for each tap",
        "  rem.u32 j, j, i;\n  mad.lo.u32 j, j, window_row",
        "  rem.u32 j, j, taps;\n  mad.lo.u32 j, j, window_row",
        small::delta::<20>,
    ),
    (
        &DELTA_INPUTS,
        "tokens before the start not left out",
        "min.u32 back, back, position;",
        "min.u32 back, back, 99;",
        small::delta::<20>,
    ),
    (
        &DELTA_INPUTS,
        "queries not scaled",
        "selp.f32 scale, scale, 0f3F800000, is_query;",
        "mov.f32 scale, 0f3F800000;",
        small::delta::<20>,
    ),
    (
        &DELTA_RULE,
        "a state that does not forget before it learns",
        "mul.rn.f32 m0, g, m0;",
        "mov.f32 m0, m0;",
        small::delta::<20>,
    ),
    (
        &DELTA_RULE,
        "the slot read where a sequence starts",
        "setp.eq.and.u32 loads, fresh, 0, has;",
        "setp.ge.and.u32 loads, fresh, 0, has;",
        small::delta_again,
    ),
    (
        &DELTA_RULE,
        "a token read before it is there",
        "  mov.f32 beta, rate;\n  bar.sync 0;\n",
        "  mov.f32 beta, rate;\n",
        small::delta::<20>,
    ),
    (
        &DELTA_RULE,
        "one half of shared memory for two tokens",
        "xor.b32 buffer, buffer, 1024;",
        "xor.b32 buffer, buffer, 0;",
        small::delta::<20>,
    ),
    (
        &DELTA_RULE_D128,
        "partial sums of other keys",
        "mad.lo.u32 at, q, 16, buffer;",
        "mad.lo.u32 at, q, 4, buffer;",
        small::delta::<128>,
    ),
    (
        &DELTA_RULE_D128,
        "key heads not shared by value heads",
        "rem.u32 a, head, key_heads;",
        "min.u32 a, head, 1;",
        small::delta::<128>,
    ),
    (
        &DELTA_RULE_D128,
        "a part of the state that is not kept",
        "st.global.v4.f32 [from], {m28, m29, m30, m31};",
        "st.global.v4.f32 [from], {m28, m29, m30, m30};",
        small::delta::<128>,
    ),
    (
        &DELTA_OUTPUTS,
        "the gate's value without its sigmoid",
        "div.rn.f32 z, z, v;",
        "mov.f32 z, z;",
        small::delta::<20>,
    ),
    (
        &DELTA_OUTPUTS,
        "inputs that are not kept",
        "setp.lt.u32 p, rest, taps;",
        "setp.lt.u32 p, rest, 3;",
        small::delta::<20>,
    ),
    (
        &DELTA_OUTPUTS,
        "only the first inputs kept",
        "  setp.ge.u32 p, channel, rest;\n  @p ret;\n  mov.u32 i, channel;",
        "  ret;\n  mov.u32 i, channel;",
        small::delta::<128>,
    ),
    (
        &DELTA_OUTPUTS,
        "the square of one value left out",
        "add.rn.f64 d0, d0, d1;",
        "add.rn.f64 d0, d0, d0;",
        small::delta::<128>,
    ),
    (&SIGMOID_GATE, "the value of the gate's negative", "  neg.f32 v, v;\n", "", small::output_gate),
    (&SIGMOID_GATE, "gates of the first columns", "add.u32 j, i, j;", "mov.u32 j, i;", small::output_gate),
    (
        &DENSE,
        "squares added before all are there",
        "st.shared.f64 [at], sum;\n  bar.sync 0;\n",
        "st.shared.f64 [at], sum;\n",
        small::dense_product,
    ),
    (&DENSE, "a row read before it is whole", "normed:\n  bar.sync 0;\n", "normed:\n", small::dense_product),
    (&DENSE, "one row too many", "setp.ge.u32 p, r, rows;", "setp.gt.u32 p, r, rows;", small::dense_product),
    (&DENSE, "a column of another partial sum", "[at+64]", "[at+68]", small::dense_product),
    (
        &COPY_BLOCK,
        "onto itself",
        "mad.wide.u32 target, to, n, at;",
        "mad.wide.u32 target, from, n, at;",
        small::turned_and_copied,
    ),
    (
        &COPY_BLOCK,
        "the last part left out",
        "setp.ge.u32 p, i, n;",
        "sub.u32 n, n, 16;\n  setp.ge.u32 p, i, n;",
        small::turned_and_copied,
    ),
    (&ARGMAX, "the last of equals", "not.b32 key_lo, lo;", "mov.b32 key_lo, lo;", small::greedy),
    (
        &ARGMAX,
        "warps' best read before all gave theirs",
        "@q st.shared.b32 [at+256], nan;\n  bar.sync 0;\n",
        "@q st.shared.b32 [at+256], nan;\n",
        small::greedy,
    ),
    (&ARGMAX, "a NaN not seen", "setp.nan.f32 p, m0, m0;", "setp.lt.f32 p, m0, m0;", small::greedy),
    (
        &SAMPLE,
        "the histogram filled while it is searched",
        "searched:\n  bar.sync 0;\n",
        "searched:\n",
        small::drawn,
    ),
    (
        &SAMPLE,
        "the histogram searched before it is full",
        "filled:\n  bar.sync 0;\n",
        "filled:\n",
        small::drawn,
    ),
    (&SAMPLE, "a sum that carries nothing into its high word", "  @p add.u32 hi, hi, 1;\n", "", small::drawn),
    (
        &SAMPLE,
        "the sum of a warp added by all its lanes",
        "  setp.eq.u32 in, lane, leader;\n",
        "",
        small::drawn,
    ),
    (
        &SAMPLE,
        "the weights of lanes of another digit added",
        "  setp.ne.u32 p, same, votes;\n",
        "  setp.eq.u32 p, same, 0;\n",
        small::drawn,
    ),
    (&SAMPLE, "a round of random numbers too few", "mov.u32 s, 10;", "mov.u32 s, 9;", small::drawn),
    (
        &SAMPLE,
        "what lies above counted to the lane found",
        "sub.u64 rest, need, other;",
        "sub.u64 rest, need, above;",
        small::drawn,
    ),
    (&SAMPLE, "min-p forgotten", "setp.ge.u64 in, w, floor;", "setp.ge.u64 in, w, w;", small::drawn),
    (
        &SAMPLE,
        "weights of a temperature of one",
        "div.rn.f32 x, y, temperature;",
        "mov.f32 x, y;",
        small::drawn,
    ),
    (
        &SAMPLE,
        "the row's weight of a temperature of one",
        "neg.f32 below, temperature;",
        "mov.f32 below, 0fBF800000;",
        small::drawn,
    ),
];

#[test]
fn every_mutant_is_caught() {
    let mut missed = Vec::new();
    for (kernel, what, from, to, run) in MUTANTS {
        let name = format!("{}: {what}", kernel.name);
        assert!(kernel.text.contains(from), "{name}: the kernel has no {from:?}: write the mutant anew");
        let sound = run(Simulator::default()).unwrap();
        // Some defects show only in some orders of blocks and warps.
        let caught = (0..8).any(|seed| {
            let text = kernel.text.replacen(from, to, 1);
            let broken = run(Simulator::default().seed(seed).replace(kernel, text));
            // A text that does not load is not a mutant.
            assert!(!matches!(broken, Err(GpuError::ModuleRefused { .. })), "{name}: {broken:?}");
            broken != Ok(sound.clone())
        });
        if !caught {
            missed.push(name);
        }
    }
    assert!(missed.is_empty(), "not noticed:\n{}", missed.join("\n"));
    println!("{} mutants caught", MUTANTS.len());
}

const WAIT: &str = "  //sm_90 griddepcontrol.wait;\n";

/// Ends each path of a kernel with a wait, and has none before.
fn waiting_last(text: &str) -> String {
    let line = |line: &str| match line.trim_start().strip_prefix('@').and_then(|rest| rest.split_once(' ')) {
        Some((guard, "ret;" | "exit;")) => format!("  //sm_90 @{guard} griddepcontrol.wait;\n{line}\n"),
        _ if ["ret;", "exit;"].contains(&line.trim()) => format!("{WAIT}{line}\n"),
        _ => format!("{line}\n"),
    };
    text.replace(WAIT, "").lines().map(line).collect()
}

#[test]
fn every_kernel_that_waits_too_late_or_never_is_caught() {
    let runs: BTreeMap<&str, (&Kernel, Run)> =
        MUTANTS.iter().map(|&(kernel, .., run)| (kernel.name, (kernel, run))).collect();
    // Those that measure the matrix units are launched alone; attention to wide heads has the template of the other.
    let none = |name: &str| ["peak", "d256"].iter().any(|part| name.contains(part));
    let all = KERNELS.iter().map(|kernel| kernel.name).filter(|name| !none(name));
    assert_eq!(runs.keys().copied().collect::<BTreeSet<_>>(), all.collect());
    let mut written_early = 0;
    for (name, (kernel, run)) in runs {
        let fault = |text| run(Simulator::default().replace(kernel, text)).expect_err(name).to_string();
        let never = fault(kernel.text.replace(WAIT, ""));
        assert!(never.contains("griddepcontrol.wait"), "{name}: {never}");
        let late = fault(waiting_last(kernel.text));
        let (read, written) = (late.contains("is written by an earlier"), late.contains("is written before"));
        assert!(read || written, "{name}: {late}");
        written_early += usize::from(written);
    }
    assert!(written_early > 0, "some kernel reads only what no kernel writes");
}
