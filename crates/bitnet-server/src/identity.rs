//! Identifies a server by everything, apart from the request, that decides a token.

use std::fmt;

use sha2::{Digest, Sha256};

/// Maximum length of a part in bytes; a longer one is replaced by its hash.
const MAX_PART: usize = 64;

/// Version, model, type of cached keys and values, and device. A server that differs in any of them may continue a text
/// differently, so a stream or a file of answers is only continued where all four are the same.
///
/// Displayed as `bitnet-VERSION;MODEL;KV;DEVICE`, in characters that a header may contain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Identity {
    parts: [String; 4],
}

impl Identity {
    pub fn new(model: &str, kv: &str, device: &str) -> Self {
        let version = concat!("bitnet-", env!("CARGO_PKG_VERSION")).to_owned();
        Identity { parts: [version, plain(model), plain(kv), plain(device)] }
    }

    /// Parses the displayed form.
    pub fn parse(text: &str) -> Option<Identity> {
        let parts: Vec<String> = text.split(';').map(str::to_owned).collect();
        let parts: [String; 4] = parts.try_into().ok()?;
        let sound = |part: &String| !part.is_empty() && part.len() <= 3 * MAX_PART;
        parts.iter().all(sound).then_some(Identity { parts })
    }

    /// How `other` differs, such as `kv i8 instead of f32`; `None` if they are equal.
    pub fn difference(&self, other: &Identity) -> Option<String> {
        let names = ["version", "model", "kv", "device"];
        let each = names.iter().zip(self.parts.iter().zip(&other.parts));
        let all: Vec<String> = each
            .filter(|(_, (mine, theirs))| mine != theirs)
            .map(|(name, (mine, theirs))| format!("{name} {theirs} instead of {mine}"))
            .collect();
        (!all.is_empty()).then(|| all.join(", "))
    }
}

impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.parts.join(";"))
    }
}

/// Escapes a text for headers and for this format; replaces an empty or long text by its hash.
fn plain(text: &str) -> String {
    let itself = |byte: u8| byte.is_ascii_alphanumeric() || b"._/+-@:".contains(&byte);
    if text.is_empty() || text.len() > MAX_PART {
        let hash = Sha256::digest(text);
        return hash[..8].iter().fold(String::from("sha256:"), |all, byte| format!("{all}{byte:02x}"));
    }
    text.bytes().fold(String::new(), |all, byte| {
        if itself(byte) {
            all + char::from(byte).encode_utf8(&mut [0; 4])
        } else {
            format!("{all}%{byte:02X}")
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_read_as_it_was_written_whatever_a_model_is_called() {
        for model in ["demo", "org/name:file.gguf", "a;b c\n\u{e9}", "", &"x".repeat(400)] {
            let identity = Identity::new(model, "f32", "NVIDIA H100; 80 GB");
            let text = identity.to_string();
            assert!(text.bytes().all(|b| (0x21..0x7F).contains(&b)) && text.len() < 500, "{text}");
            assert_eq!(Identity::parse(&text), Some(identity), "{text}");
        }
        for text in ["", "bitnet", "a;b;c", "a;b;c;d;e", "a;;c;d"] {
            assert_eq!(Identity::parse(text), None, "{text}");
        }
    }

    #[test]
    fn every_part_that_differs_is_named() {
        let mine = Identity::new("demo", "f32", "cpu");
        assert_eq!(mine.difference(&mine), None);
        let theirs = Identity::new("demo", "i8", "cuda:0");
        let difference = mine.difference(&theirs).unwrap();
        assert_eq!(difference, "kv i8 instead of f32, device cuda:0 instead of cpu");
        assert_ne!(
            Identity::new(&"x".repeat(400), "f32", "cpu"),
            Identity::new(&"y".repeat(400), "f32", "cpu")
        );
        assert_ne!(Identity::new("a;b", "f32", "cpu"), Identity::new("a%3Bb", "f32", "cpu"));
    }
}
