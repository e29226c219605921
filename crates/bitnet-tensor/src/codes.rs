//! The 2-bit codes of a matrix, `[rows][ceil(cols / 4)]` u8: bits `2i..2i+2` of byte `j` hold the code of column `4j + i`.

use crate::{DType, TensorError};

pub(crate) const fn row_bytes(cols: usize) -> usize {
    cols.div_ceil(4)
}

/// Clears the unused codes at the end of every row.
pub(crate) fn clear_padding(codes: &mut [u8], cols: usize) {
    if !cols.is_multiple_of(4) {
        let (stride, mask) = (row_bytes(cols), (1u8 << (2 * (cols % 4))) - 1);
        codes.iter_mut().skip(stride - 1).step_by(stride).for_each(|byte| *byte &= mask);
    }
}

/// The values of a row of codes, in column order: each code minus 1.
pub(crate) fn values(row: &[u8], cols: usize) -> impl Iterator<Item = i8> + '_ {
    row.iter().flat_map(|&b| [b & 3, b >> 2 & 3, b >> 4 & 3, b >> 6]).take(cols).map(|code| code as i8 - 1)
}

/// Finds the first code 3, which stands for no trit: the index of its byte, and its position within the byte.
pub fn find_code_three(codes: &[u8]) -> Option<(usize, usize)> {
    // A code is 3 if and only if both of its bits are set. One pass over all codes comes first; the search for the
    // byte runs only if there is one.
    let both = |b: u8| b & (b >> 1) & 0x55;
    if codes.iter().fold(0, |seen, &b| seen | both(b)) == 0 {
        return None;
    }
    let at = codes.iter().position(|&b| both(b) != 0)?;
    Some((at, both(codes[at]).trailing_zeros() as usize / 2))
}

/// Returns an error unless `actual` is the number of bytes that the shape needs.
pub(crate) fn check_length(shape: [usize; 2], dtype: DType, actual: usize) -> Result<(), TensorError> {
    let bytes = shape[0].checked_mul(shape[1]).and_then(|n| n.checked_mul(dtype.block_bytes()));
    let expected = bytes.ok_or_else(|| TensorError::Overflow { shape: shape.into(), dtype })?;
    if actual != expected {
        return Err(TensorError::ByteLength { shape: shape.into(), dtype, expected, actual });
    }
    Ok(())
}
