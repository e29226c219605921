//! MODEL: from what was typed to an opened checkpoint.

use std::path::Path;

use bitnet_model::{Checkpoint, GenerationDefaults, Synthetic, Tokenizer};

use crate::{error::CliError, output};

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
    if let Some(id) = hub_id(model) {
        let what = format!("there is no file or folder {id}, and this build does not download models");
        let cure = format!("download it, for instance with `hf download {id} --local-dir DIR`, and give DIR");
        return Err(CliError::refused(what, "MODEL", cure));
    }
    Ok(Checkpoint::open(Path::new(model))?)
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

/// `org/name`, with or without a revision and a file, if it is not a path.
fn hub_id(model: &str) -> Option<&str> {
    let id = model.split(['@', ':']).next().unwrap_or(model);
    let (org, name) = id.split_once('/')?;
    let part = |p: &str| {
        p.starts_with(|c: char| c.is_ascii_alphanumeric())
            && p.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.'))
    };
    let file = [".gguf", ".safetensors", ".json"].iter().any(|end| name.ends_with(end));
    (part(org) && part(name) && !file && !Path::new(model).exists()).then_some(id)
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

#[cfg(test)]
mod tests {
    use super::hub_id;

    #[test]
    fn hub_ids_are_told_from_paths() {
        assert_eq!(hub_id("microsoft/bitnet-b1.58-2B-4T"), Some("microsoft/bitnet-b1.58-2B-4T"));
        assert_eq!(hub_id("org/name@main:model.gguf"), Some("org/name"));
        for path in ["./org/name", "/org/name", "a/b/c", "name", "../x", "models/tiny.gguf"] {
            assert_eq!(hub_id(path), None, "{path}");
        }
    }
}
