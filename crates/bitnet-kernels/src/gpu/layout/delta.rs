//! What gated-delta layers hold in device memory.

use crate::gpu::{DeviceBuffer, Driver, Gpu, GpuError, layout::f32_bytes};
use crate::{DeltaShape, DeltaWeights};

/// Maximum width of a head for the kernels of gated-delta layers.
const MAX_DELTA_HEAD: usize = 128;

/// The dense parameters of a gated-delta layer.
#[derive(Debug)]
pub struct Delta {
    pub(in crate::gpu) shape: DeltaShape,
    /// f32 `[taps][channels]`
    pub(in crate::gpu) conv: DeviceBuffer,
    /// f32, one for each value head.
    pub(in crate::gpu) a: DeviceBuffer,
    pub(in crate::gpu) dt_bias: DeviceBuffer,
    /// f32 `[head_dim]`
    pub(in crate::gpu) norm: DeviceBuffer,
    pub(in crate::gpu) eps: f32,
}

/// The recurrent states of one layer, f32 `[slots][state_len]`: first `[value_heads][keys / 16][values][4][4]`, with key
/// `16 c + 4 j + q` at `[c][..][q][j]`, then the last inputs of the convolution. The input of position `p` is in row
/// `p % (taps - 1)`, so that a token replaces the oldest.
#[derive(Debug)]
pub struct State {
    pub(in crate::gpu) shape: DeltaShape,
    pub(in crate::gpu) slots: usize,
    pub(in crate::gpu) values: DeviceBuffer,
    /// f32 `[slots][room][gpu_log_len]`: the drafts of the last run of each slot, in order. A draft has its input of the
    /// convolution, then its keys, changes and decays, heads as between the kernels of a layer.
    pub(in crate::gpu) log: Option<DeviceBuffer>,
    /// Drafts for which a log has room.
    pub(in crate::gpu) room: usize,
}

impl<D: Driver> Gpu<D> {
    /// Takes the dense parameters of a gated-delta layer.
    ///
    /// # Errors
    /// If there is not enough memory, or the heads are too wide for the kernels.
    pub fn delta(&mut self, shape: DeltaShape, w: &DeltaWeights<'_>) -> Result<Delta, GpuError> {
        let DeltaShape { key_heads, value_heads, head_dim, taps } = shape;
        if head_dim > MAX_DELTA_HEAD {
            let what = "recurrent layers";
            return Err(GpuError::HeadTooWide { what, head_dim, limit: MAX_DELTA_HEAD });
        }
        assert!(taps > 0 && key_heads > 0, "there must be a tap and a head");
        assert!(value_heads.is_multiple_of(key_heads), "every key head must have as many value heads");
        let lengths = [w.conv.len(), w.a.len(), w.dt_bias.len(), w.norm.len()];
        let expected = [shape.channels() * taps, value_heads, value_heads, head_dim];
        assert_eq!(lengths, expected, "the parameters must have the layer's shape");
        let what = "parameters of recurrent layers";
        let by_tap = (0..taps).flat_map(|tap| w.conv.iter().skip(tap).step_by(taps));
        let conv = self.store(&f32_bytes(&by_tap.copied().collect::<Vec<_>>()), what)?;
        let [a, dt_bias, norm] = [w.a, w.dt_bias, w.norm].map(|values| self.store(&f32_bytes(values), what));
        self.mixed_len = self.mixed_len.max(shape.gpu_between_len());
        Ok(Delta { shape, conv, a: a?, dt_bias: dt_bias?, norm: norm?, eps: w.eps })
    }

    /// Makes `slots` recurrent states for one layer.
    pub fn state(&mut self, shape: DeltaShape, slots: usize) -> Result<State, GpuError> {
        let values = self.alloc(slots.saturating_mul(4 * shape.state_len()), "recurrent states")?;
        Ok(State { shape, slots, values, log: None, room: 0 })
    }

    /// Makes room for logs of `drafts` drafts, one beside every slot; returns how many fit.
    pub fn reserve_log(&mut self, state: &mut State, drafts: usize) -> Result<usize, GpuError> {
        if drafts > state.room {
            let len = drafts.saturating_mul(state.shape.gpu_log_len());
            state.log = Some(self.alloc(state.slots.saturating_mul(4 * len), "logs of drafts")?);
            state.room = drafts;
        }
        Ok(state.room)
    }

    /// Makes room for what the kernels of a gated-delta layer pass to each other in a step of `tokens` tokens.
    pub(in crate::gpu) fn make_mixed(&mut self, tokens: usize) -> Result<u64, GpuError> {
        let bytes = 4 * tokens * self.mixed_len;
        let known = self.mixed.take().filter(|mixed| mixed.bytes() >= bytes);
        let mixed = match known {
            Some(mixed) => mixed,
            None => self.alloc(bytes, "activations of recurrent layers")?,
        };
        let address = mixed.address();
        self.mixed = Some(mixed);
        Ok(address)
    }
}
