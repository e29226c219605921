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
        }
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
        ("demo", KvType::Int8, "fd4437fa2bc31ce2"),
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
        (1, &known),
        "the bytes of caches have changed: raise ARITHMETIC in bitnet-kernels' order.rs, here and in this list"
    );
}
