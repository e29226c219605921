//! Logits on the CPU: all logits of a row, or only those that bounds cannot rule out.

mod ask;
mod bounded;
mod buffers;
pub(super) mod copy;
mod counts;
mod draws;
mod race;

use std::{mem, sync::atomic::AtomicU64};

use bitnet_tensor::{BitNetTensor, SharedBytes};

use crate::{
    Backend, Drawn, Edits, KernelError, Wanted,
    cpu::{
        Cpu, Panels, ROW_UNIT, Rows, Table, WEIGHT_UNIT,
        generic::{
            self,
            dense::{self, CACHED_MATRIX, CACHED_TOKENS, DenseLogits, Rescore, TILE_ROWS},
            rotate::Rotation,
            shortlist::{Bounds, CopyRows},
            ternary::Output,
        },
        memory::{Buffer, Shared},
        panels::PANEL_ROWS,
        pool::share,
    },
    draw::GROUP,
};

use ask::Ask;
pub(super) use buffers::ShortlistBuffers;
use buffers::plane_stride;
pub use copy::{CopyForm, HeadCopy};
pub use counts::HeadCounts;

const _: () = assert!(PANEL_ROWS == GROUP, "a panel's bounds are those of a group of arrival times");

impl Cpu {
    /// Computes what `wanted` asks for of the first rows, one entry for each row, using bounds where possible. The entries
    /// may refer to edits of logits.
    pub(super) fn head_logits(
        &mut self,
        x: &Rows,
        table: &Table,
        (wanted, edits): (&[Wanted], Edits<'_>),
        logits: &mut [f32],
        drawn: &mut [Option<Drawn>],
    ) -> Result<(), KernelError> {
        assert!(wanted.len() <= x.rows, "the rows must fit their buffers");
        let (weights, copy) = match table {
            Table::Ternary { weights, rotation } => {
                return self.ternary_logits(wanted.len(), x, (weights, rotation.as_ref()), logits);
            }
            Table::Dense { weights, copy } => (weights, copy.as_ref()),
        };
        let mut s = mem::take(&mut self.shortlist);
        let done = self.dense_logits(&mut s, x, (weights, copy), (wanted, edits), logits, drawn);
        self.shortlist = s;
        done
    }

    /// Computes logits with a dense table.
    fn dense_logits(
        &mut self,
        s: &mut ShortlistBuffers,
        x: &Rows,
        (table, copy): (&BitNetTensor, Option<&HeadCopy>),
        (wanted, edits): (&[Wanted], Edits<'_>),
        logits: &mut [f32],
        drawn: &mut [Option<Drawn>],
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
            let ask = Ask::of(wanted);
            // A row of ordinary values has only finite logits, so those of tokens that may not be drawn need no look.
            let may_skip = |ask: &Ask| copy.is_ordinary || ask.is_plain();
            let few = ask.as_ref().is_some_and(|ask| may_skip(ask) && ask.allows_few(edits, copy.rows));
            let keep = wanted.highest().max(1);
            let bounded = match &ask {
                Some(ask) => may_skip(ask) && ask.gains_by_bounds(copy.rows),
                None => keep <= copy.panels() / 8,
            };
            let limits = (few || bounded).then(|| {
                let planes = &mut s.planes[2 * s.tokens.len() * stride..][..2 * stride];
                let x = &x.values[token * x.stride..][..x.stride];
                // SAFETY: `isa` proves the instruction set; rows, planes and scratch have the row's stride.
                unsafe { (self.isa.kernels().make_planes)(x, planes, &mut self.scratch[0]) }
            });
            let Some(limits) = limits.flatten() else {
                s.whole.push(token);
                continue;
            };
            if let Some(ask) = ask.clone().filter(|_| few) {
                s.begin_race(token, None, ask);
                continue;
            }
            s.limits.push(limits);
            s.tokens.push(token);
            let place = s.tokens.len() - 1;
            match ask {
                Some(ask) => s.begin_race(token, Some(place), ask),
                None => s.keep.push((place, keep)),
            }
        }
        self.bound(s, copy, logits)?;
        self.shortlisted_logits(s, copy.panels(), x, table, logits)?;
        self.race(s, (copy, edits), x, table, logits, drawn)?;
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

    /// Makes the copy of a table for bounds, or returns `None` if its sums could overflow.
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
        let (form, panels) = (CopyForm::of(weights.dtype()), padded / PANEL_ROWS);
        let mut codes = Buffer::zeroed(panels * form.panel_bytes(cols), "copy of the output head")?;
        self.memory.place(&codes);
        let a = CopyRows {
            form,
            table: weights,
            codes: codes.shared(),
            scales: scales.shared(),
            norms: norms.shared(),
            errors: errors.shared(),
        };
        let kernel = self.isa.kernels().copy_rows;
        self.parallel(panels, generic::shortlist::scratch(cols), &|part, parts, scratch| {
            for panel in share(panels, parts, part) {
                // SAFETY: `isa` proves the instruction set; every panel belongs to one part; scratch is as large as the
                // kernel needs.
                unsafe { kernel(&a, panel, scratch) }
            }
        })?;
        Ok(Some(HeadCopy::of(form, [rows, cols], SharedBytes::new(codes), [scales, norms, errors])))
    }

    /// Gives a table its copy, which is made unless one is `stored`.
    pub(super) fn set_head_copy(
        &mut self,
        table: &mut Table,
        stored: Option<HeadCopy>,
    ) -> Result<(), KernelError> {
        // An int8 copy would be larger than a ternary table itself.
        let Table::Dense { weights, copy } = table else { return Ok(()) };
        *copy = match stored {
            // Files were written when fewer types had a form of their own.
            Some(copy) if copy.form == CopyForm::of(weights.dtype()) => {
                Some(HeadCopy { codes: self.near(copy.codes)?, ..copy })
            }
            _ => self.copy_head(weights)?,
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
        let (kernel, rows, bytes) = (self.isa.kernels().floats.logits, a.table.rows(), a.table.bytes().len());
        // Parts have whole tiles of rows. If the matrix stays in cache while all tokens pass over it, they have few tokens
        // too, so that the activations stay in cache as well.
        let row_blocks = rows.div_ceil(TILE_ROWS);
        let token_blocks = if bytes <= CACHED_MATRIX { a.tokens.len().div_ceil(CACHED_TOKENS) } else { 1 };
        let units = (bytes * a.tokens.len() / WEIGHT_UNIT).min(row_blocks * token_blocks);
        self.parallel(units, dense::scratch(a.table.dtype(), a.table.cols()), &|part, parts, scratch| {
            let mut blocks = share(row_blocks * token_blocks, parts, part);
            while !blocks.is_empty() {
                let (token_block, first) = (blocks.start / row_blocks, blocks.start % row_blocks);
                let end = row_blocks.min(first + blocks.len());
                let tokens = &a.tokens[share(a.tokens.len(), token_blocks, token_block)];
                let rows = first * TILE_ROWS..rows.min(end * TILE_ROWS);
                // SAFETY: `isa` proves the instruction set; every row and token belong to one part; scratch is as large as
                // the kernel needs.
                unsafe { kernel(&DenseLogits { tokens, ..*a }, rows, scratch) };
                blocks.start += end - first;
            }
        })
    }

    /// Replaces the logits of the tokens on the shortlist by upper bounds.
    fn bound(
        &mut self,
        s: &mut ShortlistBuffers,
        copy: &HeadCopy,
        logits: &mut [f32],
    ) -> Result<(), KernelError> {
        let (panels, n) = (copy.panels(), s.tokens.len());
        if n == 0 {
            return Ok(());
        }
        s.set_planes();
        s.sum_groups(copy);
        let a = Bounds {
            copy,
            planes: s.used_planes,
            x: &s.planes,
            stride: plane_stride(copy.cols),
            sums: &s.sums,
            limits: &s.limits,
            tokens: &s.tokens,
            out: Shared::new(logits),
            best: Shared::new(&mut s.best),
            high: Shared::new(&mut s.high),
        };
        let kernel = self.isa.kernels().bounds;
        let units = (copy.codes.len() * n / WEIGHT_UNIT).min(panels);
        self.parallel(units, 0, &|part, parts, _| {
            // SAFETY: `isa` proves the instruction set; every panel belongs to one part; the planes are padded with
            // zeros to whole quads.
            unsafe { kernel(&a, share(panels, parts, part)) }
        })
    }

    /// Replaces upper bounds by the logits that the thresholds do not rule out.
    fn shortlisted_logits(
        &mut self,
        s: &mut ShortlistBuffers,
        panels: usize,
        x: &Rows,
        table: &BitNetTensor,
        logits: &mut [f32],
    ) -> Result<(), KernelError> {
        if s.keep.is_empty() {
            return Ok(());
        }
        s.set_thresholds(panels);
        self.head.shortlisted += s.keep.len() as u64;
        self.rescore(&s.listed, &s.thresholds, x, table, Shared::new(logits))
    }

    /// Computes the logits of each of `tokens` whose upper bounds reach its threshold.
    fn rescore(
        &mut self,
        tokens: &[usize],
        thresholds: &[f32],
        x: &Rows,
        table: &BitNetTensor,
        out: Shared<'_, f32>,
    ) -> Result<(), KernelError> {
        let vocab = table.rows();
        let computed = AtomicU64::new(0);
        let dense =
            DenseLogits { table, x: &x.values, stride: x.stride, tokens, out, out_stride: vocab, column: 0 };
        let a = Rescore { dense, thresholds, computed: &computed };
        let kernel = self.isa.kernels().floats.rescore;
        self.parallel(
            vocab * tokens.len() / ROW_UNIT,
            dense::scratch(table.dtype(), table.cols()),
            &|part, parts, scratch| {
                // SAFETY: `isa` proves the instruction set; every row of the table belongs to one part; scratch is as large
                // as the kernel needs.
                unsafe { kernel(&a, share(vocab, parts, part), scratch) }
            },
        )?;
        self.head.rescored += computed.into_inner();
        Ok(())
    }
}
