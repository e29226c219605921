//! The crate as a program that depends on it sees it.

mod model;
mod opening;
