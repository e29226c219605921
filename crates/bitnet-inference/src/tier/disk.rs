//! A [`Shelf`] in a folder, with a thread that writes and one that reads; while a text is read, another helps it.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::thread::{Builder, scope};
use std::time::{Duration, Instant, SystemTime};

use bitnet_model::CacheBytes;
use crossbeam_channel::{Receiver, Sender, bounded, unbounded};
use parking_lot::Mutex;

use super::folder::{CacheFolder, Folder, FolderError, Missing};
use super::shelf::{Given, PartBytes, Shelf, ShelfCounts, Spare, Told, Wake};
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
}

enum Write {
    Keep(Part, PartBytes),
    Forget(Part),
    Flush(Sender<()>),
}

impl Disk {
    /// Opens a folder and starts its threads. `wake` is called after each answer.
    ///
    /// # Errors
    /// If the folder cannot be used, or a thread cannot be started.
    pub fn open(config: &CacheFolder, bytes: CacheBytes, wake: Wake) -> Result<Disk, FolderError> {
        let folder = Folder::open(config)?;
        let ahead = (READ_AHEAD / bytes.block.max(1)).clamp(1, 256);
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
        });
        let writer = Writer { shared: Arc::clone(&shared), tell: tell_written, since: 0, resume: None };
        let reader = Reader { shared: Arc::clone(&shared), looks, tell };
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
                let bytes = if theirs { others.recv().ok().flatten() } else { self.read(part, now) };
                let Some(bytes) = bytes.filter(|_| goes_on()) else { break };
                self.answer(given(number, PartKind::Block, reached, bytes))?;
                reached += 1;
            }
            Some(())
        })?;
        while wish.needs_state && reached > wish.usable && goes_on() {
            let index = reached - 1;
            if let Some(bytes) = self.read(&wish.parts[index].state(), now) {
                self.answer(given(number, PartKind::State, index, bytes))?;
                break;
            }
            reached = index;
        }
        self.shared.counts.lock().read_micros += begun.elapsed().as_micros() as u64;
        self.answer(Told::End { number })
    }

    fn read(&self, part: &Part, now: SystemTime) -> Option<PartBytes> {
        let mut buffer = self.shared.spare.lock().take(self.shared.bytes.of(part.kind.place(0)));
        if !self.shared.is_here(self.shared.folder.read(part, &mut buffer, now)) {
            self.shared.spare.lock().put(buffer.into());
            return None;
        }
        let mut counts = self.shared.counts.lock();
        counts.read_parts += 1;
        counts.read_bytes += buffer.len() as u64;
        Some(buffer.into())
    }

    /// Gives an answer, and waits until there is room for it; `None` if nobody wants one any more.
    fn answer(&self, told: Told) -> Option<()> {
        self.tell.send(told).ok()?;
        (self.shared.wake)();
        Some(())
    }
}

fn given(number: u64, kind: PartKind, index: usize, bytes: PartBytes) -> Told {
    Told::Part(Given { number, kind, index, bytes, from_host: false })
}

impl fmt::Debug for Disk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Disk").field("folder", &self.shared.folder).finish_non_exhaustive()
    }
}
