//! Drafters change nothing but the speed: random mixes of requests, some of them resumed or interrupted by a restart, with
//! drafters of every quality. `BITNET_SIM_SEEDS` sets the number of mixes.

use std::collections::HashMap;
use std::sync::Arc;

use bitnet_hash_model::{HashModel, mix};
use bitnet_inference::{
    Constraint, Drafter, GenerationConfig, HeadDrafter, ModelDrafter, Output, Priority, Request,
    scheduling::{Drafting, SchedulerCounts, SeqId, Source},
};
use bitnet_model::{Batch, ForwardError, Limits, Model};

use crate::drafts::{AGAIN, Halting, Setting, answer_alone, resumable, resumed, run};
use crate::support::*;

struct Rng(u64);

impl Rng {
    fn below(&mut self, n: usize) -> usize {
        self.0 += 1;
        (mix(self.0, 77) % n as u64) as usize
    }

    fn one_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }
}

fn request(rng: &mut Rng, prompts: &mut Vec<Vec<u32>>) -> Request {
    let mut prompt = match rng.below(3) {
        0 => Vec::new(),
        _ => prompts.get(rng.below(4)).cloned().unwrap_or_default(),
    };
    let more = if rng.one_in(5) { rng.below(120) } else { rng.below(12) };
    prompt.extend((0..=more).map(|_| rng.below(48) as u32));
    if rng.one_in(4) && prompt.len() >= Batch::BLOCK_TOKENS {
        prompt.truncate(prompt.len() / Batch::BLOCK_TOKENS * Batch::BLOCK_TOKENS);
    }
    prompts.push(prompt.clone());
    let max_new_tokens = rng.below(30);
    let text = |rng: &mut Rng| [b'a' + rng.below(5) as u8, b'a' + rng.below(10) as u8].map(char::from);
    let config = GenerationConfig {
        max_new_tokens,
        min_new_tokens: rng.below(max_new_tokens / 2 + 1),
        temperature: [0.0, 0.7, 1.0][rng.below(3)],
        top_k: [0, 1, 7][rng.below(3)],
        top_p: [1.0, 0.9][rng.below(2)],
        repetition_penalty: [1.0, 1.3][rng.below(2)],
        frequency_penalty: [0.0, 0.4, -3.0][rng.below(3)],
        logit_bias: if rng.one_in(4) { (1..4).map(|token| (token, 30.0)).collect() } else { Vec::new() },
        stop_tokens: if rng.one_in(4) { vec![rng.below(48) as u32] } else { Vec::new() },
        stop_strings: if rng.one_in(4) { vec![text(rng).iter().collect(), "aab".into()] } else { Vec::new() },
        ignore_eos: rng.one_in(2),
        logprobs: rng.one_in(5).then_some(2),
        n: if rng.one_in(6) { 3 } else { 1 },
        seed: Some(rng.below(1000) as u64),
        ..GenerationConfig::default()
    };
    Request {
        output: if rng.one_in(20) { Output::Scored } else { Output::Tokens },
        constraint: rng.one_in(4).then(|| Arc::new(Halting) as Arc<dyn Constraint>),
        priority: [Priority::Interactive, Priority::Normal, Priority::Background][rng.below(3)],
        ..Request::new(prompt, config)
    }
}

/// Drafters that no one should use.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Quality {
    Wrong,
    Right,
    /// Right for a while, then wrong; sometimes outside the vocabulary, sometimes fewer than asked for.
    Mixed,
    /// It gives what would have been right when it was last asked.
    Late,
    Failing,
    Panicking,
}

struct Planted {
    quality: Quality,
    /// The text of each sequence.
    texts: HashMap<SeqId, Vec<u32>>,
    /// What each sequence should have got when it was last asked for.
    late: HashMap<SeqId, Vec<u32>>,
    rng: Rng,
}

impl Drafter for Planted {
    fn draft(&mut self, _: &mut dyn Model, asked: &mut Drafting<'_>) -> Result<(), ForwardError> {
        for at in 0..asked.runs().len() {
            let run = asked.runs()[at];
            assert_eq!(asked.text(at).len(), run.len);
            let id = SeqId { request: run.id.request % AGAIN, ..run.id };
            if self.quality == Quality::Late {
                let rest = self.texts.get(&id).and_then(|text| text.get(run.len..)).unwrap_or_default();
                let late = self.late.insert(id, rest[..run.depth.min(rest.len())].to_vec());
                late.into_iter().flatten().for_each(|token| {
                    asked.push(at, token);
                });
                continue;
            }
            for place in 0..run.depth {
                let right = self.texts.get(&id).and_then(|text| text.get(run.len + place)).copied();
                let wrong = right.map_or(0, |token| (token + 1) % VOCAB as u32);
                let token = match self.quality {
                    Quality::Right => right.unwrap_or(0),
                    Quality::Wrong => wrong,
                    _ if self.rng.one_in(9) => return Ok(()),
                    _ if self.rng.one_in(9) => VOCAB as u32 + 5,
                    _ if self.rng.one_in(4) => wrong,
                    _ => right.unwrap_or(0),
                };
                asked.push(at, token);
            }
            if self.rng.one_in(3) {
                match self.quality {
                    // Without the message that a panic prints.
                    Quality::Panicking => std::panic::resume_unwind(Box::new("planted")),
                    Quality::Failing => return Err(ForwardError::NoDraftHead),
                    _ => {}
                }
            }
        }
        Ok(())
    }
}

/// Counts of the scheduler, of failures of drafters, and of drafts that recurrent models dropped.
fn mixes(first: u64, count: u64) -> (SchedulerCounts, u64, u64) {
    let (mut all, mut failures, mut dropped) = (SchedulerCounts::default(), 0, 0);
    for seed in first..first + count {
        let mut rng = Rng(mix(seed, 3) >> 1);
        let states = rng.one_in(3);
        let max_running = 1 + rng.below(5);
        let limits = Limits {
            max_tokens: 6 + rng.below(60),
            max_logit_rows: 6 + rng.below(24),
            // The longest request takes three; with few more, requests take them from each other.
            kv_blocks: 3 + if rng.one_in(2) { rng.below(3) } else { rng.below(20) },
            state_slots: if states { max_running + rng.below(4) } else { 0 },
        };
        let mut prompts = Vec::new();
        let mut requests: Vec<(Request, usize)> = Vec::new();
        let mut expected = HashMap::new();
        let mut texts = HashMap::new();
        let mut when = 0;
        for id in 0..1 + rng.below(5) as u64 {
            let mut request = request(&mut rng, &mut prompts);
            request.prompt.truncate(150);
            for (alone, mut answer) in answer_alone(&request, states) {
                let told = answer.tokens.len();
                if resumable(&request) && told > 1 && rng.one_in(4) {
                    // A stream that goes on in another place.
                    let told = 1 + rng.below(told - 1);
                    request = resumed(&request, &answer.tokens[..told]);
                    answer.tokens.drain(..told);
                    answer.logprobs.drain(..told);
                }
                let text = [&request.prompt[..], &answer.tokens].concat();
                texts.insert(SeqId { request: id, ..alone }, text);
                expected.insert(SeqId { request: id, ..alone }, answer);
            }
            if rng.one_in(4) {
                // A prediction that is right here and there.
                let text = texts.get(&SeqId { request: id, choice: 0 }).cloned().unwrap_or_default();
                let generated = text.get(request.prompt.len() - request.generated..).unwrap_or_default();
                request.prediction =
                    generated.iter().map(|&t| if rng.one_in(6) { rng.below(50) as u32 } else { t }).collect();
            }
            when += rng.below(5);
            requests.push((request, when));
        }
        let quality = [
            Quality::Wrong,
            Quality::Right,
            Quality::Mixed,
            Quality::Late,
            Quality::Failing,
            Quality::Panicking,
        ];
        let drafter: Option<Box<dyn Drafter>> = match rng.below(9) {
            0 => None,
            1 => Some(Box::new(HeadDrafter::new())),
            2 => {
                let model = HashModel::new(VOCAB, CONTEXT, Limits { state_slots: 0, ..limits });
                Some(Box::new(ModelDrafter::new(Box::new(model), limits).unwrap()))
            }
            n => {
                let rng = Rng(seed);
                let (quality, late) = (quality[n - 3], HashMap::new());
                Some(Box::new(Planted { quality, texts: texts.clone(), late, rng }))
            }
        };
        let max_draft = rng.below(17).min(limits.max_logit_rows);
        let restart = rng.one_in(5).then(|| 1 + rng.below(20));
        let setting = Setting { limits, max_running, max_draft, restart };
        let (got, counts, failed) = run(&setting, drafter, &requests);
        assert_eq!(got.len(), expected.len(), "seed {seed}");
        for (id, answer) in &expected {
            assert_eq!(got.get(id), Some(answer), "seed {seed}, {id:?}, drafts of {max_draft}");
        }
        failures += failed;
        dropped += if states { counts.drafted - counts.accepted } else { 0 };
        all.preemptions += counts.preemptions;
        all.prefix_hits += counts.prefix_hits;
        for (all, counts) in all.sources.iter_mut().zip(counts.sources) {
            all[0] += counts[0];
            all[1] += counts[1];
        }
    }
    (all, failures, dropped)
}

#[test]
fn no_drafter_changes_an_answer_in_any_batch() {
    let count = std::env::var("BITNET_SIM_SEEDS").map_or(2000, |n| n.parse().unwrap());
    let (counts, failures, dropped) = mixes(0, count);
    let SchedulerCounts { preemptions, prefix_hits, .. } = counts;
    assert!(
        preemptions > 0 && prefix_hits > 0 && failures > 0 && dropped > 100,
        "{counts:?}, {failures} failures, {dropped} drafts dropped"
    );
    for source in Source::ALL {
        let [drafted, accepted] = counts.sources[source as usize];
        let rejected = drafted - accepted;
        // A text that ends among forced tokens drops the others.
        assert!(accepted > 100 && (rejected > 100 || source == Source::Forced), "{source:?}: {counts:?}");
    }
}
