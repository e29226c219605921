//! The scalar types of the dialect, and which registers can hold which type.

/// A fundamental type, as named in instructions and declarations.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Type {
    Pred,
    B8,
    B16,
    B32,
    B64,
    U8,
    U16,
    U32,
    U64,
    S8,
    S16,
    S32,
    S64,
    Bf16,
    Bf16x2,
    F16,
    F32,
    F64,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Class {
    Pred,
    Bits,
    Unsigned,
    Signed,
    Float,
}

use Class::{Bits, Float, Pred, Signed, Unsigned};

// bf16 and the packed types count as bits: PTX 7.4 keeps them in `.b16` and `.b32` registers.
const TABLE: [(&str, Type, Class, usize); 18] = [
    ("pred", Type::Pred, Pred, 0),
    ("b8", Type::B8, Bits, 1),
    ("b16", Type::B16, Bits, 2),
    ("b32", Type::B32, Bits, 4),
    ("b64", Type::B64, Bits, 8),
    ("u8", Type::U8, Unsigned, 1),
    ("u16", Type::U16, Unsigned, 2),
    ("u32", Type::U32, Unsigned, 4),
    ("u64", Type::U64, Unsigned, 8),
    ("s8", Type::S8, Signed, 1),
    ("s16", Type::S16, Signed, 2),
    ("s32", Type::S32, Signed, 4),
    ("s64", Type::S64, Signed, 8),
    ("bf16", Type::Bf16, Bits, 2),
    ("bf16x2", Type::Bf16x2, Bits, 4),
    ("f16", Type::F16, Float, 2),
    ("f32", Type::F32, Float, 4),
    ("f64", Type::F64, Float, 8),
];

impl Type {
    pub(crate) fn parse(name: &str) -> Option<Type> {
        TABLE.iter().find(|row| row.0 == name).map(|row| row.1)
    }

    fn row(self) -> &'static (&'static str, Type, Class, usize) {
        &TABLE[self as usize]
    }

    pub(crate) fn name(self) -> &'static str {
        self.row().0
    }

    pub(crate) fn class(self) -> Class {
        self.row().2
    }

    /// Size of a value in bytes; 0 for a predicate.
    pub(crate) fn bytes(self) -> usize {
        self.row().3
    }

    pub(crate) fn is_int(self) -> bool {
        matches!(self.class(), Signed | Unsigned)
    }

    /// Whether an instruction that expects `want` accepts a register of type `self`: sizes must be equal, and an
    /// integer cannot replace a float; bits match everything, and pairs are bits alone.
    pub(crate) fn fits(self, want: Type) -> bool {
        let (a, b) = (self.class(), want.class());
        let alike = a == b || a == Bits || b == Bits || (self.is_int() && want.is_int());
        let pair = want == Type::Bf16x2;
        self.bytes() == want.bytes() && alike && (a == Pred) == (b == Pred) && (!pair || a == Bits)
    }
}
