//! A model that computes hashes instead of numbers, to test everything around a model.
//!
//! Each slot of its key-value blocks holds a hash of the slot's token, its position and everything before it. Its
//! logits are a function of all slots that it reads back through the block table. So a wrong table, a lost or
//! repeated token, a wrong position, or a block written by another sequence changes every later answer. Logits that the
//! caller has said not to look at are minus infinity.
//!
//! With state slots it also has a recurrent state: a hash of everything before, kept in the slot of a run and nowhere
//! else, that decides the logits and the contents of blocks too. So a slot that is stale, swapped, or has seen a token
//! twice changes every later answer. A forward pass that fails midway leaves the states of its runs undefined.
//!
//! Its draft head, if it has one, is always right: it computes the answer after a token from what it is given as the
//! hidden state before it. So a hidden state of another token or sequence makes it wrong.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use bitnet_kernels::{BackendInfo, DeviceStatus, gpu::Recorded};
use bitnet_model::{
    Batch, CacheBytes, CachePlace, ForwardError, HiddenRows, Limits, Logits, Model, ModelSpec, Run,
};

/// Counts what a [`HashModel`] did.
#[derive(Debug, Default)]
pub struct Counts {
    /// Forward passes.
    pub forwards: AtomicUsize,
    /// Tokens in them.
    pub tokens: AtomicUsize,
    /// Rows of logits.
    pub rows: AtomicUsize,
    /// Maximum number of runs in a pass.
    pub widest: AtomicUsize,
    /// Blocks copied.
    pub copies: AtomicUsize,
    /// States copied.
    pub state_copies: AtomicUsize,
}

/// Called before a step, which it can fail, and after it, when it can change the logits.
pub type Hook = Box<dyn FnMut(&Batch, Option<&mut Logits>) -> Result<(), ForwardError> + Send>;

/// The content of a state slot that nothing has been computed into.
const UNDEFINED: u64 = 0x00BA_DBAD_BADB_AD00;

/// What decides the answer after a token: a hash of everything up to it, and the recurrent state.
type Hidden = (u64, Option<u64>);

/// The model; see the module.
pub struct HashModel {
    spec: ModelSpec,
    limits: Limits,
    slots: Vec<u64>,
    /// The recurrent state in each state slot.
    states: Vec<u64>,
    /// The states at which the last step's runs started.
    taken: Vec<Option<u64>>,
    /// Scratch memory to find the highest logits of a row.
    order: Vec<f32>,
    /// Whether there is a draft head.
    head: bool,
    /// The hidden states of the last pass, and those of the last pass of the head.
    hidden: [Vec<Hidden>; 2],
    counts: Arc<Counts>,
    hook: Option<Hook>,
    device: Option<DeviceStatus>,
}

impl HashModel {
    /// Creates a model of these sizes.
    pub fn new(vocab: usize, context: usize, limits: Limits) -> Self {
        let spec = ModelSpec {
            hidden: 4,
            ffn: 4,
            layers: 1,
            heads: 1,
            kv_heads: 1,
            head_dim: 4,
            ..ModelSpec::without_layers("hash", vocab, context)
        };
        let slots = vec![0; limits.kv_blocks * Batch::BLOCK_TOKENS];
        let states = vec![UNDEFINED; limits.state_slots];
        let taken = Vec::with_capacity(limits.max_tokens);
        let order = vec![0.0; vocab];
        let (counts, hidden) = (Arc::default(), Default::default());
        let (hook, device) = (None, None);
        HashModel { spec, limits, slots, states, taken, order, head: false, hidden, counts, hook, device }
    }

    /// Gives it a draft head.
    pub fn with_draft_head(self) -> Self {
        HashModel { head: true, ..self }
    }

    /// Says that it is on a GPU.
    pub fn on_gpu(self) -> Self {
        let (memory_used, memory_total, counts) = (0, 1 << 30, Default::default());
        let device =
            DeviceStatus { memory_used, memory_total, counts, recorded: Recorded::Never, lost: false };
        HashModel { device: Some(device), ..self }
    }

    /// Calls `hook` before each step, without logits, and after it, with them.
    pub fn with_hook(mut self, hook: Hook) -> Self {
        self.hook = Some(hook);
        self
    }

    /// Takes the states of the runs out of their slots, whose contents are undefined until the end of the pass.
    fn take_states(&mut self, batch: &Batch) {
        let take = |run: &Run| {
            self.states.get_mut(run.state as usize).map(|slot| std::mem::replace(slot, UNDEFINED))
        };
        self.taken.clear();
        self.taken.extend(batch.runs().iter().map(take));
    }

    /// The hashes of a block, or a state.
    fn values(&mut self, place: CachePlace) -> &mut [u64] {
        match place {
            CachePlace::Block(block) => {
                &mut self.slots[block as usize * Batch::BLOCK_TOKENS..][..Batch::BLOCK_TOKENS]
            }
            CachePlace::State(slot) => std::slice::from_mut(&mut self.states[slot as usize]),
        }
    }

    fn put_state(&mut self, run: &Run, state: Option<u64>) {
        let slot = self.states.get_mut(run.state as usize);
        slot.into_iter().zip(state).for_each(|(slot, state)| *slot = state);
    }

    /// The counts, which stay readable after the model has moved.
    pub fn counts(&self) -> Arc<Counts> {
        Arc::clone(&self.counts)
    }
}

/// Mixes two values with SplitMix64's finaliser.
pub fn mix(a: u64, b: u64) -> u64 {
    let mut x = a.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ b.wrapping_add(0xD1B5_4A32_D192_ED03);
    x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    x ^ (x >> 31)
}

fn slot_value(state: u64, position: usize, token: u32) -> u64 {
    mix(mix(state, position as u64), u64::from(token))
}

/// Adds a token to the recurrent state, if there is one; returns the content of the token's slot in its block.
fn next(state: u64, recurrent: &mut Option<u64>, position: usize, token: u32) -> u64 {
    let value = slot_value(state, position, token);
    // Leave the position out, so that seeing a token twice corrupts the state and a test notices.
    recurrent.as_mut().map_or(value, |recurrent| {
        *recurrent = mix(*recurrent, u64::from(token));
        mix(value, *recurrent)
    })
}

fn seen(state: u64, recurrent: Option<u64>) -> u64 {
    recurrent.map_or(state, |recurrent| mix(state, recurrent))
}

fn fill(row: &mut [f32], state: u64) {
    for (token, logit) in row.iter_mut().enumerate() {
        *logit = (mix(state, token as u64) >> 40) as f32 * (8.0 / (1 << 24) as f32);
    }
}

/// Lowers all logits below the `top` highest as far as possible, as a model may for a caller who only needs these.
fn lower_others(row: &mut [f32], top: usize, order: &mut [f32]) {
    if top >= row.len() {
        return;
    }
    order.copy_from_slice(row);
    let lowest = match top.checked_sub(1) {
        Some(last) => *order.select_nth_unstable_by(last, |a, b| b.total_cmp(a)).1,
        None => f32::INFINITY,
    };
    row.iter_mut().filter(|logit| **logit < lowest).for_each(|logit| *logit = f32::NEG_INFINITY);
}

/// Computes the logits that a [`HashModel`] must return after a text, without a cache.
#[derive(Debug, Default)]
pub struct Oracle {
    state: u64,
    position: usize,
    /// The recurrent state of a model that has one.
    recurrent: Option<u64>,
}

impl Oracle {
    /// The oracle of a model with a recurrent state.
    pub fn recurrent() -> Self {
        Oracle { recurrent: Some(0), ..Oracle::default() }
    }

    /// Adds a token.
    pub fn push(&mut self, token: u32) {
        let slot = next(self.state, &mut self.recurrent, self.position, token);
        self.state = mix(self.state, slot);
        self.position += 1;
    }

    /// Writes the logits after the tokens so far.
    pub fn logits(&self, row: &mut [f32]) {
        fill(row, seen(self.state, self.recurrent));
    }
}

impl Model for HashModel {
    fn spec(&self) -> &ModelSpec {
        &self.spec
    }

    fn limits(&self) -> Limits {
        self.limits
    }

    fn forward(&mut self, batch: &Batch, logits: &mut Logits) -> Result<(), ForwardError> {
        let vocab = self.spec.vocab;
        assert!(batch.tokens().len() <= self.limits.max_tokens, "more tokens than a step can have");
        assert!(batch.logit_rows().len() <= self.limits.max_logit_rows, "more rows than a step can have");
        self.counts.forwards.fetch_add(1, Relaxed);
        self.counts.tokens.fetch_add(batch.tokens().len(), Relaxed);
        self.counts.rows.fetch_add(batch.logit_rows().len(), Relaxed);
        self.counts.widest.fetch_max(batch.runs().len(), Relaxed);
        self.take_states(batch);
        if let Some(hook) = &mut self.hook
            && let Err(error) = hook(batch, None)
        {
            if error.is_refusal() {
                for (at, run) in batch.runs().iter().enumerate() {
                    self.put_state(run, self.taken[at]);
                }
            }
            return Err(error);
        }
        self.hidden[0].clear();
        let mut rows = logits.resize(batch.logit_rows().len(), vocab).chunks_exact_mut(vocab);
        let mut wanted = batch.logit_rows().iter().zip(batch.wanted()).peekable();
        for (at, run) in batch.runs().iter().enumerate() {
            let table = batch.table(run);
            let slot = |p: usize| {
                table[p / Batch::BLOCK_TOKENS] as usize * Batch::BLOCK_TOKENS + p % Batch::BLOCK_TOKENS
            };
            let mut state = (0..run.start).fold(0, |state, p| mix(state, self.slots[slot(p)]));
            let mut recurrent = self.taken[at].map(|state| if run.start == 0 { 0 } else { state });
            for (index, p) in run.tokens.clone().zip(run.start..) {
                let token = batch.tokens()[index];
                assert!((token as usize) < vocab, "token {token} is not in the vocabulary");
                self.slots[slot(p)] = next(state, &mut recurrent, p, token);
                state = mix(state, self.slots[slot(p)]);
                if self.head {
                    self.hidden[0].push((state, recurrent));
                }
                if let Some((_, wanted)) = wanted.next_if(|(row, _)| **row == index) {
                    let row = rows.next().expect("one row for each wanted token");
                    fill(row, seen(state, recurrent));
                    lower_others(row, wanted.highest(), &mut self.order);
                }
            }
            self.put_state(run, recurrent);
        }
        match &mut self.hook {
            Some(hook) => hook(batch, Some(logits)),
            None => Ok(()),
        }
    }

    fn has_draft_head(&self) -> bool {
        self.head
    }

    fn draft(
        &mut self,
        batch: &Batch,
        hidden: HiddenRows<'_>,
        logits: &mut Logits,
    ) -> Result<(), ForwardError> {
        let vocab = self.spec.vocab;
        assert!(batch.tokens().len() <= self.limits.max_tokens, "more tokens than a step can have");
        assert_eq!(batch.tokens().len(), hidden.rows().len(), "each token has a hidden state");
        let mut rows = logits.resize(batch.logit_rows().len(), vocab).chunks_exact_mut(vocab);
        let mut drafted = Vec::new();
        for run in batch.runs() {
            for (index, p) in run.tokens.clone().zip(run.start..) {
                let row = hidden.rows()[index];
                let (mut state, mut recurrent) =
                    self.hidden[usize::from(matches!(hidden, HiddenRows::Drafted(_)))][row];
                let slot = next(state, &mut recurrent, p + 1, batch.tokens()[index]);
                state = mix(state, slot);
                if batch.logit_rows().contains(&index) {
                    fill(rows.next().expect("one row for each wanted token"), seen(state, recurrent));
                    drafted.push((state, recurrent));
                }
            }
        }
        self.hidden[1] = drafted;
        Ok(())
    }

    fn backend(&self) -> BackendInfo {
        BackendInfo { device: "hash".into(), isa: "none", threads: 1, kv: "none" }
    }

    fn device(&self) -> Option<DeviceStatus> {
        self.device
    }

    fn copy_block(&mut self, from: u32, to: u32) -> Result<(), ForwardError> {
        self.counts.copies.fetch_add(1, Relaxed);
        let from = from as usize * Batch::BLOCK_TOKENS;
        let size = Batch::BLOCK_TOKENS;
        self.slots.copy_within(from..from + size, to as usize * size);
        Ok(())
    }

    fn copy_state(&mut self, from: u32, to: u32) -> Result<(), ForwardError> {
        self.counts.state_copies.fetch_add(1, Relaxed);
        self.states[to as usize] = self.states[from as usize];
        Ok(())
    }

    fn cache_bytes(&self) -> Option<CacheBytes> {
        Some(CacheBytes { block: 8 * Batch::BLOCK_TOKENS, state: if self.states.is_empty() { 0 } else { 8 } })
    }

    fn read_cache(&mut self, place: CachePlace, to: &mut [u8]) -> Result<(), ForwardError> {
        let from = self.values(place).to_vec();
        to.as_chunks_mut().0.iter_mut().zip(from).for_each(|(to, value)| *to = value.to_le_bytes());
        Ok(())
    }

    fn write_cache(&mut self, place: CachePlace, from: &[u8]) -> Result<(), ForwardError> {
        let to = self.values(place);
        assert_eq!(from.len(), 8 * to.len(), "the bytes of a part");
        to.iter_mut().zip(from.as_chunks().0).for_each(|(to, from)| *to = u64::from_le_bytes(*from));
        Ok(())
    }
}

impl fmt::Debug for HashModel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HashModel").field("limits", &self.limits).finish_non_exhaustive()
    }
}
