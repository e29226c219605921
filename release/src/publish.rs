//! Packages for registries, where `bitnet` and three more names belong to others: a copy of the tree in which the
//! packages have names of their own. Libraries and the program keep theirs, so `use bitnet::Model` stays.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, bail};
use bitnet_workspace::{cargo, git, root, run, target};
use clap::Args;

/// The packages of the product, by their names in the tree.
const PACKAGES: [&str; 10] = [
    "bitnet",
    "bitnet-tensor",
    "bitnet-kernels",
    "bitnet-model",
    "bitnet-inference",
    "bitnet-client",
    "bitnet-hub",
    "bitnet-server",
    "bitnet-cli",
    "bitnet-py",
];

/// The packages of the product that are libraries.
pub(crate) const LIBRARIES: &[&str] = PACKAGES.split_at(8).0;

/// Copy the tree, rename its packages to bitnet-engine and bitnet-engine-*, and publish them from the copy, in order
#[derive(Debug, Args)]
pub struct Publish {
    /// Pack each package and compile it by itself, but upload nothing
    #[arg(long)]
    dry_run: bool,
    /// Do not compile the packed packages
    #[arg(long)]
    no_verify: bool,
    /// Only make the copy, and print where it is
    #[arg(long, conflicts_with_all = ["dry_run", "no_verify"])]
    copy: bool,
}

impl Publish {
    /// Publishes, or tries to.
    ///
    /// # Errors
    /// What cargo refuses.
    pub fn run(&self) -> Result<()> {
        let tree = copy()?;
        println!("{} holds the tree with the names of the registries", tree.display());
        if self.copy {
            return Ok(());
        }
        let mut publish = cargo(&["publish", "--workspace"]);
        publish.current_dir(&tree).env("CARGO_TARGET_DIR", target().join("publish/build"));
        publish.args(self.dry_run.then_some("--dry-run")).args(self.no_verify.then_some("--no-verify"));
        run(publish)
    }
}

/// Makes the copy, and returns its folder.
pub(crate) fn copy() -> Result<PathBuf> {
    let tree = target().join("publish/tree");
    if tree.exists() {
        fs::remove_dir_all(&tree).with_context(|| tree.display().to_string())?;
    }
    write(&tree)?;
    Ok(tree)
}

/// Copies all files that git knows, with other names in the manifests.
fn write(tree: &Path) -> Result<()> {
    for name in git(&["ls-files", "-z"])?.split_terminator('\0') {
        let (from, to) = (root().join(name), tree.join(name));
        // A deleted file may still be in the index.
        if from.is_file() {
            fs::create_dir_all(to.parent().context("a file in a folder")?)?;
            fs::copy(&from, &to).with_context(|| name.to_owned())?;
        }
    }
    edit(&tree.join("Cargo.toml"), workspace)?;
    for package in PACKAGES {
        edit(&tree.join("crates").join(package).join("Cargo.toml"), |manifest| member(manifest, package))?;
    }
    edit(&tree.join("crates/bitnet-py/pyproject.toml"), |text| {
        replaced(text, "name = \"bitnet\"", "name = \"bitnet-engine\"")
    })
}

fn edit(file: &Path, change: impl Fn(&str) -> Result<String>) -> Result<()> {
    let what = || file.display().to_string();
    let text = fs::read_to_string(file).with_context(what)?;
    fs::write(file, change(&text).with_context(what)?).with_context(what)
}

/// The name under which a package is uploaded.
fn uploaded(package: &str) -> String {
    package.replacen("bitnet", "bitnet-engine", 1)
}

/// The manifest of the workspace: dependencies name the uploaded packages, and profiles their new names.
fn workspace(manifest: &str) -> Result<String> {
    let line = |line: &str| {
        let package = PACKAGES
            .iter()
            .find(|package| line.strip_prefix(**package).is_some_and(|rest| rest.starts_with(" = {")));
        match package {
            Some(package) if line.contains("path = ") => named(line, package),
            Some(package) => line.replacen(package, &uploaded(package), 1),
            None => line.to_owned(),
        }
    };
    Ok(manifest.lines().map(|text| line(text) + "\n").collect())
}

/// A dependency with a path, with the name of the uploaded package.
fn named(line: &str, package: &str) -> String {
    line.replacen("{ ", &format!("{{ package = \"{}\", ", uploaded(package)), 1)
}

/// The manifest of a package: its new name, and the old one for its library.
fn member(manifest: &str, package: &str) -> Result<String> {
    let mut text =
        replaced(manifest, &format!("name = \"{package}\""), &format!("name = \"{}\"", uploaded(package)))?;
    let direct = "bitnet = { path = ";
    if text.contains(direct) {
        text = text.replacen(direct, &named(direct, "bitnet"), 1);
    }
    let has_library = !text.contains("[[bin]]") && !text.contains("crate-type = [\"cdylib\"]");
    if has_library {
        let name = format!("[lib]\nname = \"{}\"\n", package.replace('-', "_"));
        text = if text.contains("\n[lib]\n") {
            text.replacen("[lib]\n", &name, 1)
        } else {
            format!("{text}\n{name}")
        };
    }
    Ok(text)
}

fn replaced(text: &str, from: &str, to: &str) -> Result<String> {
    if !text.contains(from) {
        bail!("there is no line {from}");
    }
    Ok(text.replacen(from, to, 1))
}

#[cfg(test)]
mod tests {
    use bitnet_workspace::output;
    use serde_json::Value;

    use super::*;

    #[test]
    fn the_copy_has_names_of_its_own_and_libraries_keep_theirs() {
        let place = tempfile::tempdir().unwrap();
        write(place.path()).unwrap();
        let mut metadata = cargo(&["metadata", "--format-version", "1", "--no-deps"]);
        metadata.current_dir(place.path());
        let metadata: Value = serde_json::from_slice(&output(metadata).unwrap()).unwrap();
        let packages = metadata["packages"].as_array().unwrap();
        let published: Vec<&Value> = packages.iter().filter(|package| package["publish"].is_null()).collect();
        assert_eq!(published.len(), PACKAGES.len() - 1, "all but the Python package, a workspace of its own");
        for package in published {
            let name = package["name"].as_str().unwrap();
            assert!(name.starts_with("bitnet-engine"), "{name}");
            let targets = package["targets"].as_array().unwrap();
            let of = |kind: &str| {
                let target = targets.iter().find(|target| target["kind"][0] == kind);
                target.map(|target| target["name"].as_str().unwrap())
            };
            match of("lib") {
                Some(library) => {
                    assert_eq!(library, name.replace("bitnet-engine", "bitnet").replace('-', "_"))
                }
                None => assert_eq!(of("bin"), Some("bitnet")),
            }
            for dependency in package["dependencies"].as_array().unwrap() {
                let to = dependency["name"].as_str().unwrap();
                let development = dependency["kind"] == "dev";
                assert!(development || !PACKAGES.contains(&to), "{name} depends on {to}, which is another's");
                assert!(development || dependency["req"] != "*", "{name} needs a version of {to}");
            }
        }
        let root = fs::read_to_string(place.path().join("Cargo.toml")).unwrap();
        assert!(root.contains("\nbitnet-engine-kernels = { opt-level = 3"), "{root}");
        let python = fs::read_to_string(place.path().join("crates/bitnet-py/pyproject.toml")).unwrap();
        assert!(python.contains("name = \"bitnet-engine\"") && python.contains("bitnet._bitnet"));
    }
}
