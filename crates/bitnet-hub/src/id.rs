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
    use super::ModelId;

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
}
