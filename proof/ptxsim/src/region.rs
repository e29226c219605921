//! A range of memory that records which bytes have been written and by whom they were accessed: a global allocation, or
//! the shared memory of a block.

use std::ops::Range;

use crate::error::{FaultKind, Space};
use crate::race::{Kind, Shadow, Stamp, Who};

/// Why an instruction cannot be executed. In a race, the other access is still a stamp.
#[derive(Debug)]
pub(crate) enum Trap {
    Kind(FaultKind),
    Race { space: Space, address: u64, with: Stamp },
}

impl From<FaultKind> for Trap {
    fn from(kind: FaultKind) -> Trap {
        Trap::Kind(kind)
    }
}

pub(crate) struct Region {
    space: Space,
    base: u64,
    data: Vec<u8>,
    /// For each word, a bit for each byte: low nibble written, high nibble awaiting a `cp.async`.
    state: Vec<u8>,
    /// 15 if all bytes count as written, else 0.
    written: u8,
    /// Whether kernels write what others read here, so that even what the host wrote is not read early.
    produced: bool,
    /// Offsets that do not exist.
    gaps: Vec<Range<usize>>,
    shadow: Shadow,
}

impl Region {
    pub(crate) fn new(space: Space, base: u64, len: usize) -> Region {
        let words = len.div_ceil(4);
        Region {
            space,
            base,
            data: vec![0; len],
            state: vec![0; words],
            written: 0,
            produced: false,
            gaps: Vec::new(),
            shadow: Shadow::new(words),
        }
    }

    /// The same region in which these offsets do not exist.
    pub(crate) fn without(mut self, gaps: &[Range<usize>]) -> Region {
        self.gaps = gaps.to_vec();
        self
    }

    /// All bytes count as written, with zeros.
    pub(crate) fn zeroed(&mut self) {
        self.written = 15;
    }

    /// Kernels write here what others read.
    pub(crate) fn produced(&mut self) {
        self.produced = true;
    }

    /// Forgets all accesses, when block numbers start over.
    pub(crate) fn forget_accesses(&mut self) {
        self.shadow = Shadow::new(self.state.len());
    }

    /// Offset of `len` bytes at `address`, if they are within the region.
    pub(crate) fn offset(&self, address: u64, len: usize) -> Option<usize> {
        let offset = usize::try_from(address.checked_sub(self.base)?).ok()?;
        let end = offset.checked_add(len)?;
        let exists =
            end <= self.data.len() && !self.gaps.iter().any(|gap| offset < gap.end && gap.start < end);
        exists.then_some(offset)
    }

    pub(crate) fn check_aligned(&self, address: u64, size: usize) -> Result<(), Trap> {
        let aligned = address.is_multiple_of(size as u64);
        if aligned { Ok(()) } else { Err(FaultKind::Misaligned { space: self.space, address, size }.into()) }
    }

    /// Offset for a kernel's access, which must be in bounds and aligned.
    fn locate(&self, address: u64, size: usize) -> Result<usize, Trap> {
        self.check_aligned(address, size)?;
        self.offset(address, size).ok_or(FaultKind::OutOfBounds { space: self.space, address, size }.into())
    }

    /// Reads `size` bytes as a little-endian number.
    pub(crate) fn read(
        &mut self,
        address: u64,
        size: usize,
        kind: Kind,
        who: &mut Who<'_>,
    ) -> Result<u128, Trap> {
        let at = self.locate(address, size)?;
        for (word, mask) in words(at, size) {
            let state = self.state[word] | self.written;
            if state & (mask | mask << 4) != mask {
                return Err(self.unreadable(word, mask));
            }
            self.touch(word, mask, kind, who)?;
        }
        Ok(self.value(at, size))
    }

    pub(crate) fn write(
        &mut self,
        address: u64,
        size: usize,
        value: u128,
        kind: Kind,
        who: &mut Who<'_>,
    ) -> Result<(), Trap> {
        let at = self.locate(address, size)?;
        for (word, mask) in words(at, size) {
            self.refuse_in_flight(word, mask)?;
            self.touch(word, mask, kind, who)?;
            self.state[word] |= mask;
        }
        self.data[at..at + size].copy_from_slice(&value.to_le_bytes()[..size]);
        Ok(())
    }

    /// Read-modify-write; returns the old value.
    pub(crate) fn update(
        &mut self,
        address: u64,
        size: usize,
        kind: Kind,
        who: &mut Who<'_>,
        f: impl Fn(u64) -> u64,
    ) -> Result<u64, Trap> {
        let old = self.read(address, size, kind, who)? as u64;
        let at = self.locate(address, size)?;
        self.data[at..at + size].copy_from_slice(&f(old).to_le_bytes()[..size]);
        Ok(old)
    }

    /// Issues a `cp.async` to these bytes, which must not be accessed until it is waited for.
    pub(crate) fn begin_copy(&mut self, address: u64, size: usize, who: &mut Who<'_>) -> Result<(), Trap> {
        let at = self.locate(address, size)?;
        for (word, mask) in words(at, size) {
            self.refuse_in_flight(word, mask)?;
            self.touch(word, mask, Kind::WRITE, who)?;
            self.state[word] |= mask << 4;
        }
        Ok(())
    }

    /// Completes a `cp.async`: its data arrives.
    pub(crate) fn end_copy(
        &mut self,
        address: u64,
        size: usize,
        value: u128,
        who: &mut Who<'_>,
    ) -> Result<(), Trap> {
        let at = self.locate(address, size)?;
        for (word, mask) in words(at, size) {
            self.state[word] &= !(mask << 4);
        }
        self.write(address, size, value, Kind::WRITE, who)
    }

    /// Reads the bytes without any checks or records except for bounds.
    pub(crate) fn peek(&self, address: u64, size: usize) -> Result<u128, Trap> {
        let at = self.offset(address, size);
        let at = at.ok_or(FaultKind::OutOfBounds { space: self.space, address, size })?;
        Ok(self.value(at, size))
    }

    pub(crate) fn host_read(&self, at: usize, len: usize) -> Result<&[u8], usize> {
        match (at..at + len).find(|byte| (self.state[byte / 4] | self.written) >> (byte % 4) & 1 == 0) {
            Some(unwritten) => Err(unwritten),
            None => Ok(&self.data[at..at + len]),
        }
    }

    pub(crate) fn host_write(&mut self, at: usize, bytes: &[u8]) {
        self.data[at..at + bytes.len()].copy_from_slice(bytes);
        (at..at + bytes.len()).for_each(|byte| self.state[byte / 4] |= 1 << (byte % 4));
        (at.div_ceil(4)..(at + bytes.len()) / 4).for_each(|word| self.shadow.forget(word));
    }

    fn value(&self, at: usize, size: usize) -> u128 {
        let mut bytes = [0; 16];
        bytes[..size].copy_from_slice(&self.data[at..at + size]);
        u128::from_le_bytes(bytes)
    }

    #[inline]
    fn touch(&mut self, word: usize, mask: u8, kind: Kind, who: &mut Who<'_>) -> Result<(), Trap> {
        let address = self.base + 4 * word as u64;
        let kind = if who.early { self.early(address, kind)? } else { kind };
        self.shadow.touch(word, mask, kind, who).map_err(|with| Trap::Race {
            space: self.space,
            address,
            with,
        })
    }

    /// An access before earlier launches have ended: only a read of what none of them writes.
    fn early(&self, address: u64, kind: Kind) -> Result<Kind, Trap> {
        match kind {
            Kind::READ | Kind::PROMISE if !self.produced => Ok(Kind::PROMISE),
            Kind::READ | Kind::PROMISE => Err(FaultKind::EarlyRead { address }.into()),
            _ => Err(FaultKind::EarlyWrite { address }.into()),
        }
    }

    fn refuse_in_flight(&self, word: usize, mask: u8) -> Result<(), Trap> {
        if self.state[word] >> 4 & mask != 0 { Err(self.unreadable(word, mask)) } else { Ok(()) }
    }

    #[cold]
    fn unreadable(&self, word: usize, mask: u8) -> Trap {
        let state = self.state[word];
        let address = |bytes: u8| self.base + 4 * word as u64 + u64::from(bytes.trailing_zeros());
        if state >> 4 & mask != 0 {
            return FaultKind::InFlight { address: address(state >> 4 & mask) }.into();
        }
        FaultKind::UninitialisedMemory { space: self.space, address: address(!state & mask) }.into()
    }
}

/// The words of an access, with the mask of bytes that it covers in each.
fn words(at: usize, size: usize) -> impl Iterator<Item = (usize, u8)> {
    let mask = if size < 4 { ((1 << size) - 1) << (at % 4) } else { 15 };
    (at / 4..(at + size).div_ceil(4)).map(move |word| (word, mask))
}
