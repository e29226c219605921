//! Draft heads: every form gives the values of an independent oracle, on every instruction set, and bad files are
//! refused by name.

use bitnet_kernels::{Backend, Cpu, Isa, Reference};
use bitnet_model::{
    Batch, Checkpoint, HiddenRows, Limits, Logits, Model, ModelSpec, TensorSource, Transformer,
};
use safetensors::SafeTensors;

use crate::{
    gguf_edit::{GgufEdit, Tensor},
    support::{edited, fixture, open, refused},
};

/// Every form, with the folder of its golden values.
const FORMS: [(&str, &str); 3] = [
    ("qwen35-mtp/model-PQ2_0.gguf", "qwen35-mtp"),
    ("qwen35-mtp-hadamard/mlx", "qwen35-mtp-hadamard"),
    ("qwen35-mtp-hadamard/model-PTQ1_0.gguf", "qwen35-mtp-hadamard"),
];

const LIMITS: Limits = Limits { max_tokens: 80, max_logit_rows: 40, kv_blocks: 4, state_slots: 1 };
/// The block table of the only sequence; blocks are not in the order of the text.
const TABLE: [u32; 4] = [2, 0, 3, 1];

struct Golden(Vec<u8>);

impl Golden {
    fn read(folder: &str) -> Golden {
        Golden(std::fs::read(fixture(folder).join("golden-mtp.safetensors")).unwrap())
    }

    fn floats(&self, name: &str) -> Vec<f32> {
        let file = SafeTensors::deserialize(&self.0).unwrap();
        let bytes = file.tensor(name).unwrap().data().to_vec();
        bytes.as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect()
    }

    fn ids(&self, name: &str) -> Vec<u32> {
        self.floats(name).into_iter().map(f32::to_bits).collect()
    }
}

/// Relative distances of rows.
fn distances(got: &[f32], expected: &[f32], vocab: usize) -> Vec<f32> {
    assert_eq!(got.len(), expected.len());
    let rows = got.chunks_exact(vocab).zip(expected.chunks_exact(vocab));
    let length = |row: &mut dyn Iterator<Item = f32>| row.map(|x| x * x).sum::<f32>().sqrt();
    rows.map(|(a, b)| length(&mut a.iter().zip(b).map(|(a, b)| a - b)) / length(&mut b.iter().copied()))
        .collect()
}

struct Run<'m> {
    model: &'m mut dyn Model,
    logits: Logits,
}

impl Run<'_> {
    /// Computes tokens of the sequence; the last row of logits.
    fn forward(&mut self, tokens: &[u32], start: usize) -> Vec<f32> {
        let mut batch = Batch::new();
        batch.push(tokens, start, &TABLE, tokens.len() - 1..tokens.len());
        self.model.forward(&batch, &mut self.logits).unwrap();
        self.logits.row(0).to_vec()
    }

    /// Runs a pass of the head; the last `rows` rows of logits.
    fn draft(&mut self, tokens: &[u32], start: usize, hidden: HiddenRows<'_>, rows: usize) -> Vec<f32> {
        let mut batch = Batch::new();
        batch.push(tokens, start, &TABLE, tokens.len() - rows..tokens.len());
        self.model.draft(&batch, hidden, &mut self.logits).unwrap();
        (0..rows).flat_map(|row| self.logits.row(row).to_vec()).collect()
    }
}

/// Compares everything that the oracle computed for a prompt; returns the distances.
fn compare(model: &mut dyn Model, golden: &Golden, prompt: usize) -> Vec<f32> {
    let vocab = model.spec().vocab;
    let mut run = Run { model, logits: Logits::default() };
    let name = |what: &str| format!("{what}_{prompt}");
    let (ids, next) = (golden.ids(&name("ids")), golden.ids(&name("next"))[0]);
    let n = ids.len();
    run.forward(&ids, 0);
    let pairs: Vec<u32> = ids[1..].iter().copied().chain([next]).collect();
    let expected = golden.floats(&name("head_logits"));
    let rows: Vec<usize> = (0..n).collect();
    let got = run.draft(&pairs, 0, HiddenRows::Forward(&rows), expected.len() / vocab);
    let mut all = distances(&got, &expected, vocab);

    let (drafts, expected) = (golden.ids(&name("draft_ids")), golden.floats(&name("draft_logits")));
    let last = expected.len() / vocab - 1;
    let mut got = got[got.len() - vocab..].to_vec();
    let mut row = n.min(golden.floats(&name("head_logits")).len() / vocab) - 1;
    for (i, &draft) in drafts[..last].iter().enumerate() {
        got.extend(run.draft(&[draft], n + i, HiddenRows::Drafted(&[row]), 1));
        row = 0;
    }
    all.extend(distances(&got, &expected, vocab));
    for (at, row) in got.chunks_exact(vocab).enumerate() {
        let best = row.iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1)).unwrap().0;
        if golden.floats(&name("draft_margin"))[at] > 0.2 {
            assert_eq!(best as u32, drafts[at], "prompt {prompt}, draft {at}");
        }
    }

    // What recursion wrote is overwritten by the pairs of confirmed tokens.
    let more = golden.ids(&name("more_ids"));
    run.forward(&more[..4], n);
    let got = run.draft(&more[1..], n, HiddenRows::Forward(&[0, 1, 2, 3]), 4);
    all.extend(distances(&got, &golden.floats(&name("more_head_logits")), vocab));
    all
}

fn load<B: Backend>(checkpoint: &Checkpoint, backend: B) -> Transformer<B> {
    let tensors: &dyn TensorSource = &*checkpoint.tensors;
    Transformer::load(&checkpoint.spec, tensors, backend, LIMITS, &mut |_, _| {}).unwrap()
}

#[test]
fn every_form_of_a_draft_head_meets_the_oracle_on_every_instruction_set() {
    for (path, folder) in FORMS {
        let (checkpoint, golden) = (open(path), Golden::read(folder));
        assert!(checkpoint.spec.draft_head, "{path}");
        assert_eq!(checkpoint.warnings, Vec::<String>::new(), "{path}");
        let mut models: Vec<(String, Box<dyn Model>)> = Isa::available()
            .map(|isa| {
                let model: Box<dyn Model> = Box::new(load(&checkpoint, Cpu::new(isa, 2).unwrap()));
                (isa.name().to_owned(), model)
            })
            .collect();
        models.push(("reference".into(), Box::new(load(&checkpoint, Reference::default()))));
        let mut first: Option<Vec<f32>> = None;
        for (name, model) in &mut models {
            let mut all: Vec<f32> =
                (0..5).flat_map(|prompt| compare(&mut **model, &golden, prompt)).collect();
            // Every instruction set computes the same bits.
            assert_eq!(first.get_or_insert_with(|| all.clone()), &all, "{path}, {name}");
            all.sort_by(f32::total_cmp);
            let (median, most) = (all[all.len() / 2], all[all.len() - 1]);
            assert!(median < 1e-5 && most < 0.1, "{path}, {name}: median {median}, most {most}");
        }
    }
}

#[test]
fn a_model_is_the_same_with_its_draft_head_and_without() {
    for (path, _) in FORMS {
        let checkpoint = open(path);
        let spec = ModelSpec { draft_head: false, ..checkpoint.spec.clone() };
        let cpu = || Cpu::new(Isa::best(), 1).unwrap();
        let mut without =
            Transformer::load(&spec, &*checkpoint.tensors, cpu(), LIMITS, &mut |_, _| {}).unwrap();
        assert!(!without.has_draft_head());
        let mut with = load(&checkpoint, cpu());
        let logits =
            |model: &mut dyn Model| Run { model, logits: Logits::default() }.forward(&[5, 6, 7, 200, 9], 0);
        assert_eq!(logits(&mut with), logits(&mut without), "{path}");
        assert!(
            Model::draft(&mut without, &Batch::new(), HiddenRows::Forward(&[]), &mut Logits::default())
                .is_err()
        );
    }
}

#[test]
fn half_a_head_and_a_head_of_another_model_are_refused_by_name() {
    const PATH: &str = "qwen35-mtp/model-PQ2_0.gguf";
    let names = GgufEdit::read(&std::fs::read(fixture(PATH)).unwrap()).tensors;
    let of_head: Vec<&str> =
        names.iter().map(|t| t.name.as_str()).filter(|name| name.starts_with("blk.2.")).collect();
    assert_eq!(of_head.len(), 15);
    for &name in &of_head {
        let without = |gguf: &mut GgufEdit| gguf.tensors.retain(|t| t.name != name);
        if name.ends_with("shared_head_norm.weight") {
            // It may be that of the model.
            assert!(edited(PATH, without).unwrap().spec.draft_head);
            continue;
        }
        let told = refused(PATH, without);
        assert!(told.contains(name) && told.contains("missing"), "{told}");
        let told = refused(PATH, |gguf| {
            let tensor = gguf.tensors.iter_mut().find(|t| t.name == name).unwrap();
            let last = tensor.dims.len() - 1;
            // Half of the rows, or of a norm.
            tensor.dims[last] /= 2;
            tensor.data.truncate(tensor.data.len() / 2);
        });
        assert!(told.contains(name), "{told}");
    }
    let none = edited(PATH, |gguf| gguf.tensors.retain(|t| !t.name.starts_with("blk.2."))).unwrap();
    assert!(!none.spec.draft_head, "a file whose head was dropped is a model without one");
}

#[test]
fn a_head_in_other_types_is_quantised_to_what_it_is() {
    const PATH: &str = "qwen35-mtp/model-PQ2_0.gguf";
    // The same numbers in f32.
    let floats = edited(PATH, |gguf| {
        for tensor in gguf.tensors.iter_mut().filter(|t: &&mut Tensor| t.kind == 8) {
            let blocks = tensor.data.as_chunks::<34>().0;
            let values = blocks.iter().flat_map(|b| {
                let scale = half::f16::from_le_bytes([b[0], b[1]]).to_f32();
                b[2..].iter().map(move |&code| scale * f32::from(code.cast_signed()))
            });
            tensor.data = values.flat_map(f32::to_le_bytes).collect();
            tensor.kind = 0;
        }
    });
    let mut model = load(&floats.unwrap(), Cpu::new(Isa::best(), 1).unwrap());
    let mut stored = load(&open(PATH), Cpu::new(Isa::best(), 1).unwrap());
    let golden = Golden::read("qwen35-mtp");
    assert_eq!(compare(&mut model, &golden, 3), compare(&mut stored, &golden, 3));
}
