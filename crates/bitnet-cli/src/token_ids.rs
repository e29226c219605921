use std::str::FromStr;

/// Token ids, parsed from `1,2,3`, `1 2 3` or `[1, 2, 3]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TokenIds(pub Vec<u32>);

impl FromStr for TokenIds {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let text = text.trim();
        let inner = text.strip_prefix('[').and_then(|t| t.strip_suffix(']')).unwrap_or(text);
        let ids = inner.split([',', ' ', '\n', '\t']).filter(|id| !id.is_empty());
        let ids: Result<Vec<u32>, String> =
            ids.map(|id| id.parse().map_err(|_| format!("'{id:.20}' is not a token id"))).collect();
        Ok(TokenIds(ids?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_read_with_commas_spaces_and_brackets() {
        for text in ["1,2,3", "1 2 3", "[1, 2, 3]", " [1,2,3]\n"] {
            assert_eq!(text.parse(), Ok(TokenIds(vec![1, 2, 3])), "{text:?}");
        }
        assert_eq!("[]".parse(), Ok(TokenIds(vec![])));
        for text in ["1,x", "-1", "4294967296", "1.5"] {
            assert!(text.parse::<TokenIds>().is_err(), "{text:?}");
        }
    }
}
