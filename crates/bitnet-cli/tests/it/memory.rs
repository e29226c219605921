use crate::bitnet::bitnet;

#[test]
fn too_little_memory_names_the_minimum_and_the_minimum_works() {
    let args = |memory: &str| {
        let ids = vec!["3"; 200].join(",");
        bitnet(&["run", "synthetic:tiny", "--ids", &ids, "-n", "500", "--seed", "1", "--memory", memory])
    };
    let error = args("1000").failure(1);
    let least = error.split("at least ").nth(1).and_then(|rest| rest.split(' ').next()).unwrap();
    let outcome = args(least);
    assert!(outcome.err.contains("the memory allows 256 tokens of the 700 wanted"), "{}", outcome.err);
    assert!(outcome.err.contains("ended by context"), "{}", outcome.err);
    let text = outcome.success();
    assert_eq!(text.split_whitespace().count(), 56);
    // With more memory, the text continues where this one ended.
    assert!(args("64MiB").success().starts_with(text.trim_end()));
    let one_less = (least.parse::<u64>().unwrap() - 1).to_string();
    args(&one_less).failure(1);
}

#[test]
fn a_smaller_type_of_cache_holds_a_longer_text_in_the_same_memory() {
    let held = |kv: &str| {
        let args = ["run", "synthetic:tiny", "--ids", "3", "-n", "4000", "--seed", "1", "--device", "cpu"];
        let outcome = bitnet(&[&args[..], &["--memory", "2350000", "--kv", kv]].concat());
        assert!(outcome.err.contains(&format!("kv {kv},")), "{}", outcome.err);
        let told = outcome.err.split("the memory allows ").nth(1).and_then(|rest| rest.split(' ').next());
        told.unwrap().parse::<usize>().unwrap()
    };
    let [f32, f16, bf16, int8] = ["f32", "f16", "bf16", "int8"].map(held);
    assert_eq!(f16, bf16);
    assert!(f32 > 64 && f16 * 10 >= f32 * 17 && int8 * 10 >= f32 * 28, "{f32} {f16} {int8}");
}

#[cfg(target_os = "linux")]
#[test]
fn the_peak_stays_within_the_memory_allowed() {
    for (model, allowed) in [("synthetic:125m", 136_000_000_u64), ("synthetic:125m", 260_000_000)] {
        let memory = allowed.to_string();
        let args = ["bench", model, "-p", "600", "-n", "8", "-b", "8", "--memory", &memory, "--json"];
        let peak = bitnet(&args).json()["peak_memory_bytes"].as_u64().unwrap();
        assert!(peak <= allowed + allowed / 20, "{peak} of {allowed}");
    }
}
