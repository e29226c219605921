//! `ldmatrix` and `mma`. In fragments, lane `4g + q` is at row or column `g`, and `q` counts within it.

use super::step::{Exec, Step};
use crate::inst::{Addr, MmaKind, Reg, WARP};
use crate::matrix_unit::Bf16;
use crate::ops::Lane;
use crate::race::{ANY_LANE, Kind};

impl Step<'_, '_> {
    pub(super) fn load_matrix(&mut self, pc: usize, d: &[Reg], at: Addr, transposed: bool) -> Exec {
        let addresses = self.addresses(at, true)?;
        for (m, &reg) in d.iter().enumerate() {
            let rows: [u64; 8] = std::array::from_fn(|r| addresses[8 * m + r]);
            let mut matrix = [0u128; 8];
            for (row, &address) in matrix.iter_mut().zip(&rows) {
                // Every lane gets a part of every matrix, so the whole warp reads.
                *row = self.at_lane(true, address, 16, ANY_LANE, |region, who| {
                    region.read(address, 16, Kind::READ, who)
                })?;
            }
            self.count_pass(pc, rows.iter().flat_map(|row| (0..4).map(move |i| row / 4 + i)));
            let element = |row: usize, column: usize| (matrix[row] >> (16 * column)) as u16;
            let out = std::array::from_fn(|lane| {
                let (g, q) = (lane / 4, lane % 4);
                let (low, high) = if transposed {
                    (element(2 * q, g), element(2 * q + 1, g))
                } else {
                    (element(g, 2 * q), element(g, 2 * q + 1))
                };
                u64::from(high) << 16 | u64::from(low)
            });
            self.write(reg, &out);
        }
        Ok(())
    }

    pub(super) fn mma(
        &mut self,
        kind: MmaKind,
        d: &[Reg; 4],
        a: &[Reg; 4],
        b: &[Reg; 2],
        c: &[Reg; 4],
    ) -> Exec {
        let mut sum = [[0; WARP]; 4];
        for (sum, &reg) in sum.iter_mut().zip(c) {
            *sum = *self.read(reg)?;
        }
        match kind {
            MmaKind::Int { signed } => {
                let byte = |word: u32, i: usize| (word >> (8 * i)) as u8;
                let number = |word, i| i16::from(byte(word, i) as i8);
                let first = |word, i| if signed { number(word, i) } else { i16::from(byte(word, i)) };
                let (a, b) = self.operands::<i16, 32>(a, b, first, number)?;
                accumulate(&mut sum, |row, column, old| {
                    let products = a[row].iter().zip(&b[column]).map(|(&x, &y)| i32::from(x) * i32::from(y));
                    i32::get(old).wrapping_add(products.sum()).put()
                });
            }
            MmaKind::Bf16 => {
                let element = |word: u32, i: usize| Bf16::new((word >> (16 * i)) as u16);
                let (a, b) = self.operands::<Bf16, 16>(a, b, element, element)?;
                let unit = self.machine.launch.matrix_unit;
                accumulate(&mut sum, |row, column, old| unit.add(&a[row], &b[column], f32::get(old)).put());
            }
        }
        for (sum, &reg) in sum.iter().zip(d) {
            self.write(reg, sum);
        }
        Ok(())
    }

    /// Gathers the matrices a (16 rows of K) and b (8 columns of K) from their fragments; a register holds K / 8
    /// elements.
    #[expect(clippy::type_complexity, reason = "two plain arrays")]
    fn operands<T: Copy + Default, const K: usize>(
        &self,
        a: &[Reg; 4],
        b: &[Reg; 2],
        a_element: impl Fn(u32, usize) -> T,
        b_element: impl Fn(u32, usize) -> T,
    ) -> Exec<([[T; K]; 16], [[T; K]; 8])> {
        let (mut rows, mut columns) = ([[T::default(); K]; 16], [[T::default(); K]; 8]);
        let per = K / 8;
        for (i, &reg) in a.iter().enumerate() {
            for (lane, &word) in self.read(reg)?.iter().enumerate() {
                let row = &mut rows[lane / 4 + 8 * (i & 1)];
                let start = per * (lane % 4) + K / 2 * (i >> 1);
                row[start..start + per]
                    .iter_mut()
                    .enumerate()
                    .for_each(|(x, e)| *e = a_element(word as u32, x));
            }
        }
        for (i, &reg) in b.iter().enumerate() {
            for (lane, &word) in self.read(reg)?.iter().enumerate() {
                let start = per * (lane % 4) + K / 2 * i;
                let column = &mut columns[lane / 4];
                column[start..start + per]
                    .iter_mut()
                    .enumerate()
                    .for_each(|(x, e)| *e = b_element(word as u32, x));
            }
        }
        Ok((rows, columns))
    }
}

/// Updates every element of the accumulator, given its row and column in d.
fn accumulate(sum: &mut [[u64; WARP]; 4], f: impl Fn(usize, usize, u64) -> u64) {
    for (i, values) in sum.iter_mut().enumerate() {
        for (lane, value) in values.iter_mut().enumerate() {
            *value = f(lane / 4 + 8 * (i >> 1), 2 * (lane % 4) + (i & 1), *value);
        }
    }
}
