//! The engine: requests in any mix get what they get alone, within its limits, however they end.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use bitnet_hash_model::{HashModel, Oracle, mix};
use bitnet_inference::generation::{InvalidBatching, QueueError};
use bitnet_inference::sampling::Sampler;
use bitnet_inference::{
    BatchSizing, ConstraintError, Elapsed, Engine, EngineConfig, FinishReason, GenerationConfig,
    GenerationError, InvalidRequest, Output, Priority, Request, RequestError, RequestHandle, SampleError,
    StartError, SubmitError, TokenLogprobs, TokenText, Update,
    metrics::{Counter, Measure, Recorder},
    names::{BatchError, BenchmarkError, CudaError, EmptySequence, RecordError},
    scheduling::{Plan, Scheduler, StepLoad, StepModel, StepOutcome, Stepper},
};

use bitnet_kernels::Wanted;
use bitnet_model::{Batch, ForwardError, Limits, Logits};

use crate::support::*;

const SOON: Duration = Duration::from_secs(20);

fn tokens(handle: RequestHandle) -> Vec<u32> {
    handle.wait().unwrap().choices.remove(0).tokens
}

fn idle(engine: &Engine) {
    let start = Instant::now();
    while engine.status().running + engine.status().waiting > 0 {
        assert!(start.elapsed() < SOON, "{:?}", engine.status());
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn every_request_of_a_mix_gets_what_it_gets_alone() {
    for (round, draft) in [(0, 0), (1, 4), (2, 0), (3, 4)] {
        let (engine, _) = engine(EngineConfig { max_draft: draft, ..config() });
        let mix = mixed(40, round);
        let requests =
            mix.iter().map(|(prompt, config)| Request::new(prompt.clone(), config.clone())).collect();
        let handles = engine.submit_all(requests).unwrap();
        for (handle, (prompt, config)) in handles.into_iter().zip(&mix) {
            assert_eq!(tokens(handle), alone(prompt, config));
        }
    }
}

#[test]
fn a_step_serves_all_live_requests_at_once() {
    let (engine, counts) = engine(config());
    let requests = (0..8).map(|i| Request::new([i, 1, 2], greedy(10 + i as usize))).collect();
    engine.submit_all(requests).unwrap().into_iter().for_each(|h| drop(h.wait().unwrap()));
    // One prefill for all, then one step for each token of the longest.
    assert_eq!(counts.forwards.load(Relaxed), 1 + 16);
    assert_eq!(counts.widest.load(Relaxed), 8);
}

#[test]
fn a_finished_request_costs_nothing_more_and_no_token_is_computed_twice() {
    let (engine, counts) = engine(config());
    let requests = (0..4).map(|i| Request::new([i; 5], greedy(4 * i as usize + 1))).collect();
    engine.submit_all(requests).unwrap().into_iter().for_each(|h| drop(h.wait().unwrap()));
    assert_eq!(counts.tokens.load(Relaxed), 4 * 5 + (4 + 8 + 12));
    assert_eq!(counts.rows.load(Relaxed), 1 + 5 + 9 + 13);
}

#[test]
fn more_requests_than_fit_wait_and_none_is_lost() {
    let (engine, counts) = engine(EngineConfig { max_batch_size: 3, max_queued_requests: 5, ..config() });
    let requests = (0..50).map(|i| Request::new([i % 40, 3], greedy(6))).collect();
    let handles = engine.submit_all(requests).unwrap();
    for (i, handle) in handles.into_iter().enumerate() {
        assert_eq!(tokens(handle), alone(&[i as u32 % 40, 3], &greedy(6)));
    }
    assert!(counts.widest.load(Relaxed) <= 3);
}

#[test]
fn no_new_tokens_are_given_without_a_forward() {
    let (engine, counts) = engine(config());
    let done = engine.submit(Request::new([1, 2], greedy(0))).unwrap().wait().unwrap();
    assert_eq!((done.choices[0].tokens.len(), done.choices[0].finish), (0, FinishReason::Length));
    assert_eq!(counts.forwards.load(Relaxed), 0);
}

#[test]
fn a_stop_token_drawn_first_gives_an_empty_result() {
    let (engine, _) = engine(config());
    let first = tokens(engine.submit(Request::new([1, 2], greedy(1))).unwrap())[0];
    let stop = GenerationConfig { stop_tokens: vec![first], ..greedy(5) };
    let done = engine.submit(Request::new([1, 2], stop)).unwrap().wait().unwrap();
    assert_eq!((done.choices[0].tokens.len(), done.choices[0].finish), (0, FinishReason::StopToken(first)));
}

#[test]
fn echo_puts_the_prompt_before_the_new_tokens() {
    let (engine, _) = engine(config());
    let echo = GenerationConfig { echo: true, ..greedy(3) };
    let got = tokens(engine.submit(Request::new([1, 2], echo)).unwrap());
    assert_eq!(got, [&[1, 2], &alone(&[1, 2], &greedy(3))[..]].concat());
}

#[test]
fn the_context_ends_a_text_and_refuses_a_prompt_and_others_do_not_notice() {
    let (engine, _) = engine(config());
    let long = vec![1; CONTEXT - 4];
    let requests = vec![Request::new(long, greedy(100)), Request::new([1], greedy(5))];
    let done: Vec<_> = engine.submit_all(requests).unwrap().into_iter().map(|h| h.wait().unwrap()).collect();
    assert_eq!((done[0].choices[0].tokens.len(), done[0].choices[0].finish), (4, FinishReason::Context));
    assert_eq!((done[1].choices[0].tokens.len(), done[1].choices[0].finish), (5, FinishReason::Length));
    let refused = engine.submit(Request::new(vec![1; CONTEXT], greedy(1))).err().unwrap();
    assert_eq!(refused, InvalidRequest::TooLong { tokens: CONTEXT, context: CONTEXT }.into());
}

#[test]
fn chunks_of_a_prompt_give_what_the_whole_prompt_gives() {
    let prompt: Vec<u32> = (0..300).map(|i| i % 48).collect();
    let want = alone(&prompt, &greedy(10));
    for max_tokens in [1, 7, 64, 65, 512] {
        let limits = Limits { max_tokens, ..limits() };
        let (engine, counts) = engine_with(limits, config());
        assert_eq!(tokens(engine.submit(Request::new(prompt.clone(), greedy(10))).unwrap()), want);
        assert_eq!(counts.forwards.load(Relaxed), 300usize.div_ceil(max_tokens) + 9);
        assert_eq!(counts.rows.load(Relaxed), 10, "only last positions have logits");
    }
}

#[test]
fn blocks_are_free_again_after_finish_cancel_and_error() {
    let (engine, _) = engine(config());
    let handles = engine.submit_all((0..6).map(|i| Request::new([i; 70], greedy(200))).collect()).unwrap();
    drop(handles);
    idle(&engine);
    let done = engine.submit(Request::new([1; 70], greedy(3))).unwrap();
    assert_eq!(tokens(done), alone(&[1; 70], &greedy(3)));
    idle(&engine);
    assert_eq!(engine.status().kv_used, 0);
}

#[test]
fn the_second_of_two_prompts_computes_its_own_tail_only() {
    let (engine, counts) = engine(config());
    let shared: Vec<u32> = (0..200).map(|i| i * 7 % 48).collect();
    tokens(engine.submit(Request::new(shared.clone(), greedy(1))).unwrap());
    let before = counts.tokens.load(Relaxed);
    let second = [&shared[..], &[1, 2, 3]].concat();
    assert_eq!(
        tokens(engine.submit(Request::new(second.clone(), greedy(1))).unwrap()),
        alone(&second, &greedy(1))
    );
    assert_eq!(counts.tokens.load(Relaxed) - before, 203 - 192);
    let salted = Request { salt: 1, ..Request::new(second, greedy(1)) };
    tokens(engine.submit(salted).unwrap());
    assert_eq!(counts.tokens.load(Relaxed) - before, 203 - 192 + 203, "another salt shares nothing");
}

#[test]
fn of_two_prompts_that_share_512_tokens_the_second_computes_a_block_and_its_tail_at_most() {
    let model = HashModel::new(VOCAB, 1024, limits());
    let counts = model.counts();
    let engine = Engine::start(model, config()).unwrap();
    let shared: Vec<u32> = (0..512).map(|p| p * p % 47).collect();
    for (tail, most) in [(20, 512 + 20 + 2), (37, Batch::BLOCK_TOKENS + 37 + 2)] {
        let before = counts.tokens.load(Relaxed);
        let prompt = [&shared[..], &vec![tail as u32; tail]].concat();
        assert_eq!(tokens(engine.submit(Request::new(prompt, greedy(3))).unwrap()).len(), 3);
        let computed = counts.tokens.load(Relaxed) - before;
        assert!(computed <= most, "{computed} of {most}");
    }
}

#[test]
fn choices_share_their_prompt_and_differ() {
    let (engine, counts) = engine(config());
    let config = GenerationConfig { n: 4, temperature: 1.5, seed: Some(5), ..greedy(12) };
    let prompt: Vec<u32> = (0..100).map(|i| i % 48).collect();
    let done = engine.submit(Request::new(prompt.clone(), config.clone())).unwrap().wait().unwrap();
    assert_eq!(done.choices[0].tokens, alone(&prompt, &config));
    for i in 1..4 {
        assert_eq!(done.choices[i].tokens.len(), 12);
        assert_ne!(done.choices[i].tokens, done.choices[i - 1].tokens);
    }
    // The prompt once, and its last token again for each of the other choices, in a copied block.
    assert_eq!(counts.tokens.load(Relaxed), 100 + 3 + 4 * 11);
    assert_eq!(counts.copies.load(Relaxed), 3);
}

#[test]
fn the_logits_after_a_prompt_can_be_had_without_a_token() {
    let (engine, _) = engine(config());
    let request = Request { output: Output::Logits, ..Request::new([4, 5, 6], GenerationConfig::default()) };
    let done = engine.submit(request).unwrap().wait().unwrap();
    let mut want = vec![0.0; VOCAB];
    let mut oracle = Oracle::default();
    [4, 5, 6].into_iter().for_each(|t| oracle.push(t));
    oracle.logits(&mut want);
    assert_eq!((done.logits.unwrap(), done.choices[0].tokens.len()), (want, 0));
}

/// The expected log-probabilities of every token of a prompt except the first.
fn scored_alone(prompt: &[u32], top: usize) -> Vec<TokenLogprobs> {
    let (mut oracle, mut sampler, mut row) = (Oracle::default(), Sampler::new(VOCAB), vec![0.0; VOCAB]);
    let each = prompt.windows(2).map(|pair| {
        oracle.push(pair[0]);
        oracle.logits(&mut row);
        sampler.logprobs(&row, pair[1], top).unwrap()
    });
    each.collect()
}

#[test]
fn a_prompt_gets_the_same_scores_and_text_alone_and_in_a_crowd() {
    for max_logit_rows in [1, 2, 5, 16] {
        let (engine, _) = engine_with(
            Limits { max_logit_rows, ..limits() },
            EngineConfig { max_batch_size: max_logit_rows.min(8), ..config() },
        );
        let prompts: Vec<Vec<u32>> = (0..12u32)
            .map(|i| (0..1 + i * 7).map(|t| if i % 3 == 0 { t % 48 } else { (t * 5 + i) % 48 }).collect())
            .collect();
        let request = |(i, prompt): (usize, &Vec<u32>)| Request {
            // Some prompts are also in the prefix cache, and some requests generate no token.
            output: if i == 5 { Output::Tokens } else { Output::Scored },
            ..Request::new(
                prompt.clone(),
                GenerationConfig {
                    logprobs: Some(3),
                    n: 1 + usize::from(i > 6),
                    ..greedy(if i % 4 == 0 { 0 } else { 9 })
                },
            )
        };
        for _ in 0..2 {
            let handles = engine.submit_all(prompts.iter().enumerate().map(request).collect()).unwrap();
            for ((i, prompt), handle) in prompts.iter().enumerate().zip(handles) {
                let done = handle.wait().unwrap();
                let want = if i == 5 { Vec::new() } else { scored_alone(prompt, 3) };
                assert_eq!(done.scored, want, "{max_logit_rows} rows, prompt {i}");
                let new = if i % 4 == 0 { 0 } else { 9 };
                for choice in &done.choices {
                    assert_eq!(
                        choice.tokens,
                        alone(prompt, &greedy(new)),
                        "{max_logit_rows} rows, prompt {i}"
                    );
                    assert_eq!(choice.logprobs.len(), choice.tokens.len());
                }
            }
        }
    }
}

#[test]
fn scoring_a_long_prompt_leaves_a_row_for_who_comes_later() {
    let (engine, counts) = engine(config());
    let long: Vec<u32> = (0..400).map(|i| i % 48).collect();
    let scored = Request { output: Output::Scored, ..Request::new(long.clone(), greedy(1)) };
    let handles = engine.submit_all(vec![scored, Request::new([1, 2], greedy(3))]).unwrap();
    let done: Vec<_> = handles.into_iter().map(|handle| handle.wait().unwrap()).collect();
    assert_eq!(done[0].scored, scored_alone(&long, 0));
    assert_eq!(done[1].choices[0].tokens, alone(&[1, 2], &greedy(3)));
    assert!(counts.rows.load(Relaxed) >= 400);
}

#[test]
fn a_failing_or_panicking_request_fails_alone() {
    let hook = |batch: &Batch, _: Option<&mut Logits>| {
        let starts =
            |token| batch.runs().iter().any(|r| r.start == 0 && batch.tokens()[r.tokens.start] == token);
        assert!(!starts(48), "planted panic");
        if starts(49) { Err(planted()) } else { Ok(()) }
    };
    let model = HashModel::new(VOCAB, CONTEXT, limits()).with_hook(Box::new(hook));
    let engine = Engine::start(model, config()).unwrap();
    let prompts: [u32; 8] = [1, 49, 2, 3, 48, 4, 5, 6];
    let handles =
        engine.submit_all(prompts.iter().map(|&p| Request::new([p, 9], greedy(20))).collect()).unwrap();
    for (handle, p) in handles.into_iter().zip(prompts) {
        match (p, handle.wait()) {
            (49, Err(error)) => assert_eq!(error, RequestError::Forward(planted())),
            (48, Err(error)) => assert_eq!(error, RequestError::Panic { message: "planted panic".into() }),
            (_, done) => assert_eq!(done.unwrap().choices[0].tokens, alone(&[p, 9], &greedy(20))),
        }
    }
    assert_eq!(
        tokens(engine.submit(Request::new([3], greedy(4))).unwrap()),
        alone(&[3], &greedy(4)),
        "it goes on"
    );
    assert_eq!(engine.metrics().snapshot().get(Counter::Failed), 2);
}

#[test]
fn a_nan_row_fails_its_request_and_no_other() {
    let hook = |batch: &Batch, logits: Option<&mut Logits>| {
        if let Some(logits) = logits
            && let Some(run) =
                batch.runs().iter().position(|r| r.start == 0 && batch.tokens()[r.tokens.start] == 48)
        {
            logits.row_mut(run)[20] = f32::NAN;
        }
        Ok(())
    };
    let model = HashModel::new(VOCAB, CONTEXT, limits()).with_hook(Box::new(hook));
    let engine = Engine::start(model, config()).unwrap();
    let handles = engine.submit_all([1, 48, 2].map(|p| Request::new([p, 9], greedy(20))).to_vec()).unwrap();
    let [a, b, c] = handles.try_into().ok().unwrap();
    assert_eq!(tokens(a), alone(&[1, 9], &greedy(20)));
    assert!(matches!(b.wait(), Err(RequestError::Sample(_))));
    assert_eq!(tokens(c), alone(&[2, 9], &greedy(20)));
}

#[test]
fn a_hidden_state_with_a_nan_fails_its_request_and_no_other() {
    // The hidden state of a sequence is its first token, three times; that of token 48 holds a NaN.
    let hook = |batch: &Batch, logits: Option<&mut Logits>| {
        if let Some(logits) = logits {
            let first = |&row: &usize| batch.runs().iter().find(|run| run.tokens.contains(&row));
            let state = |row| {
                let token = batch.tokens()[first(row).unwrap().tokens.start] as f32;
                [token, if token == 48.0 { f32::NAN } else { token }, token]
            };
            logits.set_hidden(batch.logit_rows().iter().flat_map(state).collect());
        }
        Ok(())
    };
    let model = HashModel::new(VOCAB, CONTEXT, limits()).with_hook(Box::new(hook));
    let engine = Engine::start(model, config()).unwrap();
    let handles = engine.submit_all([1, 48, 2].map(|p| Request::hidden([p, 9])).to_vec()).unwrap();
    let [a, b, c] = handles.try_into().ok().unwrap();
    assert_eq!(a.wait().unwrap().logits.unwrap(), [1.0; 3]);
    assert_eq!(b.wait().unwrap_err(), RequestError::NotFinite { index: 1 });
    assert_eq!(c.wait().unwrap().logits.unwrap(), [2.0; 3]);
}

#[test]
fn a_hidden_state_of_a_model_without_any_is_refused_by_name() {
    let (engine, _) = engine(config());
    let error = engine.submit(Request::hidden([4, 5])).unwrap().wait().unwrap_err();
    assert_eq!(error, RequestError::Forward(ForwardError::NoHiddenState));
}

#[test]
fn what_a_sequence_computed_before_its_logits_were_nan_is_computed_again_by_the_next() {
    // A single NaN, after several blocks of the prompt are computed and published.
    let mut poisoned = false;
    let hook = move |batch: &Batch, logits: Option<&mut Logits>| {
        if let Some(logits) = logits
            && let Some(row) = batch.logit_rows().first()
            && batch.tokens()[*row] == 48
            && !std::mem::replace(&mut poisoned, true)
        {
            logits.row_mut(0)[20] = f32::NAN;
        }
        Ok(())
    };
    let model = HashModel::new(VOCAB, CONTEXT, limits()).with_hook(Box::new(hook));
    let counts = model.counts();
    let engine = Engine::start(model, config()).unwrap();
    let prompt: Vec<u32> = (0..200).map(|i| i % 40).chain([48]).collect();
    let failed = engine.submit(Request::new(prompt.clone(), greedy(3))).unwrap().wait();
    assert!(matches!(failed, Err(RequestError::Sample(SampleError::NotANumber { .. }))), "{failed:?}");
    idle(&engine);
    assert_eq!(engine.status().kv_cached, 0, "nothing of it can be found");
    let before = counts.tokens.load(Relaxed);
    let again = engine.submit(Request::new(prompt.clone(), greedy(3))).unwrap();
    assert_eq!(tokens(again), alone(&prompt, &greedy(3)));
    assert_eq!(counts.tokens.load(Relaxed) - before, 201 + 2);
    idle(&engine);
    assert_eq!(engine.status().kv_cached, 3, "a sound text stays findable");
}

#[test]
fn an_invalid_request_is_refused_with_the_reason() {
    let (engine, _) = engine(EngineConfig { text: None, ..config() });
    let refused = |request| engine.submit(request).err().unwrap();
    assert_eq!(refused(Request::new([], greedy(1))), InvalidRequest::EmptyPrompt.into());
    let unknown = InvalidRequest::UnknownToken { token: 50, position: 1, vocab: VOCAB };
    assert_eq!(refused(Request::new([1, 50], greedy(1))), unknown.into());
    let hot = GenerationConfig { temperature: -1.0, ..greedy(1) };
    assert!(refused(Request::new([1], hot)).to_string().contains("temperature is -1"));
    let stop = GenerationConfig { stop_strings: vec!["x".into()], ..greedy(1) };
    assert_eq!(refused(Request::new([1], stop)), InvalidRequest::NoText.into());
    assert_eq!(engine.metrics().snapshot().get(Counter::Rejected), 4);
}

#[test]
fn dropping_a_handle_cancels_also_before_the_engine_has_seen_it() {
    let (engine, _) = slow_engine(config(), Duration::from_millis(1));
    for _ in 0..200 {
        drop(engine.submit(Request::new([1, 2], greedy(400))).unwrap());
    }
    until(|| engine.metrics().snapshot().get(Counter::Cancelled) == 200);
    // A few may have started, but none was finished.
    assert!(engine.metrics().snapshot().get(Counter::GeneratedTokens) < 200 * 400);
    assert_eq!(engine.status().kv_used, 0);
}

#[test]
fn a_cancelled_request_reports_it_and_keeps_its_tokens() {
    // What is not read pauses, so that the text does not end first.
    let (engine, _) = engine(EngineConfig { mailbox: 4, ..config() });
    let mut handle = engine.submit(Request::new([1, 2], greedy(400))).unwrap();
    let first: Vec<_> = handle.by_ref().take(3).collect();
    handle.cancel();
    let mut got: Vec<u32> = Vec::new();
    let mut end = None;
    for update in first.into_iter().chain(handle) {
        match update {
            Update::Token { index, token, .. } => {
                assert_eq!(index, got.len());
                got.push(token);
            }
            Update::Ended { end: e, .. } => end = Some(e.unwrap().finish),
        }
    }
    assert!(alone(&[1, 2], &greedy(400)).starts_with(&got));
    assert_eq!(end, Some(FinishReason::Cancelled));
}

#[test]
fn shutdown_ends_every_handle_and_refuses_new_requests() {
    let (engine, _) = engine(config());
    let handles = engine.submit_all((0..30).map(|i| Request::new([i], greedy(15))).collect()).unwrap();
    assert!(engine.shutdown(SOON).complete);
    for (i, handle) in handles.into_iter().enumerate() {
        assert_eq!(tokens(handle), alone(&[i as u32], &greedy(15)));
    }
    assert_eq!(engine.submit(Request::new([1], greedy(1))).err(), Some(SubmitError::Draining));
}

#[test]
fn an_immediate_shutdown_ends_a_patient_one_and_both_get_the_same_report() {
    let (engine, _) = engine(EngineConfig { mailbox: 4, ..config() });
    let handle = engine.submit(Request::new([1], greedy(500))).unwrap();
    std::thread::scope(|scope| {
        let patient = scope.spawn(|| engine.shutdown(Duration::MAX));
        until(|| !engine.is_open());
        assert!(!engine.shutdown(Duration::ZERO).complete);
        assert!(!patient.join().unwrap().complete);
    });
    assert_eq!(handle.wait(), Err(RequestError::Stopped));
    assert_eq!((engine.status().running, engine.status().kv_used), (0, 0));
    assert!(!engine.shutdown(SOON).complete, "it stays so");
}

#[test]
fn dropping_the_engine_under_load_ends_every_handle_with_an_error() {
    let (engine, _) = slow_engine(EngineConfig { mailbox: 4, ..config() }, Duration::from_millis(1));
    let handles = engine.submit_all((0..30).map(|i| Request::new([i], greedy(400))).collect()).unwrap();
    drop(engine);
    for handle in handles {
        assert_eq!(handle.wait(), Err(RequestError::Stopped));
    }
}

/// An engine whose forward passes wait while the gate is locked, with the gate.
fn gated_engine(config: EngineConfig) -> (Engine, Arc<parking_lot::Mutex<()>>) {
    let gate = Arc::new(parking_lot::Mutex::new(()));
    let inner = Arc::clone(&gate);
    let hook = move |_: &Batch, logits: Option<&mut Logits>| {
        if logits.is_none() {
            drop(inner.lock());
        }
        Ok(())
    };
    let model = HashModel::new(VOCAB, CONTEXT, limits()).with_hook(Box::new(hook));
    (Engine::start(model, config).unwrap(), gate)
}

/// The settings of an engine with one place.
fn one_place() -> EngineConfig {
    EngineConfig { max_batch_size: 1, ..config() }
}

/// A gated engine with one place, whose queue takes so many sequences and 10 tokens.
fn gated(max_queued_requests: usize) -> (Engine, Arc<parking_lot::Mutex<()>>) {
    gated_engine(EngineConfig { max_queued_requests, max_queued_tokens: 10, ..one_place() })
}

#[test]
fn requests_in_the_background_leave_half_of_the_queue_to_others() {
    let (engine, gate) = gated(4);
    let closed = gate.lock();
    let running = engine.submit(Request::new([1], greedy(3))).unwrap();
    let asked = |p: u32, priority| Request { priority, ..Request::new([p], greedy(3)) };
    let (urgent, background) = (Priority::Interactive, Priority::Background);
    let mut waiting = vec![engine.submit_timeout(asked(2, background), SOON).unwrap()];
    waiting.extend(engine.submit_timeout(asked(3, background), SOON));
    assert_eq!(engine.submit(asked(4, background)).err(), Some(SubmitError::QueueFull { limit: 2 }));
    waiting.extend([4, 5].map(|p| engine.submit(asked(p, urgent)).unwrap()));
    assert_eq!(engine.submit(asked(6, urgent)).err(), Some(SubmitError::QueueFull { limit: 4 }));
    drop(closed);
    assert_eq!(tokens(running), alone(&[1], &greedy(3)));
    for (p, handle) in (2..).zip(waiting) {
        assert_eq!(tokens(handle), alone(&[p], &greedy(3)));
    }
}

#[test]
fn a_full_queue_refuses_or_waits_as_requested() {
    let (engine, gate) = gated(2);
    let closed = gate.lock();
    let running = engine.submit(Request::new([1], greedy(3))).unwrap();
    let start = Instant::now();
    // Once it has left the queue, two more fit.
    let waiting = [2, 3].map(|p| engine.submit_timeout(Request::new([p], greedy(3)), SOON).unwrap());
    assert_eq!(engine.submit(Request::new([4], greedy(3))).err(), Some(SubmitError::QueueFull { limit: 2 }));
    let patient = engine.submit_timeout(Request::new([4], greedy(3)), Duration::from_millis(20));
    assert_eq!(patient.err(), Some(SubmitError::QueueFull { limit: 2 }));
    assert!(start.elapsed() < SOON);
    drop(closed);
    assert_eq!(tokens(running), alone(&[1], &greedy(3)));
    for (p, handle) in [2, 3].into_iter().zip(waiting) {
        assert_eq!(tokens(handle), alone(&[p], &greedy(3)));
    }
    let long = engine.submit_timeout(Request::new([4; 30], greedy(3)), SOON).unwrap();
    assert_eq!(tokens(long), alone(&[4; 30], &greedy(3)), "a long prompt goes into an empty queue");
}

#[test]
fn a_stream_gives_tokens_in_order_and_then_its_end() {
    use futures_core::Stream;
    let (engine, _) = engine(EngineConfig { mailbox: 4, ..config() });
    let mut stream = engine.submit(Request::new([1, 2], greedy(50))).unwrap();
    until(|| engine.metrics().snapshot().get(Counter::Pauses) > 0);
    let updates = block_on(async {
        let mut updates = Vec::new();
        while let Some(update) =
            std::future::poll_fn(|cx| std::pin::Pin::new(&mut stream).poll_next(cx)).await
        {
            updates.push(update);
        }
        updates
    });
    let want = alone(&[1, 2], &greedy(50));
    for (i, (update, token)) in updates.iter().zip(&want).enumerate() {
        assert_eq!(*update, Update::Token { choice: 0, index: i, token: *token, logprobs: None });
    }
    assert!(matches!(&updates[50], Update::Ended { end: Ok(end), .. } if end.finish == FinishReason::Length));
}

#[test]
fn a_reader_that_stops_reading_pauses_its_request_and_fails_in_the_end() {
    let config = EngineConfig { mailbox: 4, slow_reader_timeout: Duration::from_secs(1), ..config() };
    let (engine, _) = engine(config);
    let asleep = engine.submit(Request::new([1, 2], greedy(400))).unwrap();
    let awake = engine.submit(Request::new([3], greedy(100))).unwrap();
    assert_eq!(tokens(awake), alone(&[3], &greedy(100)));
    idle(&engine);
    assert_eq!(asleep.wait(), Err(RequestError::SlowReader));
}

#[test]
fn a_batch_reads_all_its_answers_as_they_come() {
    // Read one after the other, the second answer would stay unread for 1.5 seconds.
    let config = EngineConfig { mailbox: 4, slow_reader_timeout: Duration::from_secs(1), ..config() };
    let (engine, _) = slow_engine(config, Duration::from_millis(10));
    let batch = [1, 2, 3].map(|token| (vec![token], greedy(150)));
    let results = bitnet_inference::names::process_batch(&engine, &batch);
    for (result, (prompt, config)) in results.into_iter().zip(&batch) {
        assert_eq!(result, Ok(alone(prompt, config)));
    }
}

#[test]
fn requests_submitted_in_turn_pause_when_their_caller_has_them_and_does_not_read() {
    let config = EngineConfig { mailbox: 4, slow_reader_timeout: Duration::from_millis(50), ..config() };
    // Slow enough for the mailbox to have its limit before the text ends.
    let (engine, _) = slow_engine(config, Duration::from_millis(1));
    let unread = engine.submit_all(vec![Request::new([1, 2], greedy(400))]).unwrap();
    until(|| engine.metrics().snapshot().get(Counter::Failed) == 1);
    for handle in unread {
        assert_eq!(handle.wait(), Err(RequestError::SlowReader));
    }
}

#[test]
fn a_request_that_takes_too_long_fails() {
    let (engine, _) = slow_engine(config(), Duration::from_millis(2));
    let timeout = Some(Duration::from_millis(30));
    let late = engine.submit(Request { timeout, ..Request::new([1], greedy(400)) }).unwrap();
    let other = engine.submit(Request::new([2], greedy(20))).unwrap();
    assert_eq!(late.wait(), Err(RequestError::Timeout));
    assert_eq!(tokens(other), alone(&[2], &greedy(20)));
}

#[test]
fn receiving_with_a_timeout_gives_up_in_time() {
    let (engine, gate) = gated_engine(config());
    let closed = gate.lock();
    let mut handle = engine.submit(Request::new([1], greedy(1))).unwrap();
    assert_eq!(handle.recv_timeout(Duration::from_millis(5)), Err(Elapsed));
    drop(closed);
    assert!(matches!(handle.recv_timeout(SOON), Ok(Some(Update::Token { .. }))));
}

#[test]
fn a_request_joins_between_the_steps_of_another() {
    let (engine, gate) = gated_engine(config());
    let closed = gate.lock();
    let long = engine.submit(Request::new([1], greedy(100))).unwrap();
    until(|| engine.queue().sequences == 0);
    let short = engine.submit(Request::new([2], greedy(5))).unwrap();
    drop(closed);
    assert_eq!(tokens(short), alone(&[2], &greedy(5)));
    assert_eq!(tokens(long), alone(&[1], &greedy(100)));
    assert_eq!(engine.metrics().snapshot().measure(Measure::BatchSize).max, 2.0);
}

#[test]
fn counters_agree_with_what_clients_see() {
    let (engine, counts) = engine(config());
    let mix = mixed(30, 9);
    let requests = mix.iter().map(|(p, c)| Request::new(p.clone(), c.clone())).collect();
    let seen: usize = engine.submit_all(requests).unwrap().into_iter().map(|h| tokens(h).len()).sum();
    idle(&engine);
    let snapshot = engine.metrics().snapshot();
    assert_eq!(snapshot.get(Counter::GeneratedTokens), seen as u64);
    assert_eq!(snapshot.get(Counter::Requests), 30);
    assert_eq!(snapshot.get(Counter::Finished), 30);
    assert_eq!(snapshot.get(Counter::PromptTokens), mix.iter().map(|m| m.0.len() as u64).sum::<u64>());
    assert_eq!(snapshot.get(Counter::Steps), counts.forwards.load(Relaxed) as u64);
    assert_eq!(snapshot.measure(Measure::EndToEnd).count, 30);
    assert_eq!(snapshot.measure(Measure::StepTokens).sum, counts.tokens.load(Relaxed) as f64);
    assert_eq!(snapshot.measure(Measure::CancelToFree).mean(), None, "nothing was cancelled");
    engine.metrics().reset();
    assert_eq!(engine.metrics().snapshot().measure(Measure::FirstToken).mean(), None);
}

/// A recorder that adds up counts.
#[derive(Default)]
struct Sums(parking_lot::Mutex<[u64; 2]>);

impl Recorder for Sums {
    fn add(&self, _: Counter, by: u64) {
        self.0.lock()[0] += by;
    }

    fn observe(&self, _: Measure, _: f64) {
        self.0.lock()[1] += 1;
    }
}

#[test]
fn every_measure_has_one_value_for_each_event() {
    let sums = Arc::new(Sums::default());
    let (engine, counts) = engine(EngineConfig { recorder: Some(sums.clone()), ..config() });
    let requests = (1..=6).map(|i| Request::new([i as u32; 10], greedy(10 * i))).collect();
    engine.submit_all(requests).unwrap().into_iter().for_each(|h| drop(h.wait().unwrap()));
    engine.shutdown(SOON);
    let snapshot = engine.metrics().snapshot();
    let (steps, tokens) = (counts.forwards.load(Relaxed) as u64, 10 * (1 + 2 + 3 + 4 + 5 + 6));
    let decode_steps = snapshot.measure(Measure::DecodeCompute).count;
    let expected = [
        (Measure::QueueTime, 6),
        (Measure::FirstToken, 6),
        (Measure::InterToken, tokens - 6),
        (Measure::EndToEnd, 6),
        (Measure::StepPlan, steps),
        (Measure::StepPack, steps),
        (Measure::StepForward, steps),
        (Measure::StepSample, steps),
        (Measure::StepCommit, steps),
        (Measure::StepDistribute, steps),
        (Measure::BatchSize, steps),
        (Measure::StepTokens, steps),
        // The first steps train the model and have no prediction.
        (Measure::StepModelError, steps - 8),
    ];
    for (measure, count) in expected {
        let values = snapshot.measure(measure);
        assert_eq!((values.count, values.buckets.iter().sum()), (count, count), "{measure:?}");
        assert!(values.max <= values.sum, "{measure:?}: {values:?}");
    }
    assert_eq!(snapshot.get(Counter::PrefillTokens), 6 * 10);
    assert_eq!(snapshot.measure(Measure::BatchSize).sum, counts.rows.load(Relaxed) as f64);
    // A step with prompt tokens is not a decode step.
    assert!(decode_steps < steps);
    let rate = snapshot.get(Counter::DecodeTokens) as f64 / snapshot.measure(Measure::DecodeCompute).sum;
    assert_eq!(snapshot.decode_tokens_per_second(), Some(rate));
    let all = [Counter::Requests, Counter::Finished, Counter::PromptTokens, Counter::GeneratedTokens]
        .into_iter()
        .chain([Counter::Steps, Counter::PrefillTokens, Counter::DecodeTokens]);
    let observed = expected.iter().map(|(_, count)| count).sum::<u64>() + decode_steps;
    assert_eq!(*sums.0.lock(), [all.map(|counter| snapshot.get(counter)).sum(), observed]);
}

/// A recorder that keeps how many tokens had been counted at the end of each choice.
#[derive(Default)]
struct Ends(parking_lot::Mutex<(u64, Vec<u64>)>);

impl Recorder for Ends {
    fn add(&self, counter: Counter, by: u64) {
        let (tokens, ends) = &mut *self.0.lock();
        match counter {
            Counter::GeneratedTokens => *tokens += by,
            Counter::Finished => ends.push(*tokens),
            _ => {}
        }
    }

    fn observe(&self, _: Measure, _: f64) {}
}

#[test]
fn tokens_are_counted_before_the_end_that_follows_them() {
    let ends = Arc::new(Ends::default());
    let (engine, _) = engine(EngineConfig { recorder: Some(ends.clone()), ..config() });
    for new in [1, 5, 3] {
        assert_eq!(tokens(engine.submit(Request::new([1, 2], greedy(new))).unwrap()).len(), new);
    }
    engine.shutdown(SOON);
    assert_eq!(ends.0.lock().1, [1, 6, 9]);
}

#[test]
fn device_values_that_a_model_does_not_report_are_unknown() {
    let (engine, _) = engine(config());
    assert_eq!(tokens(engine.submit(Request::new([1, 2], greedy(3))).unwrap()).len(), 3);
    idle(&engine);
    assert_eq!(engine.status().device, None);
    for part in [Measure::KernelLaunch, Measure::MemoryTransfer, Measure::DeviceCompute] {
        assert_eq!(engine.metrics().snapshot().measure(part).mean(), None, "{part:?}");
    }
}

#[test]
fn paused_requests_cached_blocks_and_the_time_to_a_free_block_are_reported() {
    let (engine, _) = engine(EngineConfig { mailbox: 4, ..config() });
    let asleep = engine.submit(Request::new([1; 70], greedy(100))).unwrap();
    until(|| engine.status().paused == 1);
    assert_eq!(engine.status().kv_cached, 0, "its first block is in use");
    drop(asleep);
    until(|| engine.status().paused == 0);
    idle(&engine);
    assert_eq!((engine.status().kv_used, engine.status().kv_cached), (0, 1));
    let snapshot = engine.metrics().snapshot();
    assert_eq!((snapshot.measure(Measure::CancelToFree).count, snapshot.get(Counter::Cancelled)), (1, 1));
}

#[test]
fn each_kind_of_fault_is_counted_as_such() {
    let hook = |batch: &Batch, logits: Option<&mut Logits>| {
        let with =
            |token| batch.runs().iter().position(|r| r.start == 0 && batch.tokens()[r.tokens.start] == token);
        match logits {
            None if with(49).is_some() => Err(planted()),
            None if with(48).is_some() => panic!("planted"),
            Some(logits) => {
                with(47).into_iter().for_each(|row| logits.row_mut(row)[3] = f32::NAN);
                Ok(())
            }
            None => Ok(()),
        }
    };
    let model = HashModel::new(VOCAB, CONTEXT, limits()).with_hook(Box::new(hook));
    let engine = Engine::start(model, config()).unwrap();
    let handles = engine.submit_all([1, 49, 48, 47].map(|p| Request::new([p], greedy(2))).to_vec()).unwrap();
    assert_eq!(handles.into_iter().filter_map(|handle| handle.wait().ok()).count(), 1);
    engine.shutdown(SOON);
    let faults = engine.status().faults;
    assert_eq!((faults.forward, faults.sampling, faults.constraint, faults.panics), (1, 1, 0, 1));
    assert_eq!(faults.failed_sequences(), engine.metrics().snapshot().get(Counter::Failed));
    assert!(faults.retries > 0 && faults.retries <= faults.failed_forwards + 2, "{faults:?}");
}

#[test]
fn errors_can_be_sent_between_threads() {
    fn check<T: std::error::Error + Send + Sync + 'static>() {}
    check::<SubmitError>();
    check::<RequestError>();
    check::<StartError>();
    check::<ForwardError>();
    check::<InvalidRequest>();
    check::<GenerationError>();
    check::<BatchError>();
    check::<BenchmarkError>();
    check::<CudaError>();
    check::<RecordError>();
    check::<GenerationError>();
    check::<SampleError>();
    check::<ConstraintError>();
    check::<EmptySequence>();
    check::<Elapsed>();
    check::<InvalidBatching>();
    check::<QueueError>();
}

/// Panics for one token, as a tokenizer's table might.
struct Torn;

impl TokenText for Torn {
    fn append_bytes(&self, token: u32, out: &mut Vec<u8>) {
        assert_ne!(token, 13, "planted");
        out.push(b'a' + token as u8);
    }
}

#[test]
fn after_a_panic_in_the_bookkeeping_the_engine_fails_what_runs_and_serves_the_rest() {
    let (engine, _) = engine(EngineConfig { text: Some(Arc::new(Torn)), max_draft: 2, ..config() });
    let stops = |logit_bias| GenerationConfig { stop_strings: vec!["zz".into()], logit_bias, ..greedy(20) };
    for round in 0..3 {
        let poisoned = Request::new([1, 2], stops(vec![(13, 100.0)]));
        let failed = engine.submit(poisoned).unwrap().wait();
        assert!(
            matches!(&failed, Err(RequestError::Panic { message }) if message.contains("planted")),
            "{failed:?}"
        );
        let fine = Request::new([3, round], stops(vec![(13, -100.0)]));
        let done = engine.submit(fine).unwrap().wait().unwrap();
        assert_eq!(done.choices[0].tokens.len(), 20);
        assert_eq!(engine.metrics().snapshot().get(Counter::Restarts), u64::from(round) + 1);
    }
    assert!(engine.shutdown(SOON).complete);
    assert_eq!(engine.status().kv_used, 0);
    let prompts = engine.metrics().snapshot().get(Counter::PromptTokens);
    assert_eq!(engine.status().scheduler.prefix_tokens, prompts, "counts go on where they were");
}

/// A recorder that panics at a prompt of thirteen tokens.
struct Superstitious;

impl Recorder for Superstitious {
    fn add(&self, counter: Counter, by: u64) {
        assert!((counter, by) != (Counter::PromptTokens, 13), "planted");
    }

    fn observe(&self, _: Measure, _: f64) {}
}

#[test]
fn requests_grouped_with_a_panicking_one_are_served_after_it() {
    let (engine, _) = engine(EngineConfig { recorder: Some(Arc::new(Superstitious)), ..config() });
    let group = [13, 4, 5].map(|length| Request::new(vec![1; length], greedy(6))).to_vec();
    let mut handles = engine.submit_all(group).unwrap().into_iter();
    let failed = handles.next().unwrap().wait();
    assert_eq!(failed, Err(RequestError::Panic { message: "planted".into() }));
    for (handle, length) in handles.zip([4, 5]) {
        assert_eq!(tokens(handle), alone(&vec![1; length], &greedy(6)));
    }
    assert_eq!(engine.metrics().snapshot().get(Counter::Failed), 1);
}

#[test]
fn a_restarted_scheduler_keeps_what_it_has_learned_and_counted() {
    let sizing = BatchSizing::Auto { ttft: Duration::from_millis(200), itl: Duration::from_millis(10) };
    let mut scheduler = scheduler(sizing);
    let load = |decodes| StepLoad {
        decodes,
        context: 10 * decodes,
        prefill: decodes % 3 * 16,
        ..StepLoad::default()
    };
    (0..40).for_each(|i| scheduler.learn(load(1 + i % 7), 900 * (1 + i as u64 % 7)));
    let mut stepper = Stepper::new(Box::new(HashModel::new(VOCAB, CONTEXT, limits())));
    scheduler.submit(0, 1, Arc::new(Request::new([1, 2, 3], greedy(5))), 0);
    let (mut plan, mut outcome) = (Plan::default(), StepOutcome::default());
    assert!(scheduler.plan(0, &mut plan));
    stepper.run(&scheduler, &plan, &mut outcome);
    scheduler.commit(0, &plan, &mut outcome);
    let restarted = scheduler.restarted();
    assert!(restarted.is_empty() && restarted.pool().available() == 64 && !scheduler.is_empty());
    assert_eq!(restarted.counts(), scheduler.counts());
    assert_eq!(restarted.counts().prefix_tokens, 3);
    let predicted = |s: &Scheduler| s.pace().model.predict(load(5)).unwrap();
    assert_eq!(predicted(&restarted), predicted(&scheduler));
}

#[test]
fn as_much_of_a_large_group_enters_the_queue_as_others_leave_room_for() {
    let (engine, gate) = gated_engine(EngineConfig { max_queued_requests: 4, ..one_place() });
    let closed = gate.lock();
    let first = engine.submit(Request::new([1], greedy(500))).unwrap();
    until(|| engine.queue().sequences == 0);
    let second = engine.submit(Request::new([2], greedy(1))).unwrap();
    std::thread::scope(|scope| {
        let group = scope.spawn(|| engine.submit_all((0..9).map(|i| Request::new([i], greedy(2))).collect()));
        until(|| engine.queue().sequences == 4);
        first.cancel();
        drop(closed);
        assert_eq!(tokens(second).len(), 1);
        assert_eq!(group.join().unwrap().unwrap().into_iter().map(|h| tokens(h).len()).sum::<usize>(), 18);
    });
}

/// A recorder that keeps the reports of stalled steps.
#[derive(Default)]
struct Stalls(parking_lot::Mutex<Vec<String>>);

impl Recorder for Stalls {
    fn add(&self, _: Counter, _: u64) {}

    fn observe(&self, _: Measure, _: f64) {}

    fn stalled(&self, age: Duration, plans: &str) {
        assert!(age >= Duration::from_millis(50));
        self.0.lock().push(plans.to_owned());
    }
}

#[test]
fn a_forward_pass_that_hangs_is_noticed_reported_once_and_not_waited_for() {
    let stalls = Arc::new(Stalls::default());
    let config = EngineConfig {
        step_limit: Duration::from_millis(50),
        recorder: Some(Arc::clone(&stalls) as _),
        ..one_place()
    };
    let (engine, gate) = gated_engine(config);
    assert_eq!((engine.status().step_age, engine.stalled()), (None, None));
    assert_eq!(tokens(engine.submit(Request::new([1, 2, 3], greedy(2))).unwrap()).len(), 2);
    idle(&engine);
    assert_eq!(engine.stalled(), None);
    // On a busy machine even these steps may have been long.
    stalls.0.lock().clear();
    let closed = gate.lock();
    let handle = engine.submit(Request::new([4, 5, 6, 7], greedy(3))).unwrap();
    until(|| engine.stalled().is_some());
    assert!(engine.status().step_age >= Some(Duration::from_millis(50)));
    until(|| !stalls.0.lock().is_empty());
    std::thread::sleep(Duration::from_millis(100));
    let told = stalls.0.lock().clone();
    assert_eq!(told.len(), 1, "once a step: {told:?}");
    let plans: Vec<&str> = told[0].split("; ").collect();
    assert_eq!(plans.len(), 3, "{plans:?}");
    assert!(plans[0].starts_with("step 0: 0 decodes, 0 drafts, 3 prompt tokens"), "{plans:?}");
    assert!(plans[1].contains("1 decodes") && plans[1].contains("request 0.0 tokens 3..4"), "{plans:?}");
    assert!(plans[2].contains("running") && plans[2].contains("request 1.0 tokens 0..4"), "{plans:?}");
    let begun = Instant::now();
    assert!(!engine.shutdown(Duration::from_millis(20)).complete);
    drop(engine);
    assert!(begun.elapsed() < SOON);
    // If it returns after all, its requests end.
    drop(closed);
    assert_eq!(handle.wait(), Err(RequestError::Stopped));
}

fn several(count: u32, n: usize) -> Vec<Request> {
    (0..count).map(|i| Request::new([i, 1, 2], GenerationConfig { n, ..greedy(3) })).collect()
}

#[test]
fn requests_that_belong_together_enter_the_queue_together_or_not_at_all() {
    let (engine, gate) = gated_engine(EngineConfig { max_queued_requests: 4, ..one_place() });
    let closed = gate.lock();
    let running = engine.submit(Request::new([1], greedy(3))).unwrap();
    until(|| engine.queue().sequences == 0);
    let first = engine.submit_together(several(2, 1)).unwrap();
    let full = SubmitError::QueueFull { limit: 4 };
    assert_eq!(engine.submit_together(several(3, 1)).err(), Some(full.clone()));
    assert_eq!(engine.queue().sequences, 2, "none of the three has entered");
    let patience = Duration::from_millis(20);
    assert_eq!(engine.submit_together_timeout(several(3, 1), patience).err(), Some(full));
    let never = SubmitError::NeverFits { what: "choices", asked: 5, limit: 4 };
    assert_eq!(engine.submit_together(several(5, 1)).err(), Some(never));
    let second = engine.submit_together(several(2, 1)).unwrap();
    drop(closed);
    let third = engine.submit_together_timeout(several(4, 1), SOON).unwrap();
    for (i, handle) in first.into_iter().chain(second).chain(third).enumerate() {
        let i = [0, 1, 0, 1, 0, 1, 2, 3][i];
        assert_eq!(tokens(handle), alone(&[i, 1, 2], &greedy(3)));
    }
    assert_eq!(tokens(running).len(), 3);
    assert_eq!(engine.metrics().snapshot().get(Counter::Requests), 9);
    assert_eq!(engine.metrics().snapshot().get(Counter::Rejected), 3 + 3 + 5);
    assert!(engine.submit_together(vec![]).unwrap().is_empty());
}

#[test]
fn prompts_that_belong_together_and_exceed_the_backlog_never_fit() {
    let (engine, _) = engine(EngineConfig { max_queued_tokens: 8, ..config() });
    let never = SubmitError::NeverFits { what: "prompt tokens", asked: 9, limit: 8 };
    assert_eq!(engine.submit_together(several(3, 1)).err(), Some(never));
    assert_eq!(engine.submit_together(several(2, 1)).unwrap().len(), 2);
}

#[test]
fn every_choice_counts_as_a_sequence_in_the_queue_and_its_prompt_once() {
    let (engine, gate) = gated_engine(EngineConfig { max_queued_requests: 6, ..one_place() });
    let closed = gate.lock();
    let running = engine.submit(Request::new([1], greedy(3))).unwrap();
    until(|| engine.queue().sequences == 0);
    let four = engine.submit_together(several(1, 4)).unwrap();
    assert_eq!((engine.queue().sequences, engine.queue().tokens), (4, 3));
    assert_eq!(engine.submit_together(several(1, 3)).err(), Some(SubmitError::QueueFull { limit: 6 }));
    let never = SubmitError::NeverFits { what: "choices", asked: 7, limit: 6 };
    assert_eq!(engine.submit_all(several(1, 7)).err(), Some(never));
    drop(four);
    drop(closed);
    until(|| engine.queue().sequences == 0);
    assert_eq!(engine.queue().tokens, 0, "a cancelled choice leaves the queue");
    assert_eq!(tokens(running).len(), 3);
}

#[test]
fn submitting_asynchronously_waits_for_room_without_holding_its_thread() {
    let (engine, gate) = gated_engine(EngineConfig { max_queued_requests: 2, ..one_place() });
    let closed = gate.lock();
    let running = engine.submit(Request::new([1], greedy(3))).unwrap();
    until(|| engine.queue().sequences == 0);
    let mut later = std::pin::pin!(engine.submit_all_async(several(9, 1)));
    assert_eq!(engine.queue().sequences, 2, "what fits is under way before the future is polled");
    let waker = std::task::Waker::noop();
    assert!(later.as_mut().poll(&mut std::task::Context::from_waker(waker)).is_pending());
    drop(closed);
    let handles = block_on(later).unwrap();
    assert_eq!(tokens(running).len(), 3);
    for (i, handle) in (0..9).zip(handles) {
        assert_eq!(tokens(handle), alone(&[i, 1, 2], &greedy(3)));
    }
    // Dropped while it waits, it cancels the requests that had entered; after a shutdown it ends.
    let (closed, held) = (gate.lock(), engine.submit(Request::new([1], greedy(3))).unwrap());
    until(|| engine.queue().sequences == 0);
    drop(engine.submit_all_async(several(9, 1)));
    let waiting = engine.submit_all_async(several(9, 1));
    std::thread::scope(|scope| {
        let ended = scope.spawn(|| block_on(waiting).err());
        let shutdown = scope.spawn(|| engine.shutdown(SOON));
        assert_eq!(ended.join().unwrap(), Some(SubmitError::Draining));
        drop(closed);
        shutdown.join().unwrap();
    });
    assert_eq!(tokens(held).len(), 3);
}

#[test]
fn infinite_limits_are_no_limits() {
    let most = usize::MAX;
    let (engine, _) = engine(EngineConfig {
        max_batch_size: most,
        max_queued_requests: most,
        max_queued_tokens: most,
        max_draft: most,
        ..config()
    });
    assert_eq!(tokens(engine.submit(Request::new([1, 2], greedy(9))).unwrap()).len(), 9);
}

#[test]
fn a_reader_that_falls_behind_again_is_waited_for_again() {
    let each = Duration::from_micros(200);
    let (engine, _) = slow_engine(EngineConfig { mailbox: 4, ..config() }, each);
    let config = GenerationConfig { n: 3, temperature: 1.0, ..greedy(60) };
    let mut handle = engine.submit(Request::new([1, 2], config)).unwrap();
    let mut seen = 0;
    while handle.recv().is_some() {
        seen += 1;
        if seen % 7 == 0 {
            std::thread::sleep(Duration::from_millis(3));
        }
    }
    assert_eq!(seen, 3 * 61);
    // Without a pause each time it filled, the mailbox would have held most of the text at once.
    assert!(engine.metrics().snapshot().get(Counter::Pauses) >= 5);
}

#[test]
fn an_engine_without_room_for_anything_does_not_start() {
    let start = |config| Engine::start(HashModel::new(VOCAB, CONTEXT, limits()), config).err();
    let zero = EngineConfig { max_batch_size: 0, ..config() };
    assert_eq!(start(zero), Some(StartError::Zero { field: "max_batch_size" }));
    let eos = EngineConfig { eos: Some(vec![50]), ..config() };
    assert_eq!(start(eos), Some(StartError::UnknownEos { token: 50, vocab: VOCAB }));
}

#[test]
fn a_thousand_cancellations_lose_repeat_and_leak_nothing() {
    let (engine, _) = engine(EngineConfig { max_draft: 3, ..config() });
    let mix_of = mixed(1000, 77);
    std::thread::scope(|scope| {
        for (part, requests) in mix_of.chunks(250).enumerate() {
            let engine = &engine;
            scope.spawn(move || {
                for (i, (prompt, config)) in requests.iter().enumerate() {
                    let request = Request::new(prompt.clone(), config.clone());
                    let mut handle = engine.submit_timeout(request, SOON).unwrap();
                    let read = mix(part as u64, i as u64) as usize % 8;
                    let got: Vec<u32> = (handle.by_ref().take(read))
                        .filter_map(|u| if let Update::Token { token, .. } = u { Some(token) } else { None })
                        .collect();
                    assert!(alone(prompt, config).starts_with(&got));
                }
            });
        }
    });
    idle(&engine);
    assert_eq!(engine.status().kv_used, 0);
    let snapshot = engine.metrics().snapshot();
    let ended = [Counter::Finished, Counter::Cancelled, Counter::Failed].map(|c| snapshot.get(c));
    assert_eq!((ended.iter().sum::<u64>(), ended[2]), (1000, 0));
}

#[test]
fn calibration_learns_the_times_of_steps_before_any_request() {
    let hook = |batch: &Batch, logits: Option<&mut Logits>| {
        // Only the highest logits are looked at.
        assert!(batch.wanted().iter().all(|&wanted| wanted == Wanted::Top(1)));
        if logits.is_none() {
            std::thread::sleep(Duration::from_millis(2) * batch.tokens().len() as u32);
        }
        Ok(())
    };
    let model = HashModel::new(VOCAB, CONTEXT, limits()).with_hook(Box::new(hook));
    let mut stepper = Stepper::new(Box::new(model));
    let mut learned = || {
        let mut times = StepModel::default();
        stepper.calibrate(16, |load, micros| times.observe(load, micros));
        [8, 16].map(|decodes| {
            let load = StepLoad { decodes, context: 32 * decodes, ..StepLoad::default() };
            times.predict(load).unwrap()
        })
    };
    // A step that a busy machine delays is learned as well, so the best of three counts.
    let of = [(); 3].map(|()| learned());
    assert!(of.iter().any(|&[of8, of16]| of8 > 12e3 && of16 > 24e3 && of16 > 1.5 * of8), "{of:?}");
}

#[test]
fn automatic_sizing_gives_the_same_tokens() {
    let sizing = BatchSizing::Auto { ttft: Duration::from_millis(50), itl: Duration::from_micros(50) };
    let (engine, _) = engine(EngineConfig { sizing, ..config() });
    let mix = mixed(40, 3);
    let requests = mix.iter().map(|(prompt, config)| Request::new(prompt.clone(), config.clone())).collect();
    for (handle, (prompt, config)) in engine.submit_all(requests).unwrap().into_iter().zip(&mix) {
        assert_eq!(tokens(handle), alone(prompt, config));
    }
}

fn planted() -> ForwardError {
    ForwardError::StepTooLarge { what: "planted", actual: 1, limit: 0 }
}

#[test]
fn an_infinite_time_is_no_limit() {
    let forever = EngineConfig { mailbox: 1, slow_reader_timeout: Duration::MAX, ..config() };
    // One microsecond more than the engine's clock can hold.
    let wraps = Duration::from_micros(u64::MAX) + Duration::from_micros(1);
    for config in [forever.clone(), EngineConfig { slow_reader_timeout: wraps, ..forever }] {
        let (engine, _) = engine(config);
        let request = Request { timeout: Some(Duration::MAX), ..Request::new([1, 2], greedy(20)) };
        let mut handle = engine.submit_timeout(request, Duration::MAX).unwrap();
        // Long enough for the engine to check for slow readers.
        std::thread::sleep(Duration::from_millis(20));
        assert!(matches!(handle.recv_timeout(Duration::MAX), Ok(Some(Update::Token { .. }))));
        assert_eq!(tokens(handle).len(), 19);
        let _late = engine.submit(Request::new([1, 2], greedy(1))).unwrap();
        assert!(engine.shutdown(Duration::MAX).complete);
    }
}

#[test]
fn the_time_between_tokens_is_that_of_one_choice() {
    let each = Duration::from_millis(5);
    let (engine, _) = slow_engine(config(), each);
    let config = GenerationConfig { n: 3, temperature: 1.0, ..greedy(4) };
    engine.submit(Request::new([1, 2], config)).unwrap().wait().unwrap();
    let snapshot = engine.metrics().snapshot();
    let (first, between) = (snapshot.measure(Measure::FirstToken), snapshot.measure(Measure::InterToken));
    assert_eq!((first.count, between.count), (3, 3 * 3));
    assert!(between.mean().unwrap() >= each.as_secs_f64() * 0.9, "{between:?}");
}

#[test]
fn a_rejected_draft_is_no_decoded_token() {
    let (engine, _) = engine(EngineConfig { max_draft: 4, ..config() });
    // Only two tokens, so that drafts are frequent and often wrong.
    let config = GenerationConfig { logit_bias: vec![(1, 100.0), (2, 100.0)], ..greedy(100) };
    assert_eq!(tokens(engine.submit(Request::new([1, 2], config)).unwrap()).len(), 100);
    engine.shutdown(SOON);
    let counts = engine.status().scheduler;
    assert!(counts.drafted > counts.accepted, "{counts:?}");
    assert_eq!(engine.metrics().snapshot().get(Counter::DecodeTokens), 99);
}
