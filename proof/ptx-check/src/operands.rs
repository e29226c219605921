//! Checks that the simulator refuses everything that the assembler refuses: every opcode that can reach a GPU, with
//! operands of every kind in every place.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use bitnet_kernels::gpu::table::KERNELS;
use bitnet_tests::{
    instructions::{HEADER, INSTRUCTIONS},
    refusal,
};

use super::Tools;

/// What replaces an operand, in addition to the registers of [`PROBES`].
const KINDS: [&str; 20] = [
    "xh",
    "xw",
    "xu",
    "xi",
    "xf",
    "xd",
    "xe",
    "xp",
    "!xp",
    "xs",
    "%tid.x",
    "1",
    "-1",
    "0f3F800000",
    "1.5",
    "_",
    "[xd]",
    "[xw]",
    "[xs+4]",
    "{xw, xw}",
];
const PROBES: &str = ".reg .b16 xh; .reg .b32 xw; .reg .u32 xu; .reg .s32 xi; .reg .f32 xf; .reg .b64 xd; .reg .f64 xe; \
                      .reg .pred xp; .shared .align 16 .b32 xs[8];";
/// Entries per file.
const CHUNK: usize = 500;

/// Types of the names that a kernel declares: of registers, `shared`, or `param` and its type.
fn declared(code: &str) -> HashMap<String, String> {
    let mut names = HashMap::new();
    for declaration in code.split(['\n', ';', '(', ')', '{', '}']) {
        let declaration = declaration.trim();
        let (kind, rest) = match declaration.split_once(' ') {
            Some((".reg", rest)) => ("", rest),
            Some((".param", rest)) => ("param ", rest),
            Some((".shared" | ".extern", _)) => ("shared", ""),
            _ => continue,
        };
        if kind == "shared" {
            let name = declaration.split('[').next().and_then(|d| d.split_whitespace().last());
            names.extend(name.map(|name| (name.to_owned(), kind.to_owned())));
            continue;
        }
        let (ty, list) = rest.split_once(' ').expect("a declaration has a type and names");
        for name in list.split(',').map(str::trim).filter(|name| !name.is_empty()) {
            let ty = format!("{kind}{ty}");
            match name.split_once('<') {
                Some((name, count)) => {
                    let count: usize = count.trim_end_matches('>').parse().expect("a number of registers");
                    names.extend((0..count).map(|i| (format!("{name}{i}"), ty.clone())));
                }
                None => drop(names.insert(name.to_owned(), ty)),
            }
        }
    }
    names
}

/// Operands of a statement; commas inside brackets do not separate.
fn operands(text: &str) -> Vec<String> {
    let (mut parts, mut depth) = (vec![String::new()], 0);
    for c in text.chars() {
        depth += i32::from("{[".contains(c)) - i32::from("}]".contains(c));
        match c {
            ',' if depth == 0 => parts.push(String::new()),
            c => parts.last_mut().expect("there is one").push(c),
        }
    }
    parts.iter().map(|part| part.trim().to_owned()).filter(|part| !part.is_empty()).collect()
}

/// An entry with one statement, `opcode` with these operands, on its third line from the end.
fn entry(number: usize, opcode: &str, operands: &[String], names: &HashMap<String, String>) -> String {
    let statement = format!("{opcode} {};", operands.join(", "));
    let words: BTreeSet<&str> = statement.split(|c: char| !c.is_ascii_alphanumeric() && c != '_').collect();
    let (mut registers, mut params) = (String::new(), Vec::new());
    for (name, ty) in words.iter().filter_map(|&word| Some((word, names.get(word)?))) {
        match ty.strip_prefix("param ") {
            Some(ty) => params.push(format!(".param {ty} {name}")),
            None if ty == "shared" => registers += &format!(".shared .align 16 .b32 {name}[8]; "),
            None => registers += &format!(".reg {ty} {name}; "),
        }
    }
    format!(
        ".visible .entry e{number}({})\n{{ {PROBES} {registers}\n{statement}\nret;\n}}\n",
        params.join(", ")
    )
}

/// One statement of each opcode, with the types of its names.
fn forms() -> BTreeMap<String, (Vec<String>, HashMap<String, String>)> {
    let mut forms = BTreeMap::new();
    let cases = INSTRUCTIONS.iter().map(|i| format!("{HEADER}{}", i.entry("one")));
    for text in KERNELS.iter().map(|kernel| kernel.text.to_owned()).chain(cases) {
        let code: String =
            text.lines().map(|line| line.split("//").next().unwrap_or_default().to_owned() + "\n").collect();
        let names = declared(&code);
        let body = code.split_once("\n{").expect("an entry has a body").1;
        for statement in body.split([';', '\n']).map(str::trim) {
            let statement = statement.rsplit_once(": ").map_or(statement, |(_, rest)| rest);
            let statement = match statement.strip_prefix('@') {
                Some(guarded) => guarded.split_once(' ').map_or("", |(_, rest)| rest.trim()),
                None => statement,
            };
            let (opcode, rest) = statement.split_once(' ').unwrap_or((statement, ""));
            let plain = opcode.starts_with(|c: char| c.is_ascii_lowercase()) && !opcode.ends_with(':');
            if plain && opcode != "bra" && !forms.contains_key(opcode) {
                forms.insert(opcode.to_owned(), (operands(rest), names.clone()));
            }
        }
    }
    forms
}

/// Every form, and every form with an operand of each kind in each place.
fn entries() -> Vec<String> {
    let mut entries = Vec::new();
    for (opcode, (operands, names)) in forms() {
        entries.push(entry(entries.len(), &opcode, &operands, &names));
        for at in 0..operands.len() {
            for kind in KINDS {
                let mut other = operands.clone();
                other[at] = kind.to_owned();
                entries.push(entry(entries.len(), &opcode, &other, &names));
                if let Some(inner) = operands[at].strip_prefix('{') {
                    let rest = inner.split_once(',').map_or("}", |(_, rest)| rest);
                    other[at] = format!("{{{kind},{rest}");
                    entries.push(entry(entries.len(), &opcode, &other, &names));
                }
            }
        }
    }
    entries
}

/// Returns the entries that the assembler refuses, and why.
fn refused(tools: &Tools, entries: &[String]) -> Vec<Option<String>> {
    // A statement that is always refused ends the run before code is generated.
    let wrong = ".visible .entry wrong()\n{ .reg .f32 f; .reg .u32 u;\nadd.u32 u, f, u;\nret;\n}\n";
    let mut found = vec![None; entries.len()];
    let mut first = 0;
    while first < entries.len() {
        let part = &entries[first..entries.len().min(first + CHUNK)];
        let text = format!("{HEADER}{}{wrong}", part.concat());
        let report = tools.refusal(&text, "80").unwrap().expect("the last entry is wrong");
        let mut next = first + part.len();
        for line in report.lines() {
            let Some((_, rest)) = line.split_once(", line ") else { continue };
            let Some((number, why)) = rest.split_once(';') else { continue };
            let number: usize = number.parse().expect("a line has a number");
            let lines = part.iter().scan(HEADER.lines().count(), |at, e| {
                *at += e.lines().count();
                Some(*at)
            });
            let Some(index) = lines.clone().position(|last| number <= last) else { continue };
            found[first + index].get_or_insert(why.trim().to_owned());
            if why.trim_start().starts_with("fatal") {
                next = next.min(first + index + 1);
            }
        }
        first = next;
    }
    found
}

#[test]
fn the_simulator_refuses_every_operand_that_the_assembler_refuses() {
    let Some(tools) = Tools::find() else {
        println!("skipped: no ptxas on this machine");
        return;
    };
    let entries = entries();
    let mut apart = Vec::new();
    let mut accepted = 0;
    for (entry, why) in entries.iter().zip(refused(&tools, &entries)) {
        let ours = refusal(&format!("{HEADER}{entry}"));
        accepted += usize::from(why.is_none() && ours.is_none());
        if let (Some(why), None) = (why, ours) {
            apart.push(format!("{}: {why}", entry.lines().nth_back(2).unwrap_or_default()));
        }
    }
    assert!(accepted > 500, "{accepted} of {} are right in both", entries.len());
    assert!(apart.is_empty(), "{} of {}:\n{}", apart.len(), entries.len(), apart.join("\n"));
}
