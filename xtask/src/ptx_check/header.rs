use bitnet_kernels::gpu::table::Kernel;

/// Where a kernel's header and its row in the table are apart.
pub(super) fn differences(kernel: &Kernel) -> Vec<String> {
    let comment = kernel.text.lines().take_while(|line| line.starts_with("//"));
    let lines: Vec<&str> = comment.map(|line| line.trim_start_matches('/')).collect();
    let words: Vec<&str> = lines.iter().flat_map(|line| line.split_whitespace()).collect();
    let mut found = Vec::new();
    if lines.get(1).and_then(|line| line.split_whitespace().next()) != Some(kernel.name) {
        found.push(format!("{}: the header begins with another name", kernel.name));
    }
    if !kernel.text.contains(&format!(".visible .entry {}(", kernel.name)) {
        found.push(format!("{}: the entry has another name", kernel.name));
    }
    let dynamic = after(&words, &["shared"]).filter(|_| words.iter().any(|word| word.starts_with("dynamic")));
    let said = [
        ("block", after(&words, &["block"]), u64::from(kernel.block)),
        ("static shared bytes", before(&words, "static"), u64::from(kernel.shared)),
        ("dynamic shared bytes", dynamic, u64::from(kernel.dynamic)),
        ("regs <=", after(&words, &["regs", "<="]), u64::from(kernel.registers)),
        ("conflicts", after(&words, &["conflicts"]), kernel.conflicts),
    ];
    for (what, said, row) in said {
        if said != Some(row) {
            let said = said.map_or("nothing".into(), |n| n.to_string());
            found.push(format!("{}: the header says {what} {said}, the table {row}", kernel.name));
        }
    }
    found
}

/// The number that follows a run of words.
fn after(words: &[&str], run: &[&str]) -> Option<u64> {
    let at = words.windows(run.len() + 1).find(|w| w.starts_with(run) && number(w[run.len()]).is_some())?;
    number(at[run.len()])
}

/// The number before a word.
fn before(words: &[&str], word: &str) -> Option<u64> {
    words.windows(2).find(|w| w[1].trim_end_matches(',') == word).and_then(|w| number(w[0]))
}

fn number(word: &str) -> Option<u64> {
    word.trim_end_matches([',', ';']).parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use bitnet_kernels::gpu::table::EMBED;

    #[test]
    fn a_header_that_differs_from_the_table_is_reported() {
        assert_eq!(differences(&EMBED), Vec::<String>::new());
        for (kernel, word) in [
            (Kernel { block: 64, ..EMBED }, "block 128, the table 64"),
            (Kernel { shared: 4, ..EMBED }, "static shared bytes 0, the table 4"),
            (Kernel { dynamic: 4, ..EMBED }, "dynamic shared bytes 0, the table 4"),
            (Kernel { registers: 33, ..EMBED }, "regs <= 32, the table 33"),
            (Kernel { conflicts: 9, ..EMBED }, "conflicts 0, the table 9"),
            (Kernel { name: "sm80_embed", ..EMBED }, "another name"),
        ] {
            let found = differences(&kernel).join("\n");
            assert!(found.contains(word), "{found}");
        }
    }
}
