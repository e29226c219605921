//! Random numbers of a draw: each token of the vocabulary gets an arrival time, a function of (seed, choice, position,
//! token).
//!
//! Arrival times are independent and exponentially distributed with mean 1. They are made in groups of
//! [`GROUP`] tokens, so that most are never computed: the first arrival of a group is a number of its own (the minimum of
//! [`GROUP`] such times has the same distribution, [`GROUP`] times faster), it belongs to a random member, and because such
//! times have no memory, every other member arrives a fresh exponential time later. A token whose group's first arrival
//! is too late needs no number.

use crate::order::LN_POLY;

/// Tokens that share a first arrival.
pub const GROUP: usize = 64;

/// Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011): ten rounds of two 32-bit
/// multiplications, with two Weyl constants to advance the key.
#[inline(always)]
pub fn philox4x32(mut counter: [u32; 4], mut key: [u32; 2]) -> [u32; 4] {
    for _ in 0..10 {
        let a = u64::from(counter[0]) * 0xD251_1F53;
        let b = u64::from(counter[2]) * 0xCD9E_8D57;
        counter = [
            (b >> 32) as u32 ^ counter[1] ^ key[0],
            b as u32,
            (a >> 32) as u32 ^ counter[3] ^ key[1],
            a as u32,
        ];
        key = [key[0].wrapping_add(0x9E37_79B9), key[1].wrapping_add(0xBB67_AE85)];
    }
    counter
}

/// What a word of [`Arrivals`] is for; the last word of its counter.
#[derive(Clone, Copy)]
enum Purpose {
    /// The first arrival of a group, by group.
    First = 0,
    /// The member that arrives first, by group.
    Member = 1,
    /// How much later any other member arrives, by token.
    Later = 2,
}

/// The arrival times of all tokens for one draw.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Arrivals {
    key: [u32; 2],
    position: u32,
    choice: u32,
}

impl Arrivals {
    /// The arrival times for the token at `position` of choice number `choice` of a request with `seed`.
    pub fn new(seed: u64, choice: u32, position: u32) -> Self {
        Arrivals { key: [seed as u32, (seed >> 32) as u32], position, choice }
    }

    /// Four words, numbers `4 quad..` of their purpose. Key = seed, low word first; counter = (position, quad, choice,
    /// purpose).
    #[inline(always)]
    fn words(&self, quad: usize, purpose: Purpose) -> [u32; 4] {
        philox4x32([self.position, quad as u32, self.choice, purpose as u32], self.key)
    }

    /// The first arrivals of groups `4 quad..`.
    pub fn firsts(&self, quad: usize) -> [f32; 4] {
        self.words(quad, Purpose::First).map(|word| exponential(word) / GROUP as f32)
    }

    /// The member of a group that arrives first.
    pub fn member(&self, group: usize) -> usize {
        self.words(group / 4, Purpose::Member)[group % 4] as usize % GROUP
    }

    /// The arrival time of a token, given its group's first arrival and the member that it belongs to.
    pub fn of(&self, token: usize, first: f32, member: usize) -> f32 {
        if token % GROUP == member { first } else { first + self.delay(token as u32) }
    }

    /// How much later than its group's first a token arrives that is not the first.
    #[inline(always)]
    pub(crate) fn delay(&self, token: u32) -> f32 {
        // By two choices, which vectors can make.
        let [a, b, c, d] = self.words(token as usize / 4, Purpose::Later);
        let [low, high] = if token & 1 == 0 { [a, c] } else { [b, d] };
        exponential(if token & 2 == 0 { low } else { high })
    }

    /// [`Self::firsts`] and [`Self::member`] of groups `4 quad..`.
    #[inline(always)]
    pub(crate) fn firsts_and_members(&self, quad: usize) -> [First; 4] {
        let (firsts, members) = (self.words(quad, Purpose::First), self.words(quad, Purpose::Member));
        std::array::from_fn(|i| {
            let time = exponential(firsts[i]) / GROUP as f32;
            First { time, score: -ln(time), member: members[i] % GROUP as u32 }
        })
    }
}

/// The first arrival of a group of tokens.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct First {
    pub(crate) time: f32,
    /// Minus [`ln`] of the time.
    pub(crate) score: f32,
    /// The member that arrives.
    pub(crate) member: u32,
}

/// An exponentially distributed number with mean 1 from 32 random bits, the lowest of which does not matter:
/// `-ln(1 - u)` with `u = (word | 1) / 2^32`, so that small numbers have the precision of a float.
///
/// The order of operations, without fused ones: `v` is `u`, or for `u` above a half `1 - 2^k (1 - u)`, whose last factor
/// has `k` halvings; then `s = v / (2 - v)`, `z = s s`, the polynomial `p` of [`crate::order::ln_1p`] in `z` by Horner's rule,
/// `(s z) p + (s + s)`, and `k ln 2` is added.
#[inline(always)]
pub fn exponential(word: u32) -> f32 {
    let is_low = word >> 31 == 0;
    // The lower of both is below 2^31, so that it is converted as a signed number, which vectors can be.
    let bits = (((if is_low { word } else { !word }) | 1) as i32 as f32).to_bits();
    let halvings = 158 - (bits >> 23) as i32;
    let rest = f32::from_bits(bits & 0x007f_ffff | 0x3f00_0000);
    let low = f32::from_bits(bits) * (1.0 / 4_294_967_296.0);
    let small = minus_ln_1m(if is_low { low } else { 1.0 - rest });
    small + if is_low { 0.0 } else { halvings as f32 * std::f32::consts::LN_2 }
}

/// `-ln(1 - v)` for `v` up to 1/2, which is `ln((1 + s) / (1 - s))`.
#[inline(always)]
fn minus_ln_1m(v: f32) -> f32 {
    let s = v / (2.0 - v);
    let z = s * s;
    let p = LN_POLY[1..].iter().fold(LN_POLY[0], |p, &c| p * z + c);
    s * z * p + (s + s)
}

/// The logarithm of a number between 2^-40 and 2^40, off by less than 4e-6: for numbers that are compared with a margin.
#[inline(always)]
pub(crate) fn ln(x: f32) -> f32 {
    let bits = x.to_bits();
    let doublings = (bits >> 23) as i32 - 126;
    let rest = f32::from_bits(bits & 0x007f_ffff | 0x3f00_0000);
    doublings as f32 * std::f32::consts::LN_2 - minus_ln_1m(1.0 - rest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn philox_agrees_with_the_published_known_answers() {
        assert_eq!(philox4x32([0; 4], [0; 2]), [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]);
        assert_eq!(
            philox4x32([u32::MAX; 4], [u32::MAX; 2]),
            [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]
        );
        assert_eq!(
            philox4x32([0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344], [0xa409_3822, 0x299f_31d0]),
            [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1]
        );
    }

    #[test]
    fn exponential_numbers_are_accurate_to_a_few_units_from_the_smallest_to_the_largest() {
        let spread = (0..200_000u32).map(|i| i.wrapping_mul(21_475));
        let edges = [0, 1, 2, 3, 1 << 31, (1 << 31) - 1, (1 << 31) + 1, u32::MAX, u32::MAX - 1, u32::MAX - 2];
        for word in spread.chain(edges) {
            let rest = 1.0 - f64::from(word | 1) / 4_294_967_296.0;
            let (got, want) = (f64::from(exponential(word)), -(rest.ln()));
            assert!(((got - want) / want).abs() < 5e-7, "{word:#x}: {got}, not {want}");
        }
        assert!(exponential(0) > 0.0 && exponential(u32::MAX).is_finite());
    }

    #[test]
    fn logarithms_are_as_accurate_as_their_margins_need() {
        for i in -40_000..40_000 {
            let x = 2f64.powf(f64::from(i) * 1e-3) as f32;
            let (got, want) = (f64::from(ln(x)), f64::from(x).ln());
            assert!((got - want).abs() < 4e-6, "ln({x}) = {got}, not {want}");
        }
    }

    #[test]
    fn the_firsts_of_a_quad_are_those_of_its_groups() {
        let arrivals = Arrivals::new(77, 3, 1000);
        for (i, first) in arrivals.firsts_and_members(9).into_iter().enumerate() {
            assert_eq!(first.time, arrivals.firsts(9)[i]);
            assert_eq!(first.member as usize, arrivals.member(36 + i));
            assert_eq!(first.score, -ln(first.time));
        }
    }

    #[test]
    fn first_arrivals_are_the_earliest_of_their_groups_and_spread_evenly_over_members() {
        let mut members = [0u32; GROUP];
        let draws = 6400;
        let mut sum = 0.0;
        for position in 0..draws / 4 {
            let arrivals = Arrivals::new(5, 2, position);
            for (group, first) in arrivals.firsts(1).into_iter().enumerate().map(|(i, first)| (4 + i, first))
            {
                let member = arrivals.member(group);
                members[member] += 1;
                sum += f64::from(first);
                let times = (0..GROUP).map(|i| arrivals.of(GROUP * group + i, first, member));
                assert!(
                    times.clone().all(|time| time >= first) && times.into_iter().any(|time| time == first)
                );
            }
        }
        // 100 times each on average.
        assert!(members.iter().all(|&n| (60..145).contains(&n)), "{members:?}");
        let mean = sum / f64::from(draws) * GROUP as f64;
        assert!((mean - 1.0).abs() < 0.06, "{mean}");
    }

    /// The times of all members of a group, sorted into ten equally likely parts.
    #[test]
    fn arrival_times_are_exponentially_distributed() {
        let mut parts = [0.0; 10];
        for position in 0..2000 {
            let arrivals = Arrivals::new(9, 0, position);
            let (first, member) = (arrivals.firsts(0)[1], arrivals.member(1));
            for token in GROUP..2 * GROUP {
                let below = 1.0 - (-f64::from(arrivals.of(token, first, member))).exp();
                parts[(10.0 * below) as usize] += 1.0;
            }
        }
        let expected = 2000.0 * GROUP as f64 / 10.0;
        let chi: f64 = parts.iter().map(|n| (n - expected) * (n - expected) / expected).sum();
        assert!(chi < 33.0, "chi-square {chi} with 9 degrees of freedom: {parts:?}");
    }
}
