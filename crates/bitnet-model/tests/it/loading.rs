//! Loading: how often a source is read, and what is not made when it is not needed.

use std::sync::Mutex;

use bitnet_kernels::{Cpu, Isa, Wanted};
use bitnet_model::{
    Batch, Limits, Logits, Model, ModelError, PackedSource, Synthetic, TensorEntry, TensorKind, TensorSource,
    Transformer,
};
use bitnet_tensor::{BitNetTensor, TernaryTensor};

/// A model that counts the requests for its projections.
pub struct Counted<M> {
    pub model: M,
    pub asked: Mutex<Vec<String>>,
}

impl<M: TensorSource> TensorSource for Counted<M> {
    fn entries(&self) -> &[TensorEntry] {
        self.model.entries()
    }

    fn ternary(&self, name: &str) -> Result<TernaryTensor, ModelError> {
        self.asked.lock().unwrap().push(name.into());
        self.model.ternary(name)
    }

    fn dense(&self, name: &str) -> Result<BitNetTensor, ModelError> {
        self.model.dense(name)
    }

    fn packed(&self) -> Option<&dyn PackedSource> {
        self.model.packed()
    }
}

#[test]
fn every_ternary_matrix_is_unpacked_once() {
    for name in ["tiny", "bonsai-tiny"] {
        let source = Counted { model: Synthetic::named(name).unwrap(), asked: Mutex::default() };
        let limits = Limits { max_tokens: 4, max_logit_rows: 1, kv_blocks: 1, state_slots: 0 };
        let cpu = Cpu::new(Isa::best(), 1).unwrap();
        Transformer::load(source.model.spec(), &source, cpu, limits, &mut |_, _| {}).unwrap();
        let ternary = |kind| matches!(kind, TensorKind::Ternary | TensorKind::Grouped);
        let matrices = source.entries().iter().filter(|entry| ternary(entry.kind));
        let mut matrices: Vec<&str> = matrices.map(|entry| entry.name.as_str()).collect();
        // One thread unpacks projections while another asks for the embedding.
        let mut asked = source.asked.lock().unwrap().clone();
        matrices.sort_unstable();
        asked.sort_unstable();
        assert_eq!(asked, matrices, "{name}");
    }
}

#[test]
fn a_caller_that_needs_all_logits_loads_no_copy_of_the_head() {
    let model = Synthetic::named("tiny").unwrap();
    let shortlisted = |cpu: Cpu| {
        let limits = Limits { max_tokens: 1, max_logit_rows: 1, kv_blocks: 1, state_slots: 0 };
        let mut model = Transformer::load(model.spec(), &model, cpu, limits, &mut |_, _| {}).unwrap();
        let (mut batch, mut logits) = (Batch::new(), Logits::default());
        batch.push(&[3], 0, &[0], 0..1);
        batch.want(|_| Wanted::Top(1));
        model.forward(&batch, &mut logits).unwrap();
        (
            model.backend_ref().head_counts().shortlisted,
            logits.row(0).iter().filter(|x| x.is_finite()).count(),
        )
    };
    let cpu = || Cpu::new(Isa::best(), 1).unwrap();
    assert_eq!(shortlisted(cpu().for_all_logits()), (0, 512));
    assert_eq!(shortlisted(cpu()).0, 1);
}
