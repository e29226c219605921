//! The host's side: memory and the shape of launches.

use bitnet_ptxsim::{Launch, LaunchError, Memory, MemoryError, Param};

use super::support::{kernel, parse, run};

#[test]
fn memory_keeps_bytes_and_knows_which_were_written() {
    let mut memory = Memory::new();
    let (a, b) = (memory.alloc(16), memory.alloc(16));
    memory.write(a + 3, &[1, 2, 3]).unwrap();
    assert_eq!(memory.read(a + 3, 3).unwrap(), [1, 2, 3]);
    assert_eq!(memory.read(a + 3, 4), Err(MemoryError::Uninitialised { address: a + 6 }));
    assert_eq!(memory.read(b, 1), Err(MemoryError::Uninitialised { address: b }));
    assert_eq!(memory.write(a + 15, &[0; 2]), Err(MemoryError::OutOfBounds { address: a + 15, len: 2 }));
    assert_eq!(memory.read(a.wrapping_sub(1), 1), Err(MemoryError::OutOfBounds { address: a - 1, len: 1 }));
    assert!(a % 256 == 0 && a % 512 != 0, "the alignment a driver promises and no more");
}

#[test]
fn freed_memory_is_gone() {
    let mut memory = Memory::new();
    let a = memory.alloc(16);
    assert!(memory.free(a + 4).is_err());
    memory.free(a).unwrap();
    assert!(memory.write(a, &[0]).is_err());
    assert!(memory.free(a).is_err());
    let module = parse(&kernel("st.global.u32 [go], tid;"));
    let launch = Launch::new(1, 1).params(&[a.into(), a.into(), 0u32.into()]);
    assert!(matches!(module.launch("k", &mut memory, &launch), Err(LaunchError::Fault(_))));
}

#[test]
fn launches_of_the_wrong_shape_are_refused() {
    let text = kernel("").replace("count)\n{", "count)\n.maxntid 64, 2\n{");
    let module = parse(&text);
    assert_eq!(module.entries().collect::<Vec<_>>(), ["k"]);
    let params = [Param::from(0u64), Param::from(0u64), Param::from(1u32)];
    let good = Launch::new(1, 128).params(&params);
    let launch = |launch: Launch| module.launch("k", &mut Memory::new(), &launch);
    assert!(launch(good.clone()).is_ok());
    let shape =
        |result, wanted: &str| matches!(result, Err(LaunchError::Shape { what, .. }) if what == wanted);
    assert!(shape(launch(Launch { block: [129, 1, 1], ..good.clone() }), "threads of a block"));
    assert!(shape(launch(Launch { block: [0, 1, 1], ..good.clone() }), "threads of a block"));
    assert!(shape(launch(Launch { grid: [1, 0, 1], ..good.clone() }), "blocks of the grid"));
    assert!(shape(
        launch(Launch { dynamic_shared: 163 * 1024 - 4095, ..good.clone() }),
        "shared memory plus one"
    ));
    assert!(launch(Launch { dynamic_shared: 163 * 1024 - 4096, ..good.clone() }).is_ok());
    let wrong = |params: &[Param], position: usize| {
        let result = launch(good.clone().params(params));
        matches!(result, Err(LaunchError::Parameter { position: found, .. }) if found == position)
    };
    assert!(wrong(&params[..2], 2));
    assert!(wrong(&[params[0], params[2], params[1]], 1));
    assert!(wrong(&[params[0], params[1], params[2], params[2]], 3));
    let none = module.launch("other", &mut Memory::new(), &good);
    assert_eq!(none, Err(LaunchError::NoEntry { file: "test.ptx".into(), entry: "other".into() }));
}

#[test]
fn dynamic_shared_memory_lies_behind_the_static_and_is_as_large_as_launched() {
    let body = "mov.u32 r0, dynamic; st.shared.u32 [dynamic+12], r0; ld.shared.u32 r1, [dynamic+12]; st.global.u32 [go], r1;";
    let launch = Launch { dynamic_shared: 16, ..Launch::new(1, 1) };
    assert_eq!(run(body, &launch, &[0], 1), [8192], "4096 bytes of the other array, and a gap");
    let (short, _) = super::support::try_run(body, &Launch { dynamic_shared: 12, ..launch }, &[0], 1);
    assert!(matches!(short, Err(LaunchError::Fault(_))));
}

#[test]
fn a_byte_is_stored_from_the_low_half_of_its_register() {
    let body = "mov.u32 r0, 0x11223344; st.shared.u32 [s], r0; mov.u32 r0, 0x5566; cvt.u16.u32 h0, r0;
      st.shared.b8 [s+1], h0; ld.shared.u32 r1, [s]; st.global.u32 [go], r1;";
    assert_eq!(run(body, &Launch::new(1, 1), &[0], 1), [0x1122_6644]);
}

#[test]
fn shared_addresses_are_32_bits_wide() {
    // A base below the array, as in a loop that counts up to zero.
    let body = "st.shared.u32 [s], 7; mov.u32 r0, s; sub.u32 r0, r0, 16; ld.shared.u32 r1, [r0+16]; st.global.u32 [go], r1;";
    assert_eq!(run(body, &Launch::new(1, 1), &[0], 1), [7]);
}
