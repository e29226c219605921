//! `cvt`: which conversions exist and what they give.

use super::half::{f16_to_f32, f32_to_bf16, f32_to_f16};
use super::{Lane, float};
use crate::types::{Class, Type};

/// A rounding modifier; the integer ones (`rni` and so on) are those used where the result is a whole number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Round {
    Nearest,
    Zero,
    Down,
    Up,
}

/// One legal combination of `cvt`'s modifiers.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Convert {
    pub(crate) to: Type,
    pub(crate) from: Type,
    /// Bytes of the destination register, which may be wider than `to`.
    pub(crate) register: usize,
    round: Option<Round>,
    sat: bool,
    relu: bool,
    ftz: bool,
}

/// The modifiers as parsed: rounding, whether it was an integer one, and the rest.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct ConvertMods {
    pub(crate) round: Option<Round>,
    pub(crate) whole: bool,
    pub(crate) sat: bool,
    pub(crate) relu: bool,
    pub(crate) ftz: bool,
}

impl Convert {
    /// `None` for combinations that PTX 7.4 does not have (or that this simulator does not).
    pub(crate) fn new(to: Type, from: Type, m: ConvertMods) -> Option<Convert> {
        let nearest_or_zero = !m.whole && matches!(m.round, Some(Round::Nearest | Round::Zero));
        let nearest = m.round == Some(Round::Nearest) && !m.whole && !m.relu;
        let int = |t: Type| t.is_int();
        let legal = match (to, from) {
            (t, f) if int(t) && int(f) => m.round.is_none() && !m.relu && !m.ftz,
            (t, Type::F32) if int(t) => m.round.is_some() && m.whole && !m.relu,
            (Type::F32, f) if int(f) => nearest && !m.ftz && !m.sat,
            (Type::F32, Type::F32) => (m.round.is_none() || m.whole) && !m.relu,
            (Type::F64, Type::F32) => m.round.is_none() && !m.relu && !m.sat && !m.ftz,
            (Type::F32, Type::F64) => nearest && !m.sat && !m.ftz,
            (Type::F64, f) if int(f) => nearest && !m.sat && !m.ftz,
            (t, Type::F64) if int(t) => m.round.is_some() && m.whole && !m.relu && !m.ftz && !m.sat,
            (Type::F32, Type::F16) => m.round.is_none() && !m.relu && !m.sat && !m.ftz,
            (Type::F16 | Type::Bf16 | Type::F16x2 | Type::Bf16x2, Type::F32) => {
                nearest_or_zero && !m.sat && !m.ftz
            }
            _ => false,
        };
        legal.then_some(Convert {
            to,
            from,
            register: to.bytes(),
            round: m.round,
            sat: m.sat,
            relu: m.relu,
            ftz: m.ftz,
        })
    }

    /// Packed results take two sources, the first for the upper half.
    pub(crate) fn sources(&self) -> usize {
        if matches!(self.to, Type::F16x2 | Type::Bf16x2) { 2 } else { 1 }
    }

    pub(crate) fn apply(&self, a: u64, b: u64) -> u64 {
        match (self.to, self.from) {
            (Type::F16 | Type::Bf16, _) => u64::from(self.narrow(a)),
            (Type::F16x2 | Type::Bf16x2, _) => u64::from(self.narrow(a)) << 16 | u64::from(self.narrow(b)),
            (Type::F32, Type::F16) => f16_to_f32(a as u16).put(),
            (Type::F32, Type::F32) => self.float(a).put(),
            (Type::F64, Type::F32) => f64::from(f32::get(a)).put(),
            (Type::F32, Type::F64) => (f64::get(a) as f32).put(),
            (Type::F64, from) if from.is_signed() => (from.extend(a, 8) as i64 as f64).put(),
            (Type::F64, from) => (from.extend(a, 8) as f64).put(),
            (Type::F32, from) if from.is_signed() => (from.extend(a, 8) as i64 as f32).put(),
            (Type::F32, from) => (from.extend(a, 8) as f32).put(),
            (to, Type::F32) => to.extend(self.whole(f64::from(self.flushed(a))), self.register),
            (to, Type::F64) => to.extend(self.whole(f64::get(a)), self.register),
            (to, from) => to.extend(self.clamp(from.extend(a, 8)), self.register),
        }
    }

    fn narrow(&self, raw: u64) -> u16 {
        let x = f32::get(raw);
        let to_zero = self.round == Some(Round::Zero);
        if self.relu && x < 0.0 {
            return 0;
        }
        if matches!(self.to, Type::F16 | Type::F16x2) {
            f32_to_f16(x, to_zero)
        } else {
            f32_to_bf16(x, to_zero)
        }
    }

    fn flushed(&self, raw: u64) -> f32 {
        f32::get(if self.ftz { float::flush(&[raw; 32])[0] } else { raw })
    }

    fn float(&self, raw: u64) -> f32 {
        let x = self.flushed(raw);
        let rounded = self.round.map_or(x, |round| round_whole(f64::from(x), round) as f32);
        if self.sat { f32::get(float::saturate(&[rounded.put(); 32])[0]) } else { rounded }
    }

    /// Float to integer clamps to the integer's range. NaN gives 0, and for 64-bit results the top bit.
    fn whole(&self, x: f64) -> u64 {
        if x.is_nan() {
            return if self.to.bytes() == 8 { 1 << 63 } else { 0 };
        }
        let (low, high) = range(self.to);
        let rounded = round_whole(x, self.round.unwrap_or(Round::Zero));
        (rounded as i128).clamp(low, high) as u64
    }

    /// Integer to integer: `.sat` clamps the value to the result's range.
    fn clamp(&self, extended: u64) -> u64 {
        let value = if self.from.is_signed() { i128::from(extended as i64) } else { i128::from(extended) };
        let (low, high) = range(self.to);
        if self.sat { value.clamp(low, high) as u64 } else { extended }
    }
}

fn range(ty: Type) -> (i128, i128) {
    let bits = 8 * ty.bytes();
    if ty.class() == Class::Signed {
        (-(1 << (bits - 1)), (1 << (bits - 1)) - 1)
    } else {
        (0, (1 << bits) - 1)
    }
}

fn round_whole(x: f64, round: Round) -> f64 {
    match round {
        Round::Nearest => x.round_ties_even(),
        Round::Zero => x.trunc(),
        Round::Down => x.floor(),
        Round::Up => x.ceil(),
    }
}
