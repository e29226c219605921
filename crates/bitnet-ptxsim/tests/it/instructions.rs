//! Functions that a GPU gives nearly: what the simulator makes of them. Exact instructions are a table that is put to
//! GPUs too, beside the kernels.

use bitnet_ptxsim::Launch;

use super::support::run;

/// The result in `f1` of `f0` and `f2`. Hardware may be off by what `ops/approx.rs` lists.
#[rustfmt::skip]
const APPROXIMATE: &[(&str, [u32; 2], u32)] = &[
    ("ex2.approx.f32 f1, f0", [0x3f00_0000, 0], 0x3fb5_04f3),
    ("ex2.approx.f32 f1, f0", [0xff80_0000, 0], 0),
    ("ex2.approx.f32 f1, f0", [0x7f80_0000, 0], 0x7f80_0000),
    ("ex2.approx.f32 f1, f0", [0xc315_0000, 0], 1),
    ("ex2.approx.ftz.f32 f1, f0", [0xc315_0000, 0], 0),
    ("lg2.approx.f32 f1, f0", [0x4100_0000, 0], 0x4040_0000),
    ("lg2.approx.f32 f1, f0", [0x4040_0000, 0], 0x3fca_e00d),
    ("lg2.approx.f32 f1, f0", [0, 0], 0xff80_0000),
    ("lg2.approx.f32 f1, f0", [0xbf80_0000, 0], 0x7fff_ffff),
    ("rsqrt.approx.f32 f1, f0", [0x4000_0000, 0], 0x3f35_04f3),
    ("rcp.approx.ftz.f32 f1, f0", [0x4040_0000, 0], 0x3eaa_aaab),
    ("sqrt.approx.f32 f1, f0", [0x4110_0000, 0], 0x4040_0000),
    ("div.full.f32 f1, f0, f2", [0x40c0_0000, 0x4000_0000], 0x4040_0000),
    ("div.approx.f32 f1, f0, f2", [0x3f80_0000, 0x4040_0000], 0x3eaa_aaab),
];

#[test]
fn approximate_functions_give_the_float_that_is_nearest_at_their_edges() {
    for (text, sources, expected) in APPROXIMATE {
        let body =
            format!("ld.global.f32 f0, [gi]; ld.global.f32 f2, [gi+4]; {text}; st.global.f32 [go], f1;");
        assert_eq!(run(&body, &Launch::new(1, 1), sources, 1), [*expected], "{text} of {sources:x?}");
    }
}

/// Every `f32` in steps, against the platform's `f64` functions.
#[test]
fn approximate_functions_are_the_nearest_floats() {
    let body =
        "ld.global.f32 f0, [mi]; ex2.approx.f32 f1, f0; lg2.approx.f32 f2, f0; rsqrt.approx.f32 f3, f0;
      mul.wide.u32 d0, tid, 12; add.u64 d0, go, d0;
      st.global.f32 [d0], f1; st.global.f32 [d0+4], f2; st.global.f32 [d0+8], f3;";
    for start in 0..64u32 {
        // Spread over exponents and signs.
        let input: Vec<u32> = (0..256).map(|i| (start * 256 + i).wrapping_mul(0x0003_fff1)).collect();
        let output = run(body, &Launch::new(1, 256), &input, 3 * 256);
        for (bits, got) in input.iter().zip(output.chunks_exact(3)) {
            let x = f64::from(f32::from_bits(*bits));
            for (got, exact) in got.iter().zip([x.exp2(), x.log2(), 1.0 / x.sqrt()]) {
                let got = f64::from(f32::from_bits(*got));
                let ulp = f64::from(f32::from_bits(1)).max(exact.abs() * 2f64.powi(-23));
                let near = (got - exact).abs() <= 0.5001 * ulp
                    || exact.abs() > f64::from(f32::MAX) && got == exact.signum() * f64::INFINITY;
                assert!(
                    near || got == exact || (got.is_nan() && exact.is_nan()),
                    "{bits:#x}: {got} is not {exact}"
                );
            }
        }
    }
}
