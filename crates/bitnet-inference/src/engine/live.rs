//! The requests that the scheduler works on, with what the engine's thread knows of each.

use std::hash::Hasher;
use std::time::Instant;

use super::ticket::Ticket;

/// A request in the scheduler.
pub(super) struct Live {
    pub ticket: Ticket,
    pub at: Instant,
    pub choices: Vec<Progress>,
    /// The logits or the hidden state, if requested instead of tokens.
    pub logits: Option<Vec<f32>>,
    /// Number of choices that have not ended.
    pub open: usize,
}

#[derive(Clone)]
pub(super) struct Progress {
    /// Whether the choice is still counted in the queue.
    pub queued: bool,
    /// Time of its last token.
    pub last: Option<Instant>,
}

impl Live {
    /// Removes a choice from the queue, when it gets a place or ends without one.
    pub fn leave_queue(&mut self, choice: u32) {
        if std::mem::take(&mut self.choices[choice as usize].queued) {
            self.ticket.leave_queue(1);
        }
    }
}

/// Hashes the engine's ids of requests, which count up from 0, so that nobody can choose them to collide.
#[derive(Default)]
pub(super) struct IdHasher(u64);

impl Hasher for IdHasher {
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|&byte| self.write_u64(self.0 ^ u64::from(byte)));
    }

    fn write_u64(&mut self, id: u64) {
        // The table takes the lowest and the highest bits.
        self.0 = id.wrapping_mul(0x9E37_79B9_7F4A_7C15);
    }

    fn finish(&self) -> u64 {
        self.0
    }
}
