//! The server, asked over TCP.

mod answers;
mod bounds;
mod description;
mod endings;
mod faults;
mod fields;
mod hang_ups;
mod hostile;
mod limits;
mod streams;
mod support;
mod tools;
