//! The folder of a cache: immutable files that appear by being renamed, several processes at once, and a limit in bytes.
//!
//! ```text
//! DIR/lock                                    held by the process that removes the least recently used files
//! DIR/v2-IDENTITY/about                       the model, cache type and device, for people
//! DIR/v2-IDENTITY/SALT/ADDRESS.block|.state   a part; its time of modification is when it was last used
//! DIR/v2-IDENTITY/SALT/tmp-*                  a part that is being written
//! ```

use std::ffi::OsStr;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, ErrorKind, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, SystemTime};

use bitnet_kernels::in_page_cache;
use parking_lot::Mutex;
use twox_hash::XxHash3_128;

use super::entry::{Damage, Entry, HEADER, VERSION, checksum};
use crate::schedule::{Part, PartKind};

/// A folder for parts of the cache, and who may use them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CacheFolder {
    /// The folder, which is made if it is missing.
    pub path: PathBuf,
    /// Maximum number of bytes of all files in it, of all models.
    pub bytes: u64,
    /// What decides the bytes of a part besides its tokens: the weights, the cache type, the arithmetic and the device.
    pub identity: [u8; 32],
    /// The same in a line, for people.
    pub about: String,
}

/// Why a folder cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{problem} ({}): {cure}", .path.display())]
pub struct FolderError {
    /// The folder or a file in it.
    pub path: PathBuf,
    /// What is wrong with it.
    pub problem: String,
    /// What to do about it.
    pub cure: &'static str,
}

/// Why a part could not be read.
#[derive(Debug)]
pub enum Missing {
    /// There is no such file.
    Absent,
    /// The file was damaged, and has been removed.
    Damaged,
}

/// After this time, a file that is being written belongs to a process that has ended.
const ABANDONED: Duration = Duration::from_secs(600);
/// How much of the limit is used after the least recently used files have been removed.
const KEPT: (u64, u64) = (9, 10);
/// Bytes that are read at once: they are still in a core's own cache when their checksum is computed. A multiple of every
/// [`CacheBytes::piece`](bitnet_model::CacheBytes::piece).
pub const READ: usize = 256 << 10;

/// An open folder.
#[derive(Debug, Clone)]
pub struct Folder {
    root: PathBuf,
    home: PathBuf,
    identity: [u8; 32],
    limit: u64,
    /// Bytes of a part that have a hash of their own.
    piece: usize,
}

impl Folder {
    /// Opens the folder, and makes it if it is missing. The bytes of parts are hashed in pieces of this length.
    ///
    /// # Errors
    /// If it cannot be made or written to, or if other users could write to it.
    pub fn open(config: &CacheFolder, piece: usize) -> Result<Folder, FolderError> {
        let root = config.path.clone();
        let id: String = config.identity[..8].iter().map(|byte| format!("{byte:02x}")).collect();
        let home = root.join(format!("v{VERSION}-{id}"));
        let failed = |path: &Path| {
            let path = path.to_owned();
            move |e: io::Error| {
                let cure = "give a folder that this user may write to";
                FolderError { path, problem: format!("the folder cannot be used: {e}"), cure }
            }
        };
        make(&root).map_err(failed(&root))?;
        check_private(&root)?;
        make(&home).map_err(failed(&home))?;
        let about = home.join("about");
        if fs::read_to_string(&about).ok().as_deref() != Some(&config.about) {
            replace(&about, &[config.about.as_bytes()]).map_err(failed(&about))?;
        }
        check_owner(&root, &about)?;
        Ok(Folder { root, home, identity: config.identity, limit: config.bytes, piece })
    }

    fn path(&self, part: &Part) -> PathBuf {
        let kind = if part.kind == PartKind::Block { "block" } else { "state" };
        self.home.join(format!("{:016x}", part.salt)).join(format!("{}.{kind}", part.address))
    }

    /// Whether there is a file for a part of this many bytes. One of another length is damaged, and is removed.
    pub fn has(&self, part: &Part, bytes: usize) -> Result<(), Missing> {
        let path = self.path(part);
        let file = fs::metadata(&path).map_err(|_| Missing::Absent)?;
        if file.len() == (HEADER + bytes) as u64 {
            return Ok(());
        }
        let _ = fs::remove_file(path);
        Err(Missing::Damaged)
    }

    /// Reads a part of `buffer.len()` bytes, and marks it as used. A damaged file is removed.
    pub fn read(&self, part: &Part, buffer: &mut [u8], now: SystemTime) -> Result<(), Missing> {
        self.use_file(part, buffer.len(), now, |mut file, entry| {
            let mut hashes = Vec::new();
            for bytes in buffer.chunks_mut(READ) {
                file.read_exact(bytes).map_err(|_| Damage::Length)?;
                hashes.extend(bytes.chunks(self.piece).map(XxHash3_128::oneshot));
            }
            entry.check(buffer.len(), checksum(hashes))
        })
    }

    /// Opens a part of this many bytes, marks it as used, and has the system hold all of it in memory; `None` if the system
    /// cannot read without waiting. A damaged file is removed. `buffer` has [`READ`] bytes.
    pub fn hold(
        &self,
        part: &Part,
        bytes: usize,
        buffer: &mut [u8],
        now: SystemTime,
    ) -> Result<Option<Held>, Missing> {
        self.use_file(part, bytes, now, |file, entry| {
            let (piece, hashes) = (self.piece, Mutex::new(vec![0; bytes.div_ceil(self.piece)]));
            let held = hold(&file, bytes, buffer)?;
            Ok(held.then(|| Held { file, entry, piece, hashes, forgotten: AtomicBool::new(false) }))
        })
    }

    /// Opens a part of this many bytes, and marks it as used. The file is removed if it or what is done with it shows damage.
    fn use_file<T>(
        &self,
        part: &Part,
        bytes: usize,
        now: SystemTime,
        then: impl FnOnce(File, Entry) -> Result<T, Damage>,
    ) -> Result<T, Missing> {
        let path = self.path(part);
        let mut file = File::open(&path).map_err(|_| Missing::Absent)?;
        let used = || {
            let entry = self.header(&mut file, part, bytes)?;
            // If the time cannot be set, the file goes earlier than it should.
            let _ = file.set_modified(used(now, part));
            then(file, entry)
        };
        used().map_err(|_| {
            let _ = fs::remove_file(&path);
            Missing::Damaged
        })
    }

    fn header(&self, file: &mut File, part: &Part, bytes: usize) -> Result<Entry, Damage> {
        let length = file.metadata().map_err(|_| Damage::Length)?.len();
        if length != (HEADER + bytes) as u64 {
            return Err(Damage::Length);
        }
        let mut header = [0; HEADER];
        file.read_exact(&mut header).map_err(|_| Damage::Length)?;
        let entry = Entry::parse(&header)?;
        // The header names the tokens themselves, so not even equal hashes of different texts can be mistaken.
        if entry.identity != self.identity || entry.part != *part || entry.piece != self.piece as u64 {
            return Err(Damage::Other);
        }
        Ok(entry)
    }

    /// Writes a part, unless it is there; returns the bytes written.
    pub fn write(&self, part: &Part, bytes: &[u8], now: SystemTime) -> io::Result<u64> {
        let size = (HEADER + bytes.len()) as u64;
        if size > self.limit || self.has(part, bytes.len()).is_ok() {
            return Ok(0);
        }
        let path = self.path(part);
        let header = Entry::of(self.identity, part.clone(), bytes, self.piece).header();
        let write = || replace(&path, &[&header, bytes]);
        let file = write().or_else(|e| match e.kind() {
            ErrorKind::NotFound => {
                make(&self.home)?;
                make(path.parent().unwrap_or(&self.home))?;
                write()
            }
            _ => Err(e),
        })?;
        let _ = file.set_modified(used(now, part));
        Ok(size)
    }

    /// Removes a part, if it is there.
    pub fn remove(&self, part: &Part) {
        let _ = fs::remove_file(self.path(part));
    }

    /// Removes the least recently used files if all files together exceed the limit, and those that ended processes have
    /// left. Returns the bytes that are left and the number of parts removed, or `None` if another process is at it.
    pub fn make_room(&self, now: SystemTime) -> io::Result<Option<(u64, u64)>> {
        let lock = options().create(true).truncate(false).write(true).open(self.root.join("lock"))?;
        if lock.try_lock().is_err() {
            return Ok(None);
        }
        let mut files = stored(&self.root)?;
        files.retain(|file| {
            let abandoned = file.part.is_none() && older(now, file.used, ABANDONED);
            !(abandoned && fs::remove_file(&file.path).is_ok())
        });
        let mut left: u64 = files.iter().map(|file| file.bytes).sum();
        let mut removed = 0;
        if left > self.limit {
            files.sort_by_key(|file| file.used);
            for file in files.iter().filter(|file| file.part.is_some()) {
                if left <= self.limit / KEPT.1 * KEPT.0 {
                    break;
                }
                if fs::remove_file(&file.path).is_ok() {
                    left -= file.bytes;
                    removed += 1;
                }
            }
        }
        Ok(Some((left, removed)))
    }

    /// The limit in bytes.
    pub fn limit(&self) -> u64 {
        self.limit
    }
}

/// An open file of a part, which the system holds in memory.
#[derive(Debug)]
pub struct Held {
    file: File,
    entry: Entry,
    piece: usize,
    /// The hashes of the pieces that have been read; 0 for the others.
    hashes: Mutex<Vec<u128>>,
    forgotten: AtomicBool,
}

/// Why a part was not read from memory.
#[derive(Debug)]
pub enum Unread {
    /// The system does not hold all of it any more.
    Forgotten,
    /// It is damaged.
    Damaged,
}

impl Held {
    /// The number of bytes.
    pub fn bytes(&self) -> usize {
        self.entry.length as usize
    }

    /// Reads bytes from the one with this index on, whole pieces or up to the end, without waiting for a disk.
    pub fn fill(&self, at: usize, to: &mut [u8]) {
        let mut done = 0;
        while done < to.len() {
            match read_held(&self.file, HEADER + at + done, &mut to[done..]) {
                Ok(0) => return,
                Ok(read) => done += read,
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) => {
                    self.forgotten.fetch_or(e.kind() == ErrorKind::WouldBlock, Relaxed);
                    return;
                }
            }
        }
        for (index, piece) in (at / self.piece..).zip(to.chunks(self.piece)) {
            let hash = XxHash3_128::oneshot(piece);
            self.hashes.lock()[index] = hash;
        }
    }

    /// Checks that all bytes have been read and are those that were written.
    pub fn check(&self) -> Result<(), Unread> {
        let hashes = std::mem::take(&mut *self.hashes.lock());
        match self.entry.check(self.bytes(), checksum(hashes)) {
            Ok(()) => Ok(()),
            Err(_) if self.forgotten.load(Relaxed) => Err(Unread::Forgotten),
            Err(_) => Err(Unread::Damaged),
        }
    }
}

/// Has the system hold the bytes after a header; returns false if it cannot read without waiting.
fn hold(mut file: &File, bytes: usize, buffer: &mut [u8]) -> Result<bool, Damage> {
    match read_held(file, HEADER, &mut [0]) {
        Err(e) if e.kind() != ErrorKind::WouldBlock => return Ok(false),
        _ if in_page_cache(file, HEADER + bytes) => return Ok(true),
        _ => {}
    }
    let mut read = || {
        file.seek(SeekFrom::Start(HEADER as u64))?;
        (0..bytes).step_by(READ).try_for_each(|start| file.read_exact(&mut buffer[..READ.min(bytes - start)]))
    };
    read().map_err(|_| Damage::Length)?;
    Ok(true)
}

/// Reads bytes that the system holds in memory; [`ErrorKind::WouldBlock`] if it does not.
#[cfg(target_os = "linux")]
fn read_held(file: &File, at: usize, to: &mut [u8]) -> io::Result<usize> {
    let flags = rustix::io::ReadWriteFlags::NOWAIT;
    Ok(rustix::io::preadv2(file, &mut [io::IoSliceMut::new(to)], at as u64, flags)?)
}

/// Other systems cannot tell.
#[cfg(not(target_os = "linux"))]
fn read_held(_: &File, _: usize, _: &mut [u8]) -> io::Result<usize> {
    Err(ErrorKind::Unsupported.into())
}

/// When a part counts as used: the later in its text, the earlier it goes.
fn used(now: SystemTime, part: &Part) -> SystemTime {
    let before = Duration::from_micros(u64::from(part.index) + 1);
    now.checked_sub(before).unwrap_or(now)
}

fn older(now: SystemTime, than: SystemTime, age: Duration) -> bool {
    now.duration_since(than).is_ok_and(|passed| passed > age)
}

/// A file in the folder.
#[derive(Debug)]
pub(super) struct Stored {
    pub path: PathBuf,
    /// The name of the folder of its model, and its salt.
    pub home: String,
    pub salt: u64,
    /// Whether it is a block or a state; `None` while it is being written.
    pub part: Option<PartKind>,
    pub bytes: u64,
    pub used: SystemTime,
}

/// All files of parts in a folder, of all models. Files with other names are not touched by anything here.
pub(super) fn stored(root: &Path) -> io::Result<Vec<Stored>> {
    let mut all = Vec::new();
    for home in folders(root, |name| name.strip_prefix('v').is_some_and(|rest| rest.contains('-')))? {
        let of = home.file_name().and_then(OsStr::to_str).unwrap_or_default().to_owned();
        for salted in folders(&home, |name| name.len() == 16 && u64::from_str_radix(name, 16).is_ok())? {
            let name = salted.file_name().and_then(OsStr::to_str).unwrap_or_default();
            let salt = u64::from_str_radix(name, 16).unwrap_or_default();
            // A folder that has just been removed is empty.
            for entry in fs::read_dir(&salted).into_iter().flatten().flatten() {
                let (name, path) = (entry.file_name(), entry.path());
                let Some(part) = kind_of(&name.to_string_lossy()) else { continue };
                let Ok(file) = entry.metadata() else { continue };
                let used = file.modified().unwrap_or(SystemTime::UNIX_EPOCH);
                all.push(Stored { path, home: of.clone(), salt, part, bytes: file.len(), used });
            }
        }
    }
    Ok(all)
}

/// What a file of this name is: a part, or one that is being written; `None` for anything else.
fn kind_of(name: &str) -> Option<Option<PartKind>> {
    if name.starts_with("tmp-") {
        return Some(None);
    }
    let (address, kind) = name.split_once('.')?;
    let kind = match kind {
        "block" => PartKind::Block,
        "state" => PartKind::State,
        _ => return None,
    };
    (address.len() == 64 && address.bytes().all(|b| b.is_ascii_hexdigit())).then_some(Some(kind))
}

/// The folders in a folder whose names are of a kind; none if it does not exist.
pub(super) fn folders(root: &Path, is: impl Fn(&str) -> bool) -> io::Result<Vec<PathBuf>> {
    let entries = match fs::read_dir(root) {
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    let all = entries.flatten().filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
    Ok(all.filter(|entry| entry.file_name().to_str().is_some_and(&is)).map(|entry| entry.path()).collect())
}

/// Writes a file under another name and renames it, so that it appears whole. Returns the file.
fn replace(path: &Path, parts: &[&[u8]]) -> io::Result<File> {
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let (number, id) = (NUMBER.fetch_add(1, Relaxed), std::process::id());
    let temporary = path.with_file_name(format!("tmp-{id}-{number}-{}", since.as_nanos()));
    let mut file = options().create_new(true).write(true).open(&temporary)?;
    let mut write = || {
        parts.iter().try_for_each(|part| file.write_all(part))?;
        fs::rename(&temporary, path)
    };
    write().inspect_err(|_| drop(fs::remove_file(&temporary)))?;
    Ok(file)
}

/// Options that make files which only their owner can read.
fn options() -> OpenOptions {
    #[cfg_attr(not(unix), allow(unused_mut, reason = "only Unix has modes"))]
    let mut options = OpenOptions::new();
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options
}

/// Makes a folder, and those above it, that only their owner can open.
fn make(path: &Path) -> io::Result<()> {
    let mut builder = DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.create(path)
}

/// Checks that only the owner of a folder can write to it.
#[cfg_attr(not(unix), allow(clippy::unnecessary_wraps, reason = "only Unix has modes"))]
fn check_private(root: &Path) -> Result<(), FolderError> {
    #[cfg(unix)]
    {
        let mode =
            fs::metadata(root).map(|file| std::os::unix::fs::MetadataExt::mode(&file)).unwrap_or(0o777);
        if mode & 0o022 != 0 {
            let problem = format!("other users can write to the folder, which has mode {:03o}", mode & 0o777);
            return Err(FolderError { path: root.to_owned(), problem, cure: "run chmod 700 on it" });
        }
    }
    let _ = root;
    Ok(())
}

/// Checks that a folder belongs to the user who has written `own`.
#[cfg_attr(not(unix), allow(clippy::unnecessary_wraps, reason = "only Unix has owners"))]
fn check_owner(root: &Path, own: &Path) -> Result<(), FolderError> {
    #[cfg(unix)]
    {
        use std::os::unix::fs::MetadataExt;
        let of = |path: &Path| fs::metadata(path).map(|file| file.uid()).ok();
        if of(root) != of(own) {
            let problem = "the folder belongs to another user".to_owned();
            return Err(FolderError { path: root.to_owned(), problem, cure: "give a folder of this user" });
        }
    }
    let _ = (root, own);
    Ok(())
}
