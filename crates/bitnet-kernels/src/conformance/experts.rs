//! Cases for mixtures of experts, for windows, and for the gates and norms of families that have them.

use bitnet_tensor::{BitNetTensor, DType, SharedBytes};

use super::{Case, Results, Values, attention, floats, from_file, norms};
use crate::{ExpertShape, ExpertWeights, Gate, Inspect, KernelError, KvShape, RowsKind, Weights};

const CLAMPED: Gate = Gate::ClampedSilu { limit: 2.0 };

/// Adds gates, norms of the residual, and mixtures with shapes of golden checkpoints, of the 20B model with fewer experts,
/// and odd ones.
pub(super) fn add_cases(cases: &mut Vec<Case>) {
    for gate in [CLAMPED, Gate::Gelu] {
        for ffn in [1, 16, 100, 352] {
            cases.push(Case::GateNormQuantize { n: 7, ffn, gate, norms: ffn % 2 });
        }
        for (n, k, ffn, group) in
            [(1, 100, 70, None), (9, 192, 40, None), (1, 192, 70, Some(128)), (33, 100, 24, Some(64))]
        {
            cases.push(Case::GateUp { n, k, ffn, group, gate });
        }
    }
    for (n, width) in [(1, 1), (9, 100), (7, 256), (9, 640), (9, 3100)] {
        cases.push(Case::NormAdd { n, width });
    }
    for (hidden, ffn, count, used, group, gate, dtype) in [
        (256, 256, 8, 2, 128, CLAMPED, DType::BF16),
        (128, 256, 5, 2, 128, CLAMPED, DType::F32),
        (2048, 512, 12, 8, 128, CLAMPED, DType::BF16),
        (192, 96, 3, 1, 64, Gate::Silu, DType::F16),
        (100, 40, 7, 7, 128, Gate::SquaredRelu, DType::F32),
        (17, 1, 2, 1, 128, Gate::Gelu, DType::F32),
    ] {
        for n in [1, 2, 3, 8, 33] {
            cases.push(Case::Experts { n, hidden, ffn, count, used, group, gate, dtype });
        }
    }
    windows(cases);
}

/// Adds windows within a tile of keys and over several, whose first key is at the beginning of a tile, at its end and
/// between; tokens of one run whose windows begin in different tiles; and prompts that are longer than their windows.
fn windows(cases: &mut Vec<Case>) {
    let one: &[(usize, usize)] = &[(0, 1)];
    let within: &[(usize, usize)] = &[(0, 17), (15, 1), (63, 2)];
    let several: &[(usize, usize)] = &[(255, 1), (256, 1), (257, 3), (600, 2), (0, 70)];
    let long: &[(usize, usize)] = &[(767, 1), (40, 1)];
    let crossing: &[(usize, usize)] = &[(74, 3), (100, 80), (0, 130)];
    for (window, heads, kv_heads, head_dim, runs) in [
        (1, 1, 1, 2, &[one, within, several, long][..]),
        (12, 8, 2, 64, &[within, crossing]),
        (8, 4, 1, 48, &[several]),
        (31, 3, 1, 36, &[within, crossing]),
        (64, 4, 4, 32, &[several, long]),
        (257, 2, 1, 80, &[several, long]),
        (512, 4, 1, 128, &[one, long]),
        (140, 2, 1, 256, &[several, crossing]),
    ] {
        let window = |&runs| Case::Window { window, heads, kv_heads, head_dim, runs, odd: false };
        cases.extend(runs.iter().map(window));
    }
    let runs = &[(0, 2), (0, 2), (0, 2), (0, 1)];
    cases.push(Case::Window { window: 1, heads: 2, kv_heads: 1, head_dim: 36, runs, odd: true });
}

/// Runs one of these cases.
pub(super) fn outputs<B: Inspect>(b: &mut B, v: &mut Values, case: Case) -> Result<Results, KernelError> {
    match case {
        Case::Window { window, heads, kv_heads, head_dim, runs, odd } => {
            attention(b, v, heads, KvShape { blocks: 0, kv_heads, head_dim }, runs, (Some(window), odd))
        }
        Case::NormAdd { n, width } => {
            let norm = norms(b, v, 1, width)?.remove(0);
            let mut x = b.rows(n, width, RowsKind::Intermediate)?;
            b.write(&mut x, &v.rows(n, width))?;
            let mut out = b.rows(n, width, RowsKind::Residual)?;
            b.write(&mut out, &v.many(n * width))?;
            b.norm_add(n, &x, &norm, &mut out)?;
            Ok(vec![floats("sum", b.read(&out, n)?)])
        }
        Case::Experts { n, hidden, ffn, count, used, group, gate, dtype } => {
            let shape = ExpertShape { count, used, hidden, ffn, gate };
            experts(b, v, n, shape, group, dtype)
        }
        _ => unreachable!("only these cases are here"),
    }
}

/// Mixes the experts of ordinary and extreme rows, and once more of one row alone.
fn experts<B: Inspect>(
    b: &mut B,
    v: &mut Values,
    n: usize,
    shape: ExpertShape,
    group: usize,
    dtype: DType,
) -> Result<Results, KernelError> {
    let ExpertShape { count, hidden, ffn, .. } = shape;
    let router = v.table(count, hidden, dtype);
    // The last expert has the logits of the first.
    let mut bytes = router.bytes().to_vec();
    bytes.copy_within(..router.row_bytes(), (count - 1) * router.row_bytes());
    let router = BitNetTensor::new(dtype, [count, hidden], SharedBytes::new(bytes)).expect("as before");
    let mut matrix = |rows, cols| v.ternary(&[count * rows], cols, Some(group));
    let (gate, up, down) = (matrix(ffn, hidden), matrix(ffn, hidden), matrix(hidden, ffn));
    let weights = ExpertWeights {
        router: &router,
        gate: Weights::from(&gate),
        up: Weights::from(from_file(&up)?),
        down: Weights::from(&down),
    };
    let experts = b.experts(shape, weights)?;
    let norm = norms(b, v, 1, hidden)?.remove(0);
    let mut x = b.rows(n, hidden, RowsKind::Residual)?;
    let values = v.rows(n, hidden);
    b.write(&mut x, &values)?;
    b.mix_experts(n, &norm, &experts, &mut x)?;
    let together = b.read(&x, n)?;
    b.write(&mut x, &values[(n - 1) * hidden..])?;
    b.mix_experts(1, &norm, &experts, &mut x)?;
    Ok(vec![floats("sum", together), floats("sum of one row", b.read(&x, 1)?)])
}
