//! What lies in device memory, byte for byte, by the plain rules of `docs/dev/kernels.md`.

use bitnet_kernels::{Backend, Cpu, Isa, RowOrder, gpu::Gpu};
use bitnet_tensor::{BitNetTensor, DType, SharedBytes, TernaryTensor};
use bitnet_tests::Simulator;
use half::{bf16, f16};

/// A GPU that converts weights on three threads.
fn gpu() -> Gpu<Simulator> {
    Gpu::new(Simulator::default()).unwrap().converting_on(3)
}

/// Bytes without a pattern.
fn noise(count: usize) -> Vec<u8> {
    (0..count as u64).map(|i| (i.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 37) as u8).collect()
}

/// A matrix with codes 0 to 2, or 0 to 3 if groups have scales.
fn ternary(rows: usize, cols: usize, group: Option<usize>) -> TernaryTensor {
    let codes = noise(rows * TernaryTensor::row_bytes(cols));
    let Some(group) = group else {
        let trits = codes.into_iter().map(|code| code & !(code >> 1 & 0x55)).collect();
        return TernaryTensor::from_codes(rows, cols, trits, 0.5).unwrap();
    };
    let scales = (0..rows * cols.div_ceil(group)).map(|i| f16::from_f32(1.0 + (i % 999) as f32)).collect();
    TernaryTensor::from_groups(rows, cols, group, codes, scales).unwrap()
}

/// The row at place `place` of a matrix in an order, or `None` for padding.
fn row_at(order: RowOrder, rows: usize, place: usize) -> Option<usize> {
    let (pair, second) = (place / 16 * 8 + place % 8, place % 16 / 8);
    match order {
        RowOrder::Plain => (place < rows).then_some(place),
        RowOrder::GateUp => (pair < rows / 2).then_some(pair + second * rows / 2),
        RowOrder::Rope { head_dim } => {
            let (head, at) = (pair / (head_dim / 2), pair % (head_dim / 2));
            (pair < rows / 2).then_some(head * head_dim + at + second * head_dim / 2)
        }
    }
}

fn check_ternary(rows: usize, cols: usize, group: Option<usize>, order: RowOrder) {
    let weights = ternary(rows, cols, group);
    // Groups of 64 in pairs of equal scales would have been merged.
    assert_eq!(weights.group(), group);
    let mut gpu = gpu();
    let _kept = Backend::linear(&mut gpu, &weights, order).unwrap();
    let [stored] = &gpu.driver().contents("ternary weights")[..] else { panic!("one allocation") };
    let (places, tiles) = (rows.next_multiple_of(128), cols.div_ceil(128));
    let groups = group.map_or(0, |group| 128 / group);
    let tile_bytes = 512 + 32 * groups;
    assert_eq!(stored.len(), places / 16 * tiles * tile_bytes);
    for place in 0..places {
        let row = row_at(order, rows, place);
        let trits: Vec<i8> = row.map_or(Vec::new(), |row| weights.row_trits(row).collect());
        let scales = row.map_or(&[][..], |row| weights.group_scales(row));
        let (g, second) = (place % 8, place % 16 / 8);
        for tile in 0..tiles {
            let stored = &stored[(place / 16 * tiles + tile) * tile_bytes..][..tile_bytes];
            for col in 0..128 {
                let (j, half, q, b) = (col / 32, col / 16 % 2, col / 4 % 4, col % 4);
                let code = stored[16 * (4 * g + q) + 4 * j + b] >> (2 * (second + 2 * half)) & 3;
                let expected = trits.get(128 * tile + col).map_or(0, |trit| (trit + 1) as u8);
                assert_eq!(
                    code, expected,
                    "{rows} x {cols} {order:?}: place {place}, tile {tile}, column {col}"
                );
            }
            for at in 0..groups {
                let scale = stored[512 + 32 * at + 2 * (2 * g + second)..].first_chunk().unwrap();
                let expected = scales.get(tile * groups + at).copied().unwrap_or(f16::ZERO);
                assert_eq!(
                    f16::from_le_bytes(*scale),
                    expected,
                    "{rows} x {cols}: place {place}, tile {tile}"
                );
            }
        }
    }
}

#[test]
fn ternary_weights_lie_in_their_tiles_at_any_size_and_in_any_order() {
    for (rows, cols) in [(1, 1), (2, 127), (16, 128), (18, 129), (130, 514), (256, 1000)] {
        for group in [None, Some(128), Some(64).filter(|_| cols > 64)] {
            check_ternary(rows, cols, group, RowOrder::Plain);
            if rows % 2 == 0 {
                check_ternary(rows, cols, group, RowOrder::GateUp);
            }
        }
    }
    check_ternary(5 * 36, 260, None, RowOrder::Rope { head_dim: 36 });
}

#[test]
fn a_matrix_of_several_pieces_is_packed_by_all_threads_as_by_one() {
    check_ternary(2100, 8302, None, RowOrder::GateUp);
    check_ternary(2100, 8302, Some(128), RowOrder::Plain);
}

#[test]
fn dense_weights_lie_in_rows_of_bf16_at_any_size_and_of_any_type() {
    for (rows, cols) in [(1, 1), (3, 64), (5, 65), (5003, 450)] {
        for (dtype, bytes) in [(DType::BF16, 2), (DType::F16, 2), (DType::F32, 4)] {
            // With infinities and NaNs of every kind.
            let table = BitNetTensor::new(dtype, [rows, cols], SharedBytes::new(noise(rows * cols * bytes)));
            let table = table.unwrap();
            let mut gpu = gpu();
            let _kept = Backend::table(&mut gpu, &table).unwrap();
            let [stored] = &gpu.driver().contents("a dense matrix")[..] else { panic!("one allocation") };
            let stride = cols.next_multiple_of(64);
            let mut expected = vec![0; 2 * rows * stride];
            let mut values = vec![0.0; cols];
            for (row, out) in expected.chunks_exact_mut(2 * stride).enumerate() {
                table.decode_row(row, &mut values);
                for (out, &value) in out.chunks_exact_mut(2).zip(&values) {
                    out.copy_from_slice(&bf16::from_f32(value).to_le_bytes());
                }
            }
            assert!(*stored == expected, "{rows} x {cols} {dtype}");
        }
    }
}

#[test]
fn the_int8_copy_of_a_head_has_the_codes_of_the_cpus_copy() {
    let (rows, cols) = (4203, 704);
    let values: Vec<f32> = noise(rows * cols).into_iter().map(|byte| f32::from(byte) - 128.0).collect();
    let table = BitNetTensor::from_f32([rows, cols], &values).unwrap();
    let copy = Cpu::new(Isa::named("scalar").unwrap(), 1).unwrap().copy_head(&table).unwrap().unwrap();
    let codes = copy.stored().next().unwrap().into_owned();
    let mut gpu = gpu();
    let mut made = Backend::table(&mut gpu, &table).unwrap();
    gpu.prepare_shortlist(&mut made, None).unwrap();
    let stored = gpu.driver().contents("int8 weights of the output head");
    let stride = cols.next_multiple_of(128);
    let stored = stored.iter().find(|stored| stored.len() == rows * stride).expect("the codes");
    for row in 0..rows {
        for col in 0..stride {
            let quad = (row / 64) * cols / 4 + col / 4;
            let expected = if col < cols { codes[256 * quad + 4 * (row % 64) + col % 4] ^ 0x80 } else { 0 };
            assert_eq!(stored[row * stride + col], expected, "row {row}, column {col}");
        }
    }
}
