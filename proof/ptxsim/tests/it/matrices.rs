//! `ldmatrix` and `mma` together, compared with plain loops over matrices in memory.

use bitnet_ptxsim::Launch;
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

#[test]
fn float_mma_rounds_once() {
    // Twice 2^-24: added one by one to 1 each would be lost, but their sum counts.
    let body = "mov.b32 a0, 0x3f803380; mov.b32 a1, 0; mov.b32 b0, 0x3f803f80; mov.b32 f0, 0f00000000;
      setp.eq.u32 p, tid, 0; @!p mov.b32 a0, 0; @!p mov.b32 b0, 0; and.b32 r0, tid, 3; setp.eq.u32 q, r0, 1; @q mov.b32 a0, 0x3380;
      setp.eq.u32 p, tid, 1; @p mov.b32 b0, 0x3f80;
      mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {f0,f1,f2,f3}, {a0,a1,a1,a1}, {b0,a1}, {f0,f0,f0,f0};
      st.global.f32 [mo], f0;";
    assert_eq!(run(body, &Launch::new(1, 32), &[0], 32)[0], 0x3f80_0001);
}
