//! Steps that are run as one piece of work, and when.

use bitnet_kernels::{
    RowsKind,
    gpu::{Gpu, Quants, Rows},
};
use bitnet_tests::Simulator;

const WIDTH: usize = 100;
const ROWS: usize = 3;

fn rows(gpu: &mut Gpu<Simulator>, seed: f32) -> Rows {
    let mut rows = gpu.rows(ROWS, WIDTH, RowsKind::Residual).unwrap();
    let values: Vec<f32> = (0..ROWS * WIDTH).map(|i| (seed * i as f32).sin()).collect();
    gpu.write_rows(&mut rows, &values).unwrap();
    rows
}

/// As many launches as are worth a recording, the last of which decides what is in `out`.
fn step(gpu: &mut Gpu<Simulator>, n: usize, x: &Rows, out: &mut Quants) -> Vec<i8> {
    for _ in 0..8 {
        gpu.norm_quantize(n, x, [None, None], out).unwrap();
    }
    gpu.finish().unwrap();
    gpu.read_quants(out, ROWS).unwrap().0
}

#[test]
fn launches_are_recorded_when_they_come_again_and_replayed_only_if_all_are_equal() {
    let mut gpu = Gpu::new(Simulator::default()).unwrap();
    let (a, b) = (rows(&mut gpu, 0.3), rows(&mut gpu, 0.7));
    let mut out = gpu.quants(ROWS, WIDTH).unwrap();
    let counts = |gpu: &Gpu<Simulator>| (gpu.counts().recordings, gpu.counts().replays);

    let of_a = step(&mut gpu, ROWS, &a, &mut out);
    assert_eq!(counts(&gpu), (0, 0), "what comes once is not recorded");
    for again in 1..3 {
        assert_eq!(step(&mut gpu, ROWS, &a, &mut out), of_a);
        assert_eq!(counts(&gpu), (1, again));
    }
    // Mistake 42 of the originals: a recorded step is run again because it is of the same size.
    // Another address, and fewer blocks: each differs in one number, and neither is what was recorded.
    let of_b = step(&mut gpu, ROWS, &b, &mut out);
    assert_ne!(of_a, of_b);
    step(&mut gpu, 1, &a, &mut out);
    assert_eq!(counts(&gpu), (1, 2));
    let first = gpu.read_quants(&out, ROWS).unwrap().0;
    assert!(first[..WIDTH] == of_a[..WIDTH] && first[WIDTH..] == of_b[WIDTH..], "one row was quantised");
    assert_eq!(step(&mut gpu, ROWS, &a, &mut out), of_a);
    assert_eq!(counts(&gpu), (1, 3), "what was recorded is still there");
}

/// The launches are equal, and what they read is not: inputs of a step are no part of a recording.
#[test]
fn a_replay_computes_what_lies_there_now() {
    let mut gpu = Gpu::new(Simulator::default()).unwrap();
    let mut x = rows(&mut gpu, 0.3);
    let mut out = gpu.quants(ROWS, WIDTH).unwrap();
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
    let mut outs: Vec<Quants> = (0..66).map(|_| gpu.quants(ROWS, WIDTH).unwrap()).collect();
    for out in &mut outs {
        (0..2).for_each(|_| drop(step(&mut gpu, 1, &x, out)));
    }
    let replays = gpu.counts().replays;
    step(&mut gpu, 1, &x, &mut outs[65]);
    assert_eq!(gpu.counts().replays, replays + 1, "the last is kept");
    step(&mut gpu, 1, &x, &mut outs[0]);
    assert_eq!(gpu.counts().replays, replays + 1, "the first made room");
}
