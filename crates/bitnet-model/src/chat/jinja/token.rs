//! The words of a template.

use num_bigint::BigInt;

#[derive(Debug, Clone, PartialEq)]
pub(super) enum Token {
    /// Text outside tags.
    Data(String),
    VariableBegin,
    VariableEnd,
    BlockBegin,
    BlockEnd,
    Name(String),
    Str(String),
    Int(BigInt),
    Float(f64),
    Operator(&'static str),
}
