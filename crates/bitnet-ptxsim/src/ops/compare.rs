//! Comparisons of `setp`.

use super::Lane;
use crate::inst::{Lanes, PredFn, WARP};
use crate::types::Type;

/// `cmp!(u32, |a, b| a < b)`: one bit a lane.
macro_rules! cmp {
    ($t:ty, |$a:ident, $b:ident| $e:expr) => {{
        fn over_warp(x: &Lanes, y: &Lanes) -> u32 {
            (0..WARP).fold(0, |mask, i| {
                let ($a, $b) = (<$t as Lane>::get(x[i]), <$t as Lane>::get(y[i]));
                mask | u32::from($e) << i
            })
        }
        over_warp as fn(&Lanes, &Lanes) -> u32
    }};
}

macro_rules! ordered {
    ($name:expr, $t:ty) => {
        match $name {
            "eq" => cmp!($t, |a, b| a == b),
            "ne" => cmp!($t, |a, b| a != b),
            "lt" => cmp!($t, |a, b| a < b),
            "le" => cmp!($t, |a, b| a <= b),
            "gt" => cmp!($t, |a, b| a > b),
            "ge" => cmp!($t, |a, b| a >= b),
            _ => return None,
        }
    };
}

/// The plain comparisons are false on NaN, those ending in `u` are true.
macro_rules! float {
    ($name:expr, $t:ty) => {
        Some(match $name {
            "ne" => cmp!($t, |a, b| a.partial_cmp(&b).is_some_and(|o| o.is_ne())),
            "equ" => cmp!($t, |a, b| a.partial_cmp(&b).is_none_or(|o| o.is_eq())),
            "neu" => cmp!($t, |a, b| a.partial_cmp(&b).is_none_or(|o| o.is_ne())),
            "ltu" => cmp!($t, |a, b| a.partial_cmp(&b).is_none_or(|o| o.is_lt())),
            "leu" => cmp!($t, |a, b| a.partial_cmp(&b).is_none_or(|o| o.is_le())),
            "gtu" => cmp!($t, |a, b| a.partial_cmp(&b).is_none_or(|o| o.is_gt())),
            "geu" => cmp!($t, |a, b| a.partial_cmp(&b).is_none_or(|o| o.is_ge())),
            "num" => cmp!($t, |a, b| !a.is_nan() && !b.is_nan()),
            "nan" => cmp!($t, |a, b| a.is_nan() || b.is_nan()),
            _ => ordered!($name, $t),
        })
    };
}

/// `setp.name.ty`.
pub(crate) fn comparison(name: &str, ty: Type) -> Option<fn(&Lanes, &Lanes) -> u32> {
    // `lo` and so on are the unsigned spellings of `lt` and so on.
    let unsigned = match name {
        "lo" => "lt",
        "ls" => "le",
        "hi" => "gt",
        "hs" => "ge",
        _ => name,
    };
    let bits_ok = matches!(name, "eq" | "ne");
    Some(match ty {
        Type::F32 => return float!(name, f32),
        Type::F64 => return float!(name, f64),
        Type::U16 => ordered!(unsigned, u16),
        Type::U32 => ordered!(unsigned, u32),
        Type::U64 => ordered!(unsigned, u64),
        Type::S16 => ordered!(name, i16),
        Type::S32 => ordered!(name, i32),
        Type::S64 => ordered!(name, i64),
        Type::B16 if bits_ok => ordered!(name, u16),
        Type::B32 if bits_ok => ordered!(name, u32),
        Type::B64 if bits_ok => ordered!(name, u64),
        _ => return None,
    })
}

/// `and`, `or`, `xor` of predicates.
pub(crate) fn logic(name: &str) -> Option<PredFn> {
    Some(match name {
        "and" => |a, b| a & b,
        "or" => |a, b| a | b,
        "xor" => |a, b| a ^ b,
        _ => return None,
    })
}
