//! Regular expressions over texts and names, decided by the engine that also compiles them.

use llguidance::{
    derivre::{RegexAst, RegexBuilder},
    regex_to_lark,
};

/// Maximum work for one decision.
const FUEL: u64 = 20_000;

/// Checks that the compiler can read a pattern.
pub(super) fn sound(pattern: &str) -> Result<(), String> {
    RegexBuilder::new().mk_regex_for_serach(&regex_to_lark(pattern, "dw")).map(drop).map_err(|error| {
        let error = error.to_string();
        let line = error.lines().rfind(|line| !line.trim().is_empty()).unwrap_or("it cannot be read").trim();
        format!("{pattern:.100?}: {line:.200}")
    })
}

fn search(pattern: &str) -> RegexAst {
    RegexAst::SearchRegex(regex_to_lark(pattern, "dw"))
}

/// Whether a text matches a pattern somewhere; `None` if that is too much work.
pub(super) fn matches(pattern: &str, text: &str) -> Option<bool> {
    let mut builder = RegexBuilder::new();
    let expression = builder.mk(&search(pattern)).ok()?;
    Some(builder.to_regex_limited(expression, FUEL).ok()?.is_match(text))
}

/// Whether every text that matches one of these patterns is one of these texts; `None` if that is too much work.
pub(super) fn only(pattern: &str, texts: &[&str]) -> Option<bool> {
    empty(RegexAst::And(vec![search(pattern), none_of(&[], texts)]))
}

/// Whether every text matches one of these patterns or is one of these texts.
pub(super) fn all(patterns: &[&str], texts: &[&str]) -> Option<bool> {
    empty(RegexAst::And(vec![RegexAst::Regex("(?s:.*)".into()), none_of(patterns, texts)]))
}

fn none_of(patterns: &[&str], texts: &[&str]) -> RegexAst {
    let texts = texts.iter().map(|text| RegexAst::Literal((*text).to_owned()));
    let all = patterns.iter().map(|pattern| search(pattern)).chain(texts).collect();
    RegexAst::Not(Box::new(RegexAst::Or(all)))
}

fn empty(expression: RegexAst) -> Option<bool> {
    let mut builder = RegexBuilder::new();
    let expression = builder.mk(&expression).ok()?;
    Some(builder.to_regex_limited(expression, FUEL).ok()?.always_empty())
}

/// A pattern for every text that is none of these; `None` if it would be too large.
pub(super) fn others(texts: &[&str]) -> Option<String> {
    let short = texts.iter().all(|text| text.len() <= 60)
        && texts.iter().map(|text| text.len()).sum::<usize>() <= 4000;
    short.then(|| format!("^{}$", beyond(texts.iter().map(|text| text.chars().collect()).collect())))
}

/// An expression for the texts that are none of these.
fn beyond(mut texts: Vec<Vec<char>>) -> String {
    if texts.is_empty() {
        return r"[\s\S]*".into();
    }
    texts.sort();
    texts.dedup();
    let ends = texts.first().is_some_and(Vec::is_empty);
    let mut firsts: Vec<char> = texts.iter().filter_map(|text| text.first().copied()).collect();
    firsts.dedup();
    let class: String = firsts.iter().map(|c| escaped(*c)).collect();
    let other = if firsts.is_empty() { r"[\s\S]".to_owned() } else { format!("[^{class}]") };
    let mut branches = vec![other + r"[\s\S]*"];
    for first in firsts {
        let rest = texts.iter().filter(|text| text.first() == Some(&first)).map(|text| text[1..].to_vec());
        branches.push(escaped(first) + &beyond(rest.collect()));
    }
    let optional = if ends { "" } else { "?" };
    format!("(?:{}){optional}", branches.join("|"))
}

fn escaped(c: char) -> String {
    format!("\\x{{{:x}}}", c as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_other_texts_are_all_but_these() {
        for texts in [&["a"][..], &["", "ab", "ac"], &["\"", "\n", "ä", "-", "]"], &[]] {
            let pattern = others(texts).unwrap();
            for text in ["", "a", "b", "ab", "ac", "abc", "ad", "\"", "\n", "ä", "-", "]", "^"] {
                assert_eq!(
                    matches(&pattern, text),
                    Some(!texts.contains(&text)),
                    "{texts:?} {text:?} {pattern}"
                );
            }
        }
    }

    #[test]
    fn a_pattern_for_other_texts_has_a_limit() {
        assert_eq!(others(&["x".repeat(60_000).as_str()]), None);
        let pattern = others(&["x".repeat(60).as_str()]).unwrap();
        assert_eq!(matches(&pattern, &"x".repeat(60)), Some(false));
        assert_eq!(matches(&pattern, &"x".repeat(59)), Some(true));
    }

    #[test]
    fn what_patterns_cover_is_decided() {
        assert_eq!(only("^(a|b)$", &["a", "b", "c"]), Some(true));
        assert_eq!(only("^(a|b)", &["a", "b"]), Some(false));
        assert_eq!(all(&[""], &[]), Some(true));
        assert_eq!(all(&["^a", "^[^a]"], &[""]), Some(true));
        assert_eq!(all(&["^a", "^[^a]"], &[]), Some(false));
    }
}
