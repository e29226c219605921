//! Launches the draw of one token from each row of logits.

use crate::{
    RowsKind, SamplingParams,
    gpu::{
        Arg, Driver, Gpu, GpuError, Rows,
        table::{ARGMAX, SAMPLE},
        upload::Upload,
    },
};

impl<D: Driver> Gpu<D> {
    /// Finds the most likely token of each of the first `n` rows of logits, with the lowest id of equal ones, and
    /// writes it to the address `drawn`, as `{u32 token, u32 status}`.
    pub fn argmax(&mut self, n: usize, logits: &Rows, drawn: u64) -> Result<(), GpuError> {
        assert_logits(logits, n);
        let args = [
            Arg::u64(logits.address()),
            Arg::u64(drawn),
            Arg::u32(logits.width as u32),
            Arg::u32(logits.stride as u32),
        ];
        self.launch(&ARGMAX, [n, 1, 1], 0, &args)
    }

    /// Draws a token from each row of logits with its parameters; the results are as for [`Gpu::argmax`].
    ///
    /// # Panics
    /// If the vocabulary has 2^24 tokens or more, or a `top_p` or `min_p` keeps no token.
    pub fn sample(&mut self, params: &[SamplingParams], logits: &Rows, drawn: u64) -> Result<(), GpuError> {
        assert_logits(logits, params.len());
        assert!(logits.width < 1 << 24, "ids must fit 24 bits");
        let sound = |p: &SamplingParams| p.top_p > 0.0 && (0.0..=1.0).contains(&p.min_p);
        assert!(params.iter().all(sound), "the most likely token must be kept");
        let words = params.iter().flat_map(|p| {
            let [temperature, top_p, min_p] = [p.temperature, p.top_p, p.min_p].map(f32::to_bits);
            let (low, high) = (p.seed as u32, (p.seed >> 32) as u32);
            [temperature, p.top_k, top_p, min_p, low, high, p.choice, p.position]
        });
        let params_at = self.upload(Upload::Sampling, words)?;
        let args = [
            Arg::u64(logits.address()),
            Arg::u64(params_at),
            Arg::u64(drawn),
            Arg::u32(logits.width as u32),
            Arg::u32(logits.stride as u32),
        ];
        self.launch(&SAMPLE, [params.len(), 1, 1], 0, &args)
    }
}

fn assert_logits(logits: &Rows, n: usize) {
    assert!(
        logits.kind == RowsKind::Residual && n <= logits.rows,
        "logits must be f32, with a row for each token"
    );
}
