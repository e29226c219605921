use std::{
    mem,
    sync::{
        Arc, Mutex, OnceLock, PoisonError,
        mpsc::{Receiver, Sender, channel},
    },
    task::{Wake, Waker},
    thread,
};

use pyo3::prelude::*;

/// Calls Python functions from a thread of its own, so that the engine's thread never waits for the interpreter. The
/// thread starts with the first call and ends with the last clone.
#[derive(Clone, Default)]
pub(crate) struct Bridge(Arc<OnceLock<Sender<Py<PyAny>>>>);

impl Bridge {
    /// A waker that calls a Python function once.
    pub(crate) fn waker(&self, call: Py<PyAny>) -> Waker {
        let calls = self.0.get_or_init(|| {
            let (sender, receiver) = channel();
            thread::spawn(move || run(&receiver));
            sender
        });
        Waker::from(Arc::new(Call { calls: calls.clone(), call: Mutex::new(Some(call)) }))
    }
}

fn run(calls: &Receiver<Py<PyAny>>) {
    while let Ok(first) = calls.recv() {
        // Nobody waits any more when the interpreter ends.
        let done = Python::try_attach(|py| {
            for call in std::iter::once(first).chain(calls.try_iter()) {
                // The call fails if its event loop is closed, and then nobody waits for it.
                let _ = call.call0(py);
            }
        });
        if done.is_none() {
            return;
        }
    }
}

struct Call {
    calls: Sender<Py<PyAny>>,
    call: Mutex<Option<Py<PyAny>>>,
}

impl Wake for Call {
    fn wake(self: Arc<Self>) {
        let call = mem::take(&mut *self.call.lock().unwrap_or_else(PoisonError::into_inner));
        if let Some(call) = call {
            let _ = self.calls.send(call);
        }
    }
}
