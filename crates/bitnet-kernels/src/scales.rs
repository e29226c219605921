//! The scales and sums of quantised activations, as the backends on the host keep them.

use bitnet_tensor::quant::{GROUP, GroupQuant, RowQuant};

use crate::Grouping;

/// Scales and sums of quantised values.
#[derive(Debug, Clone)]
pub(crate) enum Scales {
    /// `[rows]`
    Rows(Vec<RowQuant>),
    /// `[rows][groups]`
    Groups(Vec<GroupQuant>),
}

impl Scales {
    /// Zeros for `rows` rows of `width` values.
    pub(crate) fn zeroed(rows: usize, width: usize, grouping: Grouping) -> Self {
        match grouping {
            Grouping::Row => Scales::Rows(vec![RowQuant { multiplier: 0.0, sum: 0 }; rows]),
            Grouping::Groups => Scales::Groups(vec![GroupQuant::default(); rows * width.div_ceil(GROUP)]),
        }
    }

    /// Bytes of these for `rows` rows of `width` values.
    pub(crate) fn bytes(rows: usize, width: usize, grouping: Grouping) -> usize {
        match grouping {
            Grouping::Row => rows * size_of::<RowQuant>(),
            Grouping::Groups => rows * width.div_ceil(GROUP) * size_of::<GroupQuant>(),
        }
    }

    /// The first `n` rows of `width` values: multipliers and sums of rows, or scales and sums of groups.
    pub(crate) fn read(&self, n: usize, width: usize) -> (Vec<f32>, Vec<i32>) {
        match self {
            Scales::Rows(rows) => rows[..n].iter().map(|row| (row.multiplier, row.sum)).unzip(),
            Scales::Groups(groups) => {
                groups[..n * width.div_ceil(GROUP)].iter().map(|group| (group.scale, group.sum)).unzip()
            }
        }
    }
}
