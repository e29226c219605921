//! Drawing a token otherwise than greedily: what requests ask, of logits whose tokens have the probabilities of a power
//! law.

use anyhow::{Context, Result};
use bitnet_kernels::{
    RowsKind, SamplingParams,
    gpu::{Gpu, table::SAMPLE},
};
use bitnet_ptx_check::Tools;
use bitnet_tests::Sample;

use super::{Chip, Path, code, sampled, sass::counted, time};

/// The vocabulary of 2B-4T.
const VOCABULARY: usize = 128_256;

/// What a row asks, and the power of its law: 1.5 has 90 % of its weight in 60 tokens, 1.0 in 40,000.
struct Ask {
    name: &'static str,
    top_k: u32,
    top_p: f32,
    power: f32,
}

const fn ask(name: &'static str, top_k: u32, top_p: f32, power: f32) -> Ask {
    Ask { name, top_k, top_p, power }
}

const ASKS: [Ask; 5] = [
    ask("top-k 50", 50, 1.0, 1.5),
    ask("top-p 0.9", 0, 0.9, 1.5),
    ask("top-k 50, top-p 0.9", 50, 0.9, 1.5),
    ask("temperature alone", 0, 1.0, 1.5),
    ask("top-p 0.9 of a flat row", 0, 0.9, 1.0),
];

/// The times of each ask for 1 and 32 rows.
pub(super) fn report(tools: &Tools, chip: &Chip) -> Result<String> {
    let code = code(tools, &SAMPLE, chip, false)?;
    let mut text = format!("drawing from {VOCABULARY} logits: us, without waits\n");
    for ask in &ASKS {
        for rows in [1, 32] {
            let sample = launch(ask, rows, chip)?;
            let path: Path = counted(&code.listing, &sample);
            let time = time(&sample, &path, &code, (chip, &chip.devices[0]));
            text += &format!("  {:<24} {rows:>3} rows {:>7.1}  {}\n", ask.name, time.us, time.bound);
        }
    }
    Ok(text)
}

/// Ids of likely tokens lie anywhere: rank j has the id 40,501 j mod 128,256.
fn logits(power: f32) -> Vec<f32> {
    let mut row = vec![0.0; VOCABULARY];
    for rank in 0..VOCABULARY {
        row[rank * 40_501 % VOCABULARY] = 20.0 - power * (1.0 + rank as f32).ln();
    }
    row
}

fn launch(ask: &Ask, rows: usize, chip: &Chip) -> Result<Sample> {
    let (simulator, samples) = sampled(chip);
    let mut gpu = Gpu::new(simulator)?;
    let mut row = gpu.rows(rows, VOCABULARY, RowsKind::Residual)?;
    gpu.write_rows(&mut row, &logits(ask.power).repeat(rows))?;
    let drawn = gpu.alloc(8 * rows, "tokens")?;
    let params = SamplingParams {
        temperature: 0.9,
        top_k: ask.top_k,
        top_p: ask.top_p,
        min_p: 0.0,
        seed: 1,
        choice: 0,
        position: 9,
    };
    gpu.sample(&vec![params; rows], &row, drawn.address())?;
    gpu.fetch(&drawn, 8)?;
    let launches = std::mem::take(&mut *samples.lock().expect("nothing panicked"));
    launches
        .into_iter()
        .find(|sample| sample.launch.kernel().name == SAMPLE.name)
        .context("a draw is a launch")
}

#[cfg(test)]
mod tests {
    use super::{super::CHIPS, *};

    #[test]
    fn a_row_has_every_rank_once_and_the_weight_that_its_power_says() {
        let share = |power: f32, tokens: usize| {
            let mut row = logits(power);
            row.sort_by(|a, b| b.total_cmp(a));
            assert!(row.windows(2).all(|pair| pair[0] >= pair[1]) && row[0] == 20.0 && row[1] < 20.0);
            let weight = |row: &[f32]| row.iter().map(|x| f64::from(*x).exp()).sum::<f64>();
            weight(&row[..tokens]) / weight(&row)
        };
        assert!((0.89..0.91).contains(&share(1.5, 60)), "{}", share(1.5, 60));
        assert!((0.89..0.91).contains(&share(1.0, 40_000)), "{}", share(1.0, 40_000));
    }

    #[test]
    fn a_list_spares_the_row_its_digits_unless_the_row_is_flat() {
        let instructions = |ask: &Ask| launch(ask, 1, &CHIPS[0]).unwrap().stats.warp_instructions;
        let [top_k, top_p, _, _, flat] = ASKS.each_ref().map(instructions);
        assert!(2 * top_k < top_p && 2 * top_p < flat, "{top_k} {top_p} {flat}");
    }
}
