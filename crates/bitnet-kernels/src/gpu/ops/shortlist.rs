//! Launches the shortlist of a dense output head: int8 planes of its input, bounds of all logits, and the exact logits
//! of the rows that bounds leave. `docs/dev/kernels.md` has the bound.

use crate::{
    Edits, Wanted,
    gpu::{
        Arg, Dense, Driver, Gpu, GpuError, Rows, Table,
        layout::{HeadCopy, ShortlistBuffers, panels, rescore_bytes},
        table::{BOUNDS_T4, BOUNDS_T16, BOUNDS_T32, BOUNDS_T64, PLANES, RESCORE},
        upload::Upload,
    },
};

use super::{addresses, head::assert_head, race::racing, tile::Tile, words};

/// The kernels of bounds for few tokens, by number of tokens.
static FEW: [Tile; 2] =
    [Tile { kernel: &BOUNDS_T4, rows: 64, tokens: 4 }, Tile { kernel: &BOUNDS_T16, rows: 128, tokens: 16 }];
/// The kernel for more, and the one that takes its place where a block has little shared memory.
static MANY: Tile = Tile { kernel: &BOUNDS_T64, rows: 256, tokens: 64 };
static MANY_IN_LITTLE: Tile = Tile { kernel: &BOUNDS_T32, rows: 128, tokens: 32 };

/// Number of maxima from which the kernel chooses a threshold, as its text says.
const MAXIMA: usize = 1024;
/// There are at least this many maxima for each logit that is needed; fewer would rule out too little.
const SPARE: usize = 8;
/// Blocks of [`RESCORE`] that a multiprocessor takes at once.
const RESIDENT: usize = 3;
/// Columns of a block are a multiple of this, which keeps all its threads busy.
const COLUMNS: usize = 512;

impl<D: Driver> Gpu<D> {
    /// Returns the kernel for more tokens than [`FEW`] take.
    fn many(&self) -> &'static Tile {
        if MANY.kernel.dynamic > self.driver.info().shared { &MANY_IN_LITTLE } else { &MANY }
    }

    /// The most rows of a step for which bounds cost less than all logits: those of one tile. Of several, each multiplies
    /// twice as many bytes as the head's kernel for them.
    pub(in crate::gpu) fn most_bounded(&self) -> usize {
        self.many().tokens
    }

    /// Whether bounds find the logits that are needed, or those that can decide a race, with less work than computing all of
    /// them. If one row needs all logits, the others cost little more.
    pub(super) fn can_shortlist(&self, vocab: usize, wanted: &[Wanted]) -> bool {
        let maxima = panels(vocab).min(MAXIMA);
        wanted.len() <= self.most_bounded()
            && wanted
                .iter()
                .all(|w| racing(w).is_some() || SPARE.saturating_mul(w.highest().max(1)) <= maxima)
    }

    /// Computes the logits of each row of `x` that may be among the highest that `wanted` needs, or that may decide its race,
    /// with a table's copy; all others are negative infinity. `out` is as for [`Gpu::head`]. Changes move bounds but not
    /// the logits that take their place.
    pub(super) fn shortlisted_logits(
        &mut self,
        x: &Rows,
        table: (&Dense, &HeadCopy),
        wanted: &[Wanted],
        edits: Edits<'_>,
        out: &mut Rows,
    ) -> Result<(), GpuError> {
        let shortlist = self.shortlist(wanted.len())?;
        let races = wanted.iter().filter(|wanted| racing(wanted).is_some()).count();
        let bound = self.bound(wanted.len(), x, table, &shortlist, out);
        let made = bound.and_then(|()| {
            if races == 0 {
                return Ok(());
            }
            self.edit(wanted, edits, out)?;
            self.rule_out(wanted, edits, table.1, &shortlist, out)
        });
        let made = made.and_then(|()| self.rescore_dense(x, table.0, wanted, &shortlist.best, out));
        self.shortlist = Some(shortlist);
        self.head.drawn += races as u64;
        self.head.shortlisted += (wanted.len() - races) as u64;
        made
    }

    /// Sets the first `n` rows of `out` to upper bounds of their logits, and `best` to the highest lower bounds of panels.
    fn bound(
        &mut self,
        n: usize,
        x: &Rows,
        (table, copy): (&Dense, &HeadCopy),
        shortlist: &ShortlistBuffers,
        out: &Rows,
    ) -> Result<(), GpuError> {
        assert_head(n, x, [table.rows, table.cols], out);
        let ShortlistBuffers { planes, limits, best, .. } = shortlist;
        // A value differs from its planes by at most half a step of the second, which is 1/254 of the first.
        let rest = 0.51 / 254.0 * (table.cols as f32).sqrt();
        // The matrix units round after every few products; 64 more are for the few steps of a bound itself.
        let roundings = (table.stride + 64) as f32 * 2f32.powi(-22);
        let args = [
            addresses([x.address(), planes.address(), limits.address()]),
            words([x.stride, copy.stride]),
            vec![Arg::f32(rest), Arg::f32(roundings)],
        ];
        self.launch(&PLANES, [n, 1, 1], 0, &args.concat())?;
        let tile = FEW.iter().find(|tile| n <= tile.tokens).unwrap_or(self.many());
        let args = [
            addresses([copy.codes.address(), planes.address(), out.address()]),
            addresses([copy.rows.address(), limits.address(), best.address()]),
            words([table.rows, 2 * n, copy.stride, copy.stride, best.stride, out.stride]),
        ];
        let blocks = [n.div_ceil(tile.tokens), table.rows.div_ceil(tile.rows), 1];
        self.launch(tile.kernel, blocks, tile.kernel.dynamic as usize, &args.concat())
    }

    /// Replaces upper bounds in the rows of `out`, one for each of `wanted`, by logits, or by negative infinity where they
    /// are below what `wanted` needs; a race needs all that are left. `best` has the highest lower bound of each panel of 64
    /// rows of the table.
    ///
    /// # Panics
    /// If the table is ternary.
    pub fn rescore(
        &mut self,
        x: &Rows,
        table: &Table,
        wanted: &[Wanted],
        best: &Rows,
        out: &mut Rows,
    ) -> Result<(), GpuError> {
        let Table::Dense(table) = table else { panic!("only dense tables have bounds") };
        self.rescore_dense(x, table, wanted, best, out)
    }

    fn rescore_dense(
        &mut self,
        x: &Rows,
        table: &Dense,
        wanted: &[Wanted],
        best: &Rows,
        out: &Rows,
    ) -> Result<(), GpuError> {
        let n = wanted.len();
        assert_head(n, x, [table.rows, table.cols], out);
        let panels = panels(table.rows);
        assert!(panels <= best.width && n <= best.rows, "every panel must have a bound");
        let keep = wanted.iter().map(|w| if racing(w).is_some() { 0 } else { w.highest().max(1) as u32 });
        let highest = self.upload(Upload::Highest, keep)?;
        let places = RESIDENT * self.driver.info().processors as usize;
        let columns = (table.rows * n).div_ceil(places).next_multiple_of(COLUMNS);
        let args = [
            addresses([out.address(), best.address(), highest]),
            addresses([table.buffer.address(), x.address(), self.computed.address()]),
            words([table.rows, panels, columns, best.stride, out.stride, table.stride, x.stride]),
        ];
        let blocks = [table.rows.div_ceil(columns), n, 1];
        self.launch(&RESCORE, blocks, rescore_bytes(table.stride), &args.concat())
    }
}
