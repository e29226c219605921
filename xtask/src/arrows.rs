use std::path::Path;

use anyhow::{Context, Result, ensure};
use bitnet_workspace::{cargo, output};
use serde_json::Value;

use crate::circles;

/// The crates of the product, lowest first; each may use those before it.
const LAYERS: [&str; 8] = [
    "bitnet-hub",
    "bitnet-tensor",
    "bitnet-kernels",
    "bitnet-model",
    "bitnet-inference",
    "bitnet",
    "bitnet-server",
    "bitnet-cli",
];

/// The place of `bitnet` in the layers.
const FRONT_DOOR: usize = 5;

/// Crates that only tests and each other may use, lowest first.
const DEVELOPMENT_ONLY: [&str; 10] = [
    "bitnet-ptxsim",
    "bitnet-tests",
    "bitnet-workspace",
    "bitnet-standin",
    "bitnet-fuzz",
    "bitnet-ptx-check",
    "bitnet-gpu-model",
    "bitnet-soak",
    "bitnet-examples",
    "xtask",
];

/// Reads the dependencies from cargo; fails if one points up, or if two files of a package use each other.
pub(crate) fn check() -> Result<()> {
    let metadata = output(cargo(&["metadata", "--format-version", "1", "--no-deps"]))?;
    let metadata: Value = serde_json::from_slice(&metadata)?;
    let packages = metadata["packages"].as_array().context("cargo metadata lists packages")?;
    let mut arrows = 0;
    for package in packages {
        let name = package["name"].as_str().context("a package has a name")?;
        ensure!(
            rank(name).is_some() || DEVELOPMENT_ONLY.contains(&name),
            "{name} has no place in the layers: add it in xtask/src/arrows.rs"
        );
        for dependency in package["dependencies"].as_array().context("a package has dependencies")? {
            let to = dependency["name"].as_str().context("a dependency has a name")?;
            let development = dependency["kind"] == "dev";
            ensure!(
                allowed(name, to, development),
                "{name} must not depend on {to}: dependencies between crates point down only"
            );
            arrows += usize::from(rank(to).is_some());
        }
        let manifest = package["manifest_path"].as_str().context("a package has a manifest")?;
        let circles = circles::find(&Path::new(manifest).with_file_name("src"))?;
        ensure!(circles.is_empty(), "files of {name} use each other: {}", circles.join(", "));
    }
    ensure!(arrows > 0, "no dependency between the crates was found: the check looks in the wrong place");
    println!("{arrows} dependencies between crates, all pointing down; no two files use each other");
    Ok(())
}

fn rank(name: &str) -> Option<usize> {
    LAYERS.iter().position(|&l| l == name)
}

fn allowed(from: &str, to: &str, development: bool) -> bool {
    let tool = |name| DEVELOPMENT_ONLY.iter().position(|&l| l == name);
    if let Some(to) = tool(to) {
        // Only tests know the simulator, directly or as a driver of the kernels.
        return tool(from).map_or(development && to < 2, |from| to < from);
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
    }
}
