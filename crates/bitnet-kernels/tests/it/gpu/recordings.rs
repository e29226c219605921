//! When steps are recorded and replayed.

use bitnet_kernels::{
    BLOCK_TOKENS, Grouping, KvShape, RowsKind, Run, Step,
    gpu::{Driver, Gpu, GpuError, Int8Rows, Recorded, Rows},
};
use bitnet_tensor::{BitNetTensor, DType, SharedBytes};
use bitnet_tests::{Call, Simulator, Tap};

const WIDTH: usize = 100;
const ROWS: usize = 3;

fn rows<D: Driver>(gpu: &mut Gpu<D>, seed: f32) -> Rows {
    let mut rows = gpu.rows(ROWS, WIDTH, RowsKind::Residual).unwrap();
    let values: Vec<f32> = (0..ROWS * WIDTH).map(|i| (seed * i as f32).sin()).collect();
    gpu.write_rows(&mut rows, &values).unwrap();
    rows
}

/// Enough launches for a recording; the last one determines `out`.
fn step<D: Driver>(gpu: &mut Gpu<D>, n: usize, x: &Rows, out: &mut Int8Rows) -> Vec<i8> {
    for _ in 0..8 {
        gpu.norm_quantize(n, x, [None, None], None, out).unwrap();
    }
    gpu.finish().unwrap();
    gpu.read_int8_rows(out, ROWS).unwrap().0
}

#[test]
fn launches_are_recorded_when_they_come_again_and_replayed_only_if_all_are_equal() {
    let mut gpu = Gpu::new(Simulator::default()).unwrap();
    let (a, b) = (rows(&mut gpu, 0.3), rows(&mut gpu, 0.7));
    let mut out = gpu.int8_rows(ROWS, WIDTH, Grouping::Row).unwrap();
    let counts = |gpu: &Gpu<Simulator>| (gpu.counts().recordings, gpu.counts().replays);

    let before = gpu.counts().first;
    let of_a = step(&mut gpu, ROWS, &a, &mut out);
    assert_eq!(counts(&gpu), (0, 0), "what comes once is not recorded");
    for again in 1..3 {
        assert_eq!(step(&mut gpu, ROWS, &a, &mut out), of_a);
        assert_eq!(counts(&gpu), (1, again));
    }
    // Another address, or fewer blocks: each differs in one number, and neither equals the recording.
    let of_b = step(&mut gpu, ROWS, &b, &mut out);
    assert_ne!(of_a, of_b);
    step(&mut gpu, 1, &a, &mut out);
    assert_eq!(counts(&gpu), (1, 2));
    let first = gpu.read_int8_rows(&out, ROWS).unwrap().0;
    assert!(first[..WIDTH] == of_a[..WIDTH] && first[WIDTH..] == of_b[WIDTH..], "one row was quantised");
    assert_eq!(step(&mut gpu, ROWS, &a, &mut out), of_a);
    assert_eq!(counts(&gpu), (1, 3), "what was recorded is still there");
    let replays = [(&b, ROWS, (2, 4)), (&a, 1, (3, 5)), (&b, ROWS, (3, 6))];
    for (x, n, expected) in replays {
        step(&mut gpu, n, x, &mut out);
        assert_eq!(counts(&gpu), expected, "what comes again is recorded, whatever came between");
    }
    // The same launches up to the last; then the same, with another at the end.
    for more in [0, 1] {
        for _ in 0..7 + 2 * more {
            gpu.norm_quantize(ROWS, &a, [None, None], None, &mut out).unwrap();
        }
        assert_eq!(step(&mut gpu, ROWS, &a, &mut out), of_a);
        assert_eq!(counts(&gpu), (3, 6), "others than those that were recorded");
    }
    assert_eq!(gpu.counts().first - before, 5, "three that came again, and two that did not");
}

fn failed(during: &'static str) -> GpuError {
    GpuError::Failed { during, reason: "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED".into() }
}

/// A driver that fails at some calls, and how often each of them is made; the results are those without a recording.
#[test]
fn a_driver_that_fails_at_recordings_is_asked_for_simpler_ones_and_then_for_none() {
    use Call::{Record, RecordInTurn, Replay};
    for (faults, how, [recordings, unrecorded, replays], calls) in [
        (&[Record][..], Recorded::InTurn, [1, 1, 3], [1, 1, 3]),
        (&[Record, RecordInTurn], Recorded::Never, [0, 2, 0], [1, 1, 0]),
        (&[Replay], Recorded::Never, [2, 2, 0], [1, 1, 2]),
    ] {
        let (tap, driver) = Tap::of(Simulator::default());
        let mut gpu = Gpu::new(tap).unwrap();
        let x = rows(&mut gpu, 0.3);
        let mut out = gpu.int8_rows(ROWS, WIDTH, Grouping::Row).unwrap();
        let first = step(&mut gpu, ROWS, &x, &mut out);
        faults.iter().for_each(|&call| driver.fail(call, failed("cuStreamEndCapture")));
        for _ in 0..3 {
            assert_eq!(step(&mut gpu, ROWS, &x, &mut out), first, "{faults:?}");
        }
        let counts = gpu.counts();
        let counted = [counts.recordings, counts.unrecorded, counts.replays];
        assert_eq!((counted, counts.launches), ([recordings, unrecorded, replays], 32), "{faults:?}");
        assert_eq!([Record, RecordInTurn, Replay].map(|call| driver.count(call)), calls, "{faults:?}");
        assert_eq!(gpu.recordings().how, how);
        let told = gpu.recordings().to_string();
        assert!(
            told.contains("cuStreamEndCapture: CUDA_ERROR") && told.contains("results are the same"),
            "{told}"
        );
        assert!(!told.contains("restart"), "{told}");
    }
}

#[test]
fn a_recording_without_room_takes_that_of_others_before_recordings_become_simpler() {
    let (tap, driver) = Tap::of(Simulator::default());
    let mut gpu = Gpu::new(tap).unwrap();
    let (a, b) = (rows(&mut gpu, 0.3), rows(&mut gpu, 0.7));
    let mut out = gpu.int8_rows(ROWS, WIDTH, Grouping::Row).unwrap();
    let of_a = [0; 2].map(|_| step(&mut gpu, ROWS, &a, &mut out));
    driver.fail(Call::Record, GpuError::OutOfMemory { what: "a recording", bytes: 1 << 13, free: 0 });
    let of_b = [0; 2].map(|_| step(&mut gpu, ROWS, &b, &mut out));
    assert!(of_a[0] == of_a[1] && of_b[0] == of_b[1] && of_a != of_b);
    assert_eq!(driver.count(Call::Record), 3, "the first, one beside it, and one in its place");
    assert_eq!((gpu.counts().unrecorded, gpu.recordings().how), (1, Recorded::InTurn));
}

/// The sequence that is tried when a GPU is opened. It needs a driver with a compiler, whose kernels are tried once.
#[test]
fn opening_a_gpu_tries_recordings_and_gives_up_what_fails_or_computes_wrongly() {
    let open = |faults: &[Call], short| {
        let (tap, driver) = Tap::of(Simulator::with(|info| info.name = "recording".into()).compiling());
        faults.iter().for_each(|&call| driver.fail(call, failed("cuGraphLaunch")));
        if short {
            driver.shorten_replays();
        }
        let gpu = Gpu::new(tap).unwrap();
        let calls = [Call::Record, Call::RecordInTurn, Call::Replay, Call::Reopen];
        (gpu.recordings().how, gpu.counts().unrecorded, calls.map(|call| driver.count(call)))
    };
    // The cases of the kernels come first, and make no recordings.
    assert_eq!(open(&[], false), (Recorded::Overlapping, 0, [1, 0, 2, 0]));
    assert_eq!(open(&[Call::Record], false), (Recorded::InTurn, 1, [1, 1, 2, 0]));
    assert_eq!(open(&[Call::Replay], false), (Recorded::Never, 2, [1, 1, 2, 0]));
    assert_eq!(open(&[], true), (Recorded::Never, 2, [1, 1, 2, 2]), "a wrong replay says nothing of its GPU");
}

#[test]
fn a_gpu_told_not_to_record_or_to_overlap_is_not_asked_to() {
    for (recordings, overlap, how, calls) in [
        (true, false, Recorded::InTurn, [0, 1]),
        (false, true, Recorded::Never, [0, 0]),
        (false, false, Recorded::Never, [0, 0]),
    ] {
        let simulator = Simulator::with(|info| (info.recordings, info.overlap) = (recordings, overlap));
        let (tap, driver) = Tap::of(simulator);
        let mut gpu = Gpu::new(tap).unwrap();
        let x = rows(&mut gpu, 0.3);
        let mut out = gpu.int8_rows(ROWS, WIDTH, Grouping::Row).unwrap();
        (0..3).for_each(|_| drop(step(&mut gpu, ROWS, &x, &mut out)));
        assert_eq!((gpu.recordings().how, gpu.recordings().why.as_ref()), (how, None));
        assert_eq!([Call::Record, Call::RecordInTurn].map(|call| driver.count(call)), calls);
    }
}

/// The launches are equal, but what they read is not: inputs of a step are not part of a recording.
#[test]
fn a_replay_reads_the_current_contents_of_memory() {
    let mut gpu = Gpu::new(Simulator::default()).unwrap();
    let mut x = rows(&mut gpu, 0.3);
    let mut out = gpu.int8_rows(ROWS, WIDTH, Grouping::Row).unwrap();
    let before = [0; 2].map(|_| step(&mut gpu, ROWS, &x, &mut out));
    gpu.write_rows(&mut x, &vec![-1.0; ROWS * WIDTH]).unwrap();
    let after = step(&mut gpu, ROWS, &x, &mut out);
    assert_eq!((gpu.counts().replays, after == vec![-127; ROWS * WIDTH]), (2, true));
    assert_ne!(before[1], after);
}

#[test]
fn recordings_that_are_not_used_make_room_for_others() {
    let mut gpu = Gpu::new(Simulator::default()).unwrap();
    let x = rows(&mut gpu, 0.3);
    let mut outs: Vec<Int8Rows> =
        (0..130).map(|_| gpu.int8_rows(ROWS, WIDTH, Grouping::Row).unwrap()).collect();
    for out in &mut outs {
        (0..2).for_each(|_| drop(step(&mut gpu, 1, &x, out)));
    }
    // The first two made room. The fourth is then the oldest, but used again, and so the fifth makes room.
    for (at, recordings, what) in [
        (129, 130, "the last is kept"),
        (0, 131, "the first made room"),
        (3, 131, "the fourth is still kept"),
        (1, 132, "the second made room"),
        (3, 132, "what was used last is kept"),
        (4, 133, "what was unused for longest made room"),
    ] {
        step(&mut gpu, 1, &x, &mut outs[at]);
        assert_eq!(gpu.counts().recordings, recordings, "{what}");
    }
}

/// Both lists of tokens are uploaded before either launch runs; the longer one needs a new place.
#[test]
fn an_input_that_changes_reaches_only_the_launches_after_it() {
    let values: Vec<u8> = (0..9 * WIDTH).flat_map(|i| (i as f32).to_le_bytes()).collect();
    let table = BitNetTensor::new(DType::F32, [9, WIDTH], SharedBytes::new(values)).unwrap();
    let mut gpu = Gpu::new(Simulator::default()).unwrap();
    let table = gpu.table(&table).unwrap();
    let lists: [&[u32]; 4] = [&[1, 2], &[3, 4], &[5; 40], &[6; 40]];
    let mut outs = lists.map(|list| gpu.rows(list.len(), WIDTH, RowsKind::Residual).unwrap());
    for (list, out) in lists.iter().zip(&mut outs) {
        gpu.embed(&table, list, 1.0, out).unwrap();
    }
    for (list, out) in lists.iter().zip(&outs) {
        let rows = gpu.read_rows(out, list.len()).unwrap();
        let expected = list.iter().flat_map(|&t| (0..WIDTH).map(move |i| t as usize * WIDTH + i));
        let near = rows.iter().zip(expected).all(|(&x, y)| (x - y as f32).abs() <= y as f32 / 128.0);
        assert!(near && rows.len() == list.len() * WIDTH, "{list:?}");
    }
}

#[test]
fn memory_that_a_waiting_launch_reads_is_given_back_after_it() {
    let mut gpu = Gpu::new(Simulator::default()).unwrap();
    let x = rows(&mut gpu, 0.3);
    let mut out = gpu.int8_rows(ROWS, WIDTH, Grouping::Row).unwrap();
    gpu.norm_quantize(ROWS, &x, [None, None], None, &mut out).unwrap();
    drop(x);
    gpu.alloc(1 << 20, "something else").unwrap();
    assert!(gpu.read_int8_rows(&out, ROWS).unwrap().0.iter().any(|&value| value != 0));
}

/// Attention kernels are launched for more keys than there are, so that the next tokens launch the same.
#[test]
fn a_sequence_that_grows_within_some_tiles_is_replayed() {
    let mut gpu = Gpu::new(Simulator::default()).unwrap();
    let kv = gpu.kv(KvShape { blocks: 12, kv_heads: 1, head_dim: 16 }).unwrap();
    let qkv = gpu.rows(1, 48, RowsKind::Intermediate).unwrap();
    let mut out = gpu.rows(1, 16, RowsKind::Intermediate).unwrap();
    let blocks: Vec<u32> = (0..12).collect();
    for (position, replays) in [(540, 0), (541, 1), (620, 2), (740, 3)] {
        for _ in 0..8 {
            let run = Run { tokens: 0..1, start: position, blocks: 0..12, ..Run::default() };
            gpu.attention(Step::new(&[run], &blocks), &qkv, &kv, &mut out).unwrap();
        }
        gpu.finish().unwrap();
        assert_eq!(gpu.counts().replays, replays, "position {position}");
    }
}

/// One processor has memory for the parts of 64 tiles.
#[test]
fn a_sequence_too_long_for_the_memory_of_its_parts_is_attended_in_one() {
    let mut gpu = Gpu::new(Simulator::with(|info| info.processors = 1)).unwrap();
    let kv = gpu.kv(KvShape { blocks: 65, kv_heads: 1, head_dim: 16 }).unwrap();
    let qkv = gpu.rows(1, 3 * 16, RowsKind::Intermediate).unwrap();
    let mut out = gpu.rows(1, 16, RowsKind::Intermediate).unwrap();
    let blocks: Vec<u32> = (0..65).collect();
    let mut attend = |tiles: usize| {
        let run = Run { tokens: 0..1, start: tiles * BLOCK_TOKENS - 1, blocks: 0..65, ..Run::default() };
        gpu.attention(Step::new(&[run], &blocks), &qkv, &kv, &mut out).unwrap();
        gpu.finish().unwrap();
        gpu.counts().launches
    };
    assert_eq!(attend(65), 1, "nothing is merged");
    assert_eq!(attend(64) - 1, 2, "chunks are merged");
}

/// What follows from a step's runs is computed once. Another step, and another number of heads in the same step, need
/// other pieces.
#[test]
fn layers_that_share_a_step_or_not_attend_as_alone() {
    const DIM: usize = 16;
    let blocks = [1, 0, 2];
    let (short, long) = ([0..8, 8..9], [0..2, 2..9]);
    let runs = [short, long].map(|tokens| {
        let of = |(i, tokens): (usize, std::ops::Range<usize>)| Run {
            tokens,
            start: 3 * i,
            blocks: i..3,
            ..Run::default()
        };
        tokens.into_iter().enumerate().map(of).collect::<Vec<_>>()
    });
    let attend = |gpu: &mut Gpu<Simulator>, runs: &[Run], heads: usize| {
        let mut kv = gpu.kv(KvShape { blocks: 3, kv_heads: 1, head_dim: DIM }).unwrap();
        let rope = gpu.rope(&[0.5; 10 * DIM / 2], &[0.25; 10 * DIM / 2], DIM).unwrap();
        let mut qkv = gpu.rows(9, (heads + 2) * DIM, RowsKind::Intermediate).unwrap();
        let values: Vec<f32> = (0..9 * (heads + 2) * DIM).map(|i| (0.3 * i as f32).sin()).collect();
        gpu.write_rows(&mut qkv, &values).unwrap();
        let mut out = gpu.rows(9, heads * DIM, RowsKind::Intermediate).unwrap();
        let step = Step::new(runs, &blocks);
        gpu.norm_rope_store(step, heads, &rope, None, &mut qkv, &mut kv).unwrap();
        gpu.attention(step, &qkv, &kv, &mut out).unwrap();
        gpu.read_rows(&out, 9).unwrap()
    };
    let mut gpu = Gpu::new(Simulator::default()).unwrap();
    for (step, heads) in [(0, 1), (0, 4), (0, 4), (1, 4), (0, 4), (1, 1)] {
        let alone = attend(&mut Gpu::new(Simulator::default()).unwrap(), &runs[step], heads);
        assert_eq!(attend(&mut gpu, &runs[step], heads), alone, "step {step}, {heads} heads");
        assert!(alone.iter().all(|value| *value != 0.0), "step {step}, {heads} heads");
    }
}
