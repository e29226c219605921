//! From wanted rows to logits or tokens: decides between all logits and a shortlist, draws on the device where it can,
//! and reads the results.

use crate::{
    Drawn, Edits, RowsKind, SamplingParams, Wanted,
    gpu::{Dense, Driver, Gpu, GpuError, Rows, Table},
};

use super::edit::only_token;

/// Bytes of a row's result: {u32 token, u32 status}.
pub(in crate::gpu) const DRAWN: usize = 8;

impl<D: Driver> Gpu<D> {
    /// Computes the logits of a row of `x` for each of `wanted`, which may refer to edits of logits. If `wanted` asks for a
    /// token, the GPU makes the edits and draws it, and only the token is read back, into `drawn`. For the other rows, the
    /// logits are read back, `[wanted][vocab]`.
    pub fn logits(
        &mut self,
        x: &Rows,
        table: &Table,
        wanted: &[Wanted],
        edits: Edits<'_>,
        logits: &mut [f32],
        drawn: &mut [Option<Drawn>],
    ) -> Result<(), GpuError> {
        let n = wanted.len();
        let [vocab, _] = table.shape();
        assert!(
            logits.len() == n * vocab && drawn.len() == n,
            "there must be logits and a token for each row"
        );
        if wanted.iter().all(|wanted| only_token(wanted, edits, vocab).is_some()) {
            drawn.iter_mut().zip(wanted).for_each(|(to, wanted)| *to = only_token(wanted, edits, vocab));
            self.counts.drawn += n as u64;
            return Ok(());
        }
        let mut rows = self.logit_rows(n, vocab)?;
        let made = match table {
            Table::Dense(dense @ Dense { copy: Some(copy), .. }) if self.can_shortlist(vocab, wanted) => {
                self.shortlisted_logits(x, (dense, copy), wanted, edits, &mut rows)
            }
            _ => self.head(n, x, table, &mut rows),
        };
        let made = made.and_then(|()| self.edit(wanted, edits, &rows));
        let made = made.and_then(|()| self.draw_from(&rows, wanted, drawn));
        let read = made.and_then(|()| self.read_rest(&rows, wanted, logits));
        self.logits = Some(rows);
        read
    }

    fn draw_from(
        &mut self,
        logits: &Rows,
        wanted: &[Wanted],
        drawn: &mut [Option<Drawn>],
    ) -> Result<(), GpuError> {
        let count = wanted.iter().filter_map(Wanted::sampling).count();
        if count == 0 {
            return Ok(());
        }
        // Also draws from rows that the host reads, which is cheaper than a list of the others.
        let params: Vec<SamplingParams> =
            wanted.iter().map(|wanted| wanted.sampling().unwrap_or(SamplingParams::GREEDY)).collect();
        let tokens = self.draw_rows(&params, logits)?;
        for ((to, wanted), &bytes) in drawn.iter_mut().zip(wanted).zip(tokens.as_chunks().0) {
            *to = wanted.sampling().map(|_| Drawn::read(bytes));
        }
        self.counts.drawn += count as u64;
        Ok(())
    }

    /// Draws from the first rows of logits, and returns [`DRAWN`] bytes for each.
    pub(in crate::gpu) fn draw_rows(
        &mut self,
        params: &[SamplingParams],
        logits: &Rows,
    ) -> Result<Vec<u8>, GpuError> {
        let out = match self.drawn.take() {
            Some(out) if out.bytes() >= DRAWN * params.len() => out,
            _ => self.alloc(DRAWN * params.len(), "drawn tokens")?,
        };
        let launched = if params.iter().all(SamplingParams::is_greedy) {
            self.argmax(params.len(), logits, out.address())
        } else {
            self.sample(params, logits, out.address())
        };
        let tokens = launched.and_then(|()| self.fetch(&out, DRAWN * params.len()));
        self.drawn = Some(out);
        tokens
    }

    /// Reads back the rows whose logits are needed; adjacent rows are read in one copy.
    fn read_rest(&mut self, rows: &Rows, wanted: &[Wanted], logits: &mut [f32]) -> Result<(), GpuError> {
        let is_read = |wanted: &Wanted| wanted.sampling().is_none();
        let mut row = 0;
        for stretch in wanted.chunk_by(|a, b| is_read(a) == is_read(b)) {
            if is_read(&stretch[0]) {
                let mut bytes = vec![0; 4 * stretch.len() * rows.stride];
                self.receive(rows.address() + (4 * row * rows.stride) as u64, &mut bytes)?;
                let to = logits[row * rows.width..].chunks_exact_mut(rows.width);
                for (to, from) in to.zip(bytes.chunks_exact(4 * rows.stride)) {
                    let from = from.as_chunks().0;
                    to.iter_mut().zip(from).for_each(|(to, &from)| *to = f32::from_le_bytes(from));
                }
            }
            row += stretch.len();
        }
        Ok(())
    }

    /// Returns the buffer of logits; makes a new one only for a larger step or another vocabulary.
    fn logit_rows(&mut self, n: usize, vocab: usize) -> Result<Rows, GpuError> {
        match self.logits.take() {
            Some(rows) if rows.rows >= n && rows.width == vocab => Ok(rows),
            _ => self.rows(n, vocab, RowsKind::Residual),
        }
    }
}
