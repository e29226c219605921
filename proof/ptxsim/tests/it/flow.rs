//! Divergence, reconvergence, barriers, and the order of blocks and warps.

use bitnet_ptxsim::{FaultKind, Launch, Limits};

use super::support::{fault, run, try_run};

#[test]
fn diverged_lanes_each_take_their_path_and_meet_again() {
    // Lane l runs its loop l times; then the whole warp shuffles, which needs all lanes.
    let body = "mov.u32 r0, 0; mov.u32 r1, 0;
LOOP: setp.ge.u32 p, r0, tid; @p bra DONE; add.u32 r0, r0, 1; mad.lo.u32 r1, r0, 3, r1; bra LOOP;
DONE: setp.lt.u32 p, tid, 16; @!p bra HIGH; add.u32 r1, r1, 1000; bra JOIN;
HIGH: add.u32 r1, r1, 2000;
JOIN: shfl.sync.bfly.b32 r2, r1, 16, 0x1f, 0xffffffff; st.global.u32 [mo], r2;";
    let expected = |l: u32| 3 * l * (l + 1) / 2 + if l < 16 { 1000 } else { 2000 };
    assert_eq!(
        run(body, &Launch::new(1, 32), &[0], 32),
        (0..32).map(|l| expected(l ^ 16)).collect::<Vec<_>>()
    );
}

#[test]
fn a_guard_acts_lane_by_lane() {
    let body = "mov.u32 r0, 1; and.b32 r1, tid, 1; setp.eq.u32 p, r1, 0;
      @p mov.u32 r0, 2; @!p add.u32 r0, r0, 4; st.global.u32 [mo], r0;";
    assert_eq!(run(body, &Launch::new(1, 4), &[0], 4), [2, 5, 2, 5]);
}

#[test]
fn warps_that_exit_are_not_waited_for() {
    let body =
        "setp.ge.u32 p, tid, 64; @p ret; mul.wide.u32 d1, tid, 4; mov.u32 r0, s; mad.lo.u32 r0, tid, 4, r0;
      st.shared.u32 [r0], tid; bar.sync 0; xor.b32 r1, tid, 1; mov.u32 r2, s; mad.lo.u32 r2, r1, 4, r2;
      ld.shared.u32 r3, [r2]; st.global.u32 [mo], r3;";
    let expected: Vec<u32> = (0..64).map(|t| t ^ 1).collect();
    assert_eq!(run(body, &Launch::new(1, 96), &[0], 64), expected);
}

#[test]
fn lanes_that_exit_are_not_waited_for() {
    let body = "setp.lt.u32 p, tid, 16; @!p bra OUT; bar.warp.sync -1; st.global.u32 [mo], tid; exit; OUT:";
    assert_eq!(run(body, &Launch::new(1, 32), &[0], 16), (0..16).collect::<Vec<_>>());
}

#[test]
fn a_lane_that_waits_for_another_of_its_warp_is_served() {
    // Lane 0 spins at a lower address than the one that lane 1 must reach to release it.
    let body =
        "mov.u64 d1, 0; setp.eq.u32 p, tid, 0; @p st.shared.b64 [s], d1; bar.warp.sync -1; @!p bra OTHER;
SPIN: atom.shared.add.u64 d1, [s], 0; setp.eq.u64 q, d1, 0; @q bra SPIN; cvt.u32.u64 r1, d1; st.global.u32 [mo], r1; ret;
OTHER: red.shared.add.u64 [s], 7; st.global.u32 [mo], 1;";
    assert_eq!(run(body, &Launch::new(1, 2), &[0], 2), [7, 1]);
}

#[test]
fn barriers_join_all_live_warps() {
    let body =
        "mov.u32 r2, s; mad.lo.u32 r1, tid, 4, r2; mul.lo.u32 r3, tid, 5; st.shared.u32 [r1], r3; bar.sync 3;
      xor.b32 r1, tid, 96; mad.lo.u32 r1, r1, 4, r2; ld.shared.u32 r3, [r1]; st.global.u32 [mo], r3;";
    for seed in 0..10 {
        let launch = Launch { seed, ..Launch::new(1, 128) };
        assert_eq!(run(body, &launch, &[0], 128), (0..128).map(|t| 5 * (t ^ 96)).collect::<Vec<_>>());
    }
}

#[test]
fn a_barrier_for_some_warps_joins_only_these() {
    // Pairs of warps meet at barriers of their own; the second pair never waits for the first.
    let body = "shr.u32 r0, tid, 6; add.u32 r0, r0, 1; mov.u32 r2, s; mad.lo.u32 r1, tid, 4, r2; st.shared.u32 [r1], tid;
      @@ xor.b32 r1, tid, 32; mad.lo.u32 r1, r1, 4, r2; ld.shared.u32 r3, [r1]; st.global.u32 [mo], r3;";
    for seed in 0..10 {
        let launch = Launch { seed, ..Launch::new(1, 128) };
        let met = run(&body.replace("@@", "bar.sync r0, 64;"), &launch, &[0], 128);
        assert_eq!(met, (0..128).map(|t| t ^ 32).collect::<Vec<_>>());
    }
    let launch = Launch::new(1, 128);
    for (wrong, trap) in [
        ("bar.sync r0, 96;", FaultKind::Deadlock),
        ("bar.sync tid, 64;", FaultKind::Barrier),
        ("add.u32 r0, r0, 15; bar.sync r0, 64;", FaultKind::Barrier),
    ] {
        let kind = fault(try_run(&body.replace("@@", wrong), &launch, &[0], 128).0).map(|fault| fault.kind);
        assert_eq!(kind, Some(trap), "{wrong}");
    }
    // The warps of the other pair are not joined.
    let across = body.replace("@@", "bar.sync r0, 64;").replace("tid, 32;", "tid, 64;");
    assert!(fault(try_run(&across, &launch, &[0], 128).0).is_some());
}

/// The order in which blocks (or warps) take a ticket.
fn order(seed: u64, blocks: u32, threads: u32) -> Vec<u32> {
    let body = "and.b32 r0, tid, 31; setp.ne.u32 p, r0, 0; @p ret; atom.global.inc.u32 r1, [gi], -1;
      shr.u32 r2, tid, 5; mov.u32 r3, %nctaid.x; mad.lo.u32 r2, r2, r3, cta; mul.wide.u32 d1, r1, 4; add.u64 d1, go, d1;
      st.global.u32 [d1], r2;";
    let limits = Limits { resident_blocks: 1, ..Limits::default() };
    let launch = Launch { seed, limits, ..Launch::new(blocks, threads) };
    run(body, &launch, &[0], (blocks * threads / 32) as usize)
}

#[test]
fn the_seed_orders_blocks_and_warps() {
    for (blocks, threads) in [(16, 32), (1, 512)] {
        let first = order(1, blocks, threads);
        assert_eq!(first, order(1, blocks, threads), "the same seed gives the same order");
        assert!((2..6).any(|seed| order(seed, blocks, threads) != first), "another seed gives another");
        let mut sorted = first.clone();
        sorted.sort_unstable();
        assert_eq!(sorted, (0..16).collect::<Vec<_>>(), "everybody runs once");
    }
}

#[test]
fn blocks_that_wait_for_each_other_need_to_be_resident() {
    let body = "red.global.add.u64 [gi], 1;
SPIN: atom.global.add.u64 d2, [gi], 0; setp.lt.u64 p, d2, 3; @p bra SPIN;
      mul.wide.u32 d1, cta, 4; add.u64 d1, go, d1; cvt.u32.u64 r0, d2; st.global.u32 [d1], r0;";
    let resident = |resident_blocks| {
        let limits = Limits { resident_blocks, steps_per_warp: 20_000 };
        try_run(body, &Launch { limits, ..Launch::new(3, 1) }, &[0, 0], 3)
    };
    let (result, read) = resident(3);
    assert_eq!(result.map(|_| read()), Ok(vec![3; 3]));
    assert!(fault(resident(2).0).is_some());
}
