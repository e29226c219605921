//! The kernels and the program on 64-bit Arm, under emulation, with every instruction set.

use std::{fs, path::PathBuf, process::Command};

use anyhow::{Context, Result, bail, ensure};
use bitnet_workspace::{bitnet, cargo, on_path, output, run, target};

const TRIPLE: &str = "aarch64-unknown-linux-gnu";

/// Every instruction set of 64-bit Arm, with the oldest emulated processor that has it: an instruction of a newer set
/// traps there.
const LEVELS: [(&str, &str); 4] =
    [("i8mm", "max"), ("dotprod", "neoverse-n1"), ("neon", "cortex-a72"), ("scalar", "cortex-a72")];

/// Token ids whose logits are compared.
const IDS: &str = "1,17,33,49,65,81,97,113,129,145,161,177,193,209,225,241,257,273,289,305";

/// The tools that compile for 64-bit Arm and run the result.
struct Tools {
    rustc: PathBuf,
    linker: PathBuf,
    emulator: PathBuf,
}

/// Compiles the kernels and the program for 64-bit Arm and runs them under emulation.
pub(crate) fn check() -> Result<()> {
    match find() {
        Ok(tools) => tools.check(),
        Err(missing) => bail!("kernels of 64-bit Arm need {missing}"),
    }
}

/// What continuous integration lacks.
pub(crate) fn missing() -> Option<String> {
    if cfg!(target_arch = "aarch64") {
        Some("the tests ran them on this machine".into())
    } else {
        find().err().map(|missing| format!("needs {missing}"))
    }
}

/// Finds the tools, or returns what is missing and how to install it.
fn find() -> Result<Tools, String> {
    let rustc = on_path("rustc").find(has_standard_library).ok_or(
        "a Rust compiler with the standard library of aarch64-unknown-linux-gnu \
         (`rustup target add aarch64-unknown-linux-gnu`; Debian's rustc-web and libstd-rust-web-dev:arm64)",
    );
    let linker = on_path("aarch64-linux-gnu-gcc")
        .next()
        .ok_or("the linker aarch64-linux-gnu-gcc (Debian's gcc-aarch64-linux-gnu)");
    let emulator = on_path("qemu-aarch64-static")
        .chain(on_path("qemu-aarch64"))
        .next()
        .ok_or("the emulator qemu-aarch64 for Linux programs (Debian's qemu-user-static)");
    match (rustc, linker, emulator) {
        (Ok(rustc), Ok(linker), Ok(emulator)) => Ok(Tools { rustc, linker, emulator }),
        (rustc, linker, emulator) => {
            let missing = [rustc.err(), linker.err(), emulator.err()];
            Err(missing.into_iter().flatten().collect::<Vec<_>>().join(", and "))
        }
    }
}

fn has_standard_library(rustc: &PathBuf) -> bool {
    let mut ask = Command::new(rustc);
    ask.args(["--print", "target-libdir", "--target", TRIPLE]);
    let folder = output(ask).unwrap_or_default();
    let files = fs::read_dir(String::from_utf8_lossy(&folder).trim()).into_iter().flatten().flatten();
    files.into_iter().any(|file| file.file_name().to_string_lossy().starts_with("libstd-"))
}

impl Tools {
    fn check(&self) -> Result<()> {
        println!("every instruction set compared with the reference, emulated:");
        let mut test = self.cargo(&["test", "--package", "bitnet-kernels", "--test", "it"]);
        test.args(["conformance::", "--", "--skip", "gpu::", "--nocapture"]);
        run(test)?;
        run(self.cargo(&["build", "--package", "bitnet-cli"]))?;
        let bitnet = bitnet()?;
        let expected = Answers::of(|| Command::new(&bitnet), "auto")?;
        for (level, processor) in LEVELS {
            let emulated = || {
                let mut bitnet = Command::new(&self.emulator);
                bitnet.args(["-cpu", processor]).arg(target().join(TRIPLE).join("release/bitnet"));
                bitnet
            };
            let answers = Answers::of(emulated, level)?;
            ensure!(
                answers.text == expected.text,
                "{level} on {processor} continues the demo's prompt with\n{}\nand this machine with\n{}",
                answers.text,
                expected.text
            );
            ensure!(answers.logits == expected.logits, "{level} on {processor}: the demo's logits differ");
            println!("{level} on {processor}: the demo's tokens and logits are this machine's, bit for bit");
        }
        Ok(())
    }

    /// A cargo command that compiles for 64-bit Arm and runs the result under emulation.
    fn cargo(&self, command: &[&str]) -> Command {
        let mut cargo = cargo(command);
        cargo.args(["--release", "--target", TRIPLE]);
        let runner = format!("{} -cpu max", self.emulator.display());
        cargo.env("RUSTC", &self.rustc).env_remove("RUSTFLAGS").env_remove("CARGO_ENCODED_RUSTFLAGS");
        cargo.env("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER", &self.linker);
        cargo.env("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER", runner);
        // Some versions of the emulator hang when a dynamically linked program starts its first thread.
        cargo.env("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUSTFLAGS", "-Ctarget-feature=+crt-static");
        cargo
    }
}

/// Answers of the demo: the greedy continuation of a prompt, and stored logits.
struct Answers {
    text: String,
    logits: Vec<u8>,
}

impl Answers {
    fn of(bitnet: impl Fn() -> Command, level: &str) -> Result<Self> {
        let common = ["--threads", "1", "--isa", level];
        let mut run = bitnet();
        run.args(common).args(["run", "demo", "First Citizen:", "--temperature", "0", "--max-tokens", "40"]);
        let text = String::from_utf8(output(run)?)?;
        let file = target().join("neon-logits.safetensors");
        let mut logits = bitnet();
        logits.args(common).args(["logits", "demo", "--ids", IDS, "--out"]).arg(&file);
        output(logits)?;
        let bytes = fs::read(&file).with_context(|| file.display().to_string())?;
        fs::remove_file(&file).with_context(|| file.display().to_string())?;
        Ok(Answers { text, logits: bytes })
    }
}
