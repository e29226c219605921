//! Damaged and hostile files: always a model or one error, soon and within bounds.

use std::time::{Duration, Instant};

use bitnet_model::{
    Checkpoint, Message, ModelError, ModelFiles, ModelSpec, Synthetic, Target, TensorKind, convert,
};
use bitnet_tensor::SharedBytes;

use crate::{
    memory::peak,
    support::{fixture, open},
};

/// Mutations over all kinds of file; `BITNET_MUTATIONS` asks for another number, `BITNET_SEED` for other ones.
const MUTATIONS: usize = 10_000;
const MAX_TIME: Duration = Duration::from_secs(2);
const MAX_MEMORY: usize = 64 << 20;

fn number(variable: &str, default: usize) -> usize {
    std::env::var(variable).ok().map_or(default, |v| v.parse().expect("a number"))
}

/// SplitMix64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    fn below(&mut self, n: usize) -> usize {
        (self.next() % n.max(1) as u64) as usize
    }

    fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len())]
    }
}

/// Changes `bytes` in one to three places, most often within the first `head` bytes.
fn mutate(random: &mut Random, bytes: &mut Vec<u8>, head: usize, text: bool) {
    for _ in 0..=random.below(3) {
        let reach = if random.below(8) > 0 { head.min(bytes.len()) } else { bytes.len() };
        let at = random.below(reach);
        match random.below(if text { 9 } else { 6 }) {
            0 => bytes.truncate(at),
            1 => {
                if let Some(b) = bytes.get_mut(at) {
                    *b ^= 1 << random.below(8);
                }
            }
            // A part of the file over another: lengths, names and offsets in places of each other.
            2 => {
                let from = random.below(reach);
                let n = random.below(64).min(bytes.len() - at.max(from).min(bytes.len()));
                bytes.copy_within(from..from + n, at);
            }
            3 | 4 => {
                let value: u64 = match random.below(6) {
                    0 => 0,
                    1 => u64::MAX,
                    2 => 1 << 62,
                    3 => bytes.len() as u64,
                    4 => random.next() >> random.below(64),
                    _ => u64::from(u32::MAX),
                };
                let n = random.pick(&[1, 4, 8]);
                if let Some(to) = bytes.get_mut(at..at + n) {
                    to.copy_from_slice(&value.to_le_bytes()[..n]);
                }
            }
            5 => {
                let n = random.below(32).min(bytes.len() - at.min(bytes.len()));
                bytes.drain(at..at + n);
            }
            6 => {
                let deep = random.pick(&["[", "{\"a\":", "(", "{{", "{% for x in range(99999) %}"]);
                let deep = deep.repeat(random.pick(&[1, 100, 20_000]));
                bytes.splice(at..at, deep.bytes());
            }
            7 => {
                let other = random.pick(&[
                    "0",
                    "-1",
                    "4611686018427387904",
                    "1e999",
                    "-0.0",
                    "null",
                    "\"\"",
                    "true",
                    "[]",
                    "{}",
                    ",",
                    "\"\\u0000\"",
                    "{{",
                    "}}",
                    "{%",
                    "%}",
                    "16777217",
                ]);
                let n = random.below(8).min(bytes.len() - at.min(bytes.len()));
                bytes.splice(at..at + n, other.bytes());
            }
            // A number somewhere becomes another one.
            _ => {
                let digit = (at..bytes.len()).find(|&i| bytes[i].is_ascii_digit());
                if let Some(start) = digit {
                    let end =
                        (start..bytes.len()).find(|&i| !bytes[i].is_ascii_digit()).unwrap_or(bytes.len());
                    let other = random.pick(&["0", "1", "-1", "3", "4294967296", "9223372036854775807"]);
                    bytes.splice(start..end, other.bytes());
                }
            }
        }
    }
}

/// Uses everything that an opened model has.
fn use_all(model: Result<Checkpoint, ModelError>) -> Result<(), ModelError> {
    let model = model?;
    for entry in model.tensors.entries() {
        match entry.kind {
            TensorKind::Ternary => drop(model.tensors.ternary(&entry.name)?),
            TensorKind::Dense | TensorKind::Norm => drop(model.tensors.dense(&entry.name)?.to_f32()),
        }
    }
    if let Some(tokenizer) = &model.tokenizer {
        let ids = tokenizer.encode("It's 12345,\n\n 你好 <|eot_id|>", true)?;
        tokenizer.decode(&ids, false)?;
    }
    if let Some(chat) = &model.chat {
        chat.render(&[Message::new("user", "Who goes there?")], true)?;
    }
    Ok(())
}

/// Checks one mutation; panics name the seed that repeats it.
fn judge(what: &str, seed: u64, size: usize, open: impl FnOnce() -> Result<Checkpoint, ModelError>) -> bool {
    let start = Instant::now();
    let (result, bytes) = peak(|| use_all(open()));
    let time = start.elapsed();
    assert!(time < MAX_TIME, "{what}, BITNET_SEED={seed}: took {time:?}");
    assert!(bytes <= 4 * size + MAX_MEMORY, "{what}, BITNET_SEED={seed}: {bytes} bytes for a file of {size}");
    if let Err(e) = &result {
        let text = e.to_string();
        assert!(text.lines().count() == 1 && text.contains(": "), "{what}, BITNET_SEED={seed}: {text}");
        assert!(text.len() < 2000, "{what}, BITNET_SEED={seed}: {} bytes of message", text.len());
    }
    result.is_err()
}

/// A small model with the fixtures' vocabulary and template.
fn seed_model() -> Checkpoint {
    let fixture = open("llama-bitlinear");
    let spec = ModelSpec { hidden: 256, ffn: 256, layers: 1, tied_head: true, ..fixture.spec };
    Checkpoint { spec: spec.clone(), tensors: Box::new(Synthetic::of(spec)), ..fixture }
}

fn shared(bytes: Vec<u8>) -> SharedBytes {
    SharedBytes::new(bytes)
}

/// Runs mutations over `slots` kinds of file and counts how many were refused, so that a mutator that changes
/// nothing, or a reader that takes everything, fails too.
fn run(share: usize, kind: &str, mut one: impl FnMut(&mut Random, u64) -> bool) {
    let count = number("BITNET_MUTATIONS", MUTATIONS) / share;
    let first = number("BITNET_SEED", 0) as u64;
    let refused = (0..count as u64)
        .filter(|i| {
            let seed = first + i;
            one(&mut Random(seed.wrapping_mul(0xD134_2543_DE82_EF95)), seed)
        })
        .count();
    assert!(count < 100 || (count / 10..count).contains(&refused), "{kind}: {refused} of {count} refused");
}

fn gguf(target: Target, share: usize) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("seed.gguf");
    convert(&seed_model(), target, &path, &mut |_, _| {}).unwrap();
    let seed_file = std::fs::read(path).unwrap();
    run(share, "gguf", |random, seed| {
        let mut bytes = seed_file.clone();
        mutate(random, &mut bytes, 16_000, false);
        let size = bytes.len();
        let bytes = shared(bytes);
        judge(&format!("gguf {target}"), seed, size, || Checkpoint::from_gguf("mutant.gguf", bytes))
    });
}

#[test]
fn mutated_i2_s_gguf_gives_a_model_or_one_error() {
    gguf(Target::I2S, 5);
}

#[test]
fn mutated_tq1_0_gguf_gives_a_model_or_one_error() {
    gguf(Target::Tq1_0, 10);
}

#[test]
fn mutated_tq2_0_gguf_gives_a_model_or_one_error() {
    gguf(Target::Tq2_0, 10);
}

/// A folder's files and weights, of which one is mutated.
fn folder(share: usize, which: &str) {
    let temporary = tempfile::tempdir().unwrap();
    let path = temporary.path().join("seed");
    convert(&seed_model(), Target::Packed, &path, &mut |_, _| {}).unwrap();
    let read = |name: &str| std::fs::read(path.join(name)).unwrap();
    let (config, tokenizer) = (read("config.json"), read("tokenizer.json"));
    let (tokenizer_config, generation) = (read("tokenizer_config.json"), read("generation_config.json"));
    let template = seed_model().chat.unwrap().source().as_bytes().to_vec();
    let weights = read("model.safetensors");
    let whole = SharedBytes::new(weights.clone());
    run(share, which, |random, seed| {
        let mut size = weights.len() + config.len() + tokenizer.len();
        let mut part = |name: &str, bytes: &[u8], text: bool| {
            let mut bytes = bytes.to_vec();
            if name == which {
                let head = if text { bytes.len() } else { 4000 };
                mutate(random, &mut bytes, head, text);
                size += bytes.len();
            }
            shared(bytes)
        };
        let files = ModelFiles {
            config: part("config.json", &config, true),
            tokenizer: Some(part("tokenizer.json", &tokenizer, true)),
            tokenizer_config: Some(part("tokenizer_config.json", &tokenizer_config, true)),
            generation_config: Some(part("generation_config.json", &generation, true)),
            chat_template: (which == "chat_template.jinja").then(|| part(which, &template, true)),
        };
        let weights = if which == "model.safetensors" { part(which, &weights, false) } else { whole.clone() };
        judge(which, seed, size, || Checkpoint::from_files("mutant", &files, weights))
    });
}

#[test]
fn mutated_safetensors_give_a_model_or_one_error() {
    folder(5, "model.safetensors");
}

#[test]
fn mutated_config_gives_a_model_or_one_error() {
    folder(10, "config.json");
}

#[test]
fn mutated_tokenizer_gives_a_model_or_one_error() {
    folder(10, "tokenizer.json");
}

#[test]
fn mutated_tokenizer_config_gives_a_model_or_one_error() {
    folder(20, "tokenizer_config.json");
}

#[test]
fn mutated_generation_config_gives_a_model_or_one_error() {
    folder(20, "generation_config.json");
}

#[test]
fn mutated_chat_template_gives_a_model_or_one_error() {
    // A template that does not compile is a warning: the model can still complete text.
    folder(10, "chat_template.jinja");
}

#[test]
fn every_truncation_of_a_header_is_an_error() {
    for path in ["bitnet-packed/model-TQ2_0.gguf", "bitnet-odd/model.safetensors"] {
        let bytes = std::fs::read(fixture(path)).unwrap();
        for end in (0..4000).step_by(7).chain([bytes.len() / 2, bytes.len() - 1]) {
            let cut = shared(bytes[..end].to_vec());
            let result = if path.ends_with("gguf") {
                Checkpoint::from_gguf("cut.gguf", cut)
            } else {
                let read = |name: &str| shared(std::fs::read(fixture("bitnet-odd").join(name)).unwrap());
                let files = ModelFiles { config: read("config.json"), ..Default::default() };
                Checkpoint::from_files("cut", &files, cut)
            };
            let error = result.err().unwrap_or_else(|| panic!("{path} cut at {end} opened"));
            assert!(matches!(error, ModelError::Damaged { .. }), "{path} cut at {end}: {error}");
        }
    }
}
