//! Integer and bit instructions.

use super::{Shape, lanes};
use crate::inst::AluFn;
use crate::types::Type;

/// `name.ty`, where the name includes which half of a product is kept.
pub(crate) fn plain(name: &str, ty: Type) -> Option<Shape> {
    let all = |n: usize, f: AluFn| Some(Shape { f, d: ty, s: vec![ty; n] });
    let to = |d: Type, s: &[Type], f: AluFn| Some(Shape { f, d, s: s.to_vec() });
    use Type::{B32, B64, S32, U32, U64};
    match (name, ty) {
        ("add", U32 | S32) => all(2, lanes!(|a: u32, b: u32| a.wrapping_add(b))),
        ("add", U64) => all(2, lanes!(|a: u64, b: u64| a.wrapping_add(b))),
        ("sub", U32 | S32) => all(2, lanes!(|a: u32, b: u32| a.wrapping_sub(b))),
        ("sub", U64) => all(2, lanes!(|a: u64, b: u64| a.wrapping_sub(b))),
        ("min", U32) => all(2, lanes!(|a: u32, b: u32| a.min(b))),
        ("max", U32) => all(2, lanes!(|a: u32, b: u32| a.max(b))),
        ("min", S32) => all(2, lanes!(|a: i32, b: i32| a.min(b))),
        ("max", S32) => all(2, lanes!(|a: i32, b: i32| a.max(b))),
        ("div", U32) => all(2, lanes!(|a: u32, b: u32| a.checked_div(b).unwrap_or(0))),
        ("rem", U32) => all(2, lanes!(|a: u32, b: u32| a.checked_rem(b).unwrap_or(0))),
        ("mul.lo", U32) => all(2, lanes!(|a: u32, b: u32| a.wrapping_mul(b))),
        ("mul.lo", U64) => all(2, lanes!(|a: u64, b: u64| a.wrapping_mul(b))),
        ("mul.hi", U32) => all(2, lanes!(|a: u32, b: u32| ((u64::from(a) * u64::from(b)) >> 32) as u32)),
        ("mul.hi", U64) => all(2, lanes!(|a: u64, b: u64| ((u128::from(a) * u128::from(b)) >> 64) as u64)),
        ("mul.wide", U32) => to(U64, &[U32, U32], lanes!(|a: u32, b: u32| u64::from(a) * u64::from(b))),
        ("mad.lo", U32) => all(3, lanes!(|a: u32, b: u32, c: u32| a.wrapping_mul(b).wrapping_add(c))),
        ("mad.lo", U64) => all(3, lanes!(|a: u64, b: u64, c: u64| a.wrapping_mul(b).wrapping_add(c))),
        ("mad.wide", U32) => to(
            U64,
            &[U32, U32, U64],
            lanes!(|a: u32, b: u32, c: u64| (u64::from(a) * u64::from(b)).wrapping_add(c)),
        ),
        ("and", B32) => all(2, lanes!(|a: u32, b: u32| a & b)),
        ("and", B64) => all(2, lanes!(|a: u64, b: u64| a & b)),
        ("or", B32) => all(2, lanes!(|a: u32, b: u32| a | b)),
        ("or", B64) => all(2, lanes!(|a: u64, b: u64| a | b)),
        ("xor", B32) => all(2, lanes!(|a: u32, b: u32| a ^ b)),
        ("not", B32) => all(1, lanes!(|a: u32| !a)),
        // Shift amounts beyond the width are clamped to it, not wrapped.
        ("shl", B32) => to(B32, &[B32, U32], lanes!(|a: u32, n: u32| a.checked_shl(n).unwrap_or(0))),
        ("shl", B64) => to(B64, &[B64, U32], lanes!(|a: u64, n: u32| a.checked_shl(n).unwrap_or(0))),
        ("shr", U32) => to(U32, &[U32, U32], lanes!(|a: u32, n: u32| a.checked_shr(n).unwrap_or(0))),
        ("shr", S32) => to(S32, &[S32, U32], lanes!(|a: i32, n: u32| a >> n.min(31))),
        ("shr", U64) => to(U64, &[U64, U32], lanes!(|a: u64, n: u32| a.checked_shr(n).unwrap_or(0))),
        ("popc", B32) => to(U32, &[B32], lanes!(|a: u32| a.count_ones())),
        ("clz", B32) => to(U32, &[B32], lanes!(|a: u32| a.leading_zeros())),
        ("brev", B32) => all(1, lanes!(|a: u32| a.reverse_bits())),
        ("bfe", U32) => to(U32, &[U32, U32, U32], lanes!(|a: u32, at: u32, len: u32| extract(a, at, len))),
        _ => None,
    }
}

/// Extracts bits; only the low bytes of position and length count.
fn extract(a: u32, at: u32, len: u32) -> u32 {
    a.checked_shr(at & 255).unwrap_or(0) & 1u32.checked_shl(len & 255).unwrap_or(0).wrapping_sub(1)
}

/// `dp4a.a.s32`: four products of bytes added to `c`.
pub(crate) fn dp4a(a: Type, b: Type) -> Option<Shape> {
    let f = match (a, b) {
        (Type::U32, Type::S32) => lanes!(|a: u32, b: u32, c: u32| dot4(a, b, c, i32::from)),
        (Type::S32, Type::S32) => lanes!(|a: u32, b: u32, c: u32| dot4(a, b, c, |x| i32::from(x as i8))),
        _ => return None,
    };
    Some(Shape { f, d: Type::S32, s: vec![a, b, Type::S32] })
}

fn dot4(a: u32, b: u32, c: u32, widen: fn(u8) -> i32) -> u32 {
    let pairs = a.to_le_bytes().into_iter().zip(b.to_le_bytes());
    pairs.fold(c, |sum, (x, y)| sum.wrapping_add((widen(x) * i32::from(y as i8)) as u32))
}
