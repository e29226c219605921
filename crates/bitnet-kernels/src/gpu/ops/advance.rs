use crate::gpu::{Arg, Driver, Gpu, GpuError, table::ADVANCE};

/// Addresses of what a decode step reads and [`Gpu::advance`] writes, one u32 a sequence unless stated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Steps {
    /// `{u32 token, u32 status}` a sequence: what the step drew.
    pub drawn: u64,
    /// Tokens of the step.
    pub tokens: u64,
    /// Their positions.
    pub positions: u64,
    /// Their places in the cache, `64 * block + slot`.
    pub slots: u64,
    /// Where each sequence's blocks begin in `blocks`.
    pub firsts: u64,
    /// Block tables of all sequences, long enough for the positions to come.
    pub blocks: u64,
    /// `[sequences][ring]` tokens by position.
    pub history: u64,
    /// Places of a sequence in `history`.
    pub ring: usize,
}

impl<D: Driver> Gpu<D> {
    /// Makes the inputs of the next decode step of `n` sequences of what this one drew, without the host.
    pub fn advance(&mut self, n: usize, steps: &Steps) -> Result<(), GpuError> {
        assert!(steps.ring > 0, "the history holds a token");
        let addresses = [
            steps.drawn,
            steps.tokens,
            steps.positions,
            steps.slots,
            steps.firsts,
            steps.blocks,
            steps.history,
        ];
        let mut args: Vec<Arg> = addresses.map(Arg::U64).to_vec();
        args.extend([Arg::U32(n as u32), Arg::U32(steps.ring as u32)]);
        self.launch(&ADVANCE, [n.div_ceil(ADVANCE.block as usize), 1, 1], 0, &args)
    }
}
