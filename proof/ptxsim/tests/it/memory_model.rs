//! Barriers, and fences around atomics, order the accesses of different threads.

use bitnet_ptxsim::{FaultKind, Launch, Space};

use super::support::{run, traps};

fn race(kind: &FaultKind) -> bool {
    matches!(kind, FaultKind::Race { space: Space::Global, .. })
}

/// Every block writes its part with plain stores and takes a ticket; the last block sums all parts.
const TICKET: &str =
    "mad.lo.u32 r0, cta, 32, tid; mul.wide.u32 d1, r0, 4; add.u64 d1, go, d1; st.global.u32 [d1+64], r0;
      setp.eq.u32 p, tid, 0; BARRIER
      mov.u32 r1, 0;
      @p FENCE;
      @p atom.global.inc.u32 r1, [gi], -1;
      @p ACQUIRE;
      @p st.shared.u32 [s], r1;
      bar.sync 0;
      ld.shared.u32 r1, [s]; setp.ne.u32 q, r1, 3; @q exit;
      mov.u32 r2, 0; mov.u32 r3, 0; mul.wide.u32 d1, tid, 4; add.u64 d1, go, d1;
SUM:  ld.global.u32 r4, [d1+64]; add.u32 r2, r2, r4; add.u64 d1, d1, 128; add.u32 r3, r3, 1;
      setp.lt.u32 q, r3, 4; @q bra SUM;
      redux.sync.add.s32 r2, r2, 0xffffffff; @p st.global.u32 [go], r2;";

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
    traps(&launch, &marked(ticket(gl, "bar.sync 0;", "@@")), "mov.u32 r5, 0", gl, race);
    traps(&launch, &marked(ticket(gl, "@@", gl)), "", "bar.sync 0;", race);
}

#[test]
fn plain_reads_must_come_after_every_atomic_update() {
    // Each warp adds; without the barrier, the read can come in between.
    let body = "red.global.inc.u32 [gi], -1; @@ ld.global.u32 r0, [gi]; //!";
    traps(&Launch::new(1, 64), body, "", "bar.sync 0;", race);
    traps(&Launch::new(1, 64), body, "bar.warp.sync -1;", "bar.sync 0;", race);
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

#[test]
fn what_a_kernel_wrote_is_not_read_as_read_only_before_the_host_writes_it_again() {
    let parse = |body: &str| super::support::parse(&super::support::kernel(body));
    let write = parse("st.global.u32 [gi+4], 5;");
    let read = parse("ld.global.nc.u32 r0, [gi+4];");
    let mut memory = bitnet_ptxsim::Memory::new();
    let (gi, go) = (memory.alloc(8), memory.alloc(4));
    memory.write(gi, &[0; 8]).unwrap();
    let launch = Launch::new(1, 1).params(&[gi.into(), go.into(), 1u32.into()]);
    read.launch("k", &mut memory, &launch).unwrap();
    write.launch("k", &mut memory, &launch).unwrap();
    let fault = super::support::fault(read.launch("k", &mut memory, &launch)).unwrap();
    assert_eq!(fault.kind, FaultKind::ReadOnly { address: gi + 4 });
    memory.write(gi, &[0; 8]).unwrap();
    read.launch("k", &mut memory, &launch).unwrap();
}
