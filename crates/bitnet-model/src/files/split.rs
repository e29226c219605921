//! GGUF files in several parts, `NAME-00001-of-00003.gguf`, as llama.cpp's `llama-gguf-split` writes them.
//! [`join`] reads all parts, whichever of them was opened.

use std::path::Path;

use super::{file_name, gguf::Gguf, map};
use crate::ModelError;

/// Maximum number of missing parts that a message names.
const MAX_NAMED: usize = 3;

/// The whole model of which `opened`, read from `path`, is a part, or `opened` itself if it is whole.
pub(super) fn join(path: &Path, opened: Gguf) -> Result<Gguf, ModelError> {
    let Some(count) = opened.opt_u64("split.count")?.filter(|&count| count > 1) else { return Ok(opened) };
    let file = opened.file.clone();
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let Some(stem) = stem(&name, count) else {
        let cure = format!("name the {count} parts NAME-00001-of-{count:05}.gguf and so on");
        return Err(ModelError::unsupported(&file, "split.count", count, cure));
    };
    let part = |number: u64| path.with_file_name(format!("{stem}-{number:05}-of-{count:05}.gguf"));
    let missing: Vec<_> = (1..=count).map(part).filter(|path| !path.exists()).collect();
    if !missing.is_empty() {
        let more = missing.len().saturating_sub(MAX_NAMED);
        let named: Vec<String> = missing.iter().take(MAX_NAMED).map(|path| file_name(path)).collect();
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        return Err(ModelError::MissingParts { file, missing: named.join(", ") + &more, count });
    }
    let read = |number| {
        let path = part(number);
        let gguf = Gguf::read(&file_name(&path), map::map(&path)?)?;
        // Parts are counted from 0 within the files.
        match gguf.opt_u64("split.no")? {
            Some(no) if no + 1 == number && gguf.opt_u64("split.count")? == Some(count) => Ok(gguf),
            _ => {
                let problem = format!("is not {} of {count}, as the file's name says", number - 1);
                Err(ModelError::field(&gguf.file, "split.no", problem))
            }
        }
    };
    let mut whole = read(1)?;
    let expected = whole.opt_u64("split.tensors.count")?;
    for number in 2..=count {
        whole.append(read(number)?)?;
    }
    if let Some(expected) = expected.filter(|&expected| expected != whole.tensors.len() as u64) {
        let problem = format!("is {expected}, but the parts have {} tensors", whole.tensors.len());
        return Err(ModelError::field(&whole.file, "split.tensors.count", problem));
    }
    Ok(whole)
}

/// The name before the numbers, if this is the name of one of `count` parts.
fn stem(name: &str, count: u64) -> Option<&str> {
    let name = name.strip_suffix(&format!("-of-{count:05}.gguf"))?;
    let (stem, number) = name.rsplit_once('-')?;
    let number: u64 = Some(number).filter(|digits| digits.len() == 5)?.parse().ok()?;
    (1..=count).contains(&number).then_some(stem)
}
