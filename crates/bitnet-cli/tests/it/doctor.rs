//! `bitnet doctor`: kernels and models, judged by the reference and by an oracle.

use bitnet::kernels::{Isa, conformance, memory_nodes};
use safetensors::{Dtype, SafeTensors, tensor::TensorView};
use serde_json::json;

use crate::bitnet::{Outcome, bitnet, fixture};

#[test]
fn every_level_of_this_machine_passes_every_case() {
    // The default cache type, and another one.
    judged(&["doctor", "--json", "--threads", "2", "--device", "cpu"], "f32");
    judged(&["doctor", "--json", "--threads", "2", "--device", "cpu", "--kv", "int8"], "int8");
}

fn judged(args: &[&str], kv: &str) {
    let report = bitnet(args).json();
    assert_eq!(report["kv"], kv);
    assert!(report["weight_layout"].as_str().unwrap().contains("head as int8"), "{report}");
    let isas: Vec<&str> = Isa::available().map(Isa::name).collect();
    assert_eq!(report["isas"], json!(isas));
    let outcomes = report["conformance"].as_array().unwrap();
    let tried: Vec<&str> = outcomes.iter().map(|o| o["isa"].as_str().unwrap()).collect();
    assert_eq!(tried, isas);
    for outcome in outcomes {
        assert_eq!(outcome["cases"], conformance::cpu_cases().len());
        assert_eq!((&outcome["passed"], &outcome["failed"]), (&outcome["cases"], &json!(0)));
    }
    assert_eq!(report["batched"]["equal"], report["batched"]["requests"]);
    assert!(report["cpu"]["cores"].as_u64().unwrap() >= 1);
    assert_eq!(report["cpu"]["physical_cores"], json!(bitnet::physical_cores()));
    let nodes: Vec<_> = memory_nodes().iter().map(|node| node.cpus.len()).collect();
    assert_eq!(report["cpu"]["memory_nodes"], json!(nodes));
    assert_eq!(
        (&report["gpus"], report["gpu_note"].as_str()),
        (&json!([]), Some("not checked (--device cpu)"))
    );
    assert!(report["memory_bandwidth_gb_s"].as_f64().unwrap() > 0.1);
}

#[test]
fn models_are_judged_by_the_oracle_and_a_folder_without_one_is_refused() {
    let report =
        bitnet(&["doctor", "--json", "--threads", "2", "--device", "cpu", "--fixtures", &fixture(".")])
            .json();
    let fixtures = report["fixtures"].as_array().unwrap();
    assert!(fixtures.len() >= 4 && fixtures.iter().all(|f| f["passed"] == true), "{fixtures:?}");
    let empty = tempfile::tempdir().unwrap();
    let folder = empty.path().to_str().unwrap();
    let error = bitnet(&["doctor", "--device", "cpu", "--fixtures", folder]).failure(1);
    assert!(error.contains("golden.safetensors"), "{error}");
}

/// The golden file of the smallest fixture, with different logits.
#[test]
fn logits_far_from_the_oracles_fail_and_a_golden_file_that_does_not_fit_is_refused_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let model = folder.path().join("odd");
    std::fs::create_dir(&model).unwrap();
    for file in std::fs::read_dir(fixture("bitnet-odd")).unwrap().map(Result::unwrap) {
        std::fs::copy(file.path(), model.join(file.file_name())).unwrap();
    }
    let golden = model.join("golden.safetensors");
    let bytes = std::fs::read(&golden).unwrap();
    let whole = SafeTensors::deserialize(&bytes).unwrap();
    let logits = whole.tensor("logits_0").unwrap();
    let [rows, vocab] = logits.shape()[..] else { panic!("rows of logits") };
    let doctor = |shape: &[usize], data: &[u8]| {
        let other = TensorView::new(Dtype::F32, shape.to_vec(), data).unwrap();
        let tensors = whole.iter().map(|(name, view)| match name {
            "logits_0" => (name, other.clone()),
            _ => (name, view),
        });
        std::fs::write(&golden, safetensors::serialize(tensors, None).unwrap()).unwrap();
        bitnet(&["doctor", "--device", "cpu", "--fixtures", folder.path().to_str().unwrap()])
    };
    for shape in [[rows, vocab / 2], [64, vocab]] {
        let error = doctor(&shape, &vec![0; 4 * shape.iter().product::<usize>()]).failure(1);
        assert!(error.contains("golden.safetensors") && error.contains(&format!("{shape:?}")), "{error}");
    }
    // One row of the oracle's with all signs flipped.
    let mut one_row = logits.data().to_vec();
    one_row[..4 * vocab].iter_mut().skip(3).step_by(4).for_each(|byte| *byte ^= 0x80);
    let Outcome { code, out, err } = doctor(&[rows, vocab], &one_row);
    assert!(code == 1 && err.contains("2.0e0 at worst") && err.contains("odd on cpu"), "{code} {err}");
    assert!(out.contains("odd on cpu: FAR") && out.contains("worst 2.0e0"), "{out}");
}
