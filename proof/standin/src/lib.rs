//! A stand-in for the NVIDIA driver, built as the library that the program loads. It runs work on the simulator, as
//! late as a driver may. Wrong calls fail and are reported on stderr as `standin: ...`: unknown handles, a context that
//! is not current in the thread, calls that a capture forbids, memory freed or written while a copy needs it, and
//! whatever is never freed. The environment adds faults:
//!
//! - `STANDIN_FAIL=NAME:N:CODE`: the Nth and all later calls of a function return this code. With `:overlap` at the end,
//!   only those do that record or replay a launch that overlaps. After codes from 700 to 719, or with `:poison`, all later
//!   calls in the context fail too.
//!   The name `replay` stands for the work of replayed graphs, which fails late, and spoils the context.
//! - `STANDIN_REFUSE=KERNEL`: the compiler refuses this kernel, with a log.
//! - `STANDIN_REFUSE_CODE=KERNEL`: the machine code of this kernel is of a form that the driver does not know. Machine
//!   code is ELF's first four bytes and a text.
//! - `STANDIN_GPUS=7.5,9.0-busy,9.0-full,8.0`: the GPUs by compute capability, instead of one with 9.0. One that is busy
//!   gives no context, and one that is full has no memory.
//! - `STANDIN_LAZY=1`: it refuses on first use of the function instead of when the module is loaded.
#![allow(non_snake_case, reason = "the driver's names")]
#![allow(clippy::print_stderr, reason = "a driver has no other channel for reports")]

mod calls;
mod faults;
mod work;

use std::{
    cell::Cell,
    collections::{BTreeMap, HashMap, VecDeque},
    sync::{Arc, LazyLock, Mutex, PoisonError},
    time::Instant,
};

use bitnet_ptxsim::{Memory, Module};
use faults::{Fault, GPUS};
use work::Work;

type Code = i32;
type Done = Result<(), Code>;

const INVALID_VALUE: Code = 1;
const OUT_OF_MEMORY: Code = 2;
const DEVICE_UNAVAILABLE: Code = 46;
const INVALID_IMAGE: Code = 200;
const INVALID_CONTEXT: Code = 201;
const INVALID_PTX: Code = 218;
const INVALID_HANDLE: Code = 400;
const NOT_READY: Code = 600;
const ILLEGAL_ADDRESS: Code = 700;
/// Codes after which a context is of no use.
const SPOILS: std::ops::Range<Code> = 700..720;
const CAPTURE_UNSUPPORTED: Code = 900;
const CAPTURE_INVALIDATED: Code = 901;

/// Bytes of device memory that a recorded launch takes.
const RECORDED: usize = 1 << 10;
/// Queries for each piece of work that gets done.
const LATE: u32 = 3;

thread_local! {
    static CURRENT: Cell<usize> = const { Cell::new(0) };
}

static STATE: LazyLock<Mutex<State>> = LazyLock::new(Mutex::default);

/// An event: how many records of it wait in streams, and when the last one was reached.
#[derive(Default, Clone, Copy)]
struct Event {
    pending: usize,
    passed: Option<Instant>,
    timed: bool,
}

struct Loaded {
    module: Arc<Module>,
    name: String,
    /// Address and size of the buffer for the compiler's log.
    log: (usize, usize),
    refused: bool,
}

struct Function {
    module: usize,
    /// Maximum bytes of dynamic shared memory.
    dynamic: usize,
}

/// The context of a device. Each has another handle.
#[derive(Default)]
struct Context {
    handle: usize,
    device: usize,
    /// Number of times that it was retained.
    retained: usize,
}

#[derive(Default)]
struct State {
    started: bool,
    /// The one context; the handle and the device stay when it is released.
    context: Context,
    next: usize,
    calls: HashMap<&'static str, u64>,
    /// The code that every call returns after a failed kernel or copy.
    lost: Option<Code>,
    memory: Memory,
    allocations: BTreeMap<u64, usize>,
    pinned: BTreeMap<usize, usize>,
    streams: BTreeMap<usize, VecDeque<Work>>,
    /// Whether the last work put into a stream was the launch of a kernel.
    after_kernel: BTreeMap<usize, bool>,
    /// The captured stream with its work so far; `None` after a forbidden call.
    capture: Option<(usize, Option<Vec<Work>>)>,
    graphs: BTreeMap<usize, Vec<Work>>,
    executables: BTreeMap<usize, Vec<Work>>,
    events: BTreeMap<usize, Event>,
    modules: BTreeMap<usize, Loaded>,
    functions: BTreeMap<usize, Function>,
    queries: u32,
    seed: u64,
}

/// Reports a wrong call, which returns `code`; with 0 it succeeds all the same.
fn wrong<T>(code: Code, what: impl std::fmt::Display) -> Result<T, Code> {
    eprintln!("standin: {what}");
    Err(code)
}

/// Runs a function of the driver, unless it is to fail.
fn call(name: &'static str, f: impl FnOnce(&mut State) -> Done) -> Code {
    let mut state = STATE.lock().unwrap_or_else(PoisonError::into_inner);
    *state.calls.entry(name).or_default() += 1;
    if let Err(code) = state.not_faulty(name, &[]) {
        if name == "cuStreamEndCapture" {
            // A capture ends however its end fails.
            state.capture = None;
        }
        return code;
    }
    if !state.started && name != "cuInit" {
        return 3;
    }
    f(&mut state).err().unwrap_or(0)
}

/// The same for functions that need a current context, which fail when it has failed.
fn within(name: &'static str, f: impl FnOnce(&mut State) -> Done) -> Code {
    call(name, |state| {
        if CURRENT.get() != state.context.handle || state.context.retained == 0 {
            return wrong(INVALID_CONTEXT, format_args!("{name} without a context"));
        }
        match state.lost {
            Some(code) => {
                state.capture = None;
                Err(code)
            }
            None => f(state),
        }
    })
}

impl State {
    fn handle(&mut self) -> usize {
        self.next += 16;
        0x1000 + self.next
    }

    /// Fails if the environment asks for that. `list` is what the call records or replays.
    fn not_faulty(&mut self, name: &str, list: &[Work]) -> Done {
        let count = self.calls.get(name).copied().unwrap_or_default();
        match Fault::of(name, count, list) {
            Some((code, poison)) => {
                let spoilt = poison || SPOILS.contains(&code);
                self.lost = self.lost.or(spoilt.then_some(code));
                Err(code)
            }
            None => Ok(()),
        }
    }

    /// The GPU whose context is retained.
    fn gpu(&self) -> &'static faults::Gpu {
        &GPUS[self.context.device]
    }

    /// Ends the context. What one that has failed still holds goes with it.
    fn destroy(&mut self) -> Done {
        let leaks = if self.lost.is_none() { self.leaks() } else { Vec::new() };
        let State { started, next, seed, context, calls, .. } = std::mem::take(self);
        *self = State { started, next, seed, context, calls, ..State::default() };
        match &leaks[..] {
            [] => Ok(()),
            _ => wrong(0, format_args!("never freed: {}", leaks.join(", "))),
        }
    }

    /// Fails if a stream is being captured, which forbids this call and spoils the capture.
    fn not_captured(&mut self, name: &str) -> Done {
        match &mut self.capture {
            Some((_, captured)) => {
                *captured = None;
                wrong(CAPTURE_UNSUPPORTED, format_args!("{name} while a stream is captured"))
            }
            None => Ok(()),
        }
    }

    /// Puts work into a stream, or into its capture.
    fn push(&mut self, stream: usize, work: Work) -> Done {
        let kernel = matches!(work, Work::Launch { .. });
        let early = work::overlaps(&work);
        let before = match &self.capture {
            Some((captured, list)) if *captured == stream => {
                matches!(list.as_ref().and_then(|list| list.last()), Some(Work::Launch { .. }))
            }
            _ => self.after_kernel.insert(stream, kernel).unwrap_or(false),
        };
        if early && !before {
            return wrong(INVALID_VALUE, "a launch that overlaps with something other than a kernel");
        }
        if let Some((captured, list)) = &mut self.capture
            && *captured == stream
        {
            return match list {
                Some(list) => {
                    list.push(work);
                    Ok(())
                }
                None => Err(CAPTURE_INVALIDATED),
            };
        }
        match self.streams.get_mut(&stream) {
            Some(queue) => {
                queue.push_back(work);
                Ok(())
            }
            None => wrong(INVALID_HANDLE, "no such stream"),
        }
    }

    /// Does a piece of work on every [`LATE`]th query.
    fn queried(&mut self) -> Done {
        self.queries += 1;
        if !self.queries.is_multiple_of(LATE) {
            return Ok(());
        }
        let stream = self.streams.iter().find(|(_, queue)| !queue.is_empty()).map(|(&stream, _)| stream);
        let work = stream.and_then(|stream| self.streams.get_mut(&stream)?.pop_front());
        match work.map_or(Ok(()), |work| self.run(work)) {
            Ok(()) => Ok(()),
            Err(code) => {
                self.lost = Some(code);
                Err(code)
            }
        }
    }

    /// Bytes of device memory that are not allocated.
    fn free_memory(&self) -> usize {
        let recorded: usize = self.executables.values().map(|list| RECORDED * list.len()).sum();
        self.gpu().memory.saturating_sub(self.allocations.values().sum::<usize>() + recorded)
    }

    /// Whether these bytes are allocated on the device.
    fn holds(&self, address: u64, bytes: usize) -> bool {
        let below = self.allocations.range(..=address).next_back();
        below.is_some_and(|(&start, &size)| {
            address - start <= size as u64 && bytes as u64 <= size as u64 - (address - start)
        })
    }

    /// Whether these bytes are pinned host memory.
    fn pins(&self, address: usize, bytes: usize) -> bool {
        let below = self.pinned.range(..=address).next_back();
        below.is_some_and(|(&start, &size)| address - start + bytes <= size)
    }

    /// Everything that is still allocated.
    fn leaks(&self) -> Vec<String> {
        let counts = [
            ("allocations", self.allocations.len()),
            ("pieces of pinned memory", self.pinned.len()),
            ("streams", self.streams.len()),
            ("graphs", self.graphs.len() + self.executables.len()),
            ("events", self.events.len()),
            ("modules", self.modules.len()),
        ];
        counts.iter().filter(|(_, n)| *n > 0).map(|(what, n)| format!("{n} {what}")).collect()
    }
}
