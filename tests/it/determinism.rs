//! A token's logits depend on the tokens before it and on nothing else.

use bitnet_kernels::{Cpu, DeltaShape, Isa, KvType, Reference};
use bitnet_model::{
    Activation, Batch, Checkpoint, Hybrid, Limits, Logits, Model, ModelSpec, Multipliers, Rope, Synthetic,
    Transformer,
};
use bitnet_tests::fixture;

const LIMITS: Limits = Limits { max_tokens: 600, max_logit_rows: 600, kv_blocks: 40, state_slots: 8 };

fn tiny() -> Synthetic {
    Synthetic::named("tiny").unwrap()
}

/// Models of every kind: with one scale a tensor, with one for every group, and with recurrent layers, whose weights are
/// plain or rotated.
fn kinds() -> [Synthetic; 4] {
    ["tiny", "bonsai-tiny", "hybrid-tiny", "hybrid-tiny-rotated"].map(|name| Synthetic::named(name).unwrap())
}

fn cpu(source: &Synthetic, isa: Isa, threads: usize) -> Transformer<Cpu> {
    keeping(KvType::F32, source, isa, threads)
}

fn keeping(kv: KvType, source: &Synthetic, isa: Isa, threads: usize) -> Transformer<Cpu> {
    let cpu = Cpu::new(isa, threads).unwrap().keeping(kv);
    Transformer::load(source.spec(), source, cpu, LIMITS, &mut |_, _| {}).unwrap()
}

fn tokens(n: usize, seed: usize) -> Vec<u32> {
    (0..n).map(|i| ((i * i + 7 * i + seed * 31) % 512) as u32).collect()
}

/// Bits of the logits of all tokens, prefilled in chunks of the given lengths (the last repeats).
fn chunked(model: &mut dyn Model, tokens: &[u32], chunks: &[usize]) -> Vec<u32> {
    let table: Vec<u32> = (0..tokens.len().div_ceil(Batch::BLOCK_TOKENS) as u32).rev().collect();
    let (mut batch, mut logits, mut bits) = (Batch::new(), Logits::default(), Vec::new());
    let (mut start, mut chunk) = (0, 0);
    while start < tokens.len() {
        let len = chunks[chunk.min(chunks.len() - 1)].min(tokens.len() - start);
        batch.clear();
        batch.push(&tokens[start..start + len], start, &table, 0..len);
        model.forward(&batch, &mut logits).unwrap();
        (0..len).for_each(|row| bits.extend(logits.row(row).iter().map(|x| x.to_bits())));
        start += len;
        chunk += 1;
    }
    bits
}

#[test]
fn any_chunking_equals_one_shot_and_token_by_token_on_every_isa_and_thread_count() {
    // Longer than one attention segment of 256.
    let tokens = tokens(300, 1);
    let mut seen = Vec::new();
    for (source, kv) in kinds().iter().flat_map(|source| KvType::ALL.map(|kv| (source, kv))) {
        let expected = chunked(&mut keeping(kv, source, Isa::best(), 1), &tokens, &[300]);
        for (isa, threads) in Isa::available().flat_map(|isa| [(isa, 1), (isa, 2)]) {
            let mut model = keeping(kv, source, isa, threads);
            // The other types differ only in what is stored, separately for each token.
            let chunks = [&[300][..], &[255, 1, 44], &[1], &[7], &[64], &[256, 3], &[1, 299]];
            for chunks in &chunks[..if kv == KvType::F32 { 7 } else { 2 }] {
                let bits = chunked(&mut model, &tokens, chunks);
                assert!(bits == expected, "{isa:?}, {threads} threads, cache of {kv}, chunks {chunks:?}");
            }
        }
        assert!(!seen.contains(&expected), "a cache of {kv} changes something");
        seen.push(expected);
    }
}

#[test]
fn the_whole_forward_equals_the_reference_backend_bit_for_bit() {
    let odd = ModelSpec {
        hidden: 100,
        ffn: 172,
        heads: 3,
        kv_heads: 1,
        head_dim: 36,
        vocab: 77,
        activation: Activation::Silu,
        tied_head: false,
        ..tiny().spec().clone()
    };
    let grouped = Synthetic::named("bonsai-tiny").unwrap();
    // Rows that end within a group of activations, and within a byte of codes.
    let odd_grouped = ModelSpec {
        hidden: 198,
        ffn: 330,
        heads: 3,
        kv_heads: 1,
        head_dim: 50,
        vocab: 77,
        tied_head: false,
        multipliers: Multipliers { embedding: 12.0, residual: 0.7, logit_divisor: 1.5 },
        ..grouped.spec().clone()
    };
    let [.., hybrid, rotated] = kinds();
    let odd_hybrid = ModelSpec {
        hybrid: hybrid.spec().hybrid.clone().map(|hybrid| Hybrid {
            delta: DeltaShape { key_heads: 1, value_heads: 3, head_dim: 20, taps: 3 },
            float_alpha_beta: true,
            ..hybrid
        }),
        rope: Rope { width: Some(6), ..hybrid.spec().rope.clone() },
        ..odd_grouped.clone()
    };
    let odd_hybrid = ModelSpec { layers: 4, output_gate: true, ..odd_hybrid };
    let odd_grouped = Synthetic::of(odd_grouped);
    for source in
        [tiny(), Synthetic::of(odd), grouped, odd_grouped, hybrid, rotated, Synthetic::of(odd_hybrid)]
    {
        let tokens: Vec<u32> = tokens(40, 3).iter().map(|t| t % source.spec().vocab as u32).collect();
        for kv in KvType::ALL {
            let reference = Reference::default().keeping(kv);
            let mut reference =
                Transformer::load(source.spec(), &source, reference, LIMITS, &mut |_, _| {}).unwrap();
            let expected = chunked(&mut reference, &tokens, &[40]);
            for isa in Isa::available() {
                let actual = chunked(&mut keeping(kv, &source, isa, 2), &tokens, &[40]);
                assert!(actual == expected, "{isa:?}, cache of {kv}");
            }
        }
    }
}

#[test]
fn a_sequence_in_a_ragged_batch_has_the_logits_it_has_alone() {
    let lengths = [1, 70, 3, 64, 129, 1, 17];
    let kinds = kinds();
    for (source, isa) in kinds.iter().flat_map(|source| Isa::available().map(move |isa| (source, isa))) {
        let mut model = cpu(source, isa, 2);
        let alone: Vec<Vec<u32>> =
            lengths.iter().enumerate().map(|(i, &n)| chunked(&mut model, &tokens(n, i), &[n])).collect();
        // All but the last token of each as one step, then the last tokens as another.
        let (mut batch, mut logits) = (Batch::new(), Logits::default());
        let mut bits = vec![Vec::new(); lengths.len()];
        for last in [false, true] {
            batch.clear();
            let mut owners = Vec::new();
            let mut first_block = 0;
            for (i, &n) in lengths.iter().enumerate() {
                let blocks = n.div_ceil(Batch::BLOCK_TOKENS) as u32;
                let table: Vec<u32> = (first_block..first_block + blocks).rev().collect();
                first_block += blocks;
                let run = if last { n - 1..n } else { 0..n - 1 };
                if !run.is_empty() {
                    batch.push(&tokens(n, i)[run.clone()], run.start, &table, 0..run.len());
                    batch.set_state(i as u32);
                    owners.extend(std::iter::repeat_n(i, run.len()));
                }
            }
            model.forward(&batch, &mut logits).unwrap();
            for (row, &owner) in owners.iter().enumerate() {
                bits[owner].extend(logits.row(row).iter().map(|x| x.to_bits()));
            }
        }
        assert!(bits == alone, "{isa:?}, {}", source.spec().architecture);
    }
}

#[test]
fn a_step_makes_as_many_projections_whatever_the_number_of_sequences() {
    let source = tiny();
    let mut model = cpu(&source, Isa::best(), 1);
    let (mut batch, mut logits) = (Batch::new(), Logits::default());
    let mut calls = Vec::new();
    for sequences in [1, 2, 16] {
        batch.clear();
        (0..sequences).for_each(|i| batch.push(&tokens(3, i as usize), 0, &[i], 2..3));
        let before = model.backend_ref().bit_linear_calls();
        model.forward(&batch, &mut logits).unwrap();
        calls.push(model.backend_ref().bit_linear_calls() - before);
    }
    assert_eq!(calls, [4 * source.spec().layers as u64; 3]);
}

#[test]
fn a_step_that_does_not_fit_is_refused_before_anything_is_written() {
    let checkpoint = Checkpoint::open(&fixture("bitnet-odd")).unwrap();
    let limits = Limits { max_tokens: 4, max_logit_rows: 2, kv_blocks: 1, state_slots: 0 };
    let cpu = Cpu::new(Isa::best(), 1).unwrap();
    let mut model =
        Transformer::load(&checkpoint.spec, &*checkpoint.tensors, cpu, limits, &mut |_, _| {}).unwrap();
    let mut refused = |tokens: &[u32], start: usize, table: &[u32], rows| {
        let mut batch = Batch::new();
        batch.push(tokens, start, table, rows);
        model.forward(&batch, &mut Logits::default()).unwrap_err().to_string()
    };
    assert!(refused(&[1; 5], 0, &[0], 0..1).contains("5 tokens"));
    assert!(refused(&[1; 4], 0, &[0], 0..3).contains("3 logit rows"));
    assert!(refused(&[1, 509], 0, &[0], 0..1).contains("token 509"));
    assert!(refused(&[1], 64, &[0, 0], 0..1).contains("context"));
    assert!(refused(&[1], 0, &[1], 0..1).contains("block 1"));
    assert!(model.copy_block(0, 1).unwrap_err().to_string().contains("block 1"));
}

#[test]
fn weights_of_another_shape_are_refused_by_name_before_any_is_read() {
    let source = tiny();
    let refused = |spec: ModelSpec| {
        let cpu = Cpu::new(Isa::best(), 1).unwrap();
        Transformer::load(&spec, &source, cpu, LIMITS, &mut |_, _| {}).err().unwrap().to_string()
    };
    let spec = source.spec();
    assert!(refused(ModelSpec { ffn: 700, ..spec.clone() }).contains("mlp.gate_proj.weight"));
    assert!(refused(ModelSpec { layers: 3, ..spec.clone() }).contains("model.layers.2."));
    assert!(refused(ModelSpec { tied_head: false, ..spec.clone() }).contains("lm_head.weight"));
    assert!(refused(ModelSpec { kv_heads: 3, ..spec.clone() }).contains("key-value heads"));
}
