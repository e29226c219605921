//! What must be true of every kernel's text.

use bitnet_kernels::gpu::table::{
    ATTENTION_R32_D256, BITLINEAR_T8, KERNELS, Kernel, NORM_QUANTIZE, SAMPLE, overlapped, waits,
};

/// Without `.rn`, the driver's compiler may fuse a multiplication and an addition, so that drivers could differ.
#[test]
fn every_float_operation_of_every_kernel_names_its_rounding() {
    let rounded =
        ["add", "sub", "mul", "fma", "mad", "div", "rcp", "sqrt", "rsqrt", "ex2", "lg2", "sin", "cos"];
    let mut seen = 0;
    for kernel in KERNELS {
        let code = kernel.text.lines().map(|line| line.split("//").next().unwrap_or_default());
        for statement in code.flat_map(|line| line.split(';')) {
            let mut words = statement.split_whitespace().skip_while(|word| word.starts_with('@'));
            let opcode = words.next().unwrap_or_default();
            let mut parts = opcode.split('.');
            let float = opcode.ends_with(".f32") || opcode.ends_with(".f64");
            if float && parts.next().is_some_and(|name| rounded.contains(&name)) {
                assert!(parts.any(|part| part == "rn"), "{}: {}", kernel.name, statement.trim());
                seen += 1;
            }
        }
    }
    assert!(seen > 1000, "{seen} operations seen");
}

#[test]
fn a_kernel_is_called_the_same_in_its_header_its_entry_and_its_row() {
    for kernel in KERNELS {
        let header = kernel.text.lines().nth(1).unwrap().trim_start_matches('/');
        assert_eq!(header.split_whitespace().next(), Some(kernel.name));
        assert!(kernel.text.contains(&format!(".visible .entry {}(", kernel.name)), "{}", kernel.name);
        assert!(kernel.text.contains(&format!(".maxntid {}, 1, 1", kernel.block)), "{}", kernel.name);
    }
}

#[test]
fn a_rows_numbers_are_those_of_the_header() {
    let numbers = |k: &Kernel| [k.block, k.shared, k.dynamic, k.registers];
    assert_eq!(numbers(&BITLINEAR_T8), [128, 0, 49_152, 104]);
    assert_eq!(numbers(&NORM_QUANTIZE), [256, 4160, 4, 80]);
    assert_eq!(numbers(&SAMPLE), [1024, 36384, 0, 64]);
    assert_eq!(numbers(&ATTENTION_R32_D256), [128, 0, 91_392, 255]);
    // Where likely tokens go in the list depends on their order.
    assert!(KERNELS.iter().all(|kernel| kernel.conflicts == u64::from(kernel.name == SAMPLE.name)));
}

/// A kernel of a step without a wait would let those after it begin before those before it have ended.
#[test]
fn every_kernel_of_a_step_waits_and_lets_the_next_one_begin() {
    for kernel in KERNELS.iter().filter(|kernel| !kernel.name.contains("peak")) {
        assert!(waits(kernel.text), "{}", kernel.name);
        let newer = overlapped(kernel.text);
        let first = newer.lines().position(|line| line.contains("griddepcontrol")).unwrap();
        assert_eq!(newer.lines().nth(first), Some("  griddepcontrol.launch_dependents;"), "{}", kernel.name);
        assert!(newer.contains("\n  griddepcontrol.wait;\n") && !waits(&newer), "{}", kernel.name);
        assert_eq!(newer.lines().count(), kernel.text.lines().count(), "lines keep their numbers");
    }
    assert!(KERNELS.iter().filter(|kernel| kernel.name.contains("peak")).all(|kernel| !waits(kernel.text)));
}
