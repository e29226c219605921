use crate::{
    Ask, Drawn, RowsKind,
    gpu::{Driver, Gpu, GpuError, Rows, Table},
};

/// Bytes of a row's result: {u32 token, u32 status}.
pub(in crate::gpu) const DRAWN: usize = 8;

impl<D: Driver> Gpu<D> {
    /// Computes the logits of a row of `x` for each of `asks`. For a row with an ask, the GPU draws a token, and only
    /// that is read back, into `drawn`; for the others the logits are read back, `[asks][vocab]`.
    pub fn draw(
        &mut self,
        x: &Rows,
        table: &Table,
        asks: &[Option<Ask>],
        logits: &mut [f32],
        drawn: &mut [Option<Drawn>],
    ) -> Result<(), GpuError> {
        let n = asks.len();
        let [vocab, _] = table.shape();
        assert!(
            logits.len() == n * vocab && drawn.len() == n,
            "there must be logits and a token for each row"
        );
        let mut rows = self.logit_rows(n, vocab)?;
        let made = self.logits(n, x, table, &mut rows).and_then(|()| self.draw_from(&rows, asks, drawn));
        let read = made.and_then(|()| self.read_rest(&rows, asks, logits));
        self.logits = Some(rows);
        read
    }

    fn draw_from(
        &mut self,
        logits: &Rows,
        asks: &[Option<Ask>],
        drawn: &mut [Option<Drawn>],
    ) -> Result<(), GpuError> {
        let count = asks.iter().flatten().count();
        if count == 0 {
            return Ok(());
        }
        // Also draws from rows that the host reads, which is cheaper than a list of the others.
        let all: Vec<Ask> = asks.iter().map(|ask| ask.unwrap_or(Ask::GREEDY)).collect();
        let out = match self.drawn.take() {
            Some(out) if out.bytes() >= DRAWN * all.len() => out,
            _ => self.alloc(DRAWN * all.len(), "drawn tokens")?,
        };
        let launched = match all.iter().all(Ask::is_greedy) {
            true => self.argmax(all.len(), logits, out.address()),
            false => self.sample(&all, logits, out.address()),
        };
        let tokens = launched.and_then(|()| self.fetch(&out, DRAWN * all.len()));
        self.drawn = Some(out);
        for ((to, ask), &bytes) in drawn.iter_mut().zip(asks).zip(tokens?.as_chunks().0) {
            *to = ask.map(|_| Drawn::read(bytes));
        }
        self.counts.drawn += count as u64;
        Ok(())
    }

    /// Reads the rows without an ask; adjacent ones are read in one copy.
    fn read_rest(&mut self, rows: &Rows, asks: &[Option<Ask>], logits: &mut [f32]) -> Result<(), GpuError> {
        let mut row = 0;
        for stretch in asks.chunk_by(|a, b| a.is_none() == b.is_none()) {
            if stretch[0].is_none() {
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
