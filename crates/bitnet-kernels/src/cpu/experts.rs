//! A mixture of experts on the CPU: a router, and three matrices for each expert ([`Experts`]).
//!
//! The tokens of a step are sorted by expert, so that an expert's panels are read once for all of its tokens, in the tiles
//! of [`super::generic::grouped`]. Work is split by rows of matrices, never along a sum. A slot is a token at one of its
//! experts; the slots of an expert are neighbours, in the order of their tokens.

use std::ops::Range;

use bitnet_tensor::quant::GROUP;

use crate::{
    Backend, ExpertShape, ExpertWeights, Grouping, KernelError, Norm, RowsKind,
    cpu::{
        Cpu, Int8Rows, Panels, ROW_UNIT, Rows, Table, WEIGHT_UNIT,
        generic::{
            grouped::Grouped,
            rows::{ExpertSums, Gain, GateQuantize, QuantOut, ScalesOut},
            ternary::Output,
        },
        panels::PANEL_ROWS,
        pool::share,
    },
    order,
    scales::Scales,
};

/// The weights of a mixture of experts.
pub struct Experts {
    shape: ExpertShape,
    router: Table,
    /// One matrix for each expert.
    gate: Vec<Panels>,
    up: Vec<Panels>,
    down: Vec<Panels>,
}

/// The memory that all mixtures share during a step. [`Cpu::reserve_experts`] makes it before the first step, so that no
/// step allocates.
#[derive(Default)]
pub(super) struct ExpertScratch {
    /// The shape of all mixtures of a model; `None` if there are none.
    shape: Option<ExpertShape>,
    buffers: Option<Buffers>,
}

impl ExpertScratch {
    /// Bytes for steps of `tokens` tokens.
    pub(super) fn bytes(tokens: usize, shape: &ExpertShape) -> usize {
        let &ExpertShape { count, used, hidden, ffn, .. } = shape;
        let slots = tokens * used;
        let int8 = |n, width| Int8Rows::bytes(n, width, Grouping::Groups);
        let routes =
            slots * (size_of::<(u32, f32)>() + size_of::<u32>()) + (2 * count + 1) * size_of::<u32>();
        Rows::bytes(tokens, count)
            + int8(tokens, hidden)
            + int8(slots, hidden)
            + Rows::bytes(slots, 2 * ffn)
            + int8(slots, ffn)
            + Rows::bytes(slots, hidden)
            + routes
    }
}

struct Buffers {
    /// Tokens for which there is room, and the shape.
    tokens: usize,
    shape: ExpertShape,
    /// `[tokens][count]`
    logits: Rows,
    /// Normed input, `[tokens][hidden]`.
    input: Int8Rows,
    /// The same by slot, `[slots][hidden]`.
    sorted: Int8Rows,
    /// `[slots][2 ffn]`
    gate_up: Rows,
    /// `[slots][ffn]`
    gated: Int8Rows,
    /// `[slots][hidden]`
    outputs: Rows,
    routes: Routes,
}

/// Which tokens pass which experts.
#[derive(Default)]
struct Routes {
    /// Expert, later slot, and weight of every expert of every token, `[tokens][used]`, in ascending order of expert.
    chosen: Vec<(u32, f32)>,
    /// Token of every slot.
    tokens: Vec<u32>,
    /// First slot of every expert, and the end of the last.
    starts: Vec<u32>,
    /// Experts that have slots, in ascending order.
    active: Vec<u32>,
}

impl Routes {
    fn with_room(tokens: usize, shape: &ExpertShape) -> Self {
        Routes {
            chosen: Vec::with_capacity(tokens * shape.used),
            tokens: vec![0; tokens * shape.used],
            starts: vec![0; shape.count + 1],
            active: Vec::with_capacity(shape.count),
        }
    }

    /// Chooses experts for every row of logits, and gives every choice a slot.
    fn route<'a>(&mut self, rows: impl Iterator<Item = &'a [f32]>, used: usize) {
        self.chosen.clear();
        rows.for_each(|logits| choose(logits, used, &mut self.chosen));
        self.starts.fill(0);
        for &(expert, _) in &self.chosen {
            self.starts[expert as usize + 1] += 1;
        }
        self.active.clear();
        for expert in 1..self.starts.len() {
            if self.starts[expert] > 0 {
                self.active.push(expert as u32 - 1);
            }
            self.starts[expert] += self.starts[expert - 1];
        }
        // The next free slot of each expert is where its slots begin; afterwards it is where they end.
        for (at, (place, _)) in self.chosen.iter_mut().enumerate() {
            let slot = self.starts[*place as usize];
            self.starts[*place as usize] += 1;
            self.tokens[slot as usize] = (at / used) as u32;
            *place = slot;
        }
        self.starts.rotate_right(1);
        self.starts[0] = 0;
    }

    /// The slots of an expert.
    fn slots(&self, expert: usize) -> Range<usize> {
        self.starts[expert] as usize..self.starts[expert + 1] as usize
    }
}

/// Adds the experts of a token and their weights, in ascending order of expert, as [`order`] says.
fn choose(logits: &[f32], used: usize, chosen: &mut Vec<(u32, f32)>) {
    let first = chosen.len();
    if logits.iter().any(|logit| logit.is_nan()) {
        chosen.extend((0..used as u32).map(|expert| (expert, f32::NAN)));
        return;
    }
    // The best so far, best first. Among equal logits, an earlier expert stays before a later one.
    for (expert, &logit) in logits.iter().enumerate() {
        let full = chosen.len() - first == used;
        if full && logit <= chosen[chosen.len() - 1].1 {
            continue;
        }
        if full {
            chosen.pop();
        }
        let better = chosen[first..].iter().take_while(|(_, other)| *other >= logit).count();
        chosen.insert(first + better, (expert as u32, logit));
    }
    let chosen = &mut chosen[first..];
    let largest = chosen[0].1;
    chosen.sort_unstable_by_key(|&(expert, _)| expert);
    chosen.iter_mut().for_each(|(_, weight)| *weight = order::exp(*weight - largest));
    let sum = chosen.iter().fold(0.0, |sum, (_, power)| sum + power);
    chosen.iter_mut().for_each(|(_, weight)| *weight /= sum);
}

impl Cpu {
    pub(super) fn experts(
        &mut self,
        shape: ExpertShape,
        weights: ExpertWeights<'_>,
    ) -> Result<Experts, KernelError> {
        let ExpertShape { count, used, hidden, ffn, .. } = shape;
        assert!((1..=count).contains(&used), "a token must pass some of the experts");
        let ExpertWeights { router, gate, up, down } = weights;
        assert_eq!([router.rows(), router.cols()], [count, hidden], "the router must have the shape");
        let router = self.table(router)?;
        let mut each = |weights, rows: usize, cols: usize| {
            let all = self.pack(weights)?;
            assert_eq!([all.rows(), all.cols()], [count * rows, cols], "experts must have the shape");
            all.split(count, &mut self.pool, &mut self.memory)
        };
        let (gate, up) = (each(gate, ffn, hidden)?, each(up, ffn, hidden)?);
        let down = each(down, hidden, ffn)?;
        self.experts.shape = Some(shape);
        Ok(Experts { shape, router, gate, up, down })
    }

    /// Makes room for steps of `tokens` tokens, if there are experts.
    pub(super) fn reserve_experts(&mut self, tokens: usize) -> Result<(), KernelError> {
        self.experts.shape.map_or(Ok(()), |shape| self.reserve_for(tokens, shape))
    }

    fn reserve_for(&mut self, tokens: usize, shape: ExpertShape) -> Result<(), KernelError> {
        let fits = |buffers: &Buffers| buffers.tokens >= tokens && buffers.shape == shape;
        if self.experts.buffers.as_ref().is_some_and(fits) {
            return Ok(());
        }
        let ExpertShape { count, used, hidden, ffn, .. } = shape;
        let (slots, kind) = (tokens * used, RowsKind::Intermediate);
        // Rows of a table's input.
        self.reserve_dense(tokens)?;
        self.experts.buffers = Some(Buffers {
            tokens,
            shape,
            logits: self.rows(tokens, count, kind)?,
            input: self.int8_rows(tokens, hidden, Grouping::Groups)?,
            sorted: self.int8_rows(slots, hidden, Grouping::Groups)?,
            gate_up: self.rows(slots, 2 * ffn, kind)?,
            gated: self.int8_rows(slots, ffn, Grouping::Groups)?,
            outputs: self.rows(slots, hidden, kind)?,
            routes: Routes::with_room(tokens, &shape),
        });
        Ok(())
    }

    /// Adds to every row of `x` what its experts compute from it.
    pub(super) fn mix_experts(
        &mut self,
        n: usize,
        norm: &Norm<Gain>,
        w: &Experts,
        x: &mut Rows,
    ) -> Result<(), KernelError> {
        assert!(n <= x.rows && x.width == w.shape.hidden, "the rows must have the layer's shape");
        self.reserve_for(n, w.shape)?;
        let mut buffers = self.experts.buffers.take().expect("reserved");
        let done = self.pass_experts(n, norm, w, x, &mut buffers);
        self.experts.buffers = Some(buffers);
        done
    }

    fn pass_experts(
        &mut self,
        n: usize,
        norm: &Norm<Gain>,
        w: &Experts,
        x: &mut Rows,
        b: &mut Buffers,
    ) -> Result<(), KernelError> {
        let shape = w.shape;
        self.dense(n, x, norm, &w.router, &mut b.logits, 0)?;
        let rows = b.logits.values.chunks_exact(b.logits.stride).take(n).map(|row| &row[..shape.count]);
        b.routes.route(rows, shape.used);
        let (slots, routes) = (n * shape.used, &b.routes);
        self.fetch_gates(w, &routes.active);
        self.norm_quantize(n, x, [Some(norm), None], None, &mut b.input)?;
        self.gather(&b.input, &routes.tokens[..slots], &mut b.sorted)?;

        // Columns that share a scale after the gate: the thread that computes them also quantises them.
        let (panels, groups) = (shape.ffn.div_ceil(PANEL_ROWS), shape.ffn.div_ceil(GROUP));
        let both = b.gate_up.values.shared();
        let (active, stride) = (&routes.active[..], b.gate_up.stride);
        let items = active.len() * groups;
        let bytes = active.len() * 2 * panels * w.gate[0].panel(0).len();
        let kernels = self.isa.kernels();
        let (kernel, quantize) = (kernels.grouped, kernels.floats.gate_quantize);
        let gates = GateQuantize { x: both, stride, ffn: shape.ffn, gate: shape.gate, out: b.gated.out() };
        // Whole experts, or few parts of each, so that each reads long pieces of gate and up.
        let units = (FEW_PARTS * self.pool.threads()).max(active.len()).min(items);
        self.parallel((bytes / WEIGHT_UNIT).min(units), 0, &|part, parts, _| {
            for (met, some) in runs_of(share(items, parts, part), groups) {
                let expert = active[met] as usize;
                let columns = some.start * GROUP_PANELS..panels.min(some.end * GROUP_PANELS);
                let (gate, up) = (&w.gate[expert], &w.up[expert]);
                // The next run begins where this one ends, or with the next expert.
                let next = active.get(met + some.end / groups).map(|&expert| &w.gate[expert as usize]);
                let next = next.map(|gate| gate.panel(some.end % groups * GROUP_PANELS));
                let slots = routes.slots(expert);
                for (matrix, column, next) in
                    [(gate, 0, Some(up.panel(columns.start))), (up, shape.ffn, next)]
                {
                    let out = Output { values: both, stride, column, add: None };
                    let a = Grouped { next, ..b.sorted.product(matrix, slots.clone(), out) };
                    // SAFETY: `isa` proves the instruction set; every panel of an expert, and so its output columns in the
                    // expert's slots, belongs to one part; rows are padded with zeros to whole blocks.
                    unsafe { kernel(&a, columns.clone()) }
                }
                for group in some {
                    // SAFETY: as above; this part has computed these columns.
                    unsafe { quantize(&gates, slots.clone(), group) }
                }
            }
        })?;

        let panels = shape.hidden.div_ceil(PANEL_ROWS);
        let outputs = b.outputs.values.shared();
        let (out, stride) = (x.values.shared(), x.stride);
        let sums = ExpertSums { outputs, stride, chosen: &routes.chosen, used: shape.used, out };
        let finish = self.isa.kernels().floats.expert_sums;
        // Few parts, so that each reads long pieces of every expert.
        let units = (FEW_PARTS * self.pool.threads()).min(panels);
        self.parallel(units, 0, &|part, parts, _| {
            let some = share(panels, parts, part);
            let columns = some.start * PANEL_ROWS..(some.end * PANEL_ROWS).min(shape.hidden);
            let later = share(panels, parts, part + 1).start;
            for (i, &expert) in active.iter().enumerate() {
                let out = Output { values: outputs, stride, column: 0, add: None };
                let next = match active.get(i + 1) {
                    Some(&next) => Some(w.down[next as usize].panel(some.start)),
                    None if later < panels => Some(w.down[active[0] as usize].panel(later)),
                    None => None,
                };
                let expert = expert as usize;
                let a = Grouped { next, ..b.gated.product(&w.down[expert], routes.slots(expert), out) };
                // SAFETY: as above; every output column belongs to one part.
                unsafe { kernel(&a, some.clone()) }
            }
            // SAFETY: as above; this part has computed these columns of every slot.
            unsafe { finish(&sums, columns) }
        })
    }
}

impl Cpu {
    /// Asks for the first lines of what each thread reads first of the experts that are met, while their input is made.
    fn fetch_gates(&self, w: &Experts, active: &[u32]) {
        let fetch = self.isa.kernels().floats.fetch;
        let threads = self.pool.threads();
        for thread in 0..threads.min(active.len()) {
            let first = active[share(active.len(), threads, thread).start];
            let panel = w.gate[first as usize].panel(0);
            // SAFETY: `isa` proves the instruction set.
            unsafe { fetch(&panel[..panel.len().min(FETCHED)]) }
        }
    }

    /// Sets row `i` to row `rows[i]` of `from`, which has the same width.
    fn gather(&mut self, from: &Int8Rows, rows: &[u32], to: &mut Int8Rows) -> Result<(), KernelError> {
        let Scales::Groups(groups) = &from.scales else { panic!("rows must have scales for groups") };
        let (stride, count) = (from.stride, from.width.div_ceil(GROUP));
        let QuantOut { values, scales: ScalesOut::Groups(scales), .. } = to.out() else {
            panic!("rows must have scales for groups")
        };
        self.parallel((rows.len() * stride / ROW_UNIT).min(rows.len()), 0, &|part, parts, _| {
            for slot in share(rows.len(), parts, part) {
                let row = rows[slot] as usize;
                // SAFETY: every slot belongs to one part.
                let (values, scales) =
                    unsafe { (values.slice(slot * stride, stride), scales.slice(slot * count, count)) };
                values.copy_from_slice(&from.values[row * stride..][..stride]);
                scales.copy_from_slice(&groups[row * count..][..count]);
            }
        })
    }
}

/// Cuts a range of groups of experts that have `groups` groups each into the ranges within each expert.
fn runs_of(items: Range<usize>, groups: usize) -> impl Iterator<Item = (usize, Range<usize>)> {
    let experts = items.start / groups..items.end.div_ceil(groups);
    experts.map(move |expert| {
        let first = expert * groups;
        let end = items.end.min(first + groups) - first;
        (expert, items.start.saturating_sub(first)..end)
    })
}

/// Parts of the products per thread: a thread that loses its core delays the others by one of them.
const FEW_PARTS: usize = 4;
/// Panels whose rows, as columns of the output, share a scale.
const GROUP_PANELS: usize = GROUP / PANEL_ROWS;
/// Bytes that are asked for as soon as the experts are known: what memory delivers meanwhile.
const FETCHED: usize = 8192;

impl Int8Rows {
    /// The product of some rows with a matrix, into the same rows of `out`.
    fn product<'a>(&'a self, w: &'a Panels, rows: Range<usize>, mut out: Output<'a>) -> Grouped<'a> {
        let (Scales::Groups(groups), Some(group)) = (&self.scales, w.group()) else {
            panic!("rows and matrix must have scales for groups")
        };
        let count = self.width.div_ceil(GROUP);
        out.column += rows.start * out.stride;
        Grouped {
            w,
            group,
            x: &self.values[rows.start * self.stride..rows.end * self.stride],
            x_stride: self.stride,
            x_groups: &groups[rows.start * count..rows.end * count],
            n: rows.len(),
            out,
            next: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chosen(logits: &[f32], used: usize) -> Vec<(u32, f32)> {
        let mut chosen = Vec::new();
        choose(logits, used, &mut chosen);
        chosen
    }

    #[test]
    fn of_experts_with_equal_logits_the_lower_is_chosen_and_the_order_is_ascending() {
        let experts = |logits: &[f32], used| chosen(logits, used).iter().map(|c| c.0).collect::<Vec<_>>();
        assert_eq!(experts(&[1.0, 2.0, 2.0, 2.0], 2), [1, 2]);
        assert_eq!(experts(&[3.0, 1.0, 2.0, 1.0], 3), [0, 1, 2]);
        assert_eq!(experts(&[0.0, -0.0, 0.0], 1), [0]);
        assert_eq!(experts(&[f32::NEG_INFINITY; 3], 3), [0, 1, 2]);
        let even = chosen(&[1.0, 5.0, 1.0, 5.0], 2);
        assert_eq!(even, [(1, 0.5), (3, 0.5)]);
    }

    #[test]
    fn a_logit_that_is_no_number_makes_every_weight_of_its_token_one() {
        let weights = chosen(&[1.0, f32::NAN, 9.0], 2);
        assert!(weights.iter().map(|c| c.0).eq([0, 1]) && weights.iter().all(|c| c.1.is_nan()));
    }

    #[test]
    fn slots_are_sorted_by_expert_and_then_by_token() {
        let mut routes = Routes::with_room(
            3,
            &ExpertShape { count: 4, used: 2, hidden: 1, ffn: 1, gate: crate::Gate::Silu },
        );
        let logits: [[f32; 4]; 3] = [[0.0, 1.0, 0.5, 0.0], [1.0, 0.0, 0.0, 1.0], [0.0, 9.0, 0.0, 3.0]];
        routes.route(logits.iter().map(|row| &row[..]), 2);
        assert_eq!(routes.active, [0, 1, 2, 3]);
        assert_eq!([0, 1, 2, 3].map(|e| routes.slots(e)), [0..1, 1..3, 3..4, 4..6]);
        assert_eq!(routes.tokens, [1, 0, 2, 0, 1, 2]);
        assert!(routes.chosen.iter().map(|c| c.0).eq([1, 3, 0, 4, 2, 5]));
    }

    #[test]
    fn groups_of_several_experts_are_cut_at_their_ends() {
        let cut = |items| runs_of(items, 4).collect::<Vec<_>>();
        assert_eq!(cut(2..9), [(0, 2..4), (1, 0..4), (2, 0..1)]);
        assert_eq!(cut(5..7), [(1, 1..3)]);
        assert_eq!(cut(4..4), []);
    }
}
