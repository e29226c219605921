//! The GPU backend on the simulator, and its errors without a GPU.

mod advance;
mod bit_linear;
mod embed;
mod errors;
mod rows;
