use bitnet_kernels::{Isa, conformance};

use crate::bitnet::bitnet;

#[test]
fn every_level_of_this_machine_passes_every_case() {
    let report = bitnet(&["doctor", "--json", "--threads", "2"]).json();
    let isas: Vec<&str> = Isa::available().map(Isa::name).collect();
    assert_eq!(report["isas"], serde_json::json!(isas));
    let outcomes = report["conformance"].as_array().unwrap();
    let tried: Vec<&str> = outcomes.iter().map(|o| o["isa"].as_str().unwrap()).collect();
    assert_eq!(tried, isas);
    for outcome in outcomes {
        assert_eq!(outcome["cases"], conformance::cases().len());
        assert_eq!((&outcome["passed"], &outcome["failed"]), (&outcome["cases"], &serde_json::json!(0)));
    }
    assert!(report["cpu"]["cores"].as_u64().unwrap() >= 1);
    assert!(report["memory_bandwidth_gb_s"].as_f64().unwrap() > 0.1);
    assert!(report["gpu_note"].is_string());
}
