//! Predicts the time of a step on a GPU from the machine code of its kernels, for as long as no GPU has measured it.

mod assumptions;
mod sass;

use std::{collections::BTreeMap, fmt::Write, fs};

use anyhow::{Context, Result, ensure};
use bitnet_kernels::{
    SamplingParams, Wanted,
    gpu::{Gpu, table::Kernel},
};
use bitnet_model::{Batch, Limits, Logits, Model, ModelSpec, Synthetic, Transformer};
use bitnet_tests::{Sample, Samples, Simulator};
use clap::Args;

use crate::{
    git,
    ptx_check::{Tools, before},
    root,
};
use assumptions::{CACHE, CASES, CLOCK, Case, DEVICES, Device, GAP, PROCESSORS, Place, ROOM, UNITS, place};
use sass::{Path, path};

/// Predict the time of each kernel, a layer and a step on a GPU that is not there, from machine code, the launches of
/// the forward pass, and published numbers
#[derive(Args)]
pub(crate) struct GpuModel {
    /// Models to predict
    #[arg(default_values = ["2b4t", "bonsai-8b"])]
    models: Vec<String>,
    /// Print the kernels of a layer and the rest of the step, too
    #[arg(long)]
    kernels: bool,
    /// Also write the prediction to this file in the repository
    #[arg(long)]
    out: Option<String>,
}

/// The machine code of a kernel.
struct Code {
    listing: String,
    registers: u32,
}

/// What bounds a launch: the wait of its longest warp for itself, its units, or its bytes; with the microseconds.
struct Time {
    kernel: &'static str,
    us: f64,
    bound: &'static str,
}

impl GpuModel {
    pub(crate) fn run(&self) -> Result<()> {
        let tools = Tools::find_or_install()?.context("the model reads machine code: no ptxas")?;
        let mut codes = BTreeMap::new();
        let mut text = String::new();
        for name in &self.models {
            let source = Synthetic::named(name)?;
            let layers = source.spec().layers;
            // All layers launch the same.
            let one = Synthetic::of(ModelSpec { layers: 1, ..source.spec().clone() });
            let (mut model, samples) = load(&one)?;
            writeln!(text, "{name}: us, tokens/s")?;
            for case in &CASES {
                let step = launches(&mut model, &samples, case)?;
                for sample in &step {
                    let kernel = sample.launch.kernel();
                    if !codes.contains_key(kernel.name) {
                        codes.insert(kernel.name, code(&tools, kernel)?);
                    }
                }
                let paths: Vec<Path> =
                    step.iter().map(|s| path(&codes[s.launch.kernel().name].listing, s)).collect();
                for device in &DEVICES {
                    let timed = |(sample, path): (&Sample, &Path)| {
                        time(sample, path, codes[sample.launch.kernel().name].registers, device)
                    };
                    let times: Vec<Time> = step.iter().zip(&paths).map(timed).collect();
                    let listed = self.kernels && device.name == DEVICES[0].name;
                    report(&mut text, case, device, &times, layers, name == "2b4t", listed)?;
                }
            }
        }
        print!("{text}");
        let Some(out) = &self.out else { return Ok(()) };
        let made = format!(
            "cargo xtask gpu-model {}{}",
            self.models.join(" "),
            if self.kernels { " --kernels" } else { "" }
        );
        let about = format!("Predicted, not measured. `{made}` at {}\n\n", git(&["rev-parse", "HEAD"])?);
        let path = root().join(out);
        fs::create_dir_all(path.parent().context("a file in a folder")?)?;
        fs::write(&path, format!("{about}```text\n{text}```\n")).with_context(|| path.display().to_string())
    }
}

fn code(tools: &Tools, kernel: &'static Kernel) -> Result<Code> {
    let code = tools.assemble(kernel, "90")?;
    let registers = before(&code.report, "registers").context("the assembler reports no registers")?;
    Ok(Code { listing: code.listing, registers })
}

fn load(source: &Synthetic) -> Result<(Transformer<Gpu<Simulator>>, Samples)> {
    let (simulator, samples) = Simulator::sampled(|info| {
        (info.processors, info.memory, info.shared) = (PROCESSORS, 80 << 30, 227 << 10);
    });
    let blocks = CASES.iter().map(|case| case.sequences * case.blocks()).max().unwrap_or(0);
    let tokens = CASES.iter().map(|case| case.sequences * case.tokens).max().unwrap_or(0);
    let limits = Limits { max_tokens: tokens, max_logit_rows: 256, kv_blocks: blocks, state_slots: 0 };
    let model = Transformer::load(source.spec(), source, Gpu::new(simulator)?, limits, &mut |_, _| {})?;
    Ok((model, samples))
}

/// The launches of a step of a model with one layer.
fn launches(model: &mut dyn Model, samples: &Samples, case: &Case) -> Result<Vec<Sample>> {
    let mut batch = Batch::new();
    for sequence in 0..case.sequences {
        let blocks: Vec<u32> =
            (0..case.blocks()).map(|block| (sequence * case.blocks() + block) as u32).collect();
        batch.push(&vec![1; case.tokens], case.context, &blocks, case.tokens - 1..case.tokens);
        batch.want(|_| Wanted::Token(SamplingParams::GREEDY));
    }
    samples.lock().expect("nothing panicked").clear();
    model.forward(&batch, &mut Logits::default())?;
    let step = std::mem::take(&mut *samples.lock().expect("nothing panicked"));
    ensure!(!step.is_empty(), "a step launches kernels");
    Ok(step)
}

impl Case {
    /// Blocks of the cache for a sequence.
    fn blocks(&self) -> usize {
        (self.context + self.tokens).div_ceil(Batch::BLOCK_TOKENS)
    }
}

/// The time of a launch: a gap, then whatever takes longest.
fn time(sample: &Sample, path: &Path, registers: u32, device: &Device) -> Time {
    let (kernel, grid) = (sample.launch.kernel(), sample.launch.grid());
    let blocks = f64::from(grid.blocks.iter().product::<u32>());
    let shared = kernel.shared + grid.shared + 1024;
    let each = [kernel.block, registers.next_multiple_of(8) * kernel.block, shared, 1];
    let resident = f64::from(ROOM.iter().zip(each).map(|(room, each)| room / each).min().unwrap_or(1).max(1));
    let per_processor = (blocks / f64::from(PROCESSORS)).ceil();
    // Blocks that ran were the longest and the shortest.
    let counts = sample.stats.lines.values();
    let longest: u64 = counts.clone().map(|line| line.longest).sum();
    let warps = f64::from(kernel.block / 32);
    let mean = sample.stats.warp_instructions as f64 / (longest as f64 * f64::from(sample.blocks) * warps);
    let rounds = (per_processor / resident).ceil();
    let chain = path.chain * (1.0 + (rounds - 1.0) * mean.min(1.0));
    let busy = path.busy.map(|cycles| cycles * mean * warps * per_processor / 4.0);
    let passes = (sample.stats.shared_passes + sample.stats.bank_conflicts) as f64;
    let passes = passes / f64::from(sample.blocks) * per_processor;
    let all = 32.0 * blocks / f64::from(sample.blocks);
    let mut bytes = BTreeMap::new();
    for (line, &(what, at, size)) in &sample.places {
        let read = sample.stats.lines[line].sectors as f64 * all;
        bytes.entry(at).or_insert((what, size, 0.0)).2 += read;
    }
    let cached: f64 = bytes.values().map(|place| place.2).sum();
    let stored = bytes.values().filter(|(what, ..)| place(what) == Place::Memory);
    let stored: f64 = stored.map(|&(_, size, read)| read.min(size as f64)).sum();
    let units = ["integers", "floats", "f64", "special", "matrices", "loads", "dispatch"];
    let mut bounds = vec![
        ("its chain", chain / CLOCK),
        ("shared memory", passes / CLOCK),
        ("cache", cached / CACHE),
        ("memory", stored / device.memory),
    ];
    bounds.extend((0..UNITS).map(|unit| (units[unit], busy[unit] / CLOCK)));
    let (bound, us) = bounds.into_iter().max_by(|a, b| a.1.total_cmp(&b.1)).expect("there are bounds");
    Time { kernel: kernel.name, us: GAP + us, bound }
}

/// Adds a row for a step, and its kernels if they are to be listed.
fn report(
    text: &mut String,
    case: &Case,
    device: &Device,
    times: &[Time],
    layers: usize,
    goals: bool,
    listed: bool,
) -> Result<()> {
    // A layer is what lies between the embedding and the norm of the wanted rows.
    let end =
        times.iter().position(|time| time.kernel.contains("norm_rows")).context("a step ends with a norm")?;
    let sum = |times: &[Time]| times.iter().map(|time| time.us).sum::<f64>();
    let layer = sum(&times[1..end]);
    let step = sum(times) + (layers - 1) as f64 * layer;
    let speed = (case.sequences * case.tokens) as f64 / step * 1e6;
    let goal = case.goal.as_ref().filter(|_| goals && device.name == "H200");
    let goal =
        goal.map_or(String::new(), |g| format!("  must {:>6.0}  moonshot {:>6.0}", g.must, g.moonshot));
    let shape = format!("{} x {} after {}", case.sequences, case.tokens, case.context);
    writeln!(
        text,
        "  {}  {shape:<17} step {step:>8.0}  layer {layer:>7.1}  {speed:>7.0} tokens/s{goal}",
        device.name
    )?;
    for time in times.iter().filter(|_| listed) {
        writeln!(text, "      {:<32} {:>7.1}  {}", time.kernel, time.us, time.bound)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_is_its_layers_and_what_surrounds_them() {
        let of = |kernel, us| Time { kernel, us, bound: "memory" };
        let times =
            [of("embed", 2.0), of("product", 10.0), of("norm", 5.0), of("norm_rows", 3.0), of("head", 100.0)];
        let mut text = String::new();
        report(&mut text, &CASES[0], &DEVICES[0], &times, 30, true, false).unwrap();
        // 2 + 30 * 15 + 103
        assert!(text.contains("step      555  layer    15.0     1802 tokens/s  must   1400"), "{text}");
    }

    #[test]
    fn a_launch_takes_as_long_as_the_longest_of_chain_units_and_bytes() {
        let source = Synthetic::named("tiny").unwrap();
        let (mut model, samples) = load(&source).unwrap();
        let case = CASES.iter().find(|case| case.sequences == 256).unwrap();
        let step = launches(&mut model, &samples, case).unwrap();
        let norm = step.iter().find(|s| s.launch.kernel().name.contains("norm_quantize")).unwrap();
        let path = |chain, integers| Path { chain, busy: [integers, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0] };
        let time = |path: Path| time(norm, &path, 40, &DEVICES[0]);
        // 256 blocks of 8 warps on 132 multiprocessors: two blocks on one, at once.
        let (chain, units) = (time(path(17_550.0, 0.0)), time(path(0.0, 17_550.0)));
        assert_eq!((chain.bound, chain.us), ("its chain", GAP + 10.0));
        let mean = norm.stats.warp_instructions as f64
            / (norm.stats.lines.values().map(|l| l.longest).sum::<u64>() as f64
                * 8.0
                * f64::from(norm.blocks));
        assert_eq!(units.bound, "integers");
        assert!((units.us - GAP - 10.0 * mean * 2.0 * 8.0 / 4.0).abs() < 1e-9, "{}", units.us);
        // A row of 256 floats, its gain and 1 KB for each token.
        let bytes = time(path(0.0, 0.0));
        assert!(["cache", "shared memory"].contains(&bytes.bound) && bytes.us < GAP + 1.0, "{}", bytes.us);
    }
}
