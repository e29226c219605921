//! A model that computes hashes instead of numbers, to test everything around a model.
//!
//! Each slot of its key-value blocks holds a hash of the slot's token, its position and everything before it. Its
//! logits are a function of all slots that it reads back through the block table. So a wrong table, a lost or
//! repeated token, a wrong position, or a block written by another sequence changes every later answer. Logits that the
//! caller has said not to look at are minus infinity.
//!
//! With state slots it also has a recurrent state: a hash of everything before, kept in the slot of a run and nowhere
//! else, that decides the logits and the contents of blocks too. So a slot that is stale, swapped, or has seen a token
//! twice changes every later answer. A forward pass that fails midway leaves the states of its runs undefined. Once room
//! for logs is reserved, the state in a slot stops before the drafts of its last run, which are in the slot's log.
//!
//! With a sliding window, half of what it knows of each token is in blocks of the window, and a token reads those of its
//! window only. So a block that was given back too early, or holds something else, changes every later answer.
//!
//! Its draft head, if it has one, is always right: it computes the answer after a token from what it is given as the
//! hidden state before it. So a hidden state of another token or sequence makes it wrong.

#![forbid(unsafe_code)]

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use bitnet_kernels::{BackendInfo, DeviceStatus, gpu::Recorded};
use bitnet_model::{
    Batch, CacheBytes, CachePlace, DraftLog, ForwardError, HiddenRows, Limits, Logits, Model, ModelSpec, Run,
    Windows,
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

/// The model; see the crate.
pub struct HashModel {
    spec: ModelSpec,
    limits: Limits,
    slots: Vec<u64>,
    /// The same in blocks of sliding layers; empty if these have none of their own.
    windows: Vec<u64>,
    /// The recurrent state in each state slot.
    states: Vec<u64>,
    /// The drafts in the log of each state slot, and the maximum number of them.
    logs: Vec<Vec<u32>>,
    log_room: usize,
    /// Whether it refuses to have logs.
    without_logs: bool,
    /// The states at which the last step's runs started.
    taken: Vec<Option<u64>>,
    /// Scratch memory to find the highest logits of a row.
    order: Vec<f32>,
    /// Whether there is a draft head.
    head: bool,
    /// The hidden states of the last pass, and those of the last pass of the head.
    hidden: [Vec<Known>; 2],
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
        let windows = Vec::new();
        let states = vec![UNDEFINED; limits.state_slots];
        let logs = vec![Vec::new(); limits.state_slots];
        let taken = Vec::with_capacity(limits.max_tokens);
        let order = vec![0.0; vocab];
        let (counts, hidden) = (Arc::default(), Default::default());
        HashModel {
            spec,
            limits,
            slots,
            windows,
            states,
            logs,
            log_room: 0,
            without_logs: false,
            taken,
            order,
            head: false,
            hidden,
            counts,
            hook: None,
            device: None,
        }
    }

    /// Gives it a window of `width` keys, and this many blocks for it.
    pub fn with_window(mut self, width: usize, blocks: usize) -> Self {
        self.windows = vec![0; blocks * Batch::BLOCK_TOKENS];
        let slides = vec![true; self.spec.layers].into();
        self.spec.windows = Some(Windows { width, slides, full_theta: None });
        self
    }

    /// Makes its state slots have no logs.
    pub fn without_logs(self) -> Self {
        HashModel { without_logs: true, ..self }
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
            CachePlace::Window(block) => {
                &mut self.windows[block as usize * Batch::BLOCK_TOKENS..][..Batch::BLOCK_TOKENS]
            }
            CachePlace::State(slot) => std::slice::from_mut(&mut self.states[slot as usize]),
        }
    }

    /// Checks what runs say about the logs of their slots.
    fn check_logs(&self, batch: &Batch) -> Result<(), ForwardError> {
        for &Run { state: slot, log: DraftLog { accepted, drafts }, ref tokens, .. } in batch.runs() {
            let logged = self.logs.get(slot as usize).map_or(0, Vec::len);
            let room = self.log_room;
            if accepted > logged || drafts > room || drafts >= tokens.len() {
                return Err(ForwardError::LogExceeded { slot, accepted, logged, drafts, room });
            }
        }
        Ok(())
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

/// What is known of a text, which decides the answer after it.
#[derive(Debug, Clone, Default)]
struct Known {
    /// A hash of all slots of its tokens.
    state: u64,
    position: usize,
    /// The recurrent state of a model that has one.
    recurrent: Option<u64>,
    /// Number of keys in a window; 0 in a model without.
    window: usize,
    /// The keys of the last tokens, at least those of a window but one.
    keys: Vec<u64>,
}

impl Known {
    /// Adds a token; returns the content of its slot in its block.
    fn push(&mut self, token: u32) -> u64 {
        let before = self.within(self.window.saturating_sub(1));
        let value = mix(mix(before, self.position as u64), u64::from(token));
        // Leave the position out, so that seeing a token twice corrupts the state and a test notices.
        see(&mut self.recurrent, token);
        let value = self.recurrent.map_or(value, |recurrent| mix(value, recurrent));
        self.state = mix(self.state, value);
        self.position += 1;
        if self.window > 0 {
            self.keys.push(window_key(value));
        }
        value
    }

    /// The hash with the last `count` keys.
    fn within(&self, count: usize) -> u64 {
        let keys = &self.keys[self.keys.len().saturating_sub(count)..];
        keys.iter().fold(self.state, |state, &key| mix(state, key))
    }

    /// What decides the answer.
    fn seen(&self) -> u64 {
        let state = self.within(self.window);
        self.recurrent.map_or(state, |recurrent| mix(state, recurrent))
    }
}

/// Adds a token to the recurrent state, if there is one.
fn see(recurrent: &mut Option<u64>, token: u32) {
    recurrent.iter_mut().for_each(|recurrent| *recurrent = mix(*recurrent, u64::from(token)));
}

/// The key of a token in sliding layers, from the content of its slot in the other layers.
fn window_key(value: u64) -> u64 {
    mix(value, 0x51DE)
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
pub struct Oracle(Known);

impl Oracle {
    /// The oracle of a model with a recurrent state.
    pub fn recurrent() -> Self {
        Oracle(Known { recurrent: Some(0), ..Known::default() })
    }

    /// The same for a model with a window of `width` keys; 0 is none.
    #[must_use]
    pub fn within(self, width: usize) -> Self {
        Oracle(Known { window: width, ..self.0 })
    }

    /// Adds a token.
    pub fn push(&mut self, token: u32) {
        self.0.push(token);
    }

    /// Writes the logits after the tokens so far.
    pub fn logits(&self, row: &mut [f32]) {
        fill(row, self.0.seen());
    }
}

impl Model for HashModel {
    fn spec(&self) -> &ModelSpec {
        &self.spec
    }

    fn limits(&self) -> Limits {
        self.limits
    }

    fn window_blocks(&self) -> usize {
        self.windows.len() / Batch::BLOCK_TOKENS
    }

    fn forward(&mut self, batch: &Batch, logits: &mut Logits) -> Result<(), ForwardError> {
        let vocab = self.spec.vocab;
        assert!(batch.tokens().len() <= self.limits.max_tokens, "more tokens than a step can have");
        assert!(batch.logit_rows().len() <= self.limits.max_logit_rows, "more rows than a step can have");
        self.counts.forwards.fetch_add(1, Relaxed);
        self.counts.tokens.fetch_add(batch.tokens().len(), Relaxed);
        self.counts.rows.fetch_add(batch.logit_rows().len(), Relaxed);
        self.counts.widest.fetch_max(batch.runs().len(), Relaxed);
        self.check_logs(batch)?;
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
        let window = self.spec.sliding_window().unwrap_or(0);
        for (at, run) in batch.runs().iter().enumerate() {
            let (table, windows) = (batch.table(run), batch.windows(run));
            let slot = |table: &[u32], p: usize| {
                table[p / Batch::BLOCK_TOKENS] as usize * Batch::BLOCK_TOKENS + p % Batch::BLOCK_TOKENS
            };
            let mut recurrent = self.taken[at].map(|state| if run.start == 0 { 0 } else { state });
            let (certain, drafts) =
                batch.tokens()[run.tokens.clone()].split_at(run.tokens.len() - run.log.drafts);
            let mut confirmed = recurrent;
            if let Some(log) = self.logs.get_mut(run.state as usize) {
                log[..run.log.accepted].iter().for_each(|&token| see(&mut recurrent, token));
                log.clear();
                log.extend_from_slice(drafts);
                confirmed = recurrent;
                certain.iter().for_each(|&token| see(&mut confirmed, token));
            }
            let mut keys = Vec::new();
            if window > 0 {
                let first = (run.start + 1).saturating_sub(window);
                keys.extend((first..run.start).map(|p| self.windows[slot(windows, p)]));
            }
            let mut known = Known {
                state: (0..run.start).fold(0, |state, p| mix(state, self.slots[slot(table, p)])),
                position: run.start,
                recurrent,
                window,
                keys,
            };
            for (index, p) in run.tokens.clone().zip(run.start..) {
                let token = batch.tokens()[index];
                assert!((token as usize) < vocab, "token {token} is not in the vocabulary");
                let value = known.push(token);
                self.slots[slot(table, p)] = value;
                if window > 0 {
                    self.windows[slot(windows, p)] = window_key(value);
                }
                if self.head {
                    self.hidden[0].push(known.clone());
                }
                if let Some((_, wanted)) = wanted.next_if(|(row, _)| **row == index) {
                    let row = rows.next().expect("one row for each wanted token");
                    fill(row, known.seen());
                    lower_others(row, wanted.highest(), &mut self.order);
                }
            }
            self.put_state(run, confirmed);
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
                let from = &self.hidden[usize::from(matches!(hidden, HiddenRows::Drafted(_)))][row];
                let mut known = Known { position: p + 1, ..from.clone() };
                known.push(batch.tokens()[index]);
                if batch.logit_rows().contains(&index) {
                    fill(rows.next().expect("one row for each wanted token"), known.seen());
                    drafted.push(known);
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

    fn copy_window(&mut self, from: u32, to: u32) -> Result<(), ForwardError> {
        self.counts.copies.fetch_add(1, Relaxed);
        let from = self.values(CachePlace::Window(from)).to_vec();
        self.values(CachePlace::Window(to)).copy_from_slice(&from);
        Ok(())
    }

    fn reserve_log(&mut self, drafts: usize) -> Result<usize, ForwardError> {
        self.log_room = if self.without_logs || self.states.is_empty() { 0 } else { drafts };
        Ok(self.log_room)
    }

    fn copy_state(&mut self, from: u32, to: u32) -> Result<(), ForwardError> {
        self.counts.state_copies.fetch_add(1, Relaxed);
        self.states[to as usize] = self.states[from as usize];
        self.logs[to as usize].clear();
        Ok(())
    }

    fn cache_bytes(&self) -> Option<CacheBytes> {
        let block = 8 * Batch::BLOCK_TOKENS;
        let window = if self.windows.is_empty() { 0 } else { block };
        Some(CacheBytes { block, window, state: if self.states.is_empty() { 0 } else { 8 }, piece: 128 })
    }

    fn read_cache(&mut self, place: CachePlace, to: &mut [u8]) -> Result<(), ForwardError> {
        let from = self.values(place).to_vec();
        to.as_chunks_mut().0.iter_mut().zip(from).for_each(|(to, value)| *to = value.to_le_bytes());
        Ok(())
    }

    fn write_cache(&mut self, place: CachePlace, from: &[u8]) -> Result<(), ForwardError> {
        if let CachePlace::State(slot) = place {
            self.logs[slot as usize].clear();
        }
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
