use super::{Buffer, Driver, Gpu, GpuError};

/// Tokens of an atom: eight rows of [`K_TILE`] bytes whose 16-byte chunks are swizzled, so that a matrix load of
/// eight rows touches every bank once.
const ATOM_TOKENS: usize = 8;
/// Features of an atom, and of a tile of weights.
pub(super) const K_TILE: usize = 128;
/// Tokens are padded to the largest tile of a kernel, so that a tile never ends beyond the buffer.
const TOKEN_PADDING: usize = 128;

/// int8 activations in layout XQ: atoms `[k / 128][token / 8]`, in an atom row `token % 8`, chunk
/// `(k % 128 / 16) ^ (token % 8)`. What pads `width` and the tokens is zero.
#[derive(Debug)]
pub struct Quants {
    pub(super) rows: usize,
    pub(super) width: usize,
    /// Atoms along the tokens.
    pub(super) atoms: usize,
    /// `[k_tiles][atoms][1024]` s8
    pub(super) values: Buffer,
    /// `[8 * atoms]` of {f32 multiplier, s32 sum}
    pub(super) scales: Buffer,
}

/// Values `[n][width]`, multipliers and sums of rows.
type QuantRows = (Vec<i8>, Vec<f32>, Vec<i32>);

impl Quants {
    /// Where a value lies.
    fn at(&self, token: usize, k: usize) -> usize {
        let (tile, column) = (k / K_TILE, k % K_TILE);
        let row = token % ATOM_TOKENS;
        let atom = tile * self.atoms + token / ATOM_TOKENS;
        atom * ATOM_TOKENS * K_TILE + row * K_TILE + ((column / 16) ^ row) * 16 + column % 16
    }
}

impl<D: Driver> Gpu<D> {
    /// Zeroed int8 activations.
    pub fn quants(&mut self, rows: usize, width: usize) -> Result<Quants, GpuError> {
        let tokens = rows.next_multiple_of(TOKEN_PADDING);
        let values = self.alloc(tokens * width.next_multiple_of(K_TILE), "int8 activations")?;
        let scales = self.alloc(8 * tokens, "scales of int8 activations")?;
        Ok(Quants { rows, width, atoms: tokens / ATOM_TOKENS, values, scales })
    }

    /// The first `n` rows: values, multipliers and sums.
    pub fn read_quants(&mut self, x: &Quants, n: usize) -> Result<QuantRows, GpuError> {
        assert!(n <= x.rows, "what is read lies in the buffer");
        let bytes = self.fetch(&x.values, x.values.bytes())?;
        let values =
            (0..n).flat_map(|t| (0..x.width).map(move |k| (t, k))).map(|(t, k)| bytes[x.at(t, k)] as i8);
        let values = values.collect();
        let scales = self.fetch(&x.scales, 8 * n)?;
        let (words, _) = scales.as_chunks::<4>();
        let multipliers = words.iter().step_by(2).map(|&w| f32::from_le_bytes(w)).collect();
        let sums = words.iter().skip(1).step_by(2).map(|&w| i32::from_le_bytes(w)).collect();
        Ok((values, multipliers, sums))
    }
    /// Writes rows of values (`[n][width]`), multipliers and sums, for tests.
    pub fn write_quants(
        &mut self,
        x: &Quants,
        values: &[i8],
        multipliers: &[f32],
        sums: &[i32],
    ) -> Result<(), GpuError> {
        let mut bytes = vec![0; x.values.bytes()];
        for (i, &value) in values.iter().enumerate() {
            bytes[x.at(i / x.width, i % x.width)] = value as u8;
        }
        self.send(x.values.address(), &bytes)?;
        let scales = multipliers.iter().zip(sums);
        let scales: Vec<u8> =
            scales.flat_map(|(m, s)| [m.to_le_bytes(), s.to_le_bytes()]).flatten().collect();
        self.send(x.scales.address(), &scales)
    }
}
