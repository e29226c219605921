//! `ldmatrix` and `mma` together, compared with plain loops over matrices in memory.

use bitnet_ptxsim::{Launch, MatrixUnit};
use proptest::prelude::*;

use super::support::run;

/// Copies the input to shared memory, 16 bytes for each lane, `rounds` times.
fn stage(rounds: usize) -> String {
    let copy = |i: usize| format!("cp.async.cg.shared.global [r0+{0}], [d1+{0}], 16;", 512 * i);
    let copies: String = (0..rounds).map(copy).collect();
    format!(
        "mov.u32 r0, s; mad.lo.u32 r0, tid, 16, r0; mul.wide.u32 d1, tid, 16; add.u64 d1, gi, d1; {copies}
        cp.async.wait_all; bar.sync 0; mov.u32 r5, s; mov.b32 c0, 0; mov.b32 c1, 0; mov.b32 c2, 0; mov.b32 c3, 0;"
    )
}

/// Stores the accumulator row by row: 16 rows of 8.
const STORE: &str = "shr.u32 r1, tid, 2; and.b32 r2, tid, 3; shl.b32 r3, r1, 3; mad.lo.u32 r3, r2, 2, r3;
      mul.wide.u32 d2, r3, 4; add.u64 d2, go, d2; st.global.v2.b32 [d2], {c0, c1}; st.global.v2.b32 [d2+256], {c2, c3};";

/// a as 16 rows and b as 8 columns of 32 bytes each, loaded as 8x16-byte matrices: lanes 0-7 of x4 address rows 0-7
/// left, 8-15 rows 8-15 left, 16-23 rows 0-7 right, 24-31 rows 8-15 right.
fn bytes_kernel(types: &str) -> String {
    let mma =
        format!("mma.sync.aligned.{types} {{c0,c1,c2,c3}}, {{a0,a1,a2,a3}}, {{b0,b1}}, {{c0,c1,c2,c3}};");
    format!(
        "{} and.b32 r1, tid, 15; shr.u32 r2, tid, 4; mad.lo.u32 r3, r1, 32, r5; mad.lo.u32 r3, r2, 16, r3;
        ldmatrix.sync.aligned.m8n8.x4.shared.b16 {{a0, a1, a2, a3}}, [r3];
        and.b32 r1, tid, 7; bfe.u32 r2, tid, 3, 1; mad.lo.u32 r3, r1, 32, r5; mad.lo.u32 r3, r2, 16, r3;
        ldmatrix.sync.aligned.m8n8.x4.shared.b16 {{b0, b1, b2, b3}}, [r3+512];
        {mma} {mma} {STORE}",
        stage(2)
    )
}

fn words(bytes: &[u8]) -> Vec<u32> {
    bytes.chunks_exact(4).map(|word| u32::from_le_bytes(word.try_into().unwrap())).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(8))]

    #[test]
    fn integer_mma_equals_plain_loops(mut bytes in prop::collection::vec(any::<u8>(), 768)) {
        bytes.resize(1024, 0);
        for (first, number) in [("u8", i32::from as fn(u8) -> i32), ("s8", |byte| i32::from(byte as i8))] {
            let kernel = bytes_kernel(&format!("m16n8k32.row.col.s32.{first}.s8.s32"));
            let got = run(&kernel, &Launch::new(1, 32), &words(&bytes), 128);
            for row in 0..16 {
                for column in 0..8 {
                    let product = |k| number(bytes[32 * row + k]) * i32::from(bytes[512 + 32 * column + k] as i8);
                    // Run twice over the same accumulator.
                    let expected = 2 * (0..32).map(product).sum::<i32>();
                    prop_assert_eq!(got[8 * row + column] as i32, expected, "{} row {} column {}", first, row, column);
                }
            }
        }
    }

    #[test]
    fn float_mma_equals_plain_loops(values in prop::collection::vec(-64i16..=64, 384)) {
        // Small multiples of 1/8, so that sums are exact in any order. b is stored as 16 rows of 8 and transposed by
        // the load.
        let f32s: Vec<f32> = values.iter().map(|&v| f32::from(v) / 8.0).collect();
        let mut bytes: Vec<u8> = f32s.iter().flat_map(|x| ((x.to_bits() >> 16) as u16).to_le_bytes()).collect();
        bytes.resize(1024, 0);
        let body = format!(
            "{} and.b32 r1, tid, 15; shr.u32 r2, tid, 4; mad.lo.u32 r3, r1, 32, r5; mad.lo.u32 r3, r2, 16, r3;
            ldmatrix.sync.aligned.m8n8.x4.shared.b16 {{a0, a1, a2, a3}}, [r3];
            mad.lo.u32 r3, r1, 16, r5; ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {{b0, b1, b2, b3}}, [r3+512];
            mov.b32 f0, 0; mov.b32 f1, 0; mov.b32 f2, 0; mov.b32 f3, 0;
            mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {{f0,f1,f2,f3}}, {{a0,a1,a2,a3}}, {{b0,b1}}, {{f0,f1,f2,f3}};
            mov.b32 c0, f0; mov.b32 c1, f1; mov.b32 c2, f2; mov.b32 c3, f3; {STORE}",
            stage(2)
        );
        let got = run(&body, &Launch::new(1, 32), &words(&bytes), 128);
        for row in 0..16 {
            for column in 0..8 {
                let expected: f32 = (0..16).map(|k| f32s[16 * row + k] * f32s[256 + 8 * k + column]).sum();
                prop_assert_eq!(f32::from_bits(got[8 * row + column]), expected, "row {} column {}", row, column);
            }
        }
    }
}

/// One element of a float `mma`: the first row of a with the first column of b, added to `c`.
fn element(unit: MatrixUnit, a: &[u16; 16], b: &[u16; 16], c: f32) -> u32 {
    // Lane q of the first four holds columns 2q, 2q + 1 in the first register, and those 8 further in another.
    let lane = |values: &[u16; 16], lane: usize, half: usize| {
        let at = 2 * lane + 8 * half;
        u32::from(values[at + 1]) << 16 | u32::from(values[at])
    };
    let input: Vec<u32> = [a, a, b, b]
        .iter()
        .enumerate()
        .flat_map(|(i, values)| (0..32).map(move |q| if q < 4 { lane(values, q, i % 2) } else { 0 }))
        .chain([c.to_bits(); 32])
        .collect();
    let body = "ld.global.b32 a0, [mi]; ld.global.b32 a2, [mi+128]; mov.b32 a1, 0;
      ld.global.b32 b0, [mi+256]; ld.global.b32 b1, [mi+384]; ld.global.f32 f0, [mi+512];
      mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {f0,f1,f2,f3}, {a0,a1,a2,a1}, {b0,b1}, {f0,f0,f0,f0};
      st.global.f32 [mo], f0;";
    run(body, &Launch { matrix_unit: unit, ..Launch::new(1, 32) }, &input, 32)[0]
}

const ONE: u16 = 0x3F80;
const UNITS: [MatrixUnit; 2] = [MatrixUnit::Ampere, MatrixUnit::Hopper];

/// What both kinds of silicon make of a sum that decides between roundings. `tiny(e)` is `2^e`.
#[test]
fn float_mma_cuts_off_where_the_unit_of_the_gpu_does() {
    let tiny = |exponent: i32| ((exponent + 127) as u16) << 7;
    let with = |terms: &[(usize, u16)]| {
        let mut a = [0; 16];
        terms.iter().for_each(|&(at, bits)| a[at] = bits);
        a
    };
    let minus = 0x8000;
    for (what, a, c, expected) in [
        (
            "two halves of a unit of the last place make one, in the same group",
            with(&[(0, tiny(-24)), (1, tiny(-24))]),
            1.0,
            [1, 1],
        ),
        ("a sum is cut off and not rounded", with(&[(0, tiny(-24)), (1, tiny(-23))]), 1.0, [1, 1]),
        ("the second group has its own end", with(&[(0, tiny(-24)), (8, tiny(-24))]), 1.0, [0, 1]),
        (
            "four quarters are below what a group of 8 keeps",
            with(&[(0, tiny(-25)), (1, tiny(-25)), (2, tiny(-25)), (3, tiny(-25))]),
            1.0,
            [0, 1],
        ),
        (
            "towards zero, also below it",
            with(&[(0, minus | tiny(-24)), (1, minus | tiny(-23))]),
            -1.0,
            [1, 1],
        ),
    ] {
        for (unit, units) in UNITS.into_iter().zip(expected) {
            let bits = element(unit, &a, &[ONE; 16], c);
            assert_eq!(bits, c.to_bits() + units, "{unit:?}: {what}");
        }
    }
}

#[test]
fn a_product_is_aligned_by_the_exponents_of_its_factors_and_zeros_align_nothing() {
    // 1.5 x 1.5 has the exponent 0 and the value 2.25, whose own exponent, 1, would cost the last bit: 2^-24.
    let (mut a, mut b) = ([0; 16], [ONE; 16]);
    (a[0], b[0], a[1], a[2]) = (0x3FC0, 0x3FC0, (127 - 24) << 7, 0x8000 | ONE);
    assert_eq!(f32::from_bits(element(MatrixUnit::Ampere, &a, &b, -1.25)), 2f32.powi(-24));
    a[2] = 0;
    // The zero's other factor is huge.
    (a[0], b[0]) = (0, 0x7F00);
    for unit in UNITS {
        assert_eq!(f32::from_bits(element(unit, &a, &b, 0.0)), 2f32.powi(-24));
    }
}

#[test]
fn infinities_and_nans_come_out_of_float_mma_as_such() {
    let (infinite, minus_infinite, largest) = (0x7F80, 0xFF80, 0x7F7F);
    for unit in UNITS {
        let sum = |first, second| {
            let mut a = [0; 16];
            (a[0], a[9]) = (first, second);
            f32::from_bits(element(unit, &a, &[largest; 16], 1.0))
        };
        assert_eq!(sum(infinite, ONE), f32::INFINITY);
        assert!(sum(infinite, minus_infinite).is_nan() && sum(ONE, 0x7FC0).is_nan());
        assert_eq!([sum(largest, 0), sum(0xFF7F, 0)], [f32::INFINITY, f32::NEG_INFINITY], "overflow");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// The bound that the tests of the kernels use, at any magnitudes.
    #[test]
    fn the_error_of_float_mma_is_within_its_bound(
        values in prop::collection::vec((-1f32..1.0, -20i32..20), 32), c in -1f32..1.0,
    ) {
        let bf16 = |(x, e): (f32, i32)| (x * 2f32.powi(e)).to_bits() >> 16;
        let bits: Vec<u16> = values.into_iter().map(|value| bf16(value) as u16).collect();
        let (a, b): ([u16; 16], [u16; 16]) = (bits[..16].try_into().unwrap(), bits[16..].try_into().unwrap());
        let float = |bits: u16| f64::from(f32::from_bits(u32::from(bits) << 16));
        let products: Vec<f64> = a.iter().zip(b).map(|(&a, b)| float(a) * float(b)).collect();
        let exact = products.iter().sum::<f64>() + f64::from(c);
        let size = products.iter().map(|p| p.abs()).sum::<f64>() + f64::from(c).abs();
        for unit in UNITS {
            let error = (f64::from(f32::from_bits(element(unit, &a, &b, c))) - exact).abs();
            prop_assert!(error <= size * unit.error(16), "{:?}: {} of {}", unit, error, size);
        }
    }
}
