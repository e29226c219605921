//! The counts of a launch.

use bitnet_ptxsim::{Launch, Stats};

use super::support::{kernel, try_run};

fn stats(body: &str) -> Stats {
    let input: Vec<u32> = (0..256).collect();
    try_run(body, &Launch::new(1, 32), &input, 1024).0.unwrap_or_else(|error| panic!("{error}"))
}

fn conflicts(body: &str) -> (u64, u64) {
    let counted = stats(body);
    (counted.shared_passes, counted.bank_conflicts)
}

#[test]
fn bank_conflicts_are_counted_by_word_and_bank() {
    let store =
        |stride: u32| format!("mov.u32 r0, s; mad.lo.u32 r0, tid, {stride}, r0; st.shared.u32 [r0], tid;");
    assert_eq!(conflicts(&store(4)), (1, 0));
    assert_eq!(conflicts(&store(8)), (1, 1));
    assert_eq!(conflicts(&store(128)), (1, 31));
    assert_eq!(conflicts(&store(36)), (1, 0));
    // Many lanes that access two words of a bank need two passes.
    let two = "and.b32 r1, tid, 1; mul.lo.u32 r1, r1, 128; setp.lt.u32 p, tid, 2; mov.u32 r0, s; add.u32 r0, r0, r1;";
    let body = format!("{two} @p st.shared.u32 [r0], tid; bar.warp.sync -1; ld.shared.u32 r1, [r0];");
    assert_eq!(conflicts(&body), (2, 2));
    // The same word for all lanes is one pass; wide accesses split the warp into parts.
    assert_eq!(
        conflicts(
            "mov.u32 r0, s; setp.eq.u32 p, tid, 0; @p st.shared.u32 [r0], tid; bar.warp.sync -1; ld.shared.u32 r1, [r0];"
        ),
        (2, 0)
    );
    assert_eq!(
        conflicts("mov.u32 r0, s; mad.lo.u32 r0, tid, 16, r0; st.shared.v4.b32 [r0], {tid, tid, tid, tid};"),
        (4, 0)
    );
    assert_eq!(
        conflicts("mov.u32 r0, s; mad.lo.u32 r0, tid, 128, r0; st.shared.v4.b32 [r0], {tid, tid, tid, tid};"),
        (4, 28)
    );
}

#[test]
fn atomics_of_a_bank_take_a_pass_each() {
    let add = |stride: u32| {
        let each = format!("mov.u32 r0, s; mad.lo.u32 r0, tid, {stride}, r0;");
        conflicts(&format!("{each} st.shared.u32 [r0], tid; bar.sync 0; red.shared.add.u32 [r0], 1;"))
    };
    assert_eq!(add(4), (1 + 1, 0));
    assert_eq!(add(8), (1 + 2, 1));
    let one = "setp.eq.u32 p, tid, 0; @p st.shared.u32 [s], tid; bar.sync 0; red.shared.add.u32 [s], 1;";
    assert_eq!(conflicts(one), (1 + 32, 0));
}

#[test]
fn conflicts_of_matrix_loads_name_their_line() {
    let fill = "mov.u32 r0, s; mad.lo.u32 r1, tid, 128, r0; mov.u64 d1, 0; st.shared.v2.b64 [r1], {d1, d1}; bar.sync 0;";
    let body = format!("{fill}\nldmatrix.sync.aligned.m8n8.x4.shared.b16 {{a0, a1, a2, a3}}, [r1];");
    let counted = stats(&body);
    let line = kernel(&body).lines().position(|line| line.contains("ldmatrix")).unwrap() as u32 + 1;
    assert_eq!(counted.bank_conflict_lines.get(&line), Some(&28));
    assert_eq!(counted.bank_conflicts, 28 + 28);
}

#[test]
fn sectors_and_requests_are_counted() {
    let at = |stride: u32| {
        stats(&format!(
            "cvt.u16.u32 h0, tid; mul.wide.u32 d1, tid, {stride}; add.u64 d1, go, d1; st.global.b16 [d1], h0;"
        ))
    };
    let counted = |stride| (at(stride).global_requests, at(stride).global_sectors);
    assert_eq!(counted(2), (1, 2));
    assert_eq!(counted(4), (1, 4));
    assert_eq!(counted(64), (1, 32));
    let back = stats(
        "mul.lo.u32 r0, tid, 5; and.b32 r0, r0, 31; mul.wide.u32 d1, r0, 16; add.u64 d1, go, d1; st.global.u32 [d1], tid;",
    );
    assert_eq!(back.global_sectors, 16);
    // Of 32 copies to shared memory, those after the eighth fill with zeros and read nothing.
    let copied = stats(
        "mov.u32 r0, s; mad.lo.u32 r0, tid, 16, r0; mul.wide.u32 d1, tid, 16; add.u64 d1, gi, d1; setp.lt.u32 p, tid, 8;
        selp.b32 r1, 16, 0, p; cp.async.cg.shared.global [r0], [d1], 16, r1; cp.async.wait_all;",
    );
    assert_eq!(copied.global_sectors, 4);
}

#[test]
fn instructions_are_counted_by_opcode_warp_and_thread() {
    let body = "setp.lt.u32 p, tid, 5; @p add.u32 r0, tid, 1; @p add.u32 r0, tid, 1; exit;";
    let counted = stats(body);
    assert_eq!(counted.opcodes["add.u32"], 2);
    assert_eq!(counted.opcodes["exit"], 1);
    assert!(!counted.opcodes.contains_key("ret"));
    let preamble = 8;
    assert_eq!(counted.warp_instructions, preamble + 4);
    assert_eq!(counted.thread_instructions, 32 * (preamble + 2) + 2 * 5);
}

#[test]
fn zeroed_memory_can_be_read_before_it_is_written() {
    let mut memory = bitnet_ptxsim::Memory::new();
    let (written, unwritten) = (memory.alloc_zeroed(1 << 28), memory.alloc(64));
    assert_eq!(memory.read(written + (1 << 27), 8).unwrap(), [0; 8]);
    assert!(memory.read(unwritten, 8).is_err());
}
