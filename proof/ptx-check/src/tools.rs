//! NVIDIA's assembler and disassembler, from PyPI, and the versions with which the kernels must assemble.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, ensure};
use bitnet_workspace::{output, target};

use super::judge::Code;

/// Architectures that the kernels must assemble for.
pub(super) const ARCHITECTURES: [&str; 6] = ["80", "86", "89", "90", "100", "120"];

/// How to get the assembler.
pub(super) const CURE: &str = "put it on PATH, name it in $PTXAS, or `pip install nvidia-cuda-nvcc==13.0.88 \
     nvidia-cuda-nvdisasm==13.5.37`";

/// Packages that contain the assembler and the disassembler.
const PACKAGES: [&str; 2] = ["nvidia-cuda-nvcc==13.0.88", "nvidia-cuda-nvdisasm==13.5.37"];

/// Architectures of the assemblers before 12.8.
const BEFORE_BLACKWELL: &[&str] = &["80", "86", "89", "90"];

/// A version of the assembler: its package, and those of our architectures that it supports.
pub(super) struct Version {
    pub(super) package: &'static str,
    pub(super) architectures: &'static [&'static str],
    /// Whether its driver overlaps launches, and so compiles the texts for that, too.
    pub(super) overlaps: bool,
}

/// Versions with which the kernels must assemble before a release. A driver has the compiler of its version of CUDA.
pub(super) const VERSIONS: [Version; 8] = [
    Version { package: "nvidia-cuda-nvcc-cu11==11.7.99", architectures: &["80", "86"], overlaps: false },
    Version { package: "nvidia-cuda-nvcc-cu11==11.8.89", architectures: BEFORE_BLACKWELL, overlaps: false },
    Version { package: "nvidia-cuda-nvcc-cu12==12.1.105", architectures: BEFORE_BLACKWELL, overlaps: false },
    Version { package: "nvidia-cuda-nvcc-cu12==12.4.131", architectures: BEFORE_BLACKWELL, overlaps: true },
    Version { package: "nvidia-cuda-nvcc-cu12==12.6.85", architectures: BEFORE_BLACKWELL, overlaps: true },
    Version { package: "nvidia-cuda-nvcc-cu12==12.9.86", architectures: &ARCHITECTURES, overlaps: true },
    Version { package: "nvidia-cuda-nvcc==13.2.78", architectures: &ARCHITECTURES, overlaps: true },
    Version { package: "nvidia-cuda-nvcc==13.5.37", architectures: &ARCHITECTURES, overlaps: true },
];

/// NVIDIA's assembler and disassembler.
#[derive(Debug)]
pub struct Tools {
    ptxas: PathBuf,
    nvdisasm: PathBuf,
}

impl Tools {
    /// Looks in `$PTXAS`, on PATH, in the Python environment, and where [`Tools::find_or_install`] puts it.
    pub fn find() -> Option<Self> {
        let named = env::var_os("PTXAS").map(PathBuf::from).and_then(|p| Some(p.parent()?.to_owned()));
        let path = env::var_os("PATH").map(|p| env::split_paths(&p).collect::<Vec<_>>()).unwrap_or_default();
        let packages = python_folders().into_iter().chain([installed()]).flat_map(|folder| binaries(&folder));
        named.into_iter().chain(path).chain(packages).find_map(|folder| Tools::in_folder(&folder))
    }

    /// Like [`Tools::find`], but installs missing tools into cargo's target folder. Returns `None` if there is no pip
    /// or it cannot install them; that leaves no folder, so that the next run tries again.
    ///
    /// # Errors
    /// If what pip installed is not the assembler.
    pub fn find_or_install() -> Result<Option<Self>> {
        if let Some(tools) = Tools::find() {
            return Ok(Some(tools));
        }
        if !has_pip() {
            return Ok(None);
        }
        println!("installing {} with pip into {}", PACKAGES.join(" and "), installed().display());
        let mut install = pip(&["install", "--quiet", "--upgrade", "--target"]);
        install.arg(installed()).args(PACKAGES);
        if let Err(e) = output(install) {
            println!("pip cannot: {e:#}");
            if installed().exists() {
                fs::remove_dir_all(installed()).with_context(|| installed().display().to_string())?;
            }
            return Ok(None);
        }
        let tools = Tools::find();
        ensure!(tools.is_some(), "pip installed {}, but they contain no ptxas", PACKAGES.join(" and "));
        Ok(tools)
    }

    /// Another version of the assembler, installed into cargo's target folder, with this disassembler.
    pub(super) fn of_version(&self, version: &Version) -> Result<Self> {
        let folder = target().join("ptx-versions").join(version.package.replace("==", "-"));
        let find =
            || binaries(&folder).into_iter().map(|bin| bin.join("ptxas")).find(|ptxas| ptxas.is_file());
        if find().is_none() {
            let mut install = pip(&["install", "--quiet", "--no-deps", "--upgrade", "--target"]);
            install.arg(&folder).arg(version.package);
            output(install)?;
        }
        let ptxas = find().with_context(|| format!("there is no ptxas in {}", version.package))?;
        Ok(Tools { ptxas, nvdisasm: self.nvdisasm.clone() })
    }

    /// The oldest version that knows every architecture, since drivers refuse machine code of assemblers that are much
    /// newer; this version if pip cannot install that one.
    ///
    /// # Errors
    /// If pip is available and fails.
    pub fn for_old_drivers(self) -> Result<Self> {
        let oldest = VERSIONS.iter().find(|version| version.architectures.len() == ARCHITECTURES.len());
        match oldest.filter(|_| has_pip()) {
            Some(version) => self.of_version(version),
            None => Ok(self),
        }
    }

    /// Assembles a kernel's text to machine code.
    ///
    /// # Errors
    /// What the assembler says.
    pub fn machine_code(&self, text: &str, architecture: u32) -> Result<Vec<u8>> {
        with_files(text, |source, binary| {
            self.ptxas(source, binary, &architecture.to_string(), &[])?;
            fs::read(binary).with_context(|| binary.display().to_string())
        })
    }

    fn in_folder(folder: &Path) -> Option<Self> {
        let [ptxas, nvdisasm] =
            ["ptxas", "nvdisasm"].map(|name| folder.join(name).with_extension(env::consts::EXE_EXTENSION));
        (ptxas.is_file() && nvdisasm.is_file()).then_some(Tools { ptxas, nvdisasm })
    }

    /// Assembles a kernel's text and lists the machine code.
    ///
    /// # Errors
    /// What the assembler or the disassembler says.
    pub(super) fn assemble(&self, text: &str, architecture: &str) -> Result<Code> {
        with_files(text, |source, binary| {
            let report = self.ptxas(source, binary, architecture, &["-v"])?;
            let mut nvdisasm = Command::new(&self.nvdisasm);
            nvdisasm.arg("-c").arg(binary);
            let listing = String::from_utf8_lossy(&output(nvdisasm)?).into_owned();
            Ok(Code { report, listing })
        })
    }

    /// Returns the assembler's errors about a text, or `None` if it accepts the text.
    pub(super) fn refusal(&self, text: &str, architecture: &str) -> Result<Option<String>> {
        with_files(text, |source, binary| {
            Ok(self.ptxas(source, binary, architecture, &[]).err().map(|e| e.to_string()))
        })
    }

    fn ptxas(&self, source: &Path, binary: &Path, architecture: &str, flags: &[&str]) -> Result<String> {
        let mut ptxas = Command::new(&self.ptxas);
        ptxas.args(flags).arg(format!("-arch=sm_{architecture}")).arg(source).arg("-o").arg(binary);
        let assembled = ptxas.output().with_context(|| self.ptxas.display().to_string())?;
        let report = String::from_utf8_lossy(&assembled.stderr).into_owned()
            + &String::from_utf8_lossy(&assembled.stdout);
        ensure!(assembled.status.success(), "ptxas: {}", report.trim());
        Ok(report)
    }
}

/// Writes a text to a file and names another for the output; both are removed afterwards.
fn with_files<T>(text: &str, f: impl FnOnce(&Path, &Path) -> Result<T>) -> Result<T> {
    let folder = tempfile::tempdir()?;
    let [source, binary] = ["kernel.ptx", "kernel.cubin"].map(|name| folder.path().join(name));
    fs::write(&source, text).with_context(|| source.display().to_string())?;
    f(&source, &binary)
}

fn pip(args: &[&str]) -> Command {
    let mut pip = Command::new("python3");
    pip.args(["-m", "pip"]).args(args);
    pip
}

/// Whether pip is available.
pub(super) fn has_pip() -> bool {
    output(pip(&["--version"])).is_ok()
}

/// The folder into which pip installs the packages.
fn installed() -> PathBuf {
    target().join("ptx-tools")
}

/// The folders in which Python looks for packages; none if there is no Python.
fn python_folders() -> Vec<PathBuf> {
    let mut python = Command::new("python3");
    python.args(["-c", "import sys; print('\\n'.join(sys.path))"]);
    let lines = output(python).unwrap_or_default();
    String::from_utf8_lossy(&lines).lines().filter(|line| !line.is_empty()).map(PathBuf::from).collect()
}

/// Program folders in the vendor's packages: `nvidia/<package>/bin`.
fn binaries(packages: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(packages.join("nvidia")).into_iter().flatten().flatten();
    entries.map(|entry| entry.path().join("bin")).filter(|bin| bin.is_dir()).collect()
}
