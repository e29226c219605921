//! An archive of the program for one platform.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result};
use bitnet_kernels::gpu::cubins::FILE;
use bitnet_workspace::{bitnet, cargo, output, root, run, target};
use clap::Args;

use crate::{
    VERSION, cubins, fits,
    pack::{checksums, tar, zip},
};

/// Maximum size of the stripped program in bytes.
const LIMIT: u64 = 24_000_000;
/// The profile of `Cargo.toml` that compiles dependencies for size; also the name of its folder.
const PROFILE: &str = "dist";
/// Files of the repository that every archive holds.
const TEXTS: [&str; 4] = ["README.md", "CHANGELOG.md", "LICENSE-APACHE", "LICENSE-MIT"];
/// Shells with a completion script, and its name.
const SHELLS: [(&str, &str); 4] =
    [("bash", "bitnet.bash"), ("fish", "bitnet.fish"), ("zsh", "_bitnet"), ("powershell", "_bitnet.ps1")];

/// Make an archive of the program with licences, completions and manual page, and its SHA-256 checksum
#[derive(Debug, Args)]
pub struct Dist {
    /// The folder for the archive
    #[arg(default_value = "target/dist")]
    folder: PathBuf,
    /// The platform to compile for, like x86_64-pc-windows-gnu, if not this one; needs its standard library and linker
    #[arg(long, value_name = "TRIPLE")]
    target: Option<String>,
}

impl Dist {
    /// Builds the program and packs it.
    ///
    /// # Errors
    /// If it cannot be built, or is too large.
    pub fn run(&self) -> Result<()> {
        let mut build = cargo(&["build", "--profile", PROFILE, "--package", "bitnet-cli"]);
        build.args(self.target.iter().flat_map(|triple| ["--target", triple]));
        run(build)?;
        let platform = Platform::of(self.target.as_deref())?;
        let place = self.target.as_ref().map_or_else(target, |triple| target().join(triple));
        let program = place.join(PROFILE).join(platform.program());
        let bytes = fs::metadata(&program)?.len();
        fits("the program", bytes, LIMIT)?;
        // Texts are the same on every platform, and only a program for this one runs here.
        let speaks = if self.target.is_some() { bitnet()? } else { program.clone() };
        let folder = root().join(&self.folder);
        let place = program.parent().context("a program is in a folder")?;
        let code = cubins::write(place)?.map(|_| place.join(FILE));
        let archive = pack(&program, code.as_deref(), &speaks, &platform, &folder)?;
        let bytes = fs::metadata(folder.join(&archive))?.len();
        println!("{}: {:.1} MB", self.folder.join(archive).display(), bytes as f64 / 1e6);
        Ok(())
    }
}

/// What the archive's name says about the program.
struct Platform {
    arch: String,
    os: String,
}

impl Platform {
    /// The platform of a triple like `x86_64-pc-windows-gnu`; without one, this machine's.
    fn of(triple: Option<&str>) -> Result<Self> {
        let (arch, os) = match triple {
            None => (std::env::consts::ARCH, std::env::consts::OS),
            Some(triple) => {
                let mut parts = triple.split('-');
                let arch = parts.next().unwrap_or_default();
                let os = parts.find_map(|part| match part {
                    "darwin" => Some("macos"),
                    "linux" | "windows" => Some(part),
                    _ => None,
                });
                let os = os.with_context(|| format!("{triple} names no known system"))?;
                // Linked to nothing, so that it runs on any Linux, but it cannot load the driver of a GPU.
                (arch, if triple.ends_with("-musl") { "linux-musl" } else { os })
            }
        };
        Ok(Platform { arch: arch.into(), os: os.into() })
    }

    fn program(&self) -> &'static str {
        if self.os == "windows" { "bitnet.exe" } else { "bitnet" }
    }
}

/// Whether a file of an archive is the program.
fn runs(file: &str) -> bool {
    file.ends_with("/bitnet")
}

/// Writes the archive and its checksum, and returns the archive's name. `code` is machine code for GPUs; `speaks` prints
/// the texts.
fn pack(
    program: &Path,
    code: Option<&Path>,
    speaks: &Path,
    platform: &Platform,
    folder: &Path,
) -> Result<String> {
    let name = format!("bitnet-{}-{}-{}", VERSION, platform.arch, platform.os);
    let inside = folder.join(&name);
    if inside.exists() {
        fs::remove_dir_all(&inside)?;
    }
    fs::create_dir_all(inside.join("completions"))?;
    fs::copy(program, inside.join(platform.program()))?;
    if let Some(code) = code {
        fs::copy(code, inside.join(FILE)).with_context(|| code.display().to_string())?;
    }
    for text in TEXTS {
        fs::copy(root().join(text), inside.join(text)).with_context(|| text.to_owned())?;
    }
    let printed = |args: &[&str]| {
        let mut bitnet = Command::new(speaks);
        bitnet.args(args);
        output(bitnet)
    };
    for (shell, file) in SHELLS {
        fs::write(inside.join("completions").join(file), printed(&["completions", shell])?)?;
    }
    fs::write(inside.join("bitnet.1"), printed(&["man"])?)?;
    let archive = if platform.os == "windows" { zip(folder, &name)? } else { tar(folder, &name, runs)? };
    let sum = checksums(folder, std::slice::from_ref(&archive))?;
    fs::write(folder.join(format!("{archive}.sha256")), sum)?;
    Ok(archive)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_archive_holds_a_working_program_and_equals_a_second_one() {
        let temporary = tempfile::tempdir().unwrap();
        let folder = temporary.path();
        let program = bitnet_tests::binary();
        let here = Platform::of(None).unwrap();
        let code = folder.join(FILE);
        fs::write(&code, b"not machine code").unwrap();
        let archive = pack(&program, Some(&code), &program, &here, folder).unwrap();
        let first = fs::read(folder.join(&archive)).unwrap();
        pack(&program, Some(&code), &program, &here, folder).unwrap();
        assert!(first == fs::read(folder.join(&archive)).unwrap());
        let in_folder = |program: &str, args: &[&str]| {
            let mut command = Command::new(program);
            command.args(args).current_dir(folder);
            String::from_utf8(output(command).unwrap()).unwrap()
        };
        assert!(in_folder("sha256sum", &["--check", &format!("{archive}.sha256")]).contains("OK"));
        let name = archive.strip_suffix(".tar.gz").unwrap();
        fs::remove_dir_all(folder.join(name)).unwrap();
        in_folder("tar", &["-xf", &archive]);
        let version = in_folder(&format!("./{name}/bitnet"), &["--version"]);
        assert!(version.contains(VERSION), "{version}");
        assert_eq!(fs::read(folder.join(name).join(FILE)).unwrap(), b"not machine code");
        for file in TEXTS.into_iter().chain(["bitnet.1", "completions/_bitnet"]) {
            assert!(fs::metadata(folder.join(name).join(file)).unwrap().len() > 100, "{file}");
        }
    }

    #[test]
    fn an_archive_for_windows_is_a_zip_with_an_exe_and_equals_a_second_one() {
        let temporary = tempfile::tempdir().unwrap();
        let folder = temporary.path();
        let windows = Platform::of(Some("x86_64-pc-windows-gnu")).unwrap();
        let program = folder.join("program");
        fs::write(&program, b"not a program").unwrap();
        let packed = || {
            let archive = pack(&program, None, Path::new("echo"), &windows, folder).unwrap();
            (fs::read(folder.join(&archive)).unwrap(), archive)
        };
        let (first, archive) = packed();
        assert_eq!(archive, format!("bitnet-{}-x86_64-windows.zip", VERSION));
        assert!(first == packed().0);
        // The offset of the directory is 6 bytes before the end, and that of a file 4 bytes before its name there.
        let number = |at: usize| u32::from_le_bytes(*first[at..].first_chunk().unwrap()) as usize;
        let directory = number(first.len() - 6);
        for file in ["bitnet.exe", "LICENSE-MIT", "completions/_bitnet.ps1"] {
            let name = format!("{}/{file}", archive.trim_end_matches(".zip"));
            let listed = first[directory..].windows(name.len()).position(|bytes| bytes == name.as_bytes());
            let place = number(directory + listed.unwrap() - 4);
            let data = place + 30 + name.len();
            let crc = number(place + 14);
            let length = number(place + 18);
            let size = number(place + 22);
            assert_eq!(&first[place..place + 4], b"PK\x03\x04");
            assert_eq!(&first[place + 30..data], name.as_bytes());
            let trailer = [(crc as u32).to_le_bytes(), (size as u32).to_le_bytes()].concat();
            let head = [0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 3];
            let gz = folder.join("file.gz");
            fs::write(&gz, [&head[..], &first[data..data + length], &trailer].concat()).unwrap();
            let mut gunzip = Command::new("gzip");
            gunzip.arg("-dc").arg(&gz);
            assert!(output(gunzip).unwrap() == fs::read(folder.join(&name)).unwrap(), "{file}");
        }
        assert!(fs::read_to_string(folder.join(format!("{archive}.sha256"))).unwrap().ends_with(".zip\n"));
        assert!(Platform::of(Some("x86_64-unknown-none")).is_err());
        let of = |triple| Platform::of(Some(triple)).unwrap().os;
        assert_eq!(of("aarch64-unknown-linux-musl"), "linux-musl");
        assert_eq!(
            (of("x86_64-unknown-linux-gnu"), of("aarch64-apple-darwin")),
            ("linux".into(), "macos".into())
        );
    }
}
