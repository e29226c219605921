//! Helpers that make kernels from a body, launch them with two buffers, and check faults by their marked line.

use bitnet_ptxsim::{Fault, FaultKind, Launch, LaunchError, Memory, Module, Param, Stats};

/// A module with one entry `k(in, out, n)`. The body has the buffers in `gi` and `go`, `n` in `n`, the thread in `tid`,
/// the block in `cta`, and the addresses of the thread's own words in `mi` and `mo`; registers are declared by type.
pub fn kernel(body: &str) -> String {
    format!(
        ".version 7.4
.target sm_80
.address_size 64
.extern .shared .align 16 .b8 dynamic[];
.visible .entry k(.param .u64 in, .param .u64 out, .param .u32 count)
{{
  .reg .pred p, q;
  .reg .b16 h<8>;
  .reg .b32 tid, cta, n, r<16>, a<4>, b<4>, c<4>;
  .reg .f32 f<4>;
  .reg .b64 gi, go, mi, mo, d<8>;
  .shared .align 16 .b32 s[1024];
  ld.param.u64 gi, [in];
  ld.param.u64 go, [out];
  ld.param.u32 n, [count];
  mov.u32 tid, %tid.x;
  mov.u32 cta, %ctaid.x;
  mul.wide.u32 d0, tid, 4;
  add.u64 mi, gi, d0;
  add.u64 mo, go, d0;
{body}
  ret;
}}
"
    )
}

pub fn parse(text: &str) -> Module {
    Module::parse("test.ptx", text).unwrap_or_else(|error| panic!("{error}\n{text}"))
}

/// Runs the body over `input` words; the second buffer holds `output` words, unwritten.
pub fn try_run(
    body: &str,
    launch: &Launch,
    input: &[u32],
    output: usize,
) -> (Result<Stats, LaunchError>, impl Fn() -> Vec<u32> + use<>) {
    let module = parse(&kernel(body));
    let mut memory = Memory::new();
    let (gi, go) = (memory.alloc(4 * input.len()), memory.alloc(4 * output));
    let bytes: Vec<u8> = input.iter().flat_map(|word| word.to_le_bytes()).collect();
    memory.write(gi, &bytes).expect("the input fits");
    let launch = launch.clone().params(&[gi.into(), go.into(), Param::from(input.len() as u32)]);
    let result = module.launch("k", &mut memory, &launch);
    let read = move || {
        let bytes = memory.read(go, 4 * output).expect("the kernel wrote all of its output");
        bytes.chunks_exact(4).map(|word| u32::from_le_bytes(word.try_into().unwrap())).collect()
    };
    (result, read)
}

pub fn run(body: &str, launch: &Launch, input: &[u32], output: usize) -> Vec<u32> {
    let (result, read) = try_run(body, launch, input, output);
    result.unwrap_or_else(|error| panic!("{error}"));
    read()
}

pub fn fault(result: Result<Stats, LaunchError>) -> Option<Fault> {
    match result {
        Ok(_) => None,
        Err(LaunchError::Fault(fault)) => Some(*fault),
        Err(other) => panic!("not a fault: {other}"),
    }
}

/// `body` must fault on a line marked `//!` with `bad` in its slot `@@`, and must not fault with `good`, for any order
/// of warps.
pub fn traps(launch: &Launch, body: &str, bad: &str, good: &str, expected: impl Fn(&FaultKind) -> bool) {
    let input: Vec<u32> = (0..256).collect();
    for seed in 0..8 {
        let launch = Launch { seed, ..launch.clone() };
        let wrong = body.replace("@@", bad);
        let found =
            fault(try_run(&wrong, &launch, &input, 1024).0).unwrap_or_else(|| panic!("no fault: {wrong}"));
        let text = kernel(&wrong);
        let marked = text.lines().nth(found.line as usize - 1).is_some_and(|line| line.contains("//!"));
        assert!(expected(&found.kind), "seed {seed}: {found}");
        assert!(
            marked,
            "seed {seed}: {found}
{text}"
        );
        assert_eq!(found.file, "test.ptx");
        let right = body.replace("@@", good);
        assert_eq!(fault(try_run(&right, &launch, &input, 1024).0), None, "seed {seed}: {right}");
    }
}
