//! Finds files of a crate that use each other, by the paths in their text.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
};

use anyhow::{Context, Result};

/// A path from the root of a crate.
type Segments = Vec<String>;

/// The files of a crate by their modules: their text, or the paths that they use with the name that each gets there.
type Texts = BTreeMap<Segments, String>;
type Uses = BTreeMap<Segments, Vec<(Segments, String)>>;

/// Returns the pairs of files under `src` that use each other, except a `mod.rs` and the files below its folder. Tests
/// inside a file do not count.
pub(crate) fn find(src: &Path) -> Result<Vec<String>> {
    let mut texts = Texts::from([(Vec::new(), String::new())]);
    collect(src, &[], &mut texts)?;
    Ok(circles(&texts))
}

fn collect(folder: &Path, module: &[String], texts: &mut Texts) -> Result<()> {
    for entry in fs::read_dir(folder).with_context(|| folder.display().to_string())? {
        let path = entry?.path();
        let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let own = [module, std::slice::from_ref(&name)].concat();
        if path.is_dir() {
            collect(&path, &own, texts)?;
        } else if path.extension().is_some_and(|end| end == "rs") {
            let root = ["mod", "lib", "main"].contains(&name.as_str());
            texts.insert(if root { module.to_vec() } else { own }, fs::read_to_string(&path)?);
        }
    }
    Ok(())
}

fn circles(texts: &Texts) -> Vec<String> {
    let uses: Uses = texts.iter().map(|(file, text)| (file.clone(), paths(file, text, texts))).collect();
    let mut arrows = BTreeSet::new();
    for (file, paths) in &uses {
        arrows.extend(paths.iter().map(|(path, _)| (file, home(path, &uses, 9))));
    }
    let in_folder = |a: &Segments, b: &Segments| b.starts_with(a);
    let both_ways = arrows.iter().filter(|&&(a, b)| a < b && arrows.contains(&(b, a)) && !in_folder(a, b));
    both_ways.map(|(a, b)| format!("{} and {}", a.join("::"), b.join("::"))).collect()
}

/// The paths within the crate that a file uses.
fn paths(file: &[String], text: &str, texts: &Texts) -> Vec<(Segments, String)> {
    let text = text.split("\n#[cfg(test)]\nmod tests {").next().unwrap_or_default();
    let code: Vec<&str> = text.lines().map(|line| line.split("//").next().unwrap_or_default()).collect();
    // Who may see an item is no use of another.
    let code = format!("\n{}", code.join("\n")).replace("pub(in crate::", "pub(");
    let mut paths = Vec::new();
    for (at, word) in code.match_indices("use ").filter(|&(at, _)| code[..at].ends_with([' ', '\n'])) {
        let tree = code[at + word.len()..].split(';').next().unwrap_or_default();
        expand("", tree, &mut paths);
    }
    let in_path = |c: char| c.is_alphanumeric() || c == '_' || c == ':';
    let begun = code.match_indices("crate::").chain(code.match_indices("super::"));
    for (at, _) in begun.filter(|&(at, _)| !code[..at].ends_with(in_path)) {
        let path = code[at..].split(|c: char| !in_path(c)).next();
        // A path that ends in a colon goes on in braces, so it is part of a `use`.
        let whole = path.filter(|path| !path.ends_with(':'));
        paths.extend(whole.map(|path| (path.to_owned(), String::new())));
    }
    paths.into_iter().filter_map(|(path, name)| Some((absolute(file, &path, texts)?, name))).collect()
}

/// Adds the paths of a tree such as `a::{b, c::D as E}`, with their names.
fn expand(prefix: &str, tree: &str, paths: &mut Vec<(String, String)>) {
    let Some((head, list)) = tree.split_once('{') else {
        let last = tree.rsplit("::").next().unwrap_or(tree);
        let (path, name) = tree.split_once(" as ").unwrap_or((tree, last));
        return paths.push((format!("{prefix}{}", path.trim()), name.trim().to_owned()));
    };
    let list = list.rsplit_once('}').map_or(list, |(list, _)| list);
    let (prefix, mut depth) = (format!("{prefix}{}", head.trim()), 0);
    let separates = |c: char| {
        depth += i32::from(c == '{') - i32::from(c == '}');
        c == ',' && depth == 0
    };
    list.split(separates)
        .filter(|part| !part.trim().is_empty())
        .for_each(|part| expand(&prefix, part, paths));
}

/// The path from the root of the crate, or `None` if it leads into another crate.
fn absolute(file: &[String], path: &str, texts: &Texts) -> Option<Segments> {
    let segments: Vec<&str> = path.split("::").map(str::trim).collect();
    let (mut from, mut rest) = (file.to_vec(), &segments[..]);
    while let [keyword @ ("crate" | "self" | "super"), more @ ..] = rest {
        match *keyword {
            "crate" => from.clear(),
            "super" => drop(from.pop()),
            _ => {}
        }
        rest = more;
    }
    from.extend(rest.iter().filter(|&&segment| segment != "self").map(|&segment| segment.to_owned()));
    // Without a keyword, it begins with a module of this file, or elsewhere.
    let inside =
        rest.len() < segments.len() || from.get(..=file.len()).is_some_and(|m| texts.contains_key(m));
    inside.then_some(from)
}

/// The file that defines what has this path, found through at most `hops` re-exports.
fn home<'u>(path: &[String], uses: &'u Uses, hops: usize) -> &'u Segments {
    let file = |at: usize| Some((at, uses.get_key_value(&path[..at])?));
    let (at, (file, names)) = (0..=path.len()).rev().find_map(file).expect("every crate has a root");
    let named = path.get(at).and_then(|name| names.iter().find(|(to, known)| known == name && to != path));
    match named {
        Some((to, _)) if hops > 0 => home(&[&to[..], &path[at + 1..]].concat(), uses, hops - 1),
        _ => file,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(files: &[(&str, &str)]) -> Vec<String> {
        let module =
            |name: &str| name.split("::").filter(|part| !part.is_empty()).map(str::to_owned).collect();
        circles(&files.iter().map(|&(name, text)| (module(name), text.to_owned())).collect())
    }

    #[test]
    fn files_that_use_each_other_are_found_however_they_name_each_other() {
        let root = ("", "mod a;\nmod b;\npub use a::{One, Two as Deux};\n");
        let one_way = [root, ("a", "pub struct One;\n"), ("b", "use crate::{One, Deux};\n")];
        assert_eq!(found(&one_way), [""; 0]);
        for back in
            ["use super::{b, b::X};\n", "fn f() { crate::b::f() }\n", "use crate::{\n    b::{X, Y},\n};\n"]
        {
            assert_eq!(found(&[root, ("a", back), ("b", "use crate::Deux;\n")]), ["a and b"], "{back}");
        }
        for harmless in [
            "// use crate::b::X;\n",
            "use b::X;\n",
            "pub(in crate::b) struct X;\n",
            "\n#[cfg(test)]\nmod tests {\n    use crate::b;\n}\n",
        ] {
            assert_eq!(found(&[root, ("a", harmless), ("b", "use crate::Deux;\n")]), [""; 0], "{harmless}");
        }
    }

    #[test]
    fn a_folder_and_its_files_may_use_each_other() {
        let files = [("", "mod a;\n"), ("a", "mod b;\nmod c;\nuse b::B;\n"), ("a::b", "use super::A;\n")];
        assert_eq!(found(&[&files[..], &[("a::c", "use super::b::B;\n")]].concat()), [""; 0]);
        let files =
            [("", ""), ("a", "mod b;\n"), ("a::b", "use super::c;\n"), ("a::c", "use super::b::B;\n")];
        assert_eq!(found(&files), ["a::b and a::c"]);
        let files = [
            ("", ""),
            ("a", "mod b;\npub use b::c::C;\n"),
            ("a::b", "pub mod c;\n"),
            ("a::b::c", "use crate::a::A;\n"),
        ];
        assert_eq!(found(&files), [""; 0]);
    }
}
