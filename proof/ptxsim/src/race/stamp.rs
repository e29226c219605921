//! An access in 63 bits: block, time, warp, lane, kind. Zero is no access; bit 63 is for the tables' tags.

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Kind(u64);

impl Kind {
    pub(crate) const READ: Kind = Kind(0);
    pub(crate) const WRITE: Kind = Kind(1);
    /// A read with the promise that nothing writes this memory while the kernel runs (`ld.global.nc`).
    pub(crate) const PROMISE: Kind = Kind(4);
    /// An atomic access, which also writes.
    pub(crate) const UPDATE: Kind = Kind(1 | Kind::ATOMIC);
    const ATOMIC: u64 = 2;
}

/// In place of a lane: several lanes of the warp.
pub(crate) const ANY_LANE: usize = 32;

const CLOCK_BITS: u32 = 25;
/// Limit of block numbers, which count through the life of a memory.
pub(crate) const MAX_SERIAL: u32 = 1 << 24;
/// Maximum number of synchronisations in a block, far beyond the step limit of any test.
pub(crate) const MAX_CLOCK: u32 = 1 << CLOCK_BITS;

/// An access; see the module.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Stamp(pub(super) u64);

impl Stamp {
    pub(crate) fn new(serial: u32, clock: u32, warp: usize, lane: usize, kind: Kind) -> Stamp {
        let place = u64::from(serial) << (CLOCK_BITS + 14) | u64::from(clock) << 14;
        Stamp(place | (warp as u64) << 9 | (lane as u64) << 3 | kind.0)
    }

    pub(crate) fn serial(self) -> u32 {
        (self.0 >> (CLOCK_BITS + 14)) as u32
    }

    pub(crate) fn clock(self) -> u32 {
        (self.0 >> 14) as u32 & (MAX_CLOCK - 1)
    }

    pub(crate) fn warp(self) -> usize {
        (self.0 >> 9) as usize & 31
    }

    pub(crate) fn lane(self) -> usize {
        (self.0 >> 3) as usize & 63
    }

    pub(crate) fn kind(self) -> Kind {
        Kind(self.0 & 7)
    }

    pub(crate) fn is_write(self) -> bool {
        self.0 & Kind::WRITE.0 != 0
    }

    pub(crate) fn is_atomic(self) -> bool {
        self.0 & Kind::ATOMIC != 0
    }

    pub(crate) fn is_promise(self) -> bool {
        self.kind() == Kind::PROMISE
    }

    /// Atomics never race with each other.
    pub(crate) fn is_compatible(self, other: Stamp) -> bool {
        self.is_atomic() && other.is_atomic()
    }

    pub(crate) fn describe(self) -> &'static str {
        match self.kind() {
            Kind::PROMISE => "read-only access",
            Kind::READ => "read",
            Kind::WRITE => "write",
            _ => "atomic update",
        }
    }
}
