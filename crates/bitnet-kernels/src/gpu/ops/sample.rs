use crate::{
    Ask, RowsKind,
    gpu::{
        Arg, Driver, Gpu, GpuError, Rows,
        table::{ARGMAX, PENALISE, SAMPLE},
        upload::Upload,
    },
};

/// What changes the logit of one token before it is drawn from.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Penalty {
    /// Row of the logits.
    pub row: u32,
    /// The token.
    pub token: u32,
    /// Whether it occurs in prompt or text; then `repetition` applies.
    pub occurs: bool,
    /// Whether it must not be drawn.
    pub banned: bool,
    /// How often it was generated; at least once, and `presence` and `frequency` apply.
    pub generated: u32,
    /// Added.
    pub bias: f32,
    /// Divides the logit if positive, else multiplies it.
    pub repetition: f32,
    /// Subtracted.
    pub presence: f32,
    /// Subtracted, once for each time.
    pub frequency: f32,
}

impl<D: Driver> Gpu<D> {
    /// Applies penalties, biases and bans to logits, `[..][vocab]` f32.
    ///
    /// # Panics
    /// If a row or token is outside the logits.
    pub fn penalise(&mut self, logits: &mut Rows, penalties: &[Penalty]) -> Result<(), GpuError> {
        assert_logits(logits, 0);
        let inside = |p: &Penalty| (p.row as usize) < logits.rows && (p.token as usize) < logits.width;
        assert!(penalties.iter().all(inside), "penalties of tokens that are there");
        if penalties.is_empty() {
            return Ok(());
        }
        let words = penalties.iter().flat_map(|p| {
            let count =
                u32::from(p.occurs) << 31 | u32::from(p.banned) << 30 | p.generated.min((1 << 30) - 1);
            let floats = [p.bias, p.repetition, p.presence, p.frequency].map(f32::to_bits);
            [p.row, p.token, count, floats[0], floats[1], floats[2], floats[3], 0]
        });
        let entries = self.upload(Upload::Penalties, words)?;
        self.launch(
            &PENALISE,
            [penalties.len().div_ceil(PENALISE.block as usize), 1, 1],
            0,
            &[
                Arg::U64(logits.address()),
                Arg::U64(entries),
                Arg::U32(penalties.len() as u32),
                Arg::U32(logits.stride as u32),
            ],
        )
    }

    /// The most likely token of each of the first `n` rows of logits, the lowest id among equals, into `drawn`
    /// (`{u32 token, u32 status}` each, at this address).
    pub fn argmax(&mut self, n: usize, logits: &Rows, drawn: u64) -> Result<(), GpuError> {
        assert_logits(logits, n);
        let args = [
            Arg::U64(logits.address()),
            Arg::U64(drawn),
            Arg::U32(logits.width as u32),
            Arg::U32(logits.stride as u32),
        ];
        self.launch(&ARGMAX, [n, 1, 1], 0, &args)
    }

    /// Draws from each row of logits what its `ask` says, as [`Gpu::argmax`].
    ///
    /// # Panics
    /// If the vocabulary has 2^24 tokens or more, or an ask's `top_p` or `min_p` keeps no token.
    pub fn sample(&mut self, asks: &[Ask], logits: &Rows, drawn: u64) -> Result<(), GpuError> {
        assert_logits(logits, asks.len());
        assert!(logits.width < 1 << 24, "ids of 24 bits");
        let sound = |ask: &Ask| ask.top_p > 0.0 && (0.0..=1.0).contains(&ask.min_p);
        assert!(asks.iter().all(sound), "the most likely token is always kept");
        let words = asks.iter().flat_map(|a| {
            let [temperature, top_p, min_p] = [a.temperature, a.top_p, a.min_p].map(f32::to_bits);
            let (low, high) = (a.seed as u32, (a.seed >> 32) as u32);
            [temperature, a.top_k, top_p, min_p, low, high, a.choice, a.position]
        });
        let asks_at = self.upload(Upload::Asks, words)?;
        let args = [
            Arg::U64(logits.address()),
            Arg::U64(asks_at),
            Arg::U64(drawn),
            Arg::U32(logits.width as u32),
            Arg::U32(logits.stride as u32),
        ];
        self.launch(&SAMPLE, [asks.len(), 1, 1], 0, &args)
    }
}

fn assert_logits(logits: &Rows, n: usize) {
    assert!(logits.kind == RowsKind::Residual && n <= logits.rows, "logits are f32, a row each");
}
