//! The file that collects answers until a run is complete.

use std::{
    fs::{File, OpenOptions, TryLockError},
    io::{BufRead, BufReader, Seek, SeekFrom, Write},
    path::{Path, PathBuf},
};

use serde::Deserialize;

use super::{error::BatchRunError, line::Line};
use crate::identity::Identity;

/// The file `OUT.partial` next to the output, with complete lines, locked against a second run.
pub(super) struct PartialFile {
    place: PathBuf,
    partial: PathBuf,
    file: File,
    lines: u64,
}

/// The parts of a line of an earlier run that show what it answers, and what computed it.
#[derive(Deserialize)]
struct EarlierLine {
    id: String,
    response: Option<Response>,
}

#[derive(Deserialize)]
struct Response {
    body: Body,
}

#[derive(Deserialize)]
struct Body {
    /// Absent in errors.
    system_fingerprint: Option<String>,
}

impl EarlierLine {
    /// How the identity that answered the line differs from `identity`; `None` if it is the same or unknown.
    fn difference(&self, identity: &Identity) -> Option<String> {
        let fingerprint = self.response.as_ref()?.body.system_fingerprint.as_ref()?;
        identity.difference(&Identity::parse(fingerprint)?)
    }
}

impl PartialFile {
    /// Opens the file that an earlier run left, or creates it.
    pub fn open(place: &Path, input: &Path) -> Result<Self, BatchRunError> {
        let fail = |path: &Path| BatchRunError::file("write", path);
        let Some(name) = place.file_name().filter(|_| !place.is_dir()) else {
            return Err(fail(place)(std::io::Error::other("it is a folder")));
        };
        let mut partial = name.to_owned();
        partial.push(".partial");
        let partial = place.with_file_name(partial);
        let same =
            |path: &Path| path.canonicalize().is_ok_and(|p| input.canonicalize().is_ok_and(|i| p == i));
        for path in [place, &partial] {
            if same(path) {
                return Err(BatchRunError::SameFile { path: path.into() });
            }
        }
        let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&partial);
        let file = file.map_err(fail(&partial))?;
        match file.try_lock() {
            Ok(()) => Ok(PartialFile { place: place.into(), partial, file, lines: 0 }),
            Err(TryLockError::WouldBlock) => Err(BatchRunError::Locked { path: partial }),
            Err(TryLockError::Error(e)) => Err(fail(&partial)(e)),
        }
    }

    /// Checks that the complete lines answer the first lines of the input, and cuts off an incomplete last line.
    /// Returns the offset in the input at which the answered lines end.
    pub fn resume(
        &mut self,
        identity: &Identity,
        id: impl Fn(&Line) -> String,
        input: &mut dyn FnMut() -> Result<Option<Line>, BatchRunError>,
    ) -> Result<u64, BatchRunError> {
        let (mut read, mut whole, mut at) = (BufReader::new(&self.file), 0, 0);
        let mut text = Vec::new();
        loop {
            text.clear();
            let length =
                read.read_until(b'\n', &mut text).map_err(BatchRunError::file("read", &self.partial))?;
            let Some(answer) = text.strip_suffix(b"\n") else { break };
            let earlier = serde_json::from_slice::<EarlierLine>(answer).ok();
            let line = input()?;
            if let Some(difference) = earlier.as_ref().and_then(|earlier| earlier.difference(identity)) {
                let (path, line) = (self.partial.clone(), self.lines + 1);
                return Err(BatchRunError::OtherIdentity { path, line, difference });
            }
            if earlier.is_none() || earlier.map(|earlier| earlier.id) != line.as_ref().map(&id) {
                return Err(BatchRunError::OtherRun { path: self.partial.clone(), line: self.lines + 1 });
            }
            (whole, at) = (whole + length as u64, line.map_or(at, |line| line.end));
            self.lines += 1;
        }
        let cut = |mut file: &File| {
            file.set_len(whole)?;
            file.seek(SeekFrom::Start(whole))
        };
        cut(&self.file).map_err(BatchRunError::file("write", &self.partial))?;
        Ok(at)
    }

    /// Number of complete lines.
    pub fn lines(&self) -> u64 {
        self.lines
    }

    /// Appends a line. If that fails, the complete lines before it are kept.
    pub fn write(&mut self, line: &str) -> Result<(), BatchRunError> {
        let written = self.file.write_all(format!("{line}\n").as_bytes());
        written.map_err(BatchRunError::file("write", &self.partial))?;
        self.lines += 1;
        Ok(())
    }

    /// Renames the file to the output's name.
    pub fn commit(self) -> Result<(), BatchRunError> {
        let done = self.file.sync_all().and_then(|()| std::fs::rename(&self.partial, &self.place));
        done.map_err(BatchRunError::file("write", &self.place))
    }
}
