//! Many generators that generate one token at a time, in one batch.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

use bitnet_hash_model::{Counts, Oracle};
use bitnet_inference::generation::{
    AutoregressiveGenerator, BatchHandle, BatchProcessor, BatchQueue, BatchRequest, InvalidBatching,
    QueueError,
};
use bitnet_inference::{
    End, EngineConfig, FinishReason, GenerationConfig, GenerationError, RequestError, StartError, TokenText,
    Update,
    metrics::{Counter, Distribution, Measure},
    names::{PaddedBatch, blocking},
};
use bitnet_model::ForwardError;
use crossbeam_channel::{Receiver, bounded};

use crate::support::*;

const WAIT: Duration = Duration::from_millis(40);
/// Longer than any test.
const HOUR: Duration = Duration::from_secs(3600);

type Answer = Receiver<Result<Option<u32>, GenerationError>>;

fn request(token: u32) -> (BatchRequest, Answer) {
    let (reply, answer) = bounded(1);
    let config = greedy(5);
    (BatchRequest { tokens: vec![token], step: 0, config, reply, submitted_at: Instant::now() }, answer)
}

fn fill(queue: &BatchQueue, count: usize) -> Vec<Answer> {
    let send = |i| {
        let (request, answer) = request(i as u32);
        queue.submit(request).unwrap();
        answer
    };
    (0..count).map(send).collect()
}

#[test]
fn a_maximum_batch_size_of_0_is_refused() {
    assert_eq!(BatchProcessor::new(0, WAIT).err(), Some(InvalidBatching));
}

/// A processor on an engine of eight places.
fn processing(max_batch: usize, wait: Duration, capacity: usize) -> (BatchHandle, Arc<Counts>) {
    let processor = BatchProcessor::with_capacity(max_batch, wait, capacity).unwrap();
    let (engine, counts) = engine(config());
    (processor.start_processing(Arc::new(engine)).unwrap(), counts)
}

fn batch_sizes(batching: &BatchHandle) -> Distribution {
    *batching.engine.metrics().snapshot().measure(Measure::BatchSize)
}

fn first(token: u32) -> Result<Option<u32>, GenerationError> {
    Ok(alone(&[token], &greedy(1)).first().copied())
}

#[test]
fn a_full_batch_starts_immediately_and_never_exceeds_the_maximum() {
    let (batching, _) = processing(3, HOUR, 9);
    let answers = fill(&batching.queue, 7);
    for (token, answer) in answers[..6].iter().enumerate() {
        assert_eq!(answer.recv().unwrap(), first(token as u32));
    }
    let sizes = batch_sizes(&batching);
    assert_eq!((sizes.count, sizes.sum, sizes.max), (2, 6.0, 3.0));
    assert_eq!(batching.queue.waiting(), 1, "the seventh waits for two others");
    assert!(answers[6].is_empty());
}

#[test]
fn the_wait_of_a_partial_batch_counts_from_its_first_request() {
    // So long that both requests come within it on a busy machine.
    let wait = Duration::from_secs(1);
    let (batching, _) = processing(3, wait, 9);
    let start = Instant::now();
    let answers = fill(&batching.queue, 2);
    assert_eq!(answers[0].recv().unwrap(), first(0));
    assert!(start.elapsed() >= wait, "{:?}", start.elapsed());
    assert_eq!(answers[1].recv().unwrap(), first(1));
    let sizes = batch_sizes(&batching);
    assert_eq!((sizes.count, sizes.max), (1, 2.0), "both in one step");
    let (batching, _) = processing(3, wait, 9);
    let (request, answer) = request(0);
    let earlier = request.submitted_at.checked_sub(wait).unwrap();
    batching.queue.submit(BatchRequest { submitted_at: earlier, ..request }).unwrap();
    assert_eq!(answer.recv().unwrap(), first(0), "it has waited already");
}

#[test]
fn a_full_queue_is_reported() {
    let (batching, _) = processing(4, HOUR, 2);
    let queue = batching.queue.clone();
    let _answers = fill(&queue, 2);
    assert_eq!(queue.try_submit(request(1).0), Err(QueueError::Full));
    assert_eq!(queue.submit_timeout(request(1).0, Duration::from_millis(5)), Err(QueueError::Full));
    assert_eq!((queue.waiting(), batching.engine.queue().sequences), (2, 2), "one queue");
    drop(batching);
    assert_eq!(queue.submit(request(1).0), Err(QueueError::Stopped));
}

#[test]
fn a_shutdown_answers_what_waits_for_a_batch_and_refuses_what_waits_for_room() {
    let (batching, _) = processing(2, HOUR, 1);
    let answers = fill(&batching.queue, 1);
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| batching.queue.submit_timeout(request(1).0, HOUR));
        batching.engine.shutdown(Duration::MAX);
        assert_eq!(waiting.join().unwrap(), Err(QueueError::Stopped));
    });
    assert_eq!(answers[0].recv().unwrap(), first(0));
}

#[test]
fn a_submitter_waits_for_room_and_gets_in() {
    let (batching, _) = processing(1, HOUR, 1);
    for (token, answer) in fill(&batching.queue, 30).into_iter().enumerate() {
        assert_eq!(answer.recv().unwrap(), first(token as u32));
    }
    assert_eq!(batch_sizes(&batching).max, 1.0);
}

#[test]
fn an_invalid_request_gets_its_error_and_disturbs_no_batch() {
    let (batching, _) = processing(2, HOUR, 9);
    let (wrong, refused) = request(VOCAB as u32);
    batching.queue.submit(wrong).unwrap();
    assert!(matches!(refused.recv().unwrap(), Err(GenerationError::Submit(_))));
    assert_eq!(batching.queue.waiting(), 0);
    for (token, answer) in fill(&batching.queue, 2).into_iter().enumerate() {
        assert_eq!(answer.recv().unwrap(), first(token as u32));
    }
}

/// Takes the tokens of a text; calls `pause` after the first `before`.
fn text_with_a_pause(batching: &BatchHandle, prompt: u32, before: usize, pause: impl Fn()) -> Vec<u32> {
    let generator = AutoregressiveGenerator::new(batching.clone(), greedy(40));
    let mut text = vec![prompt];
    while text.len() <= 40 {
        if text.len() == 1 + before {
            pause();
        }
        let step = text.len() - 1;
        text.push(generator.generate_token_batched(&text, step).unwrap().unwrap());
    }
    text.split_off(1)
}

#[test]
fn two_texts_read_token_by_token_are_computed_two_at_a_time() {
    // Each token waits for the other text's next one, however long that takes.
    let (batching, counts) = processing(2, HOUR, 9);
    let barrier = Barrier::new(2);
    let requests = || batching.engine.metrics().snapshot().get(Counter::Requests);
    let texts = std::thread::scope(|scope| {
        // The first text takes one token alone, and its next ones when the second text has asked for its first.
        let first = scope.spawn(|| {
            text_with_a_pause(&batching, 1, 1, || {
                barrier.wait();
                until(|| requests() == 2);
            })
        });
        let second = scope.spawn(|| {
            text_with_a_pause(&batching, 2, 0, || {
                barrier.wait();
            })
        });
        [first, second].map(|text| text.join().unwrap())
    });
    assert_eq!(texts, [1, 2].map(|prompt| alone(&[prompt], &greedy(40))));
    let sizes = batch_sizes(&batching);
    assert_eq!((sizes.sum, sizes.max), (80.0, 2.0));
    // The first text is one or two tokens ahead, and the second one ends as much later.
    assert!((41..=42).contains(&sizes.count), "{} steps", sizes.count);
    assert_eq!(counts.widest.load(Relaxed), 2);
    assert_eq!(batching.engine.metrics().snapshot().get(Counter::Requests), 2, "each text is one request");
}

#[test]
fn a_text_whose_reader_is_slow_delays_the_others_by_the_wait_and_no_longer() {
    let wait = Duration::from_millis(5);
    let (batching, _) = processing(2, wait, 9);
    let slow = AutoregressiveGenerator::new(batching.clone(), greedy(40));
    let next = slow.generate_token_batched(&[1], 0).unwrap().unwrap();
    let start = Instant::now();
    let fast = AutoregressiveGenerator::new(batching.clone(), greedy(40));
    assert_eq!(by_tokens(&fast, &[2], 40, true), alone(&[2], &greedy(40)));
    assert!(start.elapsed() >= 39 * wait, "each token has waited for the other text: {:?}", start.elapsed());
    let sizes = batch_sizes(&batching);
    assert!(
        sizes.sum - (sizes.count as f64) <= 1.0,
        "the slow text is one token ahead of its reader: {sizes:?}"
    );
    assert_eq!(slow.generate_token_batched(&[1, next], 1), Ok(Some(alone(&[1], &greedy(2))[1])));
}

#[test]
fn a_text_that_is_not_read_for_long_is_let_go_and_continues_when_it_is_read() {
    let config = EngineConfig { slow_reader_timeout: Duration::from_millis(5), ..config() };
    let (engine, _) = engine(config);
    let batching = BatchProcessor::new(2, HOUR).unwrap().start_processing(Arc::new(engine)).unwrap();
    let generator = AutoregressiveGenerator::new(batching.clone(), greedy(20));
    let mut text = vec![3];
    for step in 0..20 {
        if step % 6 == 2 {
            let failed = || batching.engine.metrics().snapshot().get(Counter::Failed);
            let before = failed();
            until(|| failed() > before);
        }
        text.push(generator.generate_token_batched(&text, step).unwrap().unwrap());
    }
    assert_eq!(text[1..], alone(&[3], &greedy(20)));
    assert_eq!(batching.engine.queue().sequences, 0);
}

/// Continues a text token by token.
fn by_tokens(generator: &AutoregressiveGenerator, prompt: &[u32], most: usize, batched: bool) -> Vec<u32> {
    let mut tokens = prompt.to_vec();
    for step in 0..most {
        let next = if batched {
            generator.generate_token_batched(&tokens, step)
        } else {
            generator.generate_token_single(&tokens, step)
        };
        match next.unwrap() {
            Some(token) => tokens.push(token),
            None => break,
        }
    }
    tokens.split_off(prompt.len())
}

fn configs() -> Vec<GenerationConfig> {
    let sampled = |i: u64| GenerationConfig {
        max_new_tokens: 12,
        temperature: 1.2,
        repetition_penalty: 1.2,
        presence_penalty: 0.3,
        min_new_tokens: 2,
        seed: Some(i),
        ..GenerationConfig::default()
    };
    (0..6).map(sampled).collect()
}

fn running() -> (BatchHandle, Arc<Counts>) {
    let (engine, counts) = engine(config());
    (
        BatchProcessor::new(6, Duration::from_millis(20))
            .unwrap()
            .start_processing(Arc::new(engine))
            .unwrap(),
        counts,
    )
}

#[test]
fn generators_on_threads_share_their_steps_and_get_what_they_get_alone() {
    let (batching, counts) = running();
    std::thread::scope(|scope| {
        for (i, config) in configs().into_iter().enumerate() {
            let batching = batching.clone();
            scope.spawn(move || {
                let prompt = vec![i as u32 + 1; 3 + i];
                let generator = AutoregressiveGenerator::new(batching, config.clone());
                let want = alone(&prompt, &config);
                assert_eq!(by_tokens(&generator, &prompt, 12, true), want);
                assert_eq!(by_tokens(&generator, &prompt, 12, false), want);
                assert_eq!(generator.generate(&prompt).unwrap(), want);
            });
        }
    });
    assert!(counts.widest.load(Relaxed) > 1, "batches formed");
}

#[test]
fn a_text_that_is_asked_for_token_by_token_is_computed_once() {
    let (batching, counts) = running();
    let prompt: Vec<u32> = (0..100).map(|i| i % 48).collect();
    let generator = AutoregressiveGenerator::new(batching.clone(), greedy(120));
    let want = alone(&prompt, &greedy(120));
    assert_eq!(by_tokens(&generator, &prompt, 120, true), want);
    // Each token except the last goes through the model once; the last is never fed back.
    assert_eq!(counts.tokens.load(Relaxed), 100 + 119);
    let snapshot = batching.engine.metrics().snapshot();
    assert_eq!(snapshot.get(Counter::Requests), 1, "the text is one request");
    // A text that has ended stays ended, and another call computes nothing.
    let whole = [&prompt[..], &want].concat();
    assert_eq!(generator.generate_token_batched(&whole, 120), Ok(None));
    assert_eq!(counts.tokens.load(Relaxed), 100 + 119);
}

#[test]
fn a_text_that_its_caller_changes_continues_from_the_change() {
    let (batching, _) = running();
    let sampled = GenerationConfig { seed: Some(5), temperature: 1.0, presence_penalty: 0.5, ..greedy(40) };
    let generator = AutoregressiveGenerator::new(batching, sampled.clone());
    let token = |tokens: &[u32], step| generator.generate_token_batched(tokens, step).unwrap().unwrap();
    let single = |tokens: &[u32], step| generator.generate_token_single(tokens, step).unwrap().unwrap();
    let mut text = vec![1, 2, 3];
    for step in 0..30 {
        let next = token(&text, step);
        assert_eq!(next, single(&text, step), "step {step}");
        // From time to time, a different token than the one that was drawn.
        text.push(if step % 7 == 6 { (next + 1) % 40 } else { next });
    }
    // The same tokens with a different number of generated ones are a different request.
    assert_eq!(token(&text, 2), single(&text, 2));
}

#[test]
fn a_stop_string_ends_a_text_that_is_asked_for_token_by_token() {
    let (batching, _) = running();
    let plain = AutoregressiveGenerator::new(batching.clone(), greedy(30));
    let text = plain.generate(&[4, 4]).unwrap();
    let mut stop = Vec::new();
    text[10..12].iter().for_each(|&t| Letters.append_bytes(t, &mut stop));
    let stop_strings = vec![String::from_utf8(stop).unwrap()];
    let generator = AutoregressiveGenerator::new(batching, GenerationConfig { stop_strings, ..greedy(30) });
    let want = generator.generate(&[4, 4]).unwrap();
    assert!(want.len() <= 10, "{want:?}");
    assert_eq!(by_tokens(&generator, &[4, 4], 30, true), want);
}

#[test]
fn a_generators_stream_gives_tokens_in_order_and_why_they_end_and_dropping_it_cancels() {
    let sampled = GenerationConfig { seed: Some(3), temperature: 1.0, ..greedy(20) };
    let (batching, _) = running();
    let updates: Vec<Update> =
        AutoregressiveGenerator::new(batching, sampled.clone()).generate_stream(&[1, 2]).unwrap().collect();
    let want = alone(&[1, 2], &sampled);
    assert_eq!(updates.len(), want.len() + 1);
    for (index, (update, token)) in updates.iter().zip(want).enumerate() {
        assert_eq!(*update, Update::Token { choice: 0, index, token, logprobs: None });
    }
    let end = End {
        finish: FinishReason::Length,
        tail: vec![],
        end_token: None,
        thought_tokens: 0,
        cached_tokens: 0,
        predicted: None,
    };
    assert_eq!(updates.last(), Some(&Update::Ended { choice: 0, end: Ok(end), logits: None }));

    let (slow, _) = slow_engine(config(), Duration::from_millis(1));
    let batching = BatchProcessor::new(6, WAIT).unwrap().start_processing(Arc::new(slow)).unwrap();
    let generator = AutoregressiveGenerator::new(batching.clone(), greedy(400));
    assert_eq!(generator.generate_stream(&[1]).unwrap().take(3).count(), 3);
    until(|| batching.engine.metrics().snapshot().get(Counter::Cancelled) == 1);
    assert!(batching.engine.metrics().snapshot().get(Counter::GeneratedTokens) < 400);
}

#[test]
fn a_reply_that_nobody_waits_for_costs_the_others_nothing() {
    let (batching, _) = processing(4, WAIT, 9);
    let mut answers = fill(&batching.queue, 4);
    drop(answers.remove(1));
    for (token, answer) in [0, 2, 3].into_iter().zip(answers) {
        assert_eq!(answer.recv().unwrap(), first(token));
    }
    // The processor continues, and nothing is left over.
    let (later, answer) = request(9);
    batching.queue.submit(later).unwrap();
    assert_eq!(answer.recv().unwrap(), first(9));
    until(|| batching.engine.status().running + batching.engine.status().kv_used == 0);
}

#[test]
fn a_request_carries_its_step_and_configuration() {
    let (engine, _) = engine(config());
    let config = GenerationConfig { presence_penalty: 50.0, ..greedy(5) };
    let (reply, answer) = bounded(1);
    let want = alone(&[1, 2], &config);
    let tokens = [&[1, 2], &want[..2]].concat();
    let batch = vec![BatchRequest { tokens, step: 2, config, reply, submitted_at: Instant::now() }];
    BatchProcessor::process_batch(&engine, batch);
    assert_eq!(answer.recv().unwrap(), Ok(Some(want[2])));
    assert!(answer.recv().is_err(), "one reply, exactly");
}

/// A function from sequences to logits that equals the model of the other tests.
fn oracle(batch: &PaddedBatch) -> Vec<Vec<f32>> {
    let row = |i| {
        let (mut oracle, mut row) = (Oracle::default(), vec![0.0; VOCAB]);
        batch.row(i).iter().for_each(|&t| oracle.push(t));
        oracle.logits(&mut row);
        row
    };
    (0..batch.rows()).map(row).collect()
}

#[test]
fn any_function_over_a_batch_can_be_the_forward_pass() {
    let want = alone(&[3, 4, 5], &greedy(10));
    let widest = Arc::new(AtomicUsize::new(0));
    let seen = Arc::clone(&widest);
    let forward = move |batch: &PaddedBatch| {
        seen.fetch_max(batch.rows(), Relaxed);
        Ok(oracle(batch))
    };
    let sync = BatchProcessor::new(4, WAIT).unwrap().start_processing_with(VOCAB, CONTEXT, forward).unwrap();
    let wait_a_little = blocking(|batch: PaddedBatch| async move {
        let mut polled = false;
        std::future::poll_fn(|cx| {
            if std::mem::replace(&mut polled, true) {
                return std::task::Poll::Ready(());
            }
            cx.waker().wake_by_ref();
            std::task::Poll::Pending
        })
        .await;
        Ok(oracle(&batch))
    });
    let later = BatchProcessor::new(4, Duration::ZERO).unwrap();
    let later = later.start_processing_with(VOCAB, CONTEXT, wait_a_little).unwrap();
    for batching in [sync.clone(), later] {
        let generator = AutoregressiveGenerator::new(batching, greedy(10));
        assert_eq!(by_tokens(&generator, &[3, 4, 5], 10, true), want);
        assert_eq!(generator.generate(&[3, 4, 5]).unwrap(), want);
    }
    let many: Vec<_> = (0..4).map(|i| (vec![i; 3], greedy(6))).collect();
    for (got, (p, c)) in bitnet_inference::names::process_batch(&sync.engine, &many).into_iter().zip(&many) {
        assert_eq!(got.unwrap(), alone(p, c));
    }
    assert_eq!(widest.load(Relaxed), 4);
}

#[test]
fn an_error_reaches_everyone_it_concerns_and_the_next_batch_is_served() {
    let planted = || ForwardError::StepTooLarge { what: "planted", actual: 1, limit: 0 };
    let mut left = 2 * (2 * 4); // every attempt at the first batch fails, down to single requests
    let forward = move |batch: &PaddedBatch| {
        let failing = batch.row(0)[0] < 10 && left > 0;
        left -= usize::from(failing);
        if failing { Err(planted()) } else { Ok(oracle(batch)) }
    };
    let processor = BatchProcessor::new(4, HOUR).unwrap();
    let batching = processor.start_processing_with(VOCAB, CONTEXT, forward).unwrap();
    let answers = fill(&batching.queue, 4);
    for answer in answers {
        assert_eq!(answer.recv().unwrap(), Err(RequestError::Forward(planted()).into()));
    }
    let (request, answer) = request(20);
    batching.queue.submit(request).unwrap();
    drop(batching);
    assert_eq!(answer.recv().unwrap(), Ok(Some(alone(&[20], &greedy(1))[0])));
}

#[test]
fn dropping_the_last_handle_answers_what_is_pending_and_stops() {
    let (batching, _) = processing(4, HOUR, 16);
    let answers = fill(&batching.queue, 10);
    let (engine, queue) = (Arc::clone(&batching.engine), batching.queue.clone());
    drop(batching);
    assert_eq!(Arc::strong_count(&engine), 1, "nothing else uses it");
    assert!(answers.iter().all(|answer| !answer.is_empty()), "all are answered by then");
    assert_eq!(queue.submit(request(1).0), Err(QueueError::Stopped));
    for (i, answer) in answers.into_iter().enumerate() {
        assert_eq!(
            answer.recv().unwrap(),
            Ok(Some(alone(&[i as u32], &greedy(1)).first().copied().unwrap()))
        );
    }
}

#[test]
fn a_waiting_batch_starts_when_no_request_can_arrive() {
    let (handle, _) = processing(4, HOUR, 9);
    let answers = fill(&handle.queue, 3);
    drop(handle.clone());
    assert!(answers[0].is_empty(), "another handle is there, and the batch is not full");
    drop(handle);
    assert!(answers.iter().all(|answer| answer.recv().unwrap().is_ok()));
}

#[test]
fn a_function_without_vocabulary_or_context_is_refused_with_the_reason() {
    let start = |vocab, context| {
        let processor = BatchProcessor::new(4, WAIT).unwrap();
        processor.start_processing_with(vocab, context, |batch: &PaddedBatch| Ok(oracle(batch))).err()
    };
    assert_eq!(start(0, CONTEXT), Some(StartError::Zero { field: "the model's vocabulary" }));
    assert_eq!(start(VOCAB, 0), Some(StartError::Zero { field: "the model's context" }));
    assert!(matches!(start(VOCAB, usize::MAX), Some(StartError::TooManyBlocks { .. })));
}

#[test]
fn padding_is_reported_where_it_is_known() {
    let forward = |batch: &PaddedBatch| Ok(oracle(batch));
    let batching =
        BatchProcessor::new(4, WAIT).unwrap().start_processing_with(VOCAB, CONTEXT, forward).unwrap();
    let prompts = vec![vec![1; 30], vec![2; 10]];
    bitnet_inference::names::batch_generate(&batching.engine, &prompts, &greedy(1)).unwrap();
    batching.engine.shutdown(Duration::MAX);
    let snapshot = batching.engine.metrics().snapshot();
    // Both in one step, or each alone if the first had already started.
    let padding = snapshot.measure(Measure::Padding);
    assert!(
        (padding.sum * 60.0 - 20.0).abs() < 1e-9 || (padding.count, padding.sum) == (2, 0.0),
        "{padding:?}"
    );
    let (engine, _) = engine(config());
    bitnet_inference::names::batch_generate(&engine, &prompts, &greedy(1)).unwrap();
    engine.shutdown(Duration::MAX);
    assert_eq!(engine.metrics().snapshot().measure(Measure::Padding).mean(), None);
}

#[test]
fn a_generator_on_a_stopped_engine_gets_an_error() {
    let (batching, _) = running();
    batching.engine.shutdown(Duration::ZERO);
    let generator = AutoregressiveGenerator::new(batching, greedy(5));
    assert!(generator.generate_token_batched(&[1], 0).is_err());
    assert!(generator.generate(&[1]).is_err());
}

#[test]
fn a_generator_gives_one_new_token_whatever_the_configuration_echoes() {
    let (batching, _) = running();
    let want = alone(&[1, 2], &greedy(4));
    let echo = GenerationConfig { echo: true, ..greedy(4) };
    let generator = AutoregressiveGenerator::new(batching.clone(), echo);
    assert_eq!(generator.generate(&[1, 2]).unwrap(), want);
    assert_eq!(generator.generate_token_single(&[1, 2], 0).unwrap(), Some(want[0]));
    assert_eq!(generator.generate_token_batched(&[1, 2], 0).unwrap(), Some(want[0]));
    let two = AutoregressiveGenerator::new(batching, GenerationConfig { n: 2, ..greedy(4) });
    assert!(two.generate(&[1, 2]).is_err());
    assert!(two.generate_token_single(&[1, 2], 0).is_err());
    assert!(two.generate_token_batched(&[1, 2], 0).is_err());
}

#[test]
fn a_step_without_end_is_refused_like_any_that_is_too_far() {
    let (batching, _) = running();
    let generator = AutoregressiveGenerator::new(batching, greedy(4));
    let refusal = |step| generator.generate_token_single(&[1, 2], step).unwrap_err().to_string();
    assert_eq!(
        refusal(usize::MAX).replace(&usize::MAX.to_string(), "2"),
        refusal(2),
        "neither leaves a token that was prompted"
    );
}

#[test]
fn a_batch_without_a_time_limit_waits_until_it_is_full_or_nobody_can_submit() {
    let (batching, _) = processing(2, Duration::MAX, 9);
    assert!(fill(&batching.queue, 2).iter().all(|answer| answer.recv().unwrap().is_ok()));
    let answers = fill(&batching.queue, 1);
    drop(batching);
    assert!(answers[0].recv().unwrap().is_ok());
}
