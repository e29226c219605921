use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result};
use clap::Args;

use crate::{cargo, output, root, run, size::fits, target};

/// Maximum size of the stripped program in bytes.
const LIMIT: u64 = 25 << 20;
/// Files of the repository that every archive holds.
const TEXTS: [&str; 4] = ["README.md", "CHANGELOG.md", "LICENSE-APACHE", "LICENSE-MIT"];
/// Shells with a completion script, and its name.
const SHELLS: [(&str, &str); 4] =
    [("bash", "bitnet.bash"), ("fish", "bitnet.fish"), ("zsh", "_bitnet"), ("powershell", "_bitnet.ps1")];

/// Make an archive of the program with licences, completions and manual page, and its SHA-256 checksum
#[derive(Args)]
pub(crate) struct Dist {
    /// The folder for the archive
    #[arg(default_value = "target/dist")]
    folder: PathBuf,
}

impl Dist {
    pub(crate) fn run(&self) -> Result<()> {
        run(cargo(&["build", "--profile", "bundle", "--package", "bitnet-cli"]))?;
        let program = target().join("bundle/bitnet");
        let bytes = fs::metadata(&program)?.len();
        fits("the program", bytes, LIMIT)?;
        let folder = root().join(&self.folder);
        let archive = pack(&program, &folder)?;
        let bytes = fs::metadata(folder.join(&archive))?.len();
        println!("{}: {:.1} MB", self.folder.join(archive).display(), bytes as f64 / 1e6);
        Ok(())
    }
}

/// Writes the archive and its checksum, and returns the archive's name.
fn pack(program: &Path, folder: &Path) -> Result<String> {
    let name =
        format!("bitnet-{}-{}-{}", env!("CARGO_PKG_VERSION"), std::env::consts::ARCH, std::env::consts::OS);
    let inside = folder.join(&name);
    if inside.exists() {
        fs::remove_dir_all(&inside)?;
    }
    fs::create_dir_all(inside.join("completions"))?;
    fs::copy(program, inside.join("bitnet"))?;
    for text in TEXTS {
        fs::copy(root().join(text), inside.join(text)).with_context(|| text.to_owned())?;
    }
    let printed = |args: &[&str]| {
        let mut bitnet = Command::new(program);
        bitnet.args(args);
        output(bitnet)
    };
    for (shell, file) in SHELLS {
        fs::write(inside.join("completions").join(file), printed(&["completions", shell])?)?;
    }
    fs::write(inside.join("bitnet.1"), printed(&["man"])?)?;
    let archive = format!("{name}.tar.gz");
    // The same files give the same archive.
    let same =
        ["--sort=name", "--mtime=@0", "--owner=0", "--group=0", "--numeric-owner", "--mode=u+rwX,go+rX,go-w"];
    let mut tar = Command::new("tar");
    tar.args(same).args(["--use-compress-program=gzip -n", "-cf", &archive, &name]).current_dir(folder);
    run(tar)?;
    let mut sum = Command::new("sha256sum");
    sum.arg(&archive).current_dir(folder);
    fs::write(folder.join(format!("{archive}.sha256")), output(sum)?)?;
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
        let archive = pack(&program, folder).unwrap();
        let first = fs::read(folder.join(&archive)).unwrap();
        pack(&program, folder).unwrap();
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
        assert!(version.contains(env!("CARGO_PKG_VERSION")), "{version}");
        for file in TEXTS.into_iter().chain(["bitnet.1", "completions/_bitnet"]) {
            assert!(fs::metadata(folder.join(name).join(file)).unwrap().len() > 100, "{file}");
        }
    }
}
