use bitnet_kernels::{RowOrder, RowsKind, gpu::Gpu};
use bitnet_tensor::TernaryTensor;
use bitnet_tests::Simulator;

/// A small generator of repeatable numbers.
fn numbers(seed: u64) -> impl FnMut() -> u64 {
    let mut state = seed;
    move || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        state >> 33
    }
}

/// A product: `n` rows of int8 against a matrix of parts that have scales of their own.
struct Product {
    k: usize,
    n: usize,
    values: Vec<i8>,
    multipliers: Vec<f32>,
    weights: TernaryTensor,
}

impl Product {
    fn new(n: usize, k: usize, parts: &[usize]) -> Product {
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
            for range in w.scales() {
                for row in range.start..range.end {
                    let sum: i32 = w.row_trits(row).zip(x).map(|(t, &x)| i32::from(t) * i32::from(x)).sum();
                    out.push(sum as f32 / m * range.scale);
                }
            }
        }
        out
    }

    fn quants(&self, gpu: &mut Gpu<Simulator>) -> bitnet_kernels::gpu::Quants {
        let x = gpu.quants(self.n, self.k).unwrap();
        let sums: Vec<i32> =
            self.values.chunks_exact(self.k).map(|row| row.iter().map(|&v| i32::from(v)).sum()).collect();
        gpu.write_quants(&x, &self.values, &self.multipliers, &sums).unwrap();
        x
    }

    /// What the GPU stores as f32 after `before`, or added to it.
    fn stored(&self, gpu: &mut Gpu<Simulator>, accumulate: bool) -> Vec<f32> {
        let rows = self.weights.rows();
        let x = self.quants(gpu);
        let w = gpu.linear(&self.weights, RowOrder::Plain).unwrap();
        let mut out = gpu.rows(self.n, rows + 5, RowsKind::Residual).unwrap();
        gpu.write_rows(&mut out, &vec![2.0; self.n * (rows + 5)]).unwrap();
        gpu.bit_linear(self.n, &x, &w, &mut out, 3, accumulate).unwrap();
        gpu.read_rows(&out, self.n).unwrap()
    }
}

/// Every kernel, whole tiles and tails of tokens, rows and features, with and without splits.
#[test]
fn sums_are_exact_at_every_size() {
    for n in [1, 2, 7, 8, 9, 16, 17, 33, 64, 65, 130] {
        for (k, parts) in [(1, &[1][..]), (100, &[130]), (2560, &[17, 3]), (640, &[64, 128, 64])] {
            if n > 64 && k == 2560 {
                continue;
            }
            let product = Product::new(n, k, parts);
            let expected = product.expected();
            let rows = product.weights.rows();
            for (processors, accumulate) in [(1, false), (8, true)] {
                let mut gpu = Gpu::new(Simulator::with(|info| info.processors = processors)).unwrap();
                let stored = product.stored(&mut gpu, accumulate);
                for (t, row) in stored.chunks_exact(rows + 5).enumerate() {
                    assert!(
                        row[..3].iter().chain(&row[rows + 3..]).all(|&x| x == 2.0),
                        "n {n} k {k}: margins"
                    );
                    for (r, &y) in row[3..rows + 3].iter().enumerate() {
                        let e = expected[t * rows + r] + if accumulate { 2.0 } else { 0.0 };
                        assert_eq!(
                            y.to_bits(),
                            e.to_bits(),
                            "n {n} k {k} parts {parts:?}: token {t} row {r}"
                        );
                    }
                }
            }
        }
    }
}
