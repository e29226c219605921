//! Every mistake gives one line, the right exit code, and no result.
#![allow(clippy::print_stdout, reason = "what was skipped belongs into the output")]

use bitnet::kernels::gpu::Cuda;

use crate::bitnet::{ON_CPU, bitnet, fixture};

/// Runs a command line, with arguments separated by spaces, that must fail.
fn fails(code: i32, line: &str, tells: &[&str]) {
    let args: Vec<&str> = line.split(' ').collect();
    let error = bitnet(&args).failure(code);
    for part in tells {
        assert!(error.contains(part), "{line}: '{part}' is not in: {error}");
    }
}

#[test]
fn wrong_usage_is_reported_in_one_line_with_exit_code_2() {
    fails(2, "--foo", &["--foo"]);
    fails(2, "run", &["<MODEL>"]);
    fails(2, "frobnicate synthetic:tiny", &["frobnicate"]);
    fails(2, "run synthetic:tiny --ids 1,x", &["'x' is not a token id"]);
    fails(2, "run synthetic:tiny --ids ", &["no token ids", "--ids"]);
    fails(2, "run synthetic:tiny --ids ,", &["no token ids", "--ids"]);
    fails(2, "run synthetic:tiny --ids -1", &["-1"]);
    fails(2, "run synthetic:tiny --ids 1 --threads 0", &["--threads", "1..=1024"]);
    fails(2, "run synthetic:tiny --ids 1 --threads 1025", &["--threads", "1..=1024"]);
    fails(2, "run synthetic:tiny --ids 1 --isa mmx", &["'mmx'", "--isa", "scalar"]);
    fails(2, "run synthetic:tiny --ids 1 --kv int4", &["int4", "f32, f16, bf16, int8"]);
    fails(2, "run synthetic:tiny --ids 1 --kv f16 --device cuda", &["--kv", "bf16 or int8", "not in f16"]);
    fails(2, "run synthetic:tiny --ids 1 --device tpu", &["tpu", "cpu"]);
    fails(2, "run synthetic:tiny --ids 1 --device cuda:x", &["cuda:x", "cuda:N"]);
    fails(2, "run synthetic:tiny --ids 1 --memory lots", &["lots", "4GiB"]);
    fails(2, "run synthetic:tiny --ids 1 --seed -4", &["-4"]);
    fails(2, "run synthetic:tiny --ids 1 --temperature -1", &["--temperature", "from 0 to 100"]);
    fails(2, "run synthetic:tiny --ids 1 --temperature NaN", &["--temperature"]);
    fails(2, "run synthetic:tiny --ids 1 --top-p 0", &["--top-p"]);
    fails(2, "run synthetic:tiny --ids 1 --min-p 1.5", &["--min-p"]);
    fails(2, "run synthetic:tiny --ids 1 --repetition-penalty 0", &["--repetition-penalty"]);
    fails(2, "run synthetic:tiny --ids 1 hello", &["--ids"]);
    fails(2, "logits synthetic:tiny --ids 1", &["--out"]);
    fails(
        2,
        "convert synthetic:tiny out --to q4",
        &["q4", "i2_s, tq1_0, tq2_0, q2_0, pq2_0, panels or packed"],
    );
    fails(2, "convert synthetic:tiny out", &["--to"]);
    fails(2, "bench synthetic:tiny -b 0", &["-b", "1 to 1024"]);
    fails(2, "bench synthetic:tiny -p 9000", &["-p", "8192"]);
    fails(2, "bench synthetic:tiny -n 8192", &["-n"]);
    fails(2, "bench synthetic:tiny -d 8190", &["-d", "8186"]);
    fails(2, "doctor --threads x", &["--threads"]);
    fails(2, "run synthetic:tiny --ids 1 --threads 1,2", &["--threads", "give one number"]);
    fails(2, "inspect demo --isa foo", &["'foo'", "--isa"]);
    fails(2, "tokenize demo x --isa foo", &["'foo'", "--isa"]);
    fails(2, "detokenize demo 1 --isa foo", &["'foo'", "--isa"]);
}

#[test]
fn a_mistyped_word_gets_the_nearest_one_on_a_separate_line() {
    for (line, tip) in [("sevre demo", "'serve'"), ("run demo hi --sed 4", "'--seed'")] {
        let outcome = bitnet(&line.split(' ').collect::<Vec<_>>());
        let tips: Vec<&str> = outcome.err.lines().filter(|line| line.starts_with("tip: ")).collect();
        assert!(matches!(tips[..], [told] if told.contains(tip)), "{outcome:?}");
        assert!(!outcome.failure(2).contains("tip:"));
    }
}

#[test]
fn a_thinking_option_that_the_template_ignores_is_reported() {
    fails(1, "run demo hi --no-thinking", &["leaves no choice about thinking", "--no-thinking"]);
}

#[test]
fn a_missing_model_is_reported_with_what_can_be_given() {
    fails(1, "run synthetic:9t --ids 1", &["9t", "2b4t"]);
    fails(1, "inspect no-such-file.gguf", &["no-such-file.gguf"]);
    fails(1, "inspect ./no/such/folder", &["./no/such/folder"]);
    let empty = tempfile::tempdir().unwrap();
    fails(1, &format!("inspect {}", empty.path().display()), &["config.json"]);
}

#[test]
fn what_a_model_cannot_do_is_reported_with_a_cure() {
    fails(1, "run synthetic:tiny hello", &["no tokenizer", "--ids"]);
    fails(1, "tokenize synthetic:tiny hello", &["no tokenizer"]);
    fails(1, "detokenize synthetic:tiny 1", &["no tokenizer"]);
    fails(1, "run synthetic:tiny --ids 1 --stop x", &["--stop"]);
    fails(1, "run synthetic:tiny --ids 1,512", &["token id 512", "0 to 511"]);
    let odd = fixture("bitnet-odd");
    fails(1, &format!("detokenize {odd} 1,99999"), &["99999"]);
    fails(1, &format!("run {odd} --ids {}", ["5"; 4096].join(",")), &["4096 tokens", "PROMPT"]);
}

/// Skipped on a machine with a GPU, where the commands would use it.
#[test]
fn without_a_gpu_auto_is_the_cpu_without_a_word_and_cuda_is_an_error_with_its_cure() {
    if Cuda::open(0).is_ok() {
        println!("skipped: this machine has a GPU");
        return;
    }
    let run = |device: &str| {
        bitnet(&["run", "synthetic:tiny", "--ids", "1,2", "-n", "5", "--seed", "1", "--device", device])
    };
    let (auto, cpu) = (run("auto"), run("cpu"));
    assert!(!auto.err.contains(ON_CPU), "{auto:?}");
    assert!(auto.err.contains("on cpu") && cpu.err.contains("on cpu"), "{auto:?}");
    assert_eq!(auto.success(), cpu.success());
    for device in ["cuda", "cuda:3"] {
        assert!(run(device).failure(1).contains("--device cpu"));
    }
    fails(1, "doctor --device cuda", &["--device cpu"]);
    bitnet(&["tokenize", "demo", "x", "--device", "cuda"]).success();
}

#[test]
fn an_empty_text_is_continued_from_the_token_that_begins_every_text() {
    let outcome = bitnet(&["run", &fixture("bitnet-packed"), "--raw", "", "-n", "3"]);
    assert!(outcome.err.contains("1 prompt tokens"), "{outcome:?}");
    outcome.success();
}

#[cfg(target_os = "linux")]
#[test]
fn an_output_that_accepts_nothing_is_reported_in_one_line() {
    use std::{fs::OpenOptions, process::Stdio};

    let full = OpenOptions::new().write(true).open("/dev/full").unwrap();
    let mut command = crate::bitnet::command(&["run", "synthetic:tiny", "--ids", "1", "--device", "cpu"]);
    let output = command.stdout(full).stderr(Stdio::piped()).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(error.starts_with("error: cannot write the output") && error.lines().count() == 1, "{error}");
}

#[test]
fn a_model_with_numbers_that_are_not_finite_is_reported_and_gives_no_result() {
    let folder = tempfile::tempdir().unwrap();
    for file in ["config.json", "tokenizer.json", "tokenizer_config.json", "model.safetensors"] {
        std::fs::copy(fixture(&format!("bitnet-packed/{file}")), folder.path().join(file)).unwrap();
    }
    let weights = folder.path().join("model.safetensors");
    let mut bytes = std::fs::read(&weights).unwrap();
    let (header, about) = safetensors::SafeTensors::read_metadata(&bytes).unwrap();
    let (from, to) = about.info("model.norm.weight").unwrap().data_offsets;
    // All bits set are NaN in every type of float.
    bytes[8 + header + from..8 + header + to].fill(0xFF);
    std::fs::write(&weights, bytes).unwrap();

    let text = folder.path().join("text");
    std::fs::write(&text, "word ".repeat(50)).unwrap();
    let (model, text) = (folder.path().display(), text.display());
    fails(1, &format!("perplexity {model} {text} --context 16 --json"), &["no finite numbers"]);
    fails(1, &format!("bench {model} -p 8 -n 4 -b 1 --json"), &["no finite numbers"]);
}
