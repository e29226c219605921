//! Every trap is triggered by a kernel that differs from a correct one in one place, and reports its line.

use bitnet_ptxsim::{FaultKind, Launch, Space};

use super::support::{fault, traps, try_run};

fn block(threads: u32) -> Launch {
    Launch::new(1, threads)
}

#[test]
fn accesses_out_of_bounds_trap() {
    let global =
        |kind: &FaultKind| matches!(kind, FaultKind::OutOfBounds { space: Space::Global, size: 4, .. });
    traps(&block(32), "ld.global.u32 r0, [mi+@@]; //!", "1024", "896", global);
    traps(&block(1), "st.global.u32 [mo+@@], tid; //!", "-4", "0", global);
    traps(&block(1), "red.global.inc.u32 [gi+@@], -1; //!", "1024", "1020", global);
    let shared =
        |kind: &FaultKind| matches!(kind, FaultKind::OutOfBounds { space: Space::Shared, address: 4096, .. });
    traps(&block(1), "st.shared.u32 [s+@@], tid; //!", "4096", "4092", shared);
    // An assembler may order shared arrays in any way, so what lies behind one is no part of the next.
    let next =
        |kind: &FaultKind| matches!(kind, FaultKind::OutOfBounds { space: Space::Shared, size: 4, .. });
    let two =
        ".shared .align 16 .b32 one[8]; .shared .align 16 .b32 other[8]; mov.u32 r0, one; mov.u32 r1, other;";
    traps(&block(1), &format!("{two} st.shared.u32 [r0+@@], tid; //!"), "32", "28", next);
    traps(&block(1), &format!("{two} st.shared.u32 [r1+@@], tid; //!"), "-4", "0", next);
    // A pointer truncated to 32 bits is invalid.
    traps(
        &block(1),
        "cvt.u32.u64 r0, gi; cvt.u64.u32 d1, r0; @@ ld.global.u32 r1, [d1]; //!",
        "",
        "mov.b64 d1, gi;",
        global,
    );
}

#[test]
fn misaligned_accesses_trap() {
    let of = |wanted: usize| move |kind: &FaultKind| matches!(kind, FaultKind::Misaligned { size, .. } if *size == wanted);
    traps(&block(1), "ld.global.u32 r0, [gi+@@]; //!", "2", "4", of(4));
    traps(&block(1), "ld.global.v4.b32 {r0, r1, r2, r3}, [gi+@@]; //!", "8", "16", of(16));
    traps(&block(1), "st.shared.b64 [s+@@], gi; //!", "4", "8", of(8));
    traps(&block(1), "cp.async.cg.shared.global [s], [gi+@@], 16; //!", "4", "16", of(16));
}

#[test]
fn unset_registers_trap() {
    let named = |name: &'static str| move |kind: &FaultKind| matches!(kind, FaultKind::UninitialisedRegister { register } if register == name);
    traps(&block(32), "@@ add.u32 r0, r1, 1; //!", "", "mov.u32 r1, 0;", named("r1"));
    traps(&block(32), "@@\n@p mov.u32 r0, 1; //!", "", "setp.eq.u32 p, tid, 0;", named("p"));
    // Set only in some lanes.
    traps(
        &block(32),
        "setp.eq.u32 p, tid, 3; @@ mov.u32 r1, 0; add.u32 r0, r1, 1; //!",
        "@p",
        "",
        named("r1"),
    );
}

#[test]
fn unwritten_memory_traps() {
    let global =
        |kind: &FaultKind| matches!(kind, FaultKind::UninitialisedMemory { space: Space::Global, .. });
    traps(&block(1), "@@ ld.global.u32 r0, [mo]; //!", "", "st.global.u32 [mo], tid;", global);
    traps(&block(1), "@@ red.global.inc.u32 [mo], -1; //!", "", "st.global.u32 [mo], tid;", global);
    let byte = |kind: &FaultKind| {
        matches!(kind, FaultKind::UninitialisedMemory { space: Space::Shared, address: 6 })
    };
    traps(
        &block(1),
        "cvt.u16.u32 h0, tid; st.shared.b16 [s+4], h0; @@ ld.shared.u32 r0, [s+4]; //!",
        "",
        "st.shared.b16 [s+6], h0;",
        byte,
    );
}

const SHARED_SLOTS: &str =
    "mov.u32 r0, s; mad.lo.u32 r1, tid, 4, r0; add.u32 r2, tid, 32; and.b32 r2, r2, 63;
      mad.lo.u32 r2, r2, 4, r0; xor.b32 r3, tid, 1; mad.lo.u32 r3, r3, 4, r0;";

#[test]
fn races_between_warps_trap() {
    let race = |kind: &FaultKind| matches!(kind, FaultKind::Race { space: Space::Shared, .. });
    // Both orders of the two accesses race and either can report it, so both are on one line.
    let read = format!(
        "{SHARED_SLOTS} st.shared.u32 [r1], tid; @@ ld.shared.u32 r4, [r2]; st.global.u32 [mo], r4; //!"
    );
    let filled = |text: &str| {
        text.replace(
            "st.shared.u32 [r1], tid;",
            "st.shared.u32 [r1], tid; bar.sync 0; st.shared.u32 [r1], 1;",
        )
    };
    traps(&block(64), &filled(&read), "", "bar.sync 0;", race);
    traps(&block(64), &filled(&read), "bar.warp.sync 0xffffffff;", "bar.sync 1;", race);
    // Write after read: the second barrier of a loop body.
    let reuse = format!(
        "{SHARED_SLOTS} st.shared.u32 [r1], tid; bar.sync 0;\n ld.shared.u32 r4, [r2]; @@ st.shared.u32 [r1], r4; //!"
    );
    traps(&block(64), &reuse, "", "bar.sync 0;", race);
}

#[test]
fn races_inside_a_warp_trap() {
    let race = |kind: &FaultKind| matches!(kind, FaultKind::Race { space: Space::Shared, .. });
    let read = format!("{SHARED_SLOTS} st.shared.u32 [r1], tid; @@ ld.shared.u32 r4, [r3]; //!");
    traps(&block(32), &read, "", "bar.warp.sync 0xffffffff;", race);
    // A shuffle synchronises lanes but does not order memory.
    traps(&block(32), &read, "shfl.sync.idx.b32 r5, tid, 0, 0x1f, 0xffffffff;", "bar.warp.sync -1;", race);
    // `ldmatrix` gives every lane data that others wrote.
    let rows = "mov.u32 r0, s; mov.u64 d1, 0; setp.eq.u32 p, tid, 0; mov.u32 r1, 0;
      FILL: @p st.shared.v2.b64 [r0], {d1, d1}; add.u32 r0, r0, 16; add.u32 r1, r1, 1; setp.lt.u32 q, r1, 8; @q bra FILL;
      and.b32 r0, tid, 7; shl.b32 r0, r0, 4; @@ ldmatrix.sync.aligned.m8n8.x4.shared.b16 {a0, a1, a2, a3}, [r0]; //!";
    traps(&block(32), rows, "", "bar.warp.sync -1;", race);
    // Halves of words are distinguished, even after whole words were accessed.
    let halves = "cvt.u16.u32 h0, tid; setp.eq.u32 p, tid, 0; @p st.shared.b16 [s], h0; @p st.shared.b32 [s], tid; @!p st.shared.b32 [s+4], tid;
      @@ @p ld.shared.b16 h0, [s+4]; //!";
    traps(&block(2), halves, "", "bar.warp.sync -1;", race);
}

#[test]
fn races_in_global_memory_trap() {
    let race = |kind: &FaultKind| matches!(kind, FaultKind::Race { space: Space::Global, .. });
    let blocks = Launch::new(4, 1);
    traps(
        &blocks,
        "@@; //!",
        "ld.global.u32 r0, [gi]; add.u32 r0, r0, 1; st.global.u32 [gi], r0",
        "red.global.inc.u32 [gi], -1",
        race,
    );
    traps(
        &blocks,
        "mul.wide.u32 d1, cta, @@; add.u64 d1, go, d1; st.global.u32 [d1], cta; //!",
        "0",
        "4",
        race,
    );
    // Neighbouring halves of a word belong to different threads.
    let halves =
        "mul.wide.u32 d1, tid, @@; add.u64 d1, go, d1; cvt.u16.u32 h0, tid; st.global.b16 [d1], h0; //!";
    traps(&block(64), halves, "0", "2", race);
    // So do its bytes, which come from 16-bit registers.
    traps(&block(64), &halves.replace("global.b16", "global.b8"), "0", "1", race);
    // Memory read through the read-only path must not be written by any thread, in any order.
    let promise = "ld.global@@.u32 r0, [gi]; ld.global.u32 r0, [gi]; st.global.u32 [gi], r0; //!";
    traps(&block(1), promise, ".nc", "", race);
    traps(&block(1), "st.global.u32 [gi], 5; ld.global@@.u32 r0, [gi]; //!", ".nc", "", race);
}

#[test]
fn a_part_of_a_warp_at_an_aligned_instruction_traps() {
    let divergent = |lanes: u32| move |kind: &FaultKind| *kind == FaultKind::Divergent { lanes };
    let guard = "setp.lt.u32 p, tid, @@; mov.b32 a0, 0;";
    let mma = "mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 {c0,c1,c2,c3}, {a0,a0,a0,a0}, {a0,a0}, {a0,a0,a0,a0}; //!";
    traps(&block(32), &format!("{guard}\n@p {mma}"), "16", "32", divergent(0xffff));
    traps(&block(32), &format!("{guard} @!p bra SKIP;\n{mma}\nSKIP:"), "8", "32", divergent(0xff));
    traps(&block(32), &format!("{guard}\n@p bar.sync 0; //!"), "8", "32", divergent(0xff));
    // ... or that is reached after some lanes have exited.
    traps(&block(32), &format!("{guard} @!p exit;\n{mma}"), "31", "32", divergent(0x7fff_ffff));
}

#[test]
fn lanes_that_never_meet_trap() {
    let inactive = |kind: &FaultKind| matches!(kind, FaultKind::InactiveLane { lane: 16..32 });
    let left = "setp.ge.u32 p, tid, 16; @p exit;\nshfl.sync.bfly.b32 r0, tid, @@, 0x1f, -1; //!";
    traps(&block(32), left, "16", "8", inactive);
    let deadlock = |kind: &FaultKind| *kind == FaultKind::Deadlock;
    let apart =
        "setp.lt.u32 p, tid, @@;\n@!p bra OTHER; bar.warp.sync -1; exit; OTHER: bar.warp.sync -1; //!";
    traps(&block(32), apart, "16", "32", deadlock);
    let barriers = "setp.lt.u32 p, tid, 32; @p bra ONE;\nbar.sync 0; exit; //!\nONE: bar.sync @@; //!";
    traps(&block(64), barriers, "1", "0", deadlock);
}

#[test]
fn endless_waits_trap() {
    let body = "mov.u32 r0, 0;\nSPIN: ld.global.u32 r0, [gi];\nsetp.eq.u32 p, r0, 0;\n@p bra SPIN;";
    let found = fault(try_run(body, &block(1), &[0], 1).0).expect("the word stays zero");
    assert!(matches!(found.kind, FaultKind::StepLimit { .. }), "{found}");
    assert!((22..=25).contains(&found.line), "{found}");
}

#[test]
fn division_by_zero_traps() {
    let zero = |kind: &FaultKind| *kind == FaultKind::DivisionByZero;
    traps(&block(32), "add.u32 r0, tid, @@; div.u32 r1, 5, r0; //!", "0", "1", zero);
    traps(&block(1), "mov.u32 r0, @@; rem.u32 r0, 5, r0; //!", "0", "3", zero);
}

#[test]
fn a_fault_says_who_and_where() {
    let body =
        "mad.lo.u32 r0, cta, 64, tid; setp.ne.u32 p, r0, 101; @p exit;\n  ld.global.u32 r1,\n    [mi+4096];";
    let found = fault(try_run(body, &Launch::new(2, 64), &[0], 1).0).expect("out of bounds");
    assert_eq!((found.block, found.thread), ([1, 0, 0], [37, 0, 0]));
    assert_eq!(found.instruction, "ld.global.u32 r1, [mi+4096]");
    assert_eq!(found.line, 22);
    let text = found.to_string();
    assert!(text.starts_with("test.ptx:22: `ld.global.u32 r1, [mi+4096]`: 4 bytes at global 0x"), "{text}");
}
