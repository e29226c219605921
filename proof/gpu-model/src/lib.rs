//! Predicts the time of a step on a GPU from the machine code of its kernels, for as long as no GPU has measured it.
#![allow(clippy::print_stdout, reason = "its tool prints results")]

mod assumptions;
mod rescore;
mod sampling;
mod sass;

use std::{
    collections::{BTreeMap, btree_map::Entry},
    fmt::Write,
    fs,
};

use anyhow::{Context, Result, ensure};
use bitnet_kernels::{
    SamplingParams, Wanted,
    gpu::{
        Gpu,
        table::{Kernel, RESCORE, overlapped, waits},
    },
};
use bitnet_model::{Batch, Hybrid, Limits, Logits, Model, ModelSpec, Synthetic, Transformer};
use bitnet_ptx_check::{Tools, before};
use bitnet_tests::{Sample, Samples, Simulator};
use bitnet_workspace::{git, root};
use clap::Args;

use assumptions::{
    CHIPS, Case, Chip, Device, F64, GAP, JUDGED, OVERLAPPED_GAP, Place, STATES, UNITS, cases, place,
};
use sass::{Path, path};

/// Predict the time of each kernel, a layer and a step on a GPU that is not there, from machine code, the launches of
/// the forward pass, and published numbers
#[derive(Debug, Args)]
pub struct GpuModel {
    /// Models to predict
    #[arg(default_values = ["2b4t", "bonsai-8b", "bonsai-27b"])]
    models: Vec<String>,
    /// The chip: hopper (H200, H100) or ada (RTX 4090)
    #[arg(long, default_value = "hopper", value_parser = chip)]
    chip: &'static str,
    /// Print the kernels of a layer and the rest of the step, too
    #[arg(long)]
    kernels: bool,
    /// Also write the prediction to this file in the repository
    #[arg(long)]
    out: Option<String>,
}

fn chip(name: &str) -> Result<&'static str, String> {
    let found = CHIPS.iter().find(|chip| chip.name == name);
    found.map(|chip| chip.name).ok_or_else(|| "choose hopper or ada".to_owned())
}

/// The machine code of a kernel.
struct Code {
    listing: String,
    registers: u32,
    /// Whether it waits for earlier kernels itself.
    overlapped: bool,
}

/// What bounds a launch: the wait of its longest warp for itself, its units, or its bytes; with the microseconds.
struct Time {
    kernel: &'static str,
    us: f64,
    bound: &'static str,
}

impl GpuModel {
    /// Prints the prediction.
    ///
    /// # Errors
    /// If a model is unknown, or there is no assembler.
    pub fn run(&self) -> Result<()> {
        let tools = Tools::find_or_install()?.context("the model reads machine code: no ptxas")?;
        let chip = CHIPS.iter().find(|chip| chip.name == self.chip).context("a chip of the list")?;
        let overlaps = chip.capability >= (9, 0);
        let mut codes = BTreeMap::new();
        let mut text = String::new();
        for name in &self.models {
            let mut kinds = kinds(Synthetic::named(name)?.spec(), cases(name), chip)?;
            writeln!(text, "{name}: us, tokens/s")?;
            for case in cases(name) {
                let steps: Vec<Vec<Sample>> =
                    kinds.iter_mut().map(|kind| kind.launches(case)).collect::<Result<_>>()?;
                for sample in steps.iter().flatten() {
                    let kernel = sample.launch.kernel();
                    for overlapped in [false, true].into_iter().filter(|overlapped| overlaps || !overlapped) {
                        let known = codes.entry((kernel.name, overlapped));
                        if let Entry::Vacant(new) = known {
                            new.insert(code(&tools, kernel, chip, overlapped)?);
                        }
                    }
                }
                let ways = chip.devices.iter().flat_map(|device| [(device, false), (device, true)]);
                for (device, overlapped) in ways.filter(|&(_, overlapped)| overlaps || !overlapped) {
                    let of = |sample: &Sample| &codes[&(sample.launch.kernel().name, overlapped)];
                    let timed =
                        |sample: &Sample| time(sample, &path(of(sample), sample), of(sample), (chip, device));
                    let parts: Vec<Part> = (kinds.iter().zip(&steps))
                        .map(|(kind, step)| Part {
                            layers: kind.layers,
                            times: step.iter().map(timed).collect(),
                        })
                        .collect();
                    let listed =
                        self.kernels && overlapped == overlaps && device.name == chip.devices[0].name;
                    let how = if overlapped { "overlapped" } else { "apart" };
                    report(&mut text, case, (device, how), &parts, JUDGED.contains(&name.as_str()), listed)?;
                }
            }
        }
        text += &sampling::report(&tools, chip)?;
        print!("{text}");
        let Some(out) = &self.out else { return Ok(()) };
        let made = format!(
            "cargo xtask gpu-model {} --chip {}{}",
            self.models.join(" "),
            self.chip,
            if self.kernels { " --kernels" } else { "" }
        );
        let about = format!("Predicted, not measured. `{made}` at {}\n\n", git(&["rev-parse", "HEAD"])?);
        let path = root().join(out);
        fs::create_dir_all(path.parent().context("a file in a folder")?)?;
        fs::write(&path, format!("{about}```text\n{text}```\n")).with_context(|| path.display().to_string())
    }
}

fn code(tools: &Tools, kernel: &'static Kernel, chip: &Chip, overlap: bool) -> Result<Code> {
    let overlap = overlap && waits(kernel.text);
    let text = if overlap { overlapped(kernel.text) } else { kernel.text.to_owned() };
    let code = tools.assemble(&text, chip.code)?;
    let registers = before(&code.report, "registers").context("the assembler reports no registers")?;
    Ok(Code { listing: code.listing, registers, overlapped: overlap })
}

/// A model with one layer, and the number of such layers in the whole model, which all launch the same.
struct Kind {
    layers: usize,
    model: Transformer<Gpu<Simulator>>,
    samples: Samples,
    chip: &'static Chip,
}

/// A model with one layer for each kind of layer: all are alike, or some attend and the others have a state.
fn kinds(spec: &ModelSpec, cases: &[Case], chip: &'static Chip) -> Result<Vec<Kind>> {
    let one = ModelSpec { layers: 1, ..spec.clone() };
    let Some(hybrid) = &spec.hybrid else { return Ok(vec![Kind::load(spec.layers, one, cases, chip)?]) };
    let of = |attends: bool| ModelSpec {
        hybrid: Some(Hybrid { attends: [attends].into(), ..hybrid.clone() }),
        ..one.clone()
    };
    let numbers = [(spec.recurrent_layers(), false), (spec.attention_layers(), true)];
    numbers.into_iter().map(|(layers, attends)| Kind::load(layers, of(attends), cases, chip)).collect()
}

/// A simulator with the sizes of a chip, and what it samples.
fn sampled(chip: &Chip) -> (Simulator, Samples) {
    Simulator::sampled(|info| {
        (info.capability, info.overlap) = (chip.capability, chip.capability >= (9, 0));
        (info.processors, info.memory, info.shared) = (chip.processors, 80 << 30, chip.shared);
        info.processor_shared = chip.room[2];
    })
}

impl Kind {
    fn load(layers: usize, spec: ModelSpec, cases: &[Case], chip: &'static Chip) -> Result<Kind> {
        let (simulator, samples) = sampled(chip);
        let largest = |of: fn(&Case) -> usize| cases.iter().map(of).max().unwrap_or(0);
        let limits = Limits {
            max_tokens: largest(|case| case.sequences * case.tokens),
            max_logit_rows: 256,
            kv_blocks: largest(|case| case.sequences * case.blocks()),
            state_slots: if spec.hybrid.is_some() { largest(|case| case.sequences) } else { 0 },
        };
        let source = Synthetic::of(spec);
        let model = Transformer::load(source.spec(), &source, Gpu::new(simulator)?, limits, &mut |_, _| {})?;
        Ok(Kind { layers, model, samples, chip })
    }

    /// The launches of a step.
    fn launches(&mut self, case: &Case) -> Result<Vec<Sample>> {
        let mut batch = Batch::new();
        for sequence in 0..case.sequences {
            let blocks: Vec<u32> =
                (0..case.blocks()).map(|block| (sequence * case.blocks() + block) as u32).collect();
            batch.push(&vec![1; case.tokens], case.context, &blocks, case.tokens - 1..case.tokens);
            batch.set_state(sequence as u32);
            batch.want(|_| Wanted::Token(SamplingParams::GREEDY));
        }
        self.samples.lock().expect("nothing panicked").clear();
        self.model.forward(&batch, &mut Logits::default())?;
        let mut step = std::mem::take(&mut *self.samples.lock().expect("nothing panicked"));
        ensure!(!step.is_empty(), "a step launches kernels");
        let spec = self.model.spec();
        let rescores = |sample: &&mut Sample| sample.launch.kernel().name == RESCORE.name;
        if let Some(sample) = step.iter_mut().find(rescores) {
            *sample = rescore::launch(case.sequences, [spec.vocab, spec.hidden], self.chip)?;
        }
        Ok(step)
    }
}

impl Case {
    /// Blocks of the cache for a sequence.
    fn blocks(&self) -> usize {
        (self.context + self.tokens).div_ceil(Batch::BLOCK_TOKENS)
    }
}

/// The time of a launch: a gap, then whatever takes longest.
fn time(sample: &Sample, path: &Path, code: &Code, (chip, device): (&Chip, &Device)) -> Time {
    let (kernel, grid) = (sample.launch.kernel(), sample.launch.grid());
    let blocks = f64::from(grid.blocks.iter().product::<u32>());
    let shared = kernel.shared + grid.shared + 1024;
    let each = [kernel.block, code.registers.next_multiple_of(8) * kernel.block, shared, 1];
    let resident =
        f64::from(chip.room.iter().zip(each).map(|(room, each)| room / each).min().unwrap_or(1).max(1));
    let per_processor = (blocks / f64::from(chip.processors)).ceil();
    // Blocks that ran were the longest and the shortest.
    let mean = path.mean;
    let warps = f64::from(kernel.block / 32);
    let rounds = (per_processor / resident).ceil();
    let busy = path.busy.map(|cycles| cycles * mean * warps * per_processor / 4.0);
    let chain = path.chain * (1.0 + (rounds - 1.0) * mean.min(1.0)) + 4.0 * busy[F64] * chip.f64_cycles;
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
    let stored: f64 = stored.map(|&(what, size, moved)| moved.min(passes_over(what) * size as f64)).sum();
    let units = ["integers", "floats", "f64", "special", "matrices", "loads", "f64", "dispatch"];
    let mut bounds = vec![
        ("its chain", chain / chip.clock),
        ("shared memory", passes / chip.clock),
        ("cache", cached / chip.cache),
        ("memory", stored / device.memory),
    ];
    bounds.extend((0..UNITS).map(|unit| (units[unit], busy[unit] / chip.clock)));
    let (bound, us) = bounds.into_iter().max_by(|a, b| a.1.total_cmp(&b.1)).expect("there are bounds");
    let gap = if code.overlapped { OVERLAPPED_GAP } else { GAP };
    Time { kernel: kernel.name, us: gap + us, bound }
}

/// How often a step moves an allocation between memory and cache, at most: states are read and written.
fn passes_over(what: &str) -> f64 {
    if what == STATES { 2.0 } else { 1.0 }
}

/// The times of a step of a model with one layer, and the number of such layers.
struct Part {
    layers: usize,
    times: Vec<Time>,
}

impl Part {
    /// The kernels of the layer: what lies between the embedding and the norm of the wanted rows.
    fn layer(&self) -> Result<&[Time]> {
        let embeds = |time: &Time| ["embed", "sm80_hadamard"].iter().any(|name| time.kernel.contains(name));
        let start = self.times.iter().take_while(|time| embeds(time)).count();
        let end = self.times.iter().position(|time| time.kernel.contains("norm_rows"));
        let layer = end.and_then(|end| self.times.get(start..end));
        layer.context("a step embeds, has a layer, and ends with a norm")
    }
}

fn sum(times: &[Time]) -> f64 {
    times.iter().map(|time| time.us).sum()
}

/// Adds a row for a step, and its kernels if they are to be listed.
fn report(
    text: &mut String,
    case: &Case,
    (device, how): (&Device, &str),
    parts: &[Part],
    goals: bool,
    listed: bool,
) -> Result<()> {
    let layers: Vec<f64> = parts.iter().map(|part| Ok(sum(part.layer()?))).collect::<Result<_>>()?;
    let first = parts.first().context("a model has layers")?;
    let around = sum(&first.times) - layers[0];
    let step = around + parts.iter().zip(&layers).map(|(part, us)| part.layers as f64 * us).sum::<f64>();
    let speed = (case.sequences * case.tokens) as f64 / step * 1e6;
    let goal = case.goal.as_ref().filter(|_| goals && device.name == "H200");
    let goal = goal.map_or(String::new(), |goal| {
        let hoped = format!("  moonshot {:>6.0}", goal.moonshot);
        format!("  must {:>6.0}{}", goal.must, if goal.moonshot > 0.0 { &hoped } else { "" })
    });
    let shape = format!("{} x {} after {}", case.sequences, case.tokens, case.context);
    writeln!(
        text,
        "  {}  {shape:<17} {how:<10} step {step:>8.0}  layer {}  {speed:>7.0} tokens/s{goal}",
        device.name,
        layers.iter().map(|us| format!("{us:>7.1}")).collect::<Vec<_>>().join(" and "),
    )?;
    for (number, part) in parts.iter().enumerate().filter(|_| listed) {
        // What surrounds the layers is the same for all kinds.
        let times = if number == 0 { &part.times[..] } else { part.layer()? };
        for time in times {
            writeln!(text, "      {:<32} {:>7.1}  {}", time.kernel, time.us, time.bound)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::{
        assumptions::{CASES, RECURRENT},
        sass::mean,
        *,
    };

    #[test]
    fn a_step_is_its_layers_and_what_surrounds_them() {
        let of = |kernel, us| Time { kernel, us, bound: "memory" };
        let times =
            [of("embed", 2.0), of("product", 10.0), of("norm", 5.0), of("norm_rows", 3.0), of("head", 100.0)];
        let mut text = String::new();
        let parts = [Part { layers: 30, times: times.into() }];
        report(&mut text, &CASES[0], (&CHIPS[0].devices[0], "apart"), &parts, true, false).unwrap();
        // 2 + 30 * 15 + 103
        assert!(text.contains("step      555  layer    15.0     1802 tokens/s  must   1400"), "{text}");
    }

    #[test]
    fn a_launch_takes_as_long_as_the_longest_of_chain_units_and_bytes() {
        let mut kinds = kinds(Synthetic::named("tiny").unwrap().spec(), &CASES, &CHIPS[0]).unwrap();
        let case = CASES.iter().find(|case| case.sequences == 256).unwrap();
        let step = kinds[0].launches(case).unwrap();
        let norm = step.iter().find(|s| s.launch.kernel().name.contains("norm_quantize")).unwrap();
        let mean = mean(norm);
        assert!((0.5..=1.0).contains(&mean), "{mean}");
        let path =
            |chain, integers| Path { chain, busy: [integers, 0.0, 0.0, 0.0, 0.0, 0.0, 34.0, 0.0], mean };
        let code = |overlapped| Code { listing: String::new(), registers: 40, overlapped };
        let [hopper, ada] = CHIPS.each_ref().map(|chip| (chip, &chip.devices[0]));
        let time = |path: Path| time(norm, &path, &code(false), hopper);
        // 256 blocks of 8 warps on 132 multiprocessors: two blocks on one, at once.
        let overlapped = super::time(norm, &path(17_550.0, 0.0), &code(true), hopper);
        // 34 f64 instructions of each of 16 warps keep the only unit of a multiprocessor busy for 16 cycles each.
        let slow = super::time(norm, &path(25_200.0, 0.0), &code(false), ada);
        let f64s = 34.0 * mean * 16.0 * 16.0 / 2520.0;
        assert!((slow.us - GAP - 10.0 - f64s).abs() < 1e-9 && slow.bound == "its chain", "{}", slow.us);
        assert!((overlapped.us - OVERLAPPED_GAP - 10.0).abs() < 1e-9 && OVERLAPPED_GAP < GAP);
        let (chain, units) = (time(path(17_550.0, 0.0)), time(path(0.0, 17_550.0)));
        assert_eq!((chain.bound, chain.us), ("its chain", GAP + 10.0));
        assert_eq!(units.bound, "integers");
        assert!((units.us - GAP - 10.0 * mean * 2.0 * 8.0 / 4.0).abs() < 1e-9, "{}", units.us);
        // A row of 256 floats, its gain and 1 KB for each token.
        let bytes = time(path(0.0, 0.0));
        assert!(["cache", "shared memory"].contains(&bytes.bound) && bytes.us < GAP + 1.0, "{}", bytes.us);
    }

    #[test]
    fn a_step_of_a_recurrent_model_reads_and_writes_the_states_of_its_sequences() {
        let spec = Synthetic::named("hybrid-tiny").unwrap().spec().clone();
        let kinds = kinds(&spec, &RECURRENT, &CHIPS[0]).unwrap();
        assert_eq!(kinds.iter().map(|kind| kind.layers).collect::<Vec<_>>(), [3, 1]);
        let [mut recurrent, mut attention] = kinds.try_into().map_err(|_| "two kinds").unwrap();
        let case = RECURRENT.iter().find(|case| case.sequences == 64).unwrap();
        let moved = |kind: &mut Kind| -> f64 {
            let step = kind.launches(case).unwrap();
            let lines = step.iter().flat_map(|sample| {
                let all = 32.0 * f64::from(sample.launch.grid().blocks.iter().product::<u32>());
                let states = sample.places.iter().filter(|(_, place)| place.0 == STATES);
                states.map(move |(line, _)| {
                    sample.stats.lines[line].sectors as f64 * all / f64::from(sample.blocks)
                })
            });
            lines.sum()
        };
        let delta = spec.delta().unwrap();
        let heads = delta.value_heads * delta.head_dim * delta.head_dim;
        let twice = (64 * 2 * 4 * heads) as f64;
        let inputs = (64 * 2 * 4 * (delta.state_len() - heads)) as f64;
        let moved = (moved(&mut recurrent), moved(&mut attention));
        assert!((twice..=twice + 2.0 * inputs).contains(&moved.0), "{moved:?} {twice} {inputs}");
        assert_eq!(moved.1, 0.0);
        assert_eq!((place(STATES), passes_over(STATES)), (Place::Memory, 2.0));
    }

    #[test]
    fn a_step_has_as_many_layers_of_each_kind_as_the_model() {
        let of = |kernel, us| Time { kernel, us, bound: "memory" };
        let around = |kernel, us| {
            let times = [of("embed", 2.0), of(kernel, us), of("norm_rows", 3.0), of("head", 100.0)];
            times.into_iter().collect()
        };
        let parts = [
            Part { layers: 48, times: around("delta", 20.0) },
            Part { layers: 16, times: around("attention", 10.0) },
        ];
        let mut text = String::new();
        report(&mut text, &RECURRENT[0], (&CHIPS[0].devices[0], "apart"), &parts, true, true).unwrap();
        // 105 + 48 * 20 + 16 * 10
        assert!(
            text.contains("step     1225  layer    20.0 and    10.0      816 tokens/s  must    300\n"),
            "{text}"
        );
        assert_eq!(text.matches("embed").count(), 1);
    }
}
