//! What the modelled sources take from `std`, under the same names.

pub use std::{
    any, cell, collections, fmt, future, mem, ops, option, panic, pin, primitive, result, string, task, time,
    vec,
};

pub use shuttle::{hint, thread};

pub mod sync {
    pub use std::sync::{Arc, OnceLock};

    pub use shuttle::sync::atomic;
}
