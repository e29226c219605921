use std::{fs::File, io::Read, path::Path};

use crate::error::CliError;

/// Maximum size of a text in bytes.
const MAX_TEXT: u64 = 1 << 28;

pub fn read_file(path: &Path) -> Result<String, CliError> {
    read(File::open(path).map_err(CliError::file("read", path))?, path)
}

/// Reads all of `input` as text; `place` names it in errors. It reads no further than the maximum size, because a pipe
/// or a device may never end.
pub fn read(input: impl Read, place: impl AsRef<Path>) -> Result<String, CliError> {
    let place = place.as_ref();
    let mut bytes = Vec::new();
    input.take(MAX_TEXT + 1).read_to_end(&mut bytes).map_err(CliError::file("read", place))?;
    if bytes.len() as u64 > MAX_TEXT {
        let cure = format!("give at most {MAX_TEXT} bytes");
        return Err(CliError::refused("the text is too long", place.display(), cure));
    }
    String::from_utf8(bytes).map_err(|e| {
        let what = format!("the text is not valid UTF-8 from byte {} on", e.utf8_error().valid_up_to());
        CliError::refused(what, place.display(), "convert it to UTF-8, for instance with iconv")
    })
}
