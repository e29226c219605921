use std::collections::VecDeque;
use std::sync::OnceLock;
use std::task::Waker;
use std::time::Instant;

use atomic_waker::AtomicWaker;
use parking_lot::{Condvar, Mutex};

use crate::{End, RequestError, TokenLogprobs};

/// News of a request.
#[derive(Debug, Clone, PartialEq)]
pub enum Update {
    /// A choice has a new token.
    Token {
        /// Which choice.
        choice: u32,
        /// How many tokens of it came before; there are no gaps.
        index: usize,
        /// The token.
        token: u32,
        /// Its log-probabilities, if they were asked for.
        logprobs: Option<TokenLogprobs>,
    },
    /// A choice has ended; nothing follows for it.
    Ended {
        /// Which choice.
        choice: u32,
        /// How.
        end: Result<End, RequestError>,
        /// The logits that follow the prompt, if they were asked for.
        logits: Option<Vec<f32>>,
    },
}

/// What one request has to tell, between the engine's thread and the reader's.
pub(crate) struct Mailbox {
    state: Mutex<State>,
    arrived: Condvar,
    waker: AtomicWaker,
    /// Updates after which the request is paused until half are read.
    capacity: usize,
    /// Since when nobody wants the rest.
    cancelled: OnceLock<Instant>,
}

struct State {
    updates: VecDeque<Update>,
    /// How many tokens each choice has told; `None` when it has ended.
    told: Vec<Option<usize>>,
    paused: bool,
}

impl Mailbox {
    /// A mailbox of so many choices of up to `tokens` tokens each.
    pub fn new(choices: usize, tokens: usize, capacity: usize) -> Self {
        // Room for what a step may add after the pause.
        let room = capacity.min(4096) + 64;
        let updates = VecDeque::with_capacity(tokens.saturating_add(1).saturating_mul(choices).min(room));
        let state = State { updates, told: vec![Some(0); choices], paused: false };
        Mailbox {
            state: Mutex::new(state),
            arrived: Condvar::new(),
            waker: AtomicWaker::new(),
            capacity,
            cancelled: OnceLock::new(),
        }
    }

    /// Adds news; true if the reader is so far behind that the request should pause.
    pub fn push(&self, update: Update) -> bool {
        let mut state = self.state.lock();
        let State { updates, told, paused } = &mut *state;
        let update = match update {
            Update::Token { choice, token, logprobs, .. } => {
                let count = told[choice as usize].as_mut().expect("nothing follows the end");
                let index = std::mem::replace(count, *count + 1);
                Update::Token { choice, index, token, logprobs }
            }
            Update::Ended { choice, .. } => {
                told[choice as usize].take().expect("a choice ends once");
                update
            }
        };
        updates.push_back(update);
        let full =
            updates.len() >= self.capacity && !std::mem::replace(paused, updates.len() >= self.capacity);
        drop(state);
        self.arrived.notify_one();
        self.waker.wake();
        full
    }

    /// Ends the choices that have not ended, and says how many those were.
    pub fn close(&self, error: &RequestError) -> usize {
        let open = |m: &Mailbox| m.state.lock().told.iter().position(Option::is_some);
        let mut closed = 0;
        while let Some(choice) = open(self) {
            self.push(Update::Ended { choice: choice as u32, end: Err(error.clone()), logits: None });
            closed += 1;
        }
        closed
    }

    /// Whether the reader is so far behind that its request waits.
    pub fn is_paused(&self) -> bool {
        self.state.lock().paused
    }

    /// Notes that nobody wants the rest.
    pub fn cancel(&self) {
        self.cancelled.get_or_init(Instant::now);
    }

    /// Since when nobody wants the rest, if so.
    pub fn cancelled(&self) -> Option<Instant> {
        self.cancelled.get().copied()
    }

    /// Whether every choice has ended.
    pub fn is_closed(&self) -> bool {
        self.state.lock().told.iter().all(Option::is_none)
    }

    /// Takes the next news, waiting until `deadline` for it. The flag says that the request may go on.
    pub fn pop(&self, deadline: Option<Instant>) -> Popped {
        let mut state = self.state.lock();
        loop {
            if let Some(popped) = state.take(self.capacity) {
                return popped;
            }
            match deadline {
                None => self.arrived.wait(&mut state),
                Some(deadline) => {
                    if self.arrived.wait_until(&mut state, deadline).timed_out() {
                        return state.take(self.capacity).unwrap_or(Popped::Nothing);
                    }
                }
            }
        }
    }

    /// Takes the next news, or has `waker` woken when there is some.
    pub fn poll(&self, waker: &Waker) -> Popped {
        self.waker.register(waker);
        self.state.lock().take(self.capacity).unwrap_or(Popped::Nothing)
    }
}

/// What a reader finds.
pub(crate) enum Popped {
    /// News, and whether the request was paused and may go on.
    Update(Update, bool),
    /// Nothing yet.
    Nothing,
    /// Nothing ever again.
    Over,
}

impl State {
    fn take(&mut self, capacity: usize) -> Option<Popped> {
        match self.updates.pop_front() {
            Some(update) => {
                let resume = self.paused && self.updates.len() <= capacity / 2;
                self.paused &= !resume;
                Some(Popped::Update(update, resume))
            }
            None => self.told.iter().all(Option::is_none).then_some(Popped::Over),
        }
    }
}
