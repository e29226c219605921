//! Logits from which the GPU draws tokens, and those that the host reads.

use bitnet_kernels::{
    Drawn, Edits, RowsKind, SamplingParams, Wanted, draw,
    gpu::{Gpu, Table},
};
use bitnet_tensor::{BitNetTensor, DType, SharedBytes};
use bitnet_tests::Simulator;

use super::{
    logits::{logits, values},
    small,
};

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
        gpu.logits(&rows, &table, wanted, Edits::default(), &mut all, &mut drawn).unwrap();
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

/// Rows with changes, with masks of many, few and no tokens, with both and with none, beside one that the host reads.
#[test]
fn rows_with_changes_and_masks_are_drawn_on_the_device_as_the_rule_says() {
    let vocab = 1100;
    let (changes, words) = (small::edits(300), usize::div_ceil(vocab, 32));
    // The second set has the changed tokens, the third is empty.
    let sets: [&dyn Fn(usize) -> bool; 3] = [&|token| token % 97 == 5, &|token| token % 2 == 0, &|_| false];
    let mut masks = vec![0; sets.len() * words];
    for (set, has) in sets.iter().enumerate() {
        (0..vocab)
            .filter(|&token| has(token))
            .for_each(|token| masks[set * words + token / 32] |= 1 << (token % 32));
    }
    let of = |params, from, to, mask: Option<usize>| {
        let mask = mask.map(|set| (set * words) as u32);
        Wanted::Changed { params, from, to, mask }
    };
    let warm = SamplingParams { temperature: 2.0, seed: 3, position: 9, ..SamplingParams::GREEDY };
    for params in [SamplingParams::GREEDY, SamplingParams { top_k: 30, top_p: 0.9, ..warm }, warm] {
        let wanted = [
            of(params, 0, 200, None),
            Wanted::All,
            of(params, 0, 0, Some(0)),
            of(params, 100, 300, Some(1)),
            Wanted::Token(params),
            of(params, 0, 0, Some(2)),
        ];
        let (n, x) = (wanted.len(), values(wanted.len() * WIDTH, 0.7));
        let expected = logits(Simulator::default(), WIDTH, vocab, &x, &values(vocab * WIDTH, 0.3)).unwrap();
        let mut gpu = Gpu::new(Simulator::default()).unwrap();
        let table = table(&mut gpu, vocab);
        let mut rows = gpu.rows(n, WIDTH, RowsKind::Intermediate).unwrap();
        gpu.write_rows(&mut rows, &x).unwrap();
        let (mut all, mut drawn) = (vec![0.0; n * vocab], vec![None; n]);
        let edits = Edits { changes: &changes, masks: &masks };
        gpu.logits(&rows, &table, &wanted, edits, &mut all, &mut drawn).unwrap();
        for (row, (wanted, drawn)) in wanted.iter().zip(drawn).enumerate() {
            let row = draw::edited(&expected[row * vocab..][..vocab], wanted, edits);
            let expected = wanted.sampling().map(|params| draw::drawn(&row, &params));
            assert_eq!(drawn, expected, "{wanted:?}");
        }
        assert_eq!(all[vocab..2 * vocab], expected[vocab..2 * vocab]);
    }
}

/// As of the forced tokens of a constraint.
#[test]
fn a_mask_of_one_token_needs_no_launch() {
    let mut gpu = Gpu::new(Simulator::default()).unwrap();
    let table = table(&mut gpu, 67);
    let rows = gpu.rows(1, WIDTH, RowsKind::Intermediate).unwrap();
    let (wanted, mut drawn) =
        (Wanted::Changed { params: SamplingParams::GREEDY, from: 0, to: 0, mask: Some(1) }, [None]);
    let edits = Edits { changes: &[], masks: &[9, 0, 1 << 5, 0] };
    let before = gpu.counts().launches;
    gpu.logits(&rows, &table, &[wanted], edits, &mut [0.0; 67], &mut drawn).unwrap();
    assert_eq!((drawn, gpu.counts().launches), ([Some(Drawn::Token(37))], before));
}

/// Bounds leave few of the logits of a row to be computed, and the token is that of all of them.
#[test]
fn a_race_computes_few_logits_and_draws_the_token_of_all() {
    let bounded = small::raced(Simulator::default()).unwrap();
    // Too little shared memory for bounds.
    let whole = small::raced(Simulator::with(|info| info.shared = 64 << 10)).unwrap();
    let (tokens, work) = bounded.split_at(8);
    assert_eq!(tokens, &whole[..8]);
    assert!(tokens.iter().all(|&token| token < 1100), "{tokens:?}");
    assert!(work[1] == 8 && work[0] < 8 * 1100 / 4, "{} logits of {} rows", work[0], work[1]);
    assert_eq!(whole[8..], [0, 0]);
}
