//! The crate from the view of a program that depends on it.

mod model;
mod opening;
mod schema;
mod thoughts;
