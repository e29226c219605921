//! What the repository weighs: bytes of committed files, and lines of code that ship and that show they are right.

use std::{collections::BTreeMap, fs, path::Path};

use anyhow::{Context, Result, ensure};
use bitnet_release::fits;
use bitnet_workspace::{git, root};

/// Maximum total size of committed files in bytes.
const LIMIT: u64 = 48 << 20;
/// How far the numbers of lines in the README may be from the truth.
const TOLERANCE: f64 = 0.05;
/// The README's sentence about both sizes, with two numbers in thousands of lines.
const SENTENCE: [&str; 3] =
    ["The product is about ", ",000 lines of code, and about ", ",000 more show that it is right"];

/// Adds up the committed files, counts lines, and compares them with the README.
pub(crate) fn check() -> Result<()> {
    let files = git(&["ls-files", "-z"])?;
    let files = || files.split_terminator('\0');
    // A deleted file that is still in the index has no size.
    let size = |name| root().join(name).symlink_metadata().map_or(0, |about| about.len());
    let total = files().map(size).sum();
    fits("all committed files together", total, LIMIT)?;
    println!("{:.1} MiB of {} MiB", total as f64 / f64::from(1 << 20), LIMIT >> 20);
    let read = |name| Some((name, fs::read_to_string(root().join(name)).ok()?));
    let texts: Vec<(&str, String)> = files().filter(|name| is_code(name)).filter_map(read).collect();
    let modules: Vec<String> = texts.iter().flat_map(|(name, text)| test_modules(name, text)).collect();
    let mut lines = BTreeMap::<Part, usize>::new();
    for (name, text) in &texts {
        let (code, tests) = count(text);
        let part = if modules.iter().any(|module| is_of(name, module)) { Part::Proof } else { part(name) };
        *lines.entry(part).or_default() += code;
        *lines.entry(Part::Proof).or_default() += tests;
    }
    for (part, lines) in &lines {
        println!("{lines:>7} lines of code without blanks and comments: {}", part.name());
    }
    let of = |part| lines.get(&part).copied().unwrap_or(0);
    let readme = fs::read_to_string(root().join("README.md"))?;
    agrees(&readme, [of(Part::Product), of(Part::Proof)])
}

/// What code is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Part {
    /// It ships.
    Product,
    /// It shows that the product is right.
    Proof,
    /// It builds, checks and releases, or shows how to use the product.
    Tools,
}

impl Part {
    fn name(self) -> &'static str {
        match self {
            Part::Product => "the product (crates/)",
            Part::Proof => "what shows that it is right (proof/, tests/, and tests in crates/)",
            Part::Tools => "tools and examples (xtask/, release/, tools/, examples/, deploy/)",
        }
    }
}

/// Whether a file holds code that somebody wrote.
fn is_code(name: &str) -> bool {
    let written = !name.contains("/ptx/generated/") && !name.starts_with("fixtures/");
    written && Path::new(name).extension().is_some_and(|end| ["rs", "ptx", "py"].iter().any(|&e| end == e))
}

/// The part to which a file belongs, by its path.
fn part(name: &str) -> Part {
    let folders: Vec<&str> = name.split('/').collect();
    match folders[..] {
        ["proof" | "tests", ..] => Part::Proof,
        ["crates", _, "tests" | "benches", ..] => Part::Proof,
        ["crates", ..] => Part::Product,
        _ => Part::Tools,
    }
}

/// The modules in files of their own that a Rust file has for tests only: their paths without the end.
fn test_modules(name: &str, text: &str) -> Vec<String> {
    let path = name.strip_suffix(".rs").unwrap_or(name);
    let (folder, file) = path.rsplit_once('/').unwrap_or(("", path));
    let folder = if ["mod", "lib", "main"].contains(&file) { folder } else { path };
    let after = text.split("#[cfg(test)]\nmod ").skip(1);
    let names = after.filter_map(|rest| rest.lines().next()?.strip_suffix(';'));
    names.map(|module| format!("{folder}/{module}")).collect()
}

/// Whether a file belongs to a module.
fn is_of(name: &str, module: &str) -> bool {
    name.strip_prefix(module).is_some_and(|rest| rest == ".rs" || rest.starts_with('/'))
}

/// Lines that are neither blank nor a comment: before the module of tests that ends a file, and in it.
fn count(text: &str) -> (usize, usize) {
    let (code, tests) = text.split_once("\n#[cfg(test)]\nmod tests {").unwrap_or((text, ""));
    let counts = |line: &&str| {
        !(line.is_empty() || line.starts_with("//") || line.starts_with('#') && !line.starts_with("#["))
    };
    let lines = |text: &str| text.lines().map(str::trim).filter(counts).count();
    (lines(code), lines(tests))
}

/// Fails if the README's numbers are not those that were counted.
fn agrees(readme: &str, counted: [usize; 2]) -> Result<()> {
    let text = readme.split_whitespace().collect::<Vec<_>>().join(" ");
    let [begin, middle, end] = SENTENCE;
    let said = text.split_once(begin).and_then(|(_, rest)| {
        let (product, rest) = rest.split_once(middle)?;
        let (proof, _) = rest.split_once(end)?;
        Some([product.parse::<f64>().ok()?, proof.parse::<f64>().ok()?])
    });
    let said = said.with_context(|| format!("README.md does not say \"{begin}N{middle}N{end}\""))?;
    for (said, counted) in said.into_iter().zip(counted) {
        let off = (said * 1000.0 - counted as f64).abs();
        ensure!(
            off <= TOLERANCE * counted as f64,
            "README.md says {said},000 lines of code; there are {counted}"
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_code_are_counted_where_they_belong() {
        let text = "//! Doc.\n\n#[derive(Debug)]\nstruct A; // why\n\n#[cfg(test)]\nmod tests {\n    // no\n    fn a() {}\n}\n";
        assert_eq!(count(text), (2, 2));
        assert_eq!(count("# a comment of Python\nimport os\n"), (1, 0));
        assert_eq!(part("crates/bitnet/src/lib.rs"), Part::Product);
        assert_eq!(part("crates/bitnet/tests/it/main.rs"), Part::Proof);
        assert_eq!(part("proof/soak/src/lib.rs"), Part::Proof);
        assert_eq!(part("xtask/src/main.rs"), Part::Tools);
        assert!(
            is_code("crates/a/ptx/a.ptx") && !is_code("crates/a/ptx/generated/a.ptx") && !is_code("a.md")
        );
    }

    #[test]
    fn modules_for_tests_only_are_proof_wherever_their_files_are() {
        let text = "#[cfg(test)]\nmod dry_run;\nmod load;\n#[cfg(test)]\nmod tests {\n}\n";
        assert_eq!(test_modules("crates/a/src/b/mod.rs", text), ["crates/a/src/b/dry_run"]);
        assert_eq!(test_modules("crates/a/src/b.rs", text), ["crates/a/src/b/dry_run"]);
        assert!(is_of("crates/a/src/b/dry_run.rs", "crates/a/src/b/dry_run"));
        assert!(is_of("crates/a/src/b/dry_run/mod.rs", "crates/a/src/b/dry_run"));
        assert!(!is_of("crates/a/src/b/dry_runs.rs", "crates/a/src/b/dry_run"));
    }

    #[test]
    fn a_readme_with_other_numbers_is_refused() {
        let readme =
            "The product is about 40,000 lines of\ncode, and about 39,000 more show that it is right.";
        assert!(agrees(readme, [40_400, 38_100]).is_ok());
        let error = agrees(readme, [43_000, 39_000]).unwrap_err().to_string();
        assert!(error.contains("40,000") && error.contains("43000"), "{error}");
        assert!(agrees("", [1, 1]).unwrap_err().to_string().contains("README.md"));
    }
}
