//! Where machine code breaks the promises of its kernel's row: spills, registers, instructions.

use bitnet_kernels::gpu::table::Kernel;

/// The assembler's report, and the machine code as text.
#[derive(Debug)]
pub struct Code {
    /// What the assembler says about registers, memory and spills.
    pub report: String,
    /// Instructions.
    pub listing: String,
}

/// Lists where machine code violates its kernel's row.
pub(super) fn problems(kernel: &Kernel, target: &str, code: &Code) -> Vec<String> {
    let mut found = Vec::new();
    let limits = [
        ("bytes stack frame", 0),
        ("bytes spill stores", 0),
        ("bytes spill loads", 0),
        ("registers", kernel.registers),
    ];
    for (what, limit) in limits {
        match before(&code.report, what) {
            Some(n) if n <= limit => {}
            Some(n) => found.push(format!("{n} {what}, the table allows {limit}")),
            None => found.push(format!("the assembler reports nothing about {what}")),
        }
    }
    // Without shared memory the assembler does not mention it.
    let shared = before(&code.report, "bytes smem").unwrap_or(0);
    if shared != kernel.shared {
        found.push(format!("{shared} bytes of static shared memory, the table says {}", kernel.shared));
    }
    for local in ["LDL", "STL"] {
        if code.listing.split_whitespace().any(|word| word.split('.').next() == Some(local)) {
            found.push(format!("{local}: registers spill to local memory"));
        }
    }
    // An atomic that this memory lacks: threads try again until nobody came in between.
    if code.listing.contains("CAST.SPIN") {
        found.push("CAST.SPIN: an atomic in shared memory waits in a loop; add 32 bits at a time".to_owned());
    }
    for wanted in kernel.machine {
        if !code.listing.contains(wanted) {
            found.push(format!("no {wanted} in the machine code"));
        }
    }
    found.iter().map(|what| format!("{} for {target}: {what}", kernel.name)).collect()
}

/// Returns the number before a phrase, the largest if there are several.
fn before(report: &str, phrase: &str) -> Option<u32> {
    let numbers = report.match_indices(phrase).filter_map(|(at, _)| {
        let number = report[..at].split_whitespace().next_back()?;
        number.parse().ok()
    });
    numbers.max()
}

#[cfg(test)]
mod tests {
    use super::{super::Tools, *};
    use bitnet_kernels::gpu::table::{KERNELS, SAMPLE};

    /// Returns the problems of a kernel with this text and row, or `None` if there is no assembler.
    fn planted(text: &str, kernel: Kernel) -> Option<String> {
        let Some(tools) = Tools::find() else {
            println!("skipped: no ptxas on this machine");
            return None;
        };
        assert!(KERNELS.iter().any(|k| k.name == kernel.name));
        let kernel = Kernel { text: Box::leak(text.into()), ..kernel };
        let code = tools.assemble(kernel.text, "80").expect("the kernel assembles");
        Some(problems(&kernel, "sm_80", &code).join("\n"))
    }

    fn plant(text: &str, kernel: Kernel, expected: &[&str]) {
        if let Some(found) = planted(text, kernel) {
            assert!(expected.iter().all(|e| found.contains(e)), "{found}");
            assert_eq!(found.is_empty(), expected.is_empty(), "{found}");
        }
    }

    #[test]
    fn a_planted_spill_is_reported() {
        let squeezed = SAMPLE.text.replace(".maxntid 1024, 1, 1", ".maxntid 1024, 1, 1\n.maxnreg 24");
        assert_ne!(squeezed, SAMPLE.text);
        plant(SAMPLE.text, SAMPLE, &[]);
        plant(&squeezed, SAMPLE, &["bytes spill stores, the table allows 0", "STL"]);
    }

    #[test]
    fn a_wrong_register_budget_is_reported() {
        plant(SAMPLE.text, Kernel { registers: 32, ..SAMPLE }, &["registers, the table allows 32"]);
    }

    #[test]
    fn a_wrong_size_of_shared_memory_is_reported() {
        plant(SAMPLE.text, Kernel { shared: 16, ..SAMPLE }, &["the table says 16"]);
    }

    #[test]
    fn a_missing_instruction_is_reported() {
        plant(
            SAMPLE.text,
            Kernel { machine: &["IMMA.16832"], ..SAMPLE },
            &["no IMMA.16832 in the machine code"],
        );
    }

    #[test]
    fn an_atomic_that_spins_is_reported() {
        let halves = "@in atom.shared.add.u32 old, [at], lo;";
        assert!(SAMPLE.text.contains(halves));
        plant(&SAMPLE.text.replace(halves, "@in red.shared.add.u64 [at], w;"), SAMPLE, &["CAST.SPIN"]);
    }

    #[test]
    fn a_report_is_read_without_an_assembler() {
        let report = "ptxas info : Function properties for k\n 16 bytes stack frame, 8 bytes spill stores, 0 bytes \
                      spill loads\nptxas info : Used 80 registers, used 1 barriers, 36384 bytes smem, 384 bytes cmem[0]";
        let code = Code {
            report: report.into(),
            listing: "REDUX.MAX REDUX.SUM ATOMS.ADD LDG.E.128 FMNMX.NAN STL [R1]".into(),
        };
        let found = problems(&SAMPLE, "80", &code);
        assert_eq!(found.len(), 4, "{found:?}");
        let silent = Code { report: String::new(), listing: String::new() };
        assert!(problems(&SAMPLE, "80", &silent).len() > 5);
    }
}
