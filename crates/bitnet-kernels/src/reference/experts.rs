//! The reference's mixture of experts: plain loops in the order that [`crate::order`] defines.

use bitnet_tensor::{BitNetTensor, TernaryTensor, quant};

use super::{dot, gated, multiply_groups, rms_norm};
use crate::{
    ExpertShape, ExpertWeights, KernelError, Norm,
    order::{exp, fused},
};

/// A mixture of experts of the reference.
#[derive(Debug)]
pub struct Experts {
    shape: ExpertShape,
    router: BitNetTensor,
    /// One matrix for each expert.
    gate: Vec<TernaryTensor>,
    up: Vec<TernaryTensor>,
    down: Vec<TernaryTensor>,
}

impl Experts {
    pub(super) fn new(shape: ExpertShape, weights: ExpertWeights<'_>) -> Result<Self, KernelError> {
        let each = |weights: crate::Weights<'_>| {
            let all = weights.canonical()?;
            let rows = all.rows() / shape.count;
            let one = |expert| all.select_rows(rows, |row| expert * rows + row);
            Ok::<_, KernelError>((0..shape.count).map(one).collect())
        };
        let ExpertWeights { router, gate, up, down } = weights;
        Ok(Experts { shape, router: router.clone(), gate: each(gate)?, up: each(up)?, down: each(down)? })
    }

    /// Adds to a row what its experts compute from it. `kept` rounds a gated value.
    pub(super) fn add_to(&self, norm: &Norm<Vec<f32>>, row: &mut [f32], kept: impl Fn(f32) -> f32) {
        let mut x = row.to_vec();
        rms_norm(&mut x, norm);
        let mut sum = vec![0.0f32; row.len()];
        for (expert, weight) in self.route(&x) {
            let (gate, up) = (product(&x, &self.gate[expert]), product(&x, &self.up[expert]));
            let h: Vec<f32> =
                gate.iter().zip(&up).map(|(&g, &u)| kept(gated(self.shape.gate, g, u))).collect();
            for (sum, y) in sum.iter_mut().zip(product(&h, &self.down[expert])) {
                *sum = fused(weight, y, *sum);
            }
        }
        row.iter_mut().zip(sum).for_each(|(x, y)| *x += y);
    }

    /// The experts of a token and their weights, in ascending order.
    fn route(&self, x: &[f32]) -> Vec<(usize, f32)> {
        let ExpertShape { count, used, .. } = self.shape;
        let mut weights = vec![0.0; self.router.cols()];
        let logits: Vec<f32> = (0..count)
            .map(|expert| {
                self.router.decode_row(expert, &mut weights);
                dot(&weights, x)
            })
            .collect();
        if logits.iter().any(|logit| logit.is_nan()) {
            return (0..used).map(|expert| (expert, f32::NAN)).collect();
        }
        let mut chosen: Vec<usize> = (0..count).collect();
        // A stable sort keeps the lower of two experts with equal logits before the other.
        chosen.sort_by(|&a, &b| logits[b].partial_cmp(&logits[a]).expect("no logit is NaN"));
        chosen.truncate(used);
        let largest = logits[chosen[0]];
        chosen.sort_unstable();
        let powers: Vec<f32> = chosen.iter().map(|&expert| exp(logits[expert] - largest)).collect();
        let sum = powers.iter().fold(0.0, |sum, power| sum + power);
        chosen.into_iter().zip(powers).map(|(expert, power)| (expert, power / sum)).collect()
    }
}

/// Quantises a row and multiplies it by a matrix.
fn product(x: &[f32], w: &TernaryTensor) -> Vec<f32> {
    let (mut q, count) = (vec![0; x.len()], x.len().div_ceil(quant::GROUP));
    let mut groups = vec![quant::GroupQuant::default(); count];
    quant::quantize_groups(x, &mut q, &mut groups);
    multiply_groups(&q, &groups, w, w.group().expect("experts have scales for groups of columns")).collect()
}
