//! The crate from the view of a program that depends on it.

mod cache;
mod model;
mod opening;
mod schema;
mod thoughts;
