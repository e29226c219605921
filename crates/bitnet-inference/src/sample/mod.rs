//! From logits to a token: drawing, random numbers, and the strings that end a text.

mod changes;
mod loss;
mod random;
mod sampler;
mod stop;

pub use bitnet_kernels::draw::philox4x32;
pub use loss::loss_in_nats;
pub use random::random_u64;
pub use sampler::{Draw, Sampler};
pub use stop::{Scan, StopMatcher, TokenText};

pub(crate) use changes::Changes;
pub(crate) use random::fresh_seed;
