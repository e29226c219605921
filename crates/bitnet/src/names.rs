//! The names that users of other BitNet engines know, on the same engine as everything else.
//!
//! They are thin layers: [`GpuInferenceEngine`] computes on the device that its model was loaded to, and
//! [`BatchProcessor`] and [`AutoregressiveGenerator`] batch because the engine does. New programs should use
//! [`Model`](crate::Model) instead.
//!
//! # `GpuInferenceEngine::process_batch_gpu`
//!
//! ```
//! use bitnet::{Model, names::{GenerationConfig, GpuInferenceEngine}};
//!
//! let model = Model::open("demo")?;
//! let gpu = GpuInferenceEngine::on(model.engine().clone());
//! gpu.warmup_gpu_cache()?;
//! let config = GenerationConfig { max_new_tokens: 8, ..Default::default() };
//! let results = gpu.process_batch_gpu(&[(vec![1, 2, 3], config.clone()), (vec![4], config.clone())])?;
//! assert_eq!(results[1], gpu.generate_tokens_gpu(&[4], &config)?);
//! println!("{:?}", gpu.metrics().measure(bitnet::inference::metrics::Measure::BatchSize).mean());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! If a request fails, the [`BatchError`] holds the results of the others. `process_batch_async` and
//! `generate_tokens_async` do the same on any executor.
//!
//! # `BatchProcessor` and `AutoregressiveGenerator`
//!
//! ```
//! use std::{thread, time::Duration};
//! use bitnet::{Model, names::{AutoregressiveGenerator, BatchProcessor, GenerationConfig}};
//!
//! let model = Model::open("demo")?;
//! let processor = BatchProcessor::new(8, Duration::from_millis(2))?;
//! let batching = processor.start_processing(model.engine().clone())?;
//! thread::scope(|scope| {
//!     for prompt in [vec![1, 2], vec![3, 4]] {
//!         let generator = AutoregressiveGenerator::new(batching.clone(), GenerationConfig::default());
//!         scope.spawn(move || {
//!             let mut text = prompt;
//!             for step in 0..5 {
//!                 // Tokens of both threads are computed in the same steps.
//!                 let Some(token) = generator.generate_token_batched(&text, step).unwrap() else { break };
//!                 text.push(token);
//!             }
//!         });
//!     }
//! });
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # `batch_generate`, `forward_batch` and `prefill_batch`
//!
//! ```
//! use bitnet::{Model, names::{GenerationConfig, batch_generate, forward_batch}};
//!
//! let model = Model::open("demo")?;
//! let prompts = [vec![1, 2, 3], vec![4]];
//! let config = GenerationConfig { max_new_tokens: 1, ..Default::default() };
//! let tokens = batch_generate(model.engine(), &prompts, &config)?;
//! let logits = forward_batch(model.engine(), &prompts)?;
//! let most_likely = |row: &[f32]| (0..row.len()).max_by(|&a, &b| row[a].total_cmp(&row[b]));
//! assert_eq!(tokens[0][0] as usize, most_likely(&logits[0]).unwrap());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # `HybridScheduler`
//!
//! ```
//! use bitnet::names::HybridScheduler;
//!
//! // Chooses between two backends for a matrix product, by a threshold measured on both.
//! let scheduler = HybridScheduler::with_threshold(true, 1_000_000);
//! assert!(scheduler.should_use_gpu(512, 2560, 6912) && !scheduler.should_use_gpu(1, 256, 256));
//! assert_eq!(HybridScheduler::new(true).gpu_threshold(), None, "nothing was measured");
//! ```

pub use bitnet_inference::names::*;
