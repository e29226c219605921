//! A stand-in for the NVIDIA driver, built as the library that the program loads. It runs work on the simulator, as
//! late as a driver may. Wrong calls fail and are reported on stderr as `standin: ...`: unknown handles, a context that
//! is not current in the thread, calls that a capture forbids, memory freed or written while a copy needs it, and
//! whatever is never freed. The environment adds faults:
//!
//! - `STANDIN_FAIL=NAME:N:CODE`: the Nth and all later calls of a function return this code.
//! - `STANDIN_REFUSE=KERNEL`: the compiler refuses this kernel, with a log.
//! - `STANDIN_REFUSE_CODE=KERNEL`: the machine code of this kernel is of a form that the driver does not know. Machine
//!   code is ELF's first four bytes and a text.
//! - `STANDIN_OLD=1`: the GPU is of compute capability 8.0 and not 9.0.
//! - `STANDIN_LAZY=1`: it refuses on first use of the function instead of when the module is loaded.
#![allow(non_snake_case, reason = "the driver's names")]
#![allow(clippy::print_stderr, reason = "a driver has no other channel for reports")]

mod calls;
mod work;

use std::{
    cell::Cell,
    collections::{BTreeMap, HashMap, VecDeque},
    sync::{Arc, LazyLock, Mutex, PoisonError},
    time::Instant,
};

use bitnet_ptxsim::{Memory, Module};
use work::Work;

type Code = i32;
type Done = Result<(), Code>;

const INVALID_VALUE: Code = 1;
const INVALID_IMAGE: Code = 200;
const INVALID_CONTEXT: Code = 201;
const INVALID_PTX: Code = 218;
const INVALID_HANDLE: Code = 400;
const NOT_READY: Code = 600;
const ILLEGAL_ADDRESS: Code = 700;
const CAPTURE_UNSUPPORTED: Code = 900;
const CAPTURE_INVALIDATED: Code = 901;

/// The one context, and the one device's ordinal.
const CONTEXT: usize = 0xC0;
const DEVICE: i32 = 0;
/// Compute capability: that of `STANDIN_OLD` cannot overlap launches.
static CAPABILITY: LazyLock<(i32, i32)> =
    LazyLock::new(|| if std::env::var_os("STANDIN_OLD").is_some() { (8, 0) } else { (9, 0) });
/// Bytes of device memory.
const MEMORY: usize = 4 << 30;
/// Queries for each piece of work that gets done.
const LATE: u32 = 3;

thread_local! {
    static CURRENT: Cell<usize> = const { Cell::new(0) };
}

/// The function to fail, the number of its first call to do so, and the code.
static FAILS: LazyLock<Option<(String, u64, Code)>> = LazyLock::new(|| {
    let text = std::env::var("STANDIN_FAIL").ok()?;
    let mut parts = text.split(':');
    Some((parts.next()?.to_owned(), parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
});

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

#[derive(Default)]
struct State {
    started: bool,
    retained: usize,
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
    let count = state.calls.entry(name).or_default();
    *count += 1;
    let fails = FAILS.as_ref().filter(|(which, first, _)| which == name && *count >= *first);
    if let Some(code) = fails.map(|(_, _, code)| *code).or(state.lost) {
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

/// The same for functions that need a current context.
fn within(name: &'static str, f: impl FnOnce(&mut State) -> Done) -> Code {
    call(name, |state| {
        if CURRENT.get() != CONTEXT || state.retained == 0 {
            return wrong(INVALID_CONTEXT, format_args!("{name} without a context"));
        }
        f(state)
    })
}

impl State {
    fn handle(&mut self) -> usize {
        self.next += 16;
        0x1000 + self.next
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
        let early = matches!(work, Work::Launch { overlapped: true, .. });
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
        MEMORY - self.allocations.values().sum::<usize>()
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
