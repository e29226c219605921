//! Launches the two steps that rule out tokens by their bounds, before their logits are computed, for rows from which a
//! token is drawn. `draw/` has the rule, and the kernels' texts say which tokens stay.

use std::f32::consts::LOG2_E;

use crate::{
    Edits, SamplingParams, Wanted,
    draw::kept_below,
    gpu::{
        Driver, Gpu, GpuError, Rows,
        layout::{HeadCopy, ShortlistBuffers, panels},
        table::{CONTEND, LEADERS},
        upload::Upload,
    },
};

use super::{addresses, words};

/// Panels of a thread block of [`LEADERS`].
const LEADERS_PANELS: usize = 8;
/// Panels of a thread block of [`CONTEND`].
const CONTEND_PANELS: usize = 32;
/// Words of a row's race.
pub(in crate::gpu) const RACE_WORDS: usize = 12;

/// How a token is drawn that bounds can decide. The highest logit is drawn as the only one that min-p keeps. Top-k and top-p,
/// which need more logits than a race, are `None`.
pub(super) fn racing(wanted: &Wanted) -> Option<SamplingParams> {
    let (Wanted::Token(params) | Wanted::Changed { params, .. }) = *wanted else { return None };
    if params.is_greedy() {
        let changed = matches!(wanted, Wanted::Changed { .. });
        return changed.then_some(SamplingParams { temperature: 1.0, min_p: 1.0, ..params });
    }
    // At other temperatures, scores may be too large for their roundings.
    let plain = (2f32.powi(-10)..=2f32.powi(10)).contains(&params.temperature);
    (params.top_k == 0 && params.top_p >= 1.0 && plain).then_some(params)
}

/// The words that describe a row's race; zeros for a row that does not race.
fn race(wanted: &Wanted, edits: Edits<'_>) -> [u32; RACE_WORDS] {
    let Some(SamplingParams { temperature, min_p, seed, choice, position, .. }) = racing(wanted) else {
        return [0; RACE_WORDS];
    };
    // How far below the highest logit tokens are kept.
    let [sure, floor] = kept_below(min_p).map(|below| temperature * below as f32);
    let (sure, floor) = (sure - 1e-4 * temperature, floor + 1e-4 * temperature);
    let changes = match *wanted {
        Wanted::Changed { from, to, .. } => &edits.changes[from as usize..to as usize],
        _ => &[],
    };
    // A change moves a bound from its logit by at most the factor of its repetition, and by roundings.
    let (mut spread, mut slack) = (1f32, 0f32);
    for change in changes.iter().filter(|change| change.more > f32::NEG_INFINITY) {
        spread = spread.max(change.repetition).max(1.0 / change.repetition);
        slack = slack.max(change.less.abs() + change.more.abs());
    }
    let floats = [LOG2_E / temperature, sure, floor, 2.000_01 * spread, 1e-6 * slack].map(f32::to_bits);
    let [scale, sure, floor, spread, slack] = floats;
    [scale, sure, floor, spread, slack, seed as u32, (seed >> 32) as u32, choice, position, 1, 0, 0]
}

impl<D: Driver> Gpu<D> {
    /// Replaces upper bounds in the rows of `out` that race, one for each of `wanted`, by negative infinity where a token can
    /// neither be the highest nor be drawn.
    pub(super) fn rule_out(
        &mut self,
        wanted: &[Wanted],
        edits: Edits<'_>,
        copy: &HeadCopy,
        shortlist: &ShortlistBuffers,
        out: &Rows,
    ) -> Result<(), GpuError> {
        let (n, panels) = (wanted.len(), panels(out.width));
        let races = self.upload(Upload::Races, wanted.iter().flat_map(|wanted| race(wanted, edits)))?;
        let ShortlistBuffers { limits, leaders, best, .. } = shortlist;
        let sizes = [out.width, out.stride, panels, best.stride];
        let args = [
            addresses([out.address(), copy.rows.address(), limits.address()]),
            addresses([races, leaders.address(), best.address()]),
            words(sizes),
        ];
        self.launch(&LEADERS, [panels.div_ceil(LEADERS_PANELS), n, 1], 0, &args.concat())?;
        let args =
            [addresses([out.address(), races]), addresses([leaders.address(), best.address()]), words(sizes)];
        self.launch(&CONTEND, [panels.div_ceil(CONTEND_PANELS), n, 1], 0, &args.concat())
    }
}
