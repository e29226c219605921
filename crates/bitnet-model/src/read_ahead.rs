//! Projections are unpacked while those before them become a backend's own layout.

use std::{
    sync::{
        Mutex, PoisonError,
        mpsc::{Receiver, sync_channel},
    },
    thread,
};

use bitnet_tensor::{BitNetTensor, TernaryTensor};

use crate::{ModelError, TensorEntry, TensorKind, TensorSource};

/// Projections that wait at most: they lie in memory beside what is made of them, as does the one being unpacked.
const WAITING: usize = 1;

type Unpacked = (String, Result<TernaryTensor, ModelError>);

/// A source whose projections another thread unpacks in the order of its entries.
struct ReadAhead<'a> {
    source: &'a dyn TensorSource,
    unpacked: Mutex<Receiver<Unpacked>>,
}

/// Calls `load` with a source that unpacks projections ahead of their use, if a thread for that can be had.
pub(crate) fn with<T>(source: &dyn TensorSource, load: impl FnOnce(&dyn TensorSource) -> T) -> T {
    let ternary = source.entries().iter().filter(|entry| entry.kind == TensorKind::Ternary);
    let names: Vec<String> = ternary.map(|entry| entry.name.clone()).collect();
    let (send, unpacked) = sync_channel(WAITING);
    let work = move || {
        for name in names {
            let tensor = source.ternary(&name);
            // Nobody listens when loading has ended, well or not.
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

impl TensorSource for ReadAhead<'_> {
    fn entries(&self) -> &[TensorEntry] {
        self.source.entries()
    }

    fn ternary(&self, name: &str) -> Result<TernaryTensor, ModelError> {
        let unpacked = self.unpacked.lock().unwrap_or_else(PoisonError::into_inner);
        match unpacked.recv() {
            Ok((next, tensor)) if next == name => tensor,
            // All have been given, or somebody asks in another order.
            _ => self.source.ternary(name),
        }
    }

    fn dense(&self, name: &str) -> Result<BitNetTensor, ModelError> {
        self.source.dense(name)
    }
}
