//! Decodes stored float types to f32. Block layouts are ggml's (`ggml-common.h`).

use half::{bf16, f16};

use crate::DType;

/// Decodes whole rows of `dtype`. `bytes` and `out` must hold the same number of elements.
pub(crate) fn decode(dtype: DType, bytes: &[u8], out: &mut [f32]) {
    match dtype {
        DType::F32 => each::<4>(bytes, out, f32::from_le_bytes),
        DType::F16 => each::<2>(bytes, out, |b| f16::from_le_bytes(b).to_f32()),
        DType::BF16 => each::<2>(bytes, out, |b| bf16::from_le_bytes(b).to_f32()),
        DType::Q8_0 => blocks::<34, 32>(bytes, out, q8_0),
        DType::Q6K => blocks::<210, 256>(bytes, out, q6_k),
        DType::Q4K => blocks::<144, 256>(bytes, out, |b, out| k_quants(b, None, &b[16..], out)),
        DType::Q5K => blocks::<176, 256>(bytes, out, |b, out| k_quants(b, Some(&b[16..48]), &b[48..], out)),
        DType::Q4_0 => blocks::<18, 32>(bytes, out, |b, out| nibbles(b, false, None, out)),
        DType::Q4_1 => blocks::<20, 32>(bytes, out, |b, out| nibbles(b, true, None, out)),
        DType::Q5_0 => blocks::<22, 32>(bytes, out, |b, out| nibbles(b, false, b[2..].first_chunk(), out)),
        DType::Q5_1 => blocks::<24, 32>(bytes, out, |b, out| nibbles(b, true, b[4..].first_chunk(), out)),
        DType::I8 | DType::U8 | DType::I32 | DType::U32 | DType::I64 => {
            panic!("{dtype} is not a float type")
        }
    }
}

#[inline(always)]
fn each<const B: usize>(bytes: &[u8], out: &mut [f32], value: impl Fn([u8; B]) -> f32) {
    let (chunks, _) = bytes.as_chunks::<B>();
    for (o, &b) in out.iter_mut().zip(chunks) {
        *o = value(b);
    }
}

#[inline(always)]
fn blocks<const B: usize, const N: usize>(
    bytes: &[u8],
    out: &mut [f32],
    block: impl Fn(&[u8; B], &mut [f32; N]),
) {
    let (from, _) = bytes.as_chunks::<B>();
    let (to, _) = out.as_chunks_mut::<N>();
    for (b, o) in from.iter().zip(to) {
        block(b, o);
    }
}

fn f16_at(b: &[u8], at: usize) -> f32 {
    f16::from_le_bytes([b[at], b[at + 1]]).to_f32()
}

/// `d` f16, then 32 signed quants: `x = d * q`.
fn q8_0(b: &[u8; 34], out: &mut [f32; 32]) {
    let d = f16_at(b, 0);
    for (o, &q) in out.iter_mut().zip(&b[2..]) {
        *o = d * f32::from(q as i8);
    }
}

/// 128 bytes of low nibbles, 64 bytes of high bit pairs, 16 signed scales, `d` f16: `x = d * scale * (q - 32)`.
fn q6_k(b: &[u8; 210], out: &mut [f32; 256]) {
    let d = f16_at(b, 208);
    for half in 0..2 {
        let low = &b[64 * half..];
        let high = &b[128 + 32 * half..];
        let scales = &b[192 + 8 * half..];
        // Four quants share one byte of high bits. Each quarter has 32 quants, and each half of it its own scale.
        for quarter in 0..4 {
            for part in 0..2 {
                let scale = d * f32::from(scales[2 * quarter + part] as i8);
                let low = &low[32 * (quarter % 2) + 16 * part..][..16];
                let out = &mut out[128 * half + 32 * quarter + 16 * part..][..16];
                for ((o, l), h) in out.iter_mut().zip(low).zip(&high[16 * part..]) {
                    let nibble = l >> (4 * (quarter / 2)) & 15;
                    *o = scale * (i32::from(nibble | (h >> (2 * quarter) & 3) << 4) - 32) as f32;
                }
            }
        }
    }
}

/// `d` f16, `m` f16 if there is a `minimum`, the fifth bits if there are any, 16 bytes of nibbles: `x = d * q + m`, or
/// `x = d * (q - 8)` (with five bits 16) without a minimum. Element `j` is in the low nibble of byte `j`, element
/// `j + 16` in the high one, and bit `j` of the fifth bits belongs to element `j`.
fn nibbles(b: &[u8], minimum: bool, fifth: Option<&[u8; 4]>, out: &mut [f32; 32]) {
    let (d, m) = (f16_at(b, 0), if minimum { f16_at(b, 2) } else { 0.0 });
    let zero = if minimum { 0 } else { 8 << usize::from(fifth.is_some()) };
    let fifth = fifth.map_or(0, |bits| u32::from_le_bytes(*bits));
    let packed = &b[b.len() - 16..];
    for (j, out) in out.iter_mut().enumerate() {
        let nibble = u32::from(packed[j % 16] >> (4 * (j / 16)) & 15);
        let q = (nibble | (fifth >> j & 1) << 4) as i32 - zero;
        *out = d * q as f32 + m;
    }
}

/// `d`, `dmin` f16, 12 bytes of 6-bit scales and minima, with five bits 32 bytes `fifth`, 128 bytes of nibbles:
/// `x = d * scale * q - dmin * min`. Bit `g` of byte `l` of `fifth` belongs to element `l` of group `g`.
fn k_quants(b: &[u8], fifth: Option<&[u8]>, nibbles: &[u8], out: &mut [f32; 256]) {
    let (d, dmin) = (f16_at(b, 0), f16_at(b, 2));
    for (group, (scale, min)) in k_scales(&b[4..16]).into_iter().enumerate() {
        let (scale, min) = (d * f32::from(scale), dmin * f32::from(min));
        let nibbles = &nibbles[32 * (group / 2)..][..32];
        for (l, &byte) in nibbles.iter().enumerate() {
            let q = byte >> (4 * (group % 2)) & 15 | fifth.map_or(0, |bits| (bits[l] >> group & 1) << 4);
            out[32 * group + l] = scale * f32::from(q) - min;
        }
    }
}

/// The 6-bit scales and minima of the eight groups of a block of Q4_K or Q5_K, from the 12 bytes that hold them.
///
/// # Panics
/// If there are fewer bytes.
pub fn k_scales(packed: &[u8]) -> [(u8, u8); 8] {
    std::array::from_fn(|group| match group {
        0..4 => (packed[group] & 63, packed[group + 4] & 63),
        _ => (
            packed[group + 4] & 15 | (packed[group - 4] >> 6) << 4,
            packed[group + 4] >> 4 | (packed[group] >> 6) << 4,
        ),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn q8_0_multiplies_each_quant_by_the_scale() {
        let mut b = [0u8; 34];
        b[..2].copy_from_slice(&f16::from_f32(0.5).to_le_bytes());
        b[2] = 127;
        b[33] = -128i8 as u8;
        let mut out = [0.0; 32];
        decode(DType::Q8_0, &b, &mut out);
        assert_eq!((out[0], out[1], out[31]), (63.5, 0.0, -64.0));
    }

    #[test]
    fn q6_k_joins_low_nibble_and_high_pair() {
        let mut b = [0u8; 210];
        b[208..].copy_from_slice(&f16::from_f32(1.0).to_le_bytes());
        b[192..208].fill(1);
        // Element 32 of the first half: low byte 32, high pair at bits 2..4 of byte 0.
        b[32] = 0x05;
        b[128] = 0b1000;
        // Element 96 + 3 of the second half: upper nibble of low byte 64 + 35, bits 6..8 of high byte 32 + 3.
        b[64 + 35] = 0xA0;
        b[128 + 32 + 3] = 0b0100_0000;
        b[192 + 8 + 6] = 2;
        let mut out = [0.0; 256];
        decode(DType::Q6K, &b, &mut out);
        assert_eq!(out[32], (5 + 32) as f32 - 32.0);
        assert_eq!(out[128 + 96 + 3], 2.0 * ((10 + 16) as f32 - 32.0));
        assert_eq!(out[1], -32.0);
    }

    #[test]
    fn q4_k_reads_six_bit_scales_and_minima() {
        let mut b = [0u8; 144];
        b[..2].copy_from_slice(&f16::from_f32(1.0).to_le_bytes());
        b[2..4].copy_from_slice(&f16::from_f32(2.0).to_le_bytes());
        b[4] = 3 | 0b01 << 6; // scale of group 0; upper bits of the scale of group 4
        b[8] = 5 | 0b10 << 6; // minimum of group 0; upper bits of the minimum of group 4
        b[12] = 7 | 9 << 4; // lower bits of scale and minimum of group 4
        b[16] = 6; // element 0
        b[16 + 64] = 4; // element 0 of group 4
        let mut out = [0.0; 256];
        decode(DType::Q4K, &b, &mut out);
        assert_eq!(out[0], 3.0 * 6.0 - 2.0 * 5.0);
        assert_eq!(out[128], (7 + 16) as f32 * 4.0 - 2.0 * (9 + 32) as f32);
    }
    #[test]
    fn q5_k_adds_a_fifth_bit_for_each_group() {
        let mut b = [0u8; 176];
        b[..2].copy_from_slice(&f16::from_f32(1.0).to_le_bytes());
        (b[4], b[5]) = (3, 2); // scales of groups 0 and 1
        b[16 + 7] = 0b10; // fifth bit of element 7 of group 1
        b[48 + 7] = 6 | 9 << 4; // element 7 of groups 0 and 1
        let mut out = [0.0; 256];
        decode(DType::Q5K, &b, &mut out);
        assert_eq!((out[7], out[32 + 7]), (3.0 * 6.0, 2.0 * (9 + 16) as f32));
    }

    #[test]
    fn blocks_of_32_have_a_low_half_a_high_half_and_fifth_bits() {
        let decoded = |dtype: DType, head: &[u8]| {
            let mut b = f16::from_f32(0.5).to_le_bytes().to_vec();
            b.extend(head);
            let mut quants = [0; 16];
            quants[3] = 0x2B; // element 3 is 11, element 19 is 2
            b.extend(quants);
            assert_eq!(b.len(), dtype.block_bytes());
            let mut out = [0.0; 32];
            decode(dtype, &b, &mut out);
            (out[3], out[19], out[0])
        };
        let minimum = f16::from_f32(-1.0).to_le_bytes();
        let fifth = (1u32 << 19).to_le_bytes();
        assert_eq!(decoded(DType::Q4_0, &[]), (0.5 * 3.0, 0.5 * -6.0, 0.5 * -8.0));
        assert_eq!(decoded(DType::Q4_1, &minimum), (5.5 - 1.0, 1.0 - 1.0, -1.0));
        assert_eq!(decoded(DType::Q5_0, &fifth), (0.5 * -5.0, 0.5 * 2.0, 0.5 * -16.0));
        assert_eq!(decoded(DType::Q5_1, &[&minimum[..], &fifth].concat()), (5.5 - 1.0, 9.0 - 1.0, -1.0));
    }
}
