use super::{Buffer, Driver, Gpu, GpuError, layout::u32_bytes};

/// Small arrays that tell the kernels about a step. Each has one place on the device, and travels only when it is
/// not what lies there: all layers of a step share what the first one sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Upload {
    /// u32 `[n]`: token ids.
    Tokens,
    /// `[n]` of [`super::Ask`].
    Asks,
    /// `[n]` of [`super::Penalty`].
    Penalties,
    /// u32 `[n]`: rows whose logits are wanted.
    Wanted,
    /// u32 `[n]`: positions of the tokens in their sequences.
    Positions,
    /// u32 `[n]`: `64 * block + slot` of the tokens' keys and values.
    Slots,
    /// u32: the block lists of all runs.
    Blocks,
    /// u32 `[8]` for each block of threads that attends for few rows: its piece of a run.
    FewRows,
    /// The same for many rows.
    ManyRows,
}

/// How many kinds there are.
const KINDS: usize = Upload::ManyRows as usize + 1;

/// What lies on the device.
#[derive(Debug, Default)]
pub(super) struct Uploads {
    places: [Option<Place>; KINDS],
}

#[derive(Debug)]
struct Place {
    host: Vec<u8>,
    device: Buffer,
}

impl<D: Driver> Gpu<D> {
    /// Makes sure that `words` are on the device, and gives their address.
    pub(super) fn upload(
        &mut self,
        what: Upload,
        words: impl IntoIterator<Item = u32>,
    ) -> Result<u64, GpuError> {
        let bytes = u32_bytes(words);
        let old = self.uploads.places[what as usize].take();
        let place = match old {
            Some(place) if place.host == bytes => place,
            Some(place) if place.device.bytes() >= bytes.len() => {
                self.driver.write(place.device.address(), &bytes)?;
                Place { host: bytes, ..place }
            }
            _ => {
                let device = self.alloc(bytes.len().next_power_of_two(), "the inputs of a step")?;
                self.driver.write(device.address(), &bytes)?;
                Place { host: bytes, device }
            }
        };
        let address = place.device.address();
        self.uploads.places[what as usize] = Some(place);
        Ok(address)
    }
}
