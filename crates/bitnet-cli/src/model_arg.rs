//! MODEL: from what was typed to an opened checkpoint.

use std::path::{Path, PathBuf};

use bitnet_hub::{Hub, ModelId, Settings};
use bitnet_model::{Checkpoint, GenerationDefaults, Synthetic, Tokenizer};

use crate::{error::CliError, output, progress::Progress};

/// Opens MODEL; what the user should know about it is told on stderr.
pub fn open(model: &str) -> Result<Checkpoint, CliError> {
    let checkpoint = match model.strip_prefix("synthetic:") {
        Some(name) => synthetic(model, name)?,
        None if model == "demo" => Checkpoint::demo()?,
        None => files(model)?,
    };
    for warning in &checkpoint.warnings {
        output::note(format_args!("warning: {warning}"));
    }
    Ok(checkpoint)
}

fn files(model: &str) -> Result<Checkpoint, CliError> {
    // What lies on the disk is meant before what lies on a hub.
    let id = ModelId::parse(model).filter(|_| !Path::new(model).exists());
    Ok(match id {
        Some(id) => Checkpoint::open(&fetch(&id)?)?,
        None => Checkpoint::open(Path::new(model))?,
    })
}

fn fetch(id: &ModelId) -> Result<PathBuf, CliError> {
    let mut bar: Option<(String, Progress)> = None;
    let path = Hub::new(Settings::from_env()?).fetch(id, &mut |file, have, size| {
        if bar.as_ref().is_none_or(|(name, _)| name != file) {
            bar = Some((file.into(), Progress::bytes(file)));
        }
        if let Some((_, bar)) = &bar {
            bar.at(have as usize, size as usize);
        }
    })?;
    Ok(path)
}

fn synthetic(model: &str, name: &str) -> Result<Checkpoint, CliError> {
    let synthetic = Synthetic::named(name)?;
    Ok(Checkpoint {
        name: model.into(),
        format: "synthetic",
        spec: synthetic.spec().clone(),
        tensors: Box::new(synthetic),
        tokenizer: None,
        chat: None,
        defaults: GenerationDefaults::default(),
        warnings: Vec::new(),
    })
}

/// The tokenizer of a model that must have one.
pub fn tokenizer(checkpoint: &Checkpoint) -> Result<&Tokenizer, CliError> {
    checkpoint.tokenizer.as_ref().ok_or_else(|| {
        let cure = match checkpoint.format {
            "synthetic" => "use a trained model, or a command that takes token ids (--ids)",
            _ => "put the model's tokenizer.json beside its weights",
        };
        CliError::refused("the model has no tokenizer", &checkpoint.name, cure)
    })
}

/// Checks that token ids are there and that the model has them.
pub fn check_ids(checkpoint: &Checkpoint, ids: &[u32], place: &str) -> Result<(), CliError> {
    let vocab = checkpoint.spec.vocab;
    if ids.is_empty() {
        return Err(CliError::usage("there are no token ids", place, "give at least one, like 1,2,3"));
    }
    match ids.iter().find(|&&id| id as usize >= vocab) {
        Some(id) => {
            let what = format!("token id {id} is not in the vocabulary of {vocab}");
            Err(CliError::refused(what, place, format!("use ids from 0 to {}", vocab - 1)))
        }
        None => Ok(()),
    }
}
