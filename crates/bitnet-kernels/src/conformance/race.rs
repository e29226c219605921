//! Cases for tokens that bounds decide, with and without changes and masks.

use super::{Case, Results, Values, doubled, integers, logits};
use crate::{
    Change, Edits, Inspect, KernelError, SamplingParams, Wanted,
    draw::{drawn, edited},
};

/// Adds races in steps of one to many rows.
pub(super) fn add_cases(cases: &mut Vec<Case>) {
    for (n, width, vocab) in [(1, 192, 3000), (3, 100, 1999), (14, 64, 2600)] {
        cases.push(Case::Race { n, width, vocab });
    }
}

/// Number of changed tokens.
const CHANGES: usize = 40;

/// For each row, how far the token drawn by [`Backend::logits`](crate::Backend::logits) is from the one that the rule draws from
/// all logits that this backend computes: always 0.
pub(super) fn outputs<B: Inspect>(
    b: &mut B,
    v: &mut Values,
    [n, width, vocab]: [usize; 3],
) -> Result<Results, KernelError> {
    let (table, x) = doubled(b, v, [n, width, vocab], bitnet_tensor::DType::BF16)?;
    let step = vocab / CHANGES;
    let change = |i: usize| Change {
        token: (i * step) as u32,
        repetition: [1.0, 1.2, 0.9][i % 3],
        less: 0.1 * (i % 4) as f32,
        more: if i % 5 == 4 { f32::NEG_INFINITY } else { 0.2 * (i % 2) as f32 },
    };
    let changes: Vec<Change> = (0..CHANGES).map(change).collect();
    let words = vocab.div_ceil(32);
    let mut masks = vec![0; 2 * words];
    for token in 0..vocab {
        // Few, and most, with all that are changed.
        masks[token / 32] |= u32::from(token % 97 == 5) << (token % 32);
        masks[words + token / 32] |= u32::from(token % 3 != 1 || token % step == 0) << (token % 32);
    }
    let (few, most) = (Some(0), Some(words as u32));
    let of = |params, from, to, mask| Wanted::Changed { params, from, to, mask };
    let wanted: Vec<Wanted> = (0..n)
        .map(|row| {
            let greedy = SamplingParams::GREEDY;
            let warm = SamplingParams { temperature: 1.0, seed: 77, position: row as u32, ..greedy };
            match row % 8 {
                0 => Wanted::Token(warm),
                1 => Wanted::Token(SamplingParams { temperature: 2.0, min_p: 0.2, choice: 3, ..warm }),
                2 => of(greedy, 0, 40, None),
                3 => of(warm, 0, 0, few),
                4 => of(SamplingParams { temperature: 0.3, ..warm }, 10, 30, most),
                5 => of(greedy, 0, 0, most),
                6 => Wanted::Token(SamplingParams { top_k: 3, ..warm }),
                _ => of(warm, 4, 5, None),
            }
        })
        .collect();
    let all = logits(b, &x, &table, &vec![Wanted::All; n], vocab)?;
    let edits = Edits { changes: &changes, masks: &masks };
    let (mut some, mut tokens) = (vec![0.0; n * vocab], vec![None; n]);
    b.logits(&x, &table, &wanted, edits, &mut some, &mut tokens)?;
    let rows = all.chunks_exact(vocab).zip(some.chunks_exact(vocab)).zip(wanted.iter().zip(tokens));
    let differences = rows.map(|((all, some), (wanted, token))| {
        let params = wanted.sampling().unwrap_or(SamplingParams::GREEDY);
        // Where a value is not a number, a backend may report it or compute all logits; which is first is the host's to say.
        let numbers = !all.iter().any(|logit| logit.is_nan());
        let token = token.unwrap_or_else(|| drawn(&edited(some, wanted, edits), &params));
        i32::from(numbers && token != drawn(&edited(all, wanted, edits), &params))
    });
    Ok(vec![integers("difference", differences.collect())])
}
