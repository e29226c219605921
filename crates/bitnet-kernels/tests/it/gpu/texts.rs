use bitnet_kernels::gpu::table::KERNELS;

/// Without `.rn` the driver's compiler may fuse a multiplication with an addition, and no two drivers need agree.
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
