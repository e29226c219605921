use bitnet_kernels::gpu::{Buffer, Gpu, Steps};
use bitnet_tests::Simulator;

fn words(gpu: &mut Gpu<Simulator>, buffer: &Buffer) -> Vec<u32> {
    let bytes = gpu.fetch(buffer, buffer.bytes()).unwrap();
    bytes.as_chunks().0.iter().map(|&b| u32::from_le_bytes(b)).collect()
}

#[test]
fn a_step_hands_its_tokens_to_the_next_and_a_row_that_failed_stays() {
    let mut gpu = Gpu::new(Simulator::default()).unwrap();
    let n = 130;
    let of = |gpu: &mut Gpu<Simulator>, f: &dyn Fn(u32) -> u32, len: u32| {
        let bytes: Vec<u8> = (0..len).flat_map(|i| f(i).to_le_bytes()).collect();
        gpu.store(&bytes, "a test").unwrap()
    };
    // Sequence `i` is at position `i`; number 5 has failed.
    let drawn = of(&mut gpu, &|i| if i % 2 == 0 { 1000 + i / 2 } else { u32::from(i == 11) }, 2 * n);
    let tokens = of(&mut gpu, &|i| i, n);
    let positions = of(&mut gpu, &|i| i, n);
    let slots = of(&mut gpu, &|_| 77, n);
    let firsts = of(&mut gpu, &|i| 3 * i, n);
    let blocks = of(&mut gpu, &|i| 10_000 - i, 3 * n);
    let ring = 16;
    let history = of(&mut gpu, &|_| 0, n * ring);
    let steps = Steps {
        drawn: drawn.address(),
        tokens: tokens.address(),
        positions: positions.address(),
        slots: slots.address(),
        firsts: firsts.address(),
        blocks: blocks.address(),
        history: history.address(),
        ring: ring as usize,
    };
    gpu.advance(n as usize, &steps).unwrap();
    let [tokens, positions, slots, history] =
        [&tokens, &positions, &slots, &history].map(|b| words(&mut gpu, b));
    for i in 0..n {
        let (at, next) = (i as usize, i + 1);
        if i == 5 {
            assert_eq!((tokens[at], positions[at], slots[at]), (5, 5, 77), "a row that failed");
            continue;
        }
        let block = 10_000 - (3 * i + next / 64);
        assert_eq!(
            (tokens[at], positions[at], slots[at]),
            (1000 + i, next, 64 * block + next % 64),
            "row {i}"
        );
        assert_eq!(history[(i * ring + next % ring) as usize], 1000 + i, "row {i}");
    }
}
