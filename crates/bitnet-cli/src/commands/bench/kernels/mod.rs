//! Measures the operations of a forward pass at a model's shapes: how long each takes, and how close it comes to the
//! machine's limits.
//!
//! Products do with their sums what the model does: add them to the residual, gate them, or rotate and store them.
//! Weights are cold, as in a step: enough copies of each matrix take turns to exceed any cache.

mod draft_head;
mod ends;
mod mixers;
mod products;
mod rows;

use std::time::{Duration, Instant};

use bitnet::kernels::{
    DraftLog, Footprint, Grouping, Inspect, KernelError, Norm, Rotate, gpu::tilings::Tiling,
};
use bitnet::model::{Checkpoint, ModelSpec};
use serde::Serialize;

use super::runs::{REPEATS, median, repeated};
use crate::error::CliError;

/// Rounds before the measurement, in which a GPU records its launches.
const WARM: usize = 2;
/// Runs in a round of an operation that reads no weights: as many launches as a GPU records.
const RUNS: usize = 8;

/// Numbers of tokens for which launches are measured: the launch for a number of tokens is also used down to half of it.
pub const TUNED: [usize; 16] = [2, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 512, 1024, 2048];

/// An operation at one shape. Times are per run.
#[derive(Serialize)]
pub struct Kernel {
    pub operation: &'static str,
    /// Outputs by inputs or, for attention, tokens by context.
    pub shape: String,
    /// The kernels that a GPU launches for it.
    pub kernels: Vec<&'static str>,
    pub tokens: usize,
    /// Median.
    pub microseconds: f64,
    microseconds_min: f64,
    microseconds_max: f64,
    /// Inputs read and results written, in 10^9 bytes per second.
    pub gb_s: f64,
    /// Fraction of the memory bandwidth, if that is known.
    pub of_bandwidth: Option<f64>,
    /// 10^12 operations per second; a product counts as two.
    pub tera_ops_s: f64,
    /// Fraction of the arithmetic peak, if that is known.
    pub of_peak: Option<f64>,
}

/// The sizes to measure.
pub struct Sizes<'a> {
    /// Tokens in a product for which it is first measured how it is best launched.
    pub tuned: &'a [usize],
    /// Tokens in a step.
    pub steps: &'a [usize],
    /// Sequences decoded together.
    pub batches: &'a [usize],
    /// Tokens that each sequence attends to.
    pub contexts: &'a [usize],
    /// Prompt tokens in one step.
    pub prompt: usize,
}

/// The limits of the machine, if known: bytes per second and operations per second.
#[derive(Clone, Copy, Default)]
pub struct Bounds {
    pub memory: Option<f64>,
    pub integers: Option<f64>,
    pub floats: Option<f64>,
}

/// The work of one run of an operation.
#[derive(Clone)]
struct Work {
    operation: &'static str,
    shape: String,
    tokens: usize,
    bytes: usize,
    operations: usize,
    /// Limit on its operations per second.
    peak: Option<f64>,
}

/// Measures every operation of the forward pass. Returns how products are best launched for the numbers of tokens in
/// [`Sizes::tuned`]; all others are launched as that says.
pub fn measure<B: Footprint + Inspect>(
    backend: &mut B,
    checkpoint: &Checkpoint,
    sizes: &Sizes<'_>,
    bounds: Bounds,
    each: &mut dyn FnMut(Kernel) -> Result<(), CliError>,
) -> Result<Vec<Tiling>, CliError> {
    let float = if backend.device().is_some() { 2 } else { 4 };
    let spec = &checkpoint.spec;
    let grouping = if spec.grouped.projections { Grouping::Groups } else { Grouping::Row };
    let mut kernels = Kernels { backend, spec, bounds, float, grouping, tuned: Vec::new(), each };
    kernels.projections(sizes)?;
    if let Some(experts) = spec.experts {
        kernels.experts(experts, sizes.steps)?;
    }
    kernels.rows_of_layers(sizes.steps)?;
    if spec.draft_head {
        kernels.draft_head(sizes.steps)?;
    }
    if let Some(delta) = spec.delta() {
        for &batch in sizes.batches {
            kernels.delta("delta rule", delta, batch, 1, DraftLog::default())?;
        }
        let log = DraftLog { accepted: 2, drafts: 3 };
        kernels.delta("delta rule with drafts", delta, 1, 1 + log.drafts, log)?;
        kernels.delta("prompt's delta rule", delta, 1, sizes.prompt, DraftLog::default())?;
    }
    kernels.ends(checkpoint, sizes)?;
    for &context in sizes.contexts {
        for &batch in sizes.batches {
            kernels.attention("attention", batch, [1, context], None)?;
        }
    }
    kernels.attention("prompt's attention", 1, [sizes.prompt; 2], None)?;
    if let (window @ Some(_), Some(&context)) = (spec.sliding_window(), sizes.contexts.last()) {
        for &batch in sizes.batches {
            kernels.attention("windowed attention", batch, [1, context], window)?;
        }
        kernels.attention("prompt's windowed attention", 1, [sizes.prompt; 2], window)?;
    }
    Ok(kernels.tuned)
}

struct Kernels<'a, B: Inspect> {
    backend: &'a mut B,
    spec: &'a ModelSpec,
    bounds: Bounds,
    /// Bytes of a float passed between operations.
    float: usize,
    /// Which activations of a projection share a scale.
    grouping: Grouping,
    /// How products are best launched.
    tuned: Vec<Tiling>,
    each: &'a mut dyn FnMut(Kernel) -> Result<(), CliError>,
}

impl<B: Inspect> Kernels<'_, B> {
    /// Number of copies of a matrix of `bytes` bytes that together are as large as half of the model's largest
    /// matrices.
    fn copies(&self, bytes: usize) -> usize {
        let ModelSpec { hidden, ffn, layers, .. } = *self.spec;
        (layers * ffn * hidden / 4).div_ceil(bytes).max(1)
    }

    /// Makes a norm of rows of `width` columns.
    fn norm(&mut self, width: usize) -> Result<Norm<B::Gain>, KernelError> {
        Ok(Norm { gain: self.backend.gain(&vec![1.0; width])?, eps: self.spec.rms_eps })
    }

    /// Makes the transform of rows of `width` columns, if the model's weights contain one.
    fn rotation(&mut self, width: usize) -> Result<Option<B::Rotation>, KernelError> {
        let Some(rotation) = &self.spec.rotation else { return Ok(None) };
        let signs = rotation.signs.get(&width).map(|signs| &signs[..]);
        let rotate = Rotate { block: rotation.block, signs, grouped: None };
        self.backend.rotation(width, &rotate).map(Some)
    }

    /// Times rounds of `runs` runs, with the device's clock if there is one.
    fn time(
        &mut self,
        work: Work,
        runs: usize,
        mut run: impl FnMut(&mut B, usize) -> Result<(), KernelError>,
    ) -> Result<(), CliError> {
        let times = self.times(runs, &mut run)?;
        let (seconds, least, most) = (median(&times), times[0], times[times.len() - 1]);
        let Work { operation, shape, tokens, bytes, operations, peak } = work;
        let (bytes, operations) = (bytes as f64 / seconds, operations as f64 / seconds);
        (self.each)(Kernel {
            operation,
            shape,
            kernels: self.backend.kernels(),
            tokens,
            microseconds: 1e6 * seconds,
            microseconds_min: 1e6 * least,
            microseconds_max: 1e6 * most,
            gb_s: bytes / 1e9,
            of_bandwidth: self.bounds.memory.map(|most| bytes / most),
            tera_ops_s: operations / 1e12,
            of_peak: peak.map(|most| operations / most),
        })
    }

    /// Seconds per run, in ascending order.
    fn times(
        &mut self,
        runs: usize,
        run: &mut dyn FnMut(&mut B, usize) -> Result<(), KernelError>,
    ) -> Result<Vec<f64>, CliError> {
        let computed = |b: &B| b.device().map(|device| device.counts.times.compute);
        let mut round = || {
            self.backend.finish()?;
            let (before, start) = (computed(self.backend), Instant::now());
            (0..runs).try_for_each(|i| run(self.backend, i))?;
            self.backend.finish()?;
            let elapsed = start.elapsed();
            Ok(computed(self.backend).zip(before).map_or(elapsed, |(after, before)| after - before))
        };
        for _ in 0..WARM {
            round()?;
        }
        let mut times = repeated(REPEATS, || round().map(|time: Duration| time / runs as u32))?;
        times.sort_by(f64::total_cmp);
        Ok(times)
    }
}

fn values(n: usize) -> Vec<f32> {
    (0..n).map(|i| (i % 251) as f32 / 125.0 - 1.0).collect()
}
