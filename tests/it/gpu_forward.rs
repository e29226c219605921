//! The whole forward pass with the GPU's kernels, in the simulator.

use std::path::Path;

use bitnet_inference::sampling::random_u64;
use bitnet_kernels::{
    Backend, Drawn, KvType, Reference, SamplingParams, Wanted,
    gpu::{Counts, Gpu},
};
use bitnet_model::{
    Activation, Batch, CachePlace, Checkpoint, DraftLog, Limits, Logits, Model, ModelFootprint, ModelSpec,
    Synthetic, Target, Transformer, convert,
};
use bitnet_tests::{Handle, Null, Simulator, Tap, all_forms, distances};

use crate::goldens::{PROMPTS, load_on, prefill};

const LIMITS: Limits = Limits { max_tokens: 160, max_logit_rows: 160, kv_blocks: 8, state_slots: 0 };

/// Slots of models with recurrent layers.
const STATES: usize = 4;

fn tiny() -> Synthetic {
    Synthetic::named("tiny").unwrap()
}

/// Sizes that fit no tile, the other activation, and a separate output head.
fn odd() -> Synthetic {
    Synthetic::of(ModelSpec {
        hidden: 100,
        ffn: 172,
        heads: 3,
        kv_heads: 1,
        head_dim: 36,
        vocab: 77,
        activation: Activation::Silu,
        tied_head: false,
        ..tiny().spec().clone()
    })
}

/// A model with group scales, also in the embedding and the head, norms of heads, and tails in every dimension.
fn grouped() -> Synthetic {
    let spec = Synthetic::named("bonsai-tiny").unwrap().spec().clone();
    Synthetic::of(ModelSpec { hidden: 200, ffn: 300, heads: 3, kv_heads: 1, head_dim: 36, vocab: 77, ..spec })
}

/// A model with recurrent layers and gated attention.
fn recurrent() -> Synthetic {
    Synthetic::named("hybrid-tiny").unwrap()
}

/// The same in a rotated basis, with float projections to decays and rates.
fn rotated() -> Synthetic {
    Synthetic::named("hybrid-tiny-rotated").unwrap()
}

/// A model whose norms come before the residual, with the gate GELU and windows.
fn normed_outputs() -> Synthetic {
    Synthetic::named("embedding-gemma-tiny").unwrap()
}

/// A model with experts, windows, and heads that are rotated in part or, in layers without a window, not at all.
fn experts() -> Synthetic {
    Synthetic::named("maple-tiny").unwrap()
}

fn load<B: Backend>(source: &Synthetic, backend: B) -> Transformer<B> {
    let state_slots = if source.spec().state_bytes() > 0 { STATES } else { 0 };
    let limits = Limits { state_slots, ..LIMITS };
    Transformer::load(source.spec(), source, backend, limits, &mut |_, _| {}).unwrap()
}

fn gpu(source: &Synthetic, processors: u32) -> Transformer<Gpu<Simulator>> {
    load(source, Gpu::new(Simulator::with(|info| info.processors = processors)).unwrap())
}

/// The same with blocks that only sliding layers use.
fn gpu_with_windows(source: &Synthetic, processors: u32) -> Transformer<Gpu<Simulator>> {
    let gpu = Gpu::new(Simulator::with(|info| info.processors = processors)).unwrap();
    Transformer::load_with_windows(source.spec(), source, gpu, LIMITS, &mut |_, _| {}).unwrap()
}

/// Blocks of sliding layers for a run of `len` tokens from `start`; those before the window are in no pool.
fn window_table(model: &dyn Model, sequence: usize, start: usize, len: usize) -> Vec<u32> {
    let first = Batch::first_block(model.spec().sliding_window().unwrap(), start);
    let block = |i: usize| ((3 * i + 4 * sequence + 1) % model.window_blocks()) as u32;
    let of = |i| if i < first { u32::MAX } else { block(i) };
    (0..(start + len).div_ceil(Batch::BLOCK_TOKENS)).map(of).collect()
}

fn tokens(source: &Synthetic, n: usize, seed: usize) -> Vec<u32> {
    (0..n).map(|i| ((i * i + 7 * i + seed * 31) % source.spec().vocab) as u32).collect()
}

/// Logits of all tokens of a sequence, in steps of the given lengths (the last repeats), each together with the same
/// step of `others`.
fn steps(model: &mut dyn Model, sequence: &[u32], others: &[&[u32]], lengths: &[usize]) -> Vec<f32> {
    let blocks = sequence.len().div_ceil(Batch::BLOCK_TOKENS) as u32;
    let table = |s: usize| (0..blocks).rev().map(|b| b + s as u32 * blocks).collect::<Vec<u32>>();
    let (mut batch, mut logits, mut all) = (Batch::new(), Logits::default(), Vec::new());
    let (mut start, mut step) = (0, 0);
    while start < sequence.len() {
        let len = lengths[step.min(lengths.len() - 1)].min(sequence.len() - start);
        batch.clear();
        for (s, other) in others.iter().enumerate() {
            batch.push(&other[start..start + len], start, &table(s + 1), 0..0);
            batch.set_state(s as u32 + 1);
        }
        batch.push(&sequence[start..start + len], start, &table(0), 0..len);
        batch.set_state(0);
        model.forward(&batch, &mut logits).unwrap();
        (0..len).for_each(|row| all.extend_from_slice(logits.row(row)));
        start += len;
        step += 1;
    }
    all
}

/// Checks the median and the maximum of the relative distances of positions.
fn assert_near(mut distances: Vec<f64>, median: f64, worst: f64, what: &str) {
    distances.sort_by(f64::total_cmp);
    let (m, w) = (distances[distances.len() / 2], distances[distances.len() - 1]);
    assert!(m < median && w < worst, "{what}: median {m:.2e}, worst {w:.2e}");
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|x| x.to_bits()).collect()
}

#[test]
fn the_forward_on_a_gpu_is_near_the_reference_that_rounds_where_it_does() {
    // The last tokens attend over two tiles of keys.
    for source in [tiny(), odd(), grouped(), recurrent(), rotated(), normed_outputs(), experts()] {
        let tokens = tokens(&source, 70, 3);
        let actual = steps(&mut gpu(&source, 4), &tokens, &[], &[66, 1]);
        let expected = steps(&mut load(&source, Reference::bf16()), &tokens, &[], &[66, 1]);
        let distances = distances(&actual, &expected, source.spec().vocab);
        // Attention may round a value the other way, and a router near a tie then chooses another expert.
        let worst = if source.spec().experts.is_some() { 1.0 } else { 0.1 };
        assert_near(distances, 1e-2, worst, &format!("hidden {}", source.spec().hidden));
    }
}

#[test]
fn a_sequence_on_a_gpu_has_the_same_bits_in_any_chunks_and_beside_any_others() {
    for source in [tiny(), odd(), grouped(), recurrent(), rotated(), normed_outputs(), experts()] {
        let (sequence, other) = (tokens(&source, 74, 1), tokens(&source, 74, 2));
        let whole = bits(&steps(&mut gpu(&source, 1), &sequence, &[], &[74]));
        for (processors, lengths) in [(1, &[60, 5, 1][..]), (16, &[40, 31, 1]), (4, &[7])] {
            let cut = bits(&steps(&mut gpu(&source, processors), &sequence, &[], lengths));
            assert!(cut == whole, "steps of {lengths:?} on {processors} processors");
        }
        let beside = bits(&steps(&mut gpu(&source, 4), &sequence, &[&other], &[70, 1]));
        assert!(beside == whole, "beside another");
        for processors in [1, 132] {
            let planned = Simulator::with(|info| (info.processors, info.tiles_by_size) = (processors, false));
            let planned =
                bits(&steps(&mut load(&source, Gpu::new(planned).unwrap()), &sequence, &[], &[60, 14]));
            assert!(planned == whole, "the fastest tiles of {processors} processors");
        }
    }
}

/// Heads without norms, of odd width, and with norms. The cache takes half of the bytes.
#[test]
fn int8_keys_and_values_on_a_gpu_are_near_the_reference_and_the_same_in_any_chunks_and_blocks() {
    for source in [tiny(), odd(), grouped()] {
        let sequence = tokens(&source, 74, 1);
        let reference = Reference::bf16().keeping(KvType::Int8);
        let expected = steps(&mut load(&source, reference), &sequence, &[], &[66, 1]);
        let (tap, driver) = Tap::of(Simulator::default());
        let mut model = load(&source, Gpu::new(tap).unwrap().keeping(KvType::Int8));
        let actual = steps(&mut model, &sequence, &[], &[66, 1]);
        let distances = distances(&actual, &expected, source.spec().vocab);
        assert_near(distances, 1e-2, 0.1, &format!("hidden {}", source.spec().hidden));
        let whole = computed(&mut model, &driver, &sequence, &[5, 2], &[74]);
        assert!(whole.0 == bits(&actual), "logits");
        for (table, chunks) in [([0, 7], &[50, 1][..]), ([6, 4], &[33])] {
            let cut = computed(&mut model, &driver, &sequence, &table, chunks);
            assert!(cut.0 == whole.0, "logits of {chunks:?}");
            assert!(cut.1 == whole.1, "keys and values of {chunks:?}");
        }
        let exact = bits(&steps(&mut gpu(&source, 4), &sequence, &[], &[74]));
        assert_ne!(exact, whole.0, "bf16 rounds otherwise");
    }
}

#[test]
fn steps_of_as_many_tokens_but_another_shape_do_not_share_their_launches() {
    let source = tiny();
    let (a, b) = (tokens(&source, 70, 1), tokens(&source, 35, 2));
    let one = |model: &mut dyn Model| bits(&steps(model, &a, &[], &[70]));
    let two = |model: &mut dyn Model| bits(&steps(model, &b, &[&a[..35]], &[35]));
    let decodes = |model: &mut dyn Model| bits(&steps(model, &b, &[&a[..35]], &[34, 1]));
    let want = [one(&mut gpu(&source, 4)), two(&mut gpu(&source, 4))];
    let mut model = gpu(&source, 4);
    for _ in 0..2 {
        assert!([one(&mut model), two(&mut model)] == want);
        assert!(decodes(&mut model) == want[1]);
    }
}

#[test]
fn a_chunk_that_wants_no_logits_leaves_the_prompt_its_bits() {
    let source = tiny();
    let prompt = tokens(&source, 70, 1);
    let blocks: Vec<u32> = (0..prompt.len().div_ceil(Batch::BLOCK_TOKENS) as u32).collect();
    let last = |chunks: &[usize]| {
        let (mut model, mut batch, mut logits) = (gpu(&source, 4), Batch::new(), Logits::default());
        let mut start = 0;
        for &len in chunks {
            let wanted = if start + len == prompt.len() { len - 1..len } else { 0..0 };
            batch.clear();
            batch.push(&prompt[start..start + len], start, &blocks, wanted);
            model.forward(&batch, &mut logits).unwrap();
            start += len;
        }
        bits(logits.row(0))
    };
    assert_eq!(last(&[40, 30]), last(&[70]));
}

/// Computes a sequence in these blocks, in steps of the given lengths (the last repeats). Returns its logits, the keys
/// and values in its blocks for every layer that attends, and its state in every other.
fn computed(
    model: &mut dyn Model,
    driver: &Handle,
    sequence: &[u32],
    table: &[u32],
    lengths: &[usize],
) -> (Vec<u32>, Vec<Vec<u8>>) {
    let state = table[0] % STATES as u32;
    let (mut batch, mut logits, mut all) = (Batch::new(), Logits::default(), Vec::new());
    let (mut start, mut step) = (0, 0);
    while start < sequence.len() {
        let len = lengths[step.min(lengths.len() - 1)].min(sequence.len() - start);
        batch.clear();
        batch.push(&sequence[start..start + len], start, table, 0..len);
        batch.set_state(state);
        model.forward(&batch, &mut logits).unwrap();
        (0..len).for_each(|row| all.extend(bits(logits.row(row))));
        start += len;
        step += 1;
    }
    let caches = [driver.contents("cached keys"), driver.contents("cached values")].concat();
    let block = |cache: &Vec<u8>, block: u32| {
        let bytes = cache.len() / LIMITS.kv_blocks;
        cache[block as usize * bytes..][..bytes].to_vec()
    };
    let blocks = caches.iter().flat_map(|cache| table.iter().map(|&b| block(cache, b)));
    let slot =
        |states: &Vec<u8>| states[states.len() / STATES * state as usize..][..states.len() / STATES].to_vec();
    let states = driver.contents("recurrent states");
    (all, blocks.chain(states.iter().map(slot)).collect())
}

/// A preempted sequence was decoded a token at a time, and is recomputed in one chunk, in other blocks.
#[test]
fn recompute_after_preemption_leaves_the_same_keys_values_and_logits() {
    for source in [tiny(), odd(), grouped(), recurrent(), rotated()] {
        let sequence = tokens(&source, 74, 1);
        let (tap, driver) = Tap::of(Simulator::default());
        let mut model = load(&source, Gpu::new(tap).unwrap());
        let decoded = computed(&mut model, &driver, &sequence, &[5, 2], &[50, 1]);
        let (layers, attend) = (source.spec().layers, source.spec().attention_layers());
        assert_eq!(decoded.1.len(), 2 * 2 * attend + layers - attend, "two blocks or a state a layer");
        assert!(decoded.1.iter().all(|block| block.iter().any(|&byte| byte != 0)));
        for (table, chunks) in [([0, 7], &[74][..]), ([3, 1], &[70, 1]), ([6, 4], &[33])] {
            let anew = computed(&mut model, &driver, &sequence, &table, chunks);
            assert!(anew.0 == decoded.0, "logits of {chunks:?}");
            assert!(anew.1 == decoded.1, "keys and values of {chunks:?}");
        }
    }
}

/// The head for a few greedy rows: bounds, then the logits that they do not rule out.
const BOUNDED: [&str; 3] = ["sm80_planes_s8", "sm80_bounds_t4_s8", "sm80_rescore_bf16"];

/// Each operation of the forward pass is one kernel on the GPU; two where heads have norms, the head is ternary or an
/// embedding rotated, three for a dense head and for the rule of a recurrent layer. The activations stay there, and the
/// host reads two words for each drawn token, so the CPU computes nothing.
#[test]
fn a_forward_on_a_gpu_is_its_kernels_alone_and_the_host_reads_its_tokens_alone() {
    let (quantize, attend) = (["sm80_norm_quantize_s8"], ["sm80_attention_r16_d128_bf16"]);
    for source in [tiny(), grouped()] {
        let groups = source.spec().grouped.projections;
        let kernels = |rows: &[&'static str], columns: &[&'static str]| {
            if groups { columns.to_vec() } else { rows.to_vec() }
        };
        let product = kernels(&["sm80_bitlinear_t8_w2a8"], &["sm80_grouped_t8_w2a8"]);
        let rotate = kernels(&[], &["sm80_norm_rope_store_bf16"]);
        let projection = [&quantize[..], &product].concat();
        let layer = [&projection[..], &rotate, &attend, &projection.repeat(3)].concat();
        let embed = kernels(&["sm80_embed_bf16"], &["sm80_embed_w2"]);
        let head = kernels(&BOUNDED, &projection);
        let (norm, draw) = (["sm80_norm_rows_bf16"], ["sm80_argmax_f32"]);
        let forward = [&embed[..], &layer.repeat(source.spec().layers), &norm, &head, &draw].concat();
        runs_these_kernels(Simulator::default(), &source, 3, &forward);
    }
}

/// Greedy rows, and rows that draw from their likeliest tokens, alone and together, get the tokens that they would get
/// from all logits.
#[test]
fn logits_ruled_out_by_bounds_change_no_draw_on_a_gpu() {
    let source = Synthetic::of(ModelSpec { vocab: 5000, ..tiny().spec().clone() });
    let drawn = |gpu: Gpu<Simulator>, shortlists: bool, rows: usize| {
        let mut model = load(&source, gpu);
        let mut batch = Batch::new();
        for row in 0..rows {
            batch.push(&tokens(&source, 3, row), 0, &[row as u32], 2..3);
            let likely = SamplingParams { temperature: 1.0, top_k: 9, seed: 7, ..SamplingParams::GREEDY };
            batch.want(|_| Wanted::Token(if row % 2 == 0 { SamplingParams::GREEDY } else { likely }));
        }
        let mut logits = Logits::default();
        model.forward(&batch, &mut logits).unwrap();
        let work = model.backend_mut().head_counts().unwrap();
        let (whole, shortlisted) = if shortlists { (0, rows) } else { (rows, 0) };
        assert_eq!((work.whole, work.shortlisted), (whole as u64, shortlisted as u64), "{rows} rows");
        assert!(work.rescored < (rows * 1000) as u64, "{} of {rows} rows computed", work.rescored);
        (0..rows).map(|row| logits.drawn(row)).collect::<Vec<_>>()
    };
    for rows in [1, 2, 5, 8] {
        let bounded = drawn(Gpu::new(Simulator::default()).unwrap(), true, rows);
        let all = Gpu::new(Simulator::default()).unwrap().for_all_logits();
        assert_eq!(bounded, drawn(all, false, rows), "{rows} rows");
        let switched_off = Gpu::new(Simulator::with(|info| info.shortlists = false)).unwrap();
        assert_eq!(bounded, drawn(switched_off, false, rows), "{rows} rows");
    }
}

/// Products of one token include the norm before them.
#[test]
fn a_forward_of_one_token_on_a_gpu_needs_no_launches_for_norms() {
    let (few, many) = ("sm80_normed_t1_w2a8", "sm80_normed_rows_t1_w2a8");
    let layer = [many, "sm80_attention_r16_d128_bf16", few, many, few];
    let (norm, draw) = (["sm80_norm_rows_bf16"], ["sm80_argmax_f32"]);
    let source = tiny();
    let layers = layer.repeat(source.spec().layers);
    let forward = [&["sm80_embed_bf16"][..], &layers, &norm, &BOUNDED, &draw].concat();
    runs_these_kernels(Simulator::default(), &source, 1, &forward);
}

/// The same for recurrent layers, gated attention and a rotated basis.
#[test]
fn a_recurrent_forward_on_a_gpu_is_its_kernels_alone() {
    let projection = ["sm80_norm_quantize_s8", "sm80_grouped_t8_w2a8"];
    let rule = ["sm80_delta_inputs_f32", "sm80_delta_rule_f32", "sm80_delta_outputs_bf16"];
    let attend = ["sm80_norm_rope_store_bf16", "sm80_attention_r16_d128_bf16", "sm80_sigmoid_gate_bf16"];
    for (source, in_floats, turned) in
        [(recurrent(), &[][..], &[][..]), (rotated(), &["sm80_dense_bf16"], &["sm80_hadamard_f32"])]
    {
        let feed = projection.repeat(3);
        let delta = [&projection[..], in_floats, &rule, &feed].concat();
        let attention = [&projection[..], &attend, &feed].concat();
        let (embed, head) = (["sm80_embed_w2"], ["sm80_norm_rows_bf16"]);
        let forward =
            [&embed[..], turned, &delta.repeat(3), &attention, &head, &projection, &["sm80_argmax_f32"]];
        runs_these_kernels(Simulator::default(), &source, 3, &forward.concat());
    }
}

/// Draws a token for each sequence; the step is launched, recorded and replayed.
fn runs_these_kernels(simulator: Simulator, source: &Synthetic, sequences: usize, forward: &[&str]) {
    let (tap, driver) = Tap::of(simulator);
    let mut model = load(source, Gpu::new(tap).unwrap());
    let mut batch = Batch::new();
    for sequence in 0..sequences {
        batch.push(&tokens(source, 1, sequence), 0, &[sequence as u32], 0..1);
        batch.set_state(sequence as u32);
        batch.want(|_| Wanted::Token(SamplingParams::GREEDY));
    }
    let mut logits = Logits::default();
    for step in 1..4 {
        let (ran, read) = (driver.kernels().len(), driver.bytes_read());
        model.forward(&batch, &mut logits).unwrap();
        assert_eq!(driver.kernels()[ran..], *forward, "step {step}");
        assert_eq!(driver.bytes_read() - read, 8 * sequences, "step {step}");
    }
    assert!((0..sequences).all(|row| matches!(logits.drawn(row), Some(Drawn::Token(_)))));
    assert!(model.backend_ref().counts().replays >= 2);
}

/// One sequence needs no launches for the four norms of a layer, in each of its steps.
#[test]
fn a_step_launches_as_many_kernels_for_many_sequences_as_for_two() {
    let source = tiny();
    let sequence = tokens(&source, 3, 1);
    let launches = |others: &[&[u32]]| {
        let mut model = gpu(&source, 4);
        steps(&mut model, &sequence, others, &[1]);
        model.backend_ref().counts().launches
    };
    let many = launches(&[&sequence[..]; 6]);
    assert_eq!(launches(&[&sequence[..]]), many);
    assert_eq!(launches(&[]) + (4 * source.spec().layers * sequence.len()) as u64, many);
}

#[test]
fn a_file_of_panels_gives_a_gpu_the_bits_of_the_model_that_was_converted() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    for fixture in ["bitnet-odd", "qwen3-g64"] {
        let form = all_forms().find(|form| form.folder == fixture).unwrap();
        convert(Checkpoint::open(&form.path()).unwrap(), Target::Panels, &path, &mut |_, _| {}).unwrap();
        let logits = |path: &Path| {
            let mut model = load_on(path, Gpu::new(Simulator::default()).unwrap());
            let (mut batch, mut logits) = (Batch::new(), Logits::default());
            batch.push(&[5, 77, 130], 0, &[2], 0..3);
            model.forward(&batch, &mut logits).unwrap();
            (0..3).flat_map(|row| logits.row(row)).map(|x| x.to_bits()).collect::<Vec<_>>()
        };
        assert!(logits(&form.path()) == logits(&path), "{fixture}");
    }
}

/// A GPU rounds to bf16 where the oracle keeps f32, so some activations round to a neighbouring int8. The reference
/// that rounds at the same points is nearer.
///
/// One position of `qwen35-ternary` is off by 0.24, and no operation alone is the cause. With bf16 at a single point of
/// the reference, the worst position is off by 0.35 (gated activation), 0.25 (outputs of recurrent layers), 0.19 (their
/// inputs), 0.015 (all of attention) or 0.007 (last norm); with f32 at a single point, still by 0.11 to 0.32. The states
/// and everything between convolution and norm are f32. What differs are steps of int8: a single one changes the ternary
/// decays and rates of heads of 16, and stays in their states for the rest of the text. In `qwen35-hadamard`, with heads
/// of 32 and float decays and rates, no position is off by more than 0.07.
#[test]
fn every_fixture_on_a_gpu_is_near_the_oracle() {
    let scaled_by_rows = ["bitnet-packed", "bitnet-odd", "llama-bitlinear", "onebitllm", "qwen3-embedding"];
    let scaled_by_groups =
        ["qwen3-ternary", "qwen3-unpacked", "qwen3-yarn", "qwen3-g64", "minicpm-mup", "minicpm-blocks"];
    let recurrent = ["qwen35-ternary", "qwen35-hadamard"];
    let with_experts = ["maple-tiny", "maple-unpacked"];
    let all = scaled_by_rows.into_iter().chain(scaled_by_groups).chain(recurrent).chain(with_experts);
    for fixture in all {
        let form = all_forms().find(|form| form.folder == fixture).unwrap();
        let golden = form.golden();
        let expected: Vec<f32> = (0..PROMPTS).flat_map(|p| golden.floats(&format!("logits_{p}"))).collect();
        let mut model = load_on(&form.path(), Gpu::new(Simulator::default()).unwrap());
        let actual = prefill(&mut model, &golden);
        let vocab = model.spec().vocab;
        // A router near a tie chooses another expert.
        let worst = if fixture == "qwen35-ternary" || fixture.starts_with("maple") { 0.3 } else { 0.2 };
        assert_near(distances(&actual, &expected, vocab), 0.08, worst, fixture);
        let rounded = prefill(&mut load_on(&form.path(), Reference::bf16()), &golden);
        assert_near(distances(&actual, &rounded, vocab), 1e-2, 0.1, fixture);
    }
}

/// A copied state is the state: the copy continues as the original does.
#[test]
fn a_sequence_continues_from_a_copy_of_its_state_on_a_gpu() {
    let source = rotated();
    let sequence = tokens(&source, 20, 1);
    let whole = steps(&mut gpu(&source, 4), &sequence, &[], &[20]);
    let mut model = gpu(&source, 4);
    let (mut batch, mut logits) = (Batch::new(), Logits::default());
    batch.push(&sequence[..13], 0, &[0], 0..0);
    model.forward(&batch, &mut logits).unwrap();
    model.copy_state(0, 3).unwrap();
    // Another sequence takes the slot.
    batch.clear();
    batch.push(&sequence[5..9], 0, &[1], 0..0);
    model.forward(&batch, &mut logits).unwrap();
    batch.clear();
    batch.push(&sequence[13..], 13, &[0], 0..7);
    batch.set_state(3);
    model.forward(&batch, &mut logits).unwrap();
    let rest: Vec<f32> = (0..7).flat_map(|row| logits.row(row)).copied().collect();
    assert_eq!(bits(&rest), bits(&whole[13 * source.spec().vocab..]));
}

/// Drafts of which any number is right leave the text its logits, and its state that of a run without drafts.
#[test]
fn a_rejection_at_any_place_of_the_drafts_leaves_no_trace_on_a_gpu() {
    let run = |model: &mut dyn Model, tokens: &[u32], start: usize, log: DraftLog| {
        let (mut batch, mut logits) = (Batch::new(), Logits::default());
        batch.push(tokens, start, &[0], 0..tokens.len());
        batch.set_log(log);
        model.forward(&batch, &mut logits).unwrap();
        (0..tokens.len()).map(|row| bits(logits.row(row))).collect::<Vec<_>>()
    };
    let state = |model: &mut dyn Model| {
        let mut bytes = vec![0; model.cache_bytes().unwrap().state];
        model.read_cache(CachePlace::State(0), &mut bytes).unwrap();
        bytes
    };
    for source in [recurrent(), rotated()] {
        let text = tokens(&source, 20, 1);
        let mut model = gpu(&source, 4);
        let expected = run(&mut model, &text, 0, DraftLog::default());
        let states = [15, 20].map(|len| {
            run(&mut model, &text[..len], 0, DraftLog::default());
            state(&mut model)
        });
        assert_eq!(model.reserve_log(3).unwrap(), 3);
        let (mut at, mut accepted) = (7, 0);
        run(&mut model, &text[..at], 0, DraftLog::default());
        for right in [1, 0, 3, 2] {
            let wrong = text[at + 1 + right..].iter().map(|token| token ^ 1).take(3 - right);
            let drafted: Vec<u32> = text[at..=at + right].iter().copied().chain(wrong).collect();
            let rows = run(&mut model, &drafted, at, DraftLog { accepted, drafts: 3 });
            assert!(rows[..=right] == expected[at..=at + right], "{right} of 3 drafts at {at}");
            (at, accepted) = (at + 1 + right, right);
        }
        assert!(state(&mut model) == states[0], "the state before the last drafts");
        let rows = run(&mut model, &text[at..], at, DraftLog { accepted, drafts: 0 });
        assert!(rows == expected[at..], "after the drafts");
        assert!(state(&mut model) == states[1], "the state at the end");
    }
}

/// What a server did whose batch changes its size at every step.
struct Served {
    steps: usize,
    changes: usize,
    /// Steps with a prompt.
    prompts: usize,
    counts: Counts,
}

/// Runs between 24 and 56 sequences on a GPU that does nothing. A sequence begins with a prompt of at most `prompt` tokens,
/// of another length than most before.
fn serve(prompt: usize) -> Served {
    const STEPS: usize = 2000;
    const BLOCKS: usize = 16;
    let large = Synthetic::named("2b4t").unwrap();
    let small =
        Synthetic::of(ModelSpec { hidden: 128, ffn: 128, vocab: 512, layers: 2, ..large.spec().clone() });
    let limits = Limits { max_tokens: 4096, max_logit_rows: 64, kv_blocks: 64 * BLOCKS, state_slots: 0 };
    let gpu = Gpu::new(Null::default()).unwrap();
    let mut model = Transformer::load(small.spec(), &small, gpu, limits, &mut |_, _| {}).unwrap();
    let (mut batch, mut logits) = (Batch::new(), Logits::default());
    let random = |step, what| random_u64(7, what, step as u64) as usize;
    let mut lengths = [0; 64].map(|_: usize| 0);
    let (mut size, mut changes, mut prompts) = (40, 0, 0);
    for step in 0..STEPS {
        let before = size;
        // Some requests end and others begin, so that between 24 and 56 run.
        size = (size + random(step, 0) % 7).saturating_sub(3).clamp(24, 56);
        changes += usize::from(size != before);
        batch.clear();
        for (sequence, length) in lengths[..size].iter_mut().enumerate() {
            let ends = *length + 1 == BLOCKS * 64 || random(step, 1 + sequence as u32) % 300 == 0;
            let tokens = if ends { 1 + random(step, 100 + sequence as u32) % prompt } else { 1 };
            let start = if ends { 0 } else { *length };
            *length = start + tokens;
            let blocks: Vec<u32> = (0..BLOCKS).map(|block| (sequence * BLOCKS + block) as u32).collect();
            batch.push(&vec![1; tokens], start, &blocks, tokens - 1..tokens);
            batch.want(|_| Wanted::Token(SamplingParams::GREEDY));
        }
        prompts += usize::from(batch.tokens().len() > size);
        model.forward(&batch, &mut logits).unwrap();
    }
    Served { steps: STEPS, changes, prompts, counts: model.backend_ref().counts() }
}

/// A sequence and, after its first chunk, another beside it, with tables of their own for sliding layers. A window has left
/// the first blocks at the end, whose entries are then of no block.
#[test]
fn sliding_layers_with_blocks_of_their_own_on_a_gpu_give_the_bits_of_those_that_keep_all_tokens() {
    let source = normed_outputs();
    let (sequence, other) = (tokens(&source, 92, 1), tokens(&source, 9, 2));
    let whole = bits(&steps(&mut gpu(&source, 1), &sequence, &[], &[92]));
    let mut model = gpu_with_windows(&source, 16);
    assert_eq!(model.window_blocks(), LIMITS.kv_blocks);
    let (mut batch, mut logits, mut all) = (Batch::new(), Logits::default(), Vec::new());
    for (at, beside) in
        [(0_usize..70, 0_usize..0), (70..87, 0..6), (87..90, 6..7), (90..91, 7..8), (91..92, 8..9)]
    {
        batch.clear();
        if !beside.is_empty() {
            batch.push(&other[beside.clone()], beside.start, &[6], 0..0);
            batch.set_windows(&window_table(&model, 1, beside.start, beside.len()));
        }
        let table = &[5, 2][..at.end.div_ceil(Batch::BLOCK_TOKENS)];
        batch.push(&sequence[at.clone()], at.start, table, 0..at.len());
        batch.set_windows(&window_table(&model, 0, at.start, at.len()));
        model.forward(&batch, &mut logits).unwrap();
        (0..at.len()).for_each(|row| all.extend(bits(logits.row(row))));
    }
    assert!(all == whole);
}

/// Both kinds of layers have their blocks, slots and work items in places of their own, so no layer sends what another
/// sends again.
#[test]
fn a_step_of_layers_with_and_without_windows_is_one_recording() {
    for source in [normed_outputs(), experts()] {
        let gpu = Gpu::new(Null::default()).unwrap();
        let mut model =
            Transformer::load_with_windows(source.spec(), &source, gpu, LIMITS, &mut |_, _| {}).unwrap();
        let (mut batch, mut logits) = (Batch::new(), Logits::default());
        let mut counts = Counts::default();
        for step in 0..12 {
            let before = counts.replays;
            batch.clear();
            for s in 0..2 {
                batch.push(&[1], 100 + step, &[2 * s, 2 * s + 1], 0..1);
                batch.set_windows(&window_table(&model, s as usize, 100 + step, 1));
                batch.want(|_| Wanted::Token(SamplingParams::GREEDY));
            }
            model.forward(&batch, &mut logits).unwrap();
            counts = model.backend_ref().counts();
            assert!(step < 2 || counts.replays == before + 1, "step {step}: {counts:?}");
        }
        assert_eq!(counts.recordings, 1, "{counts:?}");
    }
}

/// The plan of a model's memory counts what recordings of its steps need.
#[test]
fn no_step_launches_more_than_the_plan_has_room_to_record() {
    for source in [tiny(), odd(), grouped(), recurrent(), rotated(), normed_outputs(), experts()] {
        let mut model = load(&source, Gpu::new(Null::default()).unwrap());
        for (length, others) in [(1, 0), (16, 0), (1, 3), (5, 2)] {
            let before = model.backend_ref().counts().launches;
            let sequence = tokens(&source, length, 1);
            steps(&mut model, &sequence, &vec![&sequence[..]; others], &[length]);
            let launches = model.backend_ref().counts().launches - before;
            let planned = ModelFootprint::new(model.backend_ref(), source.spec(), &source).max_launches();
            assert!(launches as usize <= planned, "{launches} launches");
        }
    }
}

/// What comes again, however much later, is replayed.
#[test]
fn a_server_whose_batch_changes_size_all_the_time_replays_nine_steps_in_ten() {
    let Served { steps, changes, counts, .. } = serve(1);
    assert!(changes * 10 > steps * 7, "{changes} changes");
    assert!(counts.replays * 10 >= 9 * steps as u64, "{counts:?}");
}

/// Decision 020: such steps run without a recording, and take no recordings from the others.
#[test]
fn prompts_of_ever_new_lengths_leave_nine_in_ten_of_the_other_steps_replayed() {
    let Served { steps, prompts, counts, .. } = serve(500);
    assert!(prompts * 10 > steps, "{prompts} steps with prompts");
    assert!(counts.replays * 10 >= 9 * (steps - prompts) as u64, "{counts:?}, {prompts} steps with prompts");
}
