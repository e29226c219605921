//! Checks that dependencies between crates point down only, in every workspace of the repository.

use std::{fs, path::Path};

use anyhow::{Context, Result, ensure};
use bitnet_workspace::{cargo, git, output, root};
use serde_json::Value;

use crate::circles;

/// The crates of the product, lowest first; each may use those before it.
const LAYERS: [&str; 9] = [
    "bitnet-hub",
    "bitnet-tensor",
    "bitnet-kernels",
    "bitnet-model",
    "bitnet-inference",
    "bitnet",
    "bitnet-client",
    "bitnet-server",
    "bitnet-cli",
];

/// The place of `bitnet` in the layers.
const FRONT_DOOR: usize = 5;

/// Crates that only tests and each other may use, lowest first.
const DEVELOPMENT_ONLY: [&str; 11] = [
    "bitnet-ptxsim",
    "bitnet-tests",
    "bitnet-hash-model",
    "bitnet-workspace",
    "bitnet-standin",
    "bitnet-fuzz",
    "bitnet-ptx-check",
    "bitnet-soak",
    "bitnet-release",
    "bitnet-examples",
    "xtask",
];

/// Packages of their own workspaces, whose dependencies are not in layers: the Python package, the targets of libFuzzer,
/// and what runs the product's threads under shuttle.
const OUTSIDE: [&str; 5] = [
    "bitnet-py",
    "bitnet-fuzz-targets",
    "bitnet-interleavings",
    "bitnet-interleavings-parking-lot",
    "bitnet-interleavings-std",
];

/// Reads the dependencies of every workspace from cargo; fails if one points up, or if two files of a package use each
/// other.
pub(crate) fn check() -> Result<()> {
    let (mut arrows, mut packages, mut problems) = (0, 0, Vec::new());
    for manifest in workspaces()? {
        let what = ["metadata", "--format-version", "1", "--no-deps", "--manifest-path", &manifest];
        let metadata: Value = serde_json::from_slice(&output(cargo(&what))?)?;
        let of_workspace = metadata["packages"].as_array().context("cargo metadata lists packages")?;
        for package in of_workspace {
            arrows += check_package(package, &mut problems)?;
        }
        packages += of_workspace.len();
    }
    ensure!(problems.is_empty(), "{}", problems.join("\n"));
    ensure!(arrows > 0, "no dependency between the crates was found: the check looks in the wrong place");
    println!(
        "{arrows} dependencies between the crates of the product, all pointing down; no two files of {packages} \
         packages use each other"
    );
    Ok(())
}

/// The manifests of all workspaces in the repository.
fn workspaces() -> Result<Vec<String>> {
    let manifests = git(&["ls-files", "Cargo.toml", "*/Cargo.toml"])?;
    let mut found = Vec::new();
    for manifest in manifests.lines() {
        let text = fs::read_to_string(root().join(manifest)).with_context(|| manifest.to_owned())?;
        if text.lines().any(|line| line == "[workspace]") {
            found.push(manifest.to_owned());
        }
    }
    Ok(found)
}

/// Adds the problems of a package as cargo describes it, and returns the number of its dependencies on crates of the
/// product.
fn check_package(package: &Value, problems: &mut Vec<String>) -> Result<usize> {
    let name = package["name"].as_str().context("a package has a name")?;
    ensure!(
        rank(name).is_some() || DEVELOPMENT_ONLY.contains(&name) || OUTSIDE.contains(&name),
        "{name} has no place in the layers: add it in xtask/src/arrows.rs"
    );
    let mut arrows = 0;
    for dependency in package["dependencies"].as_array().context("a package has dependencies")? {
        let to = dependency["name"].as_str().context("a dependency has a name")?;
        let development = dependency["kind"] == "dev";
        if !allowed(name, to, development) {
            problems
                .push(format!("{name} must not depend on {to}: dependencies between crates point down only"));
        }
        arrows += usize::from(rank(to).is_some());
    }
    let manifest = package["manifest_path"].as_str().context("a package has a manifest")?;
    let circles = circles::find(&Path::new(manifest).with_file_name("src"))?;
    problems.extend(circles.iter().map(|circle| format!("files of {name} use each other: {circle}")));
    Ok(arrows)
}

fn rank(name: &str) -> Option<usize> {
    LAYERS.iter().position(|&l| l == name)
}

fn allowed(from: &str, to: &str, development: bool) -> bool {
    let tool = |name| DEVELOPMENT_ONLY.iter().position(|&l| l == name);
    if OUTSIDE.contains(&to) {
        return OUTSIDE.contains(&from);
    }
    if OUTSIDE.contains(&from) {
        // The Python package is a user of the front door, like the server.
        return from != "bitnet-py" || tool(to).is_none() && rank(to).is_none_or(|to| to == FRONT_DOOR);
    }
    if let Some(to) = tool(to) {
        // Only tests know the simulator, directly or as a driver of the kernels, and the model of hashes.
        return tool(from).map_or(development && to < 3, |from| to < from);
    }
    let Some(to) = rank(to) else { return true };
    match rank(from) {
        // What these need of the lower crates, they get through `bitnet`, as users do.
        Some(from) if from > FRONT_DOOR => (FRONT_DOOR..from).contains(&to),
        Some(from) => to < from,
        None => from != "bitnet-ptxsim",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_arrow_up_is_refused() {
        assert!(allowed("bitnet-model", "bitnet-tensor", false));
        assert!(!allowed("bitnet-tensor", "bitnet-model", false));
        assert_eq!(LAYERS[FRONT_DOOR], "bitnet");
        assert!(allowed("bitnet-cli", "bitnet-server", false) && allowed("bitnet-server", "bitnet", false));
        assert!(!allowed("bitnet-server", "bitnet-inference", false));
        assert!(!allowed("bitnet-kernels", "bitnet-kernels", false));
        assert!(!allowed("bitnet-model", "bitnet-inference", true));
        assert!(!allowed("bitnet-ptxsim", "bitnet-tensor", true));
        assert!(!allowed("bitnet-kernels", "bitnet-ptxsim", false));
        assert!(allowed("bitnet-kernels", "bitnet-tests", true));
        assert!(!allowed("bitnet-cli", "bitnet-tests", false));
        assert!(allowed("xtask", "bitnet-tests", false));
        assert!(!allowed("bitnet-ptxsim", "bitnet-tests", true));
        assert!(!allowed("bitnet-kernels", "xtask", true));
        assert!(allowed("bitnet-tests", "bitnet-inference", false));
        assert!(allowed("bitnet-cli", "clap", false));
        assert!(allowed("bitnet-py", "bitnet", false) && allowed("bitnet-py", "pyo3", false));
        assert!(!allowed("bitnet-py", "bitnet-inference", false) && !allowed("bitnet-py", "xtask", false));
        assert!(allowed("bitnet-fuzz-targets", "bitnet-fuzz", false));
        assert!(!allowed("bitnet-cli", "bitnet-fuzz-targets", true));
    }

    #[test]
    fn every_workspace_of_the_repository_is_seen() {
        let found = workspaces().unwrap();
        for folder in ["", "crates/bitnet-py/", "proof/fuzz/targets/", "proof/interleavings/"] {
            assert!(found.contains(&format!("{folder}Cargo.toml")), "{folder} in {found:?}");
        }
    }
}
