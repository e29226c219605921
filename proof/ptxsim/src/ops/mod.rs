//! The functions of instructions, a warp at a time, independent of where values are stored.

pub(crate) mod compare;
pub(crate) mod convert;
pub(crate) mod float;
pub(crate) mod int;

use crate::inst::AluFn;
use crate::types::Type;

/// A number that is read from a lane's 64 bits and written back zero-extended.
pub(crate) trait Lane: Copy {
    fn get(raw: u64) -> Self;
    fn put(self) -> u64;
}

macro_rules! int_lane {
    ($($t:ty => $unsigned:ty),*) => {$(
        impl Lane for $t {
            fn get(raw: u64) -> Self {
                raw as $t
            }
            fn put(self) -> u64 {
                u64::from(self as $unsigned)
            }
        }
    )*};
}
int_lane!(u16 => u16, u32 => u32, i32 => u32, u64 => u64, i64 => u64);

impl Lane for f32 {
    fn get(raw: u64) -> Self {
        f32::from_bits(raw as u32)
    }
    /// Every NaN that an instruction produces is the canonical one: PTX keeps no payloads.
    fn put(self) -> u64 {
        u64::from(if self.is_nan() { float::NAN_BITS } else { self.to_bits() })
    }
}

impl Lane for f64 {
    fn get(raw: u64) -> Self {
        f64::from_bits(raw)
    }
    /// As for `f32`, although the manual guarantees it only there: kernels must not look into a NaN.
    fn put(self) -> u64 {
        if self.is_nan() { float::NAN_BITS_F64 } else { self.to_bits() }
    }
}

/// An arithmetic instruction: its function, and the types of its result and sources.
pub(crate) struct Shape {
    pub(crate) f: AluFn,
    pub(crate) d: Type,
    pub(crate) s: Vec<Type>,
}

/// `lanes!(|a: u32, b: u32| a.wrapping_add(b))` is a plain function that applies the closure to all lanes.
macro_rules! lanes {
    (|$a:ident: $ta:ty $(, $b:ident: $tb:ty $(, $c:ident: $tc:ty)?)?| $e:expr) => {{
        fn over_warp(s: [&$crate::inst::Lanes; 3], out: &mut $crate::inst::Lanes) {
            for (i, o) in out.iter_mut().enumerate() {
                let $a = <$ta as $crate::ops::Lane>::get(s[0][i]);
                $(let $b = <$tb as $crate::ops::Lane>::get(s[1][i]);
                $(let $c = <$tc as $crate::ops::Lane>::get(s[2][i]);)?)?
                *o = $crate::ops::Lane::put($e);
            }
        }
        over_warp as $crate::inst::AluFn
    }};
}
pub(crate) use lanes;
