//! `cp.async`: the data arrives at the wait, not before.

use bitnet_ptxsim::{FaultKind, Launch, Space};

use super::support::{fault, run, traps, try_run};

const COPY: &str = "mov.u32 r0, s; mad.lo.u32 r0, tid, 16, r0; mul.wide.u32 d1, tid, 16; add.u64 d1, gi, d1;";

fn in_flight(kind: &FaultKind) -> bool {
    matches!(kind, FaultKind::InFlight { .. })
}

#[test]
fn copies_arrive_at_the_wait() {
    let body = format!(
        "{COPY} cp.async.cg.shared.global.L2::128B [r0], [d1], 16; cp.async.cg.shared.global [r0+512], [d1], 16;
        cp.async.commit_group; cp.async.wait_group 0; ld.shared.u32 r1, [r0+8]; ld.shared.u32 r2, [r0+516];
        add.u32 r1, r1, r2; st.global.u32 [mo], r1;"
    );
    let input: Vec<u32> = (0..128).map(|i| i * i).collect();
    let expected: Vec<u32> = (0..32).map(|t: u32| (4 * t + 2).pow(2) + (4 * t + 1).pow(2)).collect();
    assert_eq!(run(&body, &Launch::new(1, 32), &input, 32), expected);
}

#[test]
fn bytes_beyond_the_source_size_are_zero() {
    let body = format!(
        "{COPY} cp.async.cg.shared.global [r0], [d1], 16, n; cp.async.wait_all;
        ld.shared.v4.b32 {{r1, r2, r3, r4}}, [r0]; mad.lo.u32 r1, r2, 1000, r1; mad.lo.u32 r1, r3, 10000, r1;
        add.u32 r1, r1, r4; st.global.u32 [mo], r1;"
    );
    // The count of input words is 6: bytes 0 to 5, words 0 and half of word 1.
    assert_eq!(run(&body, &Launch::new(1, 1), &[7, 0x0005_0003, 9, 9, 0, 0], 1), [3007]);
}

#[test]
fn the_source_of_a_shorter_copy_has_all_its_bytes() {
    let copy = format!("{COPY} cp.async.cg.shared.global [r0], [d1], 16, n; cp.async.wait_all;");
    // The count of input words is also the size of the copy in bytes.
    let copied = |words: usize| fault(try_run(&copy, &Launch::new(1, 1), &vec![0; words], 1).0);
    assert_eq!(copied(4).map(|fault| fault.kind), None);
    let beyond = copied(3).expect("16 bytes of 12").kind;
    assert!(matches!(beyond, FaultKind::OutOfBounds { space: Space::Global, size: 16, .. }), "{beyond}");
}

#[test]
fn reading_before_the_wait_traps() {
    let read = format!(
        "{COPY} cp.async.cg.shared.global [r0], [d1], 16; cp.async.commit_group; @@\nld.shared.u32 r1, [r0]; //!"
    );
    traps(&Launch::new(1, 32), &read, "", "cp.async.wait_all;", in_flight);
    // Even where the target was written before.
    let old = read.replace("cp.async.cg", "st.shared.v2.b64 [r0], {gi, gi}; cp.async.cg");
    traps(&Launch::new(1, 32), &old, "", "cp.async.wait_all;", in_flight);
    let twice = format!(
        "{COPY} cp.async.cg.shared.global [r0], [d1], 16; @@\ncp.async.cg.shared.global [r0], [d1], 16; //!"
    );
    traps(&Launch::new(1, 32), &twice, "", "cp.async.wait_all;", in_flight);
    // An uncommitted copy is in no group yet.
    let uncommitted = format!(
        "{COPY} cp.async.cg.shared.global [r0], [d1], 16; @@ cp.async.wait_group 0;\nld.shared.u32 r1, [r0]; //!"
    );
    traps(&Launch::new(1, 32), &uncommitted, "", "cp.async.commit_group;", in_flight);
    // With three groups, all but the newest `keep` are waited for, so the second needs `keep` to be one.
    let groups: String = (0..3)
        .map(|i| format!("cp.async.cg.shared.global [r0+{0}], [d1], 16; cp.async.commit_group;", 512 * i))
        .collect();
    let second = format!("{COPY} {groups} cp.async.wait_group @@;\nld.shared.u32 r1, [r0+512]; //!");
    traps(&Launch::new(1, 32), &second, "2", "1", in_flight);
    let written =
        format!("{COPY} cp.async.cg.shared.global [r0], [d1], 16; @@\nst.shared.u32 [r0], tid; //!");
    traps(&Launch::new(1, 32), &written, "", "cp.async.wait_all;", in_flight);
}

#[test]
fn a_wait_is_only_for_the_threads_own_copies() {
    let race = |kind: &FaultKind| matches!(kind, FaultKind::Race { space: Space::Shared, .. });
    let body = format!(
        "{COPY} cp.async.cg.shared.global [r0], [d1], 16; cp.async.wait_all; @@ xor.b32 r1, r0, 16;\nld.shared.u32 r1, [r1]; //!"
    );
    traps(&Launch::new(1, 32), &body, "", "bar.warp.sync -1;", race);
    // Overwrites bytes that others still read.
    let reuse = format!(
        "{COPY} st.shared.v2.b64 [r0], {{gi, gi}}; bar.sync 0; xor.b32 r1, r0, 16; ld.shared.u32 r1, [r1]; @@\n
        cp.async.cg.shared.global [r0], [d1], 16; //!"
    );
    traps(&Launch::new(1, 32), &reuse, "", "bar.sync 0;", race);
}

#[test]
fn a_source_must_not_change_under_way() {
    let changed = |kind: &FaultKind| matches!(kind, FaultKind::CopySource { .. });
    let body = format!(
        "{COPY} cp.async.cg.shared.global [r0], [gi], 16; @@ st.global.u32 [gi], 99;\ncp.async.wait_all; //!"
    );
    traps(&Launch::new(1, 1), &body, "", "cp.async.wait_all;", changed);
    let size = |kind: &FaultKind| matches!(kind, FaultKind::CopySize { .. });
    traps(
        &Launch::new(1, 1),
        &format!("{COPY} cp.async.cg.shared.global [r0], [gi], 16, @@; //!"),
        "17",
        "3",
        size,
    );
    let unwritten =
        |kind: &FaultKind| matches!(kind, FaultKind::UninitialisedMemory { space: Space::Global, .. });
    traps(
        &Launch::new(1, 1),
        &format!("{COPY} cp.async.cg.shared.global [r0], [@@], 16; //!"),
        "go",
        "gi",
        unwritten,
    );
}
