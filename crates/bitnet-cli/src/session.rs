//! Conversations that go on after the program has ended: a file each, in the folder of the cache.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use bitnet::Message;
use serde::{Deserialize, Serialize};

use crate::{error::CliError, output_file};

/// A conversation with a name.
pub struct Session {
    name: String,
    file: PathBuf,
}

/// A message as OpenAI's API writes it.
#[derive(Serialize, Deserialize)]
struct Saved {
    role: String,
    content: String,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    reasoning_content: Option<String>,
}

impl Session {
    /// The session with this name in the folder of a cache; it may be new.
    pub fn of(cache: &Path, name: &str) -> Result<Session, CliError> {
        let plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
        if name.is_empty() || name.len() > 64 || name.starts_with('.') || !name.chars().all(plain) {
            let cure =
                "use up to 64 letters, digits, dots, dashes and underscores, without a dot at the start";
            return Err(CliError::usage(
                format!("a session cannot be called {name:.70?}"),
                "--session",
                cure,
            ));
        }
        let folder = folder(cache);
        make(&folder).map_err(CliError::file("write", &folder))?;
        Ok(Session { name: name.to_owned(), file: folder.join(format!("{name}.json")) })
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its messages so far; none if it is new.
    pub fn messages(&self) -> Result<Vec<Message>, CliError> {
        let text = match fs::read(&self.file) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            text => text.map_err(CliError::file("read", &self.file))?,
        };
        let saved: Vec<Saved> = serde_json::from_slice(&text).map_err(|e| {
            let what = format!("the session is damaged: {e}");
            CliError::refused(what, self.file.display(), "remove the file, or use another name")
        })?;
        let message = |saved: Saved| Message {
            reasoning: saved.reasoning_content,
            ..Message::new(&*saved.role, saved.content)
        };
        Ok(saved.into_iter().map(message).collect())
    }

    /// Writes all messages. Whoever reads the file finds the old or the new conversation, never a part of one.
    pub fn save(&self, messages: &[Message]) -> Result<(), CliError> {
        output_file::save_json(&self.file, &saved(messages))
    }
}

fn saved(messages: &[Message]) -> Vec<Saved> {
    let saved = |message: &Message| Saved {
        role: message.role.clone(),
        content: message.content.clone().unwrap_or_default(),
        reasoning_content: message.reasoning.clone(),
    };
    messages.iter().map(saved).collect()
}

fn folder(cache: &Path) -> PathBuf {
    cache.join("sessions")
}

/// The names of all sessions, in order.
pub fn names(cache: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder(cache)).into_iter().flatten().flatten();
    let name = |entry: fs::DirEntry| Some(entry.file_name().to_str()?.strip_suffix(".json")?.to_owned());
    let mut names: Vec<String> = entries.filter_map(name).filter(|name| !name.starts_with('.')).collect();
    names.sort();
    names
}

/// Makes a folder that only its owner can open.
fn make(folder: &Path) -> io::Result<()> {
    let mut builder = fs::DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.create(folder)
}
