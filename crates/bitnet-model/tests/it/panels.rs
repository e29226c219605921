//! Files of panels: the CPU kernels read them in place, other backends read them unpacked, and all give the same bits
//! as the original model.

use std::{fs, path::Path, sync::Mutex};

use bitnet_kernels::{Backend, Cpu, Isa, Reference, Wanted};
use bitnet_model::{
    Batch, Checkpoint, Limits, Logits, Model, ModelError, ModelSpec, Synthetic, Target, TensorSource,
    Transformer, convert,
};
use bitnet_tensor::SharedBytes;

use crate::{
    gguf_edit::GgufEdit,
    loading::Counted,
    support::{GROUPED_GGUFS, HYBRIDS, fixture, open},
};

fn panels(from: &Checkpoint, to: &Path) -> Checkpoint {
    convert(from, Target::Panels, to, &mut |_, _| {}).unwrap();
    Checkpoint::open(to).unwrap()
}

fn load<B: Backend>(spec: &ModelSpec, tensors: &dyn TensorSource, backend: B) -> Transformer<B> {
    let limits = Limits { max_tokens: 24, max_logit_rows: 24, kv_blocks: 1, state_slots: 1 };
    Transformer::load(spec, tensors, backend, limits, &mut |_, _| {}).unwrap()
}

/// The bits of a prompt's logits, and of the highest logits of the next token when no others are needed.
fn bits<B: Backend>(model: &Checkpoint, backend: B) -> Vec<u32> {
    let mut model = load(&model.spec, &*model.tensors, backend);
    let (mut batch, mut logits) = (Batch::new(), Logits::default());
    let tokens: Vec<u32> = (0..20).map(|i| (i * i * 7 + 3) % 256).collect();
    batch.push(&tokens, 0, &[0], 0..tokens.len());
    model.forward(&batch, &mut logits).unwrap();
    let mut bits: Vec<u32> = (0..tokens.len()).flat_map(|t| logits.row(t)).map(|x| x.to_bits()).collect();
    batch.clear();
    batch.push(&[9], tokens.len(), &[0], 0..1);
    batch.want(|_| Wanted::Top(1));
    model.forward(&batch, &mut logits).unwrap();
    let highest = logits.row(0).iter().copied().fold(f32::NEG_INFINITY, f32::max);
    bits.extend(logits.row(0).iter().enumerate().filter(|(_, x)| **x == highest).map(|(id, _)| id as u32));
    bits
}

#[test]
fn panels_give_the_bits_of_their_source_on_every_instruction_set_and_on_the_reference() {
    let folder = tempfile::tempdir().unwrap();
    // Rows and columns that fill no whole panel or block, every type of head, and interleaved rows.
    for path in [
        "bitnet-odd",
        "llama-explicit",
        "bitnet-packed/model-I2_S.gguf",
        "llama-bitlinear/model-TQ2_0-K.gguf",
    ] {
        let from = open(path);
        let to = panels(&from, &folder.path().join("model.gguf"));
        assert!(to.tensors.packed().is_some(), "{path}");
        let expected = bits(&from, Reference::default());
        assert_eq!(bits(&to, Reference::default()), expected, "{path} on the reference");
        for isa in Isa::available() {
            for threads in [1, 2] {
                let cpu = || Cpu::new(isa, threads).unwrap();
                assert!(bits(&from, cpu()) == expected, "{path} as it was, {isa:?}");
                assert!(bits(&to, cpu()) == expected, "{path} as panels, {isa:?}");
            }
        }
    }
}

#[test]
fn grouped_panels_give_the_bits_of_their_source_on_every_instruction_set_and_on_the_reference() {
    let folder = tempfile::tempdir().unwrap();
    // A tied and a separate ternary head, groups of 64, and a dense head; recurrent layers, and rotated weights.
    for path in GROUPED_GGUFS.into_iter().chain(HYBRIDS) {
        let from = open(path);
        let to = panels(&from, &folder.path().join("model.gguf"));
        assert_eq!(to.spec, from.spec, "{path}");
        let expected = bits(&from, Reference::default());
        assert_eq!(bits(&to, Reference::default()), expected, "{path} on the reference");
        for (isa, threads) in Isa::available().flat_map(|isa| [(isa, 1), (isa, 2)]) {
            let cpu = || Cpu::new(isa, threads).unwrap();
            assert!(bits(&from, cpu()) == expected, "{path} as it was, {isa:?}");
            assert!(bits(&to, cpu()) == expected, "{path} as panels, {isa:?}");
        }
        let source = Counted { model: Opened(to), asked: Mutex::default() };
        load(&from.spec, &source, Cpu::new(Isa::best(), 2).unwrap());
        assert_eq!(*source.asked.lock().unwrap(), Vec::<String>::new(), "{path} is read where it lies");
    }
}

#[test]
fn the_cpu_unpacks_no_projection_of_a_file_of_panels_and_others_each_once() {
    let folder = tempfile::tempdir().unwrap();
    let from = open("bitnet-packed");
    let to = panels(&from, &folder.path().join("model.gguf"));
    let (spec, source) = (to.spec.clone(), Counted { model: Opened(to), asked: Mutex::default() });
    load(&spec, &source, Cpu::new(Isa::best(), 2).unwrap());
    assert_eq!(*source.asked.lock().unwrap(), Vec::<String>::new());
    load(&spec, &source, Reference::default());
    assert_eq!(source.asked.lock().unwrap().len(), 7 * spec.layers);
}

/// The tensors of a checkpoint.
struct Opened(Checkpoint);

impl TensorSource for Opened {
    fn entries(&self) -> &[bitnet_model::TensorEntry] {
        self.0.tensors.entries()
    }

    fn ternary(&self, name: &str) -> Result<bitnet_tensor::TernaryTensor, ModelError> {
        self.0.tensors.ternary(name)
    }

    fn dense(&self, name: &str) -> Result<bitnet_tensor::BitNetTensor, ModelError> {
        self.0.tensors.dense(name)
    }

    fn packed(&self) -> Option<&dyn bitnet_model::PackedSource> {
        self.0.tensors.packed()
    }
}

#[test]
fn panels_converted_back_are_the_same_bytes() {
    let folder = tempfile::tempdir().unwrap();
    // The file's name becomes the model's name.
    let place = |name: &str| {
        let place = folder.path().join(name);
        fs::create_dir(&place).unwrap();
        place.join("model.gguf")
    };
    for (i, path) in
        ["bitnet-packed/model-I2_S.gguf", "llama-bitlinear/model-I2_S.gguf"].into_iter().enumerate()
    {
        let [source, direct, there, back, again] =
            ["source", "direct", "there", "back", "again"].map(|name| place(&format!("{name}-{i}")));
        fs::copy(fixture(path), &source).unwrap();
        let to = |from: &Path, target, to: &Path| {
            convert(Checkpoint::open(from).unwrap(), target, to, &mut |_, _| {}).unwrap();
        };
        to(&source, Target::I2S, &direct);
        to(&source, Target::Panels, &there);
        to(&there, Target::I2S, &back);
        to(&there, Target::Panels, &again);
        assert!(fs::read(direct).unwrap() == fs::read(back).unwrap(), "{path}");
        assert!(fs::read(there).unwrap() == fs::read(again).unwrap(), "{path}");
    }
}

#[test]
fn damaged_panels_are_refused_by_name_on_every_backend() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    convert(open("bitnet-packed"), Target::Panels, &path, &mut |_, _| {}).unwrap();
    let good = fs::read(&path).unwrap();
    let opened = |edit: &dyn Fn(&mut GgufEdit)| {
        let mut gguf = GgufEdit::read(&good);
        edit(&mut gguf);
        Checkpoint::from_gguf("model.gguf", SharedBytes::new(gguf.write()))
    };
    let refused = |edit: &dyn Fn(&mut GgufEdit)| opened(edit).expect_err("opened").to_string();
    assert!(opened(&|_| ()).is_ok());

    let told = refused(&|g| g.set("bitnet.panels.version", 4, 2u32.to_le_bytes().to_vec()));
    assert!(
        told.contains("bitnet.panels.version is 2") && told.contains("convert the original model again"),
        "{told}"
    );
    assert!(refused(&|g| g.set_text("bitnet.panels.version", "1")).contains("is not a whole number"));
    // Without the key, the file just lacks its projections.
    assert!(refused(&|g| g.remove("bitnet.panels.version")).contains("blk.0.attn_q.weight is missing"));
    for name in ["blk.1.ffn_gate_up.panels", "output.int8"] {
        let told = refused(&|g| g.tensors.retain(|t| t.name != name));
        assert!(told.contains(&format!("tensor {name} is missing")), "{told}");
        let told = refused(&|g| {
            let tensor = g.tensor(name);
            tensor.dims[1] -= 1;
            tensor.data.truncate(tensor.data.len() - 256);
        });
        assert!(told.contains(&format!("tensor {name} has shape")), "{told}");
        let told = refused(&|g| g.tensor(name).kind = 0);
        assert!(told.contains(name), "{told}");
    }

    // Faults that no header shows are found when the weights are read, on any backend.
    type Edit<'a> = &'a dyn Fn(&mut GgufEdit);
    let scale = |g: &mut GgufEdit, bytes: [u8; 4]| {
        let data = &mut g.tensor("blk.2.attn_output.panels").data;
        let at = data.len() - 4;
        data[at..].copy_from_slice(&bytes);
    };
    let first = f32::NAN.to_le_bytes();
    let cases: [(Edit, &str); 3] = [
        (
            &|g| g.tensor("blk.0.ffn_down.panels").data[257] |= 3,
            "row 0, column 17: code 3 is not a ternary value",
        ),
        (&|g| scale(g, first), "weight scale NaN is not finite"),
        (&|g| scale(g, 1.0f32.to_le_bytes()), "different scales"),
    ];
    for (edit, told) in cases {
        let model = opened(edit).unwrap();
        let limits = Limits { max_tokens: 1, max_logit_rows: 1, kv_blocks: 1, state_slots: 0 };
        let cpu = Cpu::new(Isa::best(), 1).unwrap();
        let on_cpu = Transformer::load(&model.spec, &*model.tensors, cpu, limits, &mut |_, _| {}).err();
        let reference = Reference::default();
        let elsewhere =
            Transformer::load(&model.spec, &*model.tensors, reference, limits, &mut |_, _| {}).err();
        for error in [on_cpu, elsewhere] {
            let error = error.expect(told).to_string();
            assert!(error.contains(told) && error.contains(".panels"), "{error}");
        }
    }
    let model = opened(&|g| {
        let data = &mut g.tensor("output.int8").data;
        let at = data.len() - 4;
        data[at..].copy_from_slice(&f32::NAN.to_le_bytes());
    });
    let error = model.unwrap().tensors.packed().unwrap().head_copy().expect_err("no bound").to_string();
    assert!(error.contains("output.int8"), "{error}");
}

#[test]
fn every_truncation_of_a_file_of_panels_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    let synthetic = Synthetic::named("tiny").unwrap();
    let model =
        Checkpoint { spec: synthetic.spec().clone(), tensors: Box::new(synthetic), ..open("bitnet-packed") };
    convert(&model, Target::Panels, &path, &mut |_, _| {}).unwrap();
    let bytes = fs::read(&path).unwrap();
    for end in (0..bytes.len()).step_by(bytes.len() / 97).chain([bytes.len() - 64]) {
        let error = Checkpoint::from_gguf("cut.gguf", SharedBytes::new(bytes[..end].to_vec())).err();
        let error = error.unwrap_or_else(|| panic!("cut at {end} opened"));
        assert!(matches!(error, ModelError::Damaged { .. }), "cut at {end}: {error}");
    }
}
