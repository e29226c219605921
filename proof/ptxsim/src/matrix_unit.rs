//! How the matrix units of a GPU add products of bf16 values, as measured on silicon: Xie, Chen et al., "MMA-Sim:
//! Bit-Accurate Reference Model of Tensor Cores and Matrix Cores".

/// The arithmetic of `mma.m16n8k16` with bf16 operands and f32 accumulators.
///
/// A unit adds the products of a group of columns and the accumulator in one piece. The sum of exponents of two factors
/// is the exponent of their product; the largest of a group decides where all terms are cut off, towards zero. Their
/// exact sum is cut off again, to f32.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MatrixUnit {
    /// Compute capability 8.x: two groups of 8 columns, one after the other, with 24 bits after the point.
    Ampere,
    /// 9.0 and newer: one group of 16 columns, with 25 bits.
    Hopper,
}

impl MatrixUnit {
    /// The unit of a GPU.
    pub fn of(capability: (u32, u32)) -> Self {
        if capability < (9, 0) { MatrixUnit::Ampere } else { MatrixUnit::Hopper }
    }

    /// Columns that are added at once.
    fn group(self) -> usize {
        match self {
            MatrixUnit::Ampere => 8,
            MatrixUnit::Hopper => 16,
        }
    }

    /// Bits after the point of the largest term that others keep.
    fn fraction(self) -> i32 {
        match self {
            MatrixUnit::Ampere => 24,
            MatrixUnit::Hopper => 25,
        }
    }

    /// Bound of the error of a dot product of `columns` columns, as a part of the sum of the products' absolute values.
    ///
    /// No term and no sum of a group exceeds that total. Cutting off a term loses less than `2^-fraction` of the
    /// largest, and cutting off the sum loses less than `2^-23` of itself.
    pub fn error(self, columns: usize) -> f64 {
        let terms = self.group() as f64 + 1.0;
        let group = terms * 2f64.powi(-self.fraction()) + 2f64.powi(-23);
        columns.div_ceil(self.group()) as f64 * group
    }

    /// Adds the dot product of `a` and `b` to `c`.
    pub(crate) fn add(self, a: &[Bf16; 16], b: &[Bf16; 16], c: f32) -> f32 {
        let groups = a.chunks(self.group()).zip(b.chunks(self.group()));
        groups.fold(c, |sum, (a, b)| self.add_group(a, b, sum))
    }

    fn add_group(self, a: &[Bf16], b: &[Bf16], c: f32) -> f32 {
        let products = || a.iter().zip(b).map(|(a, b)| (a.value * b.value, a.exponent + b.exponent));
        let terms = || products().chain([(f64::from(c), exponent(c.to_bits()))]);
        let mut largest = MIN_EXPONENT;
        let mut special = false;
        for (value, exponent) in terms() {
            special |= !value.is_finite();
            if value != 0.0 {
                largest = largest.max(exponent);
            }
        }
        if special {
            let sum = terms().map(|(value, _)| value).sum::<f64>() as f32;
            return if sum.is_nan() { f32::from_bits(NAN) } else { sum };
        }
        let shift = self.fraction() - largest;
        // A conversion to an integer cuts off towards zero.
        let sum: i64 = terms().map(|(value, _)| (value * power(shift)) as i64).sum();
        towards_zero(sum as f64 * power(-shift))
    }
}

/// Exponent of the smallest normal number, and of zero and subnormal numbers.
const MIN_EXPONENT: i32 = -126;
/// The only bits of a result that is not a number.
const NAN: u32 = 0x7FFF_FFFF;

/// A bf16 operand.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Bf16 {
    value: f64,
    exponent: i32,
}

impl Bf16 {
    pub(crate) fn new(bits: u16) -> Self {
        let bits = u32::from(bits) << 16;
        Bf16 { value: f64::from(f32::from_bits(bits)), exponent: exponent(bits) }
    }
}

/// The exponent of an f32 by its bits.
fn exponent(bits: u32) -> i32 {
    ((bits >> 23 & 0xFF) as i32 - 127).max(MIN_EXPONENT)
}

fn power(exponent: i32) -> f64 {
    f64::from_bits(((exponent + 1023) as u64) << 52)
}

fn towards_zero(x: f64) -> f32 {
    let nearest = x as f32;
    let beyond = f64::from(nearest).abs() > x.abs() && x.abs() < power(128);
    f32::from_bits(nearest.to_bits() - u32::from(beyond))
}
