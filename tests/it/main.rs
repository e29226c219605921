//! End to end, on fixtures and demo.

mod book;
mod converted;
mod demo;
mod determinism;
mod drafts;
mod driver;
mod embeddings;
mod exactness;
mod experts;
mod goldens;
mod gpu;
mod gpu_engine;
mod gpu_forward;
mod gpu_sampler;
mod head;
mod masked_head;
mod official;
mod recurrent;
mod windows;
