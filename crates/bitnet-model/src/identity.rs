//! Names what decides the bytes of a model's cache besides the tokens: [`weights_identity`] for the weights, and
//! [`cache_identity`] for everything.

use std::{
    fs, io,
    path::Path,
    sync::atomic::{AtomicUsize, Ordering::Relaxed},
    thread,
    time::{Duration, SystemTime},
};

use bitnet_kernels::{BackendInfo, order::ARITHMETIC};
use sha2::{Digest, Sha256};

use crate::{
    ModelError, OutputFile,
    files::{Checkpoint, TensorEntry, TensorKind},
    names,
    spec::{ModelSpec, rope},
};

/// A SHA-256.
pub type Hash = [u8; 32];

/// Positions whose cosines and sines are part of the identity, because they come from the system's library.
const POSITIONS: usize = 512;
/// A file that has changed within this time may change again without getting another time.
const SETTLED: Duration = Duration::from_secs(5);

/// SHA-256 of the sizes and switches of a model and of all its weights except a separate output head: the trits and
/// scales that `bitnet inspect --hash` shows, and the dense tensors. The tokenizer, the end tokens and the length of the
/// context do not count.
///
/// `progress` receives the number of tensors done and the total.
///
/// # Errors
/// If a tensor cannot be read.
pub fn weights_identity(
    checkpoint: &Checkpoint,
    progress: &mut dyn FnMut(usize, usize),
) -> Result<Hash, ModelError> {
    let spec = &checkpoint.spec;
    let mut all = Sha256::new();
    all.update(b"bitnet weights 1");
    all.update(format!("{:?}", ModelSpec { context: 0, eos: Vec::new(), embeds: None, ..spec.clone() }));
    let (cos, sin) = rope::tables(spec, POSITIONS);
    cos.iter().chain(&sin).for_each(|value| all.update(value.to_le_bytes()));
    let counts = |entry: &&TensorEntry| {
        let head = !spec.tied_head && entry.name == names::head(spec);
        // Random weights of all layers come from the same few lines and their names.
        let repeated = checkpoint.tensors.is_generated() && !is_early(&entry.name);
        !head && !repeated
    };
    let entries: Vec<&TensorEntry> = checkpoint.tensors.entries().iter().filter(counts).collect();
    for hash in hash_all(checkpoint, &entries, progress)? {
        all.update(hash);
    }
    Ok(all.finalize().into())
}

/// Whether a tensor belongs to one of the first four layers, among which is a layer of every kind.
fn is_early(name: &str) -> bool {
    let layer = name.strip_prefix("model.layers.").and_then(|rest| rest.split_once('.')?.0.parse().ok());
    layer.is_some_and(|layer: usize| layer < 4)
}

/// Hashes tensors on as many threads as the machine runs.
fn hash_all(
    checkpoint: &Checkpoint,
    entries: &[&TensorEntry],
    progress: &mut dyn FnMut(usize, usize),
) -> Result<Vec<Hash>, ModelError> {
    let threads = thread::available_parallelism().map_or(1, usize::from).min(entries.len().max(1));
    let next = AtomicUsize::new(0);
    let hash_next = || {
        let place = next.fetch_add(1, Relaxed);
        entries.get(place).map(|entry| (place, hash_tensor(checkpoint, entry)))
    };
    let work = || std::iter::from_fn(hash_next).collect::<Vec<_>>();
    let mut hashes = Vec::with_capacity(entries.len());
    thread::scope(|scope| {
        let others: Vec<_> =
            (1..threads).filter_map(|_| thread::Builder::new().spawn_scoped(scope, work).ok()).collect();
        while let Some(hashed) = hash_next() {
            hashes.push(hashed);
            progress(next.load(Relaxed).min(entries.len()), entries.len());
        }
        for other in others {
            hashes.extend(other.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
        }
    });
    hashes.sort_by_key(|&(place, _)| place);
    hashes.into_iter().map(|(_, hash)| hash).collect()
}

/// SHA-256 of the name, shape and values of a tensor.
fn hash_tensor(checkpoint: &Checkpoint, entry: &TensorEntry) -> Result<Hash, ModelError> {
    let mut hash = Sha256::new();
    hash.update(format!("{} {:?} {:?}", entry.name, entry.kind, entry.shape));
    match entry.kind {
        TensorKind::Ternary | TensorKind::Grouped => {
            let tensor = checkpoint.tensors.ternary(&entry.name)?;
            hash.update(format!("{:?}", tensor.group()));
            hash.update(tensor.codes());
            for row in 0..tensor.rows() {
                match tensor.group() {
                    Some(_) => tensor.group_scales(row).iter().for_each(|s| hash.update(s.to_le_bytes())),
                    None => hash.update(tensor.row_scale(row).unwrap_or_default().to_le_bytes()),
                }
            }
        }
        TensorKind::Dense | TensorKind::Norm => {
            let tensor = checkpoint.tensors.dense(&entry.name)?;
            hash.update(format!("{:?}", tensor.dtype()));
            hash.update(tensor.bytes());
        }
    }
    Ok(hash.finalize().into())
}

/// [`weights_identity`] of a model whose files are at `path`, remembered in the folder `memory` as long as no file
/// changes: large models take seconds to hash. What is remembered counts only if inode, size and all times of every file
/// are the same; other systems than Unix do not tell these, so nothing is remembered there.
///
/// # Errors
/// If a tensor cannot be read. A folder that cannot be read or written remembers nothing.
pub fn remembered_identity(
    checkpoint: &Checkpoint,
    path: Option<&Path>,
    memory: &Path,
    progress: &mut dyn FnMut(usize, usize),
) -> Result<Hash, ModelError> {
    let place = path.and_then(|path| fingerprint(path).ok().flatten()).map(|print| memory.join(hex(&print)));
    let known = place.as_ref().and_then(|place| unhex(&fs::read_to_string(place).ok()?));
    if let Some(known) = known {
        return Ok(known);
    }
    let hash = weights_identity(checkpoint, progress)?;
    if let Some(place) = place {
        // Without a memory, the model is hashed again.
        let _ = fs::create_dir_all(memory)
            .and_then(|()| OutputFile::create(&place)?.write(hex(&hash).as_bytes()));
    }
    Ok(hash)
}

/// SHA-256 of which files a path leads to and when they last changed; `None` if that cannot be told for sure.
fn fingerprint(path: &Path) -> io::Result<Option<Hash>> {
    let mut files = vec![path.to_owned()];
    if path.is_dir() {
        files =
            fs::read_dir(path)?.flatten().map(|entry| entry.path()).filter(|path| path.is_file()).collect();
        files.sort();
    }
    let mut hash = Sha256::new();
    hash.update(b"bitnet files 1");
    for file in files {
        let about = fs::metadata(&file)?;
        let Some(times) = times(&about) else { return Ok(None) };
        hash.update(format!("{:?} {} {times}", file.file_name(), about.len()));
    }
    Ok(Some(hash.finalize().into()))
}

/// Device, inode and times of a file, in one line; `None` if it may change without changing them.
#[cfg(unix)]
fn times(about: &fs::Metadata) -> Option<String> {
    use std::os::unix::fs::MetadataExt;
    let changed = SystemTime::UNIX_EPOCH + Duration::from_secs(u64::try_from(about.ctime()).ok()?);
    let age = SystemTime::now().duration_since(changed).ok()?;
    let times = [about.mtime(), about.mtime_nsec(), about.ctime(), about.ctime_nsec()];
    (age > SETTLED).then(|| format!("{} {} {times:?}", about.dev(), about.ino()))
}

#[cfg(not(unix))]
fn times(_: &fs::Metadata) -> Option<String> {
    let _ = (SETTLED, SystemTime::UNIX_EPOCH);
    None
}

/// The salt of requests that give this text, such as the name of a tenant; never 0, which is the salt of those that give
/// none.
pub fn cache_salt(text: &str) -> u64 {
    let hash: Hash = Sha256::digest(text).into();
    let first = hash.first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes));
    first.max(1)
}

/// Lower-case hexadecimal digits.
pub(crate) fn hex(hash: &Hash) -> String {
    hash.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unhex(text: &str) -> Option<Hash> {
    let digits = text.as_bytes();
    let mut hash = [0; 32];
    if digits.len() != 64 || !digits.is_ascii() {
        return None;
    }
    for (byte, pair) in hash.iter_mut().zip(digits.as_chunks::<2>().0) {
        *byte = u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()?;
    }
    Some(hash)
}

/// SHA-256 of everything that decides the bytes of a model's cache besides the tokens: the weights, the type of cached
/// keys and values, the version of the arithmetic, and the class of the device. All CPUs of one architecture are one
/// class, because every instruction set computes the same bits.
pub fn cache_identity(weights: &Hash, backend: &BackendInfo, gpu: bool) -> Hash {
    let mut hash = Sha256::new();
    hash.update(b"bitnet cache 1");
    hash.update(weights);
    let device = if gpu {
        format!("{} {}", backend.device, backend.isa)
    } else {
        format!("cpu {}", std::env::consts::ARCH)
    };
    hash.update(format!("{} {ARITHMETIC} {device}", backend.kv));
    hash.finalize().into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Synthetic;

    fn of(checkpoint: &Checkpoint) -> Hash {
        weights_identity(checkpoint, &mut |_, _| {}).unwrap()
    }

    #[test]
    fn whatever_decides_a_key_is_part_of_the_identity_and_the_rest_is_not() {
        let named = |name: &str| Checkpoint::synthetic(name, Synthetic::named(name).unwrap());
        let model = of(&named("bonsai-tiny"));
        assert_eq!(of(&named("bonsai-tiny")), model);
        assert_ne!(of(&named("hybrid-tiny")), model);
        assert_ne!(of(&named("hybrid-tiny")), of(&named("hybrid-tiny-rotated")));
        let mut other = named("bonsai-tiny");
        (other.spec.context, other.spec.eos, other.name) = (64, vec![3], "x".into());
        assert_eq!(of(&other), model);
        other.spec.rms_eps *= 2.0;
        assert_ne!(of(&other), model);
        other = named("bonsai-tiny");
        other.spec.rope.theta *= 2.0;
        assert_ne!(of(&other), model);
    }

    #[test]
    fn caches_of_other_types_devices_and_weights_differ() {
        let cpu = BackendInfo { device: "cpu".into(), isa: "avx2", threads: 4, kv: "f32" };
        let identity = cache_identity(&[1; 32], &cpu, false);
        let same = BackendInfo { isa: "avx512", threads: 8, ..cpu.clone() };
        assert_eq!(cache_identity(&[1; 32], &same, false), identity);
        assert_ne!(cache_identity(&[2; 32], &cpu, false), identity);
        assert_ne!(cache_identity(&[1; 32], &BackendInfo { kv: "f16", ..cpu.clone() }, false), identity);
        assert_ne!(cache_identity(&[1; 32], &cpu, true), identity);
    }

    #[test]
    fn a_hash_is_read_as_it_was_written() {
        let hash = std::array::from_fn(|i| i as u8 * 7);
        assert_eq!(unhex(&hex(&hash)), Some(hash));
        for text in ["", "12", &"g".repeat(64), &"\u{e9}".repeat(32), &"0".repeat(65)] {
            assert_eq!(unhex(text), None, "{text}");
        }
    }
}
