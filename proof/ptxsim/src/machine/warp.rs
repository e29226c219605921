//! A warp: its registers, its pending copies, and the strands that its threads have split into.
//!
//! Threads at the same instruction move together as a *strand*. If there are several, the one furthest back runs, so
//! that strands meet again where their paths do. From time to time another one runs, so that a strand that waits for
//! one behind it is served. Strands that meet become one.

use crate::inst::{Entry, Lanes, WARP};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Wait {
    Ready,
    /// Waits for more lanes of the warp.
    Converge,
    /// Waits for other warps; only a whole warp waits this way.
    Barrier,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Strand {
    pub(super) pc: usize,
    pub(super) mask: u32,
    pub(super) wait: Wait,
}

/// The copies of an instruction, for each lane.
pub(super) struct Copy {
    /// Lanes whose copy is still pending.
    pub(super) mask: u32,
    pub(super) src: Lanes,
    pub(super) src_size: Lanes,
    pub(super) dst: Lanes,
    /// Contents of the source at the issue.
    pub(super) value: [u128; WARP],
    /// The group of the copy, counted for each lane.
    pub(super) group: [u32; WARP],
}

#[derive(Default)]
pub(super) struct Copies {
    pub(super) pending: Vec<Copy>,
    /// Groups committed so far.
    pub(super) groups: [u32; WARP],
}

impl Copies {
    pub(super) fn commit(&mut self, mask: u32) {
        lanes(mask).for_each(|lane| self.groups[lane] += 1);
    }
}

pub(super) struct Warp {
    pub(super) index: usize,
    pub(super) regs: Vec<Lanes>,
    /// For each register, the lanes in which it is set.
    pub(super) regs_set: Vec<u32>,
    /// For each predicate, the lanes in which it is true.
    pub(super) preds: Vec<u32>,
    pub(super) preds_set: Vec<u32>,
    /// Lanes that exist in this warp, given the block's shape.
    pub(super) exist: u32,
    /// Lanes that have waited for earlier launches.
    pub(super) waited: u32,
    /// Lanes that have not exited.
    pub(super) live: u32,
    pub(super) strands: Vec<Strand>,
    pub(super) steps: u64,
    pub(super) copies: Copies,
}

impl Warp {
    pub(super) fn new(index: usize, entry: &Entry, threads: usize) -> Warp {
        let lanes = (threads - index * WARP).min(WARP) as u32;
        let exist = u32::MAX >> (32 - lanes);
        Warp {
            index,
            regs: vec![[0; WARP]; entry.regs.len()],
            regs_set: vec![0; entry.regs.len()],
            preds: vec![0; entry.preds.len()],
            preds_set: vec![0; entry.preds.len()],
            exist,
            waited: 0,
            live: exist,
            strands: vec![Strand { pc: 0, mask: exist, wait: Wait::Ready }],
            steps: 0,
            copies: Copies::default(),
        }
    }

    /// The strand to run next, if one can.
    #[inline]
    pub(super) fn pick(&self) -> Option<usize> {
        if let [only] = &self.strands[..] {
            return (only.wait == Wait::Ready).then_some(0);
        }
        let ready = (0..self.strands.len()).filter(|&i| self.strands[i].wait == Wait::Ready);
        let pc = |&i: &usize| self.strands[i].pc;
        // One step in sixteen runs the strand furthest ahead.
        if self.steps % 4096 < 3840 { ready.min_by_key(pc) } else { ready.max_by_key(pc) }
    }

    /// Joins strands that are at the same instruction.
    pub(super) fn merge(&mut self) {
        let mut i = 0;
        while i < self.strands.len() {
            let mut j = i + 1;
            while j < self.strands.len() {
                if self.strands[i].pc == self.strands[j].pc {
                    let other = self.strands.swap_remove(j);
                    self.strands[i].mask |= other.mask;
                    self.strands[i].wait = Wait::Ready;
                } else {
                    j += 1;
                }
            }
            i += 1;
        }
    }

    /// The lanes of `mask` exit; strands that wait for them check again.
    pub(super) fn exit(&mut self, strand: usize, mask: u32) {
        self.live &= !mask;
        self.strands[strand].mask &= !mask;
        self.strands[strand].pc += 1;
        self.strands.retain(|strand| strand.mask != 0);
        for strand in &mut self.strands {
            strand.wait = Wait::Ready;
        }
    }

    pub(super) fn set_pred(&mut self, index: u16, lanes: u32, value: u32) {
        let pred = &mut self.preds[usize::from(index)];
        *pred = (*pred & !lanes) | (value & lanes);
        self.preds_set[usize::from(index)] |= lanes;
    }
}

/// The lanes of a mask, in order.
pub(super) fn lanes(mask: u32) -> impl Iterator<Item = usize> + Clone {
    let mut left = mask;
    std::iter::from_fn(move || {
        let lane = left.trailing_zeros() as usize;
        left &= left.wrapping_sub(1);
        (lane < WARP).then_some(lane)
    })
}
