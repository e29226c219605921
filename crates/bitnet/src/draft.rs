//! What drafts tokens ahead: the text itself, the model's own head, or a smaller model.

use std::{convert::Infallible, fmt, str::FromStr};

use bitnet_inference::DraftModelError;
use bitnet_model::{Checkpoint, Tokenizer};

use crate::{Error, open};

/// What drafts tokens, which the model then checks together. It changes no token of an answer, only its speed.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Draft {
    /// The model's own head if its files have one and the device can run it, and the text otherwise.
    #[default]
    Auto,
    /// The model's own head (multi-token prediction).
    Head,
    /// The text itself, where its last tokens occurred before.
    Ngram,
    /// Nothing.
    None,
    /// A smaller model with the same vocabulary, named as for [`Model::open`](crate::Model::open).
    Model(String),
}

impl FromStr for Draft {
    type Err = Infallible;

    /// Reads `auto`, `head`, `ngram` or `none`; anything else names a model.
    fn from_str(text: &str) -> Result<Self, Infallible> {
        Ok(match text {
            "auto" => Draft::Auto,
            "head" => Draft::Head,
            "ngram" => Draft::Ngram,
            "none" => Draft::None,
            model => Draft::Model(model.into()),
        })
    }
}

impl fmt::Display for Draft {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Draft::Auto => "auto",
            Draft::Head => "head",
            Draft::Ngram => "ngram",
            Draft::None => "none",
            Draft::Model(model) => model,
        })
    }
}

/// What drafts for a model, with its files open.
#[derive(Debug, Default)]
pub struct OpenDraft {
    /// Whether the model's head drafts.
    pub(crate) head: bool,
    pub(crate) model: Option<Checkpoint>,
    none: bool,
}

impl Draft {
    /// Opens what drafts for `checkpoint`. `progress` is that of [`open_checkpoint`](crate::open_checkpoint).
    ///
    /// # Errors
    /// If the model has no head that was asked for, or the draft model cannot be opened or has another vocabulary.
    pub fn open(
        &self,
        checkpoint: &Checkpoint,
        progress: &mut dyn FnMut(&str, u64, u64),
    ) -> Result<OpenDraft, Error> {
        let has_head = checkpoint.spec.draft_head;
        Ok(match self {
            Draft::Auto | Draft::Head if has_head => OpenDraft { head: true, ..OpenDraft::default() },
            Draft::Head => return Err(Error::NoDraftHead { model: checkpoint.name.clone() }),
            Draft::Auto | Draft::Ngram => OpenDraft::default(),
            Draft::None => OpenDraft { none: true, ..OpenDraft::default() },
            Draft::Model(model) => {
                let mut smaller = open::open_checkpoint(model, progress)?.checkpoint;
                smaller.spec.draft_head = false;
                smaller.spec.context = smaller.spec.context.min(checkpoint.spec.context);
                if smaller.spec.state_bytes() > 0 {
                    return Err(DraftModelError::Recurrent.into());
                }
                same_vocabulary(&smaller, checkpoint)?;
                OpenDraft { model: Some(smaller), ..OpenDraft::default() }
            }
        })
    }
}

impl OpenDraft {
    /// The maximum number of drafts for a sequence in a step, if `most` are allowed.
    pub fn most(&self, most: usize) -> usize {
        if self.none { 0 } else { most }
    }
}

/// Checks that every token id stands for the same bytes in both models.
fn same_vocabulary(drafts: &Checkpoint, model: &Checkpoint) -> Result<(), Error> {
    let (Some(ours), Some(theirs)) = (&drafts.tokenizer, &model.tokenizer) else {
        // Without texts, only the number of ids can be compared.
        let same =
            drafts.tokenizer.is_none() && model.tokenizer.is_none() && drafts.spec.vocab == model.spec.vocab;
        let text = |checkpoint: &Checkpoint| match checkpoint.tokenizer {
            Some(_) => "a text".to_owned(),
            None => format!("one of {} ids without a text", checkpoint.spec.vocab),
        };
        let differs = DraftModelError::Vocabulary { token: 0, drafts: text(drafts), model: text(model) };
        return if same { Ok(()) } else { Err(differs.into()) };
    };
    let spelled = |tokenizer: &Tokenizer, id| {
        let bytes = tokenizer.token_bytes(id).map(|bytes| String::from_utf8_lossy(bytes).into_owned());
        bytes.unwrap_or_else(|| "no token".into())
    };
    let count = ours.vocab_size().max(theirs.vocab_size()) as u32;
    let differs = (0..count).find(|&id| {
        ours.token_bytes(id) != theirs.token_bytes(id) || ours.is_special(id) != theirs.is_special(id)
    });
    match differs {
        None => Ok(()),
        Some(token) => {
            let (drafts, model) = (spelled(ours, token), spelled(theirs, token));
            Err(DraftModelError::Vocabulary { token, drafts, model }.into())
        }
    }
}
