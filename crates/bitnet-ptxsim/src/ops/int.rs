//! Integer and bit instructions.

use super::{Shape, lanes};
use crate::inst::AluFn;
use crate::types::Type;

/// One body for every width, as unsigned numbers.
macro_rules! by_width {
    ($ty:expr, |$($x:ident),+| $e:expr) => {
        match $ty.bytes() {
            2 => lanes!(|$($x: u16),+| $e),
            4 => lanes!(|$($x: u32),+| $e),
            8 => lanes!(|$($x: u64),+| $e),
            _ => return None,
        }
    };
}

/// One body for every integer type, sign respected.
macro_rules! by_type {
    ($ty:expr, |$($x:ident),+| $e:expr) => {
        match $ty {
            Type::U16 => lanes!(|$($x: u16),+| $e),
            Type::S16 => lanes!(|$($x: i16),+| $e),
            Type::U32 => lanes!(|$($x: u32),+| $e),
            Type::S32 => lanes!(|$($x: i32),+| $e),
            Type::U64 => lanes!(|$($x: u64),+| $e),
            Type::S64 => lanes!(|$($x: i64),+| $e),
            _ => return None,
        }
    };
}

/// Instructions `name.ty` whose sources and result all have type `ty`, or (shifts, counts) nearly so.
pub(crate) fn plain(name: &str, ty: Type) -> Option<Shape> {
    let all = |n: usize, f: AluFn| Some(Shape { f, d: ty, s: vec![ty; n] });
    let bits = |n: usize, f: AluFn| if ty.is_int() { None } else { all(n, f) };
    let ints = |n: usize, f: AluFn| if ty.is_int() { all(n, f) } else { None };
    let word = matches!(ty.bytes(), 4 | 8);
    match name {
        "add" => ints(2, by_width!(ty, |a, b| a.wrapping_add(b))),
        "sub" => ints(2, by_width!(ty, |a, b| a.wrapping_sub(b))),
        "min" => all(2, by_type!(ty, |a, b| a.min(b))),
        "max" => all(2, by_type!(ty, |a, b| a.max(b))),
        "div" => all(2, by_type!(ty, |a, b| a.checked_div(b).unwrap_or(a))),
        "rem" => all(2, by_type!(ty, |a, b| a.checked_rem(b).unwrap_or(0))),
        "abs" if ty.is_signed() => {
            all(1, by_width!(ty, |a| if a >> (size_of_val(&a) * 8 - 1) == 1 { a.wrapping_neg() } else { a }))
        }
        "neg" if ty.is_signed() => all(1, by_width!(ty, |a| a.wrapping_neg())),
        "and" => bits(2, by_width!(ty, |a, b| a & b)),
        "or" => bits(2, by_width!(ty, |a, b| a | b)),
        "xor" => bits(2, by_width!(ty, |a, b| a ^ b)),
        "not" => bits(1, by_width!(ty, |a| !a)),
        "sad" => sad(ty),
        "shl" if !ty.is_int() => Some(Shape { f: shl(ty)?, d: ty, s: vec![ty, Type::U32] }),
        "shr" => Some(Shape { f: shr(ty)?, d: ty, s: vec![ty, Type::U32] }),
        "popc" | "clz" if word && !ty.is_int() => {
            Some(Shape { f: count(name, ty), d: Type::U32, s: vec![ty] })
        }
        "brev" if word => bits(1, by_width!(ty, |a| a.reverse_bits())),
        "bfe" if word && ty.is_int() => Some(Shape { f: bfe(ty)?, d: ty, s: vec![ty, Type::U32, Type::U32] }),
        "bfi" if word && !ty.is_int() => {
            Some(Shape { f: bfi(ty), d: ty, s: vec![ty, ty, Type::U32, Type::U32] })
        }
        "prmt" if ty == Type::B32 => all(3, lanes!(|a: u32, b: u32, c: u32| prmt(a, b, c))),
        "lop3" if ty == Type::B32 => all(4, lanes!(|a: u32, b: u32, c: u32, lut: u32| lop3(a, b, c, lut))),
        _ => None,
    }
}

/// Which half of a product `mul` and `mad` keep.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Part {
    Lo,
    Hi,
    Wide,
}

/// `mul.part.ty`, and with `add` `mad.part.ty`.
pub(crate) fn multiply(part: Part, ty: Type, add: bool) -> Option<Shape> {
    let wide = match ty {
        Type::U16 => Type::U32,
        Type::S16 => Type::S32,
        Type::U32 => Type::U64,
        Type::S32 => Type::S64,
        _ => ty,
    };
    // The third source is absent from `mul`: the lookup repeats the first source there, so it cannot be used.
    macro_rules! both {
        (|$a:ident: $t:ty, $b:ident| $product:expr, $r:ty) => {
            if add {
                lanes!(|$a: $t, $b: $t, c: $r| ($product as $r).wrapping_add(c))
            } else {
                lanes!(|$a: $t, $b: $t| $product as $r)
            }
        };
    }
    let f = match (part, ty) {
        (Part::Lo, Type::U16 | Type::S16) => both!(|a: u16, b| a.wrapping_mul(b), u16),
        (Part::Lo, Type::U32 | Type::S32) => both!(|a: u32, b| a.wrapping_mul(b), u32),
        (Part::Lo, Type::U64 | Type::S64) => both!(|a: u64, b| a.wrapping_mul(b), u64),
        (Part::Hi, Type::U16) => both!(|a: u16, b| (u32::from(a) * u32::from(b)) >> 16, u16),
        (Part::Hi, Type::S16) => both!(|a: i16, b| (i32::from(a) * i32::from(b)) >> 16, u16),
        (Part::Hi, Type::U32) => both!(|a: u32, b| (u64::from(a) * u64::from(b)) >> 32, u32),
        (Part::Hi, Type::S32) => both!(|a: i32, b| (i64::from(a) * i64::from(b)) >> 32, u32),
        (Part::Hi, Type::U64) => both!(|a: u64, b| (u128::from(a) * u128::from(b)) >> 64, u64),
        (Part::Hi, Type::S64) => both!(|a: i64, b| (i128::from(a) * i128::from(b)) >> 64, u64),
        (Part::Wide, Type::U16) => both!(|a: u16, b| u32::from(a) * u32::from(b), u32),
        (Part::Wide, Type::S16) => both!(|a: i16, b| i32::from(a) * i32::from(b), u32),
        (Part::Wide, Type::U32) => both!(|a: u32, b| u64::from(a) * u64::from(b), u64),
        (Part::Wide, Type::S32) => both!(|a: i32, b| i64::from(a) * i64::from(b), u64),
        _ => return None,
    };
    let d = if part == Part::Wide { wide } else { ty };
    Some(Shape { f, d, s: if add { vec![ty, ty, d] } else { vec![ty, ty] } })
}

/// `dp4a.a.b`: four products of bytes added to `c`.
pub(crate) fn dp4a(a: Type, b: Type) -> Option<Shape> {
    let f = match (a, b) {
        (Type::U32, Type::U32) => lanes!(|a: u32, b: u32, c: u32| dot4(a, b, c, |x| x as i32, |y| y as i32)),
        (Type::U32, Type::S32) => {
            lanes!(|a: u32, b: u32, c: u32| dot4(a, b, c, |x| x as i32, |y| y as i8 as i32))
        }
        (Type::S32, Type::U32) => {
            lanes!(|a: u32, b: u32, c: u32| dot4(a, b, c, |x| x as i8 as i32, |y| y as i32))
        }
        (Type::S32, Type::S32) => {
            lanes!(|a: u32, b: u32, c: u32| dot4(a, b, c, |x| x as i8 as i32, |y| y as i8 as i32))
        }
        _ => return None,
    };
    let sum = if a == Type::U32 && b == Type::U32 { Type::U32 } else { Type::S32 };
    Some(Shape { f, d: sum, s: vec![a, b, sum] })
}

fn dot4(a: u32, b: u32, c: u32, fa: fn(u8) -> i32, fb: fn(u8) -> i32) -> u32 {
    let pairs = a.to_le_bytes().into_iter().zip(b.to_le_bytes());
    pairs.fold(c, |sum, (x, y)| sum.wrapping_add((fa(x) * fb(y)) as u32))
}

/// `shf.l/r.wrap/clamp.b32`: shifts the pair {b, a} and keeps its high (left) or low (right) word.
pub(crate) fn funnel(left: bool, wrap: bool) -> Shape {
    let f = match (left, wrap) {
        (true, true) => lanes!(|a: u32, b: u32, c: u32| ((pair(a, b) << (c & 31)) >> 32) as u32),
        (true, false) => lanes!(|a: u32, b: u32, c: u32| ((pair(a, b) << c.min(32)) >> 32) as u32),
        (false, true) => lanes!(|a: u32, b: u32, c: u32| (pair(a, b) >> (c & 31)) as u32),
        (false, false) => lanes!(|a: u32, b: u32, c: u32| (pair(a, b) >> c.min(32)) as u32),
    };
    Shape { f, d: Type::B32, s: vec![Type::B32, Type::B32, Type::U32] }
}

fn pair(low: u32, high: u32) -> u64 {
    u64::from(high) << 32 | u64::from(low)
}

/// `cvt.pack.sat.ty.s32{.b32}`: two numbers clamped and packed below what `c` brings.
pub(crate) fn pack(ty: Type) -> Option<Shape> {
    let bytes = |f| Some(Shape { f, d: Type::B32, s: vec![Type::S32, Type::S32, Type::B32] });
    let halves = |f| Some(Shape { f, d: Type::B32, s: vec![Type::S32, Type::S32] });
    match ty {
        Type::S8 => bytes(lanes!(|a: i32, b: i32, c: u32| {
            c << 16 | (a.clamp(-128, 127) as u8 as u32) << 8 | b.clamp(-128, 127) as u8 as u32
        })),
        Type::U8 => bytes(lanes!(|a: i32, b: i32, c: u32| {
            c << 16 | (a.clamp(0, 255) as u32) << 8 | b.clamp(0, 255) as u32
        })),
        Type::S16 => halves(lanes!(|a: i32, b: i32| {
            (a.clamp(-32768, 32767) as u32) << 16 | b.clamp(-32768, 32767) as u16 as u32
        })),
        Type::U16 => {
            halves(lanes!(|a: i32, b: i32| (a.clamp(0, 65535) as u32) << 16 | b.clamp(0, 65535) as u32))
        }
        _ => None,
    }
}

/// Shift amounts beyond the width are clamped to it, never wrapped.
fn shl(ty: Type) -> Option<AluFn> {
    Some(match ty.bytes() {
        2 => lanes!(|a: u16, n: u32| a.checked_shl(n).unwrap_or(0)),
        4 => lanes!(|a: u32, n: u32| a.checked_shl(n).unwrap_or(0)),
        8 => lanes!(|a: u64, n: u32| a.checked_shl(n).unwrap_or(0)),
        _ => return None,
    })
}

fn shr(ty: Type) -> Option<AluFn> {
    Some(match (ty.bytes(), ty.is_signed()) {
        (2, false) => lanes!(|a: u16, n: u32| a.checked_shr(n).unwrap_or(0)),
        (4, false) => lanes!(|a: u32, n: u32| a.checked_shr(n).unwrap_or(0)),
        (8, false) => lanes!(|a: u64, n: u32| a.checked_shr(n).unwrap_or(0)),
        (2, true) => lanes!(|a: i16, n: u32| a >> n.min(15)),
        (4, true) => lanes!(|a: i32, n: u32| a >> n.min(31)),
        (8, true) => lanes!(|a: i64, n: u32| a >> n.min(63)),
        _ => return None,
    })
}

fn count(name: &str, ty: Type) -> AluFn {
    match (name, ty.bytes()) {
        ("popc", 4) => lanes!(|a: u32| a.count_ones()),
        ("popc", _) => lanes!(|a: u64| a.count_ones()),
        (_, 4) => lanes!(|a: u32| a.leading_zeros()),
        (_, _) => lanes!(|a: u64| a.leading_zeros()),
    }
}

fn sad(ty: Type) -> Option<Shape> {
    let f = match ty {
        Type::U32 => lanes!(|a: u32, b: u32, c: u32| c.wrapping_add(a.abs_diff(b))),
        Type::S32 => lanes!(|a: i32, b: i32, c: u32| c.wrapping_add(a.abs_diff(b))),
        _ => return None,
    };
    Some(Shape { f, d: ty, s: vec![ty; 3] })
}

fn bfe(ty: Type) -> Option<AluFn> {
    Some(match ty {
        Type::U32 => lanes!(|a: u32, pos: u32, len: u32| extract(u64::from(a), pos, len, 32, false) as u32),
        Type::S32 => lanes!(|a: u32, pos: u32, len: u32| extract(u64::from(a), pos, len, 32, true) as u32),
        Type::U64 => lanes!(|a: u64, pos: u32, len: u32| extract(a, pos, len, 64, false)),
        Type::S64 => lanes!(|a: u64, pos: u32, len: u32| extract(a, pos, len, 64, true)),
        _ => return None,
    })
}

/// Position and length are bytes; a field reaching past the top is filled with the top bit if signed.
fn extract(a: u64, pos: u32, len: u32, width: u32, signed: bool) -> u64 {
    let (pos, len) = (pos & 255, len & 255);
    if len == 0 {
        return 0;
    }
    let value = i128::from(if signed {
        Type::extend(if width == 32 { Type::S32 } else { Type::S64 }, a, 8) as i64
    } else {
        0
    });
    let wide = if signed { value } else { i128::from(a) };
    let field = wide >> pos.min(127);
    let keep = len.min(127);
    // Sign bit: the field's own top bit, or the register's when the field reaches past it; the arithmetic
    // shift above has already spread the register's.
    let cut = 128 - keep;
    (if signed { (field << cut) >> cut } else { ((field as u128) << cut >> cut) as i128 }) as u64
}

fn bfi(ty: Type) -> AluFn {
    match ty.bytes() {
        4 => lanes!(
            |a: u32, b: u32, pos: u32, len: u32| insert(u64::from(a), u64::from(b), pos, len, 32) as u32
        ),
        _ => lanes!(|a: u64, b: u64, pos: u32, len: u32| insert(a, b, pos, len, 64)),
    }
}

fn insert(a: u64, b: u64, pos: u32, len: u32, width: u32) -> u64 {
    let (pos, len) = (pos & 255, len & 255);
    if pos >= width || len == 0 {
        return b;
    }
    let mask = (u64::MAX >> (64 - len.min(64))) << pos;
    (b & !mask) | ((a << pos) & mask)
}

/// Default mode: each nibble of `c` picks a byte of {b, a}; its high bit replicates that byte's sign.
fn prmt(a: u32, b: u32, c: u32) -> u32 {
    let bytes = pair(a, b).to_le_bytes();
    let pick = |i: usize| {
        let nibble = c >> (4 * i) & 15;
        let byte = bytes[nibble as usize & 7];
        if nibble & 8 == 0 { byte } else { (byte as i8 >> 7) as u8 }
    };
    u32::from_le_bytes(std::array::from_fn(pick))
}

/// `lut` is the function's value at a = 0xF0, b = 0xCC, c = 0xAA.
fn lop3(a: u32, b: u32, c: u32, lut: u32) -> u32 {
    let term = |i: u32| {
        let pick = |x: u32, bit: u32| if i >> bit & 1 == 1 { x } else { !x };
        if lut >> i & 1 == 1 { pick(a, 2) & pick(b, 1) & pick(c, 0) } else { 0 }
    };
    (0..8).fold(0, |acc, i| acc | term(i))
}
