//! The GPU backend on the simulator, and its errors without a GPU.

mod embed;
mod errors;
