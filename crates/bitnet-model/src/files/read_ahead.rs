//! Unpacks the next projection on another thread while the backend packs the one before ([`with`]).
//! Loading then takes as long as the slower of the two.

use std::{
    sync::{
        Mutex, PoisonError,
        mpsc::{Receiver, sync_channel},
    },
    thread,
};

use bitnet_tensor::{BitNetTensor, GroupedTensor, TernaryTensor};

use crate::{
    ModelError,
    files::{TensorEntry, TensorKind, TensorSource},
    names,
};

/// Maximum number of unpacked projections that wait. They take memory, as does the one being unpacked.
const WAITING: usize = 1;

/// An unpacked projection of either kind.
enum Projection {
    Ternary(TernaryTensor),
    Grouped(GroupedTensor),
}

type Unpacked = (String, Result<Projection, ModelError>);

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
    let entries: Vec<(String, TensorKind)> = projections.map(|e| (e.name.clone(), e.kind)).collect();
    let (send, unpacked) = sync_channel(WAITING);
    let work = move || {
        for (name, kind) in entries {
            let tensor = match kind {
                TensorKind::Grouped => source.grouped(&name).map(Projection::Grouped),
                _ => source.ternary(&name).map(Projection::Ternary),
            };
            // The receiver is gone once loading has ended.
            if send.send((name, tensor)).is_err() {
                return;
            }
        }
    };
    thread::scope(|scope| match thread::Builder::new().spawn_scoped(scope, work) {
        Ok(_) => load(&ReadAhead { source, unpacked: Mutex::new(unpacked) }),
        Err(_) => load(source),
    })
}

impl ReadAhead<'_> {
    /// The next projection, if it is `name`; `None` if all have been taken or the caller reads in another order.
    fn next(&self, name: &str) -> Option<Result<Projection, ModelError>> {
        let unpacked = self.unpacked.lock().unwrap_or_else(PoisonError::into_inner);
        unpacked.recv().ok().filter(|(next, _)| next == name).map(|(_, tensor)| tensor)
    }
}

impl TensorSource for ReadAhead<'_> {
    fn entries(&self) -> &[TensorEntry] {
        self.source.entries()
    }

    fn ternary(&self, name: &str) -> Result<TernaryTensor, ModelError> {
        match self.next(name).transpose()? {
            Some(Projection::Ternary(tensor)) => Ok(tensor),
            _ => self.source.ternary(name),
        }
    }

    fn grouped(&self, name: &str) -> Result<GroupedTensor, ModelError> {
        if names::is_table(name) {
            return self.source.grouped(name);
        }
        match self.next(name).transpose()? {
            Some(Projection::Grouped(tensor)) => Ok(tensor),
            _ => self.source.grouped(name),
        }
    }

    fn warnings(&self) -> Vec<String> {
        self.source.warnings()
    }

    fn dense(&self, name: &str) -> Result<BitNetTensor, ModelError> {
        self.source.dense(name)
    }
}
