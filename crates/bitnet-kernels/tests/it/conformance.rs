use bitnet_kernels::{
    Backend, Cpu, Isa, KvType, Norm, RowOrder, RowsKind,
    conformance::{cases, check},
};

#[test]
fn every_isa_and_thread_count_equals_the_reference_bit_for_bit() {
    // Mistake 43 of the originals: a running maximum overwritten while it is used. Some cases attend over several
    // segments, whose greatest scores stand in any order.
    for isa in Isa::available() {
        // What is stored does not depend on threads.
        let others = KvType::ALL[1..].iter().map(|&kv| (2, kv));
        for (threads, kv) in [1, 2, 3].map(|threads| (threads, KvType::F32)).into_iter().chain(others) {
            let mut cases = cases();
            cases.retain(|case| kv == KvType::F32 || case.caches());
            let mut cpu = Cpu::new(isa, threads).unwrap().keeping(kv);
            let failures: Vec<String> =
                cases.iter().filter_map(|&c| check(&mut cpu, c).err()).map(|f| f.to_string()).collect();
            assert!(failures.is_empty(), "{isa:?}, {threads} threads, {kv}:\n{}", failures.join("\n"));
            println!("{isa:?} with {threads} threads, cache of {kv}: {} cases equal", cases.len());
        }
    }
}

/// The largest magnitudes that int8 and trits can make: sums of 16 bits must be widened in time.
#[test]
fn extreme_activations_do_not_overflow_any_level() {
    // Mistake 41 of the originals: signed weights in unsigned tiles.
    for isa in Isa::available() {
        // The last is beyond what one token's sums hold when planes are masked in place.
        for k in [64, 240, 256, 8640, 16384, 1 << 20] {
            for n in [1, 2, 6] {
                for (sign, x) in [(1, 127), (-1, 127), (1, -127), (-1, -127)] {
                    let trits = vec![sign; 64 * k];
                    let w = bitnet_tensor::TernaryTensor::from_trits(64, k, &trits, 1.0).unwrap();
                    let mut b = Cpu::new(isa, 1).unwrap();
                    let w = b.linear(&w, RowOrder::Plain).unwrap();
                    let mut input = b.rows(n, k, RowsKind::Residual).unwrap();
                    b.write(&mut input, &vec![x as f32; n * k]).unwrap();
                    let mut q = b.quants(n, k).unwrap();
                    b.norm_quantize(n, &input, [None, None], &mut q).unwrap();
                    let mut out = b.rows(n, 64, RowsKind::Residual).unwrap();
                    b.bit_linear(n, &q, &w, &mut out, 0, false).unwrap();
                    let expected = (x * k as i64 * i64::from(sign)) as f32;
                    assert!(b.read(&out, n).unwrap().iter().all(|&y| y == expected), "{isa:?} k {k} n {n}");
                }
            }
        }
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
            let w = bitnet_tensor::TernaryTensor::from_trits(80, width, &vec![1; 80 * width], 1.0).unwrap();
            let w = b.linear(&w, RowOrder::Plain).unwrap();
            let (mut x, mut q) = (b.rows(n, width, RowsKind::Residual).unwrap(), b.quants(n, width).unwrap());
            b.write(&mut x, &values).unwrap();
            b.norm_quantize(n, &x, [Some(&norm), None], &mut q).unwrap();
            let mut out = b.rows(n, 80, RowsKind::Residual).unwrap();
            b.bit_linear(n, &q, &w, &mut out, 0, false).unwrap();
            b.read(&out, n).unwrap()
        };
        let (clean, poisoned) = (run(&mut b, false), run(&mut b, true));
        assert!(poisoned[80..160].iter().all(|y| y.is_nan()));
        assert_eq!(clean[..80], poisoned[..80]);
        assert_eq!(clean[160..], poisoned[160..]);
    }
}
