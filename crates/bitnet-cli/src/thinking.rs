//! The flags for thoughts: whether and how long to think, and whether to show it.

use std::str::FromStr;

use bitnet::{Thinking, model::Checkpoint};
use clap::Args;

use crate::error::CliError;

/// Flags for thoughts.
#[derive(Debug, Args)]
pub struct ThinkingFlags {
    /// Whether to think before the answer: on, off, hide (think, and show only the answer), or the maximum number of
    /// tokens of a thought. Thoughts are shown dimmed on a terminal; if the output goes elsewhere, they go to stderr
    /// [default: as the model's chat template does]
    #[arg(long, value_name = "on|off|hide|N")]
    pub thinking: Option<Wish>,
    /// The same as --thinking off
    #[arg(long, conflicts_with = "thinking")]
    pub no_thinking: bool,
}

/// What a user says about thoughts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wish {
    On,
    Off,
    Hide,
    /// The maximum number of tokens of a thought.
    Budget(usize),
}

impl FromStr for Wish {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "on" => Ok(Wish::On),
            "off" => Ok(Wish::Off),
            "hide" => Ok(Wish::Hide),
            number => {
                number.parse().map(Wish::Budget).map_err(|_| "give on, off, hide or a number of tokens")
            }
        }
    }
}

impl ThinkingFlags {
    /// What a request says, for a model whose template can do it.
    pub fn of(&self, checkpoint: &Checkpoint) -> Result<Thinking, CliError> {
        let conventions = checkpoint.chat.as_ref().map(|template| template.conventions());
        let form = conventions.and_then(|all| all.thought.as_ref());
        let (wish, flag) = match (self.thinking, self.no_thinking) {
            (_, true) => (Wish::Off, "--no-thinking"),
            (Some(wish), _) => (wish, "--thinking"),
            (None, false) => return Ok(Thinking::default()),
        };
        let cure = "leave it out";
        if wish == Wish::Off && form.is_none_or(|form| form.switch.is_none()) {
            let what = "the model's chat template leaves no choice about thinking";
            return Err(CliError::refused(what, flag, cure));
        }
        if form.is_none() {
            return Err(CliError::refused("the model's chat template knows no thoughts", flag, cure));
        }
        Ok(match wish {
            Wish::On | Wish::Hide => Thinking::from(true),
            Wish::Off => Thinking::from(false),
            Wish::Budget(tokens) => {
                Thinking { budget: Some(tokens), on: Some(tokens > 0), ..Thinking::default() }
            }
        })
    }

    /// Whether thoughts are shown.
    pub fn shows(&self) -> bool {
        self.thinking != Some(Wish::Hide)
    }
}
