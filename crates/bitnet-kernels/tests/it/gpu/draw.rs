//! Logits from which the GPU draws tokens, and those that the host reads.

use bitnet_kernels::{
    Drawn, RowsKind, SamplingParams, Wanted,
    gpu::{Gpu, Table},
};
use bitnet_tensor::{BitNetTensor, DType, SharedBytes};
use bitnet_tests::Simulator;

use super::logits::{logits, values};

const WIDTH: usize = 20;

fn table(gpu: &mut Gpu<Simulator>, vocab: usize) -> Table {
    let bytes: Vec<u8> = values(vocab * WIDTH, 0.3).iter().flat_map(|v| v.to_le_bytes()).collect();
    let table = BitNetTensor::new(DType::F32, [vocab, WIDTH], SharedBytes::new(bytes)).unwrap();
    gpu.table(&table).unwrap()
}

/// Steps of one backend grow, shrink and change their vocabulary. Their rows are drawn, greedily or at random, or read by
/// the host, together and apart.
#[test]
fn each_row_is_drawn_or_read_back_as_requested() {
    let (all, some) = (Wanted::All, Wanted::Top(3));
    let greedy = Wanted::Token(SamplingParams::GREEDY);
    let top = Wanted::Token(SamplingParams { temperature: 1.0, top_k: 1, seed: 7, ..SamplingParams::GREEDY });
    let steps: [(usize, &[Wanted]); 5] = [
        (67, &[greedy]),
        (67, &[all, greedy, some, all, top, greedy, all]),
        (130, &[greedy, all, top, all, all]),
        (67, &[all, some, all]),
        (130, &[greedy, greedy, greedy, greedy, greedy, greedy, greedy, greedy, greedy]),
    ];
    let mut gpu = Gpu::new(Simulator::default()).unwrap();
    let mut drawn_rows = 0;
    for (vocab, wanted) in steps {
        let (n, x) = (wanted.len(), values(wanted.len() * WIDTH, 0.7));
        let expected = logits(Simulator::default(), WIDTH, vocab, &x, &values(vocab * WIDTH, 0.3)).unwrap();
        let table = table(&mut gpu, vocab);
        let mut rows = gpu.rows(n, WIDTH, RowsKind::Intermediate).unwrap();
        gpu.write_rows(&mut rows, &x).unwrap();
        let (mut all, mut drawn) = (vec![0.0; n * vocab], vec![None; n]);
        gpu.logits(&rows, &table, wanted, &mut all, &mut drawn).unwrap();
        for (row, (params, drawn)) in wanted.iter().map(Wanted::sampling).zip(&drawn).enumerate() {
            let expected = &expected[row * vocab..][..vocab];
            // A top-k of one takes the most likely token, whatever the seed.
            let most = (0..vocab).max_by(|&a, &b| expected[a].total_cmp(&expected[b])).unwrap() as u32;
            assert_eq!(*drawn, params.map(|_| Drawn::Token(most)), "row {row} of {wanted:?}");
            if params.is_none() {
                assert_eq!(all[row * vocab..][..vocab], *expected, "row {row} of {wanted:?}");
            }
        }
        drawn_rows += wanted.iter().filter_map(Wanted::sampling).count() as u64;
        assert_eq!(gpu.counts().drawn, drawn_rows);
    }
}
