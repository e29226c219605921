//! Constraints hold in every schedule, and a failure in one affects only its request.

use std::sync::Arc;
use std::time::Duration;

use bitnet_inference::{
    Constraint, ConstraintError, EngineConfig, FinishReason, GenerationConfig, Request, RequestError,
    SampleError, TokenSet, metrics::Counter,
};
use bitnet_model::Limits;

use crate::support::*;

/// Allows texts in which each token exceeds the last by one to three, modulo 40, and which end after a multiple of 5.
#[derive(Debug)]
pub struct Climbing;

impl Constraint for Climbing {
    fn allow(&self, _: u32, generated: &[u32], allowed: &mut TokenSet) -> Result<(), ConstraintError> {
        let last = generated.last().copied().unwrap_or(0);
        (1..=3).map(|step| (last + step) % 40).filter(|&t| t != EOS).for_each(|t| allowed.insert(t));
        if last.is_multiple_of(5) {
            allowed.insert(EOS);
        }
        Ok(())
    }
}

fn climbing(prompt: &[u32], config: &GenerationConfig) -> Request {
    Request { constraint: Some(Arc::new(Climbing)), ..Request::new(prompt, config.clone()) }
}

fn climbs(tokens: &[u32]) -> bool {
    let ends = |w: &[u32]| w[1] == EOS && w[0].is_multiple_of(5);
    tokens.windows(2).all(|w| ends(w) || (1..=3).contains(&((w[1] + 40 - w[0]) % 40)))
}

#[test]
fn constrained_texts_are_the_same_alone_and_among_others_with_drafts_and_without_room() {
    for (round, max_draft, kv_blocks) in [(0, 0, 64), (1, 4, 64), (2, 4, 10), (3, 0, 9)] {
        let (engine, _) =
            engine_with(Limits { kv_blocks, ..limits() }, EngineConfig { max_draft, ..config() });
        // Long enough for blocks to run out; every other request is unconstrained.
        let mut mix = mixed(40, round);
        mix.iter_mut().for_each(|(_, config)| config.max_new_tokens += 70);
        let requests = mix.iter().enumerate().map(|(i, (prompt, config))| match i % 2 {
            0 => climbing(prompt, config),
            _ => Request::new(prompt.clone(), config.clone()),
        });
        let handles = engine.submit_all(requests.collect()).unwrap();
        for (i, (handle, (prompt, config))) in handles.into_iter().zip(&mix).enumerate() {
            let got = handle.wait().unwrap().choices.remove(0).tokens;
            let constraint = (i % 2 == 0).then_some(&Climbing as &dyn Constraint);
            assert_eq!(got, alone_under(constraint, prompt, config), "round {round}, request {i}");
            assert!(i % 2 == 1 || climbs(&got), "{got:?}");
        }
        let status = engine.status().scheduler;
        assert_eq!(status.preemptions > 0, kv_blocks < 64, "{status:?}");
        assert_eq!(status.accepted > 0, max_draft > 0, "{status:?}");
    }
}

/// Fails in one of three ways after two tokens.
#[derive(Debug)]
enum Broken {
    DeadEnd,
    Error,
    Panic,
}

impl Constraint for Broken {
    fn allow(&self, _: u32, generated: &[u32], allowed: &mut TokenSet) -> Result<(), ConstraintError> {
        match self {
            _ if generated.len() < 2 => (0..VOCAB as u32).for_each(|t| allowed.insert(t)),
            Broken::DeadEnd => {}
            Broken::Error => return Err(ConstraintError("no such state".into())),
            Broken::Panic => panic!("a constraint's own fault"),
        }
        Ok(())
    }
}

#[test]
fn a_constraint_that_fails_ends_its_own_request_and_no_other() {
    let (engine, _) = engine(config());
    let broken = |kind| Request { constraint: Some(Arc::new(kind)), ..Request::new([3, 4], greedy(10)) };
    let mut requests = vec![broken(Broken::DeadEnd), broken(Broken::Error), broken(Broken::Panic)];
    requests.push(climbing(&[3, 4], &GenerationConfig::default()));
    let handles = engine.submit_all(requests).unwrap();
    let mut ends: Vec<_> = handles.into_iter().map(|h| h.wait()).collect();
    let last = ends.pop().unwrap().unwrap();
    assert!(matches!(last.choices[0].finish, FinishReason::Eos | FinishReason::Length));
    assert_eq!(last.choices[0].tokens, alone_under(Some(&Climbing), &[3, 4], &GenerationConfig::default()));
    assert_eq!(ends[0], Err(RequestError::Sample(SampleError::NothingAllowed)));
    assert_eq!(ends[1], Err(RequestError::Constraint { message: "no such state".into() }));
    assert_eq!(ends[2], Err(RequestError::Panic { message: "a constraint's own fault".into() }));
    assert_eq!(engine.metrics().snapshot().get(Counter::Failed), 3);
}

#[test]
fn the_queue_and_whether_it_is_open_can_be_asked() {
    let (engine, _) = slow_engine(EngineConfig { max_batch_size: 1, ..config() }, Duration::from_millis(20));
    let handles: Vec<_> =
        (0..4).map(|i| engine.submit(Request::new([i, 1, 2], greedy(200))).unwrap()).collect();
    while engine.status().running == 0 {
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!((engine.queue().sequences, engine.queue().tokens, engine.is_open()), (3, 9, true));
    drop(handles);
    engine.shutdown(Duration::from_secs(20));
    assert_eq!((engine.queue().sequences, engine.queue().tokens, engine.is_open()), (0, 0, false));
}
