//! Logits on the CPU: all logits of a row, or only those that bounds cannot rule out.

pub(super) mod copy;

use std::{mem, sync::atomic::AtomicU64};

use bitnet_tensor::{BitNetTensor, SharedBytes};

use crate::{
    Backend, KernelError, Wanted,
    cpu::{
        Cpu, Panels, ROW_UNIT, Rows, Table, WEIGHT_UNIT,
        generic::{
            self,
            dense::{self, DenseLogits, Rescore},
            rotate::Rotation,
            shortlist::{Bounds, CopyRows, Limits},
            ternary::Output,
        },
        memory::{Buffer, Shared},
        panels::PANEL_ROWS,
        pool::share,
    },
};

pub use copy::HeadCopy;

/// Counts the work of the output head so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct HeadCounts {
    /// Rows for which all logits were computed.
    pub whole: u64,
    /// Rows whose highest logits were found by bounds.
    pub shortlisted: u64,
    /// Logits of shortlisted rows that bounds could not rule out and were computed.
    pub rescored: u64,
}

impl Cpu {
    /// Computes the logits of the first rows that `wanted` asks for, one entry for each row, using bounds where
    /// possible.
    pub(super) fn head_logits(
        &mut self,
        x: &Rows,
        table: &Table,
        wanted: &[Wanted],
        logits: &mut [f32],
    ) -> Result<(), KernelError> {
        assert!(wanted.len() <= x.rows, "the rows must fit their buffers");
        let (weights, copy) = match table {
            Table::Ternary { weights, rotation } => {
                return self.ternary_logits(wanted.len(), x, (weights, rotation.as_ref()), logits);
            }
            Table::Dense { weights, copy } => (weights, copy.as_ref()),
        };
        let mut s = mem::take(&mut self.shortlist);
        let done = self.dense_logits(&mut s, x, weights, copy, wanted, logits);
        self.shortlist = s;
        done
    }

    /// Computes logits with a dense table.
    fn dense_logits(
        &mut self,
        s: &mut ShortlistBuffers,
        x: &Rows,
        table: &BitNetTensor,
        copy: Option<&HeadCopy>,
        wanted: &[Wanted],
        logits: &mut [f32],
    ) -> Result<(), KernelError> {
        s.clear();
        let Some(copy) = copy else {
            s.whole.extend(0..wanted.len());
            return self.whole_logits(&s.whole, x, table, logits);
        };
        assert_eq!(x.width, copy.cols, "the rows must fit the table");
        s.fit(copy);
        s.reserve(wanted.len());
        self.reserve(x.stride)?;
        let stride = plane_stride(copy.cols);
        for (token, wanted) in wanted.iter().enumerate() {
            let keep = wanted.highest().max(1);
            // With few panels for the number of logits to keep, bounds rule out too little.
            let limits = (keep <= copy.panels() / 8).then(|| {
                let planes = &mut s.planes[2 * s.tokens.len() * stride..][..2 * stride];
                let x = &x.values[token * x.stride..][..x.stride];
                // SAFETY: `isa` proves the instruction set; rows, planes and scratch have the row's stride.
                unsafe { (self.isa.kernels().make_planes)(x, planes, &mut self.scratch[0]) }
            });
            match limits.flatten() {
                Some(limits) => {
                    s.limits.push(limits);
                    s.tokens.push(token);
                    s.keep.push(keep);
                }
                None => s.whole.push(token),
            }
        }
        self.shortlisted_logits(s, copy, x, table, logits)?;
        self.whole_logits(&s.whole, x, table, logits)
    }

    /// Quantises the first `n` rows and computes all their logits with a ternary table and the transform that it contains.
    fn ternary_logits(
        &mut self,
        n: usize,
        x: &Rows,
        (table, rotation): (&Panels, Option<&Rotation>),
        logits: &mut [f32],
    ) -> Result<(), KernelError> {
        assert!(
            logits.len() >= n * table.rows,
            "there must be one logit for every row of the table and token"
        );
        self.reserve_head_input(n, table.cols)?;
        let mut input = self.head_input.take().expect("reserved");
        let out = Output { values: Shared::new(logits), stride: table.rows, column: 0, add: None };
        let done = self.norm_quantize(n, x, [None, None], rotation, &mut input);
        let done = done.and_then(|()| self.multiply(n, &input, table, out));
        self.head_input = Some(input);
        self.head.whole += n as u64;
        done
    }

    /// Makes the int8 copy of a table, or returns `None` if its sums could overflow.
    ///
    /// # Errors
    /// If there is no memory for it.
    pub fn copy_head(&mut self, weights: &BitNetTensor) -> Result<Option<HeadCopy>, KernelError> {
        let (rows, cols) = (weights.rows(), weights.cols());
        if cols > copy::MAX_COLS {
            return Ok(None);
        }
        let padded = rows.next_multiple_of(PANEL_ROWS);
        let floats = || Buffer::zeroed(padded, "bounds of the output head");
        let (mut scales, mut norms, mut errors) = (floats()?, floats()?, floats()?);
        let mut codes = Buffer::zeroed(padded * cols.next_multiple_of(4), "int8 copy of the output head")?;
        let a = CopyRows {
            table: weights,
            codes: codes.shared(),
            scales: scales.shared(),
            norms: norms.shared(),
            errors: errors.shared(),
        };
        let kernel = self.isa.kernels().copy_rows;
        let panels = padded / PANEL_ROWS;
        self.parallel(panels, generic::shortlist::scratch(cols), &|part, parts, scratch| {
            for panel in share(panels, parts, part) {
                // SAFETY: `isa` proves the instruction set; every panel belongs to one part; scratch is as large as the
                // kernel needs.
                unsafe { kernel(&a, panel, scratch) }
            }
        })?;
        Ok(Some(HeadCopy { rows, cols, codes: SharedBytes::new(codes), scales, norms, errors }))
    }

    /// Gives a table its int8 copy, which is made unless one is `stored`.
    pub(super) fn set_head_copy(
        &mut self,
        table: &mut Table,
        stored: Option<HeadCopy>,
    ) -> Result<(), KernelError> {
        // An int8 copy would be larger than a ternary table itself.
        let Table::Dense { weights, copy } = table else { return Ok(()) };
        *copy = match stored {
            Some(copy) => Some(copy),
            None => self.copy_head(weights)?,
        };
        if let Some(copy) = copy {
            let shape = (weights.rows(), weights.cols());
            assert_eq!((copy.rows, copy.cols), shape, "a copy must have its table's shape");
            self.shortlist.fit(copy);
        }
        Ok(())
    }

    /// Computes all logits of some tokens.
    fn whole_logits(
        &mut self,
        tokens: &[usize],
        x: &Rows,
        table: &BitNetTensor,
        logits: &mut [f32],
    ) -> Result<(), KernelError> {
        if tokens.is_empty() {
            return Ok(());
        }
        let vocab = table.rows();
        assert!(tokens.iter().all(|&t| t < x.rows) && x.width == table.cols(), "the rows must fit the table");
        assert!(
            tokens.iter().all(|&t| (t + 1) * vocab <= logits.len()),
            "there must be one logit for every row of the table and token"
        );
        self.head.whole += tokens.len() as u64;
        let out = Shared::new(logits);
        self.dense_products(&DenseLogits {
            table,
            x: &x.values,
            stride: x.stride,
            tokens,
            out,
            out_stride: vocab,
            column: 0,
        })
    }

    /// Multiplies rows by all rows of a dense matrix.
    pub(super) fn dense_products(&mut self, a: &DenseLogits<'_>) -> Result<(), KernelError> {
        let (kernel, rows) = (self.isa.kernels().floats.logits, a.table.rows());
        let units = (a.table.bytes().len() * a.tokens.len() / WEIGHT_UNIT).min(rows);
        self.parallel(units, dense::scratch(a.table), &|part, parts, scratch| {
            // SAFETY: `isa` proves the instruction set; every row of the table belongs to one part; scratch is as large
            // as the kernel needs.
            unsafe { kernel(a, share(rows, parts, part), scratch) }
        })
    }

    /// Computes the highest logits of the tokens on the shortlist: bounds, then thresholds, then the logits not ruled
    /// out.
    fn shortlisted_logits(
        &mut self,
        s: &mut ShortlistBuffers,
        copy: &HeadCopy,
        x: &Rows,
        table: &BitNetTensor,
        logits: &mut [f32],
    ) -> Result<(), KernelError> {
        let (panels, vocab, n) = (copy.panels(), copy.rows, s.tokens.len());
        if n == 0 {
            return Ok(());
        }
        // With few tokens, memory bandwidth is the limit, so a second plane costs nothing.
        let planes = if n > 2 && s.limits.iter().all(|limits| limits.is_coarse_enough()) { 1 } else { 2 };
        let out = Shared::new(logits);
        let a = Bounds {
            copy,
            planes,
            x: &s.planes,
            stride: plane_stride(copy.cols),
            limits: &s.limits,
            tokens: &s.tokens,
            out,
            best: Shared::new(&mut s.best),
        };
        let kernel = self.isa.kernels().bounds;
        let units = (copy.codes.len() * n / WEIGHT_UNIT).min(panels);
        self.parallel(units, 0, &|part, parts, _| {
            // SAFETY: `isa` proves the instruction set; every panel belongs to one part; the planes are padded with
            // zeros to whole quads.
            unsafe { kernel(&a, share(panels, parts, part)) }
        })?;
        s.set_thresholds(panels);
        let computed = AtomicU64::new(0);
        let (tokens, stride) = (&s.tokens, x.stride);
        let dense = DenseLogits { table, x: &x.values, stride, tokens, out, out_stride: vocab, column: 0 };
        let a = Rescore { dense, thresholds: &s.thresholds, computed: &computed };
        let kernel = self.isa.kernels().floats.rescore;
        self.parallel(vocab * n / ROW_UNIT, dense::scratch(table), &|part, parts, scratch| {
            // SAFETY: `isa` proves the instruction set; every row of the table belongs to one part; scratch is as large
            // as the kernel needs.
            unsafe { kernel(&a, share(vocab, parts, part), scratch) }
        })?;
        self.head.shortlisted += n as u64;
        self.head.rescored += computed.into_inner();
        Ok(())
    }
}

/// The buffers that a step needs in addition to the copy; [`ShortlistBuffers::reserve`] grows them before the first step, so
/// that no step allocates.
#[derive(Default)]
pub(super) struct ShortlistBuffers {
    /// Sizes of the largest copy: bytes of a plane of activations, and panels.
    plane: usize,
    panels: usize,
    /// Activations as two planes of int8, `[tokens][2][stride]`.
    planes: Vec<i8>,
    /// One per token that is shortlisted.
    limits: Vec<Limits>,
    /// The row of each of these tokens.
    tokens: Vec<usize>,
    /// How many of the highest logits each of these tokens needs.
    keep: Vec<usize>,
    /// A logit that at least `keep` rows reach, one per token.
    thresholds: Vec<f32>,
    /// Rows of the tokens that need all logits.
    whole: Vec<usize>,
    /// The highest lower bound of each panel, `[tokens][panels]`.
    best: Vec<f32>,
}

impl ShortlistBuffers {
    /// Records the sizes of a copy.
    pub(super) fn fit(&mut self, copy: &HeadCopy) {
        self.plane = self.plane.max(plane_stride(copy.cols));
        self.panels = self.panels.max(copy.panels());
    }

    pub(super) fn reserve(&mut self, tokens: usize) {
        self.planes.resize(self.planes.len().max(2 * tokens * self.plane), 0);
        self.best.resize(self.best.len().max(tokens * self.panels), 0.0);
        self.limits.reserve(tokens);
        self.thresholds.reserve(tokens);
        for list in [&mut self.tokens, &mut self.keep, &mut self.whole] {
            list.reserve(tokens);
        }
    }

    /// Drops the tokens of the last step.
    fn clear(&mut self) {
        self.limits.clear();
        self.thresholds.clear();
        for list in [&mut self.tokens, &mut self.keep, &mut self.whole] {
            list.clear();
        }
    }

    /// Sets each threshold to the `keep`-th highest of the panels' lower bounds: one row in each of `keep` panels
    /// reaches it.
    fn set_thresholds(&mut self, panels: usize) {
        for (best, &keep) in self.best.chunks_exact_mut(panels).zip(&self.keep) {
            let threshold = match keep {
                1 => best.iter().copied().fold(f32::NEG_INFINITY, f32::max),
                _ => *best.select_nth_unstable_by(keep - 1, |a, b| b.total_cmp(a)).1,
            };
            self.thresholds.push(threshold);
        }
    }
}

/// Bytes from one plane of activations to the next.
fn plane_stride(cols: usize) -> usize {
    cols.next_multiple_of(64)
}
