//! Shapes of PTX that some version of `ptxas` is known to compile wrongly at -O3 but correctly at -O0, on some
//! architecture.
//!
//! Reduced cases of each, by number, are in SemiAnalysisAI/FuzzX, `ptx/known-miscompiles`. The simulator executes the
//! text, so it cannot detect them. A kernel that avoids a shape does not depend on the assembler's version.

use std::collections::HashMap;

use bitnet_kernels::gpu::table::Kernel;

/// Finds miscompiled shapes in a kernel's text.
pub(super) fn found(kernel: &Kernel) -> Vec<String> {
    let statements = statements(kernel.text);
    let mut found = Vec::new();
    let mut say = |line: usize, what: &str| found.push(format!("{}:{line}: {what}", kernel.name));
    // The instruction that last wrote each register.
    let mut made: HashMap<&str, &Statement<'_>> = HashMap::new();
    for (i, s) in statements.iter().enumerate() {
        for what in alone(s).into_iter().chain(chained(s, &made)) {
            say(s.line, what);
        }
        if let [branch, skipped, label] = &statements[i.saturating_sub(2)..=i]
            && label.label.is_some_and(|name| branch.operands == [name] && skipped.label.is_none())
            && branch.guard
            && branch.name() == "bra"
            && skipped.writes_register()
        {
            say(
                skipped.line,
                "a branch over one instruction (m038, m039, m085, m087): guard the instruction",
            );
        }
        match s.label {
            // Another path may arrive here with other values.
            Some(_) => made.clear(),
            None if s.writes_register() => drop(made.insert(s.operands[0], s)),
            None => {}
        }
    }
    found
}

/// Returns the problem of an instruction on its own.
fn alone(s: &Statement<'_>) -> Option<&'static str> {
    let modifier = |name: &str| s.opcode.split('.').any(|part| part == name);
    let constant =
        |at: usize| s.operands.get(at).is_some_and(|o| o.starts_with(|c: char| c.is_ascii_digit()));
    match s.name() {
        "shf" if modifier("wrap") => Some("shf.wrap (m008, m021, m028): use shl, shr and or"),
        "prmt" if !constant(3) => Some("prmt with its selector in a register (m055, m066): use a number"),
        "prmt" if signs(s.operands[3]) => Some("prmt that copies signs (m005, m024): use bfe or shr"),
        "bfe" | "bfi"
            if !s.operands.iter().rev().take(2).all(|o| o.starts_with(|c: char| c.is_ascii_digit())) =>
        {
            Some("a field whose place is in a register (m052, m053): use shifts and a mask")
        }
        "ld" if modifier("const") && modifier("u16") => Some("ld.const.u16 (m072): load 32 bits"),
        _ => None,
    }
}

/// Returns the problem of an instruction in combination with those that wrote its sources.
fn chained(s: &Statement<'_>, made: &HashMap<&str, &Statement<'_>>) -> Option<&'static str> {
    let sources = || s.operands.iter().skip(1).filter_map(|o| made.get(o));
    let from = |names: &[&str]| sources().any(|source| names.contains(&source.name()));
    let shifted = |s: &Statement<'_>| {
        s.name() == "shl" && s.operands.get(2).is_some_and(|o| !o.starts_with(|c: char| c.is_ascii_digit()))
    };
    match s.name() {
        "lop3" if from(&["selp"]) => Some("lop3 of what selp made (m002): use and, or, xor"),
        "xor" if from(&["lop3"]) => Some("xor of what lop3 made (m002): use and, or, xor"),
        "and" | "cvt" if from(&["prmt"]) => {
            Some("and or cvt of what prmt made (m005, m024): use shr and and")
        }
        "shl" if s.opcode.ends_with("b32") && shifted(s) && sources().any(|source| shifted(source)) => {
            Some("shl by a register of what another made (m050): shift once")
        }
        _ => None,
    }
}

/// Whether a selector of `prmt` replicates a sign.
fn signs(selector: &str) -> bool {
    let number =
        selector.strip_prefix("0x").map_or_else(|| selector.parse(), |hex| u32::from_str_radix(hex, 16));
    number.is_ok_and(|n| n & 0x8888 != 0)
}

/// An instruction, or a label.
struct Statement<'t> {
    line: usize,
    label: Option<&'t str>,
    guard: bool,
    opcode: &'t str,
    operands: Vec<&'t str>,
}

impl<'t> Statement<'t> {
    fn name(&self) -> &'t str {
        self.opcode.split('.').next().unwrap_or_default()
    }

    fn writes_register(&self) -> bool {
        self.label.is_none()
            && !self.guard
            && !matches!(
                self.name(),
                "st" | "red" | "bra" | "bar" | "cp" | "ret" | "exit" | "membar" | "fence"
            )
    }
}

fn statements(text: &str) -> Vec<Statement<'_>> {
    let mut statements = Vec::new();
    for (at, line) in text.lines().enumerate() {
        let code = line.split("//").next().unwrap_or_default();
        for part in code.split(';').map(str::trim) {
            let (label, part) = match part.split_once(':') {
                Some((name, rest)) if name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_') => {
                    (Some(name), rest.trim())
                }
                _ => (None, part),
            };
            let line = at + 1;
            if label.is_some() {
                statements.push(Statement { line, label, guard: false, opcode: "", operands: Vec::new() });
            }
            let (guard, part) = match part.strip_prefix('@') {
                Some(rest) => (true, rest.split_once(' ').map_or("", |(_, rest)| rest.trim())),
                None => (false, part),
            };
            if !part.starts_with(|c: char| c.is_ascii_lowercase()) {
                continue;
            }
            let (opcode, rest) = part.split_once(' ').unwrap_or((part, ""));
            let operands = rest.split(',').map(|o| o.trim_matches([' ', '{', '}', '[', ']'])).collect();
            statements.push(Statement { line, label: None, guard, opcode, operands });
        }
    }
    statements
}

#[cfg(test)]
mod tests {
    use super::*;
    use bitnet_kernels::gpu::table::{EMBED, KERNELS};

    #[test]
    fn every_shape_is_found_and_none_is_in_our_kernels() {
        for (text, expected) in [
            ("shf.r.wrap.b32 a, b, c, 3;", "m008"),
            ("shf.r.clamp.b32 a, b, c, 3;", ""),
            ("prmt.b32 a, b, c, d;", "m055"),
            ("prmt.b32 a, b, c, 0x7538;", "m005"),
            ("prmt.b32 a, b, c, 0x7531; and.b32 d, a, 255;", "m024"),
            ("prmt.b32 a, b, c, 0x7531; add.u32 d, a, 255;", ""),
            ("bfe.u32 a, b, c, 8;", "m052"),
            ("bfi.b32 a, b, c, 8, d;", "m053"),
            ("bfe.u32 a, b, 4, 8;", ""),
            ("ld.const.u16 a, [b];", "m072"),
            ("selp.b32 a, b, c, p; lop3.b32 d, a, b, c, 0x65;", "m002"),
            ("lop3.b32 d, a, b, c, 0x65; xor.b32 d, d, 26;", "m002"),
            ("lop3.b32 d, a, b, c, 0x65;\nL:\nxor.b32 d, d, 26;", ""),
            ("shl.b32 a, b, c; add.u32 b, b, 1; shl.b32 d, a, c;", "m050"),
            ("@p bra L;\nor.b32 a, b, c;\nL:", "m085"),
            ("@p bra L;\nst.global.b32 [a], c;\nL:", ""),
            ("@p bra L;\nor.b32 a, b, c;\nadd.u32 a, a, c;\nL:", ""),
        ] {
            let said = found(&Kernel { text, ..EMBED }).join("\n");
            assert!(said.contains(expected) && said.is_empty() == expected.is_empty(), "{text}: {said}");
        }
        let ours: Vec<String> = KERNELS.iter().flat_map(|kernel| found(kernel)).collect();
        assert!(ours.is_empty(), "{}", ours.join("\n"));
    }
}
