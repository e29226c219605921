//! From logits to a token: drawing, random numbers, and the strings that end a text.

mod exp;
mod loss;
mod random;
mod sampler;
mod stop;

pub use loss::loss_in_nats;
pub use random::{philox4x32, random_u64};
pub use sampler::{Draw, Sampler};
pub use stop::{Scan, StopMatcher, TokenText};

pub(crate) use random::fresh_seed;
