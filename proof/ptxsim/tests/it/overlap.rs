//! Launches that begin before earlier ones have ended.

use bitnet_ptxsim::{Fault, FaultKind, Launch, Memory, Module, ParseErrorKind, Space};

use super::support::{fault, kernel, parse};

fn newer(body: &str) -> String {
    kernel(body).replace(".version 7.4", ".version 8.0").replace("sm_80", "sm_90")
}

/// Runs `first`, then `second` overlapped, on the same eight words, which the host wrote.
fn after(first: &str, second: &str, produced: bool) -> Option<Fault> {
    let mut memory = Memory::new();
    let (gi, go) = (memory.alloc(32), memory.alloc(32));
    memory.write(gi, &[0; 32]).unwrap();
    if produced {
        memory.produced(gi);
    }
    let launch = Launch::new(1, 1).params(&[gi.into(), go.into(), 8u32.into()]);
    parse(&newer(first)).launch("k", &mut memory, &launch).unwrap();
    let launch = Launch { overlapped: true, ..launch };
    fault(parse(&newer(second)).launch("k", &mut memory, &launch))
}

fn kind(first: &str, second: &str) -> Option<FaultKind> {
    after(first, second, false).map(|fault| fault.kind)
}

const WAIT: &str = "griddepcontrol.wait;";
const READ: &str = "ld.global.u32 r0, [gi+4];";
const COPY: &str = "mov.u32 r1, s; cp.async.cg.shared.global [r1], [gi], 16; cp.async.wait_all;";

#[test]
fn before_its_wait_a_kernel_reads_only_what_no_kernel_wrote() {
    let write = "st.global.u32 [gi+4], 5;";
    for read in [READ, COPY, "ld.global.nc.u32 r0, [gi+4];"] {
        assert_eq!(kind("", &format!("{read} {WAIT}")), None, "{read}");
        let early = kind(write, &format!("{read} {WAIT}"));
        assert!(matches!(early, Some(FaultKind::EarlyRead { .. })), "{read}: {early:?}");
    }
    assert_eq!(kind(write, &format!("{WAIT} {READ}")), None);
    assert_eq!(kind(write, &format!("{WAIT} {COPY}")), None);
}

#[test]
fn before_its_wait_a_kernel_does_not_even_read_what_the_host_wrote_if_kernels_write_there() {
    let early = after("", &format!("{READ} {WAIT}"), true).map(|fault| fault.kind);
    assert!(matches!(early, Some(FaultKind::EarlyRead { .. })), "{early:?}");
    assert_eq!(after("", &format!("{WAIT} {READ}"), true), None);
}

#[test]
fn before_its_wait_a_kernel_writes_nothing_to_global_memory() {
    for write in
        ["st.global.u32 [gi+4], 5;", "red.global.add.u32 [gi+4], 5;", "atom.global.inc.u32 r0, [gi], 9;"]
    {
        let early = kind("", &format!("{write} {WAIT}"));
        assert!(matches!(early, Some(FaultKind::EarlyWrite { .. })), "{write}: {early:?}");
        assert_eq!(kind("", &format!("{WAIT} {write}")), None, "{write}");
    }
    assert_eq!(kind("", &format!("mov.u32 r1, s; st.shared.u32 [r1], 5; {WAIT}")), None);
}

#[test]
fn every_thread_of_an_overlapped_kernel_waits() {
    let launch = Launch { overlapped: true, ..Launch::new(1, 64) };
    let half = "setp.lt.u32 p, tid, 40; @p bra on; griddepcontrol.wait; on:";
    for (body, thread) in [("griddepcontrol.launch_dependents;", 0), (half, 0), ("", 0)] {
        let mut memory = Memory::new();
        let (gi, go) = (memory.alloc(32), memory.alloc(32));
        let launch = launch.clone().params(&[gi.into(), go.into(), 8u32.into()]);
        let found = fault(parse(&newer(body)).launch("k", &mut memory, &launch)).expect(body);
        assert_eq!((found.kind, found.thread[0] % 32), (FaultKind::NoWait, thread), "{body}");
        let alone = Launch { overlapped: false, ..launch };
        parse(&newer(body)).launch("k", &mut memory, &alone).unwrap();
    }
}

#[test]
fn a_prefetch_asks_for_whole_pieces_of_an_allocation() {
    let ask = |at: &str, bytes: u32| {
        kind("", &format!("mov.u32 r0, {bytes}; cp.async.bulk.prefetch.L2.global [{at}], r0; {WAIT}"))
    };
    assert_eq!(ask("gi", 32), None);
    assert_eq!(ask("gi+16", 16), None);
    let beyond = ask("gi+16", 32);
    assert!(matches!(beyond, Some(FaultKind::OutOfBounds { space: Space::Global, .. })), "{beyond:?}");
    for (at, bytes) in [("gi+8", 16), ("gi", 24)] {
        assert!(matches!(ask(at, bytes), Some(FaultKind::Misaligned { .. })), "{at} {bytes}");
    }
}

#[test]
fn instructions_of_sm_90_are_refused_for_sm_80() {
    for body in [WAIT, "griddepcontrol.launch_dependents;", "cp.async.bulk.prefetch.L2.global [gi], n;"] {
        let error = Module::parse("old.ptx", &kernel(body)).unwrap_err();
        assert!(matches!(error.kind, ParseErrorKind::Instruction { .. }), "{error}");
        parse(&newer(body));
    }
    for wrong in ["griddepcontrol;", "griddepcontrol.wait.sync;"] {
        assert!(Module::parse("new.ptx", &newer(wrong)).is_err(), "{wrong}");
    }
}
