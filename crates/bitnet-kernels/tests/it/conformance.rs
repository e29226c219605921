//! Runs the conformance table on every instruction set of this machine, with several numbers of threads.

use bitnet_kernels::{
    BLOCK_TOKENS, Backend, Cpu, Grouping, Inspect, Isa, KvShape, KvType, Norm, RowOrder, RowsKind, Run, Step,
    conformance::{Expected, cpu_cases},
};
use bitnet_tensor::TernaryTensor;
use half::f16;

#[test]
fn every_isa_and_thread_count_equals_the_reference_bit_for_bit() {
    // Some cases attend over several segments, whose maximum scores come in any order.
    for kv in KvType::ALL {
        // Other cache types run with one number of threads: stored values do not depend on it.
        let threads = if kv == KvType::F32 { &[1, 2, 3][..] } else { &[2] };
        let mut cpus: Vec<(String, Cpu)> = Isa::available()
            .flat_map(|isa| threads.iter().map(move |&threads| (isa, threads)))
            .map(|(isa, threads)| {
                let cpu = Cpu::new(isa, threads).unwrap().keeping(kv);
                (format!("{isa:?} with {threads} threads, cache of {kv}"), cpu)
            })
            .collect();
        let mut cases = cpu_cases();
        cases.retain(|case| kv == KvType::F32 || case.caches());
        let mut failures = Vec::new();
        for &case in &cases {
            let expected = Expected::of(case, kv);
            for (name, cpu) in &mut cpus {
                failures.extend(expected.check(cpu).err().map(|failure| format!("{name}: {failure}")));
            }
        }
        assert!(failures.is_empty(), "{}", failures.join("\n"));
        cpus.iter().for_each(|(name, _)| println!("{name}: {} cases equal", cases.len()));
    }
}

/// Products of the largest magnitudes of int8 and trits: 16-bit sums must be widened in time.
#[test]
fn extreme_activations_overflow_no_instruction_set() {
    for isa in Isa::available() {
        // The last exceeds what the sums of one token hold when planes are masked in place.
        for k in [64, 240, 256, 8640, 16384, 1 << 20] {
            for n in [1, 2, 6] {
                for (sign, x) in [(1, 127), (-1, 127), (1, -127), (-1, -127)] {
                    let trits = vec![sign; 64 * k];
                    let w = TernaryTensor::from_trits(64, k, &trits, 1.0).unwrap();
                    let mut b = Cpu::new(isa, 1).unwrap();
                    let w = b.linear(&w, RowOrder::Plain).unwrap();
                    let mut input = b.rows(n, k, RowsKind::Residual).unwrap();
                    b.write(&mut input, &vec![x as f32; n * k]).unwrap();
                    let mut q = b.int8_rows(n, k, Grouping::Row).unwrap();
                    b.norm_quantize(n, &input, [None, None], None, &mut q).unwrap();
                    let mut out = b.rows(n, 64, RowsKind::Residual).unwrap();
                    b.bit_linear(n, &q, &w, &mut out, 0, None).unwrap();
                    let expected = (x * k as i64 * i64::from(sign)) as f32;
                    assert!(b.read(&out, n).unwrap().iter().all(|&y| y == expected), "{isa:?} k {k} n {n}");
                }
            }
        }
    }
}

/// Products of the largest magnitudes of int8 and codes, including +2: 16-bit sums must hold a group.
#[test]
fn extreme_groups_overflow_no_instruction_set() {
    for isa in Isa::available() {
        for n in [1, 2, 6] {
            extreme_groups(&mut Cpu::new(isa, 1).unwrap(), n, &format!("{isa:?}"));
        }
    }
}

/// Checks that the largest groups of `n` tokens, of either sign, are exact.
pub fn extreme_groups(b: &mut impl Inspect, n: usize, what: &str) {
    for (k, group) in [(128, 128), (192, 64), (16_384, 128), (16_448, 64)] {
        for (code, x) in [(0u8, 127), (0, -127), (0xFF, 127), (0xFF, -127)] {
            let value = if code == 0 { -1 } else { 2 };
            let groups = TernaryTensor::groups(k, group);
            // Not all equal, or groups of 64 would be merged to 128.
            let scales = (0..64 * groups).map(|i| f16::from_f32([1.0, 0.5][i % groups % 2])).collect();
            let w = TernaryTensor::from_groups(64, k, group, vec![code; 64 * k / 4], scales).unwrap();
            assert_eq!(w.group(), Some(group));
            let w = b.linear(&w, RowOrder::Plain).unwrap();
            let mut input = b.rows(n, k, RowsKind::Residual).unwrap();
            b.write(&mut input, &vec![x as f32; n * k]).unwrap();
            let mut q = b.int8_rows(n, k, Grouping::Groups).unwrap();
            b.norm_quantize(n, &input, [None, None], None, &mut q).unwrap();
            let mut out = b.rows(n, 64, RowsKind::Residual).unwrap();
            b.bit_linear(n, &q, &w, &mut out, 0, None).unwrap();
            let scale = |g: usize| [2, 1][g % 2] * (k - g * group).min(group) as i64;
            let expected = (0..groups).map(scale).sum::<i64>() * value * x;
            let got = b.read(&out, n).unwrap();
            assert!(got.iter().all(|&y| y == expected as f32 / 2.0), "{what} k {k} n {n}: {got:?}");
        }
    }
}

#[test]
fn groups_of_64_with_equal_scales_give_the_bits_of_groups_of_128() {
    let (rows, cols) = (70, 320);
    let codes: Vec<u8> = (0..rows * cols / 4).map(|i| (i * i * 31 % 253) as u8).collect();
    let wide: Vec<f16> = (0..rows * 3).map(|i| f16::from_f32(0.01 + i as f32 / 4096.0)).collect();
    let narrow = wide.chunks(3).flat_map(|s| [s[0], s[0], s[1], s[1], s[2]]).collect();
    let values: Vec<f32> = (0..5 * cols).map(|i| (i * 37 % 101) as f32 - 50.0).collect();
    for isa in Isa::available() {
        let mut b = Cpu::new(isa, 2).unwrap();
        let mut run = |group, scales: &Vec<f16>| {
            let w = TernaryTensor::from_groups(rows, cols, group, codes.clone(), scales.clone()).unwrap();
            let w = b.linear(&w, RowOrder::Plain).unwrap();
            let mut x = b.rows(5, cols, RowsKind::Residual).unwrap();
            b.write(&mut x, &values).unwrap();
            let mut q = b.int8_rows(5, cols, Grouping::Groups).unwrap();
            b.norm_quantize(5, &x, [None, None], None, &mut q).unwrap();
            let mut out = b.rows(5, rows, RowsKind::Residual).unwrap();
            b.bit_linear(5, &q, &w, &mut out, 0, None).unwrap();
            b.read(&out, 5).unwrap().into_iter().map(f32::to_bits).collect::<Vec<_>>()
        };
        assert_eq!(run(64, &narrow), run(128, &wide), "{isa:?}");
    }
}

#[test]
fn a_row_with_a_nan_touches_no_other_row() {
    let (n, width) = (3, 300);
    for isa in Isa::available() {
        let mut b = Cpu::new(isa, 2).unwrap();
        let run = |b: &mut Cpu, poison: bool| {
            let mut values = vec![0.5; n * width];
            if poison {
                values[width + 7] = f32::NAN;
            }
            let norm = Norm { gain: b.gain(&vec![1.0; width]).unwrap(), eps: 1e-5 };
            let w = TernaryTensor::from_trits(80, width, &vec![1; 80 * width], 1.0).unwrap();
            let w = b.linear(&w, RowOrder::Plain).unwrap();
            let (mut x, mut q) = (
                b.rows(n, width, RowsKind::Residual).unwrap(),
                b.int8_rows(n, width, Grouping::Row).unwrap(),
            );
            b.write(&mut x, &values).unwrap();
            b.norm_quantize(n, &x, [Some(&norm), None], None, &mut q).unwrap();
            let mut out = b.rows(n, 80, RowsKind::Residual).unwrap();
            b.bit_linear(n, &q, &w, &mut out, 0, None).unwrap();
            b.read(&out, n).unwrap()
        };
        let (clean, poisoned) = (run(&mut b, false), run(&mut b, true));
        assert!(poisoned[80..160].iter().all(|y| y.is_nan()));
        assert_eq!(clean[..80], poisoned[..80]);
        assert_eq!(clean[160..], poisoned[160..]);
    }
}

/// Keys of the largest magnitude, of both signs, for queries that only fit 16 bits where heads are narrow enough: if a
/// sum overflowed, a token would attend to the wrong keys, or add their values with the wrong sign.
#[test]
fn extreme_keys_and_values_of_int8_overflow_no_instruction_set() {
    let (keys, heads) = (2 * 256, 3);
    for isa in Isa::available() {
        for head_dim in [2, 128, 514, 516, 518, 2048] {
            let mut b = Cpu::new(isa, 1).unwrap().keeping(KvType::Int8);
            let blocks = keys / BLOCK_TOKENS;
            let mut kv = b.kv(KvShape { blocks, kv_heads: 1, head_dim }).unwrap();
            let width = (heads + 2) * head_dim;
            let mut qkv = b.rows(keys, width, RowsKind::Intermediate).unwrap();
            // Of every four keys, two are attended to. The others have the opposite value.
            let sign = |key: usize| if key % 4 < 2 { 1.0 } else { -1.0 };
            let values = (0..keys * width).map(|i| match (i % width) / head_dim {
                head if head < heads => 40.0 / (head_dim as f32).sqrt(),
                _ => 3.0 * sign(i / width),
            });
            b.write(&mut qkv, &values.collect::<Vec<_>>()).unwrap();
            let table: Vec<u32> = (0..blocks as u32).collect();
            let run = Run { tokens: 0..keys, blocks: 0..blocks, ..Run::default() };
            let rope =
                b.rope(&vec![1.0; keys * head_dim / 2], &vec![0.0; keys * head_dim / 2], head_dim).unwrap();
            let (runs, mut out) = ([run], b.rows(keys, heads * head_dim, RowsKind::Intermediate).unwrap());
            let step = Step::new(&runs, &table);
            b.norm_rope_store(step, heads, &rope, None, &mut qkv, &mut kv).unwrap();
            b.attention(step, &qkv, &kv, &mut out).unwrap();
            let out = b.read(&out, keys).unwrap();
            let worst = out.iter().fold(0.0f32, |worst, x| worst.max((x - 3.0).abs()));
            assert!(worst < 1e-3, "{isa:?}, heads of {head_dim}: {worst}");
        }
    }
}
