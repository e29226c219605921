//! Ten thousand damaged files of every kind, each of which must give a model or one error.

use bitnet_fuzz::{Kind, MEMORY, Seed, Tally, judge, run};

use crate::alone;

/// Number of mutations over all kinds of files. `BITNET_MUTATIONS` sets another number, `BITNET_SEED` the first seed.
const MUTATIONS: u64 = 10_000;

fn number(variable: &str, default: u64) -> u64 {
    std::env::var(variable).ok().map_or(default, |v| v.parse().expect("a number"))
}

/// Judges the share of a kind, and checks how many were refused, so that a mutator that changes nothing and a reader
/// that accepts everything fail too.
fn mutated(name: &str) {
    let _alone = alone();
    let kind = Kind::named(name).expect("there is such a kind");
    let count = number("BITNET_MUTATIONS", MUTATIONS) * kind.share / 100;
    let mut tally = Tally::default();
    if let Err(finding) = run(&Seed::new(kind).unwrap(), number("BITNET_SEED", 0), count, &mut tally) {
        panic!("{name}, BITNET_SEED={}: {}", finding.seed, finding.problem);
    }
    let refused = count / 20..count;
    assert!(count < 100 || refused.contains(&tally.refused), "{name}: {} of {count} refused", tally.refused);
}

#[test]
fn mutated_maple_gguf_gives_a_model_or_one_error() {
    mutated("maple_tq1_0");
}

#[test]
fn mutated_maple_mlx_gives_a_model_or_one_error() {
    mutated("maple_mlx");
}

#[test]
fn mutated_maple_config_gives_a_model_or_one_error() {
    mutated("maple_config");
}

#[test]
fn mutated_gemma_gguf_gives_a_model_or_one_error() {
    mutated("gemma_i2_s");
}

#[test]
fn no_mutated_part_of_a_cache_is_taken_for_an_undamaged_one() {
    let _alone = alone();
    let kind = Kind::named("cache_part").expect("there is such a kind");
    let mut tally = Tally::default();
    if let Err(finding) = run(&Seed::new(kind).unwrap(), number("BITNET_SEED", 0), 10_000, &mut tally) {
        panic!("BITNET_SEED={}: {}", finding.seed, finding.problem);
    }
    // A mutation may put back what was there.
    assert!(tally.refused >= 9_500, "{} of 10000 refused", tally.refused);
}

#[test]
fn mutated_i2_s_gguf_gives_a_model_or_one_error() {
    mutated("gguf-i2_s");
}

#[test]
fn mutated_tq1_0_gguf_gives_a_model_or_one_error() {
    mutated("gguf-tq1_0");
}

#[test]
fn mutated_tq2_0_gguf_gives_a_model_or_one_error() {
    mutated("gguf");
}

#[test]
fn mutated_panels_give_a_model_or_one_error() {
    mutated("gguf-panels");
}

#[test]
fn mutated_safetensors_give_a_model_or_one_error() {
    mutated("safetensors");
}

#[test]
fn mutated_config_gives_a_model_or_one_error() {
    mutated("config");
}

#[test]
fn mutated_tokenizer_gives_a_model_or_one_error() {
    mutated("tokenizer");
}

#[test]
fn mutated_tokenizer_config_gives_a_model_or_one_error() {
    mutated("tokenizer_config");
}

#[test]
fn mutated_generation_config_gives_a_model_or_one_error() {
    mutated("generation");
}

#[test]
fn mutated_chat_template_gives_a_model_or_one_error() {
    // A template that does not compile is a warning: the model can still complete text.
    mutated("template");
}

#[test]
fn mutated_q2_0_gguf_gives_a_model_or_one_error() {
    mutated("q2_0");
}

#[test]
fn mutated_earlier_q2_0_gguf_gives_a_model_or_one_error() {
    mutated("q2_0_earlier");
}

#[test]
fn mutated_q1_0_gguf_gives_a_model_or_one_error() {
    mutated("q1_0");
}

#[test]
fn mutated_pq2_0_gguf_gives_a_model_or_one_error() {
    mutated("pq2_0");
}

#[test]
fn mutated_ptq1_0_gguf_gives_a_model_or_one_error() {
    mutated("ptq1_0");
}

#[test]
fn mutated_tq2_0_gguf_of_minicpm_gives_a_model_or_one_error() {
    mutated("minicpm-tq2_0");
}

#[test]
fn mutated_mlx_safetensors_gives_a_model_or_one_error() {
    mutated("mlx");
}

#[test]
fn mutated_unpacked_safetensors_gives_a_model_or_one_error() {
    mutated("unpacked");
}

#[test]
fn mutated_config_of_minicpm_gives_a_model_or_one_error() {
    mutated("minicpm-config");
}

#[test]
fn mutated_gguf_of_a_hybrid_model_gives_a_model_or_one_error() {
    mutated("hybrid_pq2_0");
}

#[test]
fn mutated_gguf_of_a_rotated_model_gives_a_model_or_one_error() {
    mutated("hybrid_ptq1_0");
}

#[test]
fn mutated_mlx_safetensors_of_a_rotated_model_give_a_model_or_one_error() {
    mutated("hybrid_mlx");
}

#[test]
fn a_mutated_hadamard_contract_gives_a_model_or_one_error() {
    mutated("hadamard");
}

#[test]
fn mutated_config_of_a_rotated_model_gives_a_model_or_one_error() {
    mutated("hybrid_config");
}

#[test]
fn the_judge_counts_the_memory_of_all_threads() {
    let _alone = alone();
    MEMORY.reset_peak_usage();
    let before = MEMORY.current_usage();
    // Counted but never touched. It is so large that memory still being freed by earlier tests does not matter. The
    // compiler would remove an allocation that nobody looks at.
    std::thread::spawn(|| drop(std::hint::black_box(vec![0u8; 512 << 20]))).join().unwrap();
    let peak = MEMORY.peak_usage();
    assert!(peak >= before + (256 << 20), "{peak} after {before}");
}

#[test]
fn files_that_are_as_they_should_be_are_not_refused() {
    let _alone = alone();
    for kind in Kind::ALL {
        let (seed, mut tally) = (Seed::new(kind).unwrap(), Tally::default());
        judge(&seed, seed.bytes.clone(), &mut tally).unwrap();
        assert_eq!((tally.judged, tally.refused), (1, 0), "{}", kind.name);
    }
}
