//! Kernels with one defect each, which must fault or give other values: a defect that no test notices is not tested.
//! The defects are text files in `mutants/`:
//!
//! ```text
//! kernel, operation that must notice the defect, and its sizes: defect
//! - part of the kernel's text, which may be some lines
//! + what replaces it, if anything does
//! ```

use std::collections::{BTreeMap, BTreeSet};

use bitnet_kernels::{
    Gate, KvType,
    gpu::{
        GpuError,
        table::{KERNELS, Kernel},
    },
};
use bitnet_tests::Simulator;

use super::{
    attention::{HIDDEN, Heads, attend, bits, sequence},
    bit_linear::Product,
    logits::{logits, values},
    small,
};

/// Enough features for several splits on the simulator's four processors; twice on one backend, added to the output.
fn split_product(simulator: Simulator, n: usize) -> Result<Vec<u32>, GpuError> {
    let values = Product::new(n, 2048, &[128, 39]).stored(simulator, true)?;
    Ok(values.iter().map(|x| x.to_bits()).collect())
}

/// Fewer features than the minimum of a split, stored.
fn whole_product(simulator: Simulator, n: usize) -> Result<Vec<u32>, GpuError> {
    let values = Product::new(n, 800, &[128, 39]).stored(simulator, false)?;
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

fn head(simulator: Simulator, n: usize, width: usize) -> Result<Vec<u32>, GpuError> {
    let logits = logits(simulator, width, 150, &values(n * width, 0.7), &values(150 * width, 0.3))?;
    Ok(logits.iter().map(|x| x.to_bits()).collect())
}

const HEADS: Heads = Heads { queries: 3, keys: 1, dim: 100, kv: KvType::Bf16, window: None };
const INT8_HEADS: Heads = Heads { kv: KvType::Int8, ..HEADS };

/// Three tiles of keys, the last one partial. The second step begins within a tile, so that blocks of rows do too.
fn prompt(simulator: Simulator, heads: Heads) -> Result<Vec<u32>, GpuError> {
    Ok(bits(&attend(simulator, heads, &[sequence(150, 1)], &[&[(0, 0, 10)], &[(0, 10, 150)]])?.0))
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
fn decode(simulator: Simulator, heads: Heads) -> Result<Vec<u32>, GpuError> {
    let steps: &[&[_]] = &[&[(0, 0, 390), (1, 0, 20)], &[(0, 390, 391), (1, 20, 21)], &[(0, 391, 392)]];
    Ok(bits(&attend(simulator, heads, &[sequence(392, 1), sequence(21, 2)], steps)?.0))
}

/// A prompt that is longer than its windows. Those of the first rows of a block begin in a tile of which the others see
/// no key.
fn windowed_prompt(simulator: Simulator) -> Result<Vec<u32>, GpuError> {
    let heads = Heads { queries: 1, window: Some(20), ..HEADS };
    Ok(bits(&attend(simulator, heads, &[sequence(120, 1)], &[&[(0, 0, 70)], &[(0, 70, 120)]])?.0))
}

/// Some tokens, whose windows begin in the fourth tile of keys and the fifth, beside another sequence; with several
/// processors, they are split.
fn windowed_decode(simulator: Simulator) -> Result<Vec<u32>, GpuError> {
    let heads = Heads { window: Some(136), ..HEADS };
    let steps: &[&[_]] = &[&[(0, 0, 390), (1, 0, 20)], &[(0, 390, 393), (1, 20, 21)]];
    Ok(bits(&attend(simulator, heads, &[sequence(393, 1), sequence(21, 2)], steps)?.0))
}

/// All mutants.
const TEXTS: [&str; 14] = [
    include_str!("mutants/attention.txt"),
    include_str!("mutants/attention_int8.txt"),
    include_str!("mutants/bitlinear.txt"),
    include_str!("mutants/delta.txt"),
    include_str!("mutants/draw.txt"),
    include_str!("mutants/experts.txt"),
    include_str!("mutants/grouped.txt"),
    include_str!("mutants/grouped_one_token.txt"),
    include_str!("mutants/head.txt"),
    include_str!("mutants/int8.txt"),
    include_str!("mutants/norm_quantize.txt"),
    include_str!("mutants/one_token.txt"),
    include_str!("mutants/rows.txt"),
    include_str!("mutants/shortlist.txt"),
];

/// A kernel with a defect.
struct Mutant {
    kernel: &'static Kernel,
    defect: &'static str,
    before: String,
    after: String,
    operation: &'static str,
    sizes: Vec<usize>,
}

impl Mutant {
    fn parse(text: &'static str) -> Self {
        let (head, body) = text.split_once('\n').expect("a mutant has a first line and a change");
        let (names, defect) = head.split_once(": ").expect("the first line ends with the defect");
        let (name, operation) =
            names.split_once(", ").expect("the first line begins with kernel and operation");
        let mut words = operation.split(' ');
        let lines = |mark| {
            let lines: Vec<_> = body.lines().filter_map(|line| line.strip_prefix(mark)).collect();
            lines.join("\n")
        };
        Mutant {
            kernel: KERNELS.iter().find(|kernel| kernel.name == name).expect("the kernel is in the table"),
            defect,
            before: lines("- "),
            after: lines("+ "),
            operation: words.next().expect("an operation"),
            sizes: words.map(|word| word.parse().expect("a size")).collect(),
        }
    }

    /// Runs the operation and returns all values that it computed.
    fn run(&self, simulator: Simulator) -> Result<Vec<u32>, GpuError> {
        match (self.operation, &self.sizes[..]) {
            ("split_product", &[n]) => split_product(simulator, n),
            ("whole_product", &[n]) => whole_product(simulator, n),
            ("one_token", []) => one_token(simulator),
            ("gates", []) => gates(simulator),
            ("head", &[n, width]) => head(simulator, n, width),
            ("prompt", []) => prompt(simulator, HEADS),
            ("prompt_int8", []) => prompt(simulator, INT8_HEADS),
            ("short_prompt", []) => short_prompt(simulator),
            ("poisoned_prompt", []) => poisoned_prompt(simulator),
            ("decode", []) => decode(simulator, HEADS),
            ("decode_int8", []) => decode(simulator, INT8_HEADS),
            ("windowed_prompt", []) => windowed_prompt(simulator),
            ("windowed_decode", []) => windowed_decode(simulator),
            ("bounded", &[n, width]) => small::bounded(simulator, n, width),
            ("bounded_in_little", &[n, width]) => small::bounded_in_little(simulator, n, width),
            ("normed_product", &[rows]) => small::normed_product(simulator, rows),
            ("grouped_normed_product", &[rows, group]) => {
                small::grouped_normed_product(simulator, rows, group)
            }
            ("grouped", &[n, k, group]) => small::grouped(simulator, n, k, group),
            ("int8", &[n, k]) => small::int8(simulator, n, k),
            ("delta", &[dim]) => small::delta(simulator, dim),
            ("delta_drafts", &[dim]) => small::delta_drafts(simulator, dim),
            ("delta_again", []) => small::delta_again(simulator),
            ("dense_product", []) => small::dense_product(simulator),
            ("drawn_flat", []) => small::drawn_flat(simulator),
            ("drawn", []) => small::drawn(simulator),
            ("raced", []) => small::raced(simulator),
            ("edited", []) => small::edited(simulator),
            ("experts", &[n, count]) => small::experts(simulator, n, count),
            ("embedded", []) => small::embedded(simulator),
            ("embedded_rotated", []) => small::embedded_rotated(simulator),
            ("embedded_ternary", []) => small::embedded_ternary(simulator),
            ("greedy", []) => small::greedy(simulator),
            ("groups", []) => small::groups(simulator),
            ("added", []) => small::added(simulator),
            ("clamped", []) => small::clamped(simulator),
            ("normed_heads", []) => small::normed_heads(simulator),
            ("normed_heads_int8", []) => small::normed_heads_int8(simulator),
            ("normed_heads_in_turns", []) => small::normed_heads_in_turns(simulator),
            ("gelu", []) => small::gelu(simulator),
            ("norms", []) => small::norms(simulator),
            ("output_gate", []) => small::output_gate(simulator),
            ("partly_turned", []) => small::partly_turned(simulator, KvType::Bf16),
            ("partly_turned_int8", []) => small::partly_turned(simulator, KvType::Int8),
            ("silu", []) => small::silu(simulator),
            ("squared_relu", []) => small::squared_relu(simulator),
            ("transformed", []) => small::transformed(simulator),
            ("turned_and_copied", []) => small::turned_and_copied(simulator, KvType::Bf16),
            ("turned_and_copied_int8", []) => small::turned_and_copied(simulator, KvType::Int8),
            ("wanted", []) => small::wanted(simulator),
            (operation, sizes) => panic!("{operation} with sizes {sizes:?} is no operation"),
        }
    }
}

fn mutants() -> impl Iterator<Item = Mutant> {
    TEXTS.iter().flat_map(|text| text.trim_end().split("\n\n")).map(Mutant::parse)
}

#[test]
fn every_mutant_is_caught() {
    let (mut caught, mut missed) = (0, Vec::new());
    for mutant in mutants() {
        let (kernel, before) = (mutant.kernel, &mutant.before);
        let name = format!("{}: {}", kernel.name, mutant.defect);
        let there = !before.is_empty() && kernel.text.contains(before);
        assert!(there, "{name}: the kernel has no {before:?}: write the mutant anew");
        let sound = mutant.run(Simulator::default()).unwrap();
        // Some defects show only in some orders of blocks and warps.
        let noticed = (0..8).any(|seed| {
            let text = kernel.text.replacen(before, &mutant.after, 1);
            let broken = mutant.run(Simulator::default().seed(seed).replace(kernel, text));
            // A text that does not load is not a mutant.
            assert!(!matches!(broken, Err(GpuError::ModuleRefused { .. })), "{name}: {broken:?}");
            broken != Ok(sound.clone())
        });
        caught += usize::from(noticed);
        if !noticed {
            missed.push(name);
        }
    }
    assert!(missed.is_empty(), "not noticed:\n{}", missed.join("\n"));
    println!("{caught} mutants caught");
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
    let runs: BTreeMap<&str, Mutant> = mutants().map(|mutant| (mutant.kernel.name, mutant)).collect();
    // Those that measure the matrix units are launched alone; attention to wide heads has the template of the other.
    let none = |name: &str| ["peak", "d256"].iter().any(|part| name.contains(part));
    let all = KERNELS.iter().map(|kernel| kernel.name).filter(|name| !none(name));
    assert_eq!(runs.keys().copied().collect::<BTreeSet<_>>(), all.collect());
    let mut written_early = 0;
    for (name, mutant) in runs {
        let kernel = mutant.kernel;
        let fault =
            |text| mutant.run(Simulator::default().replace(kernel, text)).expect_err(name).to_string();
        let never = fault(kernel.text.replace(WAIT, ""));
        assert!(never.contains("griddepcontrol.wait"), "{name}: {never}");
        let late = fault(waiting_last(kernel.text));
        let (read, written) = (late.contains("is written by an earlier"), late.contains("is written before"));
        assert!(read || written, "{name}: {late}");
        written_early += usize::from(written);
    }
    assert!(written_early > 0, "some kernel reads only what no kernel writes");
}
