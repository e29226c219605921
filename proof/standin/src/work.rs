//! The work in a stream.

use std::{slice, sync::Arc, time::Instant};

use bitnet_ptxsim::{Launch, Module, Param};

use super::{Code, Done, ILLEGAL_ADDRESS, State, wrong};

#[derive(Clone)]
pub(super) enum Work {
    Launch {
        module: Arc<Module>,
        name: String,
        grid: [u32; 3],
        block: u32,
        dynamic: usize,
        params: Vec<Param>,
        overlapped: bool,
    },
    Set {
        address: u64,
        byte: u8,
        bytes: usize,
    },
    /// `then`: the bytes when the copy was enqueued; they must be the same when it runs.
    ToDevice {
        to: u64,
        from: usize,
        then: Vec<u8>,
    },
    ToHost {
        to: usize,
        from: u64,
        bytes: usize,
    },
    Record(usize),
    /// Fails, and the context with it.
    Fail(Code),
}

/// Whether it is a launch that may begin before the one before it has ended.
pub(super) fn overlaps(work: &Work) -> bool {
    matches!(work, Work::Launch { overlapped: true, .. })
}

impl Work {
    /// Whether it copies from or to pinned memory that starts in this range.
    pub(super) fn uses_pinned(&self, start: usize, bytes: usize) -> bool {
        match *self {
            Work::ToDevice { from: at, .. } | Work::ToHost { to: at, .. } => {
                (start..start + bytes).contains(&at)
            }
            _ => false,
        }
    }
}

impl State {
    pub(super) fn run(&mut self, work: Work) -> Done {
        match work {
            Work::Launch { module, name, grid, block, dynamic, params, overlapped } => {
                self.seed += 1;
                let launch = Launch {
                    grid,
                    dynamic_shared: dynamic,
                    params,
                    seed: self.seed,
                    overlapped,
                    matrix_unit: self.gpu().matrix_unit(),
                    ..Launch::new(1, block)
                };
                match module.launch(&name, &mut self.memory, &launch) {
                    Ok(_) => Ok(()),
                    Err(e) => wrong(ILLEGAL_ADDRESS, e),
                }
            }
            Work::Fail(code) => Err(code),
            Work::Set { address, byte, bytes } => self.store(address, &vec![byte; bytes]),
            Work::ToDevice { to, from, then } => {
                if !self.pins(from, then.len()) {
                    return wrong(ILLEGAL_ADDRESS, "pinned memory was freed before its copy ran");
                }
                // SAFETY: the memory is pinned: allocated by this library and not freed.
                let now = unsafe { slice::from_raw_parts(from as *const u8, then.len()) };
                if now != then {
                    return wrong(ILLEGAL_ADDRESS, "pinned memory was written before its copy ran");
                }
                self.store(to, &then)
            }
            Work::ToHost { to, from, bytes } => {
                if !self.pins(to, bytes) {
                    return wrong(ILLEGAL_ADDRESS, "pinned memory was freed before its copy ran");
                }
                match self.memory.read(from, bytes) {
                    Ok(read) => {
                        // SAFETY: as above; the program does not touch it before the event after the copy.
                        unsafe { slice::from_raw_parts_mut(to as *mut u8, bytes) }.copy_from_slice(&read);
                        Ok(())
                    }
                    Err(e) => wrong(ILLEGAL_ADDRESS, e),
                }
            }
            Work::Record(event) => match self.events.get_mut(&event) {
                Some(event) => {
                    event.pending -= 1;
                    event.passed = Some(Instant::now());
                    Ok(())
                }
                None => wrong(ILLEGAL_ADDRESS, "an event was destroyed before its stream reached it"),
            },
        }
    }

    fn store(&mut self, address: u64, bytes: &[u8]) -> Done {
        self.memory.write(address, bytes).or_else(|e| wrong(ILLEGAL_ADDRESS, e))
    }
}
