//! Single instructions, on the simulator and, in the GPU bundle, on a GPU.

use std::collections::BTreeSet;

use bitnet_kernels::gpu::table::KERNELS;
use bitnet_tests::{Simulator, instructions::INSTRUCTIONS};

#[test]
fn every_instruction_gives_the_manuals_bits() {
    let mut driver = Simulator::default();
    let wrong: Vec<String> = INSTRUCTIONS.iter().filter_map(|i| i.check(&mut driver).err()).collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Opcodes of a text, without labels and guards.
fn opcodes(text: &str) -> BTreeSet<&str> {
    let code = text.lines().map(|line| line.split("//").next().unwrap_or_default());
    let statements = code.flat_map(|line| line.split(';'));
    let words = statements.map(|statement| {
        let mut words = statement.split_whitespace().skip_while(|w| w.starts_with('@') || w.ends_with(':'));
        words.next().unwrap_or_default()
    });
    words.filter(|word| word.starts_with(|c: char| c.is_ascii_lowercase())).collect()
}

/// Instructions that move data or need several threads are covered by the cases of the kernels.
#[test]
fn every_opcode_that_computes_in_a_kernel_has_a_case() {
    let elsewhere =
        ["ld", "st", "cp", "bar", "bra", "exit", "ret", "membar", "mma", "ldmatrix", "shfl", "vote", "redux"];
    let tried: BTreeSet<&str> = INSTRUCTIONS.iter().flat_map(|case| opcodes(case.text)).collect();
    let used = KERNELS.iter().flat_map(|kernel| opcodes(kernel.text));
    let missing: BTreeSet<&str> = used
        .filter(|opcode| !elsewhere.contains(&opcode.split('.').next().unwrap_or_default()))
        .filter(|opcode| !tried.contains(opcode))
        .collect();
    assert!(missing.is_empty() && tried.len() > 80, "{missing:?}");
}
