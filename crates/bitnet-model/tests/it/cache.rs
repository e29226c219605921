//! Parts of a model's cache outside the model: what is copied out comes back, and its bytes are known.

use bitnet_kernels::{Cpu, Isa, KvType, order::ARITHMETIC};
use bitnet_model::{
    Batch, CachePlace, Checkpoint, ForwardError, Limits, Logits, Model, Synthetic, Transformer,
};
use sha2::{Digest, Sha256};

const LIMITS: Limits = Limits { max_tokens: 128, max_logit_rows: 1, kv_blocks: 4, state_slots: 3 };

fn load(name: &str, kv: KvType) -> Box<dyn Model> {
    let model = match name {
        "demo" => Checkpoint::demo().unwrap(),
        _ => Checkpoint::synthetic(name, Synthetic::named(name).unwrap()),
    };
    let cpu = Cpu::new(Isa::best(), 2).unwrap().keeping(kv);
    Box::new(Transformer::load(&model.spec, &*model.tensors, cpu, LIMITS, &mut |_, _| {}).unwrap())
}

/// Bits of the last row of logits after `tokens` from `start` on, in these blocks and this slot.
fn step(model: &mut dyn Model, tokens: &[u32], start: usize, blocks: &[u32], slot: u32) -> Vec<u32> {
    let (mut batch, mut logits) = (Batch::new(), Logits::default());
    batch.push(tokens, start, blocks, tokens.len() - 1..tokens.len());
    batch.set_state(slot);
    model.forward(&batch, &mut logits).unwrap();
    logits.row(0).iter().map(|x| x.to_bits()).collect()
}

fn read(model: &mut dyn Model, place: CachePlace) -> Vec<u8> {
    let mut bytes = vec![0; model.cache_bytes().unwrap().of(place)];
    model.read_cache(place, &mut bytes).unwrap();
    bytes
}

/// Overwrites a block with these bytes, as a file that is read in place.
fn fill(model: &mut dyn Model, block: u32, from: &[u8]) {
    let piece = model.cache_bytes().unwrap().piece;
    let fill = |at: usize, to: &mut [u8]| {
        assert!(at.is_multiple_of(piece), "{at} with pieces of {piece}");
        assert!(to.len().is_multiple_of(piece) || at + to.len() == from.len(), "{at} {}", to.len());
        to.copy_from_slice(&from[at..][..to.len()]);
    };
    model.fill_block(block, &fill).unwrap();
}

fn tokens() -> Vec<u32> {
    (0..100).map(|i| (i * i * 7 + 3) % 500).collect()
}

#[test]
fn what_is_copied_out_continues_a_text_in_another_model_of_the_same_weights() {
    let tokens = tokens();
    for name in ["demo", "bonsai-tiny", "hybrid-tiny", "hybrid-tiny-rotated"] {
        for kv in KvType::ALL {
            let mut first = load(name, kv);
            step(&mut *first, &tokens[..64], 0, &[0], 0);
            let parts = [CachePlace::Block(0), CachePlace::State(0)].map(|place| read(&mut *first, place));
            assert_eq!(parts[1].is_empty(), !name.starts_with("hybrid"), "{name}");
            let expected = step(&mut *first, &tokens[64..], 64, &[0, 1], 0);
            let mut second = load(name, kv);
            second.write_cache(CachePlace::Block(3), &parts[0]).unwrap();
            second.write_cache(CachePlace::State(2), &parts[1]).unwrap();
            assert_eq!(step(&mut *second, &tokens[64..], 64, &[3, 0], 2), expected, "{name} {kv}");
            second.write_cache(CachePlace::Block(3), &vec![0; parts[0].len()]).unwrap();
            fill(&mut *second, 3, &parts[0]);
            second.write_cache(CachePlace::State(2), &parts[1]).unwrap();
            assert_eq!(step(&mut *second, &tokens[64..], 64, &[3, 0], 2), expected, "{name} {kv}, filled");
        }
    }
}

/// A model whose sliding layers, three of four, have blocks of their own.
fn windowed(kv: KvType) -> Transformer<Cpu> {
    let (model, cpu) = (Synthetic::named("maple-tiny").unwrap(), Cpu::new(Isa::best(), 2).unwrap());
    Transformer::load_with_windows(model.spec(), &model, cpu.keeping(kv), LIMITS, &mut |_, _| {}).unwrap()
}

/// As [`step`], with this table of sliding layers.
fn window_step(
    model: &mut dyn Model,
    tokens: &[u32],
    start: usize,
    blocks: [&[u32]; 2],
) -> Result<Vec<u32>, ForwardError> {
    let (mut batch, mut logits) = (Batch::new(), Logits::default());
    batch.push(tokens, start, blocks[0], tokens.len() - 1..tokens.len());
    batch.set_windows(blocks[1]);
    model.forward(&batch, &mut logits)?;
    Ok(logits.row(0).iter().map(|x| x.to_bits()).collect())
}

#[test]
fn a_text_goes_on_with_its_blocks_and_one_window_in_another_model_of_the_same_weights() {
    let tokens: Vec<u32> = (0..140).map(|i| (i * i * 7 + 3) % 500).collect();
    const NONE: u32 = u32::MAX;
    for kv in KvType::ALL {
        let mut whole = load("maple-tiny", kv);
        step(&mut *whole, &tokens[..128], 0, &[0, 1], 0);
        let expected = step(&mut *whole, &tokens[128..], 128, &[0, 1, 2], 0);
        let mut first = windowed(kv);
        let bytes = first.cache_bytes().unwrap();
        assert_eq!((bytes.window, first.window_blocks()), (3 * bytes.block, 4));
        // The second run gets the block that the first has left.
        window_step(&mut first, &tokens[..70], 0, [&[0, 1], &[2, 0]]).unwrap();
        window_step(&mut first, &tokens[70..128], 70, [&[0, 1], &[2, 0]]).unwrap();
        let place = [CachePlace::Block(0), CachePlace::Block(1), CachePlace::Window(0)];
        let parts = place.map(|place| read(&mut first, place));
        first.copy_window(0, 3).unwrap();
        let on = window_step(&mut first, &tokens[128..], 128, [&[0, 1, 2], &[NONE, 3, 2]]).unwrap();
        assert_eq!(on, expected, "{kv}");
        let mut second = windowed(kv);
        second.write_cache(CachePlace::Block(3), &parts[0]).unwrap();
        fill(&mut second, 0, &parts[1]);
        second.write_cache(CachePlace::Window(2), &parts[2]).unwrap();
        let on = window_step(&mut second, &tokens[128..], 128, [&[3, 0, 1], &[NONE, 2, 0]]).unwrap();
        assert_eq!(on, expected, "{kv}");
    }
}

#[test]
fn a_run_without_blocks_for_its_window_is_refused() {
    let mut model = windowed(KvType::F32);
    let (mut batch, mut logits) = (Batch::new(), Logits::default());
    batch.push(&[1], 70, &[0, 1], 0..1);
    let error = model.forward(&batch, &mut logits).unwrap_err();
    assert_eq!(error, ForwardError::WindowMissing { position: 70 });
    assert!(error.is_refusal());
    let error = window_step(&mut model, &[1], 70, [&[0, 1], &[0, 4]]).unwrap_err();
    assert_eq!(error, ForwardError::BlockOutOfRange { block: 4, blocks: 4 });
    let error = model.copy_window(0, 4).unwrap_err();
    assert_eq!(error, ForwardError::BlockOutOfRange { block: 4, blocks: 4 });
    let error = load("demo", KvType::F32).copy_window(0, 0).unwrap_err();
    assert_eq!(error, ForwardError::BlockOutOfRange { block: 0, blocks: 0 });
}

#[test]
fn blocks_of_sliding_layers_are_enough_for_every_sequence_and_never_more_than_the_others() {
    for (window, rows, step) in [(1, 1, 1), (12, 1, 512), (512, 1, 512), (512, 32, 512), (4096, 8, 64)] {
        let limits = |kv_blocks| Limits { max_tokens: step, max_logit_rows: rows, kv_blocks, state_slots: 0 };
        let many = limits(1 << 20).window_blocks(window);
        let (each, chunk) = (Batch::blocks_of_window(window, 1), Batch::blocks_of_window(window, step));
        assert!(
            many >= 2 * rows * each && many >= (rows - 1) * each + chunk,
            "{window} {rows} {step}: {many}"
        );
        assert_eq!(limits(5).window_blocks(window), 5.min(many));
    }
    // Any run of that many tokens fits, wherever it begins.
    for (window, tokens) in [(1, 1), (1, 64), (2, 63), (12, 1), (64, 1), (65, 1), (66, 1), (100, 200)] {
        let touched = (0..1000).map(|start| {
            let end = usize::div_ceil(start + tokens, Batch::BLOCK_TOKENS);
            end - Batch::first_block(window, start / Batch::BLOCK_TOKENS * Batch::BLOCK_TOKENS)
        });
        assert_eq!(touched.max(), Some(Batch::blocks_of_window(window, tokens)), "{window} {tokens}");
    }
}

#[test]
fn parts_of_the_wrong_size_or_place_are_refused() {
    let mut model = load("hybrid-tiny", KvType::F32);
    let bytes = model.cache_bytes().unwrap();
    let error = model.read_cache(CachePlace::Block(0), &mut [0; 8]).unwrap_err();
    assert_eq!(error, ForwardError::CacheSize { actual: 8, expected: bytes.block });
    assert!(error.is_refusal());
    let error = model.write_cache(CachePlace::State(0), &vec![0; bytes.state + 1]).unwrap_err();
    assert_eq!(error, ForwardError::CacheSize { actual: bytes.state + 1, expected: bytes.state });
    let error = model.write_cache(CachePlace::Block(4), &vec![0; bytes.block]).unwrap_err();
    assert_eq!(error, ForwardError::BlockOutOfRange { block: 4, blocks: 4 });
    let error = model.read_cache(CachePlace::State(3), &mut vec![0; bytes.state]).unwrap_err();
    assert_eq!(error, ForwardError::StateOutOfRange { slot: 3, slots: 3 });
}

/// The cosines and sines of rotary tables come from the system's library, so that other systems may differ in a bit.
#[cfg(all(target_os = "linux", target_arch = "x86_64", target_env = "gnu"))]
#[test]
fn a_changed_bit_of_a_cache_raises_the_version_of_the_arithmetic() {
    let known = [
        ("demo", KvType::F32, "7d18126d4536bfe5"),
        ("demo", KvType::F16, "d5ef64c8006f56a2"),
        ("demo", KvType::Bf16, "a638f553ac87077a"),
        ("demo", KvType::Int8, "ccbd5744a3ffdaa0"),
        ("bonsai-tiny", KvType::F32, "13b3b3bf4286e9b6"),
        ("hybrid-tiny", KvType::F32, "542d830fa66d0a3b"),
        ("hybrid-tiny-rotated", KvType::F32, "574823b2c098d620"),
    ];
    let found = known.map(|(name, kv, _)| {
        let mut model = load(name, kv);
        step(&mut *model, &tokens()[..64], 0, &[0], 0);
        let mut hash = Sha256::new();
        for place in [CachePlace::Block(0), CachePlace::State(0)] {
            hash.update(read(&mut *model, place));
        }
        let hash: String = hash.finalize()[..8].iter().map(|byte| format!("{byte:02x}")).collect();
        (name, kv, hash)
    });
    let known = known.map(|(name, kv, hash)| (name, kv, hash.to_owned()));
    assert_eq!(
        (ARITHMETIC, &found),
        (3, &known),
        "the bytes of caches have changed: raise ARITHMETIC in bitnet-kernels' order.rs, here and in this list"
    );
}
