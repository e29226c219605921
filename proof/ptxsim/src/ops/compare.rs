//! Comparisons of `setp`.

use super::Lane;
use crate::inst::{Lanes, PredFn, WARP};
use crate::types::Type;

/// `cmp!(u32, |a, b| a < b)` gives one bit for each lane.
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

/// `setp.name.ty`. On floats, all but `nan` are false for NaN.
pub(crate) fn comparison(name: &str, ty: Type) -> Option<fn(&Lanes, &Lanes) -> u32> {
    Some(match ty {
        Type::F32 if name == "nan" => cmp!(f32, |a, b| a.is_nan() || b.is_nan()),
        // `ne` as computed here would be true for NaN.
        Type::F32 if name == "ne" => return None,
        Type::F32 => ordered!(name, f32),
        Type::U32 => ordered!(name, u32),
        Type::U64 => ordered!(name, u64),
        Type::S32 => ordered!(name, i32),
        _ => return None,
    })
}

/// `and` and `or` of predicates.
pub(crate) fn logic(name: &str) -> Option<PredFn> {
    match name {
        "and" => Some(|a, b| a & b),
        "or" => Some(|a, b| a | b),
        _ => None,
    }
}
