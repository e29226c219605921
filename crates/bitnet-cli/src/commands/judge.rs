//! Compares whole models with an oracle's logits, and a batch with its members alone.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::Arc,
};

use bitnet::inference::{Engine, EngineConfig, GenerationConfig, names::GpuInferenceEngine};
use bitnet::kernels::{KvType, gpu::Driver};
use bitnet::model::Checkpoint;
use safetensors::SafeTensors;
use serde::Serialize;

use super::logits::prefill;
use crate::{
    error::CliError,
    load::{Machine, Want},
};

const REQUESTS: usize = 8;
/// Tokens of each request; fewer where the simulator computes them.
const TOKENS: usize = if cfg!(test) { 4 } else { 24 };

/// Relative distances of a fixture's logits from the oracle's.
#[derive(Clone, Serialize)]
pub struct Fixture {
    pub name: String,
    pub device: String,
    pub median: f64,
    pub worst: f64,
    pub passed: bool,
}

/// Comparison of the demo's tokens in a batch with those alone.
#[derive(Clone, Serialize)]
pub struct Batched {
    pub device: String,
    pub requests: usize,
    pub equal: usize,
}

/// Limits on the median and the maximum distance, for an exact forward pass and for one that rounds between operations
/// or in its cache. Roundings alone move one position of a recurrent fixture by 0.24.
const EXACT: [f64; 2] = [1e-5, 0.1];
const ROUNDED: [f64; 2] = [0.08, 0.3];

/// Checks every model under `folder` that is in a folder with an oracle's values, `golden.safetensors`: prompts
/// `ids_0`, `ids_1` and so on, with the logits of their last positions in `logits_0`, `logits_1` and so on. Models whose
/// oracle gives hidden states instead, because they only embed texts, are left out.
pub fn fixtures<D: Driver + 'static>(
    machine: &Machine<'_, D>,
    folder: &Path,
) -> Result<Vec<Fixture>, CliError> {
    let entries = fs::read_dir(folder).map_err(CliError::file("open", folder))?;
    let mut models: Vec<_> = entries.flatten().map(|entry| entry.path()).collect();
    models
        .retain(|model| ["config.json", "golden.safetensors"].iter().all(|file| model.join(file).is_file()));
    models.sort();
    if models.is_empty() {
        let what = "no folder in it has a golden.safetensors";
        return Err(CliError::refused(what, folder.display(), "give the folder that contains the fixtures"));
    }
    let mut judged = Vec::new();
    for folder in &models {
        for model in forms(folder)? {
            judged.extend(fixture(machine, &model, &folder.join("golden.safetensors"))?);
        }
    }
    Ok(judged)
}

/// The models in a folder: the folder itself if it has safetensors, otherwise its GGUF files.
fn forms(folder: &Path) -> Result<Vec<PathBuf>, CliError> {
    if ["model.safetensors", "model.safetensors.index.json"].iter().any(|file| folder.join(file).is_file()) {
        return Ok(vec![folder.into()]);
    }
    let entries = fs::read_dir(folder).map_err(CliError::file("open", folder))?;
    let mut files: Vec<_> = entries.flatten().map(|entry| entry.path()).collect();
    files.retain(|file| file.extension().is_some_and(|e| e == "gguf"));
    files.sort();
    Ok(files)
}

fn fixture<D: Driver + 'static>(
    machine: &Machine<'_, D>,
    path: &Path,
    golden: &Path,
) -> Result<Option<Fixture>, CliError> {
    let bytes = fs::read(golden).map_err(CliError::file("read", golden))?;
    let file = golden.display();
    let damaged = |e: &dyn std::fmt::Display| CliError::refused(e, &file, "fetch the file again");
    let golden = SafeTensors::deserialize(&bytes).map_err(|e| damaged(&e))?;
    let values = |name: &str| {
        let tensor = golden.tensor(name).map_err(|e| damaged(&e))?;
        let words = tensor.data().as_chunks::<4>().0.to_vec();
        Ok::<_, CliError>((tensor.shape().to_vec(), words))
    };
    let has = |what: &str| golden.names().iter().any(|name| name.starts_with(what));
    if has("states_") && !has("logits_") {
        return Ok(None);
    }
    let checkpoint = Checkpoint::open(path)?;
    let prompts = golden.names().iter().filter(|name| name.starts_with("ids_")).count();
    let mut ids = Vec::new();
    for prompt in 0..prompts {
        ids.push(values(&format!("ids_{prompt}"))?.1.into_iter().map(u32::from_le_bytes).collect::<Vec<_>>());
    }
    let tokens = ids.iter().map(Vec::len).max().unwrap_or(1);
    let want = Want { all_logits: true, ..Want::sequences(1, tokens) };
    let mut model = machine.load(&checkpoint, want)?.model;
    let mut distances = Vec::new();
    for (prompt, ids) in ids.iter().enumerate() {
        let (shape, words) = values(&format!("logits_{prompt}"))?;
        let expected: Vec<f32> = words.into_iter().map(f32::from_le_bytes).collect();
        let vocab = model.spec().vocab;
        let rows = expected.len() / vocab;
        if shape != [rows, vocab] || rows > ids.len() {
            let what = format!("logits_{prompt} is {shape:?}, not f32 of [1 to {}, {vocab}]", ids.len());
            return Err(damaged(&what));
        }
        let first = ids.len() - rows;
        prefill(&mut *model, ids, |position, actual| {
            if let Some(row) = position.checked_sub(first) {
                distances.push(distance(actual, &expected[row * vocab..][..vocab]));
            }
        })?;
    }
    distances.sort_by(f64::total_cmp);
    let [median, worst] = [distances.len() / 2, distances.len().saturating_sub(1)]
        .map(|at| distances.get(at).copied().unwrap_or(f64::NAN));
    let limits = if model.backend().kv == KvType::F32.name() { EXACT } else { ROUNDED };
    let passed = median < limits[0] && worst < limits[1];
    let of = |path: &Path| path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let name = match path.parent().filter(|_| path.is_file()) {
        Some(folder) => format!("{}/{}", of(folder), of(path)),
        None => of(path),
    };
    Ok(Some(Fixture { name, device: model.backend().device, median, worst, passed }))
}

/// L2 distance relative to the L2 norm of the expected row; infinite if it is NaN.
fn distance(actual: &[f32], expected: &[f32]) -> f64 {
    let square = |x: f64| x * x;
    let apart: f64 = actual.iter().zip(expected).map(|(&a, &e)| square(f64::from(a) - f64::from(e))).sum();
    let length: f64 = expected.iter().map(|&e| square(f64::from(e))).sum();
    let distance = (apart / length).sqrt();
    // A NaN may sort before all numbers.
    if distance.is_nan() { f64::INFINITY } else { distance }
}

/// Generates from the demo, greedily and randomly, in a batch and alone, and counts the requests with equal tokens.
pub fn batched<D: Driver + 'static>(machine: &Machine<'_, D>) -> Result<Batched, CliError> {
    let checkpoint = Checkpoint::demo()?;
    let tokens = REQUESTS * 7 + TOKENS;
    let want = Want { step: 64, ..Want::sequences(REQUESTS, tokens) };
    let model = machine.load(&checkpoint, want)?.model;
    let (device, vocab) = (model.backend().device, model.spec().vocab);
    let engine = Engine::start_boxed(model, EngineConfig::default());
    let engine = engine.map_err(|e| CliError::refused(e, "engine", "report this"))?;
    let engine = GpuInferenceEngine::on(Arc::new(engine));
    let request = |i: usize| {
        let prompt = (0..1 + 7 * i).map(|p| ((p + 1) * (2 * i + 7) * 2_654_435_761 % vocab) as u32).collect();
        let config = GenerationConfig {
            max_new_tokens: TOKENS,
            temperature: (i % 3) as f32 / 2.0,
            top_p: 0.95,
            seed: Some(i as u64),
            ..GenerationConfig::default()
        };
        (prompt, config)
    };
    let batch: Vec<(Vec<u32>, GenerationConfig)> = (0..REQUESTS).map(request).collect();
    let failed = |e: &dyn std::fmt::Display| CliError::refused(e, "demo", "report this");
    let together = engine.process_batch_gpu(&batch).map_err(|e| failed(&e))?;
    let mut equal = 0;
    for ((prompt, config), in_batch) in batch.iter().zip(&together) {
        let alone = engine.generate_tokens_gpu(prompt, config).map_err(|e| failed(&e))?;
        equal += usize::from(&alone == in_batch);
    }
    Ok(Batched { device, requests: REQUESTS, equal })
}

#[cfg(test)]
mod tests {
    use super::distance;

    #[test]
    fn a_row_with_a_nan_is_farther_than_any_limit() {
        assert_eq!(distance(&[3.0, 0.0], &[0.0, 4.0]), 1.25);
        for nan in [f32::NAN, -f32::NAN] {
            assert_eq!(distance(&[1.0, nan], &[1.0, 1.0]), f64::INFINITY);
        }
    }
}
