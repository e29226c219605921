//! Batches of prompts under the name `GpuInferenceEngine`, on the backend of its model.
//! Also measures and records what batching gains.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Instant;

use bitnet_kernels::gpu::{Cuda, Gpu, GpuError};
use bitnet_model::{Limits, Model, ModelError, ModelSpec, TensorSource, Transformer};
use parking_lot::Mutex;

use super::batches::{self, BatchError};
use super::padded_batch::PaddedBatch;
use super::throughput_record::{RecordError, ThroughputRecord};
use crate::engine::metrics::Snapshot;
use crate::engine::{Engine, EngineConfig, GenerationError, StartError, block_on};
use crate::request::{GenerationConfig, Request};
use crate::sample::random_u64;

/// Batch inference under the name that users of other BitNet engines know. It runs on the backend of its model;
/// batching is the same on all backends.
#[derive(Debug)]
pub struct GpuInferenceEngine {
    engine: Arc<Engine>,
    warm: AtomicBool,
    measured: Mutex<Vec<BenchmarkRow>>,
    record: Mutex<Option<ThroughputRecord>>,
}

/// The result of a benchmark at one size.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct BenchmarkRow {
    /// Number of tokens in each prompt.
    pub seq_len: usize,
    /// Number of sequences at once.
    pub batch_size: usize,
    /// Total number of generated tokens.
    pub tokens: usize,
    /// Time of the median run, including prompts.
    pub seconds: f64,
}

impl BenchmarkRow {
    /// Generated tokens per second, for all sequences together.
    pub fn tokens_per_second(&self) -> f64 {
        self.tokens as f64 / self.seconds
    }
}

/// Why a benchmark failed.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "every message names its fields")]
pub enum BenchmarkError {
    /// A batch gives different tokens than its members alone.
    #[error(
        "prompt length {seq_len}, batch of {batch_size}: request {index} gets different tokens than alone"
    )]
    BatchDiffers { seq_len: usize, batch_size: usize, index: usize },
    /// A request failed.
    #[error(transparent)]
    Batch(#[from] BatchError),
    /// The warm-up step failed.
    #[error(transparent)]
    WarmUp(#[from] GenerationError),
}

/// Why an engine did not start on a GPU.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CudaError {
    /// The GPU or its driver failed.
    #[error(transparent)]
    Gpu(#[from] GpuError),
    /// The model could not be loaded.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// The engine could not start.
    #[error(transparent)]
    Start(#[from] StartError),
}

impl GpuInferenceEngine {
    /// Starts an engine with `model`.
    pub fn new(model: impl Model + 'static, config: EngineConfig) -> Result<Self, StartError> {
        Engine::start(model, config).map(|engine| Self::on(Arc::new(engine)))
    }

    /// Loads a model onto an NVIDIA GPU and starts the engine there; `device` counts from zero.
    ///
    /// # Errors
    /// If there is no such GPU, or the driver or the GPU is too old; the message says what to do.
    pub fn on_cuda(
        device: usize,
        spec: &ModelSpec,
        tensors: &dyn TensorSource,
        limits: Limits,
        config: EngineConfig,
    ) -> Result<Self, CudaError> {
        let gpu = Gpu::new(Cuda::open(device)?)?;
        let model = Transformer::load(spec, tensors, gpu, limits, &mut |_, _| {})?;
        Ok(Self::new(model, config)?)
    }

    /// Uses an existing engine, which others can use too.
    pub fn on(engine: Arc<Engine>) -> Self {
        let warm = AtomicBool::new(false);
        let measured = Mutex::default();
        let record = Mutex::default();
        GpuInferenceEngine { engine, warm, measured, record }
    }

    /// The underlying engine.
    pub fn engine(&self) -> &Arc<Engine> {
        &self.engine
    }

    /// Continues every prompt with its own configuration, all in the same steps, and returns the new tokens of each,
    /// in order. Nothing is computed if a request is invalid. If one fails later, the error holds the results of the
    /// others.
    pub fn process_batch_gpu(
        &self,
        batch: &[(Vec<u32>, GenerationConfig)],
    ) -> Result<Vec<Vec<u32>>, BatchError> {
        block_on(self.process_batch_async(batch))
    }

    /// Like [`Self::process_batch_gpu`], with a separate result for each request.
    pub fn process_batch_gpu_partial(
        &self,
        batch: &[(Vec<u32>, GenerationConfig)],
    ) -> Vec<Result<Vec<u32>, GenerationError>> {
        batches::process_batch(&self.engine, batch)
    }

    /// Like [`Self::process_batch_gpu`], on any executor. Requests that fit into the queue are submitted before this
    /// returns; the rest follow without blocking a thread. Dropping the future cancels all.
    pub fn process_batch_async(
        &self,
        batch: &[(Vec<u32>, GenerationConfig)],
    ) -> impl Future<Output = Result<Vec<Vec<u32>>, BatchError>> + use<> {
        let results = self.valid(batch).map(|requests| batches::new_tokens_of(&self.engine, requests));
        async move { batches::whole(results?.await) }
    }

    /// Continues a prompt, as a batch of one.
    pub fn generate_tokens_gpu(
        &self,
        prompt: &[u32],
        config: &GenerationConfig,
    ) -> Result<Vec<u32>, GenerationError> {
        let one = self.process_batch_gpu_partial(&[(prompt.to_vec(), config.clone())]);
        one.into_iter().next().expect("one request gives one result")
    }

    /// Like [`Self::generate_tokens_gpu`], on any executor; dropping the future cancels the request.
    pub fn generate_tokens_async(
        &self,
        prompt: &[u32],
        config: &GenerationConfig,
    ) -> impl Future<Output = Result<Vec<u32>, GenerationError>> + use<> {
        let batch = self.process_batch_async(&[(prompt.to_vec(), config.clone())]);
        async move {
            let mut all = batch.await.map_err(|error| error.source)?;
            Ok(all.pop().expect("one request gives one result"))
        }
    }

    /// Returns the logits after the last token of each sequence of a padded batch.
    pub fn forward_batch_gpu(&self, input: &PaddedBatch) -> Result<Vec<Vec<f32>>, BatchError<Vec<f32>>> {
        batches::forward_batch(&self.engine, &input.unpack())
    }

    /// Runs a step through all weights, so that the first request is as fast as later ones. Does so only once.
    pub fn warmup_gpu_cache(&self) -> Result<(), GenerationError> {
        if !self.is_gpu_cache_warm() {
            batches::forward_batch(&self.engine, &[vec![0]]).map_err(|failed| failed.source)?;
            self.warm.store(true, Relaxed);
        }
        Ok(())
    }

    /// Whether [`Self::warmup_gpu_cache`] has run.
    pub fn is_gpu_cache_warm(&self) -> bool {
        self.warm.load(Relaxed)
    }

    /// The counts and measurements so far.
    pub fn metrics(&self) -> Snapshot {
        self.engine.metrics().snapshot()
    }

    /// Measures every prompt length with every batch size: the median of three runs after one to warm up. First
    /// checks that the batch gives the same tokens as its members alone.
    pub fn benchmark(
        &self,
        seq_lens: &[usize],
        batch_sizes: &[usize],
    ) -> Result<Vec<BenchmarkRow>, BenchmarkError> {
        self.warmup_gpu_cache()?;
        let mut rows = Vec::new();
        for &seq_len in seq_lens {
            for &batch_size in batch_sizes {
                let batch = self.benchmark_batch(seq_len, batch_size);
                let want = self.compute_uncached(&batch)?;
                for (index, request) in batch.iter().enumerate() {
                    if self.compute_uncached(std::slice::from_ref(request))?[0] != want[index] {
                        return Err(BenchmarkError::BatchDiffers { seq_len, batch_size, index });
                    }
                }
                let mut times = [0.0; 3];
                for time in &mut times {
                    let start = Instant::now();
                    self.compute_uncached(&batch)?;
                    *time = start.elapsed().as_secs_f64();
                }
                times.sort_by(f64::total_cmp);
                let tokens = want.iter().map(Vec::len).sum();
                rows.push(BenchmarkRow { seq_len, batch_size, tokens, seconds: times[1] });
            }
        }
        self.measured.lock().extend(&rows);
        Ok(rows)
    }

    /// Tokens per second of a batch divided by those of a single sequence, from the last benchmark of both sizes with
    /// the same prompt length, or else from the record that was read. `None` if there is neither.
    pub fn batch_throughput_factor(&self, batch_size: usize) -> Option<f64> {
        let measured = self.measured.lock();
        let last =
            |size, len| measured.iter().rev().find(|r| r.batch_size == size && r.seq_len == len).copied();
        let of = |batch: &BenchmarkRow| {
            Some(batch.tokens_per_second() / last(1, batch.seq_len)?.tokens_per_second())
        };
        let batch = measured.iter().rev().filter(|r| r.batch_size == batch_size).find_map(of);
        batch.or_else(|| self.record.lock().as_ref()?.factor(batch_size))
    }

    /// Reads the record that `bitnet bench -b` wrote to [`ThroughputRecord::path`]. Returns false if there is none,
    /// or if it is of another model or backend.
    pub fn read_throughput_record(&self, model: &str, path: &Path) -> Result<bool, RecordError> {
        let record = ThroughputRecord::read(path)?.filter(|r| r.is_of(model, self.engine.backend()));
        let found = record.is_some();
        *self.record.lock() = record;
        Ok(found)
    }

    fn benchmark_batch(&self, seq_len: usize, batch_size: usize) -> Vec<(Vec<u32>, GenerationConfig)> {
        let config = GenerationConfig { max_new_tokens: 16, ignore_eos: true, ..GenerationConfig::default() };
        let vocab = self.engine.vocab() as u64;
        let token = |i: usize, p: usize| (random_u64(i as u64, 0, p as u64) % vocab) as u32;
        let prompt = |i| (0..seq_len).map(|p| token(i, p)).collect();
        (0..batch_size).map(|i| (prompt(i), config.clone())).collect()
    }

    /// Like [`Self::process_batch_gpu`], with a new salt for each request, so that nothing comes from the prefix cache.
    fn compute_uncached(&self, batch: &[(Vec<u32>, GenerationConfig)]) -> Result<Vec<Vec<u32>>, BatchError> {
        static SALT: AtomicU64 = AtomicU64::new(1 << 63);
        let requests = batch.iter().map(|(prompt, config)| Request {
            salt: SALT.fetch_add(1, Relaxed),
            ..Request::new(prompt.clone(), config.clone())
        });
        batches::whole(block_on(batches::new_tokens_of(&self.engine, requests.collect())))
    }

    /// The requests of a batch, or an error if one is invalid.
    fn valid(&self, batch: &[(Vec<u32>, GenerationConfig)]) -> Result<Vec<Request>, BatchError> {
        let requests: Vec<Request> = batch.iter().map(|(p, c)| Request::new(p.clone(), c.clone())).collect();
        batches::validate(&self.engine, &requests)?;
        Ok(requests)
    }
}

/// [`batches::batch_generate`] for a [`GpuInferenceEngine`].
pub fn batch_generate_gpu(
    engine: &GpuInferenceEngine,
    prompts: &[Vec<u32>],
    config: &GenerationConfig,
) -> Result<Vec<Vec<u32>>, BatchError> {
    batches::batch_generate(&engine.engine, prompts, config)
}
