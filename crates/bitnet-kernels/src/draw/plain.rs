//! The rule of the draw in plain loops, which defines the correct result.

use super::{
    Arrivals, Drawn, Edits, GROUP, SamplingParams, Wanted, key, least_kept, token_of, units, weight,
};

/// A row of logits after the edits that `wanted` asks for. What is not a number stays as it is.
pub fn edited(row: &[f32], wanted: &Wanted, edits: Edits<'_>) -> Vec<f32> {
    let mut edited = row.to_vec();
    let Wanted::Changed { from, to, mask, .. } = *wanted else { return edited };
    for change in &edits.changes[from as usize..to as usize] {
        let logit = &mut edited[change.token as usize];
        *logit = change.apply(*logit);
    }
    let mask = mask.map(|at| &edits.masks[at as usize..]);
    for (token, (logit, &before)) in edited.iter_mut().zip(row).enumerate() {
        let forbidden = mask.is_some_and(|mask| mask[token / 32] >> (token % 32) & 1 == 0);
        *logit = if before.is_nan() {
            before
        } else if forbidden {
            f32::NEG_INFINITY
        } else {
            *logit
        };
    }
    edited
}

/// Draws a token from a row of logits.
pub fn drawn(row: &[f32], params: &SamplingParams) -> Drawn {
    if let Some(at) = row.iter().position(|logit| logit.is_nan()) {
        return Drawn::NotANumber(at as u32);
    }
    let max = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    if max == f32::NEG_INFINITY {
        return Drawn::NothingAllowed;
    }
    let mut order: Vec<u64> = row.iter().enumerate().map(|(token, &logit)| key(logit, token)).collect();
    order.sort_unstable_by(|a, b| b.cmp(a));
    if params.is_greedy() {
        return Drawn::Token(token_of(order[0]));
    }
    if params.top_k > 0 {
        order.truncate(params.top_k as usize);
    }
    let weight_of = |key: u64| weight(row[token_of(key) as usize], max, params.temperature);
    if params.top_p < 1.0 {
        let total: u64 = order.iter().map(|&key| units(weight_of(key))).sum();
        let target = (f64::from(params.top_p) * total as f64).ceil() as u64;
        let (mut mass, mut kept) = (0, 0);
        while kept < order.len() && (kept == 0 || mass < target) {
            mass += units(weight_of(order[kept]));
            kept += 1;
        }
        order.truncate(kept);
    }
    let arrivals = Arrivals::new(params.seed, params.choice, params.position);
    let (mut token, mut best) = (u32::MAX, f32::INFINITY);
    for key in order.into_iter().filter(|&key| units(weight_of(key)) >= least_kept(params.min_p)) {
        let (id, weight) = (token_of(key) as usize, weight_of(key));
        let group = id / GROUP;
        let time = arrivals.of(id, arrivals.firsts(group / 4)[group % 4], arrivals.member(group));
        let time = time / weight;
        if time < best || time == best && (id as u32) < token {
            (token, best) = (id as u32, time);
        }
    }
    Drawn::Token(token)
}
