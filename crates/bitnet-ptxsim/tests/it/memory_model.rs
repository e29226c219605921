//! What orders accesses of different threads: releases, acquires and fences, of the right scope.

use bitnet_ptxsim::{FaultKind, Launch, Space};

use super::support::{run, traps};

fn race(kind: &FaultKind) -> bool {
    matches!(kind, FaultKind::Race { space: Space::Global, .. })
}

/// Every block adds its part with plain stores and takes a ticket; the last one sums all parts.
const TICKET: &str =
    "mad.lo.u32 r0, cta, 32, tid; mul.wide.u32 d1, r0, 4; add.u64 d1, go, d1; st.global.u32 [d1+64], r0;
      setp.eq.u32 p, tid, 0; BARRIER
      mov.u32 r1, 0;
      @p FENCE;
      @p atom.global.add.u32 r1, [gi], 1;
      @p ACQUIRE;
      @p st.shared.u32 [s], r1;
      bar.sync 0;
      ld.shared.u32 r1, [s]; setp.ne.u32 q, r1, 3; @q exit;
      mov.u32 r2, 0; mov.u32 r3, 0; mul.wide.u32 d1, tid, 4; add.u64 d1, go, d1;
SUM:  ld.global.u32 r4, [d1+64]; add.u32 r2, r2, r4; add.u64 d1, d1, 128; add.u32 r3, r3, 1;
      setp.lt.u32 q, r3, 4; @q bra SUM;
      redux.sync.add.u32 r2, r2, 0xffffffff; @p st.global.u32 [go], r2;";

fn ticket(fence: &str, barrier: &str, acquire: &str) -> String {
    TICKET.replace("FENCE", fence).replace("BARRIER", barrier).replace("ACQUIRE", acquire)
}

#[test]
fn the_last_block_sees_what_the_others_published() {
    let gl = "membar.gl";
    let body = ticket(gl, "bar.sync 0;", gl);
    for seed in 0..10 {
        let launch = Launch { seed, ..Launch::new(4, 32) };
        let (result, _) = super::support::try_run(&body, &launch, &[0], 256);
        assert_eq!(super::support::fault(result), None, "seed {seed}");
    }
    let last = format!("{body} exit;");
    assert_eq!(run(&last.replace("[d1+64]", "[d1+4]"), &Launch::new(4, 32), &[0], 129)[0], 127 * 64);
}

#[test]
fn a_ticket_without_its_fences_is_a_race() {
    let marked = |body: String| {
        body.replace("SUM:  ld.global.u32 r4, [d1+64];", "SUM:  ld.global.u32 r4, [d1+64]; //!\n")
    };
    let gl = "membar.gl";
    let launch = Launch::new(4, 32);
    traps(&launch, &marked(ticket("@@", "bar.sync 0;", gl)), "mov.u32 r5, 0", gl, race);
    traps(&launch, &marked(ticket(gl, "bar.sync 0;", "@@")), "mov.u32 r5, 0", "fence.acq_rel.gpu", race);
    traps(&launch, &marked(ticket(gl, "@@", gl)), "", "bar.sync 0;", race);
    traps(&launch, &marked(ticket("fence.acq_rel.@@", "bar.sync 0;", gl)), "cta", "gpu", race);
    traps(&launch, &marked(ticket(gl, "bar.sync 0;", "membar.@@")), "cta", "sys", race);
}

#[test]
fn release_and_acquire_order_what_is_around_them() {
    // Block 0 publishes a value and a flag; block 1 waits for the flag.
    let body = "setp.ne.u32 p, cta, 0; @p bra READ; st.global.u32 [go+4], 42; st.RELEASE.gpu.global.u32 [gi+4], 7; exit;
READ: ld.ACQUIRE.gpu.global.u32 r0, [gi+4]; setp.ne.u32 p, r0, 7; @p bra READ;
      ld.global.u32 r1, [go+4]; //!";
    let fill = |release: &str, acquire: &str| body.replace("RELEASE", release).replace("ACQUIRE", acquire);
    let launch = Launch::new(2, 1);
    traps(&launch, &fill("@@", "acquire"), "relaxed", "release", race);
    traps(&launch, &fill("release", "@@"), "relaxed", "acquire", race);
}

#[test]
fn a_barrier_passes_on_what_one_thread_acquired() {
    let body = "setp.ne.u32 p, cta, 0; add.u64 d1, mi, 256; @p bra READ;
      st.global.u32 [d1], tid; bar.sync 0; setp.eq.u32 q, tid, 0; @q red.release.gpu.global.add.u32 [gi+4], 100; exit; //!
READ: setp.ne.u32 q, tid, 0; @q bra WAIT;
SPIN: ld.acquire.gpu.global.u32 r0, [gi+4]; setp.lt.u32 p, r0, 100; @p bra SPIN;
WAIT: @@
      ld.global.u32 r1, [d1]; //!";
    traps(&Launch::new(2, 64), body, "", "bar.sync 0;", race);
}

#[test]
fn plain_reads_must_come_after_every_atomic_update() {
    // Each warp adds; without the barrier the read comes between.
    let body = "red.global.add.u32 [gi], 1; @@ ld.global.u32 r0, [gi]; //!";
    traps(&Launch::new(1, 64), body, "", "bar.sync 0;", race);
    traps(&Launch::new(1, 64), body, "bar.warp.sync -1;", "bar.sync 0;", race);
}

/// Warps 0 and 1 do `first`, warp 2 does `last`; `@@` makes it wait for warp 1 alone or for both.
fn three_warps(first: &str, last: &str) -> String {
    format!(
        "shr.u32 r0, tid, 5; and.b32 r1, tid, 31; setp.eq.u32 p, tid, 0; @p st.shared.u32 [s], 0; bar.sync 0;
        setp.eq.u32 q, r0, 0; setp.ne.u32 p, r0, 2; @p {first}; //!
        @@ setp.ne.u32 p, r0, 2; @p exit; setp.ne.u32 p, r1, 0; @p exit;
        {last}; //!"
    )
}

#[test]
fn every_earlier_access_counts_not_only_the_last() {
    let (one, both) = ("@q exit; bar.sync 1, 64;", "bar.sync 1, 96;");
    let launch = Launch::new(1, 96);
    let any = |kind: &FaultKind| matches!(kind, FaultKind::Race { .. });
    // A plain read after two updates; a write after two reads.
    traps(&launch, &three_warps("red.global.add.u32 [gi], 1", "ld.global.u32 r2, [gi]"), one, both, any);
    traps(&launch, &three_warps("ld.shared.u32 r2, [s]", "st.shared.u32 [s], 5"), one, both, any);
}

#[test]
fn a_store_ends_a_release_sequence_and_an_update_continues_it() {
    let body = "setp.eq.u32 p, cta, 1; @p bra PASS; setp.eq.u32 p, cta, 2; @p bra READ;
      st.global.u32 [go], 42; st.release.gpu.global.u32 [gi+4], 100; exit;
PASS: ld.relaxed.gpu.global.u32 r0, [gi+4]; setp.ne.u32 p, r0, 100; @p bra PASS; @@; exit;
READ: ld.relaxed.gpu.global.u32 r0, [gi+4]; setp.ne.u32 p, r0, 200; @p bra READ;
      ld.acquire.gpu.global.u32 r0, [gi+4]; ld.global.u32 r1, [go]; //!";
    let (store, update) =
        ("st.relaxed.gpu.global.u32 [gi+4], 200", "red.relaxed.gpu.global.add.u32 [gi+4], 100");
    traps(&Launch::new(3, 1), body, store, update, race);
}

#[test]
fn what_was_acquired_in_a_block_is_released_to_the_device() {
    // Warp 0 tells warp 1 at block scope, which tells the other block at device scope.
    let body = "setp.eq.u32 p, cta, 1; @p bra READ; setp.eq.u32 p, tid, 0; @p st.shared.u32 [s], 0; bar.sync 0;
      shr.u32 r0, tid, 5; setp.ne.u32 q, r0, 0; @q bra PASS; @!p exit;
      st.global.u32 [go], 42; st.release.cta.shared.u32 [s], 1; exit;
PASS: setp.ne.u32 p, tid, 32; @p exit;
SPIN: ld.@@.cta.shared.u32 r1, [s]; setp.eq.u32 p, r1, 0; @p bra SPIN; st.release.gpu.global.u32 [gi+4], 200; exit;
READ: ld.acquire.gpu.global.u32 r1, [gi+4]; setp.ne.u32 p, r1, 200; @p bra READ;
      ld.global.u32 r2, [go]; //!";
    traps(&Launch::new(2, 64), body, "relaxed", "acquire", race);
}

#[test]
fn a_launch_comes_after_the_one_before() {
    let parse = |body: &str| super::support::parse(&super::support::kernel(body));
    let read = parse("ld.global.u32 r0, [gi];");
    let update = parse(
        "setp.eq.u32 p, tid, 0; @p ld.global.u32 r0, [gi]; @p add.u32 r0, r0, 1; @p st.global.u32 [gi], r0;",
    );
    let mut memory = bitnet_ptxsim::Memory::new();
    let (gi, go) = (memory.alloc(4), memory.alloc(4));
    memory.write(gi, &[0; 4]).unwrap();
    let launch = Launch::new(2, 64).params(&[gi.into(), go.into(), 1u32.into()]);
    let alone = Launch { grid: [1, 1, 1], ..launch.clone() };
    for _ in 0..3 {
        read.launch("k", &mut memory, &launch).unwrap();
        update.launch("k", &mut memory, &alone).unwrap();
    }
    assert_eq!(memory.read(gi, 4).unwrap(), [3, 0, 0, 0]);
}
