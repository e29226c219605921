//! A [`Shelf`] in a folder, with a thread that writes and one that reads; while a text is read, another helps it.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::thread::{Builder, scope};
use std::time::{Duration, Instant, SystemTime};

use bitnet_model::CacheBytes;
use crossbeam_channel::{Receiver, Sender, bounded, unbounded};
use parking_lot::Mutex;

use super::folder::{CacheFolder, Folder, FolderError, Held, Missing, READ, Unread};
use super::shelf::{Content, Given, InPlace, PartBytes, Shelf, ShelfCounts, Spare, Told, Wake};
use crate::schedule::{Part, PartKind, Wish};

/// Bytes of parts on their way to the disk; one part may exceed it.
const ON_THE_WAY: usize = 256 << 20;
/// Bytes of parts read ahead.
const READ_AHEAD: usize = 64 << 20;
/// How long nothing is written after a write has failed, because the disk may be full.
const PAUSE: Duration = Duration::from_secs(5);
/// The folder is looked through again when this process has written this fraction of the limit.
const LOOK_AFTER: u64 = 16;

/// Parts of the cache in a folder.
pub struct Disk {
    shared: Arc<Shared>,
    to_write: Sender<Write>,
    to_look: Sender<(u64, Wish)>,
    to_load: Sender<(u64, Wish, usize)>,
    wrote: Receiver<Told>,
    told: Receiver<Told>,
}

/// What the threads and the engine share.
struct Shared {
    folder: Folder,
    bytes: CacheBytes,
    wake: Wake,
    /// Bytes on their way to the disk.
    on_the_way: AtomicUsize,
    spare: Mutex<Spare>,
    counts: Mutex<ShelfCounts>,
    /// The last load that was stopped, plus one.
    stopped: AtomicU64,
    /// Whether writing pauses.
    paused: AtomicBool,
    /// Whether blocks are read where they are needed.
    in_place: AtomicBool,
}

enum Write {
    Keep(Part, PartBytes),
    Forget(Part),
    Flush(Sender<()>),
}

impl Disk {
    /// Opens a folder and starts its threads. Blocks are read `in_place` if the system can do that without waiting. `wake`
    /// is called after each answer.
    ///
    /// # Errors
    /// If the folder cannot be used, or a thread cannot be started.
    pub fn open(
        config: &CacheFolder,
        bytes: CacheBytes,
        in_place: bool,
        wake: Wake,
    ) -> Result<Disk, FolderError> {
        let folder = Folder::open(config, bytes.piece)?;
        // Files are open until the engine has read them in place.
        let ahead = (READ_AHEAD / bytes.block.max(1)).clamp(1, 64);
        let (to_write, writes) = unbounded();
        let (to_look, looks) = unbounded();
        let (to_load, loads) = unbounded();
        let (tell_written, wrote) = unbounded();
        let (tell, told) = bounded(ahead);
        let shared = Arc::new(Shared {
            folder,
            bytes,
            wake,
            on_the_way: AtomicUsize::new(0),
            spare: Mutex::default(),
            counts: Mutex::default(),
            stopped: AtomicU64::new(0),
            paused: AtomicBool::new(false),
            in_place: AtomicBool::new(in_place),
        });
        let writer = Writer { shared: Arc::clone(&shared), tell: tell_written, since: 0, resume: None };
        let reader = Reader { shared: Arc::clone(&shared), looks, tell, to_write: to_write.clone() };
        let failed = |e: std::io::Error| FolderError {
            path: config.path.clone(),
            problem: format!("cannot start a thread for the folder: {e}"),
            cure: "close other programs, or raise the limit on threads",
        };
        let thread = |name: &str| Builder::new().name(name.into());
        thread("bitnet-keep").spawn(move || writer.run(&writes)).map_err(failed)?;
        thread("bitnet-fetch").spawn(move || reader.run(&loads)).map_err(failed)?;
        Ok(Disk { shared, to_write, to_look, to_load, wrote, told })
    }
}

impl Shelf for Disk {
    fn has_room(&mut self, bytes: usize) -> bool {
        let waiting = self.shared.on_the_way.load(Relaxed);
        !self.shared.paused.load(Relaxed) && (waiting == 0 || waiting + bytes <= ON_THE_WAY)
    }

    fn buffer(&mut self, bytes: usize) -> Vec<u8> {
        self.shared.spare.lock().take(bytes)
    }

    fn give_back(&mut self, bytes: PartBytes) {
        self.shared.spare.lock().put(bytes);
    }

    fn keep(&mut self, part: Part, bytes: PartBytes) {
        self.shared.on_the_way.fetch_add(bytes.len(), Relaxed);
        let _ = self.to_write.send(Write::Keep(part, bytes));
    }

    fn forget(&mut self, part: Part) {
        let _ = self.to_write.send(Write::Forget(part));
    }

    fn look(&mut self, number: u64, wish: Wish) {
        let _ = self.to_look.send((number, wish));
    }

    fn load(&mut self, number: u64, wish: Wish, blocks: usize) {
        let _ = self.to_load.send((number, wish, blocks));
    }

    fn stop(&mut self, number: u64) {
        self.shared.stopped.fetch_max(number + 1, Relaxed);
    }

    fn next(&mut self) -> Option<Told> {
        self.told.try_recv().or_else(|_| self.wrote.try_recv()).ok()
    }

    fn flush(&mut self, until: Instant) -> bool {
        let (done, is_done) = bounded(1);
        self.to_write.send(Write::Flush(done)).is_ok() && is_done.recv_deadline(until).is_ok()
    }

    fn counts(&self) -> ShelfCounts {
        *self.shared.counts.lock()
    }
}

impl Shared {
    /// Counts a damaged file; returns whether there was an undamaged one.
    fn is_here(&self, found: Result<(), Missing>) -> bool {
        self.counts.lock().damaged += u64::from(matches!(found, Err(Missing::Damaged)));
        found.is_ok()
    }

    fn count_read(&self, bytes: usize) {
        let mut counts = self.counts.lock();
        counts.read_parts += 1;
        counts.read_bytes += bytes as u64;
    }

    fn has(&self, part: &Part) -> bool {
        self.is_here(self.folder.has(part, self.bytes.of(part.kind.place(0))))
    }
}

/// The thread that writes.
struct Writer {
    shared: Arc<Shared>,
    tell: Sender<Told>,
    /// Bytes written since the folder was last looked through.
    since: u64,
    /// When writing goes on after a failure.
    resume: Option<Instant>,
}

impl Writer {
    fn run(mut self, writes: &Receiver<Write>) {
        self.make_room();
        // What is here decides how much memory the engine prepares.
        (self.shared.wake)();
        loop {
            let write = match self.resume {
                Some(at) => writes.recv_deadline(at),
                None => writes.recv().map_err(|_| crossbeam_channel::RecvTimeoutError::Disconnected),
            };
            match write {
                Ok(Write::Keep(part, bytes)) => self.keep(&part, bytes),
                Ok(Write::Forget(part)) => {
                    self.shared.folder.remove(&part);
                    self.answer(Told::Holds(part.kind, part.address, false));
                }
                Ok(Write::Flush(done)) => drop(done.send(())),
                Err(crossbeam_channel::RecvTimeoutError::Timeout) => {}
                Err(crossbeam_channel::RecvTimeoutError::Disconnected) => return,
            }
            if self.resume.is_some_and(|at| at <= Instant::now()) {
                self.resume = None;
                self.shared.paused.store(false, Relaxed);
                (self.shared.wake)();
            }
        }
    }

    fn keep(&mut self, part: &Part, bytes: PartBytes) {
        let begun = Instant::now();
        let written = match self.resume {
            Some(_) => Ok(None),
            None => self.shared.folder.write(part, &bytes, SystemTime::now()).map(Some),
        };
        self.shared.on_the_way.fetch_sub(bytes.len(), Relaxed);
        self.shared.spare.lock().put(bytes);
        let mut counts = self.shared.counts.lock();
        match written {
            Ok(Some(bytes)) => {
                counts.written_parts += u64::from(bytes > 0);
                counts.written_bytes += bytes;
                counts.write_micros += begun.elapsed().as_micros() as u64;
                counts.bytes += bytes;
                self.since += bytes;
            }
            // A failure, or one before: the disk may be full.
            Ok(None) => counts.failed_writes += 1,
            Err(_) => {
                counts.failed_writes += 1;
                self.shared.paused.store(true, Relaxed);
                self.resume = Some(Instant::now() + PAUSE);
            }
        }
        let total = counts.bytes;
        drop(counts);
        let kept = matches!(written, Ok(Some(_)));
        self.answer(Told::Holds(part.kind, part.address, kept));
        let limit = self.shared.folder.limit();
        if self.since > 0 && (total > limit || self.since > limit / LOOK_AFTER) {
            self.make_room();
        }
    }

    /// Removes what exceeds the limit, and learns what all processes have written.
    fn make_room(&mut self) {
        if let Ok(Some((left, removed))) = self.shared.folder.make_room(SystemTime::now()) {
            self.since = 0;
            let mut counts = self.shared.counts.lock();
            (counts.bytes, counts.evicted) = (left, counts.evicted + removed);
        }
    }

    fn answer(&self, told: Told) {
        let _ = self.tell.send(told);
        (self.shared.wake)();
    }
}

/// The thread that reads.
struct Reader {
    shared: Arc<Shared>,
    looks: Receiver<(u64, Wish)>,
    tell: Sender<Told>,
    to_write: Sender<Write>,
}

impl Reader {
    fn run(self, loads: &Receiver<(u64, Wish, usize)>) {
        loop {
            crossbeam_channel::select! {
                recv(self.looks) -> look => match look {
                    Ok((number, wish)) => drop(self.look(number, &wish)),
                    Err(_) => return,
                },
                recv(loads) -> load => match load {
                    Ok((number, wish, blocks)) => drop(self.load(number, &wish, blocks)),
                    Err(_) => return,
                },
            }
        }
    }

    /// Counts the blocks that are here, up to the last state if the wish needs one.
    fn look(&self, number: u64, wish: &Wish) -> Option<()> {
        let mut blocks = wish.held;
        while wish.parts.get(blocks).is_some_and(|part| self.shared.has(part)) {
            blocks += 1;
        }
        if wish.needs_state {
            while blocks > wish.usable && !self.shared.has(&wish.parts[blocks - 1].state()) {
                blocks -= 1;
            }
        }
        self.answer(Told::Looked { number, blocks })
    }

    fn load(&self, number: u64, wish: &Wish, blocks: usize) -> Option<()> {
        let begun = Instant::now();
        let now = SystemTime::now();
        let goes_on = || self.shared.stopped.load(Relaxed) <= number;
        let mut reached = wish.held.min(blocks);
        let parts = wish.parts.get(reached..blocks).unwrap_or_default();
        scope(|scope| {
            // Every second part is read by another thread.
            let (give, others) = bounded(0);
            let mut seconds = parts.iter().skip(1).step_by(2);
            let help = move || {
                seconds.try_for_each(|part| give.send(goes_on().then(|| self.read(part, now)).flatten()).ok())
            };
            let helped = Builder::new().name("bitnet-fetch-2".into()).spawn_scoped(scope, help).is_ok();
            for (at, part) in parts.iter().enumerate() {
                // Others must not wait for their answers until this load has ended.
                self.looks.try_iter().try_for_each(|(number, wish)| self.look(number, &wish))?;
                let theirs = helped && at % 2 == 1;
                let content = if theirs { others.recv().ok().flatten() } else { self.read(part, now) };
                let Some(content) = content.filter(|_| goes_on()) else { break };
                self.answer(given(number, PartKind::Block, reached, content))?;
                reached += 1;
            }
            Some(())
        })?;
        while wish.needs_state && reached > wish.usable && goes_on() {
            let index = reached - 1;
            if let Some(content) = self.read(&wish.parts[index].state(), now) {
                self.answer(given(number, PartKind::State, index, content))?;
                break;
            }
            reached = index;
        }
        self.shared.counts.lock().read_micros += begun.elapsed().as_micros() as u64;
        self.answer(Told::End { number })
    }

    fn read(&self, part: &Part, now: SystemTime) -> Option<Content> {
        let shared = &self.shared;
        let bytes = shared.bytes.of(part.kind.place(0));
        if part.kind == PartKind::Block && shared.in_place.load(Relaxed) {
            let mut buffer = shared.spare.lock().take(READ);
            let held = shared.folder.hold(part, bytes, &mut buffer, now);
            shared.spare.lock().put(buffer.into());
            match held {
                Ok(Some(held)) => {
                    let (shared, to_write) = (Arc::clone(shared), self.to_write.clone());
                    let block = HeldBlock { shared, to_write, part: part.clone(), held };
                    return Some(Content::InPlace(Box::new(block)));
                }
                Ok(None) => shared.in_place.store(false, Relaxed),
                Err(missing) => {
                    shared.is_here(Err(missing));
                    return None;
                }
            }
        }
        let mut buffer = shared.spare.lock().take(bytes);
        if !shared.is_here(shared.folder.read(part, &mut buffer, now)) {
            shared.spare.lock().put(buffer.into());
            return None;
        }
        shared.count_read(bytes);
        Some(Content::Bytes(buffer.into()))
    }

    /// Gives an answer, and waits until there is room for it; `None` if nobody wants one any more.
    fn answer(&self, told: Told) -> Option<()> {
        self.tell.send(told).ok()?;
        (self.shared.wake)();
        Some(())
    }
}

fn given(number: u64, kind: PartKind, index: usize, content: Content) -> Told {
    Told::Part(Given { number, kind, index, content, from_host: false })
}

/// A block in a file that the system holds in memory.
struct HeldBlock {
    shared: Arc<Shared>,
    to_write: Sender<Write>,
    part: Part,
    held: Held,
}

impl InPlace for HeldBlock {
    fn bytes(&self) -> usize {
        self.held.bytes()
    }

    fn fill(&self, at: usize, to: &mut [u8]) {
        self.held.fill(at, to);
    }

    fn end(self: Box<Self>) -> bool {
        let HeldBlock { shared, to_write, part, held } = *self;
        match held.check() {
            Ok(()) => {
                shared.count_read(held.bytes());
                return true;
            }
            // Memory is short. What comes next is computed.
            Err(Unread::Forgotten) => {}
            Err(Unread::Damaged) => {
                shared.is_here(Err(Missing::Damaged));
                // Removing a file may wait for the disk.
                let _ = to_write.send(Write::Forget(part));
            }
        }
        false
    }
}

impl fmt::Debug for Disk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Disk").field("folder", &self.shared.folder).finish_non_exhaustive()
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use std::fs;
    use std::os::unix::fs::FileExt;

    use rustix::fs::{Advice, fadvise};

    use super::super::entry::HEADER;
    use super::*;
    use crate::schedule::parts;

    const BYTES: CacheBytes = CacheBytes { block: 3 * READ + 500, window: 0, state: 0, piece: 1024 };

    /// A folder with one block, its file, and its bytes.
    fn block() -> (tempfile::TempDir, Folder, Part, std::path::PathBuf, Vec<u8>) {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("cache");
        let config = CacheFolder { path, bytes: 1 << 30, identity: [7; 32], about: String::new() };
        let folder = Folder::open(&config, BYTES.piece).unwrap();
        let text: Vec<u32> = (0..64).collect();
        let part = parts(&[7; 32], 0, &text, PartKind::Block).next().unwrap();
        let bytes: Vec<u8> = (0..BYTES.block).map(|i| (i * i % 251) as u8).collect();
        folder.write(&part, &bytes, SystemTime::now()).unwrap();
        let file = super::super::folder::stored(&config.path).unwrap().remove(0).path;
        (place, folder, part, file, bytes)
    }

    /// Whether the file system can read without waiting, as the system itself says; else no block of it is held.
    fn can_hold(path: &std::path::Path) -> bool {
        let file = fs::File::open(path).unwrap();
        let flags = rustix::io::ReadWriteFlags::NOWAIT;
        let read = rustix::io::preadv2(&file, &mut [std::io::IoSliceMut::new(&mut [0])], 0, flags);
        read != Err(rustix::io::Errno::OPNOTSUPP)
    }

    /// Reads a block as several threads would, the later pieces first, after `between` has changed its file.
    fn held(folder: &Folder, part: &Part, between: impl FnOnce()) -> (Result<(), Unread>, Vec<u8>) {
        let held = folder.hold(part, BYTES.block, &mut vec![0; READ], SystemTime::now()).unwrap().unwrap();
        between();
        let mut to = vec![1; BYTES.block];
        for (index, piece) in to.chunks_mut(2 * BYTES.piece).enumerate().rev() {
            held.fill(index * 2 * BYTES.piece, piece);
        }
        (held.check(), to)
    }

    #[test]
    fn a_block_that_is_read_in_place_is_whole_or_not_used() {
        let (_place, folder, part, path, bytes) = block();
        if !can_hold(&path) {
            let held = folder.hold(&part, BYTES.block, &mut vec![0; READ], SystemTime::now());
            assert!(held.unwrap().is_none());
            return;
        }
        let (checked, read) = held(&folder, &part, || {});
        assert!(checked.is_ok() && read == bytes, "{checked:?}");
        let whole = fs::read(&path).unwrap();
        for at in [512, 512 + 1024, whole.len() / 2, whole.len() - 1] {
            let mut other = whole.clone();
            other[at] ^= 1;
            let damage = || fs::write(&path, &other).unwrap();
            assert!(matches!(held(&folder, &part, damage), (Err(Unread::Damaged), _)), "byte {at}");
            fs::write(&path, &whole).unwrap();
            let cut = || fs::write(&path, &whole[..at]).unwrap();
            assert!(matches!(held(&folder, &part, cut), (Err(Unread::Damaged), _)), "{at} bytes");
            fs::write(&path, &whole).unwrap();
        }
        let held = folder.hold(&part, BYTES.block, &mut vec![0; READ], SystemTime::now()).unwrap().unwrap();
        let mut to = vec![0; BYTES.block - 1024];
        held.fill(0, &mut to);
        assert!(held.check().is_err(), "the last piece was not read");
    }

    /// Where the system does not forget, as in a folder in memory, all of it is read.
    #[test]
    fn a_block_that_the_system_has_forgotten_is_not_waited_for_and_read_again_later() {
        let (_place, folder, part, path, bytes) = block();
        if !can_hold(&path) {
            return;
        }
        let forget = || {
            // What is on its way from the disk or to it is not forgotten.
            fs::read(&path).unwrap();
            let file = fs::File::open(&path).unwrap();
            file.sync_all().unwrap();
            fadvise(&file, 0, None, Advice::DontNeed).unwrap();
        };
        match held(&folder, &part, forget) {
            (Ok(()), read) => assert!(read == bytes),
            (Err(unread), _) => assert!(matches!(unread, Unread::Forgotten), "{unread:?}"),
        }
        forget();
        let (checked, read) = held(&folder, &part, || {});
        assert!(checked.is_ok() && read == bytes, "{checked:?}");
        // Single pages are held, as a quick disk leaves them after the system was asked for single bytes.
        forget();
        let file = fs::File::open(&path).unwrap();
        fadvise(&file, 0, None, Advice::Random).unwrap();
        for at in (0..BYTES.block).step_by(READ).flat_map(|start| [start, BYTES.block.min(start + READ) - 1])
        {
            file.read_exact_at(&mut [0], (HEADER + at) as u64).unwrap();
        }
        let (checked, read) = held(&folder, &part, || {});
        assert!(checked.is_ok() && read == bytes, "{checked:?}");
    }
}
