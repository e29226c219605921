//! Prints an answer as it comes: its text to stdout, and thoughts apart from it. They are dimmed on a terminal; where
//! stdout goes elsewhere, they go to stderr, so that stdout has the answer only.

use std::{
    env,
    io::{self, IsTerminal, Write},
    sync::Arc,
};

use bitnet::{
    model::{DecodeStream, Tokenizer},
    thought::{Split, ThoughtRule, ThoughtSplitter},
};

use crate::{error::CliError, output};

/// Reads the tokens of an answer, whose text is that of the tokens or, without a tokenizer, their ids.
pub struct AnswerReader {
    stream: Option<DecodeStream>,
    splitter: ThoughtSplitter,
    /// What has been read so far.
    pub answer: Split,
}

impl AnswerReader {
    /// A reader of the text after a prompt with this rule for thoughts.
    pub fn new(tokenizer: Option<&Tokenizer>, rule: Option<&Arc<ThoughtRule>>) -> Self {
        let stream = tokenizer.map(Tokenizer::stream);
        AnswerReader { stream, splitter: ThoughtSplitter::new(rule), answer: Split::default() }
    }

    /// Reads a token; returns what it adds.
    pub fn token(&mut self, token: u32) -> Split {
        let split = match &mut self.stream {
            Some(stream) => self.splitter.push(Some(token), &stream.push(token)),
            None if self.answer.answer.is_empty() => Split { answer: token.to_string(), ..Split::default() },
            None => Split { answer: format!(" {token}"), ..Split::default() },
        };
        self.answer.extend(&split);
        split
    }

    /// Reads the bytes after the last token; returns what is left.
    pub fn end(&mut self, tail: &[u8]) -> Split {
        let rest = self.stream.as_mut().map(DecodeStream::finish).unwrap_or_default();
        let mut split = self.splitter.push(None, &(rest + &String::from_utf8_lossy(tail)));
        split.extend(&self.splitter.finish());
        self.answer.extend(&split);
        split
    }
}

/// Writes an answer as it comes.
pub struct Printer {
    reader: AnswerReader,
    thoughts: Thoughts,
    line_open: bool,
}

impl Printer {
    /// A printer of what this reader reads.
    pub fn new(reader: AnswerReader, shows_thoughts: bool) -> Self {
        Printer { reader, thoughts: Thoughts::new(shows_thoughts), line_open: false }
    }

    pub fn token(&mut self, token: u32) -> io::Result<()> {
        let split = self.reader.token(token);
        self.write(&split)
    }

    fn write(&mut self, Split { thought, answer }: &Split) -> io::Result<()> {
        if !thought.is_empty() {
            if self.thoughts.place == Some(Place::Stdout) && std::mem::take(&mut self.line_open) {
                stdout("\n")?;
            }
            let shown = self.thoughts.more(thought);
            self.thoughts.write(&shown)?;
        }
        if answer.is_empty() {
            return Ok(());
        }
        self.end_thought(true)?;
        self.line_open = !answer.ends_with('\n');
        stdout(answer)
    }

    /// Ends a thought that is being shown.
    fn end_thought(&mut self, answered: bool) -> io::Result<()> {
        let end = self.thoughts.end(answered);
        self.thoughts.write(end)
    }

    /// Writes the rest of the text and ends its last line; returns the whole answer.
    pub fn end(mut self, tail: &[u8]) -> Result<Split, CliError> {
        let split = self.reader.end(tail);
        let written = self.write(&split).and_then(|()| self.end_thought(false));
        let written = written.and_then(|()| if self.line_open { stdout("\n") } else { Ok(()) });
        written.map(|()| self.reader.answer).map_err(CliError::Stdout)
    }
}

fn stdout(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()
}

/// Where thoughts are shown.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    /// Before the answer.
    Stdout,
    Stderr,
}

/// How thoughts are shown.
struct Thoughts {
    /// `None` if they are not shown.
    place: Option<Place>,
    /// Whether they are dimmed; otherwise, a line before them and one after them set them apart.
    dims: bool,
    /// Whether one is being shown.
    open: bool,
}

impl Thoughts {
    fn new(shows: bool) -> Thoughts {
        let place = if io::stdout().is_terminal() { Place::Stdout } else { Place::Stderr };
        let colours = env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
        let terminal = place == Place::Stdout || io::stderr().is_terminal();
        let shows = shows && !output::is_quiet();
        Thoughts { place: shows.then_some(place), dims: colours && terminal, open: false }
    }

    /// More of a thought, as it is shown.
    fn more(&mut self, text: &str) -> String {
        let begins = !std::mem::replace(&mut self.open, true);
        if self.dims {
            // Each piece by itself, so that nothing stays dimmed if the program ends here.
            format!("\x1b[2m{text}\x1b[0m")
        } else if begins {
            format!("[thinking]\n{text}")
        } else {
            text.to_owned()
        }
    }

    /// What ends a thought, before an answer or without one.
    fn end(&mut self, answered: bool) -> &'static str {
        let before_text = answered && self.place == Some(Place::Stdout);
        match (std::mem::take(&mut self.open), before_text, self.dims) {
            (false, _, _) => "",
            (true, false, _) => "\n",
            (true, true, true) => "\n\n",
            (true, true, false) => "\n[answer]\n",
        }
    }

    fn write(&self, text: &str) -> io::Result<()> {
        match self.place {
            Some(Place::Stdout) if !text.is_empty() => stdout(text),
            // If stderr is closed, there is nobody to read it.
            Some(Place::Stderr) => {
                let _ = io::stderr().lock().write_all(text.as_bytes());
                Ok(())
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a terminal shows of a thought in two pieces and an answer.
    fn shown(place: Place, dims: bool) -> String {
        let mut thoughts = Thoughts { place: Some(place), dims, open: false };
        let mut shown = thoughts.more("Hm") + &thoughts.more(".");
        shown += thoughts.end(true);
        shown + "Yes." + thoughts.end(true)
    }

    #[test]
    fn a_thought_is_dimmed_or_has_lines_around_it() {
        assert_eq!(shown(Place::Stdout, true), "\x1b[2mHm\x1b[0m\x1b[2m.\x1b[0m\n\nYes.");
        assert_eq!(shown(Place::Stdout, false), "[thinking]\nHm.\n[answer]\nYes.");
        assert_eq!(shown(Place::Stderr, false), "[thinking]\nHm.\nYes.", "the answer is elsewhere");
    }
}
