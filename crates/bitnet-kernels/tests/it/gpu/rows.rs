//! Operations on one row at a time.

use bitnet_kernels::{
    Backend, Gate, Grouping, Inspect, Norm, Reference, RowsKind,
    gpu::{Gpu, GpuError, table::NORM_QUANTIZE},
};
use bitnet_tests::Simulator;

use super::small;

/// Rows that are ordinary, zero, tiny, huge or all equal, or have an infinity or a NaN.
fn adversarial(rows: usize, width: usize) -> Vec<f32> {
    let mut values: Vec<f32> = (0..rows * width).map(|i| ((i * i) as f32 * 0.37).sin()).collect();
    for (i, row) in values.chunks_exact_mut(width).enumerate() {
        match i % 7 {
            1 => row.fill(0.0),
            2 => row.iter_mut().for_each(|x| *x *= 1e-7),
            3 => row.iter_mut().for_each(|x| *x *= 1e18),
            4 => row.fill(-3.0),
            5 => row[width / 2] = f32::NEG_INFINITY,
            6 => row[width - 1] = f32::NAN,
            _ => row.iter_mut().for_each(|x| *x *= 4.0),
        }
    }
    values
}

fn gains(width: usize) -> [Vec<f32>; 2] {
    [0.3, 0.7].map(|step| (0..width).map(|i| 1.0 + 0.5 * (i as f32 * step).cos()).collect())
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|v| if v.is_nan() { f32::NAN.to_bits() } else { v.to_bits() }).collect()
}

#[test]
fn quantised_rows_equal_the_reference_bit_for_bit_at_any_width_and_number_of_norms() {
    let n = 9;
    for width in [1, 3, 8, 100, 127, 256, 257, 1025, 2560, 8640] {
        let values = adversarial(n, width);
        for (norms, kind) in [0, 1, 2]
            .into_iter()
            .flat_map(|n| [RowsKind::Residual, RowsKind::Intermediate].map(|kind| (n, kind)))
        {
            let (mut gpu, mut cpu) = (Gpu::new(Simulator::default()).unwrap(), Reference::bf16());
            let (mut x, mut y) = (gpu.rows(n, width, kind).unwrap(), cpu.rows(n, width, kind).unwrap());
            gpu.write_rows(&mut x, &values).unwrap();
            cpu.write(&mut y, &values).unwrap();
            let gains = gains(width);
            let on_gpu = gains.clone().map(|g| Norm { gain: gpu.gain(&g).unwrap(), eps: 1e-5 });
            let on_cpu = gains.map(|gain| Norm { gain, eps: 1e-5 });
            let (mut q, mut r) = (
                gpu.int8_rows(n, width, Grouping::Row).unwrap(),
                cpu.int8_rows(n, width, Grouping::Row).unwrap(),
            );
            gpu.norm_quantize(n, &x, [on_gpu.get(2 - norms), on_gpu.get(3 - norms)], None, &mut q).unwrap();
            cpu.norm_quantize(n, &y, [on_cpu.get(2 - norms), on_cpu.get(3 - norms)], None, &mut r).unwrap();
            let (a, b) = (gpu.read_int8_rows(&q, n).unwrap(), cpu.read_int8_rows(&r, n).unwrap());
            assert_eq!(
                (a.0, bits(&a.1), a.2),
                (b.0, bits(&b.1), b.2),
                "width {width}, {norms} norms, {kind:?}"
            );
        }
    }
}

#[test]
fn gated_rows_equal_the_reference_bit_for_bit() {
    let n = 8;
    for ffn in [1, 16, 100, 352, 2561] {
        for gate in [Gate::SquaredRelu, Gate::Silu] {
            let mut values = adversarial(n, 2 * ffn);
            // Gates over the whole range of exp.
            for (i, x) in values[..2 * ffn].iter_mut().enumerate() {
                *x = (i % 400) as f32 - 200.0;
            }
            let (mut gpu, mut cpu) = (Gpu::new(Simulator::default()).unwrap(), Reference::bf16());
            let kind = RowsKind::Intermediate;
            let mut x = gpu.rows(n, 2 * ffn, kind).unwrap();
            let mut y = cpu.rows(n, 2 * ffn, kind).unwrap();
            gpu.write_rows(&mut x, &values).unwrap();
            cpu.write(&mut y, &values).unwrap();
            let [gain, _] = gains(ffn);
            let on_gpu = Norm { gain: gpu.gain(&gain).unwrap(), eps: 1e-6 };
            let on_cpu = Norm { gain, eps: 1e-6 };
            let (mut q, mut r) = (
                gpu.int8_rows(n, ffn, Grouping::Row).unwrap(),
                cpu.int8_rows(n, ffn, Grouping::Row).unwrap(),
            );
            gpu.gate_norm_quantize(n, &x, gate, [None, Some(&on_gpu)], None, &mut q).unwrap();
            cpu.gate_norm_quantize(n, &y, gate, [None, Some(&on_cpu)], None, &mut r).unwrap();
            let (a, b) = (gpu.read_int8_rows(&q, n).unwrap(), cpu.read_int8_rows(&r, n).unwrap());
            assert_eq!((a.0, bits(&a.1), a.2), (b.0, bits(&b.1), b.2), "ffn {ffn}, {gate:?}");
        }
    }
}

#[test]
fn a_row_wider_than_shared_memory_is_refused_with_its_cure() {
    let mut gpu = Gpu::new(Simulator::with(|info| info.shared = 48 << 10)).unwrap();
    let x = gpu.rows(1, 20_000, RowsKind::Residual).unwrap();
    let mut q = gpu.int8_rows(1, 20_000, Grouping::Row).unwrap();
    let wide = gpu.norm_quantize(1, &x, [None, None], None, &mut q).unwrap_err();
    let GpuError::RowTooWide { bytes, limit: 49_152, .. } = wide else { panic!("{wide}") };
    // Shared memory that the text declares and that the launch adds; one byte less than both is too little.
    for (shared, fits) in [(bytes, true), (bytes - 1, false)] {
        let mut gpu = Gpu::new(Simulator::with(|info| info.shared = shared)).unwrap();
        let x = gpu.rows(1, 20_000, RowsKind::Residual).unwrap();
        let mut q = gpu.int8_rows(1, 20_000, Grouping::Row).unwrap();
        assert_eq!(gpu.norm_quantize(1, &x, [None, None], None, &mut q).is_ok(), fits);
    }
    // Columns are padded to 1024.
    assert_eq!(bytes, 4 * 20_480 + NORM_QUANTIZE.shared);
}

#[test]
fn normed_rows_are_the_requested_ones_in_their_order() {
    for width in [1, 17, 256, 2560, 5400] {
        let values = adversarial(7, width);
        let (mut gpu, mut cpu) = (Gpu::new(Simulator::default()).unwrap(), Reference::bf16());
        let mut x = gpu.rows(7, width, RowsKind::Residual).unwrap();
        let mut y = cpu.rows(7, width, RowsKind::Residual).unwrap();
        gpu.write_rows(&mut x, &values).unwrap();
        cpu.write(&mut y, &values).unwrap();
        let [gain, _] = gains(width);
        let on_gpu = Norm { gain: gpu.gain(&gain).unwrap(), eps: 1e-5 };
        let mut out = gpu.rows(4, width, RowsKind::Intermediate).unwrap();
        let mut expected = cpu.rows(4, width, RowsKind::Intermediate).unwrap();
        let wanted = [6, 0, 3, 0];
        gpu.norm_rows(&wanted, &x, &on_gpu, &mut out).unwrap();
        cpu.norm_rows(&wanted, &y, &Norm { gain, eps: 1e-5 }, &mut expected).unwrap();
        assert_eq!(
            bits(&gpu.read_rows(&out, 4).unwrap()),
            bits(&cpu.read(&expected, 4).unwrap()),
            "width {width}"
        );
    }
}

#[test]
fn heads_that_a_warp_takes_in_turn_equal_heads_side_by_side() {
    let wide = Simulator::with(|info| info.processors = 100);
    assert_eq!(small::normed_heads_in_turns(Simulator::default()), small::normed_heads_in_turns(wide));
}

/// A thread reads 16 logits at a time, of which the last may be fewer.
#[test]
fn the_highest_logit_is_the_lowest_of_its_equals_at_any_size() {
    for vocab in [1, 3, 4, 5, 4099, 16_384, 16_385, 40_001] {
        let spread = |i: usize| ((i * 7919) % 1013) as f32 - 1200.0;
        let mut rows = vec![(0..vocab).map(spread).collect::<Vec<_>>(); 6];
        rows[1].fill(f32::NEG_INFINITY);
        // Equal to the bit, or as zeros of both signs, in the same and in other turns of a thread.
        for at in [vocab / 2, vocab - 1] {
            rows[2][at] = 7.0;
        }
        for (at, zero) in [(vocab / 3, -0.0), (vocab.saturating_sub(2), 0.0), (vocab - 1, 0.0)] {
            rows[3][at] = zero;
        }
        for at in [vocab / 3, vocab - 1] {
            rows[4][at] = f32::NAN;
        }
        rows[5].fill(f32::NEG_INFINITY);
        rows[5][vocab - 1] = f32::MIN;
        let expected: Vec<u32> = rows.iter().flat_map(|row| chosen(row)).collect();
        let found = small::highest(Simulator::default(), vocab, &rows.concat()).unwrap();
        assert_eq!(found, expected, "{vocab}");
    }
}

/// The token and its status, by a plain loop.
fn chosen(row: &[f32]) -> [u32; 2] {
    if let Some(at) = row.iter().position(|x| x.is_nan()) {
        return [at as u32, 1];
    }
    let best = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let at = row.iter().position(|&x| x == best).expect("a row is not empty");
    [at as u32, if best == f32::NEG_INFINITY { 2 } else { 0 }]
}
