//! Records and replays a known sequence of launches when a GPU is opened, so that a driver that fails at recordings
//! does so before a request depends on one.

use bitnet_tensor::TernaryTensor;

use super::{Driver, Gpu, GpuError, Int8Rows, Linear, Recorded, Rows};
use crate::{Grouping, RowOrder, RowsKind};

/// Rows: more than one, because the product of one row would include its quantisation.
const ROWS: usize = 2;
/// Columns, and rows of the matrix.
const WIDTH: usize = 128;
/// Rounds of two launches, each of which needs the values of the one before.
const ROUNDS: usize = 6;
/// Largest value at the start.
const LARGEST: i64 = 500;

/// Memory of the sequence.
struct Sequence {
    x: Rows,
    quantized: Int8Rows,
    weights: Linear,
}

impl<D: Driver> Gpu<D> {
    /// Runs the sequence one by one, then as a recording, twice. If the driver fails while it makes or starts a
    /// recording, the GPU goes on in a simpler way.
    ///
    /// # Errors
    /// If the GPU fails later, or a recording computes other values.
    pub(super) fn try_recordings(&mut self) -> Result<(), GpuError> {
        if !self.driver.compiles() || self.recordings().how == Recorded::Never {
            return Ok(());
        }
        let mut sequence = self.sequence()?;
        let expected = self.run_sequence(&mut sequence)?;
        for _ in 0..2 {
            if self.run_sequence(&mut sequence)? != expected {
                let reason = "it computes other values than its launches".to_owned();
                return Err(GpuError::Failed { during: "the replay of a recording", reason });
            }
        }
        for unused in self.queue.forget() {
            self.driver.discard(unused);
        }
        drop(sequence);
        for address in self.returned.take() {
            self.driver.free(address);
        }
        Ok(())
    }

    fn sequence(&mut self) -> Result<Sequence, GpuError> {
        let trits: Vec<i8> = (0..WIDTH * WIDTH).map(|i| (i * i % 11 % 3) as i8 - 1).collect();
        let weights = TernaryTensor::from_trits(WIDTH, WIDTH, &trits, 0.25).expect("trits and a scale");
        Ok(Sequence {
            x: self.rows(ROWS, WIDTH, RowsKind::Residual)?,
            quantized: self.int8_rows(ROWS, WIDTH, Grouping::Row)?,
            weights: self.linear(&weights, RowOrder::Plain)?,
        })
    }

    /// The bits of the last residual, in which every launch left its trace.
    fn run_sequence(&mut self, sequence: &mut Sequence) -> Result<Vec<u32>, GpuError> {
        let Sequence { x, quantized, weights } = sequence;
        let first = (0..ROWS * WIDTH).map(|i| ((i * i) as i64 % (2 * LARGEST) - LARGEST) as f32);
        self.write_rows(x, &first.collect::<Vec<_>>())?;
        for _ in 0..ROUNDS {
            self.norm_quantize(ROWS, x, [None, None], None, quantized)?;
            self.bit_linear(ROWS, quantized, weights, x, 0, Some(1.0))?;
        }
        self.finish()?;
        Ok(self.read_rows(x, ROWS)?.into_iter().map(f32::to_bits).collect())
    }
}
