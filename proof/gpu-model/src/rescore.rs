//! The output head's last kernel, which computes the logits that bounds do not rule out. A sampled forward pass has no
//! bounds, so this kernel runs by itself on bounds that leave the assumed number of logits.

use anyhow::{Context, Result};
use bitnet_kernels::{
    RowsKind, SamplingParams, Wanted,
    gpu::{Gpu, table::RESCORE},
};
use bitnet_tensor::{BitNetTensor, DType, SharedBytes};
use bitnet_tests::Sample;

use super::{Chip, assumptions::CANDIDATES, sampled};

/// The launch for `n` greedy rows of a table.
pub(super) fn launch(n: usize, [vocab, width]: [usize; 2], chip: &Chip) -> Result<Sample> {
    let (simulator, samples) = sampled(chip);
    let mut gpu = Gpu::new(simulator)?;
    let values = SharedBytes::new(vec![0; 2 * vocab * width]);
    let table = gpu.table(&BitNetTensor::new(DType::BF16, [vocab, width], values)?)?;
    let x = gpu.rows(n, width, RowsKind::Intermediate)?;
    let best = gpu.rows(n, vocab.div_ceil(64), RowsKind::Residual)?;
    let mut logits = gpu.rows(n, vocab, RowsKind::Residual)?;
    // Lower bounds are 0; upper bounds are below it except where a candidate is.
    let apart = vocab / CANDIDATES;
    let row: Vec<f32> = (0..vocab).map(|v| if v % apart == 0 { 1.0 } else { -1.0 }).collect();
    gpu.write_rows(&mut logits, &row.repeat(n))?;
    let greedy = Wanted::Token(SamplingParams::GREEDY);
    gpu.rescore(&x, &table, &vec![greedy; n], &best, &mut logits)?;
    gpu.finish()?;
    let launches = std::mem::take(&mut *samples.lock().expect("nothing panicked"));
    let launch = launches.into_iter().find(|sample| sample.launch.kernel().name == RESCORE.name);
    launch.context("bounds are rescored by a launch")
}

#[cfg(test)]
mod tests {
    use super::{super::CHIPS, *};

    #[test]
    fn blocks_compute_their_share_of_the_assumed_logits() {
        let sample = launch(3, [16 * CANDIDATES, 128], &CHIPS[0]).unwrap();
        // Sixteen rows of a product take a `mma` for every 16 columns.
        let text = RESCORE.text.lines().zip(1..);
        let lines = text.filter(|(line, _)| line.trim_start().starts_with("mma.")).map(|(_, number)| number);
        let products: u64 = lines.map(|line| sample.stats.lines[&line].warps).sum();
        let groups = (512 / 16_usize).div_ceil(16) as u64;
        assert_eq!(products, u64::from(sample.blocks) * groups * 128 / 16);
    }
}
