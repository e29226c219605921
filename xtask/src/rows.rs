use std::{fs, path::Path};

use anyhow::{Context, Result, ensure};

use crate::root;

/// The promises of the product, by number. The name of a test that shows one begins with its number.
const ROWS: &[(&str, &str)] = &[
    ("f01", "process_batch_gpu: many requests, each with its own tokens, in order"),
    ("f02", "one forward pass per step for all of them"),
    ("f03", "each with its own configuration"),
    ("f04", "ragged lengths change no other request's tokens"),
    ("f05", "a finished request costs nothing more"),
    ("f06", "requests beyond the batch size wait in the queue"),
    ("f07", "batch_generate: one configuration, errors by index"),
    ("f08", "new tokens only, or with an echo of the prompt"),
    ("f09", "end and stop tokens end a text and are not part of it"),
    ("f10", "the context limit ends or refuses only the request that reaches it"),
    ("f11", "prefill in one pass or in chunks"),
    ("f12", "key-value cache: reused, freed, never recomputed without need"),
    ("f13", "BatchProcessor::new(max_batch_size, max_wait_time)"),
    ("f14", "generate_token_batched goes through the processor"),
    ("f15", "a request is answered exactly once"),
    ("f16", "a failing forward pass is reported to the requests that it concerns; the processor survives"),
    ("f17", "a dropped or cancelled request leaves immediately"),
    ("f18", "shutdown answers all requests and joins the thread"),
    ("f19", "back-pressure: submit, try_submit, submit with a timeout"),
    ("f20", "batch size follows load and goals"),
    ("f21", "requests join at any step"),
    ("f22", "padding by length, equal to ragged"),
    ("f23", "memory is reserved at start and checked before admission"),
    ("f24", "generate_stream"),
    ("f25", "sampling, seeded per request"),
    ("f26", "HybridScheduler"),
    ("f27", "warmup_gpu_cache"),
    ("f28", "batch_throughput_factor: measured or None"),
    ("f29", "metrics: measured or None"),
    ("f30", "benchmark: no speed without equality"),
    ("f31", "async names"),
    ("f32", "typed errors"),
    ("f33", "ternary products in PTX: any shape, exact integers; without a GPU, an error or the CPU"),
    ("f34", "builds and tests without a GPU toolkit, driver or GPU; skips are reported"),
    ("f35", "attention, norms, activations and heads of each family"),
    ("f36", "every format gives the same trits and scales"),
];

/// Mistakes of other engines of this kind, numbered from 1. A test that would catch one says so in a comment, "Mistake
/// 7 of the originals: why".
const MISTAKES: &[&str] = &[
    "one forward pass and one token, called generation",
    "padding with a real token; logits taken at the padded end",
    "a padding mask that is not causal",
    "activations quantised together with those of the padding",
    "empty prompts and unknown tokens go unnoticed until something breaks",
    "helpers that do not exist; one sampler for all, so that draws depend on the order of the batch",
    "a different path for a batch of one, and times that measure something else",
    "a reply that nobody computes",
    "a channel that never closes",
    "a generator that waits for itself, so that every batch has one request",
    "one request more than the maximum batch size",
    "a window that begins before its first request",
    "`?` in a function that returns no result",
    "an error that cannot be given to all requests that it concerns",
    "the length of an empty list, minus one",
    "the sizes of another model",
    "greedy decoding, whatever was requested",
    "the whole text recomputed for each token",
    "no mask at all",
    "a maximum decided by a NaN, and the last of equal values",
    "a queue that cancellation, timeouts and shutdown do not end",
    "results that shift when a request drops out",
    "the last token of a prompt computed twice",
    "a different path for a few sequences than for many",
    "a panic after an unchecked prefill",
    "caches lost when a step fails",
    "every cache as large as that of the longest prompt",
    "prompts among the new tokens; no end token; one configuration for all",
    "a loop that is called a batch; an empty batch that fails",
    "tokens that attend only to themselves, without positions",
    "the feed-forward layer of another family: norm, gate, activation",
    "a head's width guessed from the model's",
    "a division by an empty batch",
    "logits kept for every position",
    "a context per call, and a threshold that sends everything to the GPU",
    "a prefill of many prompts that is a loop",
    "speeds that are constants",
    "every request limited by the longest one",
    "one error that ends all requests",
    "codes of a format checked only by their own writer",
    "signed weights in unsigned tiles",
    "a step's launches chosen only by the number of tokens",
    "a running maximum overwritten while it is used",
    "decoding that reads what prefill has not written yet",
    "measurements that are constants",
    "a GPU whose results were never computed",
    "zeros for an unknown shape",
];

/// A test, and the mistakes that its comments name.
pub(crate) struct Test {
    pub name: String,
    /// The package that has it.
    pub package: String,
    mistakes: Vec<usize>,
}

impl Test {
    /// Whether the name begins with this row, possibly after other rows.
    fn shows(&self, row: &str) -> bool {
        self.name.split('_').take_while(|part| is_row(part)).any(|part| part == row)
    }
}

/// Prints each row and each mistake with the tests that show it; fails if one has none.
pub(crate) fn check() -> Result<()> {
    let tests = tests()?;
    let unknown = tests.iter().find(|test| test.mistakes.iter().any(|n| !(1..=MISTAKES.len()).contains(n)));
    ensure!(unknown.is_none(), "{} names a mistake that is not listed", unknown.map_or("", |t| &t.name));
    let mut gaps = Vec::new();
    for &(row, what) in ROWS {
        print(row.to_uppercase(), what, tests.iter().filter(|test| test.shows(row)), &mut gaps);
    }
    for (n, what) in (1..).zip(MISTAKES) {
        let shown = tests.iter().filter(|test| test.mistakes.contains(&n));
        print(format!("Mistake {n}:"), what, shown, &mut gaps);
    }
    ensure!(gaps.is_empty(), "no test shows {}", gaps.join(", "));
    Ok(())
}

/// All tests of the workspace, by name.
pub(crate) fn tests() -> Result<Vec<Test>> {
    let crates = root().join("crates");
    let entries = fs::read_dir(&crates).with_context(|| crates.display().to_string())?;
    let mut packages = vec![("bitnet-tests".to_owned(), root().join("tests"))];
    for entry in entries {
        let entry = entry?;
        packages.push((entry.file_name().to_string_lossy().into_owned(), entry.path()));
    }
    let mut tests = Vec::new();
    packages.iter().try_for_each(|(package, folder)| collect(folder, package, &mut tests))?;
    tests.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(tests)
}

fn print<'t>(of: String, what: &str, shown: impl Iterator<Item = &'t Test>, gaps: &mut Vec<String>) {
    println!("{of} {what}");
    let tests = shown.inspect(|test| println!("    {}", test.name)).count();
    if tests == 0 {
        gaps.push(of);
    }
}

fn is_row(part: &str) -> bool {
    part.strip_prefix('f').is_some_and(|n| n.len() == 2 && n.bytes().all(|b| b.is_ascii_digit()))
}

/// Collects the functions under `folder` that have `#[test]` or `#[tokio::test]`.
fn collect(folder: &Path, package: &str, tests: &mut Vec<Test>) -> Result<()> {
    let entries = fs::read_dir(folder).with_context(|| folder.display().to_string())?;
    for path in entries.map(|e| e.map(|e| e.path())).collect::<Result<Vec<_>, _>>()? {
        if path.is_dir() {
            collect(&path, package, tests)?;
        } else if path.extension().is_some_and(|e| e == "rs") {
            let text = fs::read_to_string(&path)?;
            let (mut under_test, mut inside) = (false, false);
            for line in text.lines().map(str::trim_start) {
                under_test |= line.starts_with("#[test]") || line.starts_with("#[tokio::test]");
                if let Some(name) = line.strip_prefix("async ").unwrap_or(line).strip_prefix("fn ") {
                    inside = std::mem::take(&mut under_test);
                    if inside {
                        let name = name.split('(').next().unwrap_or(name).to_owned();
                        tests.push(Test { name, package: package.to_owned(), mistakes: Vec::new() });
                    }
                }
                let mistakes = line.strip_prefix("// Mistake").filter(|_| inside);
                if let (Some(mistakes), Some(test)) = (mistakes, tests.last_mut()) {
                    test.mistakes.extend(numbers(mistakes));
                }
            }
        }
    }
    Ok(())
}

/// Returns the numbers before "of the originals".
fn numbers(text: &str) -> impl Iterator<Item = usize> {
    let named = text.split_once(" of the originals").map_or("", |(named, _)| named);
    named.split(|c: char| !c.is_ascii_digit()).filter_map(|n| n.parse().ok())
}
