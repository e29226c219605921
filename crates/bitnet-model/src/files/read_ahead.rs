//! Unpacks the next projection on another thread while the backend packs the one before ([`with`]).
//! Loading then takes as long as the slower of the two.

use std::{
    panic::resume_unwind,
    sync::{
        Mutex, PoisonError,
        mpsc::{Receiver, sync_channel},
    },
    thread,
};

use bitnet_tensor::{BitNetTensor, TernaryTensor};

use crate::{
    ModelError,
    files::{TensorEntry, TensorKind, TensorSource},
    names,
};

/// Maximum number of unpacked projections that wait. They take memory, as does the one being unpacked.
const WAITING: usize = 1;

type Unpacked = (String, Result<TernaryTensor, ModelError>);

/// A source whose projections are unpacked by another thread, in the order of its entries.
struct ReadAhead<'a> {
    source: &'a dyn TensorSource,
    unpacked: Mutex<Receiver<Unpacked>>,
}

/// Calls `load` with a source that unpacks projections ahead of use, or with `source` itself if no thread can be
/// started.
pub(crate) fn with<T>(source: &dyn TensorSource, load: impl FnOnce(&dyn TensorSource) -> T) -> T {
    // The embedding and the head are not read in the order of the entries.
    let projections = source.entries().iter().filter(|entry| {
        matches!(entry.kind, TensorKind::Ternary | TensorKind::Grouped) && !names::is_table(&entry.name)
    });
    let projections: Vec<String> = projections.map(|entry| entry.name.clone()).collect();
    let (send, unpacked) = sync_channel(WAITING);
    let work = move || {
        for name in projections {
            let tensor = source.ternary(&name);
            // The receiver is gone once loading has ended.
            if send.send((name, tensor)).is_err() {
                return;
            }
        }
    };
    thread::scope(|scope| match thread::Builder::new().spawn_scoped(scope, work) {
        Ok(reader) => {
            let loaded = load(&ReadAhead { source, unpacked: Mutex::new(unpacked) });
            // A scope may end while its threads still free what they kept for waiting; joining them waits for that too.
            reader.join().unwrap_or_else(|panic| resume_unwind(panic));
            loaded
        }
        Err(_) => load(source),
    })
}

impl ReadAhead<'_> {
    /// The next projection, if it is `name`; `None` if all have been taken or the caller reads in another order.
    fn next(&self, name: &str) -> Option<Result<TernaryTensor, ModelError>> {
        let unpacked = self.unpacked.lock().unwrap_or_else(PoisonError::into_inner);
        unpacked.recv().ok().filter(|(next, _)| next == name).map(|(_, tensor)| tensor)
    }
}

impl TensorSource for ReadAhead<'_> {
    fn entries(&self) -> &[TensorEntry] {
        self.source.entries()
    }

    fn draft_head(&self) -> &[TensorEntry] {
        self.source.draft_head()
    }

    fn ternary(&self, name: &str) -> Result<TernaryTensor, ModelError> {
        let next = if names::is_table(name) { None } else { self.next(name) };
        next.unwrap_or_else(|| self.source.ternary(name))
    }

    fn warnings(&self) -> Vec<String> {
        self.source.warnings()
    }

    fn dense(&self, name: &str) -> Result<BitNetTensor, ModelError> {
        self.source.dense(name)
    }
}
