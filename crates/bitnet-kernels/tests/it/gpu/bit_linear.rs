//! Products on the simulator: which kernels are launched, and that every tile computes the same bits.

use bitnet_kernels::{
    Gate, Grouping, Inspect, Norm, Reference, RowOrder, RowsKind,
    gpu::{
        Gpu, GpuError, Int8Rows,
        table::{
            BITLINEAR_T1, BITLINEAR_T8, BITLINEAR_T64, BITLINEAR_T128, GROUPED_NORMED_ROWS_T1,
            GROUPED_NORMED_T1, GROUPED_T1, NORM_QUANTIZE, NORMED_ROWS_T1, NORMED_T1,
        },
        tilings::Tiling,
    },
};
use bitnet_tensor::TernaryTensor;
use bitnet_tests::Simulator;
use half::f16;

use crate::conformance::extreme_groups;

/// A small generator of reproducible numbers.
fn numbers(seed: u64) -> impl FnMut() -> u64 {
    let mut state = seed;
    move || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        state >> 33
    }
}

/// `n` rows of int8, and a matrix of parts with separate scales.
pub struct Product {
    k: usize,
    n: usize,
    values: Vec<i8>,
    multipliers: Vec<f32>,
    weights: TernaryTensor,
}

/// Columns of the output before and after the product.
const MARGINS: [usize; 2] = [3, 2];

impl Product {
    pub fn new(n: usize, k: usize, parts: &[usize]) -> Product {
        let mut next = numbers((n * k) as u64);
        let values = (0..n * k).map(|_| next() as i8).collect();
        let multipliers = (0..n).map(|_| 0.3 + (next() % 1000) as f32 * 0.37).collect();
        let parts: Vec<TernaryTensor> = parts
            .iter()
            .map(|&rows| {
                let trits: Vec<i8> = (0..rows * k).map(|_| (next() % 3) as i8 - 1).collect();
                TernaryTensor::from_trits(rows, k, &trits, 0.01 + (next() % 100) as f32 * 0.013).unwrap()
            })
            .collect();
        Product { k, n, values, multipliers, weights: TernaryTensor::stack(&parts).unwrap() }
    }

    /// `[n][rows]`, by plain loops.
    fn expected(&self) -> Vec<f32> {
        let w = &self.weights;
        let mut out = Vec::new();
        for (x, m) in self.values.chunks_exact(self.k).zip(&self.multipliers) {
            for row in 0..w.rows() {
                let sum: i32 = w.row_trits(row).zip(x).map(|(t, &x)| i32::from(t) * i32::from(x)).sum();
                out.push(sum as f32 / m * w.row_scale(row).unwrap());
            }
        }
        out
    }

    fn int8_rows(&self, gpu: &mut Gpu<Simulator>) -> Result<Int8Rows, GpuError> {
        let x = gpu.int8_rows(self.n, self.k, Grouping::Row)?;
        let sums: Vec<i32> =
            self.values.chunks_exact(self.k).map(|row| row.iter().map(|&v| i32::from(v)).sum()).collect();
        gpu.write_int8_rows(&x, &self.values, &self.multipliers, &sums)?;
        Ok(x)
    }

    /// Computes the product on the GPU as f32, or adds it to 2, after having computed it once before.
    pub fn stored(&self, simulator: Simulator, accumulate: bool) -> Result<Vec<f32>, GpuError> {
        let mut gpu = Gpu::new(simulator)?;
        let width = MARGINS[0] + self.weights.rows() + MARGINS[1];
        let x = self.int8_rows(&mut gpu)?;
        let w = gpu.linear(&self.weights, RowOrder::Plain)?;
        let mut out = gpu.rows(self.n, width, RowsKind::Residual)?;
        for _ in 0..2 {
            gpu.write_rows(&mut out, &vec![2.0; self.n * width])?;
            gpu.bit_linear(self.n, &x, &w, &mut out, MARGINS[0], accumulate.then_some(1.0))?;
        }
        gpu.read_rows(&out, self.n)
    }

    /// Computes the gated values as bf16, for a matrix of gate and up.
    pub fn gated(&self, simulator: Simulator, gate: Gate) -> Result<Vec<f32>, GpuError> {
        let mut gpu = Gpu::new(simulator)?;
        let x = self.int8_rows(&mut gpu)?;
        let w = gpu.linear(&self.weights, RowOrder::GateUp)?;
        let mut out = gpu.rows(self.n, self.weights.rows() / 2, RowsKind::Intermediate)?;
        gpu.bit_linear_gate(self.n, &x, &w, gate, &mut out)?;
        gpu.read_rows(&out, self.n)
    }

    /// Fails if the GPU stores other bits than the plain loops, or changes the margins.
    fn check(&self, processors: u32, accumulate: bool) {
        let (expected, rows) = (self.expected(), self.weights.rows());
        let simulator = Simulator::with(|info| info.processors = processors);
        let stored = self.stored(simulator, accumulate).unwrap();
        let what = format!("n {} k {} rows {rows} processors {processors}", self.n, self.k);
        for (t, row) in stored.chunks_exact(rows + MARGINS[0] + MARGINS[1]).enumerate() {
            let (before, row) = row.split_at(MARGINS[0]);
            let (row, after) = row.split_at(rows);
            assert!(before.iter().chain(after).all(|&x| x == 2.0), "{what}: margins of token {t}");
            for (r, &y) in row.iter().enumerate() {
                let e = expected[t * rows + r] + if accumulate { 2.0 } else { 0.0 };
                let equal = y.to_bits() == e.to_bits() || (y.is_nan() && e.is_nan());
                assert!(equal, "{what}: token {t} row {r}: {y}, not {e}");
            }
        }
    }
}

/// Every kernel, with whole tiles and tails of tokens, rows and features, and one or several thread blocks per tile.
#[test]
fn sums_and_their_scales_are_exact_at_every_size() {
    for n in [1, 2, 7, 8, 9, 16, 17, 33, 64, 65, 130] {
        for (k, parts) in [(1, &[1][..]), (100, &[130]), (640, &[64, 128, 64])] {
            let product = Product::new(n, k, parts);
            product.check(1, false);
            product.check(8, true);
        }
    }
}

/// A matrix of 167 rows gives 132 processors work only if each block takes few tokens.
#[test]
fn a_gpu_multiplies_with_the_tile_of_the_least_time_unless_it_is_told_to_go_by_size() {
    for (by_size, expected) in [(false, &BITLINEAR_T8), (true, &BITLINEAR_T64)] {
        let mut gpu =
            Gpu::new(Simulator::with(|info| (info.processors, info.tiles_by_size) = (132, by_size))).unwrap();
        let product = Product::new(60, 800, &[128, 39]);
        let x = product.int8_rows(&mut gpu).unwrap();
        let w = gpu.linear(&product.weights, RowOrder::Plain).unwrap();
        let mut out = gpu.rows(60, 167, RowsKind::Residual).unwrap();
        gpu.bit_linear(60, &x, &w, &mut out, 0, None).unwrap();
        gpu.finish().unwrap();
        for kernel in [&BITLINEAR_T8, &BITLINEAR_T64] {
            assert_eq!(gpu.driver().stats(kernel).is_some(), kernel == expected, "{}", kernel.name);
        }
    }
}

/// A matrix of 167 rows and 800 columns, which are rounded up to 896.
const MEASURED: Tiling =
    Tiling { grouping: Grouping::Row, rows: 167, cols: 896, tokens: 60, tile: 64, splits: 1 };

#[test]
fn a_gpu_multiplies_as_measured_for_the_number_of_tokens_and_down_to_half_of_it() {
    let larger = Tiling { tokens: 100, tile: 128, ..MEASURED };
    let other = Tiling { rows: 168, tile: 128, ..MEASURED };
    let [t64, t128] = [Some(&BITLINEAR_T64), Some(&BITLINEAR_T128)];
    // The estimate takes neither.
    for (n, expected) in [(60, t64), (30, t64), (61, t128), (29, None)] {
        let mut gpu = Gpu::new(Simulator::with(|info| {
            (info.processors, info.tiles_by_size) = (132, false);
            info.tilings = vec![other, larger, MEASURED];
        }))
        .unwrap();
        let product = Product::new(n, 800, &[128, 39]);
        let x = product.int8_rows(&mut gpu).unwrap();
        let w = gpu.linear(&product.weights, RowOrder::Plain).unwrap();
        let mut out = gpu.rows(n, 167, RowsKind::Residual).unwrap();
        gpu.bit_linear(n, &x, &w, &mut out, 0, None).unwrap();
        gpu.finish().unwrap();
        for kernel in [&BITLINEAR_T64, &BITLINEAR_T128] {
            assert_eq!(
                gpu.driver().stats(kernel).is_some(),
                Some(kernel) == expected,
                "{n}: {}",
                kernel.name
            );
        }
    }
}

#[test]
fn a_measured_launch_that_the_kernels_cannot_make_is_refused() {
    let wrong = [
        Tiling { tile: 24, ..MEASURED },
        Tiling { splits: 300, ..MEASURED },
        Tiling { cols: 800, ..MEASURED },
        Tiling { tokens: 1, ..MEASURED },
        Tiling { grouping: Grouping::Groups, splits: 2, ..MEASURED },
    ];
    for tiling in wrong {
        let error = Gpu::new(Simulator::with(|info| info.tilings = vec![tiling])).unwrap_err().to_string();
        assert!(error.contains(&tiling.to_string()) && error.contains("bitnet.tiles"), "{error}");
    }
}

/// A product of one normed row, stored or added to the row itself.
fn normed<B: Inspect>(b: &mut B, onto: bool) -> Vec<u32> {
    let (width, mut next) = (128, numbers(5));
    let trits: Vec<i8> = (0..width * width).map(|_| (next() % 3) as i8 - 1).collect();
    let w = TernaryTensor::from_trits(width, width, &trits, 0.7).unwrap();
    let w = b.linear(&w, RowOrder::Plain).unwrap();
    let mut many = || (0..width).map(|_| (next() % 1000) as f32 * 0.01 - 5.0).collect::<Vec<f32>>();
    let norm = Norm { gain: b.gain(&many()).unwrap(), eps: 1e-5 };
    let mut rows = [(); 2].map(|()| b.rows(1, width, RowsKind::Residual).unwrap());
    let mut q = b.int8_rows(1, width, Grouping::Row).unwrap();
    b.write(&mut rows[0], &many()).unwrap();
    b.write(&mut rows[1], &many()).unwrap();
    b.norm_quantize(1, &rows[0], [Some(&norm), None], None, &mut q).unwrap();
    let out = &mut rows[usize::from(!onto)];
    b.bit_linear(1, &q, &w, out, 0, Some(1.0)).unwrap();
    b.read(out, 1).unwrap().iter().map(|value| value.to_bits()).collect()
}

/// Every block of the product repeats the norm, so it must not read what another block has changed.
#[test]
fn a_product_of_one_token_includes_its_norm_unless_it_changes_the_normed_row() {
    let included = [(2, [NORMED_T1.name]), (1, [NORMED_ROWS_T1.name])];
    let included = included.map(|(processors, names)| (processors, false, names.to_vec()));
    let apart = (2, true, vec![NORM_QUANTIZE.name, BITLINEAR_T1.name]);
    for (processors, onto, kernels) in included.into_iter().chain([apart]) {
        let simulator = Simulator::with(|info| (info.processors, info.tiles_by_size) = (processors, false));
        let mut gpu = Gpu::new(simulator).unwrap();
        assert_eq!(normed(&mut gpu, onto), normed(&mut Reference::bf16(), onto));
        assert_eq!(gpu.kernels(), kernels);
    }
}

/// A product with groups of columns of one row, after a norm or none.
fn grouped<B: Inspect>(b: &mut B, kind: RowsKind, width: usize, normed: bool) -> Vec<u32> {
    let (rows, mut next) = (200, numbers(9));
    let codes = (0..rows * width.div_ceil(4)).map(|_| next() as u8).collect();
    let scales = (0..rows * width.div_ceil(128)).map(|_| f16::from_f32((1 + next() % 100) as f32 * 0.01));
    let w = TernaryTensor::from_groups(rows, width, 128, codes, scales.collect()).unwrap();
    let w = b.linear(&w, RowOrder::Plain).unwrap();
    let mut many = || (0..width).map(|_| (next() % 1000) as f32 * 0.01 - 5.0).collect::<Vec<f32>>();
    let norm = Norm { gain: b.gain(&many()).unwrap(), eps: 1e-5 };
    let mut x = b.rows(1, width, kind).unwrap();
    b.write(&mut x, &many()).unwrap();
    let mut q = b.int8_rows(1, width, Grouping::Groups).unwrap();
    let mut out = b.rows(1, rows, RowsKind::Residual).unwrap();
    b.norm_quantize(1, &x, [normed.then_some(&norm), None], None, &mut q).unwrap();
    b.bit_linear(1, &q, &w, &mut out, 0, None).unwrap();
    b.read(&out, 1).unwrap().iter().map(|value| value.to_bits()).collect()
}

#[test]
fn a_grouped_product_of_one_token_includes_what_its_kernels_can_norm_or_quantise() {
    use RowsKind::{Intermediate, Residual};
    let (few, many) = (vec![GROUPED_NORMED_T1.name], vec![GROUPED_NORMED_ROWS_T1.name]);
    let apart = || vec![NORM_QUANTIZE.name, GROUPED_T1.name];
    for (kind, width, normed, processors, shared, kernels) in [
        (Residual, 256, true, 4, 99, few.clone()),
        (Intermediate, 256, false, 4, 99, few),
        (Residual, 256, true, 3, 99, many.clone()),
        (Intermediate, 8000, false, 3, 99, many),
        // A wide norm, a width that is no multiple of four, another norm, none, and too many groups for the shared memory.
        (Residual, 6148, true, 4, 99, apart()),
        (Residual, 255, true, 4, 99, apart()),
        (Intermediate, 256, true, 4, 99, apart()),
        (Residual, 256, false, 4, 99, apart()),
        (Intermediate, 8000, false, 3, 48, apart()),
    ] {
        let simulator = Simulator::with(|info| {
            (info.processors, info.shared, info.tiles_by_size) = (processors, shared << 10, false);
        });
        let mut gpu = Gpu::new(simulator).unwrap();
        let expected = grouped(&mut Reference::bf16(), kind, width, normed);
        assert_eq!(grouped(&mut gpu, kind, width, normed), expected);
        assert_eq!(gpu.kernels(), kernels, "{kind:?} {width} {normed}");
    }
}

/// Blocks on one multiprocessor wait for each other's squares where it adds two f64 a cycle.
#[test]
fn where_f64_is_slow_a_product_includes_a_norm_only_with_a_multiprocessor_for_each_block() {
    use RowsKind::{Intermediate, Residual};
    let (few, many) = (vec![GROUPED_NORMED_T1.name], vec![GROUPED_NORMED_ROWS_T1.name]);
    let apart = vec![NORM_QUANTIZE.name, GROUPED_T1.name];
    // 200 rows are 7 blocks of few rows or 2 of many.
    for (capability, processors, kind, kernels) in [
        ((9, 0), 4, Residual, &few),
        ((8, 9), 7, Residual, &few),
        ((8, 9), 4, Residual, &many),
        ((12, 0), 1, Residual, &apart),
        ((8, 0), 1, Residual, &many),
        // Without a norm, nothing is squared.
        ((8, 9), 4, Intermediate, &few),
    ] {
        let simulator = Simulator::with(|info| {
            (info.capability, info.overlap) = (capability, capability >= (9, 0));
            (info.processors, info.tiles_by_size) = (processors, false);
        });
        let mut gpu = Gpu::new(simulator).unwrap();
        let expected = grouped(&mut Reference::bf16(), kind, 256, kind == Residual);
        assert_eq!(grouped(&mut gpu, kind, 256, kind == Residual), expected);
        assert_eq!(gpu.kernels(), *kernels, "{capability:?} {processors}");
    }
}

/// Features of real models, with rows cut to two tiles and a tail.
#[test]
fn sums_are_exact_at_the_widths_of_real_models() {
    for k in [2560, 3200, 6912, 8640] {
        for n in [1, 2, 7, 8, 9, 16, 33, 64, 130] {
            Product::new(n, k, &[128, 64, 81]).check(if k % 128 == 0 { 1 } else { 8 }, n % 2 == 0);
        }
    }
}

#[test]
fn the_largest_sums_do_not_overflow() {
    for (x, trit) in [(-128, -1), (-128, 1), (127, -1), (127, 1)] {
        for n in [1, 8, 33, 130] {
            let mut product = Product::new(n, 13_824, &[20]);
            product.values.fill(x);
            let trits = vec![trit; 20 * product.k];
            product.weights = TernaryTensor::from_trits(20, product.k, &trits, 1.0).unwrap();
            product.check(4, false);
        }
    }
}

/// The integer of a group is read as a float, which holds even the largest one.
#[test]
fn the_largest_groups_are_exact() {
    for n in [1, 8, 16, 32, 64, 66] {
        extreme_groups(&mut Gpu::new(Simulator::default()).unwrap(), n, "simulator");
    }
}

/// The quotient comes from a reciprocal and corrections, and must equal division for the whole range of multipliers.
#[test]
fn quotients_are_those_of_division() {
    let mut product = Product::new(1500, 8, &[64]);
    let mut next = numbers(3);
    for (t, m) in product.multipliers.iter_mut().enumerate() {
        *m = match t % 5 {
            // Multipliers of rows with the largest and the smallest absolute maximum.
            0 => 1.0 / 3.4e38 * 127.0 * (1.0 + (next() % 1000) as f32 * 0.01),
            1 => 1.0 / 1e-5 * 127.0 / (1.0 + (next() % 1000) as f32 * 0.01),
            // Any mantissa, with exponents on both sides of the one where the kernel changes its method.
            2 => f32::from_bits(0x3f80_0000 | next() as u32 & 0x7f_ffff),
            3 => f32::from_bits((127 - 91 + (next() % 3) as u32) << 23 | next() as u32 & 0x7f_ffff),
            _ => 127.0 / (next() % 4096 + 1) as f32,
        };
    }
    product.multipliers[7] = f32::NAN;
    product.check(4, false);
}

#[test]
fn gated_values_are_those_of_the_reference_bit_for_bit() {
    for gate in [Gate::SquaredRelu, Gate::Silu] {
        for n in [1, 5, 16, 40, 129] {
            for ffn in [1, 67, 128] {
                let mut product = Product::new(n, 200, &[ffn, ffn]);
                // Gates from far below zero to far above, and NaN.
                for (t, m) in product.multipliers.iter_mut().enumerate() {
                    *m = if t % 7 == 4 { f32::NAN } else { 0.02 * 3f32.powi(t as i32 % 9) };
                }
                let actual = product.gated(Simulator::default(), gate).unwrap();
                let expected = expected_gates(&product, gate);
                for (i, (a, e)) in actual.iter().zip(&expected).enumerate() {
                    let equal = a.to_bits() == e.to_bits() || (a.is_nan() && e.is_nan());
                    assert!(equal, "{gate:?} n {n} ffn {ffn}: value {i} is {a}, not {e}");
                }
            }
        }
    }
}

fn expected_gates(product: &Product, gate: Gate) -> Vec<f32> {
    let rows = product.expected();
    let ffn = product.weights.rows() / 2;
    let gated = |g: f32, u: f32| match gate {
        Gate::SquaredRelu => {
            let r = if 0.0 > g { 0.0 } else { g };
            r * r * u
        }
        Gate::Silu => g / (1.0 + bitnet_kernels::order::exp(-g)) * u,
        Gate::ClampedSilu { .. } | Gate::Gelu => unreachable!("a GPU has no such gate"),
    };
    rows.chunks_exact(2 * ffn)
        .flat_map(|row| (0..ffn).map(|i| half::bf16::from_f32(gated(row[i], row[ffn + i])).to_f32()))
        .collect()
}

/// bf16 rows hold the same sums, rounded once.
#[test]
fn sums_between_operations_are_rounded_to_bf16_once() {
    for n in [1, 3, 33] {
        let product = Product::new(n, 300, &[70]);
        let mut gpu = Gpu::new(Simulator::default()).unwrap();
        let x = product.int8_rows(&mut gpu).unwrap();
        let w = gpu.linear(&product.weights, RowOrder::Plain).unwrap();
        let mut out = gpu.rows(n, 75, RowsKind::Intermediate).unwrap();
        gpu.bit_linear(n, &x, &w, &mut out, 5, None).unwrap();
        let actual = gpu.read_rows(&out, n).unwrap();
        for (a, e) in actual.chunks_exact(75).zip(product.expected().chunks_exact(70)) {
            assert!(a[..5].iter().all(|&x| x == 0.0), "columns before");
            let e: Vec<f32> = e.iter().map(|&x| half::bf16::from_f32(x).to_f32()).collect();
            assert_eq!(a[5..], e);
        }
    }
}
