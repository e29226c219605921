//! Blocks and states that are larger than what a thread copies at a time.

use std::sync::Mutex;

use bitnet_kernels::{Backend, Cpu, DeltaShape, Isa, KvShape, KvType};

/// Bytes of a pattern that repeats at no multiple of a page.
fn bytes(len: usize, seed: usize) -> Vec<u8> {
    (0..len).map(|i| ((i + seed) % 251) as u8).collect()
}

#[test]
fn blocks_and_states_that_several_threads_copy_come_back_as_they_were() {
    for threads in [1, 3] {
        let mut cpu = Cpu::new(Isa::best(), threads).unwrap().keeping(KvType::F32);
        let mut kv = cpu.kv(KvShape { blocks: 3, kv_heads: 5, head_dim: 250 }).unwrap();
        let blocks: Vec<Vec<u8>> = (0..3).map(|i| bytes(Cpu::block_bytes(&kv), i)).collect();
        assert!(blocks[0].len() > 4 << 17, "each side has several pieces");
        for (block, bytes) in (0..).zip(&blocks) {
            cpu.write_block(&mut kv, block, bytes).unwrap();
        }
        // A source that is read piece by piece, for two layers at once, gives the same.
        let mut second = cpu.kv(KvShape { blocks: 3, kv_heads: 5, head_dim: 250 }).unwrap();
        let (piece, both) = (Cpu::block_piece(&kv), [&blocks[1][..], &blocks[2]].concat());
        assert!(piece.is_power_of_two() && blocks[0].len().is_multiple_of(piece), "{piece}");
        let filled = Mutex::new(0);
        let fill = |at: usize, to: &mut [u8]| {
            assert!(at.is_multiple_of(piece) && to.len().is_multiple_of(piece), "{at}, {} bytes", to.len());
            to.copy_from_slice(&both[at..][..to.len()]);
            *filled.lock().unwrap() += to.len();
        };
        cpu.write_block(&mut kv, 1, &blocks[0]).unwrap();
        cpu.fill_block(&mut [&mut kv, &mut second], 1, &fill).unwrap();
        assert_eq!(filled.into_inner().unwrap(), both.len());
        let mut read = vec![0; blocks[2].len()];
        cpu.read_block(&mut second, 1, &mut read).unwrap();
        assert!(read == blocks[2], "the second layer with {threads} threads");
        let shape = DeltaShape { key_heads: 2, value_heads: 10, head_dim: 125, taps: 4 };
        let mut state = cpu.state(shape, 2).unwrap();
        let slots: Vec<Vec<u8>> = (0..2).map(|i| bytes(Cpu::state_bytes(&state), i)).collect();
        for (slot, bytes) in (0..).zip(&slots) {
            cpu.write_state(&mut state, slot, bytes).unwrap();
        }
        for (block, bytes) in (0..).zip(&blocks) {
            let mut read = vec![0; bytes.len()];
            cpu.read_block(&mut kv, block, &mut read).unwrap();
            assert!(read == *bytes, "block {block} with {threads} threads");
        }
        for (slot, bytes) in (0..).zip(&slots) {
            let mut read = vec![0; bytes.len()];
            cpu.read_state(&mut state, slot, &mut read).unwrap();
            assert!(read == *bytes, "slot {slot} with {threads} threads");
        }
    }
}
