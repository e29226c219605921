//! The names that users of other BitNet engines know.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use bitnet_hash_model::{Counts, HashModel, Oracle};
use bitnet_inference::{
    EngineConfig, FinishReason, GenerationConfig, GenerationError, InvalidRequest, RequestError, SubmitError,
    Update,
    metrics::{Counter, Measure},
    names::{
        BatchError, BenchmarkError, GpuInferenceEngine, PaddedBatch, ThroughputRecord, batch_generate,
        batch_generate_gpu, forward_batch, prefill_batch,
    },
};
use bitnet_kernels::BackendInfo;
use bitnet_model::{Batch, Logits};

use crate::support::*;

fn gpu() -> (GpuInferenceEngine, Arc<Counts>) {
    let model = HashModel::new(VOCAB, CONTEXT, limits());
    let counts = model.counts();
    (GpuInferenceEngine::new(model, config()).unwrap(), counts)
}

fn logits_after(prompt: &[u32]) -> Vec<f32> {
    let (mut oracle, mut row) = (Oracle::default(), vec![0.0; VOCAB]);
    prompt.iter().for_each(|&t| oracle.push(t));
    oracle.logits(&mut row);
    row
}

fn invalid(error: InvalidRequest) -> GenerationError {
    GenerationError::Submit(SubmitError::Invalid(error))
}

#[test]
fn a_batch_gives_each_request_what_it_gets_alone_in_order_and_of_any_size() {
    let (gpu, _) = gpu();
    for size in [1, 2, 7, 8, 9, 64] {
        let batch = mixed(size, size as u64);
        let mut got = gpu.process_batch_gpu(&batch).unwrap();
        let want: Vec<_> = batch.iter().map(|(p, c)| alone(p, c)).collect();
        assert_eq!(got, want);
        let reversed: Vec<_> = batch.iter().rev().cloned().collect();
        got.reverse();
        assert_eq!(gpu.process_batch_gpu(&reversed).unwrap(), got);
    }
    assert_eq!(gpu.metrics().get(Counter::Requests), 2 * (1 + 2 + 7 + 8 + 9 + 64));
}

#[test]
fn no_requests_give_no_results_and_no_launch() {
    let (gpu, counts) = gpu();
    assert_eq!(gpu.process_batch_gpu(&[]), Ok(vec![]));
    assert_eq!(batch_generate_gpu(&gpu, &[], &greedy(4)), Ok(vec![]));
    assert_eq!(forward_batch(gpu.engine(), &[]), Ok(vec![]));
    assert_eq!(counts.forwards.load(Relaxed), 0);
}

#[test]
fn the_number_of_forwards_is_that_of_the_longest_request() {
    let (gpu, counts) = gpu();
    let batch: Vec<_> = (1..=8).map(|i| (vec![i; 4], greedy(2 * i as usize))).collect();
    gpu.process_batch_gpu(&batch).unwrap();
    assert_eq!(counts.forwards.load(Relaxed), 1 + 15);
}

#[test]
fn requests_of_one_batch_keep_their_own_configurations() {
    let (gpu, _) = gpu();
    let hot = |seed| GenerationConfig { temperature: 2.0, seed: Some(seed), ..greedy(12) };
    let batch = [greedy(12), hot(1), hot(2), hot(1), greedy(3)].map(|c| (vec![5, 6], c));
    let got = gpu.process_batch_gpu(&batch).unwrap();
    assert_eq!(got[1], got[3]);
    assert_ne!(got[1], got[2]);
    assert_ne!(got[0], got[1]);
    assert_eq!(got[4], got[0][..3]);
}

#[test]
fn the_length_of_one_request_changes_no_token_of_another() {
    let (gpu, _) = gpu();
    let want = alone(&[9, 0, 0], &greedy(10));
    for other in [1, 2, 63, 64, 65, 300] {
        let batch = [(vec![9, 0, 0], greedy(10)), (vec![0; other], greedy(20))];
        assert_eq!(gpu.process_batch_gpu(&batch).unwrap()[0], want);
    }
}

#[test]
fn an_empty_prompt_in_a_list_is_named_before_any_work() {
    let (gpu, counts) = gpu();
    let source = invalid(InvalidRequest::EmptyPrompt);
    let error = BatchError { index: 1, source: source.clone(), results: vec![] };
    assert_eq!(batch_generate(gpu.engine(), &[vec![1], vec![], vec![2]], &greedy(3)), Err(error.clone()));
    assert_eq!(batch_generate_gpu(&gpu, &[vec![1], vec![], vec![2]], &greedy(3)), Err(error.clone()));
    assert_eq!(gpu.process_batch_gpu(&[(vec![1], greedy(1)), (vec![], greedy(1))]), Err(error.clone()));
    assert_eq!(forward_batch(gpu.engine(), &[vec![1], vec![]]).unwrap_err().source, source);
    assert_eq!(counts.forwards.load(Relaxed), 0);
}

#[test]
fn a_shared_configuration_gives_what_each_prompt_gets_alone() {
    let (gpu, _) = gpu();
    let prompts: Vec<_> = (1..40).map(|i| vec![i; i as usize]).collect();
    let want: Vec<_> = prompts.iter().map(|p| alone(p, &greedy(9))).collect();
    assert_eq!(batch_generate(gpu.engine(), &prompts, &greedy(9)).unwrap(), want);
    assert_eq!(batch_generate_gpu(&gpu, &prompts, &greedy(9)).unwrap(), want);
}

#[test]
fn the_partial_form_returns_results_and_errors_side_by_side() {
    let (gpu, _) = gpu();
    let two = GenerationConfig { n: 2, ..greedy(3) };
    let batch = [
        (vec![1], greedy(3)),
        (vec![], greedy(3)),
        (vec![50], greedy(3)),
        (vec![1], two),
        (vec![2], greedy(3)),
    ];
    let got = gpu.process_batch_gpu_partial(&batch);
    assert_eq!(got[0], Ok(alone(&[1], &greedy(3))));
    assert_eq!(got[1], Err(invalid(InvalidRequest::EmptyPrompt)));
    assert_eq!(got[2], Err(invalid(InvalidRequest::UnknownToken { token: 50, position: 0, vocab: VOCAB })));
    assert!(got[3].as_ref().unwrap_err().to_string().contains("n is 2: it must be 1"));
    assert_eq!(got[4], Ok(alone(&[2], &greedy(3))));
}

#[test]
fn a_nan_in_a_batch_fails_its_request_by_name() {
    let hook = |batch: &Batch, logits: Option<&mut Logits>| {
        if let Some(logits) = logits
            && let Some(run) =
                batch.runs().iter().position(|r| r.start == 0 && batch.tokens()[r.tokens.start] == 48)
        {
            logits.row_mut(run)[9] = f32::NAN;
        }
        Ok(())
    };
    let model = HashModel::new(VOCAB, CONTEXT, limits()).with_hook(Box::new(hook));
    let gpu = GpuInferenceEngine::new(model, config()).unwrap();
    let batch = [(vec![1], greedy(5)), (vec![48], greedy(5)), (vec![2], greedy(5))];
    let error = gpu.process_batch_gpu(&batch).unwrap_err();
    assert_eq!(error.index, 1);
    assert!(matches!(error.source, GenerationError::Request(RequestError::Sample(_))));
    let [one, two] = [1, 2].map(|token| Ok(alone(&[token], &greedy(5))));
    assert_eq!(error.results, [one, Err(error.source.clone()), two], "what was good is not lost");
    assert_eq!(block_on(gpu.process_batch_async(&batch)), Err(error));
}

#[test]
fn forward_batch_gives_the_logits_of_each_last_position() {
    let (gpu, counts) = gpu();
    let prompts = vec![vec![1, 2, 3], vec![4], (0..100).map(|i| i % 48).collect()];
    let want: Vec<_> = prompts.iter().map(|p| logits_after(p)).collect();
    assert_eq!(forward_batch(gpu.engine(), &prompts).unwrap(), want);
    assert_eq!(counts.rows.load(Relaxed), 3);
    let padded = PaddedBatch::pack(&prompts, &[128]).unwrap();
    assert_eq!(gpu.forward_batch_gpu(&padded).unwrap(), want);
    assert_eq!(prefill_batch(gpu.engine(), &prompts).unwrap(), want);
    let before = counts.tokens.load(Relaxed);
    batch_generate(gpu.engine(), &prompts[2..], &greedy(1)).unwrap();
    assert_eq!(counts.tokens.load(Relaxed) - before, 100 - 64, "the full block is in the cache");
}

#[test]
fn the_async_names_work_on_any_executor_and_cancel_when_dropped() {
    let (gpu, _) = gpu();
    let batch = mixed(12, 4);
    let want: Vec<_> = batch.iter().map(|(p, c)| alone(p, c)).collect();
    assert_eq!(block_on(gpu.process_batch_async(&batch)).unwrap(), want);
    assert_eq!(block_on(gpu.generate_tokens_async(&[1, 2], &greedy(5))).unwrap(), alone(&[1, 2], &greedy(5)));
    let (slow, _) = slow_engine(config(), Duration::from_millis(2));
    let slow = GpuInferenceEngine::on(Arc::new(slow));
    drop(slow.generate_tokens_async(&[1], &greedy(400)));
    until(|| slow.metrics().get(Counter::Cancelled) == 1);
}

#[test]
fn a_batch_larger_than_the_queue_does_not_hold_the_thread_of_an_executor() {
    let one_at_a_time = EngineConfig { max_queued_requests: 1, max_batch_size: 1, ..config() };
    let (engine, _) = slow_engine(one_at_a_time, Duration::from_millis(50));
    let gpu = GpuInferenceEngine::on(Arc::new(engine));
    let batch: Vec<_> = (0..6).map(|i| (vec![i], greedy(5))).collect();
    let begun = Instant::now();
    let mut future = Box::pin(gpu.process_batch_async(&batch));
    let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
    assert!(future.as_mut().poll(&mut cx).is_pending());
    // Twenty steps of 50 ms come before there is room for the last request.
    assert!(begun.elapsed() < Duration::from_millis(900), "{:?}", begun.elapsed());
    let want: Vec<_> = batch.iter().map(|(p, c)| alone(p, c)).collect();
    assert_eq!(block_on(future).unwrap(), want);
}

#[test]
fn generation_alone_is_a_batch_of_one() {
    let (gpu, _) = gpu();
    assert_eq!(gpu.generate_tokens_gpu(&[1, 2], &greedy(5)).unwrap(), alone(&[1, 2], &greedy(5)));
    assert_eq!(gpu.metrics().measure(Measure::BatchSize).max, 1.0);
    let stream = gpu.engine().submit(bitnet_inference::Request::new([1, 2], greedy(5))).unwrap();
    let last = stream.last();
    assert!(matches!(last, Some(Update::Ended { end: Ok(end), .. }) if end.finish == FinishReason::Length));
}

#[test]
fn warming_up_twice_computes_once() {
    let (gpu, counts) = gpu();
    assert!(!gpu.is_gpu_cache_warm());
    gpu.warmup_gpu_cache().unwrap();
    assert!(gpu.is_gpu_cache_warm());
    gpu.warmup_gpu_cache().unwrap();
    assert_eq!(counts.forwards.load(Relaxed), 1);
}

#[test]
fn the_throughput_factor_is_what_was_measured_and_unknown_before() {
    let (gpu, _) = gpu();
    assert_eq!(gpu.batch_throughput_factor(4), None);
    let rows = gpu.benchmark(&[10], &[1, 4]).unwrap();
    let factor = rows[1].tokens_per_second() / rows[0].tokens_per_second();
    assert_eq!(gpu.batch_throughput_factor(4), Some(factor));
    assert_eq!(gpu.batch_throughput_factor(1), Some(1.0));
    assert_eq!(gpu.batch_throughput_factor(8), None);
}

#[test]
fn a_record_of_the_same_backend_gives_the_factor_and_one_of_another_does_not() {
    let (gpu, _) = gpu();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("deep/record.json");
    assert!(!gpu.read_throughput_record("m", &path).unwrap());
    let BackendInfo { device, isa, threads, kv } = gpu.engine().backend().clone();
    let decode = vec![(1, 10.0), (8, 35.0)];
    let record = ThroughputRecord {
        model: "m".into(),
        device,
        isa: isa.into(),
        threads,
        kv: kv.into(),
        unix_time: 1,
        decode,
    };
    record.write(&path).unwrap();
    assert_eq!(ThroughputRecord::read(&path).unwrap(), Some(record.clone()));
    assert!(gpu.read_throughput_record("m", &path).unwrap());
    let factors = [1, 8, 4].map(|size| gpu.batch_throughput_factor(size));
    assert_eq!(factors, [Some(1.0), Some(3.5), None]);
    assert!(!gpu.read_throughput_record("another", &path).unwrap());
    for other in [
        ThroughputRecord { threads: threads + 1, ..record.clone() },
        ThroughputRecord { kv: "int8".into(), ..record },
    ] {
        other.write(&path).unwrap();
        assert!(!gpu.read_throughput_record("m", &path).unwrap());
    }
    assert_eq!(gpu.batch_throughput_factor(8), None);
    std::fs::write(&path, "{").unwrap();
    let error = gpu.read_throughput_record("m", &path).unwrap_err().to_string();
    assert!(error.contains("record.json") && error.contains("bitnet bench"), "{error}");
}

#[test]
fn a_benchmark_counts_the_tokens_it_got() {
    let (gpu, _) = gpu();
    let rows = gpu.benchmark(&[3, 100], &[1, 3]).unwrap();
    assert_eq!(
        rows.iter().map(|r| (r.seq_len, r.batch_size)).collect::<Vec<_>>(),
        [(3, 1), (3, 3), (100, 1), (100, 3)]
    );
    assert!(rows.iter().all(|r| r.tokens == 16 * r.batch_size && r.seconds > 0.0));
}

#[test]
fn a_benchmark_reports_no_speed_when_a_batch_differs_from_its_members() {
    // A model whose logits depend on the number of sequences.
    let hook = |batch: &Batch, logits: Option<&mut Logits>| {
        if let Some(logits) = logits
            && batch.runs().len() > 1
        {
            logits.row_mut(0)[3] = 100.0;
        }
        Ok(())
    };
    let model = HashModel::new(VOCAB, CONTEXT, limits()).with_hook(Box::new(hook));
    let gpu = GpuInferenceEngine::new(model, config()).unwrap();
    let refused = BenchmarkError::BatchDiffers { seq_len: 10, batch_size: 2, index: 0 };
    assert_eq!(gpu.benchmark(&[10], &[1, 2]), Err(refused));
    assert_eq!(gpu.batch_throughput_factor(2), None);
}

#[test]
fn a_benchmark_takes_nothing_from_the_prefix_cache() {
    let (gpu, _) = gpu();
    for _ in 0..2 {
        gpu.benchmark(&[130], &[1, 3]).unwrap();
    }
    gpu.engine().shutdown(Duration::MAX);
    let counts = gpu.engine().status().scheduler;
    assert!(counts.prefix_tokens > 0);
    assert_eq!(counts.prefix_hits, 0);
}

#[test]
fn an_echo_is_no_new_token() {
    let (gpu, _) = gpu();
    let (want, echo) = (alone(&[1, 2], &greedy(4)), GenerationConfig { echo: true, ..greedy(4) });
    assert_eq!(gpu.generate_tokens_gpu(&[1, 2], &echo).unwrap(), want);
    let engine = gpu.engine();
    assert_eq!(batch_generate(engine, &[vec![1, 2]], &echo).unwrap(), vec![want.clone()]);
    assert_eq!(block_on(gpu.process_batch_async(&[(vec![1, 2], echo)])).unwrap(), [want]);
}
