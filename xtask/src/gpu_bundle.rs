use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, ensure};
use clap::Args;

use crate::{cargo, root, run, target};

/// Fixtures that travel: each family, and sizes that fit no tile.
const FIXTURES: [&str; 4] = ["bitnet-packed", "bitnet-odd", "llama-bitlinear", "onebitllm"];
/// Most bytes of the folder.
const LIMIT: u64 = 64 << 20;

/// Make a folder that judges and measures a GPU on a machine without Rust: `sh run.sh` there
#[derive(Args)]
pub(crate) struct GpuBundle {
    /// The folder to make
    #[arg(default_value = "target/gpu-bundle")]
    folder: PathBuf,
}

impl GpuBundle {
    pub(crate) fn run(&self) -> Result<()> {
        run(cargo(&["build", "--profile", "bundle", "--package", "bitnet-cli"]))?;
        let bytes = write(&root().join(&self.folder), &target().join("bundle/bitnet"))?;
        ensure!(bytes < LIMIT, "{bytes} bytes are more than the {LIMIT} that may travel");
        println!("{} holds {:.1} MB", self.folder.display(), bytes as f64 / 1e6);
        Ok(())
    }
}

/// Puts everything into the folder, and gives its size.
fn write(folder: &Path, binary: &Path) -> Result<u64> {
    let mut bytes = copy(binary, &folder.join("bitnet"))?;
    for fixture in FIXTURES {
        let from = root().join("fixtures").join(fixture);
        for entry in fs::read_dir(&from).with_context(|| from.display().to_string())? {
            let entry = entry?;
            // The other forms of the same weights are judged by the tests.
            if entry.path().extension().is_some_and(|end| end == "gguf") {
                continue;
            }
            bytes += copy(&entry.path(), &folder.join("fixtures").join(fixture).join(entry.file_name()))?;
        }
    }
    fs::write(folder.join("run.sh"), include_str!("gpu_bundle.sh"))?;
    Ok(bytes)
}

fn copy(from: &Path, to: &Path) -> Result<u64> {
    fs::create_dir_all(to.parent().context("a file in a folder")?)?;
    fs::copy(from, to).with_context(|| format!("{} to {}", from.display(), to.display()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    /// What the script does on a GPU it does here on the CPU, with a model that is quick there; on the simulator the
    /// same checks are tests of their own.
    #[test]
    fn a_dry_run_of_the_bundle_judges_and_measures_and_a_failure_ends_it() {
        let folder = std::env::temp_dir().join(format!("bitnet-gpu-bundle-{}", std::process::id()));
        let binary = bitnet_tests::binary();
        let bytes = write(&folder, &binary).unwrap();
        // The binary of the tests carries what debuggers read.
        assert!(bytes - fs::metadata(&binary).unwrap().len() < LIMIT / 4);
        let dry = || {
            let mut sh = Command::new("sh");
            sh.arg(folder.join("run.sh")).env("DEVICE", "cpu").env("BITNET_CACHE", &folder);
            sh.env("MODEL", "synthetic:tiny").env("SIZES", "-b 1,2 -n 4 -p 8").output().unwrap()
        };
        let done = dry();
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
        let report = |name: &str| {
            let text = fs::read_to_string(folder.join(name)).unwrap();
            serde_json::from_str::<serde_json::Value>(&text).unwrap()
        };
        assert_eq!(report("doctor.json")["fixtures"].as_array().unwrap().len(), FIXTURES.len());
        assert_eq!(report("bench.json")["decode"].as_array().unwrap().len(), 2);
        fs::write(folder.join("bitnet"), "#!/bin/sh\nexit 3\n").unwrap();
        assert_eq!(dry().status.code(), Some(3));
        fs::remove_dir_all(&folder).unwrap();
    }
}
