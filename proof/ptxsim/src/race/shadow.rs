//! The recorded accesses to each word of a region.

use super::Who;
use super::sets::{ReadSets, Reads};
use super::stamp::{Kind, Stamp};

/// Tag in place of a word's last write: its bytes are recorded separately, at this index.
const SPLIT: u64 = 1 << 63;

#[derive(Debug, Clone, Copy, Default)]
struct Cell {
    /// Stamp of the last write, or 0.
    write: u64,
    /// Accesses since then.
    reads: Reads,
}

/// Two flat arrays, zeroed lazily by the system, so that untouched memory costs nothing.
#[derive(Default)]
pub(crate) struct Shadow {
    writes: Vec<u64>,
    reads: Vec<Reads>,
    bytes: Vec<[Cell; 4]>,
    free: Vec<usize>,
}

impl Shadow {
    pub(crate) fn new(words: usize) -> Shadow {
        Shadow { writes: vec![0; words], reads: vec![0; words], ..Shadow::default() }
    }

    /// Records an access to the bytes `mask` of `word`; the error is the earlier access that it races with.
    pub(crate) fn touch(
        &mut self,
        word: usize,
        mask: u8,
        kind: Kind,
        who: &mut Who<'_>,
    ) -> Result<(), Stamp> {
        let new = who.clocks.stamp(who.warp, who.lane, kind);
        let write = self.writes[word];
        if write & SPLIT == 0 && mask == 15 {
            let cell = touch_cell(Cell { write, reads: self.reads[word] }, new, who)?;
            self.writes[word] = cell.write;
            self.reads[word] = cell.reads;
            return Ok(());
        }
        let split = self.split(word);
        for byte in (0..4).filter(|byte| mask >> byte & 1 == 1) {
            self.bytes[split][byte] = touch_cell(self.bytes[split][byte], new, who)?;
        }
        if mask == 15 && new.is_write() && !new.is_atomic() {
            // A single write covers the whole word again.
            self.free.push(split);
            self.writes[word] = new.0;
            self.reads[word] = 0;
        }
        Ok(())
    }

    /// Forgets accesses to this word, because the host has written it.
    pub(crate) fn forget(&mut self, word: usize) {
        let write = std::mem::take(&mut self.writes[word]);
        if write & SPLIT != 0 {
            self.free.push((write & !SPLIT) as usize);
        }
        self.reads[word] = 0;
    }

    fn split(&mut self, word: usize) -> usize {
        let write = self.writes[word];
        if write & SPLIT != 0 {
            return (write & !SPLIT) as usize;
        }
        let cells = [Cell { write, reads: self.reads[word] }; 4];
        let index = self.free.pop().unwrap_or_else(|| {
            self.bytes.push(cells);
            self.bytes.len() - 1
        });
        self.bytes[index] = cells;
        self.writes[word] = SPLIT | index as u64;
        index
    }
}

#[inline]
fn touch_cell(cell: Cell, new: Stamp, who: &mut Who<'_>) -> Result<Cell, Stamp> {
    let harmless = |old: Stamp, who: &Who<'_>| {
        if old.is_promise() || new.is_promise() {
            return who.clocks.is_past(old);
        }
        old.is_compatible(new) || who.clocks.ordered(old, who.warp, who.lane)
    };
    let last = Stamp(cell.write);
    if cell.write != 0 && (new.is_promise() || !harmless(last, who)) {
        return Err(last);
    }
    // A read must be ordered after earlier writes, a write after all earlier accesses. Atomic writes are kept among the
    // reads as well, since the last write hides them only from accesses ordered after it.
    if cell.reads != 0 && (new.is_write() || last.is_atomic()) {
        let wanted = |old: Stamp| (new.is_write() || old.is_write()) && !harmless(old, who);
        if let Some(old) = who.sets.find(cell.reads, wanted) {
            return Err(old);
        }
    }
    Ok(match (new.is_write(), new.is_atomic()) {
        (true, false) => Cell { write: new.0, reads: 0 },
        (true, true) => Cell { write: new.0, reads: ReadSets::add(cell.reads, new, who) },
        (false, _) => Cell { write: cell.write, reads: ReadSets::add(cell.reads, new, who) },
    })
}
