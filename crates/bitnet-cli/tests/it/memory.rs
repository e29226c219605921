use crate::bitnet::bitnet;

#[test]
fn too_little_memory_names_the_least_that_works_and_that_works() {
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
    // More memory goes on where this text ended.
    assert!(args("64MiB").success().starts_with(text.trim_end()));
    let one_less = (least.parse::<u64>().unwrap() - 1).to_string();
    args(&one_less).failure(1);
}

#[cfg(target_os = "linux")]
#[test]
fn f23_the_peak_stays_within_the_memory_allowed() {
    for (model, allowed) in [("synthetic:125m", 130_000_000_u64), ("synthetic:125m", 260_000_000)] {
        let memory = allowed.to_string();
        let args = ["bench", model, "-p", "600", "-n", "8", "-b", "8", "--memory", &memory, "--json"];
        let peak = bitnet(&args).json()["peak_memory_bytes"].as_u64().unwrap();
        assert!(peak <= allowed + allowed / 20, "{peak} of {allowed}");
    }
}
