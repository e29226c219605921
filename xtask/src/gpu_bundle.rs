//! A folder to carry to a machine with a GPU: the program, fixtures, and the script that checks and measures.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result};
use bitnet_release::{cubins, fits};
use bitnet_workspace::{cargo, root, run, target};
use clap::Args;

/// Fixtures in the bundle: each family, and sizes that do not fit any tile.
const FIXTURES: [&str; 6] =
    ["bitnet-packed", "bitnet-odd", "llama-bitlinear", "onebitllm", "qwen3-unpacked", "minicpm-blocks"];
/// The program that checks single instructions.
const INSTRUCTIONS: &str = "gpu-instructions";
/// Maximum size of the folder in bytes.
const LIMIT: u64 = 64 << 20;
/// The script that measures a model in PyTorch for comparison, if the machine has PyTorch.
const COMPARISON: &str = "tools/compare-bf16/bf16.py";

/// Make a folder that checks and measures a GPU on a machine without Rust, with `sh run.sh`
#[derive(Args)]
pub(crate) struct GpuBundle {
    /// The folder to make
    #[arg(default_value = "target/gpu-bundle")]
    folder: PathBuf,
}

impl GpuBundle {
    pub(crate) fn run(&self) -> Result<()> {
        let what = ["--package", "bitnet-cli", "--package", "bitnet-tests", "--bins"];
        run(cargo(&[&["build", "--profile", "bundle"][..], &what].concat()))?;
        let built = target().join("bundle");
        let bytes = write(&root().join(&self.folder), &built.join("bitnet"), &built.join(INSTRUCTIONS))?;
        let bytes = bytes + cubins::write(&root().join(&self.folder))?.unwrap_or(0);
        fits("the folder", bytes, LIMIT)?;
        println!("{} holds {:.1} MB", self.folder.display(), bytes as f64 / 1e6);
        Ok(())
    }
}

/// Copies everything into the folder, and returns its size in bytes.
fn write(folder: &Path, binary: &Path, instructions: &Path) -> Result<u64> {
    let mut bytes = copy(binary, &folder.join("bitnet"))?;
    bytes += copy(instructions, &folder.join(INSTRUCTIONS))?;
    for fixture in FIXTURES {
        let from = root().join("fixtures").join(fixture);
        for entry in fs::read_dir(&from).with_context(|| from.display().to_string())? {
            let entry = entry?;
            // The tests check the other forms of the same weights.
            if entry.path().extension().is_some_and(|end| end == "gguf") {
                continue;
            }
            bytes += copy(&entry.path(), &folder.join("fixtures").join(fixture).join(entry.file_name()))?;
        }
    }
    let script = include_str!("gpu_bundle.sh");
    fs::write(folder.join("run.sh"), script)?;
    bytes += copy(&root().join(COMPARISON), &folder.join("bf16.py"))?;
    Ok(bytes + script.len() as u64)
}

fn copy(from: &Path, to: &Path) -> Result<u64> {
    fs::create_dir_all(to.parent().context("a file in a folder")?)?;
    fs::copy(from, to).with_context(|| format!("{} to {}", from.display(), to.display()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Output};

    struct Bundle(tempfile::TempDir);

    impl Bundle {
        fn new() -> Self {
            let folder = tempfile::tempdir().unwrap();
            let [binary, instructions] =
                [bitnet_tests::binary(), bitnet_tests::built("bitnet-tests", INSTRUCTIONS)];
            let bytes = write(folder.path(), &binary, &instructions).unwrap();
            // The programs of the tests contain debug information.
            let programs = [binary, instructions].iter().map(|p| fs::metadata(p).unwrap().len()).sum::<u64>();
            fits("the folder", bytes - programs + LIMIT / 2, LIMIT).unwrap();
            Bundle(folder)
        }

        fn file(&self, name: &str) -> PathBuf {
            self.0.path().join(name)
        }

        fn run(&self, device: &str) -> Output {
            let mut sh = Command::new("sh");
            sh.arg(self.file("run.sh")).env("DEVICE", device).env("BITNET_CACHE", self.0.path());
            sh.env("MODEL", "synthetic:tiny")
                .env("SIZES", "-b 1,2 -n 4 -p 8")
                .env("DEPTHS", "16")
                .env("STEP", "16");
            sh.output().unwrap()
        }
    }

    /// Runs the script on the CPU with a small model. The tests of `bitnet-cli` run the same commands on the simulator.
    #[test]
    fn a_dry_run_of_the_bundle_judges_and_measures_and_a_failure_ends_it() {
        let bundle = Bundle::new();
        let done = bundle.run("cpu");
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
        let report = |name: &str| {
            let text = fs::read_to_string(bundle.file(name)).unwrap();
            serde_json::from_str::<serde_json::Value>(&text).unwrap()
        };
        assert_eq!(report("doctor.json")["fixtures"].as_array().unwrap().len(), FIXTURES.len());
        let bench = report("bench.json");
        assert_eq!(bench["decode"].as_array().unwrap().len(), 2);
        assert!(!bench["kernels"].as_array().unwrap().is_empty());
        for status in [1, 124] {
            let judges = format!("#!/bin/sh\necho '{{}}' >doctor.json\nexit {status}\n");
            fs::write(bundle.file("bitnet"), judges).unwrap();
            assert_eq!(bundle.run("cpu").status.code(), Some(status));
        }
    }

    #[test]
    fn a_gpu_with_a_wrong_instruction_alone_is_measured_and_marked() {
        let bundle = Bundle::new();
        fs::write(bundle.file(INSTRUCTIONS), "#!/bin/sh\necho add.u32 differs\nexit 1\n").unwrap();
        fs::write(bundle.file("bitnet"), "#!/bin/sh\necho '{}' >$1.json\n").unwrap();
        let done = bundle.run("cuda");
        assert_eq!(done.status.code(), Some(1));
        assert!(bundle.file("bench.json").exists(), "it is measured all the same");
        let marked = fs::read_to_string(bundle.file("not-trusted.txt")).unwrap();
        assert!(marked.contains("do not trust any number"), "{marked}");
        fs::write(bundle.file(INSTRUCTIONS), "#!/bin/sh\n").unwrap();
        assert_eq!(bundle.run("cuda").status.code(), Some(0));
        assert!(!bundle.file("not-trusted.txt").exists());
    }

    #[test]
    fn without_a_gpu_the_bundle_reports_that_and_measures_nothing() {
        let bundle = Bundle::new();
        let done = bundle.run("cuda:999");
        let told = String::from_utf8_lossy(&done.stderr);
        assert_eq!(done.status.code(), Some(3), "{told}");
        assert!(told.contains("no usable GPU") && told.contains("--device"), "{told}");
        assert!(!bundle.file("bench.json").exists());
    }

    #[test]
    fn a_folder_that_is_too_large_to_travel_is_refused_with_its_size() {
        assert!(fits("the folder", LIMIT - 1, LIMIT).is_ok());
        let error = fits("the folder", LIMIT + 7, LIMIT).unwrap_err().to_string();
        assert!(error.contains("67108871"), "{error}");
    }
}
