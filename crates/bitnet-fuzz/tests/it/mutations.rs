use bitnet_fuzz::{Grouped, Kind, MEMORY, Seed, Tally, judge, run};
use bitnet_model::Target;

use crate::alone;

/// Number of mutations over all kinds of files. `BITNET_MUTATIONS` sets another number, `BITNET_SEED` the first seed.
const MUTATIONS: u64 = 10_000;

fn number(variable: &str, default: u64) -> u64 {
    std::env::var(variable).ok().map_or(default, |v| v.parse().expect("a number"))
}

/// Judges the share of a kind, and checks how many were refused, so that a mutator that changes nothing and a reader
/// that accepts everything fail too.
fn mutated(kind: Kind) {
    let _alone = alone();
    let share = Kind::ALL.iter().find(|(k, _)| *k == kind).expect("every kind has a share").1;
    let count = number("BITNET_MUTATIONS", MUTATIONS) * share / 100;
    let mut tally = Tally::default();
    if let Err(finding) = run(&Seed::new(kind).unwrap(), number("BITNET_SEED", 0), count, &mut tally) {
        panic!("{kind:?}, BITNET_SEED={}: {}", finding.seed, finding.problem);
    }
    let refused = count / 20..count;
    assert!(
        count < 100 || refused.contains(&tally.refused),
        "{kind:?}: {} of {count} refused",
        tally.refused
    );
}

#[test]
fn mutated_i2_s_gguf_gives_a_model_or_one_error() {
    mutated(Kind::Gguf(Target::I2S));
}

#[test]
fn mutated_tq1_0_gguf_gives_a_model_or_one_error() {
    mutated(Kind::Gguf(Target::Tq1_0));
}

#[test]
fn mutated_tq2_0_gguf_gives_a_model_or_one_error() {
    mutated(Kind::Gguf(Target::Tq2_0));
}

#[test]
fn mutated_panels_give_a_model_or_one_error() {
    mutated(Kind::Gguf(Target::Panels));
}

#[test]
fn mutated_safetensors_give_a_model_or_one_error() {
    mutated(Kind::Weights);
}

#[test]
fn mutated_config_gives_a_model_or_one_error() {
    mutated(Kind::Config);
}

#[test]
fn mutated_tokenizer_gives_a_model_or_one_error() {
    mutated(Kind::Tokenizer);
}

#[test]
fn mutated_tokenizer_config_gives_a_model_or_one_error() {
    mutated(Kind::TokenizerConfig);
}

#[test]
fn mutated_generation_config_gives_a_model_or_one_error() {
    mutated(Kind::Generation);
}

#[test]
fn mutated_chat_template_gives_a_model_or_one_error() {
    // A template that does not compile is a warning: the model can still complete text.
    mutated(Kind::Template);
}

#[test]
fn mutated_q2_0_gguf_gives_a_model_or_one_error() {
    mutated(Kind::Grouped(Grouped::Q2_0));
}

#[test]
fn mutated_earlier_q2_0_gguf_gives_a_model_or_one_error() {
    mutated(Kind::Grouped(Grouped::Q2_0Earlier));
}

#[test]
fn mutated_q1_0_gguf_gives_a_model_or_one_error() {
    mutated(Kind::Grouped(Grouped::Q1_0));
}

#[test]
fn mutated_pq2_0_gguf_gives_a_model_or_one_error() {
    mutated(Kind::Grouped(Grouped::Pq2_0));
}

#[test]
fn mutated_ptq1_0_gguf_gives_a_model_or_one_error() {
    mutated(Kind::Grouped(Grouped::Ptq1_0));
}

#[test]
fn mutated_tq2_0_gguf_of_minicpm_gives_a_model_or_one_error() {
    mutated(Kind::Grouped(Grouped::Tq2_0));
}

#[test]
fn mutated_mlx_safetensors_gives_a_model_or_one_error() {
    mutated(Kind::Grouped(Grouped::Mlx));
}

#[test]
fn mutated_unpacked_safetensors_gives_a_model_or_one_error() {
    mutated(Kind::Grouped(Grouped::Unpacked));
}

#[test]
fn mutated_config_of_minicpm_gives_a_model_or_one_error() {
    mutated(Kind::Grouped(Grouped::Config));
}

#[test]
fn mutated_gguf_of_a_hybrid_model_gives_a_model_or_one_error() {
    mutated(Kind::Grouped(Grouped::HybridPq2_0));
}

#[test]
fn mutated_gguf_of_a_rotated_model_gives_a_model_or_one_error() {
    mutated(Kind::Grouped(Grouped::HybridPtq1_0));
}

#[test]
fn mutated_mlx_safetensors_of_a_rotated_model_give_a_model_or_one_error() {
    mutated(Kind::Grouped(Grouped::HybridMlx));
}

#[test]
fn a_mutated_hadamard_contract_gives_a_model_or_one_error() {
    mutated(Kind::Grouped(Grouped::Hadamard));
}

#[test]
fn mutated_config_of_a_rotated_model_gives_a_model_or_one_error() {
    mutated(Kind::Grouped(Grouped::HybridConfig));
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
    for (kind, _) in Kind::ALL {
        let (seed, mut tally) = (Seed::new(kind).unwrap(), Tally::default());
        judge(&seed, seed.bytes.clone(), &mut tally).unwrap();
        assert_eq!((tally.judged, tally.refused), (1, 0), "{kind:?}");
    }
}
