//! The GPU's sampler draws the same token from the same logits as the CPU's.

use bitnet_inference::{
    GenerationConfig, SampleError,
    sampling::{Draw, Sampler},
};
use bitnet_kernels::{Drawn, RowsKind, SamplingParams, gpu::Gpu};
use bitnet_tests::Simulator;

/// The CPU's result for a row, in the GPU's form.
fn expected(sampler: &mut Sampler, row: &[f32], draw: &Draw<'_>) -> Drawn {
    match sampler.draw(row, draw) {
        Ok(token) => Drawn::Token(token),
        Err(SampleError::NotANumber { token }) => Drawn::NotANumber(token),
        Err(SampleError::NothingAllowed) => Drawn::NothingAllowed,
        Err(other) => panic!("the kernel does not know {other}"),
    }
}

/// Rows of logits: peaked, flat, all equal, with ties between both zeros, infinite, NaN, without any allowed token.
fn rows(vocab: usize) -> Vec<Vec<f32>> {
    let noise =
        |i: usize, seed: usize| (((i * 2_654_435_761 + seed * 40_503) >> 7) % 10_007) as f32 / 10_007.0;
    let mut rows: Vec<Vec<f32>> = [20.0, 1.0, 6.0, 60.0]
        .into_iter()
        .enumerate()
        .map(|(seed, scale)| (0..vocab).map(|i| scale * (noise(i, seed) - 0.5)).collect())
        .collect();
    rows.push(vec![1.5; vocab]);
    rows.push(
        (0..vocab)
            .map(|i| {
                if i % 3 == 0 {
                    -0.0
                } else if i % 3 == 1 {
                    0.0
                } else {
                    -1.0
                }
            })
            .collect(),
    );
    let mut infinite = rows[0].clone();
    infinite[vocab / 2] = f32::INFINITY;
    infinite[vocab / 3] = f32::NEG_INFINITY;
    rows.push(infinite);
    let mut nan = rows[1].clone();
    nan[vocab - 1] = f32::NAN;
    nan[vocab / 2] = f32::NAN;
    rows.push(nan);
    rows.push(vec![f32::NEG_INFINITY; vocab]);
    rows
}

fn drawn(gpu: &mut Gpu<Simulator>, n: usize, ask: impl FnOnce(&mut Gpu<Simulator>, u64)) -> Vec<Drawn> {
    let out = gpu.alloc(8 * n, "tokens").unwrap();
    ask(gpu, out.address());
    let bytes = gpu.fetch(&out, 8 * n).unwrap();
    bytes.as_chunks().0.iter().map(|&b| Drawn::read(b)).collect()
}

#[test]
fn the_gpu_draws_the_token_that_the_cpu_draws() {
    let settings = [
        (0.0, 0, 1.0, 0.0),
        (0.7, 1, 0.9, 0.0),
        (1.0, 0, 1.0, 0.0),
        (0.8, 40, 1.0, 0.0),
        (0.8, 3, 0.6, 0.0),
        (1.3, 0, 0.9, 0.0),
        (1.0, 0, 0.1, 0.0),
        (5.0, 0, 0.999, 0.05),
        (1.0, 50, 0.95, 0.1),
        (0.05, 0, 0.5, 0.0),
        (100.0, 2, 1e-6, 1.0),
        (1.1, 2000, 0.9, 0.0),
        (1e10, 0, 0.9, 0.0),
    ];
    // The list of likely tokens has room for 4096.
    for vocab in [5, 32, 1000, 1025, 4100, 9003] {
        let rows = rows(vocab);
        let mut gpu = Gpu::new(Simulator::default()).unwrap();
        let mut logits = gpu.rows(rows.len(), vocab, RowsKind::Residual).unwrap();
        gpu.write_rows(&mut logits, &rows.concat()).unwrap();
        let mut sampler = Sampler::new(vocab);
        for (round, (temperature, top_k, top_p, min_p)) in settings.into_iter().enumerate() {
            let config = GenerationConfig { temperature, top_k, top_p, min_p, ..GenerationConfig::default() };
            let text = vec![0; 3 + 70_000 * (round % 2)];
            let params_of = |row: usize| SamplingParams {
                temperature,
                top_k: top_k as u32,
                top_p,
                min_p,
                seed: 0x1234_5678_9abc_def0 + row as u64,
                choice: round as u32,
                position: text.len() as u32,
            };
            let params: Vec<SamplingParams> = (0..rows.len()).map(params_of).collect();
            let expected: Vec<Drawn> = rows
                .iter()
                .zip(&params)
                .map(|(row, params)| {
                    let (seed, choice) = (params.seed, params.choice);
                    let draw = Draw {
                        config: &config,
                        tokens: &text,
                        prompt_len: 1,
                        banned: &[],
                        allowed: None,
                        seed,
                        choice,
                    };
                    expected(&mut sampler, row, &draw)
                })
                .collect();
            let actual = drawn(&mut gpu, rows.len(), |gpu, out| gpu.sample(&params, &logits, out).unwrap());
            assert_eq!(actual, expected, "vocabulary {vocab}, {config:?}");
            if config.is_greedy() {
                let greedy =
                    drawn(&mut gpu, rows.len(), |gpu, out| gpu.argmax(rows.len(), &logits, out).unwrap());
                assert_eq!(greedy, expected, "vocabulary {vocab}");
            }
        }
    }
}
