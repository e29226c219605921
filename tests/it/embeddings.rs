//! Embeddings, compared with those of an independent oracle.

use bitnet::{
    Device, Model, Request,
    model::{Checkpoint, Target, convert},
};
use bitnet_tests::{EMBEDDING_FORM, distances};

use crate::goldens::PROMPTS;

#[test]
fn every_form_of_a_model_gives_the_oracles_embeddings_alone_and_together() {
    let (folder, golden) = (tempfile::tempdir().unwrap(), EMBEDDING_FORM.golden());
    let from = Checkpoint::open(&EMBEDDING_FORM.path()).unwrap();
    let mut forms = vec![EMBEDDING_FORM.path()];
    for target in [Target::I2S, Target::Packed] {
        forms.push(folder.path().join(target.to_string()));
        convert(&from, target, &forms[forms.len() - 1], &mut |_, _| {}).unwrap();
    }
    let texts: Vec<Request> =
        (0..PROMPTS).map(|prompt| Request::tokens(golden.ids(&format!("ids_{prompt}")))).collect();
    let expected: Vec<f32> = (0..PROMPTS).flat_map(|p| golden.floats(&format!("embedding_{p}"))).collect();
    let mut first = None;
    for form in forms {
        let model = Model::builder().device(Device::Cpu).threads(2).open(form.to_str().unwrap()).unwrap();
        let together: Vec<_> = model.embed_batch(&texts).into_iter().map(Result::unwrap).collect();
        let actual: Vec<f32> = together.iter().flat_map(|embedding| embedding.values.clone()).collect();
        EMBEDDING_FORM.assert_close(distances(&actual, &expected, from.spec.hidden), &form.to_string_lossy());
        for (text, together) in texts.iter().zip(&together) {
            assert_eq!(model.embed(text).unwrap(), *together);
        }
        assert_eq!(*first.get_or_insert(together.clone()), together, "{}", form.display());
    }
}
