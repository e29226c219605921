//! Archives that are the same whenever and wherever the same files are packed.

use std::{fs, io::Write, path::Path};

use anyhow::{Context, Result};
use flate2::{Compression, Crc, write::DeflateEncoder, write::GzEncoder};
use sha2::{Digest, Sha256};

/// Packs a folder for Unix and returns the archive's name. Files for which `runs` is true may be executed.
pub(crate) fn tar(folder: &Path, name: &str, runs: fn(&str) -> bool) -> Result<String> {
    let archive = format!("{name}.tar.gz");
    let mut tar = tar::Builder::new(GzEncoder::new(Vec::new(), Compression::best()));
    for file in files(folder, name)? {
        let bytes = fs::read(folder.join(&file)).with_context(|| file.clone())?;
        let mut header = tar::Header::new_gnu();
        header.set_size(bytes.len() as u64);
        header.set_mode(if runs(&file) { 0o755 } else { 0o644 });
        header.set_mtime(0);
        tar.append_data(&mut header, &file, &bytes[..])?;
    }
    fs::write(folder.join(&archive), tar.into_inner()?.finish()?)?;
    Ok(archive)
}

/// As [`tar`], in the format that Windows opens without further programs.
pub(crate) fn zip(folder: &Path, name: &str) -> Result<String> {
    let files = files(folder, name)?;
    let (mut bytes, mut directory) = (Vec::new(), Vec::new());
    for file in &files {
        let packed = Packed::of(&folder.join(file))?;
        let place = u32::try_from(bytes.len())?;
        let about = packed.header(file)?;
        bytes.extend(b"PK\x03\x04".iter().chain(&about).chain(file.as_bytes()).chain(&packed.deflated));
        // Made by version 2.0; no comment, first disk, no attributes.
        directory.extend(b"PK\x01\x02\x14\0".iter().chain(&about).chain(&[0; 10]));
        directory.extend(place.to_le_bytes().iter().chain(file.as_bytes()));
    }
    let place = u32::try_from(bytes.len())?;
    let count = u16::try_from(files.len())?.to_le_bytes();
    let length = u32::try_from(directory.len())?;
    bytes.extend(directory.iter().chain(b"PK\x05\x06\0\0\0\0").chain(&count).chain(&count));
    bytes.extend(length.to_le_bytes().iter().chain(&place.to_le_bytes()).chain(&[0; 2]));
    let archive = format!("{name}.zip");
    fs::write(folder.join(&archive), bytes)?;
    Ok(archive)
}

/// The files below `name` in `folder`, in order, with slashes on every system.
fn files(folder: &Path, name: &str) -> Result<Vec<String>> {
    let (mut files, mut folders) = (Vec::new(), vec![name.to_owned()]);
    while let Some(inside) = folders.pop() {
        for entry in fs::read_dir(folder.join(&inside))? {
            let entry = entry?;
            let path = format!("{inside}/{}", entry.file_name().to_string_lossy());
            if entry.file_type()?.is_dir() { folders.push(path) } else { files.push(path) }
        }
    }
    files.sort_unstable();
    Ok(files)
}

/// A file as it is in a zip archive.
struct Packed {
    deflated: Vec<u8>,
    crc: u32,
    size: u32,
}

impl Packed {
    fn of(file: &Path) -> Result<Self> {
        let bytes = fs::read(file).with_context(|| file.display().to_string())?;
        let mut crc = Crc::new();
        crc.update(&bytes);
        let mut deflate = DeflateEncoder::new(Vec::new(), Compression::best());
        deflate.write_all(&bytes)?;
        Ok(Packed { deflated: deflate.finish()?, crc: crc.sum(), size: u32::try_from(bytes.len())? })
    }

    /// What the file's own header and the directory both say: needs version 2.0, no flags, deflated, at midnight on
    /// 1980-01-01 so that the same files give the same archive; checksum, sizes, and the length of the name.
    fn header(&self, name: &str) -> Result<Vec<u8>> {
        let mut header = vec![0x14, 0, 0, 0, 8, 0, 0, 0, 0x21, 0];
        for number in [self.crc, u32::try_from(self.deflated.len())?, self.size] {
            header.extend(number.to_le_bytes());
        }
        header.extend(u16::try_from(name.len())?.to_le_bytes().iter().chain(&[0; 2]));
        Ok(header)
    }
}

/// The SHA-256 of a file in hexadecimal digits.
pub(crate) fn sha256(file: &Path) -> Result<String> {
    let bytes = fs::read(file).with_context(|| file.display().to_string())?;
    Ok(Sha256::digest(&bytes).iter().map(|byte| format!("{byte:02x}")).collect())
}

/// Lines that `sha256sum --check` reads, for files in a folder.
pub(crate) fn checksums(folder: &Path, files: &[String]) -> Result<String> {
    files.iter().map(|file| Ok(format!("{}  {file}\n", sha256(&folder.join(file))?))).collect()
}
