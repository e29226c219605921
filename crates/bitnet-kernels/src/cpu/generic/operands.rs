//! How attention multiplies what the cache holds: floats as f32, int8 as integers.

use crate::{
    cpu::{
        generic::{
            cache::{Cached, Int8},
            element::Element,
            load_up_to,
        },
        lanes::Lanes,
    },
    order,
};

/// A cached type as attention multiplies it. Factors are the dimensions of a query or the weights of keys.
pub(crate) trait Operand: Cached {
    type Factor: Copy;
    /// 16 numbers of each of [`Operand::ROWS`] rows.
    type Rows<L: Lanes>: Copy;
    /// 16 sums of products.
    type Sums<L: Lanes>: Copy;
    /// Rows that are multiplied together.
    const ROWS: usize;

    /// Makes factors, up to `most` if they are integers, of `n` floats; `room` is for `n` of them, rounded up to whole
    /// vectors. Returns also what the sums must be multiplied by.
    ///
    /// # Safety
    /// The same as for [`Lanes::load`], and so for all functions.
    unsafe fn factors<L: Lanes>(
        x: *const f32,
        n: usize,
        most: f32,
        room: *mut i16,
    ) -> (*const Self::Factor, f32);
    unsafe fn load<L: Lanes>(first: *const Self::Number, stride: usize) -> Self::Rows<L>;
    unsafe fn zero<L: Lanes>() -> Self::Sums<L>;
    /// Adds the products of each row and its factor.
    unsafe fn add<L: Lanes>(
        sums: Self::Sums<L>,
        rows: Self::Rows<L>,
        factors: *const Self::Factor,
    ) -> Self::Sums<L>;
    /// Puts sums down, bit by bit.
    unsafe fn store<L: Lanes>(p: *mut f32, sums: Self::Sums<L>);
    /// Takes up sums that were put down.
    unsafe fn resume<L: Lanes>(p: *const f32) -> Self::Sums<L>;
    unsafe fn to_f32<L: Lanes>(sums: Self::Sums<L>) -> L::F;
}

impl<S: Cached + Element<Number = <S as Cached>::Number>> Operand for S {
    type Factor = f32;
    type Rows<L: Lanes> = L::F;
    type Sums<L: Lanes> = L::F;
    const ROWS: usize = 1;

    #[inline(always)]
    unsafe fn factors<L: Lanes>(x: *const f32, _: usize, _: f32, _: *mut i16) -> (*const f32, f32) {
        (x, 1.0)
    }
    #[inline(always)]
    unsafe fn load<L: Lanes>(first: *const <S as Cached>::Number, _: usize) -> L::F {
        <S as Element>::load::<L>(first)
    }
    #[inline(always)]
    unsafe fn zero<L: Lanes>() -> L::F {
        L::splat(0.0)
    }
    #[inline(always)]
    unsafe fn add<L: Lanes>(sums: L::F, row: L::F, factor: *const f32) -> L::F {
        L::fma(L::splat(*factor), row, sums)
    }
    #[inline(always)]
    unsafe fn store<L: Lanes>(p: *mut f32, sums: L::F) {
        L::store(p, sums);
    }
    #[inline(always)]
    unsafe fn resume<L: Lanes>(p: *const f32) -> L::F {
        L::load(p)
    }
    #[inline(always)]
    unsafe fn to_f32<L: Lanes>(sums: L::F) -> L::F {
        sums
    }
}

impl Operand for Int8 {
    type Factor = i16;
    type Rows<L: Lanes> = L::Pairs;
    type Sums<L: Lanes> = L::I;
    const ROWS: usize = 2;

    #[inline(always)]
    unsafe fn factors<L: Lanes>(x: *const f32, n: usize, most: f32, room: *mut i16) -> (*const i16, f32) {
        let mut absmax = L::zero_i();
        for i in (0..n).step_by(16) {
            absmax = L::max_abs_bits(absmax, load_up_to::<L>(x.add(i), (n - i).min(16)));
        }
        let (factor, scale) = order::integers(f32::from_bits(L::reduce_max_u(absmax)), most);
        for i in (0..n).step_by(16) {
            let x = load_up_to::<L>(x.add(i), (n - i).min(16));
            L::narrow(room.add(i), L::mul(x, L::splat(factor)));
        }
        (room, scale)
    }
    #[inline(always)]
    unsafe fn load<L: Lanes>(first: *const i8, stride: usize) -> L::Pairs {
        L::load_pairs(first, first.add(stride))
    }
    #[inline(always)]
    unsafe fn zero<L: Lanes>() -> L::I {
        L::zero_i()
    }
    #[inline(always)]
    unsafe fn add<L: Lanes>(sums: L::I, rows: L::Pairs, factors: *const i16) -> L::I {
        L::dot_pairs(sums, rows, factors)
    }
    #[inline(always)]
    unsafe fn store<L: Lanes>(p: *mut f32, sums: L::I) {
        L::store_i(p.cast(), sums);
    }
    #[inline(always)]
    unsafe fn resume<L: Lanes>(p: *const f32) -> L::I {
        L::load_i(p.cast())
    }
    #[inline(always)]
    unsafe fn to_f32<L: Lanes>(sums: L::I) -> L::F {
        L::to_f32(sums)
    }
}
