//! The last step of a release: completes the folder of its files.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, ensure};
use bitnet_workspace::root;
use clap::Args;

use crate::{
    VERSION, notes,
    pack::{checksums, sha256},
    sbom,
};

/// What follows `bitnet-VERSION-` in the names of the archives of a release.
const ARCHIVES: [&str; 7] = [
    "x86_64-linux.tar.gz",
    "aarch64-linux.tar.gz",
    "x86_64-linux-musl.tar.gz",
    "aarch64-linux-musl.tar.gz",
    "x86_64-macos.tar.gz",
    "aarch64-macos.tar.gz",
    "x86_64-windows.zip",
];

/// Files that are filled in: their names in the release, and their templates.
const TEMPLATES: [(&str, &str); 6] = [
    ("install.sh", include_str!("../templates/install.sh")),
    ("install.ps1", include_str!("../templates/install.ps1")),
    ("bitnet.rb", include_str!("../templates/bitnet.rb")),
    ("BitnetEngine.Bitnet.yaml", include_str!("../templates/winget.version.yaml")),
    ("BitnetEngine.Bitnet.locale.en-US.yaml", include_str!("../templates/winget.locale.yaml")),
    ("BitnetEngine.Bitnet.installer.yaml", include_str!("../templates/winget.installer.yaml")),
];

/// Complete a folder of archives and wheels: installers, manifests for Homebrew and winget, a bill of materials, notes
/// and checksums
#[derive(Debug, Args)]
pub(crate) struct Assemble {
    /// The folder with all archives
    folder: PathBuf,
    /// The address of the repository, like https://example.org/owner/bitnet
    #[arg(long, value_name = "URL")]
    home: String,
}

impl Assemble {
    pub(crate) fn run(&self) -> Result<()> {
        let folder = root().join(&self.folder);
        fill(&folder, &self.home)?;
        fs::write(folder.join("bitnet.cdx.json"), sbom::of_program()?)?;
        fs::write(folder.join("notes.md"), notes::of(VERSION)?)?;
        let files = sum(&folder)?;
        println!("{} holds {} files with checksums in SHA256SUMS", self.folder.display(), files.len());
        Ok(())
    }
}

/// Writes the files that are filled in.
fn fill(folder: &Path, home: &str) -> Result<()> {
    let home = home.trim_end_matches('/');
    for (name, template) in TEMPLATES {
        let mut text = template.replace("@VERSION@", VERSION).replace("@HOME@", home);
        text = text.replace("@URL@", &format!("{home}/releases/download/v{VERSION}"));
        for archive in ARCHIVES {
            let place = format!("@SHA256 {archive}@");
            if text.contains(&place) {
                let sum = sha256(&folder.join(format!("bitnet-{VERSION}-{archive}")));
                text = text.replace(&place, &sum.context("a release has all archives")?);
            }
        }
        ensure!(
            !text.contains("@SHA256") && !text.contains("@URL@"),
            "{name} has a place that is not filled"
        );
        fs::write(folder.join(name), text).with_context(|| name.to_owned())?;
    }
    Ok(())
}

/// Writes checksums of all files, and returns their names.
fn sum(folder: &Path) -> Result<Vec<String>> {
    let mut files = Vec::new();
    for entry in fs::read_dir(folder).with_context(|| folder.display().to_string())? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        // The sums of single archives are in the common file.
        if entry.file_type()?.is_file() && name != "SHA256SUMS" && !name.ends_with(".sha256") {
            files.push(name);
        }
    }
    files.sort_unstable();
    fs::write(folder.join("SHA256SUMS"), checksums(folder, &files)?)?;
    Ok(files)
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Output};

    use super::*;

    /// A folder with archives of a program that prints its version; those for other machines hold nothing.
    fn release() -> tempfile::TempDir {
        let place = tempfile::tempdir().unwrap();
        let platform = format!("{}-{}", std::env::consts::ARCH, std::env::consts::OS);
        for archive in ARCHIVES {
            let name = format!("bitnet-{VERSION}-{archive}");
            fs::write(place.path().join(&name), archive).unwrap();
            if archive.strip_suffix(".tar.gz") == Some(&platform) {
                let inside = place.path().join(name.trim_end_matches(".tar.gz"));
                fs::create_dir(&inside).unwrap();
                fs::write(inside.join("bitnet"), format!("#!/bin/sh\necho bitnet {VERSION}\n")).unwrap();
                let runs = |file: &str| file.ends_with("/bitnet");
                crate::pack::tar(place.path(), name.trim_end_matches(".tar.gz"), runs).unwrap();
                fs::remove_dir_all(inside).unwrap();
            }
        }
        fill(place.path(), "https://example.org/bitnet/").unwrap();
        place
    }

    fn install(release: &Path, folder: &Path) -> Output {
        let mut sh = Command::new("sh");
        sh.arg(release.join("install.sh")).arg(folder);
        sh.env("BITNET_URL", format!("file://{}", release.display())).output().unwrap()
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn the_installer_installs_what_its_checksum_names_and_nothing_else() {
        let (release, home) = (release(), tempfile::tempdir().unwrap());
        let folder = home.path().join("new/bin");
        let done = install(release.path(), &folder);
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
        let version = Command::new(folder.join("bitnet")).output().unwrap();
        assert_eq!(String::from_utf8_lossy(&version.stdout), format!("bitnet {VERSION}\n"));
        // The program may be replaced while it exists.
        assert!(install(release.path(), &folder).status.success());
        for entry in fs::read_dir(release.path()).unwrap() {
            let path = entry.unwrap().path();
            if path.extension().is_some_and(|end| end == "gz") {
                fs::write(&path, [&fs::read(&path).unwrap()[..], b"x"].concat()).unwrap();
            }
        }
        let other = home.path().join("other");
        let refused = install(release.path(), &other);
        let told = String::from_utf8_lossy(&refused.stderr);
        assert!(!refused.status.success() && told.contains("nothing is installed"), "{told}");
        assert!(!other.exists());
    }

    #[test]
    fn every_file_of_a_release_is_filled_and_summed_and_a_missing_archive_is_named() {
        let release = release();
        for (name, _) in TEMPLATES {
            let text = fs::read_to_string(release.path().join(name)).unwrap();
            assert!(
                !text.contains("@VERSION@") && !text.contains("@HOME@") && text.contains(VERSION),
                "{name}"
            );
        }
        let formula = fs::read_to_string(release.path().join("bitnet.rb")).unwrap();
        let url =
            format!("https://example.org/bitnet/releases/download/v{VERSION}/bitnet-{VERSION}-aarch64-macos");
        assert!(formula.contains(&url), "{formula}");
        let archive = release.path().join(format!("bitnet-{VERSION}-aarch64-macos.tar.gz"));
        assert!(formula.contains(&sha256(&archive).unwrap()));
        let files = sum(release.path()).unwrap();
        assert_eq!(files.len(), ARCHIVES.len() + TEMPLATES.len());
        let mut check = Command::new("sha256sum");
        let check = check.args(["--check", "--strict", "SHA256SUMS"]).current_dir(release.path()).output();
        assert!(check.unwrap().status.success());
        fs::remove_file(&archive).unwrap();
        let error = format!("{:#}", fill(release.path(), "https://example.org").unwrap_err());
        assert!(error.contains("aarch64-macos.tar.gz"), "{error}");
    }
}
