//! Names of models on a hub, `org/name@revision:file`, told apart from paths.

/// The name of a model on a hub, `org/name[@revision][:file]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelId {
    /// `org/name`.
    pub repo: String,
    /// Branch, tag or commit; `main` if none is given.
    pub revision: String,
    /// A file of the repository; `None` is the whole model.
    pub file: Option<String>,
}

impl ModelId {
    /// Parses an id; returns `None` if the text is not one, for example a path.
    pub fn parse(text: &str) -> Option<ModelId> {
        let (id, file) = text.split_once(':').map_or((text, None), |(id, file)| (id, Some(file)));
        let (repo, revision) = id.split_once('@').unwrap_or((id, "main"));
        let (org, name) = repo.split_once('/')?;
        let valid = is_plain(org)
            && is_plain(name)
            && is_relative(revision)
            && file.is_none_or(is_relative)
            // A path to a file, mistyped or not.
            && ![".gguf", ".safetensors", ".json"].iter().any(|end| repo.ends_with(end));
        valid.then(|| ModelId { repo: repo.into(), revision: revision.into(), file: file.map(Into::into) })
    }
}

/// The files that make up a model that starts with `file`: all parts of a GGUF file if it is one of several
/// (`NAME-00001-of-00003.gguf`), else the file alone.
pub(crate) fn parts(file: &str) -> Vec<String> {
    match part(file) {
        Some((stem, _, count)) => {
            (1..=count).map(|number| format!("{stem}-{number:05}-of-{count:05}.gguf")).collect()
        }
        None => vec![file.to_owned()],
    }
}

/// Splits the name of a part of a GGUF file into its beginning, its number and the number of parts.
pub(crate) fn part(file: &str) -> Option<(&str, u32, u32)> {
    let digits = |text: &str| text.parse().ok().filter(|_| text.len() == 5);
    let (name, count) = file.strip_suffix(".gguf")?.rsplit_once("-of-")?;
    let (stem, number) = name.rsplit_once('-')?;
    let (number, count) = (digits(number)?, digits(count)?);
    (1..=count).contains(&number).then_some((stem, number, count))
}

/// Whether a name is safe as a component of a path and of a URL.
pub(crate) fn is_plain(name: &str) -> bool {
    (1..=255).contains(&name.len())
        && name.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '_')
        && name.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | '+'))
        && !name.contains("..")
}

/// Whether all components of a path are plain, so that it cannot leave its folder.
pub(crate) fn is_relative(path: &str) -> bool {
    path.split('/').all(is_plain)
}

#[cfg(test)]
mod tests {
    use super::{ModelId, parts};

    #[test]
    fn ids_are_distinguished_from_paths() {
        let id = |text: &str| {
            let id = ModelId::parse(text)?;
            Some(format!("{} {} {}", id.repo, id.revision, id.file.unwrap_or_default()))
        };
        let plain = "microsoft/bitnet-b1.58-2B-4T";
        assert_eq!(id(plain).unwrap(), format!("{plain} main "));
        assert_eq!(id("org/name@v1.0").unwrap(), "org/name v1.0 ");
        assert_eq!(id("org/name@refs/pr/2:sub/model.gguf").unwrap(), "org/name refs/pr/2 sub/model.gguf");
        for path in [
            "./org/name",
            "/org/name",
            "a/b/c",
            "name",
            "../x",
            "models/tiny.gguf",
            "org/name:../../etc/passwd",
            "org/name@../main",
            "org/name:",
            "org/name@",
            "org/na me",
            "org\\name/x",
        ] {
            assert_eq!(id(path), None, "{path}");
        }
    }

    #[test]
    fn any_part_of_a_file_names_all_parts() {
        let all = ["a/m-00001-of-00003.gguf", "a/m-00002-of-00003.gguf", "a/m-00003-of-00003.gguf"];
        for part in all {
            assert_eq!(parts(part), all);
        }
        for whole in [
            "m.gguf",
            "m-00004-of-00003.gguf",
            "m-00000-of-00003.gguf",
            "m-1-of-3.gguf",
            "m-00001-of-00003.bin",
        ] {
            assert_eq!(parts(whole), [whole]);
        }
    }
}
