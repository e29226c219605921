use std::{fs, path::Path};

use anyhow::{Context, Result, ensure};

use crate::root;

/// What the product promises, by number. A test that shows a row has its number in front of its name.
const ROWS: &[(&str, &str)] = &[
    ("f01", "process_batch_gpu: many requests, each with its own tokens, in order"),
    ("f02", "one forward pass a step for all of them"),
    ("f03", "each with its own configuration"),
    ("f04", "ragged lengths change nobody else's tokens"),
    ("f05", "what has ended costs nothing more"),
    ("f06", "more requests than a batch holds wait"),
    ("f07", "batch_generate: one configuration, errors by index"),
    ("f08", "new tokens only, or with an echo of the prompt"),
    ("f09", "end and stop tokens end a text and are not part of it"),
    ("f10", "the context limit ends or refuses one request alone"),
    ("f11", "prefill in one pass or in chunks"),
    ("f12", "key-value cache: reused, freed, never recomputed without need"),
    ("f13", "BatchProcessor::new(max_batch_size, max_wait_time)"),
    ("f14", "generate_token_batched goes through the processor"),
    ("f15", "a request is answered exactly once"),
    ("f16", "a failing forward reaches those it concerns; the processor survives"),
    ("f17", "a dropped or cancelled request leaves at once"),
    ("f18", "shutdown answers everybody and joins the thread"),
    ("f19", "back-pressure: submit, try_submit, submit with a time-out"),
    ("f20", "batch size follows load and goals"),
    ("f21", "requests join at any step"),
    ("f22", "padding by length, equal to ragged"),
    ("f23", "memory is taken at start, checked before admission"),
    ("f24", "generate_stream"),
    ("f25", "sampling, seeded per request"),
    ("f26", "HybridScheduler"),
    ("f27", "warmup_gpu_cache"),
    ("f28", "batch_throughput_factor: measured or None"),
    ("f29", "metrics: measured or None"),
    ("f30", "benchmark: no speed without equality"),
    ("f31", "async names"),
    ("f32", "typed errors"),
    ("f33", "ternary products in PTX: any shape, integers exact, an error and the CPU where there is no GPU"),
    ("f34", "builds and tests without a GPU toolkit, driver or GPU; skips are said"),
    ("f35", "attention, norms, activations and heads as each family has them"),
    ("f36", "every format gives the same trits and scales"),
];

/// Prints each row with the tests whose names begin with its number; fails if one has none.
pub(crate) fn check() -> Result<()> {
    let mut tests = Vec::new();
    for folder in ["crates", "tests"] {
        collect(&root().join(folder), &mut tests)?;
    }
    tests.sort();
    let mut gaps = Vec::new();
    for &(row, what) in ROWS {
        println!("{} {what}", row.to_uppercase());
        let shows = |test: &&String| test.split('_').take_while(|part| is_row(part)).any(|part| part == row);
        let shown: Vec<_> = tests.iter().filter(shows).collect();
        shown.iter().for_each(|test| println!("    {test}"));
        if shown.is_empty() {
            gaps.push(row);
        }
    }
    ensure!(gaps.is_empty(), "no test is named after {}", gaps.join(", "));
    Ok(())
}

fn is_row(part: &str) -> bool {
    part.strip_prefix('f').is_some_and(|n| n.len() == 2 && n.bytes().all(|b| b.is_ascii_digit()))
}

/// Names of the functions under `folder` that stand below `#[test]`.
fn collect(folder: &Path, tests: &mut Vec<String>) -> Result<()> {
    let entries = fs::read_dir(folder).with_context(|| folder.display().to_string())?;
    for path in entries.map(|e| e.map(|e| e.path())).collect::<Result<Vec<_>, _>>()? {
        if path.is_dir() {
            collect(&path, tests)?;
        } else if path.extension().is_some_and(|e| e == "rs") {
            let text = fs::read_to_string(&path)?;
            let mut under_test = false;
            for line in text.lines().map(str::trim_start) {
                under_test |= line.starts_with("#[test]");
                if let Some(name) = line.strip_prefix("fn ").filter(|_| under_test) {
                    tests.push(name.split('(').next().unwrap_or(name).to_owned());
                    under_test = false;
                }
            }
        }
    }
    Ok(())
}
