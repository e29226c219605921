//! The GPU backend on the simulator, and its errors without a GPU.

mod bit_linear;
mod embed;
mod errors;
