//! Opens the checkpoint that the argument MODEL names.

use std::path::PathBuf;

use bitnet::model::{Checkpoint, Tokenizer};

use crate::{error::CliError, output, progress::Progress};

/// Opens MODEL and prints notes about it to stderr.
pub fn open(model: &str) -> Result<Checkpoint, CliError> {
    Ok(open_at(model)?.0)
}

/// Like [`open`], but tells the chat template not to think first unless `thinking` is set.
pub fn open_thinking(model: &str, thinking: bool) -> Result<Checkpoint, CliError> {
    let mut checkpoint = open(model)?;
    if !thinking {
        let asks = checkpoint.chat.take_if(|template| template.asks_for_thinking());
        let told = asks.map(|template| template.with_thinking(false));
        let what = "the model's chat template leaves no choice about thinking";
        let refused = || CliError::refused(what, "--no-thinking", "leave it out");
        checkpoint.chat = Some(told.ok_or_else(refused)?);
    }
    Ok(checkpoint)
}

/// Opens MODEL and returns its path; models without a file of their own are in this program's.
pub fn open_at(model: &str) -> Result<(Checkpoint, PathBuf), CliError> {
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
    let program = || std::env::current_exe().unwrap_or_default();
    Ok((opened.checkpoint, opened.path.unwrap_or_else(program)))
}

/// Returns the tokenizer, or an error if the model has none.
pub fn tokenizer(checkpoint: &Checkpoint) -> Result<&Tokenizer, CliError> {
    checkpoint.tokenizer.as_ref().ok_or_else(|| {
        let cure = match checkpoint.format {
            "synthetic" => "use a trained model, or a command that takes token ids (--ids)",
            _ => "put the model's tokenizer.json beside its weights",
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

#[cfg(test)]
mod tests {
    use bitnet_server::ServedModel;

    use super::*;

    #[test]
    fn a_model_in_no_file_of_its_own_is_as_old_as_the_program() {
        let program = std::env::current_exe().unwrap();
        for model in ["demo", "synthetic:tiny"] {
            let (checkpoint, place) = open_at(model).unwrap();
            assert_eq!(place, program, "{model}");
            let served = ServedModel::of(&checkpoint).dated(&place);
            assert!(served.created > 1_600_000_000, "{model}: {}", served.created);
        }
    }
}
