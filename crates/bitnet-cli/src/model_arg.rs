//! Opens the checkpoint that the argument MODEL names.

use bitnet::{
    Opened,
    model::{Checkpoint, Tokenizer},
};

use crate::{error::CliError, output, progress::Progress};

/// Opens MODEL and prints notes about it to stderr.
pub fn open(model: &str) -> Result<Checkpoint, CliError> {
    Ok(open_files(model)?.checkpoint)
}

/// Like [`open`], with the path of the files.
pub fn open_files(model: &str) -> Result<Opened, CliError> {
    let mut bar: Option<(String, Progress)> = None;
    let opened = bitnet::open_checkpoint(model, &mut |file, have, size| {
        if bar.as_ref().is_none_or(|(name, _)| name != file) {
            bar = Some((file.into(), Progress::bytes(file)));
        }
        if let Some((_, bar)) = &bar {
            bar.at(have as usize, size as usize);
        }
    });
    drop(bar);
    let opened = opened?;
    opened.notes.iter().for_each(output::note);
    Ok(opened)
}

/// Returns the tokenizer, or an error if the model has none.
pub fn tokenizer(checkpoint: &Checkpoint) -> Result<&Tokenizer, CliError> {
    checkpoint.tokenizer.as_ref().ok_or_else(|| {
        let cure = match checkpoint.format {
            "synthetic" => "use a trained model, or a command that takes token ids (--ids)",
            _ => "put the model's tokenizer.json next to its weights",
        };
        CliError::refused("the model has no tokenizer", &checkpoint.name, cure)
    })
}

/// Checks that there are token ids and that the model has them all.
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
